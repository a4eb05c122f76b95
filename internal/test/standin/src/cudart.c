// A stand-in for NVIDIA's runtime, libcudart.so.12 (or .13: CUDART), for programs that run on the
// simulated driver. The real one stops on the driver's private tables. What asks
// for memory goes on to libcuda.so.1, whichever is found first, so that it counts.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifndef CUDART
#define CUDART 12
#endif

typedef uint64_t u64;
#define FN __attribute__((visibility("default"))) int

// driver calls a function of the driver with up to four words. Errors of the two
// have the same numbers, where there is a number for both.
static int driver(const char *name, u64 a, u64 b, u64 c, u64 d) {
  static void *lib;
  if (!lib) lib = dlopen("libcuda.so.1", RTLD_NOW);
  int (*f)(u64, u64, u64, u64) = lib ? dlsym(lib, name) : 0;
  return f ? f(a, b, c, d) : 35; // cudaErrorInsufficientDriver
}

static __thread int current, begun;

// begin makes the primary context of the thread's device current, as the runtime
// does with the first call.
static int begin(void) {
  if (begun) return 0;
  u64 ctx;
  int e = driver("cuInit", 0, 0, 0, 0);
  if (!e) e = driver("cuDevicePrimaryCtxRetain", (u64)&ctx, current, 0, 0);
  if (!e) e = driver("cuCtxSetCurrent", ctx, 0, 0, 0);
  begun = !e;
  return e;
}

static int inContext(const char *name, u64 a, u64 b, u64 c, u64 d) {
  int e = begin();
  return e ? e : driver(name, a, b, c, d);
}

FN cudaRuntimeGetVersion(int *v) { *v = CUDART == 12 ? 12090 : 13020; return 0; }
FN cudaDriverGetVersion(int *v) { return driver("cuDriverGetVersion", (u64)v, 0, 0, 0); }
FN cudaGetDeviceCount(int *n) { int e = driver("cuInit", 0, 0, 0, 0); return e ? e : driver("cuDeviceGetCount", (u64)n, 0, 0, 0); }
FN cudaGetDevice(int *d) { *d = current; return 0; }
FN cudaSetDevice(int d) { if (d != current) current = d, begun = 0; return begin(); }
FN cudaDeviceGetAttribute(int *v, int a, int d) { int e = driver("cuInit", 0, 0, 0, 0); return e ? e : driver("cuDeviceGetAttribute", (u64)v, a, d, 0); }
FN cudaDeviceSynchronize(void) { return inContext("cuCtxSynchronize", 0, 0, 0, 0); }

// cudaDeviceProp: name and numbers, none of them 0 (TensorFlow divides by some),
// with the compute capability where it stands in 12.x and 13.x.
static int properties(char *p, int d, int bytes) {
  memset(p, 0, bytes);
  for (int i = 288; i < bytes; i += 4) *(int *)(p + i) = 1024;
  int e = driver("cuInit", 0, 0, 0, 0);
  if (!e) e = driver("cuDeviceGetName", (u64)p, 256, d, 0);
  if (!e) e = driver("cuDeviceTotalMem_v2", (u64)(p + 288), d, 0, 0);
  if (!e) e = driver("cuDeviceGetAttribute", (u64)(p + 360), 75, d, 0);
  if (!e) e = driver("cuDeviceGetAttribute", (u64)(p + 364), 76, d, 0);
  return e;
}
FN cudaGetDeviceProperties(char *p, int d) { return properties(p, d, 700); }
FN cudaGetDeviceProperties_v2(char *p, int d) { return properties(p, d, 1032); }

