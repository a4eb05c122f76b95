// A stand-in for NVIDIA's libcuda.so.1, so that XLA's real GPU plugin makes its
// client on a machine without a GPU. One device; memory is addresses and sums,
// nothing is ever computed or copied.
//
// The environment says what the device is: STANDIN_TOTAL and STANDIN_FREE in
// bytes, STANDIN_CC (80 is compute capability 8.0), STANDIN_VMM=0 a device without
// virtual memory management, STANDIN_LOG a file that gets
// one line for each memory call: name, the size asked for in bytes (or an
// attribute and its value), "=", the CUresult (0, or 2 for out of memory) and the
// address, if there is one.
//
// Build: gcc -O1 -shared -fPIC -Wl,-soname,libcuda.so.1 -o libcuda.so.1 libcuda.c -lpthread
//
// Signatures are those of NVIDIA's CUDA driver API reference, 12.x. Handles are
// plain numbers. Functions that are not here are looked for by the plugin only
// when it calls them; it then sees CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND.

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
typedef uintptr_t ptr; // any handle
#define FN __attribute__((visibility("default"))) int

enum { OK = 0, INVALID = 1, OOM = 2, NOT_FOUND = 500, NOT_READY = 600, NOT_SUPPORTED = 801 };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static FILE *logFile;
static u64 total, freeBytes, nextAddr = 0x7f0000000000, nextHandle = 0x1000;
static int cc = 80;

static u64 env(const char *name, u64 other) {
  const char *v = getenv(name);
  return v ? strtoull(v, 0, 10) : other;
}

__attribute__((constructor)) static void begin(void) {
  total = env("STANDIN_TOTAL", 85045542912);
  freeBytes = env("STANDIN_FREE", total);
  cc = (int)env("STANDIN_CC", 80);
  const char *path = getenv("STANDIN_LOG");
  if (path) logFile = fopen(path, "a");
}

static void say(const char *format, ...) {
  if (!logFile) return;
  va_list args;
  va_start(args, format);
  vfprintf(logFile, format, args);
  va_end(args);
  fflush(logFile);
}

// What lives where: address or handle, and its bytes.
static struct { u64 at, size; int charged; } live[1 << 16];
static int liveCount;

static u64 find(u64 at) {
  for (int i = 0; i < liveCount; i++) if (live[i].at == at) return i + 1;
  return 0;
}

// take makes an address (or handle) for so many bytes, on the device's account if
// charged. 0 when the device has not so much.
static u64 take(u64 size, int charged) {
  u64 at = 0;
  pthread_mutex_lock(&mu);
  if ((!charged || size <= freeBytes) && liveCount < 1 << 16) {
    at = nextAddr;
    nextAddr += (size + (2 << 20) - 1) / (2 << 20) * (2 << 20) + (2 << 20);
    if (charged) freeBytes -= size;
    live[liveCount].at = at, live[liveCount].size = size, live[liveCount++].charged = charged;
  }
  pthread_mutex_unlock(&mu);
  return at;
}

static int give(const char *name, u64 at) {
  pthread_mutex_lock(&mu);
  u64 i = find(at);
  u64 size = 0;
  if (i) {
    size = live[i - 1].size;
    if (live[i - 1].charged) freeBytes += size;
    live[i - 1] = live[--liveCount];
  }
  pthread_mutex_unlock(&mu);
  say("%s %llu = %d\n", name, (unsigned long long)size, i ? OK : INVALID);
  return i ? OK : INVALID;
}

static int alloc(const char *name, u64 *at, u64 size, int charged) {
  *at = take(size, charged);
  say("%s %llu = %d %llu\n", name, (unsigned long long)size, *at ? OK : OOM, (unsigned long long)*at);
  return *at ? OK : OOM;
}

// --- the library and the device

