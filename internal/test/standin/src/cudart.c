// A stand-in for NVIDIA's runtime, libcudart.so.12 (or .13: CUDART), for programs that run on the
// simulated driver. The real one stops on the driver's private tables. What asks
// for memory goes on to libcuda.so.1, whichever is found first, so that it counts.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef CUDART
#define CUDART 12
#endif

typedef uint64_t u64;
#define FN __attribute__((visibility("default"))) int

// driver calls a function of the driver with up to seven words. Errors of the two
// have the same numbers, where there is a number for both.
static int driver7(const char *name, u64 a, u64 b, u64 c, u64 d, u64 e, u64 g, u64 h) {
  static void *lib;
  if (!lib) lib = dlopen("libcuda.so.1", RTLD_NOW);
  int (*f)(u64, u64, u64, u64, u64, u64, u64) = lib ? dlsym(lib, name) : 0;
  return f ? f(a, b, c, d, e, g, h) : 35; // cudaErrorInsufficientDriver
}
static int driver(const char *name, u64 a, u64 b, u64 c, u64 d) { return driver7(name, a, b, c, d, 0, 0, 0); }

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

// launch_in launches a kernel in a stream.
static int launch_in(void *stream) {
  int e = begin();
  int (*f)(u64, int, int, int, int, int, int, int, void *, void *, void *) = e ? 0 : dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel");
  return e ? e : f ? f(1, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0) : 35;
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

// cudaDeviceProp of driver_types.h, whose layout differs between 12.x and 13.x: the fields that
// are an attribute of the driver's, by their offset. No other is 0 (TensorFlow divides by some).
#if CUDART == 12
#define AT(twelve, thirteen) twelve
enum { PROPERTIES = 1032 };
#else
#define AT(twelve, thirteen) thirteen
enum { PROPERTIES = 1008 };
#endif
static const struct { short at, bytes, attribute; } fields[] = {
  {296, 8, 8}, {304, 4, 12}, {308, 4, 10}, {312, 8, 11}, // shared memory and registers of a block, warp, pitch
  {320, 4, 1}, {324, 4, 2}, {328, 4, 3}, {332, 4, 4}, {336, 4, 5}, {340, 4, 6}, {344, 4, 7}, // threads of a block, its sizes, a grid's
  {352, 8, 9}, {360, 4, 75}, {364, 4, 76}, {368, 8, 14}, // constant memory, compute capability, texture alignment
  {AT(388, 384), 4, 16}, {AT(396, 388), 4, 18}, {AT(400, 392), 4, 19}, // multiprocessors, integrated, host memory mapped
  {AT(576, 560), 4, 31}, {AT(580, 564), 4, 32}, {AT(584, 568), 4, 33}, {AT(588, 572), 4, 34}, {AT(592, 576), 4, 50}, // several kernels, ECC, PCI
  {AT(600, 584), 4, 40}, {AT(604, 588), 4, 41}, {AT(612, 592), 4, 37}, {AT(616, 596), 4, 38}, // engines, unified addressing, width, L2
  {AT(624, 604), 4, 39}, {AT(628, 608), 4, 78}, {AT(640, 624), 8, 81}, {AT(648, 632), 4, 82}, // threads, priorities, shared memory, registers of a multiprocessor
  {AT(652, 636), 4, 83}, {AT(688, 668), 4, 95}, {AT(696, 672), 8, 97}, {AT(712, 688), 4, 106}, {AT(720, 696), 8, 111}, {AT(744, 720), 4, 115},
};
static int properties(char *p, int d, int bytes) {
  memset(p, 0, bytes);
  for (int i = 288; i + 4 <= bytes; i += 4) *(int *)(p + i) = 1024;
  int e = driver("cuInit", 0, 0, 0, 0);
  if (!e) e = driver("cuDeviceGetName", (u64)p, 256, d, 0);
  if (!e) e = driver("cuDeviceTotalMem_v2", (u64)(p + 288), d, 0, 0);
  for (unsigned i = 0; !e && i < sizeof fields / sizeof fields[0] && fields[i].at + fields[i].bytes <= bytes; i++) {
    memset(p + fields[i].at, 0, fields[i].bytes);
    e = driver("cuDeviceGetAttribute", (u64)(p + fields[i].at), fields[i].attribute, d, 0);
  }
  return e;
}
FN cudaGetDeviceProperties(char *p, int d) { return properties(p, d, CUDART == 12 ? 700 : PROPERTIES); }
FN cudaGetDeviceProperties_v2(char *p, int d) { return properties(p, d, PROPERTIES); }

// cudaMalloc serves 0 bytes with a null pointer, where the driver's function is refused.
FN cudaMalloc(void **p, size_t n) {
  if (n) return inContext("cuMemAlloc_v2", (u64)p, n, 0, 0);
  *p = 0;
  return begin();
}
FN cudaFree(void *p) { return inContext("cuMemFree_v2", (u64)p, 0, 0, 0); }
FN cudaMallocAsync(void **p, size_t n, void *s) { return inContext("cuMemAllocAsync", (u64)p, n, (u64)s, 0); }
FN cudaFreeAsync(void *p, void *s) { return inContext("cuMemFreeAsync", (u64)p, (u64)s, 0, 0); }
FN cudaMallocManaged(void **p, size_t n, unsigned f) { return inContext("cuMemAllocManaged", (u64)p, n, f, 0); }
FN cudaMallocHost(void **p, size_t n) { return inContext("cuMemAllocHost_v2", (u64)p, n, 0, 0); }
FN cudaHostAlloc(void **p, size_t n, unsigned f) { return inContext("cuMemHostAlloc", (u64)p, n, f, 0); }
FN cudaFreeHost(void *p) { return inContext("cuMemFreeHost", (u64)p, 0, 0, 0); }
FN cudaMemGetInfo(size_t *a, size_t *b) { return inContext("cuMemGetInfo_v2", (u64)a, (u64)b, 0, 0); }

// Memory and events of another process. A handle is passed by value.
typedef struct { u64 words[8]; } ipc;
FN cudaIpcGetMemHandle(ipc *h, void *p) { return inContext("cuIpcGetMemHandle", (u64)h, (u64)p, 0, 0); }
FN cudaIpcCloseMemHandle(void *p) { return inContext("cuIpcCloseMemHandle", (u64)p, 0, 0, 0); }
FN cudaIpcGetEventHandle(ipc *h, void *e) { return inContext("cuIpcGetEventHandle", (u64)h, (u64)e, 0, 0); }
static int opened(const char *name, void *p, ipc h, unsigned flags) {
  int e = begin();
  int (*f)(void *, ipc, unsigned) = e ? 0 : (int (*)(void *, ipc, unsigned))dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
  return e ? e : f ? f(p, h, flags) : 35;
}
FN cudaIpcOpenMemHandle(void **p, ipc h, unsigned flags) { return opened("cuIpcOpenMemHandle_v2", p, h, flags); }
FN cudaIpcOpenEventHandle(void **e, ipc h) { return opened("cuIpcOpenEventHandle", e, h, 0); }

FN cudaMemcpy(void *a, const void *b, size_t n, int kind) { (void)kind; return inContext("cuMemcpy", (u64)a, (u64)b, n, 0); }
FN cudaMemcpyAsync(void *a, const void *b, size_t n, int kind, void *s) { (void)kind; return inContext("cuMemcpyAsync", (u64)a, (u64)b, n, (u64)s); }

// launched tells the simulated driver of a kernel that is no call of it. The driver's library stands beside this
// one, and may have the pool library before it.
static void launched(void) {
  static void (*tell)(void);
  Dl_info here;
  char path[4096];
  const char *own = tell || !dladdr((void *)launched, &here) ? 0 : here.dli_fname, *end = own ? strrchr(own, '/') : 0;
  if (end) {
    snprintf(path, sizeof path, "%.*s/libcuda.so.1", (int)(end - own), own);
    void *beside = dlopen(path, RTLD_NOW | RTLD_NOLOAD); // null before the first call: nothing was written then
    if (beside) *(void **)&tell = dlsym(beside, "gpumemSimLaunched");
  }
  if (tell) tell();
}

// A kernel is a call of the driver's where work takes time (GPUMEM_SIM_KERNEL): of a function that is none, without
// arguments. Else it would order other work in its stream, as nothing did when programs were compared with their logs;
// then the driver only learns that there was one.
static int launch(void *stream) {
  static int timed = -1;
  if (timed < 0) {
    const char *kernel = getenv("GPUMEM_SIM_KERNEL"), *link = getenv("GPUMEM_SIM_LINK");
    timed = (kernel && *kernel) || (link && *link);
  }
  if (timed) return launch_in(stream);
  launched();
  return 0;
}
typedef struct { unsigned x, y, z; } dim3;
typedef struct { dim3 grid, block; size_t shared; void *stream; } launch_config;
FN cudaLaunchKernel(void *f, dim3 grid, dim3 block, void **args, size_t shared, void *s) { return launch(s); }
FN __cudaLaunchKernel(void *f, dim3 grid, dim3 block, void **args, size_t shared, void *s) { return launch(s); }
FN cudaLaunchCooperativeKernel(void *f, dim3 grid, dim3 block, void **args, size_t shared, void *s) { return launch(s); }
// f<<<grid, block, shared, stream>>>(...) is a push, a pop and a launch.
static __thread launch_config pushed;
FN __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *s) { pushed = (launch_config){grid, block, shared, s}; return 0; }
FN __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void **s) {
  *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *s = pushed.stream;
  return 0;
}
FN cudaLaunchKernelExC(const launch_config *config) { return launch(config->stream); }

