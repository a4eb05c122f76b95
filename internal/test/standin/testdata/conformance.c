// A program that loads libcuda.so.1 as any does and checks that the simulated
// driver keeps the driver's rules. It runs the tests that its arguments name, or
// all, and prints a line for each: "ok NAME", or "FAIL NAME" with what was wrong.
// It ends with 1 if one failed.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t u64;
typedef void *ptr;

static void *lib;
static const char *test;
static int failed, failures;

static void *function(const char *name) {
  void *f = dlsym(lib, name);
  if (!f) printf("FAIL %s: no function %s\n", test, name), exit(1);
  return f;
}

// CU calls a function of the driver; words are as wide as its parameters.
#define CU(name, ...) ((int (*)())function(#name))(__VA_ARGS__)

#define WANT(expression, wanted)                                                                                 \
  do {                                                                                                           \
    long long got_ = (long long)(expression), want_ = (long long)(wanted);                                       \
    if (got_ != want_) failed = 1, printf("FAIL %s: line %d: %s is %lld, want %lld\n", test, __LINE__, #expression, got_, want_); \
  } while (0)

enum { OK, INVALID_VALUE, OOM, NOT_INITIALIZED, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
       ILLEGAL_ADDRESS = 700, DESTROYED = 709, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, UNKNOWN = 999 };

#define MiB ((size_t)1 << 20)

static size_t freeBytes(void) {
  size_t f = 0, t;
  WANT(CU(cuMemGetInfo_v2, &f, &t), OK);
  return f;
}

static void *stream(unsigned flags) {
  ptr s = 0;
  WANT(CU(cuStreamCreate, &s, flags), OK);
  return s;
}

// --- before cuInit, and devices

static void beforeInit(void) { // runs first, by its place in the list
  int n;
  WANT(CU(cuDeviceGetCount, &n), NOT_INITIALIZED);
  WANT(CU(cuDriverGetVersion, &n), OK);
  WANT(n, 13000);
  const char *s = 0;
  WANT(CU(cuGetErrorName, OOM, &s), OK);
  WANT(s && !strcmp(s, "CUDA_ERROR_OUT_OF_MEMORY"), 1);
  WANT(CU(cuGetErrorName, 12345, &s), INVALID_VALUE);
  WANT(CU(cuInit, 1), INVALID_VALUE);
  WANT(CU(cuInit, 0), OK);
}

static void devices(void) {
  int n, d, major, minor;
  size_t total;
  char name[64], small[4], id[16], again[16];
  WANT(CU(cuDeviceGetCount, &n), OK);
  WANT(n, 1);
  WANT(CU(cuDeviceGet, &d, 0), OK);
  WANT(CU(cuDeviceGet, &d, 1), 101);
  WANT(CU(cuDeviceTotalMem_v2, &total, 0), OK);
  WANT(total, 24 * 1024 * MiB);
  WANT(CU(cuDeviceGetName, name, 64, 0), OK);
  WANT(strcmp(name, "sim:24GiB"), 0);
  WANT(CU(cuDeviceGetName, small, 4, 0), OK);
  WANT(strcmp(small, "sim"), 0);
  WANT(CU(cuDeviceGetUuid_v2, id, 0), OK);
  WANT(CU(cuDeviceGetUuid_v2, again, 0), OK);
  WANT(memcmp(id, again, 16), 0);
  WANT(CU(cuDeviceGetAttribute, &major, 75, 0), OK);
  WANT(CU(cuDeviceGetAttribute, &minor, 76, 0), OK);
  WANT(major * 10 + minor, 90);
  WANT(CU(cuDeviceGetPCIBusId, name, 64, 0), OK);
  WANT(CU(cuDeviceGetByPCIBusId, &d, name), OK);
  WANT(d, 0);
}

// --- contexts

static void contexts(void) {
  ptr primary, again, a, b, now, popped;
  int active, d;
  unsigned flags;
  u64 p;
  WANT(CU(cuMemAlloc_v2, &p, MiB), INVALID_CONTEXT);
  WANT(CU(cuDevicePrimaryCtxGetState, 0, &flags, &active), OK);
  WANT(active, 0);
  WANT(CU(cuDevicePrimaryCtxRetain, &primary, 0), OK);
  WANT(CU(cuDevicePrimaryCtxRetain, &again, 0), OK);
  WANT(primary == again, 1);
  WANT(CU(cuCtxSetCurrent, primary), OK);
  size_t before = freeBytes();

  // A stack for each thread.
  WANT(CU(cuCtxCreate_v2, &a, 0, 0), OK);
  WANT(CU(cuCtxCreate_v2, &b, 0, 0), OK);
  WANT(CU(cuCtxGetCurrent, &now), OK);
  WANT(now == b, 1);
  WANT(CU(cuMemAlloc_v2, &p, 4 * MiB), OK);
  WANT(CU(cuCtxPopCurrent_v2, &popped), OK);
  WANT(popped == b, 1);
  WANT(CU(cuCtxGetCurrent, &now), OK);
  WANT(now == a, 1);
  WANT(CU(cuCtxPushCurrent_v2, (ptr)0x1234), INVALID_CONTEXT);

  // What was allocated in a context goes with it.
  WANT(freeBytes(), before - 4 * MiB);
  WANT(CU(cuCtxDestroy_v2, b), OK);
  WANT(freeBytes(), before);
  WANT(CU(cuMemFree_v2, p), INVALID_VALUE);
  WANT(CU(cuCtxDestroy_v2, a), OK); // it was current, and is not any more
  WANT(CU(cuCtxGetCurrent, &now), OK);
  WANT(now == primary, 1);
  WANT(CU(cuCtxDestroy_v2, primary), INVALID_CONTEXT);

  // The primary one lives until it is released as often as retained.
  WANT(CU(cuMemAlloc_v2, &p, 4 * MiB), OK);
  WANT(CU(cuDevicePrimaryCtxRelease_v2, 0), OK);
  WANT(CU(cuCtxGetDevice, &d), OK);
  WANT(CU(cuDevicePrimaryCtxRelease_v2, 0), OK);
  WANT(CU(cuCtxGetDevice, &d), DESTROYED);
  WANT(CU(cuDevicePrimaryCtxRetain, &primary, 0), OK);
  WANT(CU(cuCtxSetCurrent, primary), OK);
  WANT(freeBytes(), before);
  WANT(CU(cuMemAlloc_v2, &p, 4 * MiB), OK);
  WANT(CU(cuDevicePrimaryCtxReset_v2, 0), OK);
  WANT(CU(cuDevicePrimaryCtxGetState, 0, &flags, &active), OK);
  WANT(active, 0);
  WANT(CU(cuDevicePrimaryCtxRetain, &primary, 0), OK);
  WANT(CU(cuCtxSetCurrent, primary), OK);
}

static void *otherThread(void *current) {
  WANT(CU(cuCtxGetCurrent, (ptr *)current), OK);
  return 0;
}

static void threads(void) {
  ptr current = (ptr)1;
  pthread_t t;
  pthread_create(&t, 0, otherThread, &current);
  pthread_join(t, 0);
  WANT(current == 0, 1);
}

// --- memory

static void memory(void) {
  u64 p, q, base;
  size_t n, before = freeBytes();
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  WANT(p >> 47 != 0, 1); // nowhere that the host's memory can be
  WANT(CU(cuMemFree_v2, p), OK);
  WANT(CU(cuMemAlloc_v2, &p, (size_t)0), INVALID_VALUE);
  WANT(CU(cuMemAlloc_v2, (u64 *)0, MiB), INVALID_VALUE);
  WANT(CU(cuMemAlloc_v2, &p, 25 * 1024 * MiB), OOM);
  WANT(CU(cuMemAlloc_v2, &p, (size_t)1 << 63), OOM);
  WANT(CU(cuMemAlloc_v2, &p, ~(size_t)0), OOM);
  WANT(CU(cuMemAlloc_v2, &p, 3 * MiB), OK);
  WANT(freeBytes(), before - 4 * MiB); // the granularity is 2 MiB
  WANT(CU(cuMemGetInfo_v2, (size_t *)0, (size_t *)0), OK);
  WANT(CU(cuMemGetAddressRange_v2, &base, &n, p + 5000), OK);
  WANT(base, p);
  WANT(n, 3 * MiB);
  WANT(CU(cuMemGetAddressRange_v2, (u64 *)0, (size_t *)0, p), OK);
  WANT(CU(cuMemGetAddressRange_v2, &base, &n, p + 3 * MiB), NOT_FOUND);
  WANT(CU(cuMemFree_v2, p + 256), INVALID_VALUE);
  WANT(CU(cuMemFree_v2, p), OK);
  WANT(CU(cuMemFree_v2, p), INVALID_VALUE);
  WANT(CU(cuMemFree_v2, (u64)0), OK);
  WANT(CU(cuMemAllocPitch_v2, &q, &n, (size_t)1000, (size_t)10, 4), OK);
  WANT(n, 1024);
  WANT(CU(cuMemFree_v2, q), OK);
  WANT(CU(cuMemAllocManaged, &q, 30 * 1024 * MiB, 1), OK); // more than the device has
  WANT(freeBytes(), before);
  WANT(CU(cuMemFree_v2, q), OK);
  WANT(freeBytes(), before);
}

static void pointers(void) {
  u64 p, w;
  int type, ordinal;
  void *h;
  char managed = 1;
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  WANT(CU(cuPointerGetAttribute, &type, 2, p), OK);
  WANT(type, 2);
  WANT(CU(cuPointerGetAttribute, &w, 11, p + 77), OK);
  WANT(w, p);
  WANT(CU(cuPointerGetAttribute, &w, 12, p + 77), OK);
  WANT(w, MiB);
  WANT(CU(cuPointerGetAttribute, &managed, 8, p), OK);
  WANT(managed, 0);
  WANT(CU(cuMemHostAlloc, &h, (size_t)5000, 0), OK);
  memset(h, 1, 5000);
  WANT(CU(cuPointerGetAttribute, &type, 2, (u64)h + 4000), OK);
  WANT(type, 1);
  WANT(CU(cuMemHostGetDevicePointer_v2, &w, h, 0), OK);
  WANT(w, (u64)h);
  int attributes[2] = {2, 9};
  void *values[2] = {&type, &ordinal};
  WANT(CU(cuPointerGetAttribute, &type, 2, (u64)&type), INVALID_VALUE); // unknown to the driver
  WANT(CU(cuPointerGetAttributes, 2, attributes, values, (u64)&type), OK);
  WANT(type, 0);
  WANT(CU(cuPointerGetAttributes, 2, attributes, values, p), OK);
  WANT(type, 2);
  WANT(ordinal, 0);
  WANT(CU(cuMemFreeHost, h), OK);
  WANT(CU(cuMemFreeHost, h), INVALID_VALUE);
  WANT(CU(cuMemFree_v2, p), OK);
}

static void copies(void) {
  u64 p, q;
  size_t n = 3 * MiB;
  unsigned char *a = malloc(n), *b = malloc(n);
  for (size_t i = 0; i < n; i++) a[i] = i * 7 + (i >> 12);
  ptr s = stream(1);
  WANT(CU(cuMemAlloc_v2, &p, n), OK);
  WANT(CU(cuMemAlloc_v2, &q, n), OK);
  WANT(CU(cuMemcpyHtoD_v2, p, a, n), OK);
  memset(b, 9, n);
  WANT(CU(cuMemcpyDtoH_v2, b, p, n), OK);
  WANT(memcmp(a, b, n), 0);
  WANT(CU(cuMemcpyDtoDAsync_v2, q + 100, p + 5, n - 200, s), OK);
  WANT(CU(cuMemcpyDtoHAsync_v2, b, q + 100, n - 200, s), OK);
  WANT(CU(cuStreamSynchronize, s), OK);
  WANT(memcmp(a + 5, b, n - 200), 0);
  WANT(CU(cuMemsetD32Async, q, 0x04030201, (size_t)100, s), OK);
  WANT(CU(cuMemcpyDtoHAsync_v2, b, q, (size_t)404, s), OK);
  WANT(CU(cuStreamSynchronize, s), OK);
  WANT(b[0] == 1 && b[1] == 2 && b[398] == 3 && b[399] == 4, 1);
  WANT(b[400], a[305]);
  WANT(CU(cuMemcpyHtoD_v2, p + 100, a, n), INVALID_VALUE); // over the end
  WANT(CU(cuMemcpyDtoH_v2, b, p, (size_t)0), OK);
  // The device's memory in the host's place, and what is nobody's.
  WANT(CU(cuMemsetD8_v2, p, 5, n), OK);
  WANT(CU(cuMemcpyHtoD_v2, q, (ptr)p, (size_t)8), OK);
  WANT(CU(cuMemcpyDtoH_v2, b, q, (size_t)8), OK);
  WANT(b[7], 5);
  WANT(CU(cuMemcpyHtoD_v2, q, (ptr)0x87fffff0000000, (size_t)8), INVALID_VALUE);
  WANT(CU(cuMemsetD32_v2, p + 2, 1, (size_t)4), INVALID_VALUE);
  WANT(CU(cuMemFree_v2, p), OK);
  WANT(CU(cuMemcpyDtoH_v2, b, p, (size_t)4), INVALID_VALUE);
  WANT(CU(cuMemFree_v2, q), OK);
  WANT(CU(cuStreamDestroy_v2, s), OK);
  free(a), free(b);
}

// --- pages

struct prop { int type, handles, location, id; void *w; unsigned char flags[8]; };
struct access { int location, id, flags; };

static void pages(void) {
  struct prop prop = {1, 0, 1, 0, 0, {0}};
  struct access access = {1, 0, 3};
  size_t g, before = freeBytes(), n;
  u64 at, h, h2, base, value = 0x1122334455667788, got = 0;
  WANT(CU(cuMemGetAllocationGranularity, &g, &prop, 0), OK);
  WANT(g, 2 * MiB);
  WANT(CU(cuMemAddressReserve, &at, 16 * MiB, (size_t)0, (u64)0, (u64)0), OK);
  WANT(CU(cuMemCreate, &h, 3 * MiB, &prop, (u64)0), INVALID_VALUE);
  WANT(CU(cuMemCreate, &h, 4 * MiB, &prop, (u64)0), OK);
  WANT(freeBytes(), before - 4 * MiB);
  WANT(CU(cuMemMap, at, 4 * MiB, (size_t)0, h, (u64)0), OK);
  WANT(CU(cuMemMap, at, 4 * MiB, (size_t)0, h, (u64)0), INVALID_VALUE);
  WANT(CU(cuMemcpyHtoD_v2, at, &value, sizeof value), INVALID_VALUE); // no access yet
  WANT(CU(cuMemSetAccess, at, 4 * MiB, &access, (size_t)1), OK);
  WANT(CU(cuMemcpyHtoD_v2, at, &value, sizeof value), OK);
  WANT(CU(cuMemcpyDtoH_v2, &got, at, sizeof got), OK);
  WANT(got, value);
  WANT(CU(cuMemGetAddressRange_v2, &base, &n, at + MiB), OK);
  WANT(base, at);
  WANT(n, 4 * MiB);
  WANT(CU(cuMemRetainAllocationHandle, &h2, (ptr)(at + MiB)), OK);
  WANT(h2, h);
  WANT(CU(cuMemRelease, h), OK);
  WANT(CU(cuMemRelease, h), OK); // retained once more
  WANT(CU(cuMemRelease, h), INVALID_VALUE);
  WANT(freeBytes(), before - 4 * MiB); // the mapping holds it
  WANT(CU(cuMemAddressFree, at, 16 * MiB), INVALID_VALUE);
  WANT(CU(cuMemUnmap, at, 4 * MiB), OK);
  WANT(freeBytes(), before);
  WANT(CU(cuMemAddressFree, at, 16 * MiB), OK);
}

// --- stream-ordered pools

// without_context allocates and frees in a thread that has no current context: a stream
// has one, and only the default streams need the thread's.
static void *without_context(void *s) {
  u64 p;
  WANT(CU(cuMemAllocAsync, &p, MiB, (ptr)0), INVALID_CONTEXT);
  WANT(CU(cuMemAllocAsync, &p, MiB, s), OK);
  WANT(CU(cuMemFreeAsync, p, s), OK);
  return 0;
}

static void pools(void) {
  ptr s = stream(1), pool, mine;
  u64 p, q, used = 0, most = ~(u64)0;
  WANT(CU(cuDeviceGetDefaultMemPool, &pool, 0), OK);
  WANT(CU(cuMemPoolSetAttribute, pool, 4, &most), OK); // keep what is free
  WANT(CU(cuMemAllocAsync, &p, MiB, s), OK);
  WANT(CU(cuMemPoolGetAttribute, pool, 7, &used), OK);
  WANT(used, MiB);
  WANT(CU(cuMemFreeAsync, p, s), OK);
  WANT(CU(cuMemFreeAsync, p, s), INVALID_VALUE);
  WANT(CU(cuMemAllocAsync, &q, MiB, s), OK);
  WANT(q, p); // the same stream may have it at once
  pthread_t thread;
  pthread_create(&thread, 0, without_context, s);
  pthread_join(thread, 0);
  WANT(CU(cuMemFree_v2, q), OK);
  struct { int type, handles, location, id; void *w; size_t max; char rest[56]; } props = {1, 0, 1, 0, 0, 64 * MiB, {0}};
  WANT(CU(cuMemPoolCreate, &mine, &props), OK);
  WANT(CU(cuMemAllocFromPoolAsync, &p, 65 * MiB, mine, s), OOM);
  WANT(CU(cuMemAllocFromPoolAsync, &p, 32 * MiB, mine, s), OK);
  WANT(CU(cuMemFreeAsync, p, s), OK);
  WANT(CU(cuStreamSynchronize, s), OK);
  WANT(CU(cuMemPoolDestroy, mine), OK);
  WANT(CU(cuMemAllocFromPoolAsync, &p, MiB, mine, s), INVALID_VALUE);
  WANT(CU(cuMemPoolTrimTo, pool, (size_t)0), OK);
  WANT(CU(cuMemPoolGetAttribute, pool, 5, &used), OK);
  WANT(used, 0);
  // The thread's own stream, by the names that end in _ptsz.
  WANT(CU(cuMemAllocAsync_ptsz, &p, MiB, (ptr)0), OK);
  WANT(CU(cuMemFreeAsync_ptsz, p, (ptr)0), OK);
  WANT(CU(cuStreamSynchronize, (ptr)2), OK);
  WANT(CU(cuStreamDestroy_v2, s), OK);
  WANT(CU(cuMemAllocAsync, &p, MiB, s), INVALID_HANDLE);
}

// --- streams and events

static int ran;
static void hostFunction(void *arg) { usleep(2000); ran += (int)(intptr_t)arg; }
static int held;
static void holding(void *arg) {
  (void)arg;
  __atomic_store_n(&ran, 1, __ATOMIC_RELEASE);
  while (__atomic_load_n(&held, __ATOMIC_ACQUIRE)) sched_yield();
}
static void callback(ptr s, int status, void *arg) { (void)s; ran += status ? 1000 : (int)(intptr_t)arg; }

static void streams(void) {
  ptr s = stream(1), e, context, again;
  u64 id = 0, id2 = 0;
  int priority;
  float ms = 1; ptr later = 0;
  WANT(CU(cuStreamGetCtx, s, &context), OK);
  WANT(CU(cuCtxGetCurrent, &again), OK);
  WANT(context == again, 1);
  WANT(CU(cuStreamGetId, s, &id), OK);
  WANT(CU(cuEventCreate, &e, 0), OK);
  WANT(CU(cuEventQuery, e), OK); // never recorded
  WANT(CU(cuLaunchHostFunc, s, hostFunction, (ptr)1), OK);
  WANT(CU(cuStreamAddCallback, s, callback, (ptr)20, 0), OK);
  WANT(CU(cuEventRecord, e, s), OK);
  WANT(CU(cuEventSynchronize, e), OK);
  WANT(ran, 21);
  WANT(CU(cuStreamQuery, s), OK);
  WANT(CU(cuLaunchHostFunc, s, hostFunction, (ptr)300), OK);
  WANT(CU(cuCtxSynchronize), OK);
  WANT(ran, 321);
  ms = 0;
  WANT(CU(cuEventCreate, &later, 0), OK);
  WANT(CU(cuEventRecord, later, s), OK);
  WANT(CU(cuEventElapsedTime, &ms, e, later), OK);
  WANT(ms > 0, 1); // programs that time kernels divide by it
  WANT(CU(cuEventDestroy_v2, later), OK);
  WANT(CU(cuEventDestroy_v2, e), OK);
  WANT(CU(cuEventRecord, e, s), INVALID_HANDLE);
  WANT(CU(cuStreamDestroy_v2, s), OK);
  WANT(CU(cuStreamQuery, s), INVALID_HANDLE);
  again = 0;
  WANT(CU(cuStreamCreateWithPriority, &again, 1, -9), OK);
  WANT(again == s, 1); // handles are used again
  WANT(CU(cuStreamGetId, again, &id2), OK);
  WANT(id != id2, 1);
  WANT(CU(cuStreamGetPriority, again, &priority), OK);
  WANT(priority, -5);
  WANT(CU(cuStreamDestroy_v2, again), OK);
}

// A conditional node has graphs for its bodies, in an array of the driver's.
static void conditionals(void) {
  struct { uint32_t type, reserved[3]; u64 handle; uint32_t kind, size; u64 *bodies; ptr context; u64 rest[26]; } node = {.type = 13, .size = 2};
  ptr graph, one, s = stream(1), captured;
  WANT(CU(cuGraphCreate, &graph, 0), OK);
  WANT(CU(cuGraphConditionalHandleCreate, &node.handle, graph, (ptr)0, 0, 0), OK);
  WANT(CU(cuGraphAddNode, &one, graph, (ptr)0, (u64)0, &node), OK);
  WANT(node.bodies && node.bodies[0] && node.bodies[1] && node.bodies[0] != node.bodies[1], 1);
  WANT(CU(cuStreamBeginCaptureToGraph, s, node.bodies[1], (ptr)0, (ptr)0, (u64)0, 2), OK);
  WANT(CU(cuStreamEndCapture, s, &captured), OK);
  node.size = 0;
  WANT(CU(cuGraphAddNode, &one, graph, (ptr)0, (u64)0, &node), INVALID_VALUE);
  WANT(CU(cuGraphDestroy, graph), OK);
  WANT(CU(cuStreamDestroy_v2, s), OK);
}

static void captures(void) {
  ptr s = stream(1), other = stream(1), e, graph, executable;
  u64 p, id = 0;
  int status = 7;
  unsigned mode = 2;
  WANT(CU(cuEventCreate, &e, 0), OK);
  WANT(CU(cuStreamIsCapturing, s, &status), OK);
  WANT(status, 0);
  WANT(CU(cuStreamEndCapture, s, &graph), 401);
  WANT(CU(cuStreamBeginCapture_v2, s, 0), OK);
  WANT(CU(cuStreamIsCapturing, s, &status), OK);
  WANT(status, 1);
  WANT(CU(cuStreamGetCaptureInfo_v2, s, &status, &id, &graph, (ptr)0, (ptr)0), OK);
  WANT(id != 0 && graph != 0, 1);
  WANT(CU(cuEventRecord, e, s), OK); // the other stream joins by the event
  WANT(CU(cuStreamWaitEvent, other, e, 0), OK);
  WANT(CU(cuStreamIsCapturing, other, &status), OK);
  WANT(status, 1);
  WANT(CU(cuMemAllocAsync, &p, MiB, s), OK); // a node of the graph
  WANT(CU(cuMemFreeAsync, p, s), OK);
  WANT(CU(cuStreamEndCapture, s, &graph), OK);
  WANT(CU(cuStreamIsCapturing, other, &status), OK);
  WANT(status, 0);
  WANT(CU(cuGraphInstantiateWithFlags, &executable, graph, (u64)0), OK);
  WANT(CU(cuGraphLaunch, executable, s), OK);
  WANT(CU(cuGraphDestroy, graph), OK);

  // What a capture forbids spoils it, unless the thread says that it knows.
  WANT(CU(cuStreamBeginCapture_v2, s, 0), OK);
  WANT(CU(cuMemAlloc_v2, &p, MiB), CAPTURE_UNSUPPORTED);
  WANT(CU(cuStreamEndCapture, s, &graph), CAPTURE_INVALIDATED);
  WANT(CU(cuStreamBeginCapture_v2, s, 0), OK);
  WANT(CU(cuThreadExchangeStreamCaptureMode, &mode), OK);
  WANT(mode, 0);
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  WANT(CU(cuMemFree_v2, p), OK);
  WANT(CU(cuThreadExchangeStreamCaptureMode, &mode), OK);
  WANT(mode, 2);
  WANT(CU(cuStreamSynchronize, s), CAPTURE_UNSUPPORTED);
  WANT(CU(cuStreamEndCapture, s, &graph), CAPTURE_INVALIDATED);
  WANT(CU(cuEventDestroy_v2, e), OK);
  WANT(CU(cuStreamDestroy_v2, s), OK);
  WANT(CU(cuStreamDestroy_v2, other), OK);
}

// Memory that a graph allocates is there from the launch to a free outside of the graph, also
// when graph and executable are gone.
static void graphMemory(void) {
  ptr s = stream(1), graph, executable;
  u64 p, q, value = 0x1122334455667788, got = 0;
  WANT(CU(cuDeviceGraphMemTrim, 0), OK);
  size_t before = freeBytes();
  WANT(CU(cuStreamBeginCapture_v2, s, 0), OK);
  WANT(CU(cuMemAllocAsync, &p, MiB, s), OK);
  WANT(CU(cuMemAllocAsync, &q, MiB, s), OK);
  WANT(CU(cuMemsetD8Async, q, 1, MiB, s), OK);
  WANT(CU(cuMemFreeAsync, q, s), OK);
  WANT(CU(cuStreamEndCapture, s, &graph), OK);
  WANT(CU(cuMemcpy, (u64)&got, p, (u64)8), INVALID_VALUE); // not launched
  WANT(CU(cuGraphInstantiateWithFlags, &executable, graph, (u64)0), OK);
  WANT(CU(cuGraphDestroy, graph), OK);
  WANT(CU(cuMemcpy, (u64)&got, p, (u64)8), INVALID_VALUE);
  WANT(CU(cuGraphLaunch, executable, s), OK);
  WANT(CU(cuMemcpyHtoD_v2, p, &value, (size_t)8), OK);
  WANT(CU(cuMemcpy, (u64)&got, p, (u64)8), OK);
  WANT(got, value);
  WANT(CU(cuMemcpy, (u64)&got, q, (u64)8), INVALID_VALUE); // the graph has freed it
  WANT(CU(cuGraphExecDestroy, executable), OK);
  WANT(CU(cuMemcpyDtoHAsync_v2, &got, p, (size_t)8, s), OK);
  WANT(CU(cuDeviceGraphMemTrim, 0), OK);
  WANT(freeBytes() < before, 1); // it lives
  WANT(CU(cuMemFreeAsync, p, s), OK);
  WANT(CU(cuMemFreeAsync, p, s), INVALID_VALUE);
  WANT(CU(cuMemcpy, (u64)&got, p, (u64)8), INVALID_VALUE);
  WANT(CU(cuDeviceGraphMemTrim, 0), OK);
  WANT(freeBytes(), before);
  WANT(CU(cuStreamDestroy_v2, s), OK);
}

// Memory of the host that the driver knows is used by its address wherever the device's is.
static void hostMemory(void) {
  ptr s = stream(1);
  unsigned char *h;
  u64 p;
  WANT(CU(cuMemHostAlloc, &h, MiB, 0), OK);
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  WANT(CU(cuMemsetD16Async, (u64)h, 0x0201, MiB / 2, s), OK);
  WANT(h[0] == 1 && h[MiB - 1] == 2, 1);
  WANT(CU(cuMemcpyDtoDAsync_v2, p, (u64)h, MiB, s), OK);
  WANT(CU(cuMemsetD8Async, (u64)h + 1, 9, MiB - 2, s), OK);
  WANT(h[0] == 1 && h[1] == 9 && h[MiB - 2] == 9 && h[MiB - 1] == 2, 1);
  WANT(CU(cuMemcpyDtoDAsync_v2, (u64)h + 4, p + 4, MiB - 4, s), OK);
  WANT(h[3] == 9 && h[4] == 1 && h[MiB - 1] == 2, 1);
  WANT(CU(cuMemcpyDtoDAsync_v2, (u64)h + 4, p, MiB, s), INVALID_VALUE); // over the end
  WANT(CU(cuMemsetD8Async, (u64)h + MiB, 1, (size_t)1, s), INVALID_VALUE);
  WANT(CU(cuStreamSynchronize, s), OK);
  WANT(CU(cuMemFreeHost, h), OK);
  WANT(CU(cuMemcpyDtoDAsync_v2, p, (u64)h, MiB, s), INVALID_VALUE);
  WANT(CU(cuMemFree_v2, p), OK);
  WANT(CU(cuStreamDestroy_v2, s), OK);
}

// --- unsafe reuse is found

static void hazards(void) {
  ptr a = stream(1), b = stream(1), e;
  u64 p, most = ~(u64)0;
  ptr pool;
  char text[400] = "";
  int (*use)(u64, u64, ptr) = function("gpumemSimUse"), (*found)(void) = function("gpumemSimHazards");
  int (*describe)(int, char *, size_t) = function("gpumemSimHazard");
  WANT(CU(cuDeviceGetDefaultMemPool, &pool, 0), OK);
  WANT(CU(cuMemPoolSetAttribute, pool, 4, &most), OK);
  WANT(CU(cuEventCreate, &e, 0), OK);
  WANT(CU(cuMemAllocAsync, &p, MiB, a), OK);
  WANT(use(p, MiB, a), OK);
  WANT(CU(cuStreamQuery, a), NOT_READY);
  int before = found();
  WANT(use(p, MiB, b), ILLEGAL_ADDRESS); // nothing orders the two
  WANT(found(), before + 1);
  WANT(describe(before, text, sizeof text), OK);
  WANT(strstr(text, "may still be writing") != 0, 1);
  WANT(CU(cuEventRecord, e, a), OK);
  WANT(CU(cuStreamWaitEvent, b, e, 0), OK);
  WANT(use(p, MiB, b), OK);
  WANT(CU(cuMemFreeAsync, p, a), ILLEGAL_ADDRESS); // b still writes
  WANT(CU(cuMemFreeAsync, p, b), OK);
  WANT(use(p, MiB, b), ILLEGAL_ADDRESS); // it is free
  WANT(CU(cuMemsetD8Async, p, 1, MiB, b), ILLEGAL_ADDRESS);
  WANT(found(), before + 4);
  WANT(CU(cuStreamSynchronize, b), OK);
  WANT(CU(cuMemPoolTrimTo, pool, (size_t)0), OK);

  // cuMemFree waits for work; unmapping does not, and is refused.
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  WANT(use(p, MiB, a), OK);
  WANT(CU(cuMemFree_v2, p), OK);
  struct prop prop = {1, 0, 1, 0, 0, {0}};
  struct access access = {1, 0, 3};
  u64 h;
  WANT(CU(cuMemAddressReserve, &p, 2 * MiB, (size_t)0, (u64)0, (u64)0), OK);
  WANT(CU(cuMemCreate, &h, 2 * MiB, &prop, (u64)0), OK);
  WANT(CU(cuMemMap, p, 2 * MiB, (size_t)0, h, (u64)0), OK);
  WANT(CU(cuMemSetAccess, p, 2 * MiB, &access, (size_t)1), OK);
  WANT(use(p, MiB, a), OK);
  WANT(CU(cuMemUnmap, p, 2 * MiB), ILLEGAL_ADDRESS);
  WANT(found(), before + 5);
  // A host function that has begun tells that all before it is done: it may have woken this
  // thread before it returns.
  ran = 0, held = 1;
  WANT(CU(cuLaunchHostFunc, a, holding, (ptr)0), OK);
  while (!__atomic_load_n(&ran, __ATOMIC_ACQUIRE)) sched_yield();
  WANT(use(p, MiB, b), OK);
  WANT(CU(cuStreamQuery, a), NOT_READY);
  __atomic_store_n(&held, 0, __ATOMIC_RELEASE);
  WANT(CU(cuStreamSynchronize, b), OK);
  WANT(CU(cuStreamSynchronize, a), OK);
  WANT(CU(cuMemUnmap, p, 2 * MiB), OK);
  WANT(CU(cuMemRelease, h), OK);
  WANT(CU(cuMemAddressFree, p, 2 * MiB), OK);

  // Blocking streams are in order with the legacy stream, and so with each other
  // across it.
  ptr c = stream(0), d = stream(0);
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  WANT(use(p, MiB, c), OK);
  WANT(use(p, MiB, 0), OK);
  WANT(use(p, MiB, d), OK);
  WANT(use(p, MiB, c), ILLEGAL_ADDRESS);
  WANT(use(p, MiB, b), ILLEGAL_ADDRESS); // it is not a blocking one
  WANT(found(), before + 7);
  WANT(CU(cuMemFree_v2, p), OK);
  WANT(CU(cuEventDestroy_v2, e), OK);
  ptr all[] = {a, b, c, d};
  for (int i = 0; i < 4; i++) WANT(CU(cuStreamDestroy_v2, all[i]), OK);
}

// Stream-ordered memory that nothing in its stream delays is there for every stream at once,
// the legacy one too, as TensorFlow 2.18 needs it. Memory behind work is not.
static void promptAllocs(void) {
  ptr a = stream(1), pool;
  u64 p, q, most = ~(u64)0;
  int (*use)(u64, u64, ptr) = function("gpumemSimUse");
  WANT(CU(cuDeviceGetDefaultMemPool, &pool, 0), OK);
  WANT(CU(cuMemPoolSetAttribute, pool, 4, &most), OK);
  WANT(CU(cuMemAllocFromPoolAsync, &p, 64 * MiB, pool, a), OK); // takes memory before it is needed
  WANT(CU(cuMemFreeAsync, p, a), OK);
  WANT(CU(cuMemAllocFromPoolAsync, &p, MiB, pool, a), OK);
  WANT(CU(cuMemsetD32_v2, p, 0, MiB / 4), OK);
  WANT(CU(cuLaunchKernel, (ptr)1, 1, 1, 1, 1, 1, 1, 0, a, (ptr)0, (ptr)0), OK);
  WANT(CU(cuMemAllocFromPoolAsync, &q, MiB, pool, a), OK);
  WANT(CU(cuMemsetD32_v2, q, 0, MiB / 4), ILLEGAL_ADDRESS);
  WANT(CU(cuStreamSynchronize, a), OK);
  WANT(CU(cuMemsetD32_v2, q, 0, MiB / 4), OK);
  WANT(use(p, MiB, a), OK);
  WANT(CU(cuMemFreeAsync, p, a), OK);
  WANT(CU(cuMemFreeAsync, q, a), OK);
  WANT(CU(cuStreamSynchronize, a), OK);
  WANT(CU(cuMemPoolTrimTo, pool, (size_t)0), OK);
  WANT(CU(cuStreamDestroy_v2, a), OK);
}

// A number is 0 if a kernel ran since the program wrote it, for it may be the kernel's, and no
// other: what is larger, or was copied, filled or written since.
static void numbers(void) {
  ptr s = stream(1);
  u64 p, a[2] = {7, 9}, got[2];
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  WANT(CU(cuMemcpyHtoD_v2, p, a, sizeof a), OK);
  WANT(CU(cuMemcpyDtoH_v2, got, p + 8, (size_t)8), OK);
  WANT(got[0], 9);
  WANT(CU(cuLaunchKernel, (ptr)1, 1, 1, 1, 1, 1, 1, 0, s, (ptr)0, (ptr)0), OK);
  WANT(CU(cuMemcpyDtoH_v2, got, p + 8, (size_t)8), OK);
  WANT(got[0], 0);
  WANT(CU(cuMemcpyDtoH_v2, got, p, sizeof got), OK);
  WANT(got[0] == 7 && got[1] == 9, 1);
  WANT(CU(cuMemcpyHtoD_v2, p, a, sizeof a), OK);
  WANT(CU(cuMemcpyDtoD_v2, p + 64, p, (size_t)8), OK);
  WANT(CU(cuMemcpyDtoHAsync_v2, got, p + 64, (size_t)8, s), OK);
  WANT(got[0], 7);
  WANT(CU(cuMemsetD32_v2, p, 3, (size_t)2), OK);
  WANT(CU(cuMemcpyDtoH_v2, got, p, (size_t)4), OK);
  WANT((unsigned)got[0], 3);
  // However many there are, in rows too, and in parts.
  enum { MANY = 1000, APART = 512 };
  for (u64 i = 0; i < MANY; i++) {
    a[0] = i + 1;
    WANT(CU(cuMemcpyHtoD_v2, p + i * APART, a, (size_t)8), OK);
  }
  WANT(CU(cuMemsetD2D32_v2, p + 8, (size_t)APART, 5, (size_t)1, (size_t)MANY), OK);
  for (u64 i = 0; i < MANY; i++) {
    WANT(CU(cuMemcpyDtoH_v2, got, p + i * APART, (size_t)8), OK);
    WANT(got[0], i + 1);
    WANT(CU(cuMemcpyDtoH_v2, got, p + i * APART + 4, (size_t)8), OK);
    WANT(got[0], (u64)5 << 32);
  }
  // Rows are no number, however narrow they are.
  struct { size_t x, y; u64 kind; void *host; u64 device; ptr array; size_t pitch; } ends[2] = {{.kind = 2, .device = p, .pitch = APART}, {.kind = 1, .host = got, .pitch = 8}};
  struct { char ends[sizeof ends]; size_t width, rows; } rows = {.width = 8, .rows = 2};
  memcpy(rows.ends, ends, sizeof ends);
  WANT(CU(cuLaunchKernel, (ptr)1, 1, 1, 1, 1, 1, 1, 0, s, (ptr)0, (ptr)0), OK);
  WANT(CU(cuStreamSynchronize, s), OK);
  WANT(CU(cuMemcpy2D_v2, &rows), OK);
  WANT(got[0] == 1 && got[1] == 2, 1);
  rows.rows = 1;
  WANT(CU(cuMemcpy2D_v2, &rows), OK);
  WANT(got[0], 0);
  WANT(CU(cuStreamSynchronize, s), OK);
  WANT(CU(cuMemFree_v2, p), OK);
  WANT(CU(cuStreamDestroy_v2, s), OK);
}

// With GPUMEM_SIM_HAZARDS=report, which the caller sets for this one alone, a hazard refuses
// nothing.
static void reports(void) {
  ptr a = stream(1), b = stream(1);
  u64 p, q;
  unsigned got = 0;
  int (*use)(u64, u64, ptr) = function("gpumemSimUse"), (*found)(void) = function("gpumemSimHazards");
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  WANT(use(p, MiB, a), OK);
  WANT(use(p, MiB, b), OK);
  WANT(found(), 1);
  WANT(CU(cuMemsetD32Async, p, 7, MiB / 4, b), OK);
  WANT(CU(cuMemcpyDtoH_v2, &got, p, (size_t)4), OK);
  WANT(got, 7);
  WANT(CU(cuMemcpyDtoH_v2, &got, p + MiB, (size_t)4), INVALID_VALUE); // no hazard
  WANT(CU(cuMemAllocAsync, &q, MiB, a), OK);
  WANT(CU(cuMemFreeAsync, q, a), OK);
  WANT(CU(cuMemsetD32Async, q, 8, MiB / 4, a), OK); // after its free
  WANT(CU(cuMemcpy, (u64)&got, q, (u64)4), OK);
  WANT(CU(cuMemFree_v2, p), OK);
  WANT(CU(cuStreamDestroy_v2, a), OK);
  WANT(CU(cuStreamDestroy_v2, b), OK);
}

// --- names

static void names(void) {
  struct { const char *base; int version; u64 flags; const char *want; } t[] = {
    {"cuMemAlloc", 12080, 0, "cuMemAlloc_v2"}, {"cuMemAlloc", 3020, 0, "cuMemAlloc_v2"}, {"cuMemAlloc", 3010, 0, "cuMemAlloc"},
    {"cuMemFree", 13000, 0, "cuMemFree_v2"}, {"cuMemAllocAsync", 12080, 0, "cuMemAllocAsync"}, {"cuMemAllocAsync", 12080, 1, "cuMemAllocAsync"},
    {"cuMemAllocAsync", 12080, 2, "cuMemAllocAsync_ptsz"}, {"cuMemGetInfo", 11030, 2, "cuMemGetInfo_v2"},
    {"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"}, {"cuGetProcAddress", 11040, 0, "cuGetProcAddress"},
    {"cuStreamGetCaptureInfo", 10010, 0, "cuStreamGetCaptureInfo"}, {"cuStreamGetCaptureInfo", 11030, 0, "cuStreamGetCaptureInfo_v2"},
    {"cuMemCreate", 10020, 0, "cuMemCreate"},
  };
  for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
    void *f = 0, *old = 0;
    int status = -1;
    WANT(CU(cuGetProcAddress_v2, t[i].base, &f, t[i].version, t[i].flags, &status), OK);
    WANT(status, 0);
    if (f != function(t[i].want)) failed = 1, printf("FAIL %s: %s at %d is not %s\n", test, t[i].base, t[i].version, t[i].want);
    WANT(CU(cuGetProcAddress, t[i].base, &old, t[i].version, t[i].flags), OK);
    WANT(old == f, 1);
  }
  void *f = (void *)1;
  int status;
  WANT(CU(cuGetProcAddress_v2, "cuMemCreate", &f, 10000, (u64)0, &status), OK);
  WANT(f == 0, 1);
  WANT(status, 2);
  WANT(CU(cuGetProcAddress_v2, "cuNoSuchThing", &f, 12000, (u64)0, &status), OK);
  WANT(status, 1);
  WANT(CU(cuGetProcAddress, "cuNoSuchThing", &f, 12000, (u64)0), NOT_FOUND);
  WANT(CU(cuGetExportTable, &f, "0123456789abcdef"), NOT_FOUND);
  u64 p;
  WANT(CU(cuMemAlloc, &p, 4096), NOT_SUPPORTED); // that of CUDA 2.0
  WANT(CU(cuSurfRefGetArray, &p, (u64)0), NOT_SUPPORTED);
}