FN cuInit(unsigned f) { return OK; }
FN cuDriverGetVersion(int *v) { *v = (int)env("STANDIN_DRIVER", 13000); return OK; }
FN cuGetErrorName(int e, const char **s) { *s = e == OOM ? "CUDA_ERROR_OUT_OF_MEMORY" : e == NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR_OTHER"; return OK; }
FN cuGetErrorString(int e, const char **s) { *s = e == OOM ? "out of memory" : e == NOT_SUPPORTED ? "operation not supported" : "other error"; return OK; }
FN cuDeviceGetCount(int *n) { *n = 1; return OK; }
FN cuDeviceGet(int *d, int i) { *d = i; return i ? 101 : OK; }
FN cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "Stand-in"); return OK; }
FN cuDeviceGetPCIBusId(char *s, int n, int d) { snprintf(s, n, "0000:00:00.0"); return OK; }
FN cuDeviceGetUuid(char *u, int d) { memset(u, 7, 16); return OK; }
FN cuDeviceGetUuid_v2(char *u, int d) { memset(u, 7, 16); return OK; }
FN cuDeviceTotalMem_v2(u64 *n, int d) { *n = total; return OK; }
FN cuDeviceComputeCapability(int *a, int *b, int d) { *a = cc / 10; *b = cc % 10; return OK; }
FN cuDeviceCanAccessPeer(int *can, int a, int b) { *can = a == b; return OK; }
FN cuDeviceGetP2PAttribute(int *v, int attr, int a, int b) { *v = 0; return OK; }

FN cuDeviceGetAttribute(int *v, int attr, int d) {
  switch (attr) {
  case 1: case 2: case 3: *v = 1024; break;             // threads of a block
  case 4: *v = 64; break;
  case 5: *v = 2147483647; break;                       // blocks of a grid
  case 6: case 7: *v = 65535; break;
  case 8: *v = 49152; break;                            // shared memory of a block
  case 9: *v = 65536; break;                            // constant memory
  case 10: *v = 32; break;                              // warp
  case 11: *v = 2147483647; break;
  case 12: case 82: *v = 65536; break;                  // registers of a block, of a multiprocessor
  case 13: *v = 1410000; break;                         // kHz
  case 14: *v = 512; break;                             // texture alignment
  case 16: *v = 108; break;                             // multiprocessors
  case 36: *v = 1215000; break;                         // memory kHz
  case 37: *v = 5120; break;                            // bus width
  case 38: *v = 41943040; break;                        // L2 bytes
  case 39: *v = 2048; break;                            // threads of a multiprocessor
  case 75: *v = cc / 10; break;
  case 76: *v = cc % 10; break;
  case 81: *v = 167936; break;                          // shared memory of a multiprocessor
  case 97: *v = 166912; break;                          // opt-in shared memory of a block
  case 106: *v = 32; break;                             // blocks of a multiprocessor
  case 15: case 19: case 31: case 40: case 41: case 78: case 79: case 80: case 83: case 89: case 90:
  case 92: case 93: case 94: case 122: case 123:        // stream memory operations
  case 102: *v = (int)env("STANDIN_VMM", 1); break;     // virtual memory management
  case 103: case 110:                                   // file handles, RDMA with it
  case 115: *v = 1; break;                              // memory pools
  default: *v = 0;
  }
  return OK;
}

// --- contexts: one, current everywhere

static ptr current = 1;
FN cuDevicePrimaryCtxRetain(ptr *c, int d) { *c = 1; return OK; }
FN cuDevicePrimaryCtxRelease_v2(int d) { return OK; }
FN cuDevicePrimaryCtxSetFlags_v2(int d, unsigned f) { return OK; }
FN cuDevicePrimaryCtxSetFlags(int d, unsigned f) { return OK; }
FN cuDevicePrimaryCtxGetState(int d, unsigned *f, int *on) { *f = 0; *on = 1; return OK; }
FN cuCtxGetCurrent(ptr *c) { *c = current; return OK; }
FN cuCtxSetCurrent(ptr c) { return OK; }
FN cuCtxGetDevice(int *d) { *d = 0; return OK; }
FN cuCtxGetId(ptr c, u64 *id) { *id = 1; return OK; }
FN cuCtxGetApiVersion(ptr c, unsigned *v) { *v = 3020; return OK; }
FN cuCtxEnablePeerAccess(ptr c, unsigned f) { return OK; }
FN cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return OK; }
FN cuCtxGetSharedMemConfig(int *v) { *v = 1; return OK; }
FN cuCtxSetSharedMemConfig(int v) { return OK; }

