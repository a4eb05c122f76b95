"""Prints what a framework's program holds of GPU 0 outside of its pool, as it goes on: a line of JSON
for each part, with the bytes that it added.

    python outside.py FRAMEWORK USED

FRAMEWORK is torch, jax or cupy. USED is what other programs hold, in bytes. Nothing else may take or
give back memory meanwhile.
"""

import ctypes
import json
import os
import sys
import tempfile

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
driver = ctypes.CDLL("libcuda.so.1")


def ask(name, *arguments):
    code = getattr(driver, name)(*arguments)
    if code:
        raise RuntimeError("%s: error %d" % (name, code))


def used():
    """What is in use on GPU 0, with the context of this program."""
    ask("cuCtxSetCurrent", context)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ask("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return total.value - free.value


def torch_parts():
    import torch

    yield "import", lambda: 0
    pool = lambda: torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0
    x = torch.ones(1024, 1024, device="cuda")
    for f in (torch.add, torch.mul):
        f(x, x).sum()
    torch.softmax(torch.nn.functional.gelu(x), -1)
    torch.cuda.synchronize()
    yield "kernels", pool
    x @ x
    torch.cuda.synchronize()
    yield "cuBLAS", pool
    layer = torch.nn.Conv2d(64, 64, 3).cuda()
    layer(torch.ones(8, 64, 64, 64, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    yield "cuDNN", pool
    graph, y = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph):
        y = x @ x + x
    graph.replay()
    torch.cuda.synchronize()
    yield "graph", pool
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("nccl", init_method="file://" + os.path.join(folder, "store"), world_size=1, rank=0)
        torch.distributed.all_reduce(x)
        torch.cuda.synchronize()
        yield "NCCL-one-rank", pool
        torch.distributed.destroy_process_group()


def jax_parts():
    import jax
    import jax.numpy as jnp

    yield "import", lambda: 0
    device = jax.devices()[0]
    pool = lambda: device.memory_stats()["pool_bytes"]
    x = jax.block_until_ready(jax.jit(lambda: jnp.ones((4096, 4096)))())
    jax.block_until_ready(jax.jit(lambda x: jax.nn.softmax(jax.nn.gelu(x)).sum())(x))
    yield "kernels", pool
    jax.block_until_ready(jax.jit(lambda x: x @ x)(x))
    yield "cuBLAS", pool
    convolve = lambda w, x: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME").sum()
    jax.block_until_ready(jax.jit(jax.grad(convolve))(jnp.ones((64, 64, 3, 3)), jnp.ones((8, 64, 64, 64))))
    yield "cuDNN", pool


def cupy_parts():
    import cupy

    yield "import", lambda: 0
    pool = cupy.get_default_memory_pool().total_bytes
    x = cupy.ones((1024, 1024), cupy.float32)
    cupy.exp(x + x).sum()
    cupy.cuda.Device().synchronize()
    yield "kernels", pool
    x @ x
    cupy.cuda.Device().synchronize()
    yield "cuBLAS", pool


def say(part, now):
    global last
    print(json.dumps({"part": part, "bytes": now - last}), flush=True)
    last = now


context, last = ctypes.c_void_p(), int(sys.argv[2])
ask("cuInit", 0)
ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
say("context", used())
for part, pool in {"torch": torch_parts, "jax": jax_parts, "cupy": cupy_parts}[sys.argv[1]]():
    say(part, used() - pool())
