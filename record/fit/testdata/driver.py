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

def limit():
    """Limits memory by calls, as far as start.py lets it."""
    if framework == "torch":
        module._C._cuda_setMemoryFraction(0.02, 0)
        module._C._accelerator_setAllocatorSettings("max_split_size_mb:64")
        module._C._cuda_changeCurrentAllocator(object())
        module._C._cuda_cudaCachingAllocator_enable(False)
    elif framework == "jax":
        module._options.update(memory_fraction=0.5, platform="cuda")
        options = module._src.xla_bridge._options_from_jax_configs("cuda")
        assert options == {"platform": "cuda"}, options
    else:
        import collections
        from tensorflow.python.client.session import BaseSession
        from tensorflow.python.eager.context import Context

        Device = collections.namedtuple("Device", "device_type")
        Configuration = collections.namedtuple("Configuration", "memory_limit")
        context = Context()
        context.set_logical_device_configuration(Device("GPU"), [Configuration(300)])
        assert context.limits is None, context.limits
        context.set_logical_device_configuration(Device("CPU"), [Configuration(None)] * 2)
        assert context.limits == [None, None], context.limits
        context.set_logical_device_configuration(Device("GPU"), [Configuration(100), Configuration(200)])
        assert min(context.limits) > 1 << 20, context.limits
        context.set_memory_growth(Device("GPU"), True)
        assert context.growth

        class Config(object):
            def __init__(self):
                self.gpu_options = Options()

            def CopyFrom(self, other):
                self.gpu_options.__dict__.update(other.gpu_options.__dict__)

        class Options(object):
            allow_growth, per_process_gpu_memory_fraction = False, 0

            def ClearField(self, name):
                delattr(self, name)

        config = Config()
        config.gpu_options.per_process_gpu_memory_fraction = 0.25
        session = BaseSession("", config=config)
        assert session.config.gpu_options.per_process_gpu_memory_fraction == 0
        assert BaseSession().config is None


def two_ends():
    """Comes to Python's end while another thread ends the program, and writes."""
    import threading

    start = os._exit.__globals__
    inside, begun = [], threading.Event()

    def write(reason):
        inside.append(reason)
        begun.set()
        if len(inside) > 1:
            os.write(2, b"ValueError: two write at once\n")
            start["leave"](3)
        threading.Event().wait(0.3)  # for the other
        inside.pop()

    start["at_end"](write)
    other = threading.Thread(target=start["stop"], args=(write, "repeats"))
    other.daemon = True
    other.start()
    begun.wait()


driver = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
for size in [100] * (mib // 100) if mib < 1 << 20 else [mib]:
    if driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size << 20)):
        sys.exit("RESOURCE_EXHAUSTED: %d MiB" % size)

if how == "limits":
    limit()
elif how == "os._exit":
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
elif how == "two ends":
    two_ends()
elif how == "a child":
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
elif how == "no memory":
    raise type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})("CUDA out of memory")
