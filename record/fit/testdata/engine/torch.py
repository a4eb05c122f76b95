"""Stands in for PyTorch under the stand-in of vLLM: its memory is a number."""
import ctypes
import types

__version__, version = "2.15.0", types.SimpleNamespace(cuda=None)
allocated = peak = 0
segments = [{"segment_pool_id": (0, 0), "total_size": 1 << 20}]
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
size, device = ctypes.c_size_t(), ctypes.c_int()
driver.cuDeviceGet(ctypes.byref(device), 0)
driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
total = size.value


def take(n):
    global allocated, peak
    if allocated + n > total:
        raise RuntimeError("CUDA out of memory. Tried to allocate %d bytes" % n)
    allocated += n
    peak = max(peak, allocated)


def reset():
    global peak
    peak = allocated


trace = []  # of the allocator, as its recording has it


def record(action, at, size, *functions):
    trace.append({"action": action, "addr": at, "size": size, "frames": [{"name": name} for name in functions]})


class cuda:
    reset_peak_memory_stats = reset

    @staticmethod
    def memory_stats():
        return {"allocated_bytes.all.current": allocated, "reserved_bytes.all.current": allocated, "allocated_bytes.all.peak": peak}

    class memory:
        @staticmethod
        def _snapshot():
            return {"device_traces": [list(trace)]}

    @staticmethod
    def current_device():
        return 0

    @staticmethod
    def memory_snapshot():
        return segments

    @staticmethod
    def mem_get_info():
        return total - allocated, total

    @staticmethod
    def is_available():
        return True
