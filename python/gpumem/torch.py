"""PyTorch: what it holds, and PyTorch on this project's pool.

    print(gpumem.torch.live())       # what lives: by line where a history is recorded, else by purpose
    gpumem.torch.stats()["cuda:0"].peak_allocated_bytes
    gpumem.torch.LightningCallback(), gpumem.torch.TrainerCallback()   # the peak, in the program's log

The pool, in two ways:

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
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from . import _library, _wants
from ._answer import Answer
from ._live import Live as Live
from ._size import size

Path = Union[str, "os.PathLike[str]"]

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
    wrong = _wants.policy(policy) or _wants.gpu(gpu, all_of_them=True)
    if wrong:
        raise TypeError(wrong)
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
    _library.serve()


def pool(policy: Optional[str] = None, *, gpu: Optional[int] = None) -> Any:
    """Returns a torch.cuda.MemPool whose memory is from this project's pool.

    Statistics, snapshots and torch.OutOfMemoryError are PyTorch's own, and so is what gpumem.record and
    gpumem.watch have of it; framework="gpumem" is this project's pool. policy and gpu are as
    for use, before the first use of this project's pool.
    """
    wrong = _wants.policy(policy) or _wants.gpu(gpu, all_of_them=True)
    if wrong:
        raise TypeError(wrong)
    torch = _torch()
    _library.configure_gpus(gpu, policy)
    _library.library()  # for stats and report; PyTorch opens the same file
    allocator = torch.cuda.memory.CUDAPluggableAllocator(_library.path(), "gpumem_torch_pool_alloc", "gpumem_torch_free")
    _pools.append(allocator)
    _library.serve_segments()
    return torch.cuda.MemPool(allocator.allocator())


def is_used() -> bool:
    """Reports whether use() has been called."""
    return _used is not None


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


# What PyTorch holds, whether or not the memory is of this project's pool.


class Stats(NamedTuple):
    """PyTorch's figures of a GPU, by PyTorch's names. Sizes are in bytes; peaks are since the start of
    the program, or since torch.cuda.reset_peak_memory_stats()."""

    allocated_bytes: int  #: in live tensors, rounded as PyTorch rounds them
    peak_allocated_bytes: int
    active_bytes: int  #: allocated, or freed and waiting for a stream
    peak_active_bytes: int
    reserved_bytes: int  #: held from the device
    peak_reserved_bytes: int
    requested_bytes: int  #: in live tensors, not rounded
    peak_requested_bytes: int
    num_alloc_retries: int  #: how often the cache was emptied for a request
    num_ooms: int


def stats() -> Dict[str, Stats]:
    """Returns the statistics of each GPU that this process may use, by its name, such as "cuda:0";
    nothing where PyTorch has not begun to use CUDA, which asking would begin."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    found = {}
    for device in range(torch.cuda.device_count()):
        s = torch.cuda.memory_stats_as_nested_dict(device)
        figures = {"num_alloc_retries": s.get("num_alloc_retries", 0), "num_ooms": s.get("num_ooms", 0)}
        for name in ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes"):
            kind = s.get(name, {}).get("all", {})
            figures.update({name: kind.get("current", 0), "peak_" + name: kind.get("peak", 0)})
        found[f"cuda:{device}"] = Stats(**figures)
    return found


def live() -> Live:
    """Returns what lives in PyTorch's memory, the largest first.

    The answer has live, a list with pool (the GPU), site, stack, bytes and blocks. site is the line
    of the program where PyTorch records its history (gpumem.record, or
    torch.cuda.memory._record_memory_history); of other blocks what they are for (parameters,
    gradients, buffers, an optimizer's state, kept for the backward pass), or else the container that
    keeps them, or else their type. Bytes are those of the tensors, before PyTorch rounds them.
    """
    from . import _held, _history

    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return Live(live=[], of="tensors")
    with _held.Program(torch) as program:
        labels, sizes = program.label(), program.sizes
    snapshot = _history.snapshot(torch)
    if snapshot is None:  # a pluggable allocator: of what Python does not see nothing is known
        blocks = [_history.Block(device, address, n, []) for (device, address), n in sizes.items()]
    else:
        blocks = _history.live(snapshot["segments"])
    rows = _history.rows(blocks, lambda b: labels.get((b.device, b.address), "no tensor of Python, such as a workspace"))
    return Live(live=[Answer(row) for row in rows], of="tensors")


class Program(NamedTuple):
    """Memory that PyTorch keeps apart for CUDA graphs, or for a torch.cuda.MemPool."""

    device: str
    pool: Tuple[int, int]  #: PyTorch's number of it, as in a snapshot's segment_pool_id
    reserved_bytes: int
    allocated_bytes: int

    def __repr__(self) -> str:
        return f"private pool {self.pool} on {self.device}: {size(self.reserved_bytes)} reserved, {size(self.allocated_bytes)} allocated"


class Programs(List[Program]):
    """What programs() returns; print says what is not known, too."""

    def __repr__(self) -> str:
        lines = [repr(p) for p in self] or ["no memory is kept apart for CUDA graphs or a MemPool"]
        return "\n".join([*lines, "PyTorch does not say what a function of torch.compile takes; gpumem.watch() shows what a call of it does"])


def programs() -> Programs:
    """Returns the memory that is kept apart for CUDA graphs (torch.compile's mode "reduce-overhead"
    has some, too) and MemPools, the largest first. Unlike JAX, PyTorch does not know the memory of a
    compiled function."""
    from . import _history

    torch = sys.modules.get("torch")
    snapshot = _history.snapshot(torch) if torch is not None and torch.cuda.is_initialized() else None
    found: Dict[Tuple[int, Tuple[int, int]], List[int]] = {}
    for s in (snapshot or {}).get("segments", ()):
        pool = tuple(s.get("segment_pool_id", (0, 0)))
        if pool != (0, 0):
            sums = found.setdefault((s["device"], pool), [0, 0])
            sums[0] += s["total_size"]
            sums[1] += s["allocated_size"]
    pools = (Program(f"cuda:{device}", pool, reserved, allocated) for (device, pool), (reserved, allocated) in found.items())
    return Programs(sorted(pools, key=lambda p: -p.reserved_bytes))


class LightningCallback:
    """A callback for Lightning's Trainer (lightning or pytorch_lightning) that logs what the peak is made
    of and what grows, with the metrics that the program logs anyway.

    >>> lightning.Trainer(callbacks=[gpumem.torch.LightningCallback()])

    Metrics are named gpumem/peak_bytes and so on: docs/python-pytorch.md has the list. history: a file
    to which PyTorch's history of the training is recorded, for gpumem replay and gpumem leaks. The
    callback changes nothing of the training and never raises into it.
    """

    def __new__(cls, *, history: Optional[Path] = None) -> Any:
        from . import _callbacks

        wrong = "" if history is None else _wants.path("history=", history)
        if wrong:
            raise TypeError(wrong)
        _callbacks.check(history)
        return _callbacks.lightning(history)


class TrainerCallback:
    """A callback for the Trainer of transformers, which adds to each entry of its log what the peak is
    made of and what grows.

    >>> transformers.Trainer(model, callbacks=[gpumem.torch.TrainerCallback()], ...)

    As LightningCallback in all else.
    """

    def __new__(cls, *, history: Optional[Path] = None) -> Any:
        from . import _callbacks

        wrong = "" if history is None else _wants.path("history=", history)
        if wrong:
            raise TypeError(wrong)
        _callbacks.check(history)
        return _callbacks.transformers(history)