FN cudaMalloc(void **p, size_t n) { return inContext("cuMemAlloc_v2", (u64)p, n, 0, 0); }
FN cudaFree(void *p) { return inContext("cuMemFree_v2", (u64)p, 0, 0, 0); }
FN cudaMallocAsync(void **p, size_t n, void *s) { return inContext("cuMemAllocAsync", (u64)p, n, (u64)s, 0); }
FN cudaFreeAsync(void *p, void *s) { return inContext("cuMemFreeAsync", (u64)p, (u64)s, 0, 0); }
FN cudaMallocManaged(void **p, size_t n, unsigned f) { return inContext("cuMemAllocManaged", (u64)p, n, f, 0); }
FN cudaMallocHost(void **p, size_t n) { return inContext("cuMemAllocHost_v2", (u64)p, n, 0, 0); }
FN cudaHostAlloc(void **p, size_t n, unsigned f) { return inContext("cuMemHostAlloc", (u64)p, n, f, 0); }
FN cudaFreeHost(void *p) { return inContext("cuMemFreeHost", (u64)p, 0, 0, 0); }
FN cudaMemGetInfo(size_t *a, size_t *b) { return inContext("cuMemGetInfo_v2", (u64)a, (u64)b, 0, 0); }
FN cudaMemcpy(void *a, const void *b, size_t n, int kind) { (void)kind; return inContext("cuMemcpy", (u64)a, (u64)b, n, 0); }
FN cudaMemcpyAsync(void *a, const void *b, size_t n, int kind, void *s) { (void)kind; return inContext("cuMemcpyAsync", (u64)a, (u64)b, n, (u64)s); }
FN cudaMemset(void *a, int v, size_t n) { return inContext("cuMemsetD8_v2", (u64)a, v & 255, n, 0); }
FN cudaMemsetAsync(void *a, int v, size_t n, void *s) { return inContext("cuMemsetD8Async", (u64)a, v & 255, n, (u64)s); }
FN cudaStreamCreate(void **s) { return inContext("cuStreamCreate", (u64)s, 0, 0, 0); }
FN cudaStreamCreateWithFlags(void **s, unsigned f) { return inContext("cuStreamCreate", (u64)s, f, 0, 0); }
FN cudaStreamCreateWithPriority(void **s, unsigned f, int p) { return inContext("cuStreamCreateWithPriority", (u64)s, f, p, 0); }
FN cudaStreamDestroy(void *s) { return inContext("cuStreamDestroy_v2", (u64)s, 0, 0, 0); }
FN cudaStreamSynchronize(void *s) { return inContext("cuStreamSynchronize", (u64)s, 0, 0, 0); }
FN cudaStreamIsCapturing(void *s, int *v) { return inContext("cuStreamIsCapturing", (u64)s, (u64)v, 0, 0); }
FN cudaEventCreate(void **e) { return inContext("cuEventCreate", (u64)e, 0, 0, 0); }
FN cudaEventCreateWithFlags(void **e, unsigned f) { return inContext("cuEventCreate", (u64)e, f, 0, 0); }
FN cudaEventDestroy(void *e) { return inContext("cuEventDestroy_v2", (u64)e, 0, 0, 0); }
FN cudaEventRecord(void *e, void *s) { return inContext("cuEventRecord", (u64)e, (u64)s, 0, 0); }
FN cudaEventSynchronize(void *e) { return inContext("cuEventSynchronize", (u64)e, 0, 0, 0); }

// PyTorch asks for the driver's functions by the names without their versions.
FN cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned v, u64 flags, int *found) {
  static void *lib;
  (void)v, (void)flags;
  if (!lib) lib = dlopen("libcuda.so.1", RTLD_NOW);
  char second[128];
  snprintf(second, sizeof second, "%s_v2", name);
  *f = lib ? dlsym(lib, second) : 0;
  if (lib && !*f) *f = dlsym(lib, name);
  if (found) *found = !*f; // cudaDriverEntryPointSymbolNotFound
  return 0;
}
FN cudaGetDriverEntryPoint(const char *name, void **f, u64 flags, int *found) { return cudaGetDriverEntryPointByVersion(name, f, 0, flags, found); }

FN cudaGetFuncBySymbol(void **f, void *s) { *f = s; return 0; }
FN cudaFuncGetAttributes(void *a, void *f) { (void)f; memset(a, 0, 64); return 0; }
FN cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n) { *n = 2; return 0; }
FN cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n) { *n = 2; return 0; }
__attribute__((visibility("default"))) const char *cudaGetErrorString(int e) { return e ? "an error of the simulated driver" : "no error"; }
__attribute__((visibility("default"))) const char *cudaGetErrorName(int e) { return e ? "cudaErrorUnknown" : "cudaSuccess"; }

// What the compiler of kernels puts into a program's start.
__attribute__((visibility("default"))) void **__cudaRegisterFatBinary(void *f) { static void *h[4]; (void)f; return h; }
__attribute__((visibility("default"))) void __cudaRegisterFatBinaryEnd(void **h) { (void)h; }
__attribute__((visibility("default"))) void __cudaUnregisterFatBinary(void **h) { (void)h; }
__attribute__((visibility("default"))) void __cudaRegisterFunction(void) {}
__attribute__((visibility("default"))) void __cudaRegisterVar(void) {}
FN __cudaPushCallConfiguration(void) { return 0; }
FN __cudaPopCallConfiguration(void) { return 0; }
