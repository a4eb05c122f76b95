"""Asks the GPU plugins of JAX releases what they do with memory settings.

  python3 xla.py [--dir DIR] [--cuda 12|13] [--releases 0.11.0,0.12.0] [--only options|pools|edges]

Needs Linux on x86-64, Python 3.8 or newer with pip, and gcc; no GPU. Fetches the
plugins (jax-cuda12-pjrt of PyPI, 100 to 200 MB each) into DIR, by default a
temporary folder, and writes options.txt, pools.txt and edges.txt next to this file. What
was already asked is kept in DIR/raw and not asked again.

The plugin is real and unchanged; libcuda.c stands in for the driver, the CUDA
runtime and NVML. Every question is one process, which uses XLA's C interface
for plugins (xla/pjrt/c/pjrt_c_api.h) through ctypes: makes a client, puts two
arrays on the device, frees them. jaxlib's part is small and done here: the
variables that its Python reads become the client's options (see jax_options).
"""

import argparse
import concurrent.futures
import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import zipfile

import tables

HERE = pathlib.Path(__file__).resolve().parent

# Before 0.4.23 the plugin is not on PyPI.
RELEASES = """0.4.23 0.4.26 0.4.30 0.4.33 0.4.35 0.4.38 0.5.3 0.6.2 0.7.2 0.8.3
0.9.2 0.10.0 0.10.1 0.10.2 0.11.0 0.11.1 0.11.2 0.12.0 0.12.0.1""".split()

# ---------------------------------------------------------------- the questions

GB80, GB24, GB16, GB8, ODD = 85045542912, 25430786048, 16945512448, 8361279488, 12884901889
FRACTION, PREALLOCATE = "XLA_CLIENT_MEM_FRACTION=", "XLA_PYTHON_CLIENT_PREALLOCATE="
ALLOCATOR, COLLECTIVE = "XLA_PYTHON_CLIENT_ALLOCATOR=", "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB="
UNIFIED, SUPPORTED = "TF_FORCE_UNIFIED_MEMORY=", "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC="
HOST = "XLA_PJRT_GPU_HOST_MEMORY_"
CREATE_OPTIONS = "JAX_PJRT_CLIENT_CREATE_OPTIONS="
SPATIAL = "XLA_FLAGS=--xla_gpu_enable_allocator_spatial_partitioning="


