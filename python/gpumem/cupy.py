"""CuPy on this project's pool.

    gpumem.cupy.use()

A block is freed in the order of the stream that was current when it was made, as in CuPy's
own pool. A refusal is cupy.cuda.memory.OutOfMemoryError with the reason in its text.
Memory that CuPy made before is untouched.

Not tried on a GPU, for lack of one: docs/python.md says what was tried, and with what.
"""

from __future__ import annotations

from typing import Any, Optional

from . import _library, _wants


class _Block:
    """Memory under a CuPy array, freed when the last array on it is gone."""

    __slots__ = ("address", "gpu", "stream", "_free")

    def __init__(self, size: int, gpu: int, stream: int):
        self.address = _library.alloc(gpu, size, stream)
        self.gpu, self.stream = gpu, stream
        self._free = _library.library().gpumem_free  # the module may be gone at the end of the program

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            self._free(self.gpu, self.address, self.stream)


def allocator(size: int) -> Any:
    """Allocates for CuPy: a function for cupy.cuda.set_allocator."""
    if _wants.number("size", size):
        raise TypeError(_wants.number("size", size))
    import cupy

    gpu = cupy.cuda.device.get_device_id()
    try:
        block = _Block(size, gpu, cupy.cuda.get_current_stream().ptr)
    except _library.OutOfMemoryError as e:
        s = _library.stats(gpu)
        raise _error(cupy)(size, s.pool_bytes, s.total, str(e)) from None
    memory = cupy.cuda.UnownedMemory(block.address, size, block, gpu)
    return cupy.cuda.MemoryPointer(memory, 0)


_errors: dict[str, Any] = {}


def _error(cupy: Any) -> Any:
    """Returns the subclass of CuPy's error that has the reason."""
    if not _errors:

        class OutOfMemoryError(cupy.cuda.memory.OutOfMemoryError):
            def __init__(self, size: int, total: int, limit: int, why: str):
                super().__init__(size, total, limit)
                self._why = why

            def __str__(self) -> str:
                return f"{super().__str__()}\n{self._why}"

        OutOfMemoryError.__qualname__ = "OutOfMemoryError"
        _errors["it"] = OutOfMemoryError
    return _errors["it"]


def use(policy: Optional[str] = None, *, gpu: Optional[int] = None) -> None:
    """Makes this project's pool CuPy's allocator, for all arrays that are made from now on.

    policy: as for gpumem replay, such as "elastic:limit=20GiB", before the first use of the
    pool; gpu: the GPU that it is for, all if None.
    """
    wrong = _wants.policy(policy) or _wants.gpu(gpu, all_of_them=True)
    if wrong:
        raise TypeError(wrong)
    import cupy

    _library.configure_gpus(gpu, policy)
    _library.library()
    _library.serve()
    cupy.cuda.set_allocator(allocator)
