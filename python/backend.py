"""Builds the wheel: pip's build backend (PEP 517), and the program behind scripts/wheel.

    python3 backend.py OUT [ARCH...]     ARCH: x86_64, aarch64; the machine's own unless given

One wheel, step by step: the command is built by Go without C; the libraries by Go with a C
compiler, which is zig where Python has it (pip install ziglang), because it links for an
old C library and for other machines, else gcc for this machine; the newest version of the C
library that they ask for is the wheel's platform tag. The same commit gives the same bytes.
"""

import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
GO_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
# The oldest C library that zig links for, and so the oldest that a wheel may need.
GLIBC = "2.28"
LIMIT = 12 << 20  # bytes of a wheel
# The packages of the command that are not inlined, because they run once or wait for a person
# or the network: the wheel is half a megabyte smaller. (scripts/libgpumem does the same.)
SELDOM = (
    "charm.land/...", "crypto/tls", "crypto/x509", "encoding/asn1", "github.com/charmbracelet/...",
    "github.com/spf13/...", "gpumem/cmd/...", "gpumem/doctor/internal/account", "gpumem/doctor/internal/cause",
    "html/template", "math/big", "net", "net/http", "net/url", "text/template", "text/template/parse",
)

METADATA = """Metadata-Version: 2.1
Name: gpumem
Version: {version}
Summary: Explains why a program ran out of GPU memory, and shares one pool between PyTorch, CuPy and RMM
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

{readme}"""


def version():
    with open(os.path.join(ROOT, "cmd", "gpumem", "main.go"), encoding="utf-8") as f:
        return re.search(r'^const version = "([^"]+)"', f.read(), re.M).group(1)


def say(line):
    print("wheel: " + line, file=sys.stderr, flush=True)


def run(args, **env):
    subprocess.run(args, cwd=ROOT, env={**os.environ, **env}, check=True)