def questions():
    """Yields (total bytes, free bytes, compute capability, environment)."""
    for total in GB80, GB24, GB16, GB8, ODD:
        yield total, total, 80, ()
    for f in ".9", ".95", ".1":
        yield GB80, GB80, 80, (FRACTION + f,)
    for f in ".3", ".5", ".9", ".95", "1.0", "1.5", "4.0", "0", "0.002", "0.0001", "0.00001", "-1", "nan", "inf":
        yield GB8, GB8, 80, (FRACTION + f,)
    yield ODD, ODD, 80, (FRACTION + ".95",)
    # less free than asked for: the arena backs off
    for free in 8000000000, 2000000000, 300000000:
        yield ODD, free, 80, ()
    yield GB8, 5000000000, 80, (FRACTION + ".9",)
    yield GB8, 5000000000, 80, (PREALLOCATE + "false",)
    no = PREALLOCATE + "false"
    yield GB8, GB8, 80, (no,)
    yield GB8, GB8, 80, (no, FRACTION + ".5")
    for how in "true", "1", "True", "yes", "", "false":
        yield GB8, GB8, 80, (UNIFIED + how,)
    for f in ".5", "4.0", "1.5":
        yield GB8, GB8, 80, (UNIFIED + "1", FRACTION + f)
    yield GB8, GB8, 80, (UNIFIED + "1", no)
    for name in "default", "bfc", "platform", "address", "vmm", "cuda_async":
        yield GB8, GB8, 80, (ALLOCATOR + name,)
    yield GB8, 1000000000, 80, (ALLOCATOR + "cuda_async",)
    yield GB8, GB8, 80, (ALLOCATOR + "platform", FRACTION + ".5", no)
    yield GB8, GB8, 80, (ALLOCATOR + "vmm", FRACTION + ".9")
    yield GB8, GB8, 80, (ALLOCATOR + "vmm", no)
    yield GB8, GB8, 60, (ALLOCATOR + "vmm",)
    asynch = ALLOCATOR + "cuda_async"
    yield ODD, ODD, 80, (asynch, FRACTION + ".9")
    for pre in (), (no,):
        for n in "-1", "1000000000", "-2", "many", "":
            yield GB8, GB8, 80, (asynch,) + pre + (SUPPORTED + n,)
    yield GB8, GB8, 80, (asynch, no)
    yield GB8, GB8, 80, (SUPPORTED + "1000000000",)
    yield GB8, GB8, 80, (asynch, "TF_DETERMINISTIC_ALLOCATOR=true")
    for settings in (COLLECTIVE + "100",), (no, COLLECTIVE + "100"), (asynch, COLLECTIVE + "100"), \
            (ALLOCATOR + "platform", COLLECTIVE + "100"), (ALLOCATOR + "vmm", COLLECTIVE + "100"):
        yield GB8, GB8, 80, settings
    yield GB8, GB8, 80, (SPATIAL + "false",)
    yield GB8, GB8, 80, (SPATIAL + "false", COLLECTIVE + "100")
    yield GB8, GB8, 80, (SPATIAL + "true", no)
    yield GB8, GB8, 80, ("TF_GPU_ALLOCATOR=cuda_malloc_async",)
    yield GB8, GB8, 80, ("TF_PER_DEVICE_MEMORY_LIMIT_MB=100",)
    yield GB8, GB8, 80, ("TF_PER_DEVICE_MEMORY_LIMIT_MB=5", ALLOCATOR + "platform")
    yield GB8, GB8, 80, (HOST + "LIMIT_GB=1",)
    yield GB8, GB8, 80, (HOST + "PREALLOCATE=true", HOST + "LIMIT_GB=1")
    # what has no variable goes in by JAX's flag; memory_fraction_policy is from 0.12.0 on
    for policy in "0.5", "0.001-0.01", "0.001+", "0.9-0.95", "0.75-0.75", "1.5-1.5", "0.9-0.5", "abc", "0":
        yield GB8, GB8, 80, (CREATE_OPTIONS + "memory_fraction_policy:" + policy,)
    yield GB8, GB8, 80, (FRACTION + ".5", CREATE_OPTIONS + "memory_fraction_policy:0.001-0.01")
    yield GB8, GB8, 80, (no, CREATE_OPTIONS + "memory_fraction_policy:0.001-0.01")
    yield GB8, GB8, 80, (asynch, CREATE_OPTIONS + "memory_fraction_policy:0.001-0.01")
    yield GB8, GB8, 80, (SPATIAL + "false", CREATE_OPTIONS + "memory_fraction_policy:0.001-0.01")
    yield GB8, 3000000000, 80, (CREATE_OPTIONS + "memory_fraction_policy:0.5-0.9",)
    yield GB8, GB8, 80, (CREATE_OPTIONS + "memory_fraction:0.5",)
    for name in "default", "cuda_async", "platform":
        yield GB8, GB8, 80, ("XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT=1", ALLOCATOR + name)
    for mode in "NEVER_UPDATE", "SKIP_TEMP", "SKIP_PROFILED":
        yield GB8, GB8, 80, ("XLA_FLAGS=--xla_gpu_command_buffer_update_mode=" + mode,)