// --- work: streams do nothing, but host functions run, one after the other, on a
// thread of their own, as with the real driver (the caller may hold locks).

struct job { void (*fn)(void *); void *arg; struct job *next; };
static struct job *first, **last = &first;
static int running, started;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;

__attribute__((noreturn)) static void *worker(void *unused) { // never returns
  pthread_mutex_lock(&mu);
  while (1) {
    while (!first) pthread_cond_wait(&change, &mu);
    struct job *j = first;
    if (!(first = j->next)) last = &first;
    running = 1;
    pthread_mutex_unlock(&mu);
    j->fn(j->arg);
    free(j);
    pthread_mutex_lock(&mu);
    running = 0;
    pthread_cond_broadcast(&change);
  }
}

static int enqueue(void (*fn)(void *), void *arg) {
  struct job *j = malloc(sizeof *j);
  j->fn = fn, j->arg = arg, j->next = 0;
  pthread_mutex_lock(&mu);
  if (!started) { pthread_t t; started = !pthread_create(&t, 0, worker, 0); }
  *last = j, last = &j->next;
  pthread_cond_broadcast(&change);
  pthread_mutex_unlock(&mu);
  return OK;
}

static int drain(int wait) {
  pthread_mutex_lock(&mu);
  while (wait && (first || running)) pthread_cond_wait(&change, &mu);
  int busy = first || running;
  pthread_mutex_unlock(&mu);
  return busy ? NOT_READY : OK;
}

static int handle(ptr *h) { *h = __sync_fetch_and_add(&nextHandle, 16); return OK; }

FN cuCtxSynchronize(void) { say("cuCtxSynchronize = 0\n"); return drain(1); }
FN cuStreamCreate(ptr *s, unsigned f) { return handle(s); }
FN cuStreamCreateWithPriority(ptr *s, unsigned f, int p) { return handle(s); }
FN cuStreamDestroy_v2(ptr s) { return OK; }
FN cuStreamSynchronize(ptr s) { return drain(1); }
FN cuStreamQuery(ptr s) { return drain(0); }
FN cuStreamWaitEvent(ptr s, ptr e, unsigned f) { return OK; }
FN cuStreamGetCtx(ptr s, ptr *c) { *c = 1; return OK; }
FN cuStreamIsCapturing(ptr s, int *v) { *v = 0; return OK; }
FN cuStreamGetPriority(ptr s, int *v) { *v = 0; return OK; }
FN cuThreadExchangeStreamCaptureMode(int *m) { return OK; }
FN cuLaunchHostFunc(ptr s, void (*fn)(void *), void *arg) { return enqueue(fn, arg); }
FN cuStreamWriteValue64_v2(ptr s, u64 at, u64 v, unsigned f) { say("cuStreamWriteValue64 = 0\n"); return OK; }
FN cuStreamWriteValue32_v2(ptr s, u64 at, uint32_t v, unsigned f) { return OK; }
FN cuEventCreate(ptr *e, unsigned f) { return handle(e); }
FN cuEventDestroy_v2(ptr e) { return OK; }
FN cuEventRecord(ptr e, ptr s) { return OK; }
FN cuEventQuery(ptr e) { return drain(0); }
FN cuEventSynchronize(ptr e) { return drain(1); }
FN cuEventElapsedTime(float *ms, ptr a, ptr b) { *ms = 0; return OK; }
FN cuEventElapsedTime_v2(float *ms, ptr a, ptr b) { *ms = 0; return OK; }
FN cuMemcpyHtoD_v2(u64 to, const void *from, u64 n) { return OK; }
FN cuMemcpyDtoH_v2(void *to, u64 from, u64 n) { memset(to, 0, n); return OK; }
FN cuMemcpyDtoD_v2(u64 to, u64 from, u64 n) { return OK; }
FN cuMemcpyHtoDAsync_v2(u64 to, const void *from, u64 n, ptr s) { return OK; }
FN cuMemcpyDtoHAsync_v2(void *to, u64 from, u64 n, ptr s) { memset(to, 0, n); return OK; }
FN cuMemcpyDtoDAsync_v2(u64 to, u64 from, u64 n, ptr s) { return OK; }
FN cuMemsetD8_v2(u64 at, unsigned char v, u64 n) { return OK; }
FN cuMemsetD32_v2(u64 at, unsigned v, u64 n) { return OK; }
FN cuMemsetD8Async(u64 at, unsigned char v, u64 n, ptr s) { return OK; }
FN cuMemsetD32Async(u64 at, unsigned v, u64 n, ptr s) { return OK; }

