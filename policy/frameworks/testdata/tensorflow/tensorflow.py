#!/usr/bin/env python3
"""Remakes pools.txt, api.txt, fields.txt and names.txt: what real TensorFlow releases make of memory settings.

    python3 tensorflow.py FOLDER [RELEASE...]     no GPU needed; about 3 GB and 6 minutes per release; needs gcc
    python3 tensorflow.py --host FOLDER [RELEASE...]     host.txt alone: pinned host memory, asked of HOST_RELEASES

Each release of PyPI (the CUDA build) is installed by pip into FOLDER/RELEASE and asked with standin.c in place of NVIDIA's
libraries: TensorFlow believes it has one GPU of a chosen size and makes its device, so that its own code says how large the pool is
and what it asks of the driver. The answers stay in FOLDER/RELEASE.json, and a release with answers there is not asked again. Then
the tables are written beside this file. The wheels need Linux x86-64 and the CPython that RELEASES names; the environment variables
PYTHON3_8, PYTHON3_9 and PYTHON3_11 say where those are (python3.8, python3.9, python3.11 else).
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys

OLD, LESS_OLD = ["protobuf<3.21", "numpy<1.20"], ["protobuf<3.21", "numpy<1.24"]  # what these releases need and do not ask for
RELEASES = {
    "2.2.3": ("3.8", OLD), "2.3.4": ("3.8", OLD), "2.4.4": ("3.8", OLD), "2.5.3": ("3.9", OLD), "2.6.5": ("3.9", OLD + ["keras<2.7"]),
    "2.8.4": ("3.9", LESS_OLD), "2.10.1": ("3.9", LESS_OLD), "2.11.1": ("3.9", LESS_OLD), "2.12.1": ("3.11", []), "2.13.1": ("3.11", []),
    "2.15.1": ("3.11", []), "2.16.2": ("3.11", []), "2.18.1": ("3.11", []), "2.20.0": ("3.11", []), "2.21.0": ("3.11", []),
}
MIB = 1 << 20
TOTAL, FREE = 6144 * MIB, 6000 * MIB  # small, because the pool keeps 8 bytes of the host for each 256

# What the dynamic linker looks for: the driver, NVML and the runtime are standin.c, the rest need only exist.
STANDIN = ["libcuda.so.1", "libnvidia-ml.so.1", "libcudart.so.10.1", "libcudart.so.11.0", "libcudart.so.12"]
EMPTY = ["libcublas.so.10", "libcublas.so.11", "libcublas.so.12", "libcublasLt.so.10", "libcublasLt.so.11", "libcublasLt.so.12",
         "libcudnn.so.7", "libcudnn.so.8", "libcudnn.so.9", "libcufft.so.10", "libcufft.so.11", "libcurand.so.10", "libcusolver.so.10",
         "libcusolver.so.11", "libcusparse.so.10", "libcusparse.so.11", "libcusparse.so.12", "libnccl.so.2"]


def case(config="", total=TOTAL, free=FREE, cc=80, **env):
    return {"total": total, "free": free, "cc": cc, "env": env, "config": config}


def gpu(text):
    return "gpu_options { " + text + " }"


def experimental(text):
    return gpu("experimental { " + text + " }")


CASES = [case()]
CASES += [case(cc=cc) for cc in [35, 50, 60, 70, 75, 86, 89, 90, 100, 120]]
CASES += [case(total=2048 * MIB, free=free) for free in [2048 * MIB, 2048 * MIB - 1]]
CASES += [case(total=2048 * MIB, free=free) for free in [226 * MIB, 225 * MIB]]
for fraction in ["0.333333", "0.5", "1", "1.5", "-0.5", "1e-9"]:
    CASES.append(case(gpu("per_process_gpu_memory_fraction: " + fraction)))
CASES += [case(gpu("per_process_gpu_memory_fraction: 0.9"), free=2500 * MIB), case(gpu("per_process_gpu_memory_fraction: 1.5"), cc=50),
          case(gpu("per_process_gpu_memory_fraction: 0.9 allow_growth: true"), free=2500 * MIB),
          case(gpu("per_process_gpu_memory_fraction: 0.5 allow_growth: true")), case(gpu("allow_growth: true")),
          case(gpu("allow_growth: true"), total=2048 * MIB, free=100 * MIB)]
for kind in ["BFC", "bfc", "cuda_malloc_async"]:
    CASES.append(case(gpu("allocator_type: '" + kind + "'")))
for value in ["true", "false", "True", "1", "0", "", "true "]:
    CASES.append(case(TF_FORCE_GPU_ALLOW_GROWTH=value))
CASES += [case(gpu("allow_growth: true"), TF_FORCE_GPU_ALLOW_GROWTH="false"), case(gpu("allow_growth: true"), TF_FORCE_GPU_ALLOW_GROWTH="true"),
          case(gpu("allow_growth: true"), TF_FORCE_GPU_ALLOW_GROWTH="0")]
for value in ["0", "1000", " 1000", "", "-1", "abc", "1e3", "1000.5", "+5", "6000", "6001", "9223372036854775808"]:
    CASES.append(case(TF_DEVICE_MIN_SYS_MEMORY_IN_MB=value))
CASES += [case(gpu("per_process_gpu_memory_fraction: 0.5"), TF_DEVICE_MIN_SYS_MEMORY_IN_MB="1000"),
          case(experimental("gpu_system_memory_size_in_mb: 2000")), case(experimental("gpu_system_memory_size_in_mb: 2000"), TF_DEVICE_MIN_SYS_MEMORY_IN_MB="1000"),
          case(experimental("gpu_system_memory_size_in_mb: -5"))]
for value in ["cuda_malloc_async", "cuda_malloc", "memory_guard", "bogus", "CUDA_MALLOC_ASYNC", "cuda_malloc_async "]:
    CASES.append(case(TF_GPU_ALLOCATOR=value))
CASES += [case(experimental("use_cuda_malloc_async: true")), 
          case(gpu("allow_growth: true"), TF_GPU_ALLOCATOR="cuda_malloc_async"), case(TF_GPU_ALLOCATOR="cuda_malloc_async", TF_FORCE_GPU_ALLOW_GROWTH="true"),
          case(gpu("per_process_gpu_memory_fraction: 0.5"), TF_GPU_ALLOCATOR="cuda_malloc_async")]


def prealloc(value, config="", **device):
    return case(config, TF_GPU_ALLOCATOR="cuda_malloc_async", TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=value, **device)


# Of the limit's 4680843264 bytes: less, more and more than the GPU has; then where less is free than is asked for.
CASES += [prealloc(value) for value in ["-1", "0", "1073741824", "abc", "", " 1048576", "1e9", "-2", "1", "4680843265", "6291456000", "6291456001",
                                        "6442450945", "1099511627776", "9223372036854775807", "9223372036854775808"]]
CASES += [prealloc("-1", gpu("per_process_gpu_memory_fraction: " + fraction)) for fraction in ["0.5", "1", "1.5", "-0.5", "1e-9"]]
CASES += [prealloc(value, gpu("per_process_gpu_memory_fraction: 0.9"), free=2500 * MIB) for value in ["-1", "0", "2621440000", "2621440001"]]
CASES += [prealloc("-1", experimental("virtual_devices { memory_limit_mb: 1024 }")), prealloc("-1", gpu("allow_growth: true")),
          case(experimental("use_cuda_malloc_async: true"), TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC="-1"),
          case(TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC="-1"), case(TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC="abc")]
for value in ["1", "0", "true"]:
    CASES.append(case(TF_FORCE_UNIFIED_MEMORY=value))
CASES += [case(experimental("use_unified_memory: true")), case(experimental("use_unified_memory: true"), cc=50)]
for value in ["false", "1"]:
    CASES.append(case(TF_ENABLE_GPU_GARBAGE_COLLECTION=value))
for virtual in ["memory_limit_mb: 1024", "memory_limit_mb: [1024, 2048]", "memory_limit_mb: 0.5", "memory_limit_mb: 1024.7",
                "memory_limit_mb: -1", "memory_limit_mb: 99999", "memory_limit_mb: [5000, 5000]", "",
                "memory_limit_mb: [1024, 1024] priority: 0"]:
    CASES.append(case(experimental("virtual_devices { " + virtual + " }")))
CASES += [case(gpu("per_process_gpu_memory_fraction: 0.5 experimental { virtual_devices { memory_limit_mb: 1024 } }")),
          case(gpu("allow_growth: true experimental { virtual_devices { memory_limit_mb: 1024 } }")),
          case(experimental("virtual_devices { memory_limit_mb: 1024 } virtual_devices { memory_limit_mb: 1024 }")),
          case(experimental("num_virtual_devices_per_gpu: 2")),
          case(experimental("virtual_devices { memory_limit_mb: 1024 }"), TF_DEVICE_MIN_SYS_MEMORY_IN_MB="1000")]
for devices in ["0", "1", "0,0", "abc"]:
    CASES.append(case(gpu("visible_device_list: '" + devices + "'")))
CASES.append(case("device_count { key: 'GPU' value: 0 }"))
for value in ["1", "abc"]:
    CASES.append(case(TF_GPU_HOST_MEM_LIMIT_IN_MB=value))
CASES += [case(TF_CUDA_HOST_MEM_LIMIT_IN_MB="1"), case(experimental("gpu_host_mem_limit_in_mb: 1")), case(TF_PER_DEVICE_MEMORY_LIMIT_MB="1024")]

# Pinned host memory: the last release of one reader of numbers, the first of the next, and the newest.
HOST_RELEASES = ["2.18.1", "2.20.0", "2.21.0"]
HOST_CASES = [case(TF_GPU_HOST_MEM_LIMIT_IN_MB=value) for value in [
    "", "x", "1.5", "0", "64", "-1", " 64 ", "+64", "64MB", "1e3", "0x40", "64 x", "-x", "9223372036854775807", "9223372036854775808", "-9223372036854775809"]]

# Python's own checks. Each is one program; g is the list of GPUs, c is tf.config, L is LogicalDeviceConfiguration.
PROGRAMS = [
    "c.set_logical_device_configuration(g[0], [L(memory_limit=1024)]); show()",
    "c.set_logical_device_configuration(g[0], [L(memory_limit=1024), L(memory_limit=2048)]); show()",
    "c.set_logical_device_configuration(g[0], [L()]); show()",
    "c.set_logical_device_configuration(g[0], [L(), L()]); show()",
    "c.set_logical_device_configuration(g[0], []); show()",
    "c.set_logical_device_configuration(g[0], L(memory_limit=1024)); show()",
    "c.set_logical_device_configuration(g[0], [L(memory_limit=0)]); show()",
    "c.set_logical_device_configuration(g[0], [L(memory_limit=-1)]); show()",
    "c.set_logical_device_configuration(g[0], [L(memory_limit=1024.5)]); show()",
    "c.set_logical_device_configuration(g[0], [L(memory_limit='1024')]); show()",
    "c.set_logical_device_configuration(g[0], [L(memory_limit=True)]); show()",
    "c.set_logical_device_configuration(g[0], [L(memory_limit=99999999)]); show()",
    "c.set_logical_device_configuration(g[0], [L(memory_limit=1024), L(memory_limit=1024, experimental_priority=0)]); show()",
    "c.set_logical_device_configuration('GPU:0', [L(memory_limit=1024)])",
    "c.set_logical_device_configuration(c.list_physical_devices('CPU')[0], [L(memory_limit=1024)])",
    "c.list_logical_devices(); c.set_logical_device_configuration(g[0], [L(memory_limit=1024)])",
    "c.experimental.set_virtual_device_configuration(g[0], [c.experimental.VirtualDeviceConfiguration(memory_limit=1024)]); show()",
    "c.experimental.set_memory_growth(g[0], True); show()",
    "c.experimental.set_memory_growth(g[0], False); show()",
    "c.experimental.set_memory_growth(g[0], 'no'); show()",
    "c.experimental.set_memory_growth('GPU:0', True)",
    "c.experimental.set_memory_growth(c.list_physical_devices('CPU')[0], True)",
    "print(c.experimental.get_memory_growth(g[0]))",
    "c.list_logical_devices(); c.experimental.set_memory_growth(g[0], True)",
    "c.list_logical_devices(); c.experimental.set_memory_growth(g[0], False)",
    "c.experimental.set_memory_growth(g[0], True); c.set_logical_device_configuration(g[0], [L(memory_limit=1024)]); show()",
    "c.set_logical_device_configuration(g[0], [L(memory_limit=1024)]); c.experimental.set_memory_growth(g[0], True)",
    "c.set_logical_device_configuration(g[0], [L(memory_limit=1024)]); c.experimental.set_memory_growth(g[0], False)",
    "c.set_visible_devices([], 'GPU'); show()",
    "c.set_visible_devices(g, 'GPU'); show()",
    "c.set_visible_devices(['GPU:0'], 'GPU')",
    "c.set_visible_devices(g, 'CPU')",
    "c.set_visible_devices([], 'gpu'); show()",
    "c.set_visible_devices([], 'XPU'); show()",
    "c.list_logical_devices(); c.set_visible_devices([], 'GPU')",
    "c.set_visible_devices([], 'GPU'); c.experimental.set_memory_growth(g[0], True); show()",
    "c.set_visible_devices([], 'GPU'); c.set_logical_device_configuration(g[0], [L(memory_limit=1024)]); show()",
    "c.experimental.get_memory_info('GPU:0')",
    "c.experimental.get_memory_info('CPU:0')",
    "c.experimental.get_memory_info('GPU:1')",
    "tf.compat.v1.GPUOptions(per_process_gpu_memory_fraction='0.5')",
    "tf.compat.v1.GPUOptions(allow_growth='true')",
    "tf.compat.v1.GPUOptions(allow_growth=1)",
    "tf.compat.v1.GPUOptions(memory_limit=1)",
]

# Runs inside the release. Every question is put to a forked child, in which no CUDA call was made before.
ASK = r'''
import json, os, sys, tempfile
import tensorflow as tf
from google.protobuf import descriptor_pb2, text_format
def forked(env, body):
    r, w = os.pipe()
    log, err = tempfile.NamedTemporaryFile(), tempfile.TemporaryFile()
    pid = os.fork()
    if pid == 0:
        os.environ.update(env)
        os.environ["STANDIN_LOG"] = log.name
        os.dup2(err.fileno(), 2)
        out = {}
        try: body(out)
        except BaseException as e: out["error"] = [type(e).__name__, str(e)]
        with os.fdopen(w, "w") as f: json.dump(out, f)
        os._exit(0)
    os.close(w)
    with os.fdopen(r) as f: got = f.read()
    status = os.waitpid(pid, 0)[1]
    out = json.loads(got) if got else {"signal": os.WTERMSIG(status)}
    err.seek(0)
    out["log"] = err.read(20000).decode(errors="replace")
    out["calls"] = open(log.name).read().splitlines()
    return out
def pool(case):
    def body(out):
        config = tf.compat.v1.ConfigProto()
        text_format.Parse(case["config"], config)
        with tf.Graph().as_default():
            with tf.device("/GPU:0"):
                feed = tf.compat.v1.placeholder(tf.float32)
                out_op = tf.identity(feed)
            session = tf.compat.v1.Session(config=config)
            out["limits"] = [d.memory_limit_bytes for d in session.list_devices() if d.device_type == "GPU"]
            if out["limits"]:
                session.run(out_op, {feed: [1.0] * 4})
                session.run(out_op, {feed: [1.0] * (3 << 18)})
    env = dict(case["env"], STANDIN_TOTAL=str(case["total"]), STANDIN_FREE=str(case["free"]), STANDIN_CC=str(case["cc"]))
    return forked(env, body)
def program(text, sizes):
    def body(out):
        lines = []
        c = tf.config
        def show():
            lines.append("%d logical" % len([d for d in c.list_logical_devices() if d.device_type == "GPU"]))
        names = {"tf": tf, "c": c, "g": c.list_physical_devices("GPU"), "L": c.LogicalDeviceConfiguration, "show": show,
                 "print": lambda *a: lines.append(" ".join(map(str, a)))}
        try: exec(text, names)
        finally: out["lines"] = lines
    return forked(sizes, body)
def fields(descriptor, seen):
    rows, proto = {}, descriptor_pb2.DescriptorProto()
    descriptor.CopyToProto(proto)
    labels = {f.name: f.label for f in proto.field}
    for f in descriptor.fields:
        kind = ["", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message", "bytes",
                "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"][f.type]
        if f.type == 11: kind = f.message_type.name
        rows[f.name] = [f.number, ("repeated " if labels[f.name] == 3 else "") + kind]
        if f.type == 11 and f.message_type.full_name.startswith("tensorflow.GPUOptions"): fields(f.message_type, seen)
    seen[descriptor.full_name.replace("tensorflow.", "")] = rows
    return seen
asked = json.load(sys.stdin)
out = {"version": tf.__version__, "fields": fields(tf.compat.v1.GPUOptions.DESCRIPTOR, {})}
out["pools"] = [[c, pool(c)] for c in asked["cases"]]
out["programs"] = [[p, program(p, asked["sizes"])] for p in asked["programs"]]
json.dump(out, sys.stdout)
'''


def build(folder):
    """Makes the stand-in libraries in FOLDER/lib."""
    lib = os.path.join(folder, "lib")
    if not os.path.isdir(lib):
        os.makedirs(lib)
        here = os.path.dirname(os.path.abspath(__file__))
        for names, source in [(STANDIN, [os.path.join(here, "standin.c")]), (EMPTY, ["-x", "c", "/dev/null"])]:
            for name in names:
                subprocess.run(["gcc", "-O1", "-w", "-shared", "-fPIC", "-o", os.path.join(lib, name)] + source + ["-lpthread"], check=True)
    return lib


def ask(folder, release, cases, programs, answer):
    version, pins = RELEASES[release]
    python = os.environ.get("PYTHON" + version.replace(".", "_"), "python" + version)
    home = os.path.join(folder, release)
    wheels = os.path.join(folder, "wheels")  # wheels already fetched are used from there
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-compile", "--no-warn-conflicts", "--target", home, "tensorflow==" + release] + pins +
                   (["--find-links", wheels] if os.path.isdir(wheels) else []), check=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "CUDA_", "XLA_", "NVIDIA_"))}
    env.update(PYTHONPATH=home, LD_LIBRARY_PATH=build(folder), TF_CPP_MIN_LOG_LEVEL="0")
    sizes = {"STANDIN_TOTAL": str(TOTAL), "STANDIN_FREE": str(FREE), "STANDIN_CC": "80"}
    p = subprocess.run([python, "-c", ASK], input=json.dumps({"cases": cases, "programs": programs, "sizes": sizes}), env=env,
                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, universal_newlines=True)
    got = json.loads(p.stdout)
    got["names"] = sorted(names(home))
    with open(answer, "w") as f:
        json.dump(got, f)
    shutil.rmtree(home)


def names(home):
    """Names of environment variables about memory in the release's own libraries."""
    found = set()
    for path in glob.glob(home + "/tensorflow/*.so*") + glob.glob(home + "/tensorflow/python/*.so*"):
        with open(path, "rb") as f:
            for m in re.findall(rb"\0(TF_[A-Z0-9_]*(?:MEM|ALLOC|GROWTH|GARBAGE|PREALLOC|BFC)[A-Z0-9_]*)\0", f.read()):
                found.add(m.decode())
    return found