def edges():
    """The same, where the client or a first put fails or dies. STANDIN_VMM=0 is a device without virtual memory."""
    for value in "", "x", "1.5", "0", "-1", "+4", " 2 ", "0x10", "17179869184":
        yield GB8, GB8, 80, (HOST + "LIMIT_GB=" + value,)
    for value in "", "yes", "True", "1 ":
        yield GB8, GB8, 80, (HOST + "PREALLOCATE=" + value,)
    yield GB8, GB8, 80, (HOST + "PREALLOCATE=1", HOST + "LIMIT_GB=0")
    yield GB8, GB8, 80, (HOST + "LIMIT_GB=0", ALLOCATOR + "platform")
    none = "STANDIN_VMM=0"
    for settings in (), (PREALLOCATE + "false",), (ALLOCATOR + "platform",), (ALLOCATOR + "vmm",), (ALLOCATOR + "cuda_async",), \
            ("XLA_FLAGS=--xla_gpu_experimental_vmm_disabled=true",):
        yield GB8, GB8, 80, (none,) + settings
    off = "XLA_FLAGS=--xla_gpu_experimental_vmm_disabled=true"
    for settings in (), (ALLOCATOR + "vmm",), (ALLOCATOR + "platform",), ("TF_PER_DEVICE_MEMORY_LIMIT_MB=100",):
        yield GB8, GB8, 80, (off,) + settings


STRING, INT64, LIST, FLOAT, BOOL = range(5)  # PJRT_NamedValue_Type
TYPES = {"string": (STRING, "1"), "int64": (INT64, 1), "int64-list": (LIST, [0]), "float": (FLOAT, 0.5), "bool": (BOOL, True)}


def jax_options(settings):
    """Splits settings into what jaxlib's Python turns into options and the rest.

    As in jaxlib/xla_client.py, generate_pjrt_gpu_plugin_options; the values here
    are ones that it accepts.
    """
    options, rest = [["allocator", STRING, "default"]], {}
    for setting in settings:
        name, value = setting.split("=", 1)
        if name + "=" == ALLOCATOR:
            options[0][2] = value
        elif name + "=" == FRACTION:
            options.append(["memory_fraction", FLOAT, float(value)])
        elif name + "=" == PREALLOCATE:
            options.append(["preallocate", BOOL, value not in ("false", "False", "0")])
        elif name + "=" == COLLECTIVE:
            options.append(["collective_memory_size", INT64, int(value) << 20])
        elif name + "=" == CREATE_OPTIONS:  # the last word; always text
            options += [[o.split(":")[0], STRING, o.split(":", 1)[1]] for o in value.split(";")]
        elif name == "XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT":
            options.append(["use_tfrt_gpu_client", BOOL, bool(int(value))])
        else:
            rest[name] = value
    return options, rest


# ------------------------------------------------- the plugin, seen through ctypes

P = ctypes.c_void_p


class NamedValue(ctypes.Structure):
    class Value(ctypes.Union):
        _fields_ = [("s", ctypes.c_char_p), ("i", ctypes.c_int64), ("l", P), ("f", ctypes.c_float), ("b", ctypes.c_bool)]

    _fields_ = [("struct_size", ctypes.c_size_t), ("extension", P), ("name", ctypes.c_char_p), ("name_size", ctypes.c_size_t),
                ("type", ctypes.c_int), ("value", Value), ("value_size", ctypes.c_size_t)]


class PluginError(Exception):
    def __init__(self, code, text):
        Exception.__init__(self, code, text)
        self.code, self.text = code, text


# Places in the table of functions, the same in all releases asked.
ERROR_DESTROY, ERROR_MESSAGE, ERROR_CODE, INITIALIZE, AWAIT, CREATE, DEVICES = 0, 1, 2, 3, 8, 10, 16
FROM_HOST, STATS, BUFFER_DESTROY, BUFFER_READY, BUFFER_POINTER = 22, 34, 58, 72, 73
STAT_NAMES = """peak_bytes_in_use num_allocs largest_alloc_size bytes_limit bytes_reserved peak_bytes_reserved
bytes_reservable_limit largest_free_block_bytes pool_bytes peak_pool_bytes""".split()