// --- memory

FN cuMemGetInfo_v2(u64 *f, u64 *t) { *f = freeBytes; *t = total; return OK; }
FN cuMemAlloc_v2(u64 *at, u64 n) { return alloc("cuMemAlloc", at, n, 1); }
FN cuMemFree_v2(u64 at) { return give("cuMemFree", at); }
FN cuMemAllocManaged(u64 *at, u64 n, unsigned f) { return alloc("cuMemAllocManaged", at, n, 0); } // may oversubscribe
FN cuMemHostAlloc(void **p, u64 n, unsigned f) { *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096); say("cuMemHostAlloc %llu = %d\n", (unsigned long long)n, *p ? OK : OOM); return *p ? OK : OOM; }
FN cuMemFreeHost(void *p) { free(p); return OK; }
FN cuMemHostRegister_v2(void *p, u64 n, unsigned f) { return OK; }
FN cuMemHostUnregister(void *p) { return OK; }
FN cuMemHostGetDevicePointer_v2(u64 *at, void *p, unsigned f) { *at = (u64)p; return OK; }
FN cuMemGetAddressRange_v2(u64 *base, u64 *n, u64 at) {
  for (int i = 0; i < liveCount; i++)
    if (live[i].at <= at && at < live[i].at + live[i].size) { if (base) *base = live[i].at; if (n) *n = live[i].size; return OK; }
  return NOT_FOUND;
}
FN cuPointerGetAttribute(void *v, int attr, u64 at) {
  int onDevice = at >= 0x7f0000000000 && at < nextAddr && cuMemGetAddressRange_v2(0, 0, at) == OK;
  if (attr == 2) { *(int *)v = onDevice ? 2 : 1; return OK; } // memory type
  if (attr == 8 || attr == 9) { *(int *)v = 0; return OK; }   // managed; device ordinal
  return INVALID;
}

FN cuPointerGetAttributes(unsigned n, int *attrs, void **v, u64 at) {
  for (unsigned i = 0; i < n; i++) cuPointerGetAttribute(v[i], attrs[i], at);
  return OK;
}

// Virtual memory management. A handle is what costs; a range and a mapping do not.
FN cuMemGetAllocationGranularity(u64 *g, const void *prop, int which) { *g = 2 << 20; return OK; }
FN cuMemCreate(u64 *h, u64 n, const int *prop, u64 f) {
  *h = take(n, 1); // prop is type, requested handle types, ...
  say("cuMemCreate %llu = %d\n", (unsigned long long)n, *h ? OK : OOM);
  return *h ? OK : OOM;
}
FN cuMemRelease(u64 h) { return give("cuMemRelease", h); }
FN cuMemAddressReserve(u64 *at, u64 n, u64 align, u64 want, u64 f) { return alloc("cuMemAddressReserve", at, n, 0); }
FN cuMemAddressFree(u64 at, u64 n) { return give("cuMemAddressFree", at); }
FN cuMemMap(u64 at, u64 n, u64 off, u64 h, u64 f) { return OK; }
FN cuMemUnmap(u64 at, u64 n) { return OK; }
FN cuMemSetAccess(u64 at, u64 n, const void *desc, u64 count) { return OK; }
FN cuMemRetainAllocationHandle(u64 *h, void *at) { return INVALID; }