static void faults(void) {
  u64 p, (*calls)(const char *) = function("gpumemSimCalls");
  void (*fail)(int64_t) = function("gpumemSimFail"), (*failWith)(int64_t, int) = function("gpumemSimFailWith");
  size_t before = freeBytes();
  fail(2);
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  WANT(CU(cuMemFree_v2, p), UNKNOWN);
  WANT(CU(cuMemFree_v2, p), OK);
  failWith(1, OOM);
  WANT(CU(cuMemAlloc_v2, &p, MiB), OOM);
  fail(1), fail(0);
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  WANT(CU(cuMemFree_v2, p), OK);
  WANT(freeBytes(), before);
  u64 n = calls("cuMemAlloc_v2"), all = calls(0);
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  WANT(CU(cuMemFree_v2, p), OK);
  WANT(calls("cuMemAlloc_v2"), n + 1);
  WANT(calls(0), all + 2);
}

// --- the process

static void *work(void *context) {
  u64 p[16] = {0};
  WANT(CU(cuCtxSetCurrent, context), OK);
  for (int i = 0; i < 2000; i++) {
    int k = i * 7 % 16;
    if (p[k]) WANT(CU(cuMemFree_v2, p[k]), OK);
    WANT(CU(cuMemAlloc_v2, &p[k], MiB * (1 + i % 3)), OK);
  }
  for (int k = 0; k < 16; k++) if (p[k]) WANT(CU(cuMemFree_v2, p[k]), OK);
  return 0;
}

