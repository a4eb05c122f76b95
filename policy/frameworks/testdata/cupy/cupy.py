#!/usr/bin/env python3
"""Remakes limits.txt: what real CuPy releases make of CUPY_GPU_MEMORY_LIMIT.

    python3 cupy.py FOLDER     no GPU needed; needs gcc and binutils

Each release is installed by pip into FOLDER and asked with ../tensorflow/standin.c in place of NVIDIA's libraries. Releases before
13 link the CUDA runtime dynamically, so that the stand-in answers for the whole pool; of later ones only the parser can be asked.
The wheels need Linux x86-64 and the CPython that RELEASES names; the environment variables PYTHON3_7, PYTHON3_9 and PYTHON3_11 say
where those are (python3.7, python3.9, python3.11 else).
"""
import glob
import json
import os
import re
import subprocess
import sys

TOTAL = 8000000001
RELEASES = {  # release: package, CPython, what it needs
    "6.7.0": ("cupy-cuda100", "3.7", ["numpy<1.20", "six", "fastrlock==0.8.2"]), "7.0.0": ("cupy-cuda100", "3.7", ["numpy<1.20", "six", "fastrlock==0.8.2"]),
    "7.8.0": ("cupy-cuda100", "3.7", ["numpy<1.20", "six", "fastrlock==0.8.2"]), "8.6.0": ("cupy-cuda110", "3.9", ["numpy<1.20", "fastrlock"]),
    "9.6.0": ("cupy-cuda112", "3.9", ["numpy<1.23", "fastrlock"]), "10.6.0": ("cupy-cuda112", "3.9", ["numpy<1.23", "fastrlock"]),
    "11.6.0": ("cupy-cuda11x", "3.11", ["numpy<2", "fastrlock"]), "12.3.0": ("cupy-cuda12x", "3.11", ["numpy<2", "fastrlock"]),
    "13.6.0": ("cupy-cuda12x", "3.11", ["numpy<2", "fastrlock"]),
    "14.2.0": ("cupy-cuda12x", "3.11", ["numpy>=2", "fastrlock", "cuda-pathfinder"]),
}
TEXTS = ["0", "1", "512", "1073741824", "8000000001", "8000000002", "9223372036854775807", "18446744073709551615", "18446744073709551616",
         "-0", "-1", "+1024", " 1024", "1024 ", "\t1024\n", "1_000", "1__000", "007", "0x400", "1e9", "1.0", "1024.0", "1GB", "1g", "1GiB",
         "1 024", "1,024", "", " ", "abc", "None", "True", "\u0661\u0662", "50%", "0%", "100%", "100.0%", "100.00001%", "150%", "-1%", "-0%", "0.5%",
         ".5%", "33.333333%", "5e1%", "1e-9%", "+50%", " 50%", "50% ", "50 %", "%", "%50", "50%%", "5_0%", "nan%", "inf%", "-inf%", "abc%",
         "0x10%", "50\uff05", "0.5", "12.5%"]
ASK = r'''
import json, os, sys
import cupy
from cupy.cuda import memory
def tried(call):
    try: return [None, call()]
    except BaseException as e: return [type(e).__name__, str(e)]
out = {}
for text in json.load(sys.stdin):
    os.environ["CUPY_GPU_MEMORY_LIMIT"] = text
    row = {}
    if hasattr(memory, "_parse_limit_string"): row["parsed"] = tried(lambda: {k: repr(v) for k, v in memory._parse_limit_string().items()})
    if hasattr(memory.SingleDeviceMemoryPool, "get_limit"): row["limit"] = tried(lambda: memory.SingleDeviceMemoryPool().get_limit())
    out[text] = row
json.dump(out, sys.stdout)
'''


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, universal_newlines=True).stdout