// Pools. What is freed goes back at once.
FN cuDeviceGetDefaultMemPool(ptr *p, int d) { say("cuDeviceGetDefaultMemPool = 0\n"); *p = 0x900; return OK; }
FN cuDeviceGetMemPool(ptr *p, int d) { *p = 0x900; return OK; }
FN cuDeviceSetMemPool(int d, ptr p) { return OK; }
FN cuMemPoolCreate(ptr *p, const void *props) { say("cuMemPoolCreate = 0\n"); return handle(p); }
FN cuMemPoolDestroy(ptr p) { return OK; }
static u64 attributes[9]; // one set for all pools: 1, 2, 3 are switches (int), 4 is the release threshold, 6 and 8 the peaks
FN cuMemPoolSetAttribute(ptr p, int attr, void *v) {
  u64 x = attributes[attr % 9] = attr < 4 ? *(unsigned *)v : *(u64 *)v;
  say("cuMemPoolSetAttribute %d %llu = 0\n", attr, (unsigned long long)x);
  return OK;
}
FN cuMemPoolGetAttribute(ptr p, int attr, void *v) { if (attr < 4) *(int *)v = attributes[attr % 9]; else *(u64 *)v = attributes[attr % 9]; return OK; }
FN cuMemPoolSetAccess(ptr p, const void *desc, u64 n) { return OK; }
FN cuMemPoolGetAccess(int *f, ptr p, const void *loc) { *f = 3; return OK; }
FN cuMemPoolTrimTo(ptr p, u64 n) { return OK; }
FN cuMemAllocFromPoolAsync(u64 *at, u64 n, ptr p, ptr s) { return alloc("cuMemAllocFromPoolAsync", at, n, 1); }
FN cuMemAllocAsync(u64 *at, u64 n, ptr s) { return alloc("cuMemAllocAsync", at, n, 1); }
FN cuMemFreeAsync(u64 at, ptr s) { return give("cuMemFreeAsync", at); }

// --- NVML and the CUDA runtime: as libnvidia-ml.so.1 and libcudart.so.12 the same
// file says just enough for the plugin to go on.

FN nvmlInit(void) { return 0; }
FN nvmlInit_v2(void) { return 0; }
FN nvmlShutdown(void) { return 0; }
FN nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
FN nvmlDeviceGetHandleByPciBusId_v2(const char *id, ptr *d) { *d = 1; return 0; }
FN nvmlDeviceGetHandleByIndex_v2(unsigned i, ptr *d) { *d = 1; return 0; }
FN cudaRuntimeGetVersion(int *v) { *v = 12090; return 0; }
FN cudaDriverGetVersion(int *v) { *v = 13000; return 0; }
FN cudaGetDeviceCount(int *n) { *n = 1; return 0; }
FN cudaGetDevice(int *d) { *d = 0; return 0; }
FN cudaSetDevice(int d) { return 0; }
FN cudaGetLastError(void) { return 0; }
FN cudaPeekAtLastError(void) { return 0; }
FN nvmlSystemGetDriverVersion(char *s, unsigned n) { snprintf(s, n, "580.00.00"); return 0; }
FN nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 13000; return 0; }
__attribute__((visibility("default"))) const char *nvmlErrorString(int e) { return "not supported"; }
FN nvmlDeviceGetGpuFabricInfoV(ptr d, void *info) { return 3; } // not supported
FN nvmlDeviceGetGpuFabricInfo(ptr d, void *info) { return 3; }
FN nvmlDeviceGetUUID(ptr d, char *s, unsigned n) { snprintf(s, n, "GPU-07070707-0707-0707-0707-070707070707"); return 0; }
FN nvmlDeviceGetMaxPcieLinkGeneration(ptr d, unsigned *v) { *v = 4; return 0; }
FN nvmlDeviceGetMaxPcieLinkWidth(ptr d, unsigned *v) { *v = 16; return 0; }
FN nvmlDeviceGetCurrPcieLinkGeneration(ptr d, unsigned *v) { *v = 4; return 0; }
FN nvmlDeviceGetCurrPcieLinkWidth(ptr d, unsigned *v) { *v = 16; return 0; }
FN nvmlDeviceGetNvLinkState(ptr d, unsigned link, int *v) { return 3; }
FN nvmlDeviceGetFieldValues(ptr d, int n, void *v) { return 3; }
FN nvmlDeviceGetMigMode(ptr d, unsigned *now, unsigned *next) { return 3; }
FN nvmlSystemGetConfComputeState(void *v) { return 3; }
