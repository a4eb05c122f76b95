#!/usr/bin/env python3
"""Remakes settings.txt, env.txt and names.txt: what real PyTorch releases make of allocator settings.

    python3.11 pytorch.py FOLDER [RELEASE...]     no GPU needed; about 5 GB and 2 minutes per release

Each release of PyPI (the CUDA build) is installed by pip into FOLDER/RELEASE, asked, and removed again; its answers stay in
FOLDER/RELEASE.json, and a release with answers there is not asked again. Then the three tables are written beside this file.
The wheels need Linux x86-64 and CPython 3.11.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

RELEASES = ["1.13.1", "2.0.1", "2.1.2", "2.4.1", "2.6.0", "2.7.1", "2.8.0", "2.9.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1",
            "2.15.0"]

BOOLS = ["True", "False", "true", "TRUE", "1", ""]
TEXTS = ["", " ", ",", ":", ",,", "bogus", "bogus:1", "bogus:", "Max_split_size_mb:64", "MAX_SPLIT_SIZE_MB:64", "max_split_size:64",
         "max_split_size_mb=64", "max_split_size_mb 64", "max_split_size_mb;64"]
for value in ["64", "20", "19", "21", "0", "-1", "-21", "", "abc", "64MB", "64.7", "6e1", "+64", "0x40", " 64 ", "6 4", "\t64", "64\t", "\n64",
              "2147483647", "2147483648", "17592186044415", "17592186044416", "18446744073709551615", "18446744073709551616", "inf"]:
    TEXTS.append("max_split_size_mb:" + value)
for value in ["64", "20", "19", "0", "-1", "", "abc", "2147483648"]:
    TEXTS.append("max_non_split_rounding_mb:" + value)
TEXTS += ["max_split_size_mb", "max_split_size_mb:64,", ",max_split_size_mb:64", "max_split_size_mb:64,,", "max_split_size_mb:64:65",
          "max_split_size_mb::64", "max_split_size_mb :64", " max_split_size_mb : 64 ", "max split_size_mb:64", "max_split_size_mb:64 ,",
          "max_split_size_mb:64;expandable_segments:True", "max_split_size_mb:64 expandable_segments:True",
          "max_split_size_mb:64,max_split_size_mb:128", "max_split_size_mb:128,max_split_size_mb:64",
          "max_split_size_mb:64,bogus:1", "bogus:1,max_split_size_mb:64", "max_split_size_mb:[64]", "max_split_size_mb:\"64\"",
          "max_split_size_mb:'64'", "\"max_split_size_mb:64\"", "max_split_size_mb:64,garbage_collection_threshold:0.6",
          "max_split_size_mb:64,expandable_segments:True", "expandable_segments:True,max_split_size_mb:19"]
for value in ["0.8", ".8", "0.", "0", "0.0", "1", "1.0", "0.999999", "1e-9", "-0.1", "1.1", "80", "80%", "abc", "", "nan", "inf", "0,8",
              "0.8f", "0x1p-1", "+0.8", "5e-1", "1e-400"]:
    TEXTS.append("garbage_collection_threshold:" + value)
TEXTS += ["garbage_collect_threshold:0.8", "garbage_collection_threshold"]
for value in ["1", "2", "3", "4", "8", "16", "0", "-1", "abc", "", "4.5", "[256:1,512:2,1024:4,>:8]", "[256:1]", "[1:4]", "[>:8]",
              "[64:8,128:4,256:2,512:1,1024:2,>:4]", "[256:1,>:4]", "[>:4,256:1]", "[256:0]", "[256:3]", "[255:1]", "[0:1]", "[-1:1]",
              "[65536:2]", "[131072:2]", "[256:1,256:2]", "[512:2,256:1]", "[256:1,]", "[256:1,512:2", "[]", "[", "]", "[256]",
              "[256:]", "[:1]", "[256:1;512:2]", "[256:1 512:2]", "[ 256 : 1 , 512 : 2 ]", "[>:4,>:8]", "[abc:1]",
              "[256:1],max_split_size_mb:64", "[256:1]max_split_size_mb:64"]:
    TEXTS.append("roundup_power2_divisions:" + value)
TEXTS += ["roundup_power2_divisions", "roundup_power2_division:4"]
for key in ["expandable_segments", "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "pinned_use_cuda_host_register",
            "pinned_use_hip_host_register", "pinned_use_background_threads", "graph_capture_record_stream_reuse",
            "pinned_free_catch_all", "throw_on_cudamalloc_oom"]:
    for value in BOOLS:
        TEXTS.append(key + ":" + value)
    TEXTS.append(key)
TEXTS += ["expandable_segments:yes", "expandable_segments:on", "expandable_segments: True", "expandable_segments:Tru e",
          "expandable_segment:True", "expandable_segments=True", "expandable_segments:True,expandable_segments:False",
          "expandable_segments:False,expandable_segments:True", "expandable_segments:True,"]
for value in ["1", "2", "3", "8", "128", "129", "256", "0", "-1", "abc", "", "8.5"]:
    TEXTS.append("pinned_num_register_threads:" + value)
for value in ["1", "256", "0", "-1", "abc", "", "1.5", "18446744073709551615"]:
    TEXTS.append("pinned_reserve_segment_size_mb:" + value)
for value in ["0.5", "0", "1", "1.0", "1.0001", "-0.1", "50", "50%", "abc", "", "nan", "inf", ".5", "5e-1", "1e-400", "0x1p-1"]:
    TEXTS.append("per_process_memory_fraction:" + value)
TEXTS += ["per_process_memory_fraction", "per_process_gpu_memory_fraction:0.5", "per_process_memory_fraction:0.5,per_process_memory_fraction:0.4",
          "per_process_memory_fraction:0.5,max_split_size_mb:64", "max_split_size_mb:64,per_process_memory_fraction:0.5",
          "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True", "throw_on_cudamalloc_oom:True,per_process_memory_fraction:2"]
for value in ["20", "64", "0", "1", "19", "512", "513", "1024", "abc", "", "1.5", "-1"]:
    TEXTS.append("large_segment_size_mb:" + value)
for key in ["pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"]:
    for value in ["64", "0", "1", "3", "-1", "abc", "", "17592186044416"]:
        TEXTS.append(key + ":" + value)
TEXTS += ["pinned_max_round_threshold_mb:128,pinned_max_cached_size_mb:64", "pinned_max_round_threshold_mb:64,pinned_max_cached_size_mb:128",
          "pinned_max_power2_size_mb:64"]
for value in ["posix_fd", "fabric", "unspecified", "POSIX_FD", "bogus", ""]:
    TEXTS.append("expandable_segments_handle_type:" + value)
for value in ["0.5", "40G", "40g", "0", "-1", "abc", "", "1.5", "G", "nan", "40GB"]:
    TEXTS.append("expandable_segments_reserve:" + value)
for value in ["[main:0.5]", "[main:0.5,nccl:2G]", "[main:abc]", "[]", "0.5", "", "[main:0.5", "[main]"]:
    TEXTS.append("expandable_segments_reserve_by_class:" + value)
for value in ["native", "cudaMallocAsync", "hipMallocAsync", "cudamallocasync", "Native", "bogus", ""]:
    TEXTS.append("backend:" + value)
TEXTS += ["backend", "backend:native,max_split_size_mb:64", "max_split_size_mb:64,backend:native", "backend:native,backend:native",
          "backend:native,bogus:1"]

# Runs inside the release: answers each text of standard input in a forked child, so that no answer colours the next.
ASK = r'''
import json, os, re, sys, tempfile, warnings
import torch
def settings():
    shot = torch._C._cuda_memorySnapshot
    try: s = shot(None)
    except TypeError: s = shot()
    return {k: v for k, v in s.get("allocator_settings", {}).items()}
def answer(call, text):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        err = tempfile.TemporaryFile()
        os.dup2(err.fileno(), 2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                call(text)
                out = {"ok": True}
            except BaseException as e:
                out = {"error": type(e).__name__, "text": str(e)}
            try: out["settings"] = settings()
            except BaseException as e: out["no_settings"] = type(e).__name__ + ": " + str(e)[:300]
        out["warnings"] = [str(c.message) for c in caught]
        err.seek(0)
        out["stderr"] = err.read().decode(errors="replace")
        with os.fdopen(w, "w") as f: json.dump(out, f)
        os._exit(0)
    os.close(w)
    with os.fdopen(r) as f: got = f.read()
    status = os.waitpid(pid, 0)[1]
    return json.loads(got) if got else {"signal": os.WTERMSIG(status)}
calls = {}
if hasattr(torch.cuda.memory, "_set_allocator_settings"):
    calls["cuda"] = torch.cuda.memory._set_allocator_settings
if hasattr(torch._C, "_accelerator_setAllocatorSettings"):
    calls["accelerator"] = torch._C._accelerator_setAllocatorSettings
out = {"version": torch.__version__, "cuda": torch.version.cuda, "calls": sorted(calls), "answers": {}}
for text in json.load(sys.stdin):
    out["answers"][text] = {name: answer(call, text) for name, call in calls.items()}
json.dump(out, sys.stdout)
'''

# Runs inside the release with chosen variables: what it says on import, and on the first look at the settings.
LOOK = r'''
import json, sys, warnings
out = {}
try:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import torch
    out["import"] = [str(c.message) for c in caught if "ALLOC" in str(c.message)]
except BaseException as e:
    out["import_error"] = [type(e).__name__, str(e)]
else:
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            shot = torch._C._cuda_memorySnapshot
            try: s = shot(None)
            except TypeError: s = shot()
        out["settings"] = s.get("allocator_settings") if isinstance(s, dict) else None  # 1.13 has a list
        out["look"] = [str(c.message) for c in caught]
    except BaseException as e:
        out["look_error"] = [type(e).__name__, str(e)]
json.dump(out, sys.stdout)
'''

CUDA, BOTH, HIP = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"
A, B = "max_split_size_mb:64", "max_split_size_mb:128"
ENVS = [{}, {CUDA: A}, {BOTH: A}, {HIP: A}, {CUDA: A, BOTH: B}, {CUDA: A, HIP: B}, {CUDA: A, BOTH: ""}, {CUDA: "bogus:1"}, {BOTH: "bogus:1"},
        {CUDA: "backend:bogus"}, {BOTH: "backend:bogus"}, {CUDA: "backend:cudaMallocAsync"}, {BOTH: "backend:cudaMallocAsync"}]


def ask(folder, release):
    home = os.path.join(folder, release)
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--root-user-action=ignore", "--target", home,
                    "torch==" + release] + extra(folder), check=True)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTORCH_", "TORCH_"))}
    clean["PYTHONPATH"] = home
    got = json.loads(subprocess.run([sys.executable, "-c", ASK], input=json.dumps(TEXTS), env=clean, stdout=subprocess.PIPE,
                                    check=True, text=True).stdout)
    got["env"] = []
    with ThreadPoolExecutor(2) as pool:
        for env, p in zip(ENVS, pool.map(lambda env: look({**clean, **env}), ENVS)):
            got["env"].append([env, {"code": p.returncode, "stderr": p.stderr, **(json.loads(p.stdout) if p.stdout else {})}])
    got["names"] = sorted(names(home))
    with open(os.path.join(folder, release + ".json"), "w") as f:
        json.dump(got, f)
    shutil.rmtree(home)


def look(env):
    return subprocess.run([sys.executable, "-c", LOOK], env=env, capture_output=True, text=True)


def extra(folder):
    """Wheels already fetched into FOLDER/wheels are used from there."""
    wheels = os.path.join(folder, "wheels")
    return ["--find-links", wheels] if os.path.isdir(wheels) else []


def names(home):
    """Environment names about memory in the release's own libraries."""
    found = set()
    for path in glob.glob(home + "/torch/lib/lib*.so"):
        with open(path, "rb") as f:
            for m in re.findall(rb"PYTORCH_[A-Z]*_?ALLOC_CONF|PYTORCH_NO_[A-Z]+_MEMORY_CACHING|TORCH_[A-Z0-9_]*EXPANDABLE[A-Z0-9_]*", f.read()):
                found.add(m.decode())
    return found