// cudaPointerAttributes: the kind of memory and the device. Memory of the host that is not the
// driver's has kind 0.
FN cudaPointerGetAttributes(int *a, void *p) {
  unsigned kind = 0;
  memset(a, 0, 24);
  if (inContext("cuPointerGetAttribute", (u64)&kind, 2, (u64)p, 0)) kind = 0;
  a[0] = kind > 2 ? 0 : kind;
  a[1] = kind ? current : -2; // cudaInvalidDeviceId
  if (kind == 2) *(void **)(a + 2) = p;
  if (kind == 1) *(void **)(a + 4) = p;
  return 0;
}
FN cudaHostRegister(void *p, size_t n, unsigned f) { return inContext("cuMemHostRegister_v2", (u64)p, n, f, 0); }
FN cudaHostUnregister(void *p) { return inContext("cuMemHostUnregister", (u64)p, 0, 0, 0); }
FN cudaDeviceGetStreamPriorityRange(int *a, int *b) { return inContext("cuCtxGetStreamPriorityRange", (u64)a, (u64)b, 0, 0); }
FN cudaDeviceGetByPCIBusId(int *d, const char *id) { return inContext("cuDeviceGetByPCIBusId", (u64)d, (u64)id, 0, 0); }
FN cudaDeviceGetLimit(size_t *v, int limit) { return inContext("cuCtxGetLimit", (u64)v, limit, 0, 0); }
FN cudaHostGetDevicePointer(void **d, void *p, unsigned f) { return inContext("cuMemHostGetDevicePointer_v2", (u64)d, (u64)p, f, 0); }
FN cudaDeviceGetPCIBusId(char *p, int n, int d) { return inContext("cuDeviceGetPCIBusId", (u64)p, n, d, 0); }
FN cudaDeviceCanAccessPeer(int *v, int a, int b) { return inContext("cuDeviceCanAccessPeer", (u64)v, a, b, 0); }
FN cudaDeviceGetDefaultMemPool(void **p, int d) { return inContext("cuDeviceGetDefaultMemPool", (u64)p, d, 0, 0); }
FN cudaMemPoolGetAttribute(void *p, int a, void *v) { return inContext("cuMemPoolGetAttribute", (u64)p, a, (u64)v, 0); }
FN cudaMemPoolSetAttribute(void *p, int a, void *v) { return inContext("cuMemPoolSetAttribute", (u64)p, a, (u64)v, 0); }
FN cudaDeviceGetMemPool(void **p, int d) { return inContext("cuDeviceGetMemPool", (u64)p, d, 0, 0); }
FN cudaDeviceSetMemPool(int d, void *p) { return inContext("cuDeviceSetMemPool", d, (u64)p, 0, 0); }
FN cudaMemPoolCreate(void **p, const void *properties) { return inContext("cuMemPoolCreate", (u64)p, (u64)properties, 0, 0); }
FN cudaMemPoolDestroy(void *p) { return inContext("cuMemPoolDestroy", (u64)p, 0, 0, 0); }
FN cudaMallocFromPoolAsync(void **p, size_t n, void *pool, void *s) { return inContext("cuMemAllocFromPoolAsync", (u64)p, n, (u64)pool, (u64)s); }
FN cudaMallocPitch(void **p, size_t *pitch, size_t w, size_t h) {
  int e = begin();
  return e ? e : driver7("cuMemAllocPitch_v2", (u64)p, (u64)pitch, w, h, 16, 0, 0);
}
FN cudaMemPoolTrimTo(void *p, size_t n) { return inContext("cuMemPoolTrimTo", (u64)p, n, 0, 0); }
FN cudaMemset(void *a, int v, size_t n) { return inContext("cuMemsetD8_v2", (u64)a, v & 255, n, 0); }
FN cudaMemsetAsync(void *a, int v, size_t n, void *s) { return inContext("cuMemsetD8Async", (u64)a, v & 255, n, (u64)s); }
FN cudaStreamCreate(void **s) { return inContext("cuStreamCreate", (u64)s, 0, 0, 0); }
FN cudaStreamCreateWithFlags(void **s, unsigned f) { return inContext("cuStreamCreate", (u64)s, f, 0, 0); }
FN cudaStreamCreateWithPriority(void **s, unsigned f, int p) { return inContext("cuStreamCreateWithPriority", (u64)s, f, p, 0); }
FN cudaStreamDestroy(void *s) { return inContext("cuStreamDestroy_v2", (u64)s, 0, 0, 0); }
FN cudaStreamSynchronize(void *s) { return inContext("cuStreamSynchronize", (u64)s, 0, 0, 0); }
FN cudaStreamGetFlags(void *s, unsigned *v) { return inContext("cuStreamGetFlags", (u64)s, (u64)v, 0, 0); }
FN cudaStreamGetPriority(void *s, int *v) { return inContext("cuStreamGetPriority", (u64)s, (u64)v, 0, 0); }
FN cudaStreamAddCallback(void *s, void *f, void *data, unsigned flags) { return inContext("cuStreamAddCallback", (u64)s, (u64)f, (u64)data, flags); }
FN cudaLaunchHostFunc(void *s, void *f, void *data) { return inContext("cuLaunchHostFunc", (u64)s, (u64)f, (u64)data, 0); }
FN cudaStreamIsCapturing(void *s, int *v) { return inContext("cuStreamIsCapturing", (u64)s, (u64)v, 0, 0); }
FN cudaEventCreate(void **e) { return inContext("cuEventCreate", (u64)e, 0, 0, 0); }
FN cudaEventCreateWithFlags(void **e, unsigned f) { return inContext("cuEventCreate", (u64)e, f, 0, 0); }
FN cudaEventDestroy(void *e) { return inContext("cuEventDestroy_v2", (u64)e, 0, 0, 0); }
FN cudaEventRecord(void *e, void *s) { return inContext("cuEventRecord", (u64)e, (u64)s, 0, 0); }
FN cudaEventRecordWithFlags(void *e, void *s, unsigned f) { return inContext("cuEventRecordWithFlags", (u64)e, (u64)s, f, 0); }
FN cudaEventQuery(void *e) { return inContext("cuEventQuery", (u64)e, 0, 0, 0); }
FN cudaEventElapsedTime(float *t, void *a, void *b) { return inContext("cuEventElapsedTime", (u64)t, (u64)a, (u64)b, 0); }
FN cudaStreamQuery(void *s) { return inContext("cuStreamQuery", (u64)s, 0, 0, 0); }
FN cudaStreamWaitEvent(void *s, void *e, unsigned f) { return inContext("cuStreamWaitEvent", (u64)s, (u64)e, f, 0); }
FN cudaStreamBeginCapture(void *s, int mode) { return inContext("cuStreamBeginCapture_v2", (u64)s, mode, 0, 0); }
FN cudaStreamEndCapture(void *s, void **g) { return inContext("cuStreamEndCapture", (u64)s, (u64)g, 0, 0); }
#if CUDART == 13
FN cudaStreamGetCaptureInfo(void *s, int *status, u64 *id, void **g, void **d, void **edges, size_t *n) {
  int e = begin();
  return e ? e : driver7("cuStreamGetCaptureInfo_v3", (u64)s, (u64)status, (u64)id, (u64)g, (u64)d, (u64)edges, (u64)n);
}
#else
FN cudaStreamGetCaptureInfo_v2(void *s, int *status, u64 *id, void **g, void **d, size_t *n) {
  int e = begin();
  return e ? e : driver7("cuStreamGetCaptureInfo_v2", (u64)s, (u64)status, (u64)id, (u64)g, (u64)d, (u64)n, 0);
}
#endif
FN cudaThreadExchangeStreamCaptureMode(int *m) { return inContext("cuThreadExchangeStreamCaptureMode", (u64)m, 0, 0, 0); }
FN cudaGraphInstantiate(void **x, void *g) { return inContext("cuGraphInstantiateWithFlags", (u64)x, (u64)g, 0, 0); }
FN cudaGraphInstantiateWithFlags(void **x, void *g) { return inContext("cuGraphInstantiateWithFlags", (u64)x, (u64)g, 0, 0); }
FN cudaGraphGetNodes(void *g, void **nodes, size_t *n) { return inContext("cuGraphGetNodes", (u64)g, (u64)nodes, (u64)n, 0); }
FN cudaGraphLaunch(void *x, void *s) { return inContext("cuGraphLaunch", (u64)x, (u64)s, 0, 0); }
FN cudaGraphExecDestroy(void *x) { return inContext("cuGraphExecDestroy", (u64)x, 0, 0, 0); }
FN cudaGraphDestroy(void *g) { return inContext("cuGraphDestroy", (u64)g, 0, 0, 0); }
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

