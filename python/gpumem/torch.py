"""PyTorch on this project's pool.

Two ways:

    gpumem.torch.use()               # all of PyTorch's memory, before its first CUDA tensor

    pool = gpumem.torch.pool()       # a part of it: PyTorch's own allocator takes its
    with torch.cuda.use_mem_pool(pool):   # segments from this project's pool
        ...

use() replaces PyTorch's caching allocator (CUDAPluggableAllocator). Kept: the type
torch.OutOfMemoryError, with the reason in its text; torch.cuda.memory_stats and all that is
made from it (memory_allocated, max_memory_allocated, memory_summary), empty_cache,
reset_peak_memory_stats, Tensor.record_stream. Lost, because PyTorch has no interface for it:
memory snapshots and _record_memory_history (gpumem.record has the allocations, without
stacks), set_per_process_memory_fraction (policy="elastic:limit=20GiB" does it), CUDA graphs,
torch.compile modes that use them ("reduce-overhead", "max-autotune"), and sending CUDA
tensors to other processes (CUDA IPC). PYTORCH_ALLOC_CONF is not read.

Not tried on a GPU, for lack of one: docs/python.md says what was tried, and with what.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Optional

from . import _library

_used: Any = None  # the allocator, which PyTorch does not keep alive
_pools: list[Any] = []


def _torch() -> Any:
    import torch

    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise RuntimeError(f"PyTorch {torch.__version__} is built without CUDA, or is older than 2.0: it has no pluggable allocator")
    return torch


def use(policy: Optional[str] = None, *, gpu: Optional[int] = None) -> None:
    """Makes this project's pool PyTorch's allocator, before its first CUDA tensor.

    policy: as for gpumem replay, such as "elastic:limit=20GiB"; gpu: the GPU that it is for,
    all if None. RuntimeError if PyTorch has used CUDA memory already.
    """
    global _used
    if _used is not None:
        return
    torch = _torch()
    if torch.cuda.is_initialized():
        raise RuntimeError("gpumem.torch.use() comes before the first use of CUDA in the program, and PyTorch has used it: call it right after import torch")
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if os.environ.get(name):
            import warnings

            warnings.warn(f"{name} is not read under gpumem.torch.use(): the pool is not PyTorch's", stacklevel=2)
    _library.configure_gpus(gpu, policy)
    lib = _library.library()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(_library.path(), "gpumem_torch_alloc", "gpumem_torch_free")
    inner = allocator.allocator()
    # Older releases lack these; without the first, memory that is used in a second stream
    # and freed in its own could be used again too early, so it is asked for.
    if not hasattr(inner, "set_record_stream_fn"):
        raise RuntimeError(f"PyTorch {torch.__version__} does not tell a pluggable allocator of Tensor.record_stream: it would not be safe")
    inner.set_record_stream_fn(_address(lib.gpumem_torch_record_stream))
    if hasattr(inner, "set_reset_fn"):
        inner.set_reset_fn(_address(lib.gpumem_torch_empty_cache))
    torch.cuda.memory.change_current_allocator(allocator)
    torch._C._cuda_memoryStats = memory_stats
    torch._C._cuda_resetPeakMemoryStats = _library.reset_peaks
    torch._C._cuda_resetAccumulatedMemoryStats = lambda device: None
    _used = allocator


def pool(policy: Optional[str] = None, *, gpu: Optional[int] = None) -> Any:
    """Returns a torch.cuda.MemPool whose memory is from this project's pool.

    Statistics, snapshots and torch.OutOfMemoryError are PyTorch's own. policy and gpu are as
    for use, before the first use of this project's pool.
    """
    torch = _torch()
    _library.configure_gpus(gpu, policy)
    _library.library()  # for stats and report; PyTorch opens the same file
    allocator = torch.cuda.memory.CUDAPluggableAllocator(_library.path(), "gpumem_torch_pool_alloc", "gpumem_torch_free")
    _pools.append(allocator)
    return torch.cuda.MemPool(allocator.allocator())


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def memory_stats(device: int = 0) -> dict[str, Any]:
    """Returns the statistics of a GPU's shared pool as PyTorch names them.

    What this project's pool has no counterpart of (small and large pools, segments, splits)
    is 0.
    """
    s = _library.stats(device)

    def kinds(current: int = 0, peak: int = 0, allocated: int = 0) -> dict[str, Any]:
        none = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
        every = {"current": current, "peak": peak, "allocated": allocated, "freed": allocated - current}
        return {"all": every, "small_pool": dict(none), "large_pool": dict(none)}

    live = kinds(s.live, s.live, s.allocs)
    live_bytes = kinds(s.bytes_in_use, s.peak_bytes_in_use, s.allocated_bytes)
    return {
        "allocation": live,
        "active": live,
        "allocated_bytes": live_bytes,
        "active_bytes": live_bytes,
        "requested_bytes": live_bytes,
        "reserved_bytes": kinds(s.pool_bytes, s.peak_pool_bytes, s.peak_pool_bytes),
        "segment": kinds(),
        "inactive_split": kinds(),
        "inactive_split_bytes": kinds(),
        "oversize_allocations": kinds()["all"],
        "oversize_segments": kinds()["all"],
        "num_alloc_retries": 0,
        "num_ooms": s.refused,
        "num_sync_all_streams": 0,
        "num_device_alloc": s.driver_calls,
        "num_device_free": 0,
        "max_split_size": -1,
    }
