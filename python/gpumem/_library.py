"""The pools, through libgpumem_c.so. See preload/gpumem.h for what each function does.

The library is loaded by the first call that needs a pool, and no sooner: a process that
never does has no thread more, and may fork as it likes.
"""

from __future__ import annotations

import ctypes
import operator
import os
import threading
from typing import NamedTuple, Optional

from . import _wants

ABI = 1
STREAM_ANY = 2**64 - 1
OUT_OF_MEMORY = 2
PEAKS = ("peak_bytes_in_use", "peak_pool_bytes")


class Error(RuntimeError):
    """A call that failed. code is one of enum gpumem_code in gpumem.h."""

    def __init__(self, text: str, code: int):
        super().__init__(text)
        self.code = code


class OutOfMemoryError(Error, MemoryError):
    """There is not enough free memory; the text says why."""


class Stats(NamedTuple):
    """What a pool has done. Sizes are in bytes."""

    bytes_in_use: int  #: in live blocks
    peak_bytes_in_use: int
    pool_bytes: int  #: held from the device
    peak_pool_bytes: int
    live: int  #: blocks
    allocs: int  #: requests served so far
    frees: int
    refused: int
    allocated_bytes: int  #: in all blocks so far
    driver_calls: int
    total: int  #: of the device, or the policy's limit if that is less


class _Figures(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in Stats._fields]


_lock = threading.Lock()
_loaded: Optional[ctypes.CDLL] = None


def path() -> str:
    """Returns the path of libgpumem_c.so: in $GPUMEM_LIB if it is there, else the wheel's."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "gpumem", "libgpumem_c.so")
    named = os.path.join(os.environ.get("GPUMEM_LIB", ""), "libgpumem_c.so")
    return named if os.environ.get("GPUMEM_LIB") and os.path.exists(named) else own


def library() -> ctypes.CDLL:
    """Loads the library, once."""
    global _loaded
    with _lock:
        if _loaded is None:
            if not os.path.exists(path()):
                raise FileNotFoundError(f"{path()}: there is no such library; install the wheel (scripts/wheel OUT, pip install OUT/*.whl), or set GPUMEM_LIB to its folder")
            lib = ctypes.CDLL(path())
            if lib.gpumem_abi() != ABI:
                raise ImportError(f"{path()} is of another release: its ABI is {lib.gpumem_abi()}, and this module's is {ABI}")
            lib.gpumem_last_error.restype = ctypes.c_char_p
            pool, size, address = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
            text = ctypes.c_char_p
            for name, arguments in {
                "configure": [ctypes.c_int, text, text],
                "open": [text, text, ctypes.POINTER(pool)],
                "is_open": [pool],
                "close": [pool],
                "alloc": [pool, size, address, ctypes.POINTER(address)],
                "free": [pool, address, address],
                "record_stream": [pool, address, address],
                "stream_ends": [pool, address],
                "trim": [pool, ctypes.POINTER(ctypes.c_uint64)],
                "stats": [pool, ctypes.POINTER(_Figures)],
                "reset_peaks": [pool],
                "report": [pool, ctypes.c_char_p, size],
                "record": [text],
            }.items():
                getattr(lib, "gpumem_" + name).argtypes = arguments
            _loaded = lib
    return _loaded


def check(code: int) -> None:
    """Raises the error of a call that returned code."""
    if code:
        text = (library().gpumem_last_error() or b"").decode("utf-8", "replace")
        raise (OutOfMemoryError if code == OUT_OF_MEMORY else Error)(text, code)


def _bytes(text: Optional[str]) -> Optional[bytes]:
    return None if text is None else text.encode()


_serves = False  # a library was told to take its memory from the shared pools


_segments = False  # PyTorch's own allocator takes the segments of a MemPool from them


def serve_segments() -> None:
    """Notes that the shared pools have PyTorch's segments, whose blocks PyTorch's own history has."""
    global _segments
    _segments = True


def serve() -> None:
    """Notes that a library takes its memory from the shared pools from now on."""
    global _serves
    _serves = True


def serves() -> bool:
    """Reports whether this project's pools are what a program's memory is in: one is open, or will be."""
    return shared() or any(is_open(pool) for pool in range(SHARED, ALL))


SHARED = 64  # the pools that libraries share have the numbers of GPUs; those of Pool follow
ALL = 1024


def shared() -> bool:
    """Reports whether libraries take their memory from the shared pools: one is open, or will be. Not where
    it is only for a MemPool of PyTorch's."""
    return _serves or not _segments and any(is_open(pool) for pool in range(SHARED))


def is_open(pool: int) -> bool:
    """Reports whether a pool is open, without opening it."""
    return _loaded is not None and bool(_loaded.gpumem_is_open(pool))


def alloc(pool: int, size: int, stream: int = 0) -> int:
    """Allocates device memory; the address, and 0 for 0 bytes."""
    size = operator.index(size)
    if size < 0:
        raise ValueError(f"a size of {size} bytes")
    address = ctypes.c_void_p()
    # ctypes would cut a size that 64 bits do not hold; no GPU has 2^63 bytes either.
    check(library().gpumem_alloc(pool, min(size, 1 << 63), operator.index(stream), ctypes.byref(address)))
    return address.value or 0