def has_zig():
    return subprocess.run([sys.executable, "-m", "ziglang", "version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def compiler(arch):
    """Returns the C compiler for arch, or None."""
    if has_zig():
        return f"{sys.executable} -m ziglang cc -target {arch}-linux-gnu.{GLIBC}"
    if arch == platform.machine():
        for cc in ("gcc", "cc", "clang"):
            if shutil.which(cc):
                return cc
    return None


def build_files(arch, work):
    """Builds the command and the libraries; returns {path in the wheel: file}."""
    go = {"GOOS": "linux", "GOARCH": GO_ARCH[arch]}
    command = os.path.join(work, "gpumem")
    # With the paths of this machine in it, what "go test" has compiled serves.
    trim = [] if os.environ.get("GPUMEM_WHEEL") == "test" else ["-trimpath"]
    seldom = [f"-gcflags={p}=-l" for p in SELDOM]
    run(["go", "build", *trim, *seldom, "-ldflags", "-s -w -buildid=", "-o", command, "./cmd/gpumem"], CGO_ENABLED="0", **go)
    strip_sections(command)
    files = {"gpumem/bin/gpumem": command}
    cc = compiler(arch)
    if not cc:
        say(f"SKIPPED: no C compiler for {arch} (pip install ziglang has one): this wheel has the command, and no library")
        return files
    lib = os.path.join(work, "lib")
    run(["scripts/libgpumem", lib], CC=cc, **go)
    run(["preload/capi/build", lib], CC=cc, **go)
    for name in ("libcuda", "libnvidia-ml"):
        # A wheel has no links. The name without a number is a library that has nothing
        # and needs the one with it, in its own folder: two copies would be two pools in one
        # process. (zig fails on rpath without -z origin.)
        os.remove(os.path.join(lib, name + ".so"))
        empty = os.path.join(work, "empty.c")
        with open(empty, "w") as f:
            f.write("static const int nothing __attribute__((unused));\n")
        run([*cc.split(), "-shared", "-fPIC", "-Wl,-s", "-Wl,-soname," + name + ".so", "-Wl,-rpath,$ORIGIN", "-Wl,-z,origin", "-Wl,--no-as-needed",
             "-o", os.path.join(lib, name + ".so"), empty, os.path.join(lib, name + ".so.1")])
    for name in sorted(os.listdir(lib)):
        files["gpumem/lib/gpumem/" + name] = os.path.join(lib, name)
    files["gpumem/include/gpumem.h"] = os.path.join(ROOT, "preload", "gpumem.h")
    return files


def strip_sections(path):
    """Removes the table of sections from a program, which is for tools alone: Go's linker
    gives an empty .gnu.version_r a type that auditwheel stops at."""
    with open(path, "r+b") as f:
        f.seek(0x28)  # e_shoff
        f.write(bytes(8))
        f.seek(0x3C)  # e_shnum, e_shstrndx
        f.write(bytes(4))


def newest_glibc(files):
    """Returns the newest minor version of glibc that a library asks for; 17 at least."""
    newest = 17
    for name, path in files.items():
        if ".so" in name:
            with open(path, "rb") as f:
                newest = max([newest] + [int(v) for v in re.findall(rb"GLIBC_2\.(\d+)", f.read())])
    return newest


def write_wheel(out, arch):
    """Builds the wheel for arch into the folder out; returns the file's name."""
    work = tempfile.mkdtemp()
    try:
        files = build_files(arch, work)
        package = os.path.join(HERE, "gpumem")
        for name in sorted(os.listdir(package)):
            if name.endswith((".py", ".typed")):
                files["gpumem/" + name] = os.path.join(package, name)
        # gpumem run --remat has the same file, in the command.
        files["gpumem/_remat.py"] = os.path.join(ROOT, "node", "internal", "hook", "gpumem_remat.py")
        tag = f"py3-none-manylinux_2_{newest_glibc(files)}_{arch}"
        info = f"gpumem-{version()}.dist-info/"
        with open(os.path.join(HERE, "README.md"), encoding="utf-8") as f:
            readme = f.read()
        texts = {
            info + "METADATA": METADATA.format(version=version(), readme=readme),
            info + "WHEEL": f"Wheel-Version: 1.0\nGenerator: gpumem\nRoot-Is-Purelib: false\nTag: {tag}\n",
            info + "entry_points.txt": "[console_scripts]\ngpumem = gpumem._command:main\n",
        }
        contents = {name: text.encode() for name, text in texts.items()}
        files[info + "licenses/LICENSE"] = os.path.join(ROOT, "LICENSE")
        for name, path in files.items():
            with open(path, "rb") as f:
                contents[name] = f.read()
        record = "".join(f"{name},sha256={digest(data)},{len(data)}\n" for name, data in sorted(contents.items()))
        contents[info + "RECORD"] = (record + info + "RECORD,,\n").encode()
        os.makedirs(out, exist_ok=True)
        name = f"gpumem-{version()}-{tag}.whl"
        path = os.path.join(out, name)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
            for n, data in sorted(contents.items(), key=lambda c: (".dist-info/" in c[0], c[0])):
                z.writestr(entry(n), data, zipfile.ZIP_DEFLATED, 9)
        if os.path.getsize(path) > LIMIT:
            say(f"{name}: {os.path.getsize(path):,} bytes, more than {LIMIT:,}")
            sys.exit(1)
        say(f"{name}: {os.path.getsize(path):,} bytes")
        return name
    finally:
        shutil.rmtree(work)


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def entry(name):
    z = zipfile.ZipInfo(name, time.gmtime(committed())[:6])
    z.external_attr = (0o100755 if name == "gpumem/bin/gpumem" else 0o100644) << 16
    z.compress_type = zipfile.ZIP_DEFLATED
    return z


def committed():
    """Returns the time of the commit, which is that of every file."""
    if os.environ.get("SOURCE_DATE_EPOCH"):
        return int(os.environ["SOURCE_DATE_EPOCH"])
    git = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return int(git.stdout or 315532800)  # 1980, where zip files begin


# The functions of PEP 517.


def get_requires_for_build_wheel(config_settings=None):
    return [] if shutil.which("gcc") or shutil.which("cc") else ["ziglang"]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    if not shutil.which("go"):
        raise SystemExit("gpumem is built from its source with Go (https://go.dev/dl), which is not in PATH")
    return write_wheel(wheel_directory, platform.machine())


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("gpumem has no source archive for Python: its source is the whole repository")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for machine in sys.argv[2:] or [platform.machine()]:
        print(os.path.join(sys.argv[1], write_wheel(sys.argv[1], machine)))
