"""Takes blocks of GPU memory until the framework refuses one, and ends with its error.

    python fill.py jax|torch|cupy MIB [FRACTION]

MIB is the size of a block, FRACTION what torch.cuda.set_per_process_memory_fraction is given. The
program waits before it uses the GPU. Its last answer has what it asked for and what it had.
"""

import sys

import talk

framework, size = sys.argv[1], int(sys.argv[2]) << 20
fraction = float(sys.argv[3]) if len(sys.argv) > 3 else None
blocks = []

if framework == "jax":
    import jax
    import jax.numpy as jnp

    def take():
        blocks.append(jnp.zeros(size // 4, jnp.float32).block_until_ready())

    def memory():
        gpu = jax.devices()[0]
        assert gpu.platform == "gpu", gpu
        stats = gpu.memory_stats() or {}
        return dict(in_use=stats.get("bytes_in_use", 0), pool=stats.get("pool_bytes", 0), limit=stats.get("bytes_limit", 0))

elif framework == "torch":
    import torch

    def take():
        blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))

    def memory():
        free, total = torch.cuda.mem_get_info()
        limit = int(total * fraction) if fraction else 0
        return dict(in_use=torch.cuda.memory_allocated(), pool=torch.cuda.memory_reserved(), limit=limit, free=free, total=total)

else:
    import cupy

    def take():
        blocks.append(cupy.empty(size, cupy.uint8))

    def memory():
        pool = cupy.get_default_memory_pool()
        free, total = cupy.cuda.runtime.memGetInfo()
        return dict(in_use=pool.used_bytes(), pool=pool.total_bytes(), limit=pool.get_limit(), free=free, total=total)


talk.answer(stage="ready")
talk.wait()
if fraction:
    torch.cuda.set_per_process_memory_fraction(fraction)
try:
    while True:
        take()
except Exception as e:
    talk.answer(stage="refused", error=f"{type(e).__module__}.{type(e).__name__}", text=str(e), requested=size, held=size * len(blocks), **memory())
    talk.wait()
    raise
