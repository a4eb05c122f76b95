// Memory of the program's own, and of graphs, at addresses between those of a pool: it is no
// pool's memory. It writes what is wrong.
//
//	between GPUS

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint64_t u64;
typedef void *ptr;

#define FUNCTIONS(F) \
  F(cuInit, (unsigned)) F(cuDeviceGetCount, (int *)) F(cuDevicePrimaryCtxRetain, (ptr *, int)) F(cuCtxSetCurrent, (ptr)) F(cuCtxSynchronize, (void)) \
  F(cuMemAlloc_v2, (u64 *, size_t)) F(cuMemFree_v2, (u64)) F(cuMemAllocAsync, (u64 *, size_t, ptr)) F(cuMemFreeAsync, (u64, ptr)) \
  F(cuMemGetAddressRange_v2, (u64 *, size_t *, u64)) F(cuMemGetInfo_v2, (size_t *, size_t *)) F(cuIpcGetMemHandle, (void *, u64)) \
  F(cuStreamCreate, (ptr *, unsigned)) F(cuStreamBeginCapture_v2, (ptr, int)) F(cuStreamEndCapture, (ptr, ptr *)) \
  F(cuMemAddressReserve, (u64 *, size_t, size_t, u64, u64)) F(cuMemCreate, (u64 *, size_t, const int *, u64)) F(cuMemMap, (u64, size_t, size_t, u64, u64)) \
  F(cuMemRetainAllocationHandle, (u64 *, u64)) F(cuMemRelease, (u64)) F(cuMemUnmap, (u64, size_t)) F(cuMemAddressFree, (u64, size_t))
#define F(name, args) static int (*name) args;
FUNCTIONS(F)
#undef F

enum { MIB = 1 << 20, N = 6, GPUS = 4, NOT_SUPPORTED = 801 };

static ptr context[GPUS];

#define WANT(call, code) \
  do { \
    int code_ = call; \
    if (code_ != code) printf("line %d: %s: %d, want %d\n", __LINE__, #call, code_, code); \
  } while (0)

// own is memory that the program maps itself.
static struct own { u64 at, handle; } own(size_t n) {
  struct own o = {0, 0};
  int prop[8] = {1, 0, 1, 0};
  WANT(cuMemAddressReserve(&o.at, n, 0, 0, 0), 0);
  WANT(cuMemCreate(&o.handle, n, prop, 0), 0);
  WANT(cuMemMap(o.at, n, 0, o.handle, 0), 0);
  return o;
}

static void look(struct own o, u64 served) {
  u64 handle = 0, base;
  size_t n;
  char ipc[64];
  WANT(cuMemRetainAllocationHandle(&handle, o.at), 0);
  if (handle != o.handle) puts("another handle");
  WANT(cuMemRelease(handle), 0);
  WANT(cuMemRetainAllocationHandle(&handle, served), NOT_SUPPORTED);
  WANT(cuIpcGetMemHandle(ipc, served), NOT_SUPPORTED);
  WANT(cuMemGetAddressRange_v2(&base, &n, served + 5 * MIB), 0);
  if (base != served || n != 20 * MIB) puts("another block");
}

// unmap releases own memory.
static void unmap(struct own o, size_t n) {
  WANT(cuMemUnmap(o.at, n), 0);
  WANT(cuMemAddressFree(o.at, n), 0);
  WANT(cuMemRelease(o.handle), 0);
}

int main(int argc, char **argv) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) return puts(dlerror()), 1;
#define F(name, args) \
  if (!(*(void **)&name = dlsym(lib, #name))) return puts("no " #name), 1;
  FUNCTIONS(F)
#undef F
  int gpus = atoi(argv[1]), count = 0;
  ptr stream, graph;
  u64 served[N][GPUS], node[N];
  size_t before[GPUS], after, total;
  struct own o[N];
  WANT(cuInit(0), 0);
  WANT(cuDeviceGetCount(&count), 0);
  if (count < gpus) return puts("too few GPUs"), 1;
  for (int g = gpus - 1; g >= 0; g--) {
    WANT(cuDevicePrimaryCtxRetain(&context[g], g), 0);
    WANT(cuCtxSetCurrent(context[g]), 0);
    WANT(cuMemGetInfo_v2(&before[g], &total), 0);
  }
  WANT(cuStreamCreate(&stream, 1), 0);
  for (int i = 0; i < N; i++) {
    for (int g = gpus - 1; g >= 0; g--) {
      WANT(cuCtxSetCurrent(context[g]), 0);
      WANT(cuMemAlloc_v2(&served[i][g], 20 * MIB), 0);
    }
    o[i] = own(2 * MIB);
    WANT(cuStreamBeginCapture_v2(stream, 2), 0); // what is allocated in a graph is the driver's
    WANT(cuMemAllocAsync(&node[i], MIB, stream), 0);
    if (i == N - 1)
      for (int k = 0; k < N - 1; k++) WANT(cuMemFreeAsync(served[k][0], stream), 1); // CUDA_ERROR_INVALID_VALUE
    WANT(cuMemFreeAsync(node[i], stream), 0);
    WANT(cuStreamEndCapture(stream, &graph), 0);
  }
  for (int i = 0; i < N; i++)
    for (int g = 0; g < gpus; g++) look(o[i], served[i][g]);
  for (int i = 0; i < N; i++) {
    unmap(o[i], 2 * MIB);
    for (int g = 0; g < gpus; g++) {
      WANT(cuCtxSetCurrent(context[g]), 0);
      if (i % 2) WANT(cuMemFree_v2(served[i][g]), 0);
      else WANT(cuMemFreeAsync(served[i][g], 0), 0);
    }
  }
  for (int g = 0; g < gpus; g++) {
    WANT(cuCtxSetCurrent(context[g]), 0);
    WANT(cuCtxSynchronize(), 0);
    WANT(cuMemGetInfo_v2(&after, &total), 0);
    if (after < before[g]) printf("GPU %d: %zu KiB are not free any more\n", g, (before[g] - after) >> 10);
  }
  return 0;
}