// cudaFuncAttributes: threads of a block, registers, versions of its code, its shared memory.
FN cudaFuncGetAttributes(char *a, void *f) {
  int major = 9, minor = 0;
  (void)f;
  cudaDeviceGetAttribute(&major, 75, current);
  cudaDeviceGetAttribute(&minor, 76, current);
  memset(a, 0, 64);
  // The architecture that programs are compiled for, of those the device runs.
  static const int compiled[] = {50, 60, 70, 75, 80, 86, 90, 100, 120};
  int code = 0;
  for (unsigned i = 0; i < sizeof compiled / sizeof *compiled && compiled[i] <= 10 * major + minor; i++) code = compiled[i];
  const int values[] = {1024, 32, code, code, 0, 49152};
  memcpy(a + 24, values, sizeof values);
  return 0;
}
FN cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n) { *n = 2; return 0; }
FN cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n) { *n = 2; return 0; }
// Names and texts of errors are the driver's, in the runtime's form: CUDA_ERROR_OUT_OF_MEMORY is
// cudaErrorMemoryAllocation, which programs look for.
__attribute__((visibility("default"))) const char *cudaGetErrorString(int e) {
  const char *text = 0;
  return !e ? "no error" : driver("cuGetErrorString", e, (u64)&text, 0, 0) || !text ? "unrecognized error code" : text;
}
__attribute__((visibility("default"))) const char *cudaGetErrorName(int e) {
  static const struct { int code; const char *name; } names[] = {
    {0, "cudaSuccess"}, {1, "cudaErrorInvalidValue"}, {2, "cudaErrorMemoryAllocation"}, {3, "cudaErrorInitializationError"},
    {35, "cudaErrorInsufficientDriver"}, {100, "cudaErrorNoDevice"}, {101, "cudaErrorInvalidDevice"}, {201, "cudaErrorDeviceUninitialized"},
    {400, "cudaErrorInvalidResourceHandle"}, {500, "cudaErrorSymbolNotFound"}, {600, "cudaErrorNotReady"}, {700, "cudaErrorIllegalAddress"},
    {801, "cudaErrorNotSupported"}, {901, "cudaErrorStreamCaptureInvalidated"},
  };
  for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
    if (names[i].code == e) return names[i].name;
  return "cudaErrorUnknown";
}

// An array of the runtime's has no counterpart here.
enum { NOT_SUPPORTED = 801 };
FN cudaMallocArray(void) { return NOT_SUPPORTED; }
FN cudaMalloc3DArray(void) { return NOT_SUPPORTED; }
FN cudaMallocMipmappedArray(void) { return NOT_SUPPORTED; }
FN cudaMalloc3D(void) { return NOT_SUPPORTED; }
FN cudaGetSymbolAddress(void) { return NOT_SUPPORTED; }

// What the compiler of kernels puts into a program's start.
__attribute__((visibility("default"))) void **__cudaRegisterFatBinary(void *f) { static void *h[4]; (void)f; return h; }
__attribute__((visibility("default"))) void __cudaRegisterFatBinaryEnd(void **h) { (void)h; }
__attribute__((visibility("default"))) void __cudaUnregisterFatBinary(void **h) { (void)h; }
__attribute__((visibility("default"))) void __cudaRegisterFunction(void) {}
__attribute__((visibility("default"))) void __cudaRegisterVar(void) {}

#include "static.h"