class Plugin:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.GetPjrtApi.restype = P
        table = self.library.GetPjrtApi()
        self.table = ctypes.cast(table, ctypes.POINTER(ctypes.c_uint64))
        version = ctypes.cast(table + 32, ctypes.POINTER(ctypes.c_int))
        self.version = "%d.%d" % (version[0], version[1])
        self.keep = []
        self.call(INITIALIZE)

    def raw(self, place, fields):
        """Calls a function whose argument is a struct of 8-byte words."""
        args = (ctypes.c_uint64 * 40)()  # larger than any: a plugin takes what it knows
        args[0] = ctypes.sizeof(args)
        for word, value in fields.items():
            args[word] = value
        return ctypes.CFUNCTYPE(P, P)(self.table[5 + place])(ctypes.addressof(args)), args

    def call(self, place, fields={}):
        error, args = self.raw(place, fields)
        if error:
            message = self.raw(ERROR_MESSAGE, {2: error})[1]
            text = ctypes.string_at(message[3], message[4]).decode()
            code = self.raw(ERROR_CODE, {2: error})[1][3] & 0xFFFFFFFF
            self.raw(ERROR_DESTROY, {2: error})
            raise PluginError(code, text)
        return args

    def create(self, options):
        values = (NamedValue * max(1, len(options)))()
        for v, (name, kind, value) in zip(values, options):
            v.struct_size, v.name, v.name_size, v.type, v.value_size = 56, name.encode(), len(name.encode()), kind, 1
            if kind == STRING:
                v.value.s, v.value_size = value.encode(), len(value.encode())
            elif kind == INT64:
                v.value.i = value
            elif kind == LIST:
                numbers = (ctypes.c_int64 * len(value))(*value)
                self.keep.append(numbers)
                v.value.l, v.value_size = ctypes.addressof(numbers), len(value)
            elif kind == FLOAT:
                v.value.f = value
            else:
                v.value.b = value
        return self.call(CREATE, {2: ctypes.addressof(values), 3: len(options)})[8]

    def device(self, client):
        return ctypes.cast(self.call(DEVICES, {2: client})[3], ctypes.POINTER(ctypes.c_uint64))[0]

    def stats(self, device):
        try:
            args = self.call(STATS, {2: device})
        except PluginError as e:
            return {"code": e.code, "text": e.text}
        found = {"bytes_in_use": args[3]}
        for i, name in enumerate(STAT_NAMES):
            if args[5 + 2 * i] & 0xFF:
                found[name] = ctypes.c_int64(args[4 + 2 * i]).value
        return found

    def put(self, client, device, size):
        data, shape = ctypes.create_string_buffer(size), (ctypes.c_int64 * 1)(size)
        self.keep += [data, shape]
        u8 = 6
        args = self.call(FROM_HOST, {2: client, 3: ctypes.addressof(data), 4: u8, 5: ctypes.addressof(shape), 6: 1, 10: device})
        self.call(AWAIT, {2: args[13]})
        self.call(AWAIT, {2: self.call(BUFFER_READY, {2: args[14]})[3]})
        return args[14]


SIZES = 1024, 10000000
POLICIES = """0.75 0.75+ 0.75-0.85 0.75-0.75 1 1+ 1.5 1.5-1.5 1.5+ 1e-3 1e-3+ 1e-3-2e-3 1E-3-1E+0 0.5-1.0 .5 5e-1 0x1p-1 +0.5
0.9-0.5 0.5-1.5 0 -0.5 nan inf 0.5- 0.5-abc 0.5-0.7-0.9 + 0+ 0.5++ 0.5-0.9+ 0_5 abc 75%""".split() + ["", " 0.5 ", "0.5 - 0.9"]


