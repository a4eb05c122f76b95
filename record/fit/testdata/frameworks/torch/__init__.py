# What start.py uses of PyTorch. Its snapshot is that of a file, while it records.
import os as _os
import pickle as _pickle
import sys as _sys
from types import SimpleNamespace as _N

__version__ = "2.8.0"
version = _N(cuda="12.8")
backends = _N(cuda=_N())
distributed = _N()
_C = _N()
_recording = False


def _record(enabled="all", **_):
    global _recording
    _recording = enabled is not None


def __getattr__(name):
    raise AttributeError(name) if name != "_inductor" else AssertionError("the compiler is imported, which takes seconds")


def _snapshot():
    assert _sys.modules["torch"]._inductor.codecache.PyCodeCache.stack_frames_for_code(__file__, 1) is None
    with open(_os.environ["SNAPSHOT"], "rb") as file:
        return _pickle.load(file) if _recording else {"segments": [], "device_traces": []}


def _limit(*_):
    raise AssertionError("the limit is set")


_C._cuda_record_memory_history = _record
_C._cuda_setMemoryFraction = _C._accelerator_setAllocatorSettings = _C._cuda_changeCurrentAllocator = _limit
_C._cuda_cudaCachingAllocator_enable = _limit
cuda = _N(
    _lazy_call=lambda f: f(),  # as if there was a context already
    device_count=lambda: 1,
    memory_stats=lambda i: {"requested_bytes.all.peak": 1, "allocation.all.allocated": 1, "num_alloc_retries": 0},
    memory=_N(_record_memory_history=lambda **k: _C._cuda_record_memory_history(**k), _snapshot=_snapshot),
)
