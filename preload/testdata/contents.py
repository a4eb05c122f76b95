# A program by turns, as turns.c has one: it fills its blocks, and checks them whenever its input has
# a line, which it answers by "ok BLOCKS BYTES" or by what is wrong. It ends with its input.
#
#   contents.py SEED MIB   blocks from 256 bytes to a quarter of MIB; with each line some are freed,
#                       and others allocated and written
import ctypes
import os
import random
import sys

seed, limit = int(sys.argv[1]), int(sys.argv[2]) << 20
r = random.Random(seed)
cu = ctypes.CDLL("libcuda.so.1")
size, address = ctypes.c_size_t, ctypes.c_uint64


def must(name, *args):
    code = getattr(cu, name)(*args)
    if code:
        print(f"{name}: {code}", flush=True)
        os._exit(1)


context, stream = ctypes.c_void_p(), ctypes.c_void_p()
must("cuInit", 0)
must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
must("cuCtxSetCurrent", context)
must("cuStreamCreate", ctypes.byref(stream), 1)
blocks = {}  # what was written, by address


def take():
    n = 256 + r.randrange(limit // 4 >> r.randrange(16))
    if sum(map(len, blocks.values())) + n > limit:
        return
    at, wrote = address(), r.randbytes(n)
    must("cuMemAlloc_v2", ctypes.byref(at), size(n))
    if r.randrange(2):
        must("cuMemcpyHtoD_v2", at, wrote, size(n))
    else:
        must("cuMemcpyHtoDAsync_v2", at, wrote, size(n), stream)
        must("cuStreamSynchronize", stream)
    blocks[at.value] = wrote


def check():
    for at, wrote in blocks.items():
        got = (ctypes.c_char * len(wrote))()
        must("cuMemcpyDtoH_v2", got, address(at), size(len(wrote)))
        if got.raw != wrote:
            first = next(i for i in range(len(wrote)) if got.raw[i] != wrote[i])
            print(f"block of {len(wrote)} bytes at {at:#x}: at {first} there is {got.raw[first]:#x}, want {wrote[first]:#x}", flush=True)
            os._exit(1)


def churn(steps):
    for _ in range(steps):
        if blocks and r.randrange(100) < len(blocks):
            at = r.choice(list(blocks))
            must("cuMemFree_v2", address(at))
            del blocks[at]
        else:
            take()


def answer():
    print("ok", len(blocks), sum(map(len, blocks.values())), flush=True)


churn(300)
answer()
for line in sys.stdin:
    check()
    churn(20)
    answer()