def quote(text):
    """A string that Go's strconv.Unquote reads."""
    return json.dumps(text)


def messages(log, error):
    """What the release logged about memory, but for the error itself: the notes of its allocators and of its checks, not the dump of a
    pool that is full."""
    out = []
    for line in log.splitlines():
        m = re.match(r".*?([a-z_0-9]+\.(?:cc|h)):\d+\] (.*)", line)
        if m and "bfc_allocator.cc" != m[1] and re.search(SAYS, m[2]) and m[2] not in out and not re.search(NOISE, m[2]) and error not in m[2]:
            out.append(m[2].strip())
    return out


SAYS = (r"environment variable|reserved device memory|Invalid allocator|allocator for GPU|within provided limit|Unified|oversubscri|ReadInt64|"
        r"ReadFloat|Failed to parse|could not be parsed|Check failed|minimum required|Non-OK|Trying to set|prealloc")
NOISE = r"TF_ENABLE_ONEDNN|NUMA|cuDNN|libcu"


def calls(lines):
    """Driver calls that take device memory, with their bytes; "!" is a refusal. Of more than four refusals in a row the first two, their number and the last."""
    out, run = [], []
    for line in lines + [""]:
        m = re.match(r"(\w+) (?:4 )?(-?\d+) = (\d+)", line)
        if m and re.search("Host|Free", m[1]):
            continue
        if m and m[3] == "2":
            run.append("%s %s!" % (m[1], m[2]))
            continue
        out += run if len(run) <= 4 else run[:2] + ["(%d more)" % (len(run) - 3), run[-1]]
        run = []
        if m:
            out.append("%s %s" % (m[1], m[2]))
    return ", ".join(out)


