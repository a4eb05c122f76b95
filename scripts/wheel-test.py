# A program of CUDA's driver for scripts/wheel-test: it takes 256 MiB of the first GPU.
import ctypes

cuda = ctypes.CDLL("libcuda.so.1")
context, block = ctypes.c_void_p(), ctypes.c_uint64()
for status in (
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(256 << 20)),
):
    assert status == 0, status
