"""What JAX's own Python makes of environments: remakes options.txt, bridge.txt and platforms.txt.

Usage: python3 jax.py [--check] [--only TABLE] [--dir DIR] [--python PATH]... [RELEASE]...

Every release named below is fetched from PyPI with pip and imported, and its
own functions are called:

  options.txt  jaxlib.xla_client: generate_pjrt_gpu_plugin_options and, up to
               0.5.3, make_gpu_client
  bridge.txt   jax._src.xla_bridge: register_plugin and what it registers and,
               up to 0.5.3, make_gpu_client
  platforms.txt
               jax._src.xla_bridge: get_backend, with a plugin for CUDA registered

Only native calls at the end of these functions, which need a GPU, are replaced
by ones that record what they were given.

RELEASE     print the tables of these releases only, and write nothing
--only      one table: options, bridge or platforms
--check     compare with the tables that are here, and write nothing
--dir       where the packages go, and stay (1 GB for three releases). Without
            it they go to a temporary folder and are removed one by one.
--python    a Python 3.11, and one of 3.13. Without it: python3.11 and
            python3.13. Other versions print other errors in a few places.

This file and no other runs in both the driver and the processes that it starts
for the releases. It needs Linux and nothing but the standard library.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent

# All jaxlib on PyPI, 2026-11.
JAXLIB = """
0.4.13 0.4.18 0.4.19 0.4.20 0.4.21 0.4.22 0.4.23 0.4.24 0.4.25 0.4.26 0.4.27
0.4.28 0.4.29 0.4.30 0.4.31 0.4.32 0.4.33 0.4.34 0.4.35 0.4.36 0.4.38 0.5.0
0.5.1 0.5.3 0.6.0 0.6.1 0.6.2 0.7.0 0.7.1 0.7.2 0.8.0 0.8.1 0.8.2 0.8.3 0.9.0
0.9.0.1 0.9.1 0.9.2 0.10.0 0.10.1 0.10.2 0.11.0 0.11.1 0.11.2 0.12.0 0.12.0.1
""".split()

# Those of jax whose xla_bridge.py is asked, each with the jaxlib of its number:
# one before and one after every change of the functions asked.
JAX = """
0.4.18 0.4.20 0.4.23 0.4.25 0.4.26 0.4.29 0.4.30 0.4.31 0.4.35 0.5.0 0.5.3
0.6.0 0.6.2 0.7.2 0.8.3 0.9.2 0.10.1 0.10.2 0.11.2 0.12.0.1
""".split()


def python_of(release):
    """The Python that a release is asked with. 0.11 is not for 3.11."""
    return "3.11" if number(release) < (0, 11) else "3.13"


def needs_of(release):
    """What has to lie beside jaxlib to import it and jax."""
    if number(release) < (0, 5):
        return ["numpy==1.26.4", "ml_dtypes==0.3.2", "scipy==1.11.4", "opt_einsum==3.3.0"]
    return ["numpy==2.2.6", "ml_dtypes==0.5.4", "scipy==1.15.3", "opt_einsum==3.4.0"]


def number(release):
    return tuple(int(n) for n in release.split("."))


# ---------------------------------------------------------------------------
# The environments. An environment is {name: value}, values are bytes. A name in
# lower case is no variable but a flag of jax, set with jax.config.update.

ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"
FRACTION = "XLA_CLIENT_MEM_FRACTION"
OLD_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
COLLECTIVE = "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB"
ABORT = "XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE"
TFRT = "XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT"
CREATE = "JAX_PJRT_CLIENT_CREATE_OPTIONS"
VISIBLE = {p: "JAX_%s_VISIBLE_DEVICES" % p.upper() for p in ("cuda", "rocm", "oneapi")}

VISIBLE_FLAG = {p: name.lower() for p, name in VISIBLE.items()}

PLATFORMS, PLATFORM = "JAX_PLATFORMS", "JAX_PLATFORM_NAME"

NAMES = [PLATFORMS, PLATFORM, ALLOCATOR, FRACTION, OLD_FRACTION, PREALLOCATE, COLLECTIVE, ABORT, TFRT, CREATE, *VISIBLE.values(), CREATE.lower(),
         *VISIBLE_FLAG.values()]

ALLOCATORS = [
    "", "default", "platform", "bfc", "cuda_async", "vmm", "address",
    # case
    "DEFAULT", "Platform", "BFC", "cuda_ASYNC", "VMM", "Address", "pLATFORM",
    # other text
    " platform", "platform ", "platform\n", "\tbfc", "plat form", "cuda-async", "cudaasync", "cuda_malloc_async",
    "async", "pool", "none", "0", "1", "true", "default,bfc", "bfc;", "vmm2", "addresses", "bfc\u00a0",
    # what an error text has to carry
    '"bfc"', "'bfc'", "back\\slash", "%s", "%d%%", "{}", "$HOME", "tab\there", "line\nbreak", "\r\n", "\x01\x7f",
    "\u00e9", "\u20ac", "\U0001f600", "\u2028", "\u200b", "\ufeff", "\ufffd", "\ue000", "\U0010ffff", "x" * 300,
    b"\xff", b"BFC\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\xe2\x82Z", b"\x80ABC\xfe",
    # str.lower beyond ASCII
    "\uff22\uff26\uff23", "\u00c9", "\u0130", "\u0131", "DE\u0130FAULT", "pla\u0054form", "\u00df", "\u1e9e",
    "\u212a", "\u212b", "\u2126", "cuda_a\u017fync", "CUDA_A\u017fYNC", "VM\u039c", "\u01c4", "\u01c5", "\u2167",
    "\u24b7", "\u0531", "\u10a0", "\u1c90", "\u13a0", "\uab70", "\U00010400", "\U0001e900", "\u1f88", "\u03f4",
    "\u1e9b", "\ufb00", "\ua7cb", "\U0001d400", "A\u030a", "I\u0307",
    # the last sigma of a word
    "\u0392\u03a6\u03a3", "\u03a3", "\u03a3\u03a3", "\u0391\u03a3\u0391", "\u0391\u03a3 \u0391", "\u0391\u03a3.\u0391",
    "\u0391\u03a3'", "\u0391\u03a31", "\u0391\u03a3\u0301", "\u0391\u0301\u03a3", "1\u03a3", "a\u03a3", "\u0391\u00ad\u03a3",
    "\u0391\u03a3\u00ad\u0391", "\u0391\u03a3:", "\u0391\u03a3_\u0391", b"\xce\x91\xce\xa3\xff", b"\xff\xce\xa3",
]

# Text that is a number to neither float() nor int(), and what repr() makes of it.
NO_NUMBERS = [
    " ", "\n", "x", "half", "true", "None", "50%", "8GB", "8 GB", "1M", "1,5", "0,5", "1.2.3", "1 2", "--1", "+-1", "- 1",
    "+", "-", "_", "_1", "1_", "1__0", "0x10", "0b1", "0o7", "1L", "1j", "1#", "1;", "(1)", "[1]", "=1",
    # other scripts, which have digits and other signs
    "\u00b2", "\u00bd", "\u2167", "\u4e09", "\u22121", "\u200b1", "\ufeff1", "1\u00ad", "1\u0300", "\u0661x", "\u06f1_",
    # quotes, and what is not printed as it is
    "'1'", '"1"', "a'b\"c", "a'b", 'a"b', "back\\slash", "\\n", "line\nbreak", "tab\there", "\rx", "\x01", "x\x7f", "\x1b[1m",
    "\u0080", "\u00a0x", "\u00e9", "\u0378", "\u200e", "\u2028x", "\u3000x", "\ue000", "\ufffd", "\uffff", "\u20ac",
    "\U0001f600", "\U000e0001", "\U000e0100", "\U0010ffff", "\u1fff", "\U0001fae8", "\U0001fadf", "x" * 200, "x" * 300,
    "\u00e9" * 250, "'" * 199, "\\" * 199,
    b"\xff", b".5\xff", b"1\xc3", b"\xed\xb2\x80", b"\xc0\xb1", b"\xf4\x90\x80\x80", b"\x80'", b"1\xe2\x82",
]

FRACTIONS = [
    "", "0.5", ".5", "5.", "1", "0", "00", "016", "-0", "-0.0", "+.5", "-1", "2", "100", "0.9", ".75", "0.1", "0.8", ".95",
    "1e-1", "1E-1", "1e1", "1.0e+0", "1e0_1", "50", "1.5",
    # no number, too large, too small, and the ends of float and double
    "nan", "NaN", "-nan", "+nan", "inf", "-inf", "+inf", "Infinity", "iNfInItY", "-infinity",
    "1e400", "-1e400", "1e-50", "1e-400", "-1e-400", "1e999999999999", "1e-999999999999", "0e999999999999",
    "4.9e-324", "2.4703282292062327e-324", "2.4703282292062328e-324", "1.7976931348623157e308",
    "1.7976931348623158e308", "1.7976931348623159e308", "3.4028235e38", "3.4028236e38", "1e39", "1.4e-45", "1e-46",
    # rounding and printing
    "0.1000000000000000055511151231257827", "0.30000000000000004", "9007199254740993", "1e16", "1e22", "123456789012345678",
    "0.0001", "0.00001", "1.0000000000000002", "1.00000000000000011102230246251565", "0.89999997615814208984375",
    "0." + "3" * 400, "1" * 310, "0" * 400 + ".5",
    # underscores, blanks, digits of other scripts
    "0_5", "0_0.5_0", "1_0e-1_0", " .5", ".5 ", " .5 ", "\t.5\n", "\v.5\f", "\r.5", "\u00a0.5", "\u2003.5", "\u3000.5",
    "\u0085.5", "\x1c.5", "\x1f.5", ".5\u2028", ".5\u180e", "\u0665", "\u0660.\u0665", "\u0966.\u096b", "\uff10.\uff15",
    "\U0001d7ce.\U0001d7d3", "0.\u0665", "1e\u0661", "\U0001e950", "\U00011f51", "\U0001ccf1", "\u0660\u066b\u0665",
    # not floats
    ".", "e1", "1e", "1e+", "1e1.5", "1._5", "1_.5", "1e_5", "1e5_", "1_e5", ".5f", ".5d", "0.5L", "0x1p-1", "0x.8", "nan(1)",
    "infinit", "in f", "n_an", "+ .5", ". 5", "0.5.", "1/2", "e", "inf1", "1inf", ".e1", "snan", "NULL",
] + NO_NUMBERS

INTEGERS = [
    "", "0", "1", "2", "256", "-1", "+1", "-0", "+0", "00", "007", "-007", " 7", "7 ", "\t7\n", "\u00a07", "\u30007\u2003",
    "\x1c7", "1_000", "0_0", "-1_0", "\u0663", "\u0967\u0968", "\uff13", "1\u0663", "\U0001d7d1", "\U00011f53", "\U0001ccf3",
    # 63 and 64 bits after the multiplication by 2^20, and before
    "8796093022207", "8796093022208", "-8796093022208", "-8796093022209", "17592186044415", "17592186044416",
    "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "9" * 40,
    # Python's limit of digits, and whether zeros and underscores count
    "1" * 4300, "1" * 4301, "0" * 4301, "1_" * 4299 + "1",
    # not integers
    "1.5", "1.", "1.0", "1e3", ".5", "nan", "inf", "1_a", "0x_1", "0_x1", "0b", "1-1", "+ 1",
] + NO_NUMBERS

FLAGS = ["", "0", "1", "2", "-1", "-0", "00", "01", " 1 ", "1_0", "\u0660", "\u0661", "true", "True", "false", "1.0", "0x1", "x",
         "yes", "'", "9" * 40, "1" * 4301, b"\xff"]

PREALLOCATES = ["", "false", "False", "0", "FALSE", "fALSE", "no", "off", "f", "n", "none", "true", "True", "TRUE", "1", "2", "yes",
                " false", "false ", "false\n", "'false'", "00", "0.0", "-0", "+0", " 0", "0 ", "\u0660", "\uff10", b"\xff", b"0\xff"]


def option_environments():
    """Those of options.txt: each variable alone, then together."""
    yield {}
    yield from each(ALLOCATOR, ALLOCATORS)
    yield from each(FRACTION, FRACTIONS)
    yield from each(OLD_FRACTION, FRACTIONS)
    yield from each(PREALLOCATE, PREALLOCATES)
    yield from each(COLLECTIVE, INTEGERS)
    yield from each(ABORT, FLAGS)
    yield from each(TFRT, FLAGS)
    # The two names of the fraction, with every kind of allocator.
    yield from grid({
        ALLOCATOR: [None, "", "platform", "CUDA_ASYNC", "vmm", "address", "No"],
        FRACTION: [None, "", "0.5", "0", "bad"],
        OLD_FRACTION: [None, "", ".9", "0", "bad"],
    })
    yield from grid({
        ALLOCATOR: ["default", "bfc", "platform", "cuda_async"],
        OLD_FRACTION: [None, "0.3"],
        PREALLOCATE: ["", "0", "false", "1", "FALSE"],
    })
    yield from grid({
        ALLOCATOR: [None, "cuda_async", "vmm"],
        FRACTION: [None, ".25"],
        PREALLOCATE: [None, "false", "true"],
        COLLECTIVE: [None, "", "0", "512", "-1"],
    })
    # Every set of errors at once: which one is met first.
    yield from grid({
        ALLOCATOR: [None, "No"],
        FRACTION: [None, "bad"],
        OLD_FRACTION: [None, "worse"],
        PREALLOCATE: ["no"],
        COLLECTIVE: [None, "1.5"],
        ABORT: [None, ""],
        TFRT: [None, "yes"],
    })
    yield from grid({ABORT: [None, "0", "1"], TFRT: [None, "0", "1"], COLLECTIVE: [None, "1"]})


CREATES = [
    "", "a:b", "a:b;c:d", "memory_fraction:0.5", "memory_fraction:.5;preallocate:false", "allocator:platform", "allocator:",
    "preallocate:true", "collective_memory_size:0", "platform_name:rocm", "visible_devices:0", "visible_devices:all",
    "enable_mock_nccl:true", "num_nodes:2", "use_tfrt_gpu_client:1", "abort_collectives_on_failure:1",
    # malformed
    ":", ";", ";;", "::", "a", "a:", ":b", "a:b;", ";a:b", "a:b;;c:d", "a:b:c", "a:b;a:c", " a : b ", "a: b; c: d", "a=b",
    "a:b,c:d", "a:b;c", "a;b:c", "url:http://x:1", "t:12:30", " ", "\n", "a\n:b", "a:b\n", "A:b;a:B", "'a':'b'", "'", '"', "a'b:c:d",
    "back\\slash:x\\y", "back\\slash", "a:\u00e9", "\u00e9", "\u20ac:b:c", "a:\U0001f600", "\u0391\u03a3:x", "a\uff1ab", "a:b\uff1bc:d",
    b"a:\xff", b"\xff", b"\xff:\xfe:\xfd",
    # dicts, JSON and the like
    "{}", "None", "{'a': 'b'}", '{"a": "b"}', "{'a': 'b', 'c': 'd'}", "{'memory_fraction': 0.5}", "[]", "[a:b]", "a:[1,2]", "a:1;b:true;c:.5",
    "null", "0", "true", "a:;b:", "--a:b",
]

DEVICES = [
    "", "all", "All", "ALL", " all", "all ", "all,0", "0", "1", "0,1", "0, 1", " 0", "0 ,1\n", "1,0", "0,0", "3,1,2,1", "0,", ",0", ",", "0,,1",
    "-1", "0,-1", "+1", "00,01", "1_0", "x", "0,x", "0;1", "0:1", "0-1", "0x1", "0.0", "1e0", "none", "None", "[0]", "'0'", "\u0660",
    "9" * 20, "9" * 4301, "GPU-8f6b", "a'b", b"\xff", b"0,\xff",
]


def bridge_environments():
    """Those of bridge.txt."""
    yield {}
    yield from each(CREATE, CREATES)
    yield from each(VISIBLE_FLAG["cuda"], DEVICES)
    for p in VISIBLE:
        yield from each(VISIBLE_FLAG[p], ["", "all", "0,1", "x"])
        yield from each(VISIBLE[p], ["", "0", "x"])
    # What overwrites what, and whose error comes first.
    yield from grid({
        ALLOCATOR: [None, "bfc", "No"],
        OLD_FRACTION: [".9"],
        CREATE: [None, "memory_fraction:0.5;visible_devices:7", "a"],
        VISIBLE_FLAG["cuda"]: [None, "1,0", "x"],
    })
    yield from grid({CREATE: ["allocator:vmm", "a:b:c"], CREATE.lower(): ["", "preallocate:false", "c"]})


def each(name, values):
    return ({name: v} for v in values)


def grid(axes):
    """All combinations. None is a variable that is not set."""
    envs = [{}]
    for name, values in axes.items():
        envs = [env if v is None else {**env, name: v} for env in envs for v in values]
    return envs


def platform_environments():
    for name in ("", "cpu", "cuda", "gpu", "tpu", "rocm", "oneapi", "metal", "CPU", "CUDA", "GPU", " cpu", "cuda ", "x", ","):
        yield {PLATFORMS: name}
        yield {PLATFORM: name}
    for names in ("cpu,cuda", "cuda,cpu", "cuda,", ",cuda", "cuda, cpu", "cuda,cuda", "cpu,tpu", "cuda,rocm", "cuda,cpu,x", "cpu;cuda", "cuda:0"):
        yield {PLATFORMS: names}
        yield {PLATFORM: names}
    for platforms, name in (("cuda,cpu", "cpu"), ("cpu,cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu"), ("cpu,cuda", "gpu"), ("cpu", "gpu"), ("cuda", "x")):
        yield {PLATFORMS: platforms, PLATFORM: name}


def distinct(envs):
    """Without repetitions, every value as bytes and every name in its place."""
    seen = {}
    for env in envs:
        env = {n: env[n] if isinstance(env[n], bytes) else env[n].encode() for n in NAMES if n in env}
        seen.setdefault(repr(env), env)
    return list(seen.values())


# ---------------------------------------------------------------------------
# The processes that import a release. What an answer holds is in text already,
# as it stands in the tables.

def child(table, folders):
    """Answers the environments on standard input: {who: answer} for each."""
    sys.path[:0] = folders
    envs = [{n: v.encode("latin-1") for n, v in env.items()} for env in json.load(sys.stdin)]
    out = os.fdopen(os.dup(1), "w")  # jax prints, and must not print in between
    os.dup2(2, 1)
    asked = {"bridge": ask_bridge, "platforms": ask_platforms}
    json.dump(list(ask_jaxlib(envs) if table == "options" else ask_jax(envs, asked[table])), out)
    out.close()


def set_environment(env):
    for name in NAMES:
        os.environb.pop(name.encode(), None)
    for name, value in env.items():
        if name.isupper():
            os.environb[name.encode()] = value


def outcome(call):
    """{option: value} that call returns, or "! type text" of what it raises."""
    try:
        return {k: text(v) for k, v in call().items()}
    except Exception as e:
        return "! %s %s" % (type(e).__name__, text(str(e)))


class GpuAllocatorConfig:
    """Stands in for the native class of this name, which CPU wheels lack."""

    class Kind:
        DEFAULT, PLATFORM, BFC, CUDA_ASYNC = "DEFAULT", "PLATFORM", "BFC", "CUDA_ASYNC"


def client_options(allocator_config, **_):
    """In the place of the native get_gpu_client."""
    return dict(vars(allocator_config))


def ask_jaxlib(envs):
    from jaxlib import xla_client

    asked = {}
    if hasattr(xla_client, "generate_pjrt_gpu_plugin_options"):
        asked["plugin"] = xla_client.generate_pjrt_gpu_plugin_options
    if hasattr(xla_client, "make_gpu_client"):
        if hasattr(xla_client._xla, "GpuAllocatorConfig"):
            raise SystemExit("this jaxlib has a GpuAllocatorConfig of its own")
        xla_client._xla.GpuAllocatorConfig = GpuAllocatorConfig
        xla_client._xla.get_gpu_client = client_options
        for name in ("register_custom_call_handler", "register_custom_type_id_handler"):
            setattr(xla_client, name, lambda *_: None)
        asked["client"] = xla_client.make_gpu_client
    for env in envs:
        set_environment(env)
        yield {who: outcome(call) for who, call in asked.items()}


def ask_jax(envs, ask):
    """jax reads its variables when imported, so that every environment needs a
    process. All fork from this one, which has imported what jax needs."""
    import numpy, scipy, jaxlib.xla_client, importlib.metadata  # noqa: F401, E401

    for env in envs:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(read)
                set_environment(env)
                with os.fdopen(write, "w") as f:
                    json.dump(ask(env), f)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as f:
            answer = f.read()
        os.waitpid(pid, 0)
        yield json.loads(answer)


def ignore(*_, **__):
    return None


def import_bridge():
    """xla_bridge and xla_client of the release, without a GPU's plugin to load."""
    import types

    # jax/__init__.py imports all of jax, which takes seconds and is not asked.
    jax = types.ModuleType("jax")
    jax.__path__ = [p + "/jax" for p in sys.path if os.path.isdir(p + "/jax/_src")]
    sys.modules["jax"] = jax
    from jax._src import xla_bridge as bridge
    from jax._src.lib import xla_client

    xla_client.load_pjrt_plugin_dynamically = lambda *_: object()
    xla_client.pjrt_plugin_initialized = lambda _: True
    xla_client.make_c_api_client = lambda name, options, *_: options or {}
    for module in (getattr(xla_client, "profiler", None), getattr(bridge, "_profiler", None)):
        if module:
            module.register_plugin_profiler = ignore
    return bridge, xla_client