def pool_said(case, answer):
    if answer.get("signal") == 11 or answer.get("error", ["", ""])[1] == "No allocator statistics":
        out = "limit untold"  # the question for the limit failed, or up to 2.6 crashed, as the allocator keeps no statistics
    elif "signal" in answer:
        return "crash"
    elif "limits" not in answer:
        out = "! %s %s" % (answer["error"][0], quote(answer["error"][1].split("\n")[0]))
    else:
        out = "limit " + (",".join(map(str, answer["limits"])) or "none")
        found = calls(answer["calls"])
        out += "; " + found if found else ""
        out += "; then ! " + answer["error"][0] if "error" in answer else ""
    error = answer.get("error", ["", "no error"])[1].split("\n")[0]
    return out + "".join("; log " + quote(m) for m in messages(answer.get("log", ""), error)[:2])


def program_said(answer):
    out = ["crash"] if "signal" in answer else ["ok"] if "error" not in answer else [
        "! %s %s" % (answer["error"][0], quote(answer["error"][1].split("\n")[0]))]
    out += answer.get("lines", [])
    made = re.findall(r"Created (?:TensorFlow )?device \S+device:GPU:(\d+) with (-?\d+) MB", answer.get("log", ""))
    return "; ".join(out + ["GPU:%s %s MB" % m for m in dict.fromkeys(made)])