def free(pool: int, address: int, stream: int = 0) -> None:
    """Frees what alloc returned."""
    check(library().gpumem_free(pool, address, stream))


class Pool:
    """A pool of this process that is not shared with its libraries.

    >>> with gpumem.Pool("sim:24GiB", "elastic:limit=8GiB") as pool:
    ...     address = pool.alloc(1 << 30)
    ...     pool.free(address)

    device: "cuda:N", "sim:SIZE" (simulated) or "sim@FILE"; None is $GPUMEM_DEVICE, or else
    cuda:0. policy: as for gpumem replay; None is "elastic".
    """

    def __init__(self, device: Optional[str] = None, policy: Optional[str] = None):
        self.number = -1
        wrong = _wants.device(device) or _wants.policy(policy)
        if wrong:
            raise TypeError(wrong)
        number = ctypes.c_int()
        check(library().gpumem_open(_bytes(device), _bytes(policy), ctypes.byref(number)))
        self.number = number.value

    def alloc(self, size: int, stream: int = 0) -> int:
        """Allocates size bytes for use in a stream (a CUDA handle); returns the address."""
        wrong = _wants.number("size", size) or _wants.number("stream", stream)
        if wrong:
            raise TypeError(wrong)
        return alloc(self.number, size, stream)

    def free(self, address: int, stream: int = 0) -> None:
        """Frees a block in the order of a stream."""
        wrong = _wants.number("address", address) or _wants.number("stream", stream)
        if wrong:
            raise TypeError(wrong)
        free(self.number, address, stream)

    def record_stream(self, address: int, stream: int) -> None:
        """Says that a block is used in a further stream."""
        wrong = _wants.number("address", address) or _wants.number("stream", stream)
        if wrong:
            raise TypeError(wrong)
        check(library().gpumem_record_stream(self.number, address, stream))

    def stats(self) -> Stats:
        """Returns what the pool has done."""
        return stats(self.number)

    def trim(self) -> int:
        """Releases idle memory to the device; returns the bytes."""
        return trim(self.number)

    def report(self) -> str:
        """Returns a text about the pool for people."""
        return report(self.number)

    def close(self) -> None:
        """Releases all memory to the device, live blocks included."""
        number, self.number = self.number, -1
        if number >= 0:
            check(library().gpumem_close(number))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def configure(gpu: int = 0, device: Optional[str] = None, policy: Optional[str] = None) -> None:
    """Sets the device and the policy of the pool that the libraries of this process share
    on a GPU, before its first use.

    >>> gpumem.configure(policy="elastic:limit=20GiB")

    gpu: 0 to 63, as the process counts them. The GPU is not looked for, which would begin to use it: a number
    that none has is kept, and changes nothing.
    """
    wrong = _wants.gpu(gpu) or _wants.device(device) or _wants.policy(policy)
    if wrong:
        raise TypeError(wrong)
    check(library().gpumem_configure(gpu, _bytes(device), _bytes(policy)))


def configure_gpus(gpu: Optional[int], policy: Optional[str]) -> None:
    """Sets the policy of the shared pool on one GPU, or on all if gpu is None; nothing if
    policy is None."""
    if policy is not None:
        for number in range(64) if gpu is None else [gpu]:
            configure(number, policy=policy)


def stats(gpu: int = 0) -> Stats:
    """Returns what the shared pool on a GPU has done: zeros before its first use."""
    if _wants.gpu(gpu):
        raise TypeError(_wants.gpu(gpu))
    if not is_open(gpu):
        return Stats(*[0] * len(Stats._fields))
    figures = _Figures(size=ctypes.sizeof(_Figures))
    check(library().gpumem_stats(gpu, ctypes.byref(figures)))
    return Stats(*(getattr(figures, name) for name in Stats._fields))


def trim(gpu: int = 0) -> int:
    """Releases idle memory of the shared pool on a GPU to the device; returns the bytes."""
    if _wants.gpu(gpu):
        raise TypeError(_wants.gpu(gpu))
    released = ctypes.c_uint64()
    if is_open(gpu):
        check(library().gpumem_trim(gpu, ctypes.byref(released)))
    return released.value


def reset_peaks(gpu: int = 0) -> None:
    """Makes the peaks of the shared pool on a GPU the present values."""
    if _wants.gpu(gpu):
        raise TypeError(_wants.gpu(gpu))
    if is_open(gpu):
        check(library().gpumem_reset_peaks(gpu))


def report(gpu: int = 0) -> str:
    """Returns a text about the shared pool on a GPU for people."""
    if _wants.gpu(gpu):
        raise TypeError(_wants.gpu(gpu))
    if not is_open(gpu):
        return f"GPU {gpu}: nothing in this process has used gpumem's pool"
    text = ctypes.create_string_buffer(1 << 16)
    if library().gpumem_report(gpu, text, len(text)) < 0:
        return f"GPU {gpu}: the pool is that of the process that this one was forked from"
    return text.value.decode("utf-8", "replace").rstrip("\n")
