"""Takes GPU memory through the driver and ends: driver.py FRAMEWORK MIB HOW.

FRAMEWORK is a module of this name that start.py knows, or none; HOW one of the functions
below, or a word with which Python ends.
"""
import atexit
import ctypes
import os
import signal
import subprocess
import sys

framework, mib, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if how.startswith("abort"):
    atexit.register(os.abort)  # runs last, as a crash while libraries are unloaded
if framework != "none":
    __import__(framework)
    module = sys.modules[framework]

driver = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
for size in [100] * (mib // 100) if mib < 1 << 20 else [mib]:
    if driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size << 20)):
        sys.exit("RESOURCE_EXHAUSTED: %d MiB" % size)

if how == "os._exit":
    os._exit(0)
elif how == "C's _exit":
    ctypes.CDLL(None)._exit(0)
elif how == "a signal's handler":
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
    os.kill(os.getpid(), signal.SIGUSR1)
elif how == "its recorder off":
    module.cuda.memory._record_memory_history(enabled=None)
elif how == "abort, exception":
    raise ValueError("no dataset")
elif how == "abort, status":
    sys.exit(3)
elif how == "a child":
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
elif how == "no memory":
    raise type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})("CUDA out of memory")
