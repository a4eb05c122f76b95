"""RMM (cuDF and the rest of RAPIDS) on this project's pool.

    rmm.mr.set_current_device_resource(gpumem.rmm.resource())

RMM calls a Python function for each block, which costs some microseconds. A refusal is
MemoryError, as RMM has it, with the reason in its text.

Not tried on a GPU, for lack of one: docs/python.md says what was tried, and with what.
"""

from __future__ import annotations

from typing import Any

from . import _library, _wants


def _handle(stream: Any) -> int:
    """Returns the CUDA handle of RMM's stream object."""
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    return _library.STREAM_ANY  # which is safe, and waits more


def resource(gpu: int = 0) -> Any:
    """Returns an RMM memory resource on the pool of a GPU, for set_current_device_resource or
    set_per_device_resource."""
    if _wants.gpu(gpu):
        raise TypeError(_wants.gpu(gpu))
    import rmm

    _library.library()

    def allocate(size: int, stream: Any) -> int:
        try:
            return _library.alloc(gpu, size, _handle(stream))
        except _library.OutOfMemoryError as e:
            raise MemoryError(str(e)) from None

    def deallocate(address: int, size: int, stream: Any) -> None:
        if address:
            _library.free(gpu, address, _handle(stream))

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)
