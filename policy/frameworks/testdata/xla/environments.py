"""Asks whole JAX releases what becomes of random environments: remakes environments.txt.

  python3 environments.py --dir DIR [--seed N] [--count N] [--out FILE] [--workers N] [RELEASE=PYTHON...]

Needs Linux on x86-64 and gcc; no GPU. RELEASE=PYTHON is a Python that has jax, jaxlib,
jax-cuda12-pjrt and jax-cuda12-plugin of that release. Everything is real and unchanged but the
driver, the CUDA runtime and NVML (libcuda.c) and the check that /dev/nvidia0 is there; the check
of the CUDA libraries' versions is switched off with JAX's own variable for that.

An environment comes from a grammar over the variables that have to do with GPU memory, with
XLA's flags, JAX's platforms and the host's memory, and values of which many are malformed.
Each is given to a fresh process: import jax, list the devices, put two arrays on the first.
What was already asked is kept in DIR and not asked again.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent

GB80, GB24, GB8, ODD = 85045542912, 25430786048, 8361279488, 12884901889
DEVICES = [(GB8, GB8), (GB8, GB8), (ODD, ODD), (GB24, GB24), (GB80, GB80), (GB8, 5000000000), (ODD, 2000000000)]
MEMORY_FLAGS = ["xla_gpu_enable_allocator_spatial_partitioning", "xla_gpu_experimental_vmm_disabled"]


def flags(r):
    """A value of XLA_FLAGS."""
    def flag():
        name = r.choice(MEMORY_FLAGS + ["xla_gpu_autotune_level", "xla_dump_to", "xla_gpu_enable_triton_gemm", "xla_disable_hlo_passes",
                                        "xla_gpu_command_buffer_update_mode", "xla_force_host_platform_device_count",
                                        "xla_gpu_memory_limit_slop_factor", "xla_gpu_deterministic_ops",
                                        "xla_gpu_enable_async_collectives", "xla_gpu_graph_level", "xla_gpu_autotune_gemm_rtol",
                                        "xla_gpu_enable_highest_priority_async_stream", "xla_gpu_redzone_padding_bytes", "xla_gpu_memory_limit"])
        value = r.choice(["true", "false", "1", "0", "2", "4", "90", "ALWAYS_UPDATE", "SKIP_TEMP", "NEVER_UPDATE", "/tmp/x", "rematerialization", "yes",
                          "True", "", "1.5", "-1", "99999999999", " 3", "0x1", "no", "on"])
        dashes = r.choice(["--"] * 12 + ["-", "", "---"])
        between = r.choice(["="] * 12 + [" ", "", "= ", ":"])
        quote = r.choice([""] * 10 + ["'", '"'])
        return dashes + name + (between + quote + value + quote if between else "")

    text = r.choice([" "] * 6 + ["  ", "\n", ",", ";"]).join(flag() for _ in range(r.choice([1, 1, 1, 2, 2, 3])))
    return r.choice([text] * 14 + ['"%s"' % text, "'%s'" % text, "files/good.flags", "files/bad.flags", "files/comment.flags", "files/none.flags",
                                   " " + text, " ", "-", "--", text + " --", "# " + text, text + " # why"])


VALUES = {
    "XLA_CLIENT_MEM_FRACTION": [".5", ".9", "0.75", "1", "1.0", "1.5", "0.1", ".002", "75", "50%", "0", "-1", "nan", "inf", "abc", "", " .5 ", "1e-1", "0,5"],
    "XLA_PYTHON_CLIENT_MEM_FRACTION": [".5", ".9", ".25", "2", "90%", "0", "x", ""],
    "XLA_PYTHON_CLIENT_PREALLOCATE": ["false", "False", "0", "true", "1", "no", "off", "FALSE", "", "f"],
    "XLA_PYTHON_CLIENT_ALLOCATOR": ["default", "bfc", "BFC", "platform", "cuda_async", "vmm", "address", "cuda_malloc_async", "", "Platform", "bfc "],
    "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB": ["0", "100", "64", "-1", "1.5", "x", ""],
    "XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT": ["0", "1", "true", ""],
    "XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE": ["0", "1", "yes", ""],
    "JAX_PJRT_CLIENT_CREATE_OPTIONS": ["allocator:cuda_async", "allocator:bfc", "memory_fraction:.5", "memory_fraction_policy:0.5", "memory_fraction_policy:0.001+",
                                       "memory_fraction_policy:0.9-0.5", "a:b", "a", "", "allocator:platform;platform_name:cuda", "preallocate:false"],
    "TF_PER_DEVICE_MEMORY_LIMIT_MB": ["100", "1024", "0", "-5", "x", "", "1.5", " 512 "],
    "TF_FORCE_UNIFIED_MEMORY": ["1", "true", "0", "false", "yes", "", "TRUE"],
    "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC": ["-1", "0", "1000000000", "many", "", "1e9"],
    "TF_GPU_ALLOCATOR": ["cuda_malloc_async"],
    "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB": ["0", "1", "64", "16", "", "x", "1.5", "-1", " 2 ", "+4", "0x10", "8GB", "4294967296", "17179869184", "1000000"],
    "XLA_PJRT_GPU_HOST_MEMORY_PREALLOCATE": ["true", "false", "1", "0", "yes", "", "True", "t", " true", "no", "on"],
    "JAX_PLATFORMS": ["cpu", "cuda", "cpu,cuda", "cuda,cpu", "CUDA", "CPU", "gpu", "tpu", "rocm", "", "cuda, cpu", " cuda", "cuda,", "cpu,tpu", "metal", "cuda,cuda", "cuda:0", "proxy"],
    "JAX_PLATFORM_NAME": ["cpu", "CPU", "gpu", "cuda", "CUDA", "tpu", "rocm", "", " cpu", "cpu,cuda", "x"],
    "JAX_COMPILER_ENABLE_REMAT_PASS": ["0", "1", "false", "maybe", ""],
}
WEIGHTS = {"XLA_FLAGS": 6, "JAX_PLATFORMS": 3, "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB": 3, "XLA_PJRT_GPU_HOST_MEMORY_PREALLOCATE": 2, "JAX_PLATFORM_NAME": 2}


def environments(seed, count):
    """Yields (total, free, 1 where the device has virtual memory, environment)."""
    r = random.Random(seed)
    names = sorted(VALUES) + ["XLA_FLAGS"]
    while count:
        total, free = r.choice(DEVICES)
        env = {}
        for _ in range(r.choice([1, 1, 1, 2, 2, 3, 4])):
            name = r.choices(names, [WEIGHTS.get(n, 1) for n in names])[0]
            env[name] = flags(r) if name == "XLA_FLAGS" else r.choice(VALUES[name])
        yield total, free, 0 if r.random() < .08 else 1, env
        count -= 1


# ---------------------------------------------------------------- in a process of its own

def ask(answer):
    out = open(answer, "w", buffering=1)
    marks = open(os.environ["STANDIN_LOG"], "a", buffering=1)

    def say(step, **what):
        out.write(json.dumps(dict(what, step=step)) + "\n")

    try:
        import jax
        import numpy as np
        from jax._src import hardware_utils
        hardware_utils.has_visible_nvidia_gpu = lambda: True
        say("import")
        marks.write("# create\n")
        d = jax.devices()[0]
        say("create", platform=d.platform, stats=d.memory_stats())
        for size in 1024, 10000000:
            marks.write("# put\n")
            x = jax.device_put(np.zeros(size, np.uint8), d)
            x.block_until_ready()
            say("put", stats=d.memory_stats())
    except BaseException as e:
        say("error", type=type(e).__name__, text=str(e))
    os._exit(0)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dir", type=pathlib.Path, required=True)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--count", type=int, default=300)
    p.add_argument("--out", type=pathlib.Path, default=HERE / "environments.txt")
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("pythons", nargs="+", metavar="RELEASE=PYTHON")
    args = p.parse_args()
    import tables
    import xla
    lib = args.dir.resolve() / "lib"
    lib.mkdir(parents=True, exist_ok=True)
    subprocess.check_call(["gcc", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-o", str(lib / "libcuda.so.1"), str(HERE / "libcuda.c"), "-lpthread"])
    for name in "libnvidia-ml.so.1", "libcudart.so.12":
        (lib / name).write_bytes((lib / "libcuda.so.1").read_bytes())
    pythons = dict(x.split("=", 1) for x in args.pythons)
    asked = list(environments(args.seed, args.count))

    def one(release, question):
        total, free, vmm, env = question
        key = hashlib.sha1(json.dumps([release, total, free, vmm, sorted(env.items())]).encode()).hexdigest()[:16]
        kept = args.dir / (key + ".json")
        if kept.exists():
            return json.loads(kept.read_text())
        calls, answer = args.dir / (key + ".calls"), args.dir / (key + ".answer")
        calls.write_text("")
        answer.write_text("")
        full = xla.clean_env()
        full.update(env, LD_LIBRARY_PATH=str(lib), JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1", PYTHONDONTWRITEBYTECODE="1",
                    STANDIN_TOTAL=str(total), STANDIN_FREE=str(free), STANDIN_VMM=str(vmm), STANDIN_LOG=str(calls))
        try:
            done = subprocess.run([pythons[release], str(HERE / "environments.py"), "--ask", str(answer)], env=full, cwd=HERE,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120)
            code, log = done.returncode, done.stderr
        except subprocess.TimeoutExpired as e:
            code, log = "timeout", e.stderr or b""
        raw = {"code": code, "log": log.decode(errors="replace"), "calls": calls.read_text(),
               "steps": [json.loads(line) for line in answer.read_text().splitlines()]}
        calls.unlink()
        answer.unlink()
        kept.write_text(json.dumps(raw))
        return raw

    lines = []
    with concurrent.futures.ThreadPoolExecutor(args.workers) as threads:
        answers = list(threads.map(lambda rq: one(*rq), [(r, q) for q in asked for r in pythons]))
    for i, (total, free, vmm, env) in enumerate(asked):
        lines.append("env %d %d %d %s" % (total, free, vmm, " ".join("%s=%s" % (k, json.dumps(v)) for k, v in env.items())))
        said = [tables.environment_answer(a) for a in answers[i * len(pythons):(i + 1) * len(pythons)]]
        lines += ["  %s %s %s" % tuple(run) for run in tables.runs(list(pythons), said)]
    args.out.write_text(tables.ENVIRONMENTS_HEAD % (args.seed, " ".join(pythons)) + "".join(line + "\n" for line in lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        ask(sys.argv[2])
    else:
        main()