def ask_platforms(env):
    """The platform of the default backend, and the platforms that a client was made
    for, in order, where the packages for CUDA are installed and all clients can be
    made but the TPU's."""
    import dataclasses

    bridge, _ = import_bridge()
    made = []

    class Client:
        process_index, local_devices = lambda self: 0, lambda self: [0]
        device_count, _get_all_devices = lambda self: 1, lambda self: [0]

        def __init__(self, platform):
            self.platform = platform
            made.append(platform)

    bridge.register_plugin("cuda", priority=500, library_path="/none", options={})
    for name in "discover_pjrt_plugins", "register_pjrt_plugin_factories_from_env":
        setattr(bridge, name, ignore)
    if hasattr(bridge, "hardware_utils"):
        bridge.hardware_utils.has_visible_nvidia_gpu = lambda: True
    for name in "cpu", "cuda":
        old = bridge._backend_factories[name]
        bridge._backend_factories[name] = dataclasses.replace(old, factory=lambda name=name: Client(name))
    return {"backend": outcome(lambda: {"platform": bridge.get_backend().platform, "made": ",".join(made)})}


def ask_bridge(env):
    import types

    bridge, xla_client = import_bridge()
    from jax._src import config

    def set_flags():
        for flag in (n for n in env if n.islower()):
            config.config.update(flag, os.fsdecode(env[flag]))

    def plugin(name):
        """Does what the cuda plugin's initialize() does about options."""
        set_flags()
        try:
            options = xla_client.generate_pjrt_gpu_plugin_options(bridge.CUDA_VISIBLE_DEVICES.value)
        except TypeError:  # no argument since 0.4.26
            options = xla_client.generate_pjrt_gpu_plugin_options()
        bridge.register_plugin(name, library_path="/none", options=options)
        return bridge._backend_factories[name].factory()

    def client():
        set_flags()
        bridge._check_cuda_versions = bridge._check_cuda_compute_capability = ignore
        bridge.cuda_versions = types.SimpleNamespace(cuda_device_count=lambda: 0)
        xla_client.make_gpu_client = lambda allowed_devices, **_: (
            {} if allowed_devices is None else {"allowed_devices": sorted(allowed_devices)})
        return bridge.make_gpu_client(platform_name="cuda", visible_devices_flag=bridge.CUDA_VISIBLE_DEVICES)

    answer = {}
    if hasattr(xla_client, "generate_pjrt_gpu_plugin_options"):
        for name in (p for p in VISIBLE if p == "cuda" or not env or VISIBLE[p] in env or VISIBLE_FLAG[p] in env):
            answer[name] = outcome(lambda: plugin(name))
    if hasattr(xla_client, "make_gpu_client"):
        answer["client"] = outcome(client)
    return answer


