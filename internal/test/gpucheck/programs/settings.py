"""What a framework takes with its first operation, under the environment that it is started in.

    python settings.py jax|torch|context

The program waits before it uses the GPU, and again with what it took. context makes a context of
the driver's and no more.
"""

import ctypes
import sys

import talk


def wait_to_begin(version=""):
    talk.answer(stage="ready", version=version)
    talk.wait()


if sys.argv[1] == "jax":
    import jax
    import numpy as np

    wait_to_begin(jax.__version__)
    gpu = jax.devices()[0]
    assert gpu.platform == "gpu", gpu
    block = jax.device_put(np.ones(1 << 18, np.float32)).block_until_ready()
    stats = gpu.memory_stats() or {}  # platform and vmm keep none
    # JAX does not name its allocator: bfc alone has a pool, and cuda_async figures without one.
    allocator = "bfc" if "pool_bytes" in stats else "cuda_async" if stats else "without figures"
    talk.answer(stage="taken", allocator=allocator, stats=stats, limit=stats.get("bytes_limit"), pool=stats.get("pool_bytes"), in_use=stats.get("bytes_in_use", block.nbytes))
    talk.wait()
elif sys.argv[1] == "torch":
    import torch

    wait_to_begin(torch.__version__.partition("+")[0])
    block = torch.ones(1 << 17, device="cuda")
    torch.cuda.synchronize()
    # The driver's pool is not PyTorch's.
    pool = torch.cuda.memory_reserved() if torch.cuda.get_allocator_backend() == "native" else None
    talk.answer(stage="taken", allocator=torch.cuda.get_allocator_backend(), pool=pool, in_use=torch.cuda.memory_allocated())
    limit = int(talk.wait() or 0)
    if limit:
        # All that is left in whole pages, and then a second block of small ones.
        page, fill, refused = 2 << 20, [], []
        for n in ((limit - torch.cuda.memory_reserved()) // page * page, 1 << 20, 1 << 20, 1 << 20):
            try:
                fill.append(torch.empty(n, dtype=torch.uint8, device="cuda"))
                refused.append(False)
            except torch.OutOfMemoryError:
                refused.append(True)
        talk.answer(stage="filled", within=not refused[0], beyond=not any(refused[1:]))
        talk.wait()
else:
    wait_to_begin()
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    for code in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)):
        assert code == 0, code
    talk.answer(stage="taken")
    talk.wait()