def build(folder, home):
    """Makes the libraries that the release's modules link: the stand-in, and for each other function they name one that fails."""
    lib = home + "-lib"
    os.makedirs(lib, exist_ok=True)
    here = os.path.dirname(os.path.abspath(__file__))
    source, known = '#include "%s/../tensorflow/standin.c"\n' % here, ""
    for name in ["tensorflow/standin.c", "xla/libcuda.c"]:
        with open(os.path.join(here, "..", name)) as f:
            known += f.read()
    wanted, libraries = set(), {"libcuda.so.1"}
    for module in glob.glob(home + "/**/*.so", recursive=True):
        wanted.update(re.findall(r" U (_*(?:cu|nvrtc|nccl|nvtx)[A-Za-z0-9_]*)", run("nm", "-D", "--undefined-only", module)))
        libraries.update(re.findall(r"\[(lib(?:cu|nv|nccl)[^\]]*)\]", run("readelf", "-d", module)))
    for name in sorted(wanted):
        if not re.search(r"[ *]%s\(" % name, known):
            source += "FN %s(void) { return 999; }\n" % name
    with open(lib + "/standin.c", "w") as f:
        f.write(source)
    for name in libraries:
        run("gcc", "-O1", "-w", "-shared", "-fPIC", "-o", os.path.join(lib, name), lib + "/standin.c", "-lpthread")
    return lib


def ask(folder, release):
    package, version, needs = RELEASES[release]
    python = os.environ.get("PYTHON" + version.replace(".", "_"), "python" + version)
    home = os.path.join(folder, release)
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", home, package + "==" + release, *needs)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "CUPY"))}
    env.update(PYTHONPATH=home, LD_LIBRARY_PATH=build(folder, home), STANDIN_TOTAL=str(TOTAL), PYTHONIOENCODING="utf-8", PYTHONUTF8="1")
    return json.loads(subprocess.run([python, "-W", "ignore", "-c", ASK], input=json.dumps(TEXTS), env=env, stdout=subprocess.PIPE, check=True,
                                     universal_newlines=True).stdout)


def answer(row):
    if row["limit"][0] is None:
        return str(row["limit"][1])
    if row["limit"][0] != "CUDARuntimeError":
        return "! %s %s" % (row["limit"][0], quote(row["limit"][1]))
    error, parsed = row["parsed"]
    if error:
        return "! %s %s" % (error, quote(parsed))
    return "size " + parsed["size"] if parsed["size"] != "None" else "fraction " + parsed["fraction"]


def quote(text):
    """A string that Go's strconv.Unquote reads."""
    return json.dumps(text, ensure_ascii=True) if all(ord(c) < 0x10000 for c in text) else '"%s"' % text


def main():
    folder = os.path.abspath(sys.argv[1])
    os.makedirs(folder, exist_ok=True)
    answers = {}
    for release in RELEASES:
        kept = os.path.join(folder, release + ".json")
        if not os.path.exists(kept):
            with open(kept, "w") as f:
                json.dump(ask(folder, release), f)
        with open(kept) as f:
            answers[release] = json.load(f)
    releases = list(RELEASES)
    assert all("limit" not in row for row in answers[releases[0]].values())
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "limits.txt"), "w") as f:
        f.write(HEAD % (TOTAL, ", ".join(releases)))
        for text in TEXTS:
            f.write("\n%s\n" % quote(text))
            ranges = []
            for release in releases[1:]:
                said = answer(answers[release][text])
                if ranges and ranges[-1][2] == said:
                    ranges[-1][1] = release
                else:
                    ranges.append([release, release, said])
            for first, last, said in ranges:
                f.write("  %s %s\n" % (first if first == last else first + ".." + last, said))


HEAD = """# What real CuPy makes of CUPY_GPU_MEMORY_LIMIT on a device of %d bytes. Made by cupy.py.
# A text, then one line for each run of releases with the same answer: the pool's limit in bytes (0 is none), or "!" with
# the class and the text of the exception. Where the release cannot be asked for the limit without a GPU (13 and later) the line is
# what its parser returns, before the range is checked: "size N" or "fraction F".
# Releases asked: %s. The first does not know the variable.
"""

if __name__ == "__main__":
    main()