def text(v):
    """A value of an option: strings as Go writes them, all else as Python and
    Go alike read it."""
    if isinstance(v, bool):
        return str(v).lower()
    if isinstance(v, int):
        limit = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(0)
        try:
            return str(v)
        finally:
            sys.set_int_max_str_digits(limit)
    if isinstance(v, float):
        return repr(v)
    if isinstance(v, list):
        return "[" + ",".join(text(x) for x in v) + "]"
    return quote(v.encode("utf-8", "surrogateescape"))


def quote(b):
    """A string literal of Go that is all ASCII."""
    short = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    out = []
    for c in b.decode("utf-8", "surrogateescape"):
        n = ord(c)
        if c in short:
            out.append(short[c])
        elif 0x20 <= n < 0x7f:
            out.append(c)
        elif 0xdc80 <= n <= 0xdcff:  # a byte that is not UTF-8
            out.append("\\x%02x" % (n - 0xdc00))
        elif n < 0x80:
            out.append("\\x%02x" % n)
        else:
            out.append("\\u%04x" % n if n < 0x10000 else "\\U%08x" % n)
    return '"' + "".join(out) + '"'


# ---------------------------------------------------------------------------
# The driver.

OPTIONS_HEAD = """\
# What Python in jaxlib makes of environments, said by the releases themselves.
# Made by jax.py; README.md says how to read it.
# plugin: the result of xla_client.generate_pjrt_gpu_plugin_options()
# client: what xla_client.make_gpu_client() gives to the native get_gpu_client
"""