def ask_pool(path, options, answer):
    """In a process of its own: one client. STANDIN_LOG and answer are files."""
    marks, out = open(os.environ["STANDIN_LOG"], "a", buffering=1), open(answer, "w", buffering=1)

    def say(step, **what):
        out.write(json.dumps(dict(what, step=step)) + "\n")

    try:
        plugin = Plugin(path)
        marks.write("# create\n")
        client = plugin.create(options)
        device, buffers = plugin.device(client), []
        say("create", stats=plugin.stats(device))
        for size in SIZES:
            marks.write("# put\n")
            buffers.append(plugin.put(client, device, size))
            say("put", stats=plugin.stats(device), at=plugin.call(BUFFER_POINTER, {2: buffers[-1]})[3])
        marks.write("# free\n")
        for b in buffers:
            plugin.call(BUFFER_DESTROY, {2: b})
        time.sleep(0.3)  # newer releases free on a thread of their own
    except PluginError as e:
        say("error", code=e.code, text=e.text)
    marks.write("# end\n")
    os._exit(0)  # taking the client down is not asked


def ask_options(path, answer):
    """In a process of its own, without the stand-in: what options a client takes.

    Options are looked at before GPUs are, so an accepted one leads to another
    error. Any word_with_a_line in the plugin could be an option's name: all are tried.
    """
    plugin = Plugin(path)

    def error(*option):
        try:
            plugin.create([option])
        except PluginError as e:
            return [e.code, e.text]
        return None

    with open(path, "rb") as f:
        words = {w.decode() for w in re.findall(rb"(?<![\w.])[a-z][a-z0-9]*_[a-z0-9_]{1,48}(?=\0)", f.read())}
    # Other names, and those inside instructions; these were found in some release.
    words |= set("""abort_collectives_on_failure allocator collective_memory_size enable_mock_nccl gpu_system_memory_size
        memory_fraction mock_gpu_topology node_id num_nodes partition_index platform_name preallocate
        should_stage_host_to_device_transfers slice_index use_tfrt_gpu_client visible_devices""".split())
    found = {"version": plugin.version, "unknown": error("no_such_option", STRING, "x"), "options": {}, "allocators": {}}
    for word in sorted(words):
        e = error(word, LIST, [0])
        if e and e[1].startswith("Unexpected option name"):
            continue
        found["options"][word] = {name: error(word, *value) for name, value in TYPES.items()}
    for name in "default platform bfc cuda_async vmm address".split() + ["BFC", "Default", "", "cuda_malloc_async", "bfc "]:
        found["allocators"][name] = error("allocator", STRING, name)
    if "memory_fraction_policy" in found["options"]:
        found["policies"] = {text: error("memory_fraction_policy", STRING, text) for text in POLICIES}
    with open(answer, "w") as f:
        json.dump(found, f)
    os._exit(0)


# ---------------------------------------------------------------- asking