def ranges(pairs):
    """Consecutive releases with the same answer become one line."""
    runs = []
    for release, text in pairs:
        if runs and runs[-1][2] == text:
            runs[-1][1] = release
        else:
            runs.append([release, release, text])
    return "".join("  %s %s\n" % (a if a == b else a + ".." + b, text) for a, b, text in runs)


def title(c):
    out = ["%s=%d" % (k, c[k]) for k, usual in [("total", TOTAL), ("free", FREE)] if c[k] != usual]
    out += ["cc=%d.%d" % divmod(c["cc"], 10)] if c["cc"] != 80 else []
    out += ["config=" + quote(c["config"])] if c["config"] else []
    return " ".join(out + ["%s=%s" % (k, quote(v)) for k, v in c["env"].items()]) or "usual"


def write_pools(path, cases, releases, answers):
    with open(path, "w") as f:
        f.write(POOLS_HEAD % (TOTAL, FREE, ", ".join(releases)))
        for c in cases:
            if "memory_guard" not in c["env"].values():  # writes and reads device memory: not without a GPU
                f.write("\n%s\n%s" % (title(c), ranges([(r, pool_said(c, a)) for r in releases for d, a in answers[r]["pools"] if c == d])))


def write(answers):
    here = os.path.dirname(os.path.abspath(__file__))
    releases = [r for r in RELEASES if r in answers]
    write_pools(os.path.join(here, "pools.txt"), CASES, releases, answers)
    with open(os.path.join(here, "api.txt"), "w") as f:
        f.write(API_HEAD % ", ".join(releases))
        for program in PROGRAMS:
            f.write("\n%s\n%s" % (quote(program), ranges([(r, program_said(a)) for r in releases for p, a in answers[r]["programs"] if p == program])))
    with open(os.path.join(here, "fields.txt"), "w") as f:
        f.write(FIELDS_HEAD % ", ".join(releases))
        messages_ = sorted({m for r in releases for m in answers[r]["fields"]})
        for message in messages_:
            f.write("\n%s\n" % message)
            rows = {(n, name, kind) for r in releases for name, (n, kind) in answers[r]["fields"].get(message, {}).items()}
            for n, name, kind in sorted(rows):
                have = [r for r in releases if answers[r]["fields"].get(message, {}).get(name) == [n, kind]]
                f.write("  %d %s %s %s..%s\n" % (n, name, kind, have[0], have[-1]))
        f.write("\nnames\n")
        for name in sorted({n for r in releases for n in answers[r]["names"]}):
            have = [r for r in releases if name in answers[r]["names"]]
            f.write("  %s %s..%s\n" % (name, have[0], have[-1]))