BRIDGE_HEAD = """\
# The options that jax gives to PJRT_Client_Create, said by the releases
# themselves. Made by jax.py; README.md says how to read it.
# cuda, rocm, oneapi: what the plugin of this name is created with
# client: what xla_bridge.make_gpu_client gives to xla_client.make_gpu_client
"""


PLATFORMS_HEAD = """\
# Which backend jax chooses, said by the releases themselves. Made by jax.py;
# README.md says how to read it.
# backend: the default backend's platform, and the platforms that xla_bridge made a
# client for, where the packages for CUDA are installed
"""


def table(head, envs, releases, answers):
    """The text of a table. answers[release][i] is {who: answer} to envs[i]."""
    lines = [head.rstrip()]
    for python, span in spans([(r, python_of(r)) for r in releases]):
        lines.append("# asked with Python %s: %s" % (python, " ".join(span)))
    base = {r: answers[r][0] for r in releases}
    for i, env in enumerate(envs):
        lines.append(" ".join(["", "env"] + ["%s=%s" % (n, quote(v)) for n, v in env.items()])[1:])
        whos = sorted({who for r in releases for who in answers[r][i]})
        for who in whos:
            asked = [r for r in releases if who in answers[r][i]]
            pairs = [(r, line(answers[r][i][who], base[r][who] if i else {})) for r in asked]
            for answer, span in spans(pairs):
                name = span[0] if len(span) == 1 else span[0] + ".." + span[-1]
                lines.append("  %s %s %s" % (name, who, answer))
    return "\n".join(lines) + "\n"