def quote(text):
    """A string that Go's strconv.Unquote reads."""
    return json.dumps(text)


def first_line(text):
    return re.sub(r' at "[^"]*":\d+', "", text.split("\n")[0]).strip()


def changed(settings, default):
    """What differs from the release's defaults, as " name=value" each; the 16 divisions as their list, or one number if all alike."""
    out = ""
    for name in sorted(settings or {}):
        value = settings[name]
        if name == "PYTORCH_CUDA_ALLOC_CONF" or value == default[name]:
            continue
        if isinstance(value, dict):
            value = list(value.values())
            value = value[0] if len(set(value)) == 1 else ",".join(map(str, value))
        out += " %s=%s" % (name, value)
    return out


def warned(answer):
    """The warnings of Python and of C++, but for the one that names the Python function."""
    lines = [w for w in answer.get("warnings", []) + answer.get("import", []) + answer.get("look", []) if "_set_allocator_settings is dep" not in w]
    lines += re.findall(r"\] Warning: (.*?)(?: \(function [^\n]*\))?\n", answer["stderr"])
    return "".join(" warn " + quote(first_line(re.sub(r" \(Triggered internally.*", "", w, flags=re.S))) for w in lines if "NumPy" not in w)


def said(answer, default):
    """One answer of a release to one text."""
    if "signal" in answer:
        return "crash signal %d" % answer["signal"]
    out = "ok" if "ok" in answer else "! %s %s" % (answer["error"], quote(first_line(answer["text"])))
    return out + changed(answer.get("settings"), default) + warned(answer)


