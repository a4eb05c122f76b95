"""Compiles and runs training steps in JAX, and prints a line of JSON for each: the temporaries by
XLA's own statistics, the sums of the results of two runs, and what a step takes.

    python remat.py SCALE FOLDER [HOST COMMAND]

SCALE makes the batches larger, and with 1 a program that compiles for long is left out. What XLA
measures of kernels is in FOLDER, so that all runs with one FOLDER have the same; with
$GPU_CHECK_FIXED_KERNELS it measures none. With HOST there is one program, which is compiled from
the text of a plan that the COMMAND gpumem makes for a half of its temporaries, with a link to the
host of HOST bytes a second, such as 50e9; with "off" as it is.
"""

import hashlib
import json
import os
import subprocess
import sys
import time

scale, folder, host = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_per_fusion_autotune_cache_dir=" + os.path.join(folder, "kernels")
if os.environ.get("GPU_CHECK_FIXED_KERNELS"):
    os.environ["XLA_FLAGS"] += " --xla_gpu_autotune_level=0"

import jax
import jax.numpy as jnp
import numpy as np


def array(seed, *dims):
    return jnp.asarray(np.random.RandomState(seed).randn(*dims).astype("f") * 0.05)


def sgd(loss):
    def step(p, x):
        value, g = jax.value_and_grad(loss)(p, x)
        return jax.tree.map(lambda a, b: a - 1e-3 * b, p, g), value

    return jax.jit(step)


def dense(p, x):
    """Layers whose products take longer than copies of their results to the host."""
    for w in p:
        x = jnp.tanh(x @ w) * 2 + 1
    return (x * x).mean()


def chains(p, x):
    """Layers with many elementwise operations after each product."""
    for w in p:
        x = x @ w
        x = jnp.tanh(jax.nn.gelu(x) * jax.nn.sigmoid(x) + jnp.sin(x)) * 2 + x
    return (x * x).mean()


def norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def blocks(p, x, heads=8):
    for w in p:
        b, t, d = x.shape
        q, k, v = (norm(x) @ w["qkv"]).reshape(b, t, 3, heads, d // heads).transpose(2, 0, 3, 1, 4)
        s = jax.nn.softmax(q @ k.swapaxes(-1, -2) / (d // heads) ** 0.5)
        x = x + (s @ v).transpose(0, 2, 1, 3).reshape(b, t, d) @ w["out"]
        x = x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]
    return (x * x).mean()


def layer(seed, d):
    return {"qkv": array(seed, d, 3 * d), "out": array(seed + 1, d, d), "up": array(seed + 2, d, 4 * d), "down": array(seed + 3, 4 * d, d)}


def programs(scale, host):
    if host:
        yield "dense", sgd(dense), [array(k, 2048, 2048) for k in range(10)], array(50, 8192, 2048)
        return
    yield "mlp", sgd(chains), [array(k, 1024, 1024) for k in range(8)], array(50, 2048 * scale, 1024)
    if scale > 1:
        yield "transformer", sgd(blocks), [layer(10 * k, 512) for k in range(2)], array(7, 4 * scale, 256, 512)


def sums(results):
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(results))).hexdigest()


def measure(name, f, *arguments):
    begin = time.monotonic()
    c = f.lower(*arguments).compile()
    said = {"name": name, "compiling_seconds": time.monotonic() - begin}
    statistics = c.memory_analysis()
    said.update(temp=statistics.temp_size_in_bytes, host_temp=statistics.host_temp_size_in_bytes, copies=c.as_text().count(" copy-start("))
    said["sums"] = [sums(c(*arguments)) for _ in range(2)]
    took = []
    for _ in range(20):
        begin = time.monotonic()
        jax.block_until_ready(c(*arguments))
        took.append(time.monotonic() - begin)
    said["step_seconds"] = sorted(took)[len(took) // 2]
    return said


def link(megabytes=256):
    """The bytes a second of copies to the host's pinned memory; 0 where JAX has no such copies."""
    x = jax.block_until_ready(jnp.ones((megabytes << 18,), jnp.float32))
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    took = []
    for _ in range(4):
        begin = time.monotonic()
        try:
            jax.block_until_ready(jax.device_put(x, host))
        except jax.errors.JaxRuntimeError as error:
            print(error, file=sys.stderr)
            return 0
        took.append(time.monotonic() - begin)
    return x.nbytes / min(took)


def from_text(host, command, planned):
    """Has XLA compile from the text of a plan. What gpumem says of it is put into planned."""
    from jax.extend import xla
    from jaxlib import _hlo

    def plan(module):
        before, after = os.path.join(folder, "step.txt"), os.path.join(folder, "planned.txt")
        with open(before, "w") as f:
            f.write(_hlo.HloModule.from_serialized_hlo_module_proto(module).to_string())
        words = ["remat", before, "--algorithm", "gap", "--packed", "--limit", "50%", "--time", "0", "--advice=false", "--host-bytes-per-second", host, "--json", "--out", after]
        answer = subprocess.run([command, *words], capture_output=True, text=True)
        if answer.returncode > 1:
            raise RuntimeError("gpumem remat: " + answer.stderr)
        planned.update(json.loads(answer.stdout))
        with open(after) as f:
            return _hlo.hlo_module_from_text(f.read()).as_serialized_hlo_module_proto()

    # The functions that make the arguments have been compiled by now.
    xla.register_hlo_module_transformation(plan, name="from-text", stage=xla.PipelineStage.POST_SCHEDULER)


def main():
    for program in programs(scale, host):
        jax.block_until_ready(program[2:])
        planned = {}
        if host and host[0] != "off":
            from_text(*host, planned)
        said = measure(*program)
        if host:
            said["planned"] = planned
            if not planned:
                said["host_bytes_per_second"] = link()
        print(json.dumps(said), flush=True)


main()