def line(answer, base):
    """An answer in one line: an error, or what is not as in base."""
    if isinstance(answer, str):
        return answer
    gone = [k for k in base if k not in answer]
    if gone:
        raise SystemExit("a variable took away the option " + gone[0])
    return " ".join("%s=%s" % (key(k), v) for k, v in answer.items() if base.get(k) != v) or "same"


def key(k):
    """The name of an option, as a string if it is not like a name."""
    return k if k.isascii() and k.isidentifier() else quote(k.encode("utf-8", "surrogateescape"))


def spans(pairs):
    """Groups neighbours (x, key) with one key: [(key, [x, ...])]."""
    out = []
    for x, key in pairs:
        if out and out[-1][0] == key:
            out[-1][1].append(x)
        else:
            out.append((key, [x]))
    return out


def install(python, folder, packages):
    """Puts packages into folder, unless they are there."""
    done = folder / "complete"
    if done.exists():
        return
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile",
                    "--only-binary", ":all:", "--target", str(folder), *packages], check=True)
    done.touch()


def ask(which, release, envs, pythons, folder, keep):
    """The answers of one release, from a process of its own."""
    print("asking %s of %s" % (which, release), file=sys.stderr, flush=True)
    python = pythons[python_of(release)]
    needs = needs_of(release)
    beside = folder / ("%s-%s" % (needs[0], python_of(release)))
    own = folder / ("jaxlib-" + release)
    install(python, beside, needs)
    install(python, own, ["jaxlib==" + release])
    folders = [own, beside]
    if which != "options":
        folders.insert(0, folder / ("jax-" + release))
        install(python, folders[0], ["jax==" + release])
    # -I: neither this folder, with its jax.py, nor the user's packages. -X utf8:
    # os.environ does not depend on the locale.
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("JAX_", "XLA_", "TF_"))}
    run = subprocess.run([python, "-I", "-X", "utf8", __file__, "--child", which, *map(str, folders)], env=clean, text=True,
                         input=json.dumps([{n: v.decode("latin-1") for n, v in env.items()} for env in envs]),
                         stdout=subprocess.PIPE)
    if run.returncode:
        raise SystemExit("%s of %s could not be asked" % (which, release))
    if not keep:
        for f in folders:
            if f != beside:
                shutil.rmtree(f)
    return json.loads(run.stdout)