static void manyThreads(void) {
  ptr context;
  pthread_t t[16];
  size_t before = freeBytes();
  WANT(CU(cuCtxGetCurrent, &context), OK);
  for (int i = 0; i < 16; i++) pthread_create(&t[i], 0, work, context);
  for (int i = 0; i < 16; i++) pthread_join(t[i], 0);
  WANT(freeBytes(), before);
}

static void forks(void) {
  fflush(stdout);
  pid_t child = fork();
  if (!child) {
    alarm(20); // if it hangs, it ends by a signal
    u64 p;
    int n;
    _exit(CU(cuMemAlloc_v2, &p, MiB) == NOT_INITIALIZED && CU(cuDeviceGetCount, &n) == NOT_INITIALIZED && CU(cuInit, 0) == NOT_INITIALIZED ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  WANT(status, 0);
  fflush(stdout);
  if (!(child = fork())) exit(0); // and its end, with all that libraries do at it
  waitpid(child, &status, 0);
  WANT(status, 0);
  u64 p;
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  WANT(CU(cuMemFree_v2, p), OK);
}

static volatile int caught;
static sigjmp_buf back;
static void handler(int s) { caught = s; }
static void jump(int s) { caught = s; siglongjmp(back, 1); }

// Signals that the program leaves as they are by default. Who starts it may have had them
// ignored, as nohup does.
static const int defaults[] = {SIGHUP, SIGTERM, SIGCHLD, SIGALRM, SIGUSR2, SIGQUIT, SIGABRT};

// Handlers that the program set before it loaded the library, and after.
static void signals(void) {
  raise(SIGUSR1);
  WANT(caught, SIGUSR1);
  raise(SIGINT);
  WANT(caught, SIGINT);
  caught = 0;
  if (!sigsetjmp(back, 1)) *(volatile int *)8 = 1;
  WANT(caught, SIGSEGV);
  u64 p;
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  WANT(CU(cuMemFree_v2, p), OK);
  struct sigaction now;
  for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
    sigaction(defaults[i], 0, &now);
    WANT(now.sa_handler == SIG_DFL, 1);
  }
}

int main(int argc, char **argv) {
  for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) signal(defaults[i], SIG_DFL);
  struct { const char *name; void (*run)(void); } all[] = {
    {"before_init", beforeInit}, {"devices", devices}, {"contexts", contexts}, {"threads", threads}, {"memory", memory},
    {"pointers", pointers}, {"copies", copies}, {"pages", pages}, {"pools", pools}, {"streams", streams}, {"captures", captures},
    {"conditionals", conditionals}, {"graph_memory", graphMemory}, {"host_memory", hostMemory}, {"hazards", hazards}, {"prompt_allocs", promptAllocs}, {"numbers", numbers}, {"names", names}, {"faults", faults}, {"many_threads", manyThreads}, {"forks", forks}, {"signals", signals},
    {"reports", reports}, // by name alone
  };
  signal(SIGUSR1, handler);
  signal(SIGINT, handler);
  signal(SIGSEGV, jump);
  lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) return puts(dlerror()), 1;
  if (argc > 1) { // all but the first two need a context
    ptr context;
    test = "start";
    WANT(CU(cuInit, 0), OK);
    WANT(CU(cuDevicePrimaryCtxRetain, &context, 0), OK);
    WANT(CU(cuCtxSetCurrent, context), OK);
  }
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    int wanted = argc == 1 && all[i].run != reports;
    for (int a = 1; a < argc; a++) wanted |= !strcmp(argv[a], all[i].name);
    if (!wanted) continue;
    test = all[i].name, failed = 0;
    all[i].run();
    if (!failed) printf("ok %s\n", test);
    failures += failed;
    fflush(stdout);
  }
  return failures > 0;
}