class Asker:
    def __init__(self, folder, cuda):
        self.folder, self.cuda = folder, cuda
        for name in "wheels", "so", "raw", "lib", "work":
            (folder / name).mkdir(parents=True, exist_ok=True)
        first = folder / "lib" / "libcuda.so.1"
        subprocess.check_call(["gcc", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-o", str(first), str(HERE / "libcuda.c"), "-lpthread"])
        for name in "libnvidia-ml.so.1", "libcudart.so.12", "libcudart.so.13":
            (folder / "lib" / name).write_bytes(first.read_bytes())

    def plugin(self, release):
        path = self.folder / "so" / ("%s-%s.so" % (self.cuda, release))
        if not path.exists():
            subprocess.check_call([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(self.folder / "wheels"),
                                   "--only-binary=:all:", "--platform=manylinux_2_27_x86_64", "--platform=manylinux2014_x86_64",
                                   "--python-version=3.11", "jax-cuda%s-pjrt==%s" % (self.cuda, release)])
            wheel = next((self.folder / "wheels").glob("jax_cuda%s_pjrt-%s-*.whl" % (self.cuda, release)))
            with zipfile.ZipFile(wheel) as z:
                name = next(n for n in z.namelist() if n.endswith("/xla_cuda_plugin.so"))
                path.with_suffix(".part").write_bytes(z.read(name))
            path.with_suffix(".part").rename(path)
            wheel.unlink()
        return str(path)

    def kept(self, name):
        return self.folder / "raw" / ("%s-%s.json" % (self.cuda, name))

    def cached(self, name, ask):
        path = self.kept(name)
        if not path.exists():
            answer = ask()
            path.write_text(json.dumps(answer))
        return json.loads(path.read_text())

    def options(self, release):
        def ask():
            answer = self.folder / "work" / ("options-%s.json" % release)
            subprocess.run([sys.executable, __file__, "--ask-options", self.plugin(release), str(answer)],
                           check=True, env=clean_env(), stderr=subprocess.DEVNULL)
            return json.loads(answer.read_text())
        return self.cached("options-" + release, ask)

    def key(self, question):
        total, free, cc, settings = question
        key = "%d-%d-%d-%s" % (total, free, cc, ",".join(settings))
        return re.sub("[^A-Za-z0-9.,=_-]", "+", key).replace("XLA_PYTHON_CLIENT_", "")

    def pool(self, release, question):
        key = self.key(question)
        return self.cached("%s-%s" % (release, key), lambda: self.ask(release, question, key))

    def ask(self, release, question, key):
        total, free, cc, settings = question
        options, rest = jax_options(settings)
        stem = self.folder / "work" / ("%s-%s" % (release, key))
        calls, answer = pathlib.Path(str(stem) + ".calls"), pathlib.Path(str(stem) + ".answer")
        for path in calls, answer:
            path.write_text("")
        env = clean_env()
        env.update(rest, LD_LIBRARY_PATH=str(self.folder / "lib"), TF_CPP_MIN_LOG_LEVEL="0", TF_CPP_VMODULE="bfc_allocator=1",
                   STANDIN_TOTAL=str(total), STANDIN_FREE=str(free), STANDIN_CC=str(cc), STANDIN_LOG=str(calls))
        try:
            done = subprocess.run([sys.executable, __file__, "--ask-pool", self.plugin(release), json.dumps(options), str(answer)],
                                  env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120)
            code, log = done.returncode, done.stderr
        except subprocess.TimeoutExpired as e:
            code, log = "timeout", e.stderr or b""
        return {"code": code, "log": log.decode(errors="replace"), "calls": calls.read_text(),
                "steps": [json.loads(line) for line in answer.read_text().splitlines()]}


def clean_env():
    return {k: v for k, v in os.environ.items() if not re.match("XLA|TF_|JAX|CUDA|STANDIN|LD_LIBRARY", k)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dir", type=pathlib.Path)
    p.add_argument("--cuda", default="12")
    p.add_argument("--releases", default=",".join(RELEASES))
    p.add_argument("--only", choices=["options", "pools", "edges"])
    args = p.parse_args()
    releases = args.releases.split(",")
    asker = Asker((args.dir or pathlib.Path(tempfile.mkdtemp(prefix="xla-"))).resolve(), args.cuda)
    if args.only in (None, "options"):
        answers = [asker.options(r) for r in releases]
        write("options.txt", releases, tables.OPTIONS_HEAD, tables.option_lines(releases, answers))
    for name, asked in ("pools", list(questions())), ("edges", list(edges())):
        if args.only not in (None, name):
            continue
        lines = []
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as threads:
            for release in releases:
                if not all(asker.kept("%s-%s" % (release, asker.key(q))).exists() for q in asked):
                    asker.plugin(release)
                list(threads.map(lambda q: asker.pool(release, q), asked))
                print("asked", release, flush=True)
        for question in asked:
            lines += tables.pool_lines(releases, question, [asker.pool(r, question) for r in releases])
        write(name + ".txt", releases, tables.POOLS_HEAD, lines)


def write(name, releases, head, lines):
    asked = "".join("# " + line + "\n" for line in textwrap.wrap("Releases asked: " + " ".join(releases), 96))
    (HERE / name).write_text(head + asked + "\n" + "".join(line + "\n" for line in lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask-pool"]:
        ask_pool(sys.argv[2], json.loads(sys.argv[3]), sys.argv[4])
    elif sys.argv[1:2] == ["--ask-options"]:
        ask_options(sys.argv[2], sys.argv[3])
    else:
        main()