def find_pythons(given):
    """{"3.11": path, "3.13": path}"""
    pythons = {}
    for path in given or ["python3.11", "python3.13"]:
        run = subprocess.run([path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], stdout=subprocess.PIPE, text=True)
        pythons[run.stdout.strip()] = path
    for version in ("3.11", "3.13"):
        if version not in pythons:
            raise SystemExit("no Python %s; name one with --python" % version)
    return pythons


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n")[2].removeprefix("Usage: "))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", choices=["options", "bridge", "platforms"])
    parser.add_argument("--dir")
    parser.add_argument("--python", action="append")
    parser.add_argument("releases", nargs="*")
    args = parser.parse_args()
    pythons = find_pythons(args.python)
    folder = Path(args.dir or tempfile.mkdtemp(prefix="jax-tables-"))
    same = True
    try:
        for name, head, releases, envs in (
            ("options", OPTIONS_HEAD, JAXLIB, distinct(option_environments())),
            ("bridge", BRIDGE_HEAD, JAX, distinct(bridge_environments())),
            ("platforms", PLATFORMS_HEAD, JAX, distinct([{}, *platform_environments()])),
        ):
            if args.only not in (None, name):
                continue
            releases = args.releases or releases
            answers = {r: ask(name, r, envs, pythons, folder, args.dir) for r in releases}
            got = table(head, envs, releases, answers)
            path = HERE / (name + ".txt")
            if args.releases:
                sys.stdout.write(got)
            elif not args.check:
                path.write_text(got)
            elif got != path.read_text():
                same = False
                print("%s is not what the releases say" % path.name)
            print("%s: %d environments, %d releases" % (path.name, len(envs), len(releases)), file=sys.stderr)
    finally:
        if not args.dir:
            shutil.rmtree(folder)
    return 0 if same else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