def seen(answer, default):
    """One release's behaviour under one choice of variables."""
    if "import_error" in answer:
        out = "import ! %s %s" % (answer["import_error"][0], quote(first_line(answer["import_error"][1])))
    elif "import" not in answer:
        out = "import crash " + quote(first_line("".join(re.findall(r"what\(\):\s*(.*)", answer["stderr"])[:1])))
    elif "look_error" in answer:
        out = "look ! %s %s" % (answer["look_error"][0], quote(first_line(answer["look_error"][1])))
    elif answer["settings"] is None:
        out = "no answer"  # up to 2.1 the snapshot has no settings
    else:
        out = "look ok" + changed(answer["settings"], default)
    return out + warned(answer) + (" then crash" if answer["code"] and "import" in answer else "")


def ranges(pairs):
    """Consecutive releases with the same answer become one line."""
    runs = []
    for release, text in pairs:
        if runs and runs[-1][2] == text:
            runs[-1][1] = release
        else:
            runs.append([release, release, text])
    return "".join("  %s %s\n" % (a if a == b else a + ".." + b, text) for a, b, text in runs)


def write(folder, answers):
    here = os.path.dirname(os.path.abspath(__file__))
    releases = [r for r in RELEASES if r in answers]
    best = {r: "accelerator" if "accelerator" in answers[r]["calls"] else "cuda" for r in releases if answers[r]["calls"]}
    default = {r: answers[r]["answers"][""][best[r]].get("settings") or {} for r in best}
    with open(os.path.join(here, "settings.txt"), "w") as f:
        f.write(SETTINGS_HEAD % ", ".join("%s (CUDA %s)" % (r, answers[r]["cuda"]) for r in best))
        for text in TEXTS:
            pairs = [(r, said(answers[r]["answers"][text][best[r]], default[r])) for r in best if text in answers[r]["answers"]]
            f.write("\n%s\n%s" % (quote(text), ranges(pairs)))
    with open(os.path.join(here, "env.txt"), "w") as f:
        f.write(ENV_HEAD % ", ".join(releases))
        f.write("\nnames\n" + ranges([(r, " ".join(answers[r]["names"])) for r in releases]))
        for env in ENVS:
            pairs = [(r, seen(a, default.get(r, {}))) for r in releases for e, a in answers[r]["env"] if e == env]
            f.write("\n%s\n%s" % (" ".join("%s=%s" % (k, quote(v)) for k, v in env.items()) or "unset", ranges(pairs)))