POOLS_HEAD = """# The pool that real TensorFlow makes, and what it asks of the driver, by settings. Made by tensorflow.py with a stand-in for the driver.
# A case: what differs from the usual device (total=%d free=%d bytes, compute capability 8.0), the ConfigProto of the session as
# text, and environment variables. Then one line for each run of releases with the same answer:
#   limit N   the device's memory limit in bytes, as TensorFlow logs it in "Created device ... with N>>20 MB memory"; one for each
#             virtual device; "none" where no GPU device is made, "untold" where the allocator keeps no statistics
#   calls     the driver calls, with bytes, when a tensor of 16 bytes and then one of 3 MiB is put on GPU:0; "!" is a refusal for
#             want of memory. cuMemPoolSetAttribute is the release threshold.
#   then !    the class of the exception at that use;  "! class text" without a limit: the session cannot be made;  crash: it aborts
#   log       what it logs about memory
# Releases asked: %s.
"""
API_HEAD = """# What TensorFlow's Python checks of GPU memory settings. Made by tensorflow.py with a stand-in for the driver: one GPU of 6 GiB.
# A program (c is tf.config, g the list of GPUs, L LogicalDeviceConfiguration; show() makes the devices and tells how many), then for
# each run of releases "ok" or the exception, what was shown, and the devices that were made with the MB of the log line.
# Releases asked: %s.
"""
FIELDS_HEAD = """# The fields of GPUOptions: number, name, type, first and last release asked that has it. Then the names of environment variables
# about memory that are in the libraries. Made by tensorflow.py. Releases asked: %s.
"""


def main():
    host = "--host" in sys.argv
    folder, *asked = [os.path.abspath(a) if i == 0 else a for i, a in enumerate(a for a in sys.argv[1:] if a != "--host")]
    os.makedirs(folder, exist_ok=True)
    answers = {}
    for release in RELEASES:
        answer = os.path.join(folder, release + (".host.json" if host else ".json"))
        if release in (asked or (HOST_RELEASES if host else RELEASES)) and not os.path.exists(answer):
            ask(folder, release, HOST_CASES if host else CASES, [] if host else PROGRAMS, answer)
        if os.path.exists(answer):
            with open(answer) as f:
                answers[release] = json.load(f)
    if host:
        write_pools(os.path.join(os.path.dirname(os.path.abspath(__file__)), "host.txt"), HOST_CASES, list(answers), answers)
    else:
        write(answers)


if __name__ == "__main__":
    main()