SETTINGS_HEAD = """# What real PyTorch makes of allocator settings. Made by pytorch.py, without a GPU.
# A text, then one line for each run of releases with the same answer. "ok" is acceptance, "!" an exception: its class and the first
# line of its text, without places in the source. Then what the text changed in the release's own report of its settings, name=value
# (sizes in bytes, -1 is no limit; the roundup divisions as the list for 1, 2, 4 ... 32768 MiB, or one number if all are alike;
# releases up to 2.1 report none, and none reports every key), and its warnings. An exception may leave what came before it in force.
# Each text was given to a fresh copy of the process: to torch._C._accelerator_setAllocatorSettings where it exists (from 2.10;
# torch.cuda.memory._set_allocator_settings then does the same and says that it is deprecated), to the latter before.
# backend:cudaMallocAsync is here refused for the want of a GPU and of the choice at load time; env.txt has the choice at load time.
# Releases asked: %s.
"""

ENV_HEAD = """# Which environment variables real PyTorch reads for its CUDA allocator. Made by pytorch.py, without a GPU.
# "names" are those found in the release's libraries; a name that is there need not be read in a build for CUDA.
# Then variables, and for each run of releases what importing torch and the first look at the allocator's settings gave: "look ok" with
# what differs from the defaults, "look ! ..." an exception at the first look (not at import), and warnings on standard error.
# Releases asked: %s.
"""


def main():
    folder = os.path.abspath(sys.argv[1])
    os.makedirs(folder, exist_ok=True)
    answers = {}
    for release in sys.argv[2:] or RELEASES:
        if not os.path.exists(os.path.join(folder, release + ".json")):
            ask(folder, release)
    for release in RELEASES:
        if os.path.exists(os.path.join(folder, release + ".json")):
            with open(os.path.join(folder, release + ".json")) as f:
                answers[release] = json.load(f)
    write(folder, answers)


if __name__ == "__main__":
    main()
