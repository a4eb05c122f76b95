// A program that checks what the simulated driver does where work takes time (GPUMEM_SIM_KERNEL). It runs the
// tests that its arguments name, or all, as conformance.c does. "kernels N" launches N kernels and waits.
//
// Nothing here depends on how fast the machine is: a stream is held back by a value that it waits for, and times are
// compared where the device's own clock says them.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef void *ptr;

static void *lib;
static const char *test;
static int failed, failures;

static void *function(const char *name) {
  void *f = dlsym(lib, name);
  if (!f) printf("FAIL %s: no function %s\n", test, name), exit(1);
  return f;
}

#define CU(name, ...) ((int (*)())function(#name))(__VA_ARGS__)

#define WANT(expression, wanted)                                                                                 \
  do {                                                                                                           \
    long long got_ = (long long)(expression), want_ = (long long)(wanted);                                       \
    if (got_ != want_) failed = 1, printf("FAIL %s: line %d: %s is %lld, want %lld\n", test, __LINE__, #expression, got_, want_); \
  } while (0)

enum { OK, INVALID_VALUE, INVALID_HANDLE = 400, NOT_READY = 600, ILLEGAL_ADDRESS = 700 };
enum { GEQ, EQ, AND, NOR }; // CUstreamWaitValue_flags

#define MiB ((size_t)1 << 20)
#define KERNEL 2000000 // nanoseconds, as the caller sets it

static ptr stream(unsigned flags) {
  ptr s = 0;
  WANT(CU(cuStreamCreate, &s, flags), OK);
  return s;
}

static ptr event(void) {
  ptr e = 0;
  WANT(CU(cuEventCreate, &e, 0), OK);
  return e;
}

static u32 *pinned; // numbers of the host that streams wait for; each test has its own
static u32 *number(void) {
  static int used;
  return &pinned[used++];
}
static void set(u32 *n) { __atomic_store_n(n, 1, __ATOMIC_RELEASE); }

// hold holds a stream back until set.
static u32 *hold(ptr s) {
  u32 *n = number();
  WANT(CU(cuStreamWaitValue32_v2, s, (u64)n, 1, EQ), OK);
  return n;
}

static void launch(ptr s) { WANT(CU(cuLaunchKernel, (ptr)1, 1, 1, 1, 1, 1, 1, 0, s, (ptr)0, (ptr)0), OK); }

static u64 busy(int engine) { return ((u64 (*)(int, int))function("gpumemSimBusy"))(0, engine); }

static u64 now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

// --- streams

static void query(void) {
  ptr s = stream(1), e = event();
  WANT(CU(cuEventQuery, e), OK); // never recorded
  u32 *go = hold(s);
  launch(s);
  WANT(CU(cuEventRecord, e, s), OK);
  WANT(CU(cuStreamQuery, s), NOT_READY);
  WANT(CU(cuEventQuery, e), NOT_READY);
  u64 begin = now(), before = busy(0);
  set(go);
  WANT(CU(cuEventSynchronize, e), OK);
  WANT(now() - begin >= KERNEL, 1);
  WANT(busy(0) - before, KERNEL);
  WANT(CU(cuEventQuery, e), OK);
  WANT(CU(cuStreamQuery, s), OK);
  WANT(CU(cuStreamSynchronize, s), OK);
  go = hold(s);
  WANT(CU(cuStreamDestroy_v2, s), OK); // what is in it still runs
  s = stream(1);
  WANT(CU(cuStreamQuery, s), OK); // a new one, if the handle is not
  set(go);
  WANT(CU(cuCtxSynchronize), OK);
}

// The time between events is the device's: of kernels one after the other, and of two streams that share the GPU.
static void elapsed(void) {
  ptr s = stream(1), other = stream(1), a = event(), b = event(), c = event();
  float ms = 0;
  WANT(CU(cuEventElapsedTime, &ms, a, b), INVALID_HANDLE); // not recorded
  u32 *go = hold(s);
  WANT(CU(cuEventRecord, a, s), OK);
  for (int i = 0; i < 3; i++) launch(s);
  WANT(CU(cuStreamWaitEvent, other, a, 0), OK);
  for (int i = 0; i < 3; i++) launch(other);
  WANT(CU(cuEventRecord, b, s), OK);
  WANT(CU(cuEventRecord, c, other), OK);
  WANT(CU(cuEventElapsedTime, &ms, a, b), NOT_READY);
  set(go);
  WANT(CU(cuCtxSynchronize), OK);
  WANT(CU(cuEventElapsedTime, &ms, a, b), OK);
  float last = ms;
  WANT(CU(cuEventElapsedTime, &ms, a, c), OK);
  WANT(last * 1000000 + 0.5, 5 * KERNEL); // one of each in turn
  WANT(ms * 1000000 + 0.5, 6 * KERNEL);
  WANT(CU(cuEventElapsedTime, &ms, a, a), OK);
  WANT(ms > 0, 1);
}

// The legacy stream waits for blocking streams and they for it; others do not.
static void legacy(void) {
  ptr a = stream(0), b = stream(0), apart = stream(1), e = event(), f = event();
  u32 *go = hold(a);
  WANT(CU(cuEventRecord, e, 0), OK); // in the legacy stream
  WANT(CU(cuEventRecord, f, b), OK);
  WANT(CU(cuEventQuery, e), NOT_READY);
  WANT(CU(cuEventQuery, f), NOT_READY);
  WANT(CU(cuStreamQuery, 0), NOT_READY);
  WANT(CU(cuStreamSynchronize, apart), OK);
  set(go);
  WANT(CU(cuStreamSynchronize, 0), OK);
  WANT(CU(cuEventQuery, e), OK);
  WANT(CU(cuEventSynchronize, f), OK);
}

// --- functions of the program

static char order[16];
static volatile u32 released, inside;
static void note(ptr c) { strcat(order, c); }
static void callback(ptr s, int status, ptr c) { strcat(order, status || !s ? "?" : (char *)c); }
static void wait_for_release(ptr c) {
  inside = 1;
  while (!__atomic_load_n(&released, __ATOMIC_ACQUIRE)) usleep(100);
  strcat(order, c);
}

// A function runs after what is before it in its stream, and blocks what is behind it and nothing else.
static void functions(void) {
  ptr s = stream(1), other = stream(1), e = event();
  u32 *seen;
  u64 p;
  WANT(CU(cuMemHostAlloc, &seen, 4096, 0), OK);
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  u32 *go = hold(s);
  WANT(CU(cuLaunchHostFunc, s, wait_for_release, "a"), OK);
  WANT(CU(cuStreamAddCallback, s, callback, "b", 0), OK);
  WANT(CU(cuMemsetD32Async, p, 7, (size_t)1, s), OK);
  WANT(CU(cuMemcpyDtoHAsync_v2, seen, p, (size_t)4, s), OK);
  WANT(CU(cuLaunchHostFunc, s, note, "c"), OK);
  WANT(CU(cuEventRecord, e, s), OK);
  WANT(CU(cuStreamSynchronize, other), OK);
  WANT(inside, 0);
  set(go);
  while (!inside) usleep(100);
  launch(other);
  WANT(CU(cuStreamSynchronize, other), OK); // beside it
  WANT(CU(cuEventQuery, e), NOT_READY);
  WANT(*seen, 0);
  __atomic_store_n(&released, 1, __ATOMIC_RELEASE);
  WANT(CU(cuStreamSynchronize, s), OK);
  WANT(strcmp(order, "abc"), 0);
  WANT(*seen, 7);
  WANT(CU(cuMemFreeHost, seen), OK);
  WANT(CU(cuMemFree_v2, p), OK);
}

// --- values

struct op { u32 kind; u64 addr, value; u32 flags; u64 more[2]; };

// A stream waits for a value by each of the four comparisons, for one that the host writes, another stream, or a copy.
static void values(void) {
  ptr s = stream(1), other = stream(1);
  u64 p, *wide = (u64 *)pinned + 300;
  u32 *n = number(), five = 5;
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  WANT(CU(cuMemsetD32_v2, p, 0, (size_t)64), OK);

  WANT(CU(cuStreamWaitValue32_v2, s, p, 4, GEQ), OK); // 0 is not
  WANT(CU(cuStreamWriteValue32_v2, s, (u64)n, 9, 0), OK);
  WANT(CU(cuStreamQuery, s), NOT_READY);
  WANT(CU(cuMemcpyHtoDAsync_v2, p, &five, (size_t)4, other), OK);
  WANT(CU(cuStreamSynchronize, s), OK);
  WANT(*n, 9);

  *wide = 0x100000000; // whose low half is 0
  WANT(CU(cuStreamWaitValue64_v2, s, (u64)wide, (u64)0x200000000, AND), OK);
  WANT(CU(cuStreamQuery, s), NOT_READY);
  WANT(CU(cuStreamWriteValue64_v2, other, (u64)wide, (u64)0x300000000, 0), OK);
  WANT(CU(cuStreamSynchronize, s), OK);

  *n = 0xffffffff;
  WANT(CU(cuStreamWaitValue32_v2, s, (u64)n, 0, NOR), OK); // a bit that neither has
  WANT(CU(cuStreamQuery, s), NOT_READY);
  __atomic_store_n(n, 0xfffffffe, __ATOMIC_RELEASE);
  WANT(CU(cuStreamSynchronize, s), OK);
  WANT(CU(cuStreamWaitValue32_v2, s, (u64)n, 0xffffff00, GEQ), OK); // cyclic
  WANT(CU(cuStreamWaitValue32_v2, s, (u64)n, 0xfffffffe, EQ), OK);
  WANT(CU(cuStreamSynchronize, s), OK);

  struct op ops[] = {{2, (u64)n, 1}, {1, (u64)wide, 77, EQ}, {5, p + 8, 0x123456789}, {4, p + 8, 0x123456789, EQ}, {2, (u64)n, 2}};
  WANT(CU(cuStreamBatchMemOp_v2, s, 5, ops, 0), OK);
  while (__atomic_load_n(n, __ATOMIC_ACQUIRE) != 1) usleep(100);
  WANT(CU(cuStreamQuery, s), NOT_READY);
  __atomic_store_n((u32 *)wide, 77, __ATOMIC_RELEASE);
  WANT(CU(cuStreamSynchronize, s), OK);
  WANT(*n, 2);
  WANT(CU(cuStreamWaitValue32_v2, s, (u64)&five, 1, EQ), INVALID_VALUE); // the driver does not know it
  WANT(CU(cuStreamWaitValue32_v2, s, p + 2, 1, EQ), INVALID_VALUE);
  WANT(CU(cuMemFree_v2, p), OK);
}

// --- a kernel that never ends but by a number

static u32 *awaited;
static void *synchronizes(ptr s) {
  CU(cuStreamSynchronize, s);
  inside = __atomic_load_n(awaited, __ATOMIC_ACQUIRE) ? 2 : 3;
  return 0;
}

// synchronize has a thread wait for a stream, which goes on when a number is set.
static pthread_t synchronize(ptr s, u32 *until) {
  pthread_t t;
  u64 (*calls)(const char *) = function("gpumemSimCalls"), before = calls("cuStreamSynchronize");
  inside = 0, awaited = until;
  pthread_create(&t, 0, synchronizes, s);
  while (calls("cuStreamSynchronize") == before) usleep(100);
  return t;
}

static void persistent(void) {
  ptr module, f, s = stream(1), other = stream(1);
  u32 *stop = number();
  u64 at = (u64)stop;
  ptr arguments[] = {&at};
  WANT(CU(cuModuleLoadData, &module, "x"), OK);
  WANT(CU(cuModuleGetFunction, &f, module, "gpumem_persistent_1"), OK);
  WANT(CU(cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, 0, s, arguments, (ptr)0), OK);
  pthread_t t = synchronize(s, stop);
  launch(other);
  WANT(CU(cuStreamSynchronize, other), OK); // beside it
  WANT(CU(cuStreamQuery, s), NOT_READY);
  set(stop);
  pthread_join(t, 0);
  WANT(inside, 2);
  WANT(CU(cuStreamQuery, s), OK);

  struct { unsigned grid[3], block[3], shared; ptr stream; ptr attributes; unsigned n; } config = {{1, 1, 1}, {1, 1, 1}, 0, s};
  *stop = 0;
  WANT(CU(cuLaunchKernelEx, &config, f, arguments, (ptr)0), OK);
  WANT(CU(cuStreamQuery, s), NOT_READY);
  set(stop);
  WANT(CU(cuStreamSynchronize, s), OK);
  ptr others;
  WANT(CU(cuModuleGetFunction, &others, module, "persistent"), OK); // an ordinary one
  WANT(CU(cuLaunchKernel, others, 1, 1, 1, 1, 1, 1, 0, s, (ptr)0, (ptr)0), OK);
  WANT(CU(cuStreamSynchronize, s), OK);
}

// --- memory

// Copies move bytes when it is their turn: what the host has then, and what is in the memory then.
static void copies(void) {
  ptr s = stream(1);
  u32 *h, plain = 3, *large = malloc(MiB);
  u64 p;
  WANT(CU(cuMemHostAlloc, &h, MiB, 0), OK);
  WANT(CU(cuMemAlloc_v2, &p, 2 * MiB), OK);
  u64 in = busy(1), out = busy(2);
  u32 *go = hold(s);
  h[0] = 1, h[1] = 8;
  WANT(CU(cuMemcpyHtoDAsync_v2, p, h, MiB, s), OK);
  WANT(CU(cuMemcpyHtoDAsync_v2, p + 4, &plain, (size_t)4, s), OK); // taken when the call returns
  WANT(CU(cuMemcpyDtoHAsync_v2, h + 2, p, (size_t)8, s), OK);
  WANT(CU(cuStreamQuery, s), NOT_READY);
  h[0] = 2, plain = 4;
  WANT(h[2], 0);
  set(go);
  memset(large, 5, MiB);
  WANT(CU(cuMemcpyHtoDAsync_v2, p + MiB, large, MiB, s), OK); // more than is taken: the call waits
  memset(large, 6, MiB);
  WANT(h[2], 2);
  WANT(h[3], 3);
  WANT(CU(cuMemcpyDtoHAsync_v2, large, p + MiB, (size_t)64, s), OK); // and waits for what it writes
  WANT(large[15], 0x05050505);
  WANT(busy(1) - in >= 2 * MiB * 1000000000ull / 25000000000ull, 1);
  WANT(busy(2) - out > 0, 1);
  WANT(CU(cuMemFreeHost, h), OK);
  WANT(CU(cuMemFree_v2, p), OK);
}

// A number is the program's or a kernel's by the order of the calls, whenever the bytes move.
static void numbers(void) {
  ptr s = stream(1), other = stream(1);
  u32 *h, got = 9;
  u64 p, q;
  WANT(CU(cuMemHostAlloc, &h, 4096, 0), OK);
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  q = p + MiB / 2;
  u32 *go = hold(s);
  h[0] = 7, h[1] = h[2] = 9, h[3] = 5;
  WANT(CU(cuMemcpyHtoDAsync_v2, p, h, (size_t)4, s), OK);
  WANT(CU(cuMemcpyHtoDAsync_v2, q, h, (size_t)4, s), OK);
  WANT(CU(cuMemcpyDtoHAsync_v2, h + 1, p, (size_t)4, s), OK);
  launch(s);
  WANT(CU(cuMemcpyDtoHAsync_v2, h + 2, p, (size_t)4, s), OK);
  WANT(CU(cuMemcpyHtoDAsync_v2, q + 8, h + 3, (size_t)4, other), OK); // after the kernel, and done before
  WANT(CU(cuStreamSynchronize, other), OK);
  set(go);
  WANT(CU(cuStreamSynchronize, s), OK);
  WANT(h[1], 7);
  WANT(h[2], 0);
  WANT(CU(cuMemcpyDtoH_v2, &got, q, (size_t)4), OK);
  WANT(got, 0);
  WANT(CU(cuMemcpyDtoH_v2, &got, q + 8, (size_t)4), OK);
  WANT(got, 5);
  WANT(CU(cuStreamWriteValue32_v2, s, q, 6, 0), OK);
  WANT(CU(cuStreamSynchronize, s), OK);
  WANT(CU(cuMemcpyDtoH_v2, &got, q, (size_t)4), OK);
  WANT(got, 6);
  WANT(CU(cuMemFreeHost, h), OK);
  WANT(CU(cuMemFree_v2, p), OK);
}

// A free waits for the device; a free in a stream comes after what is in that stream.
static void frees(void) {
  ptr s = stream(1), other = stream(1);
  u64 p, q;
  u32 *h;
  WANT(CU(cuMemHostAlloc, &h, 4096, 0), OK);
  WANT(CU(cuMemAlloc_v2, &p, MiB), OK);
  WANT(CU(cuMemAllocAsync, &q, MiB, s), OK);
  WANT(CU(cuMemsetD32Async, q, 7, MiB / 4, s), OK);
  WANT(CU(cuStreamSynchronize, s), OK);
  u32 *go = hold(s);
  WANT(CU(cuMemcpyDtoHAsync_v2, h, q, (size_t)16, s), OK);
  WANT(CU(cuMemFreeAsync, q, s), OK);
  WANT(CU(cuMemAllocAsync, &q, MiB, other), OK); // whatever memory it is, it may be had after that
  WANT(CU(cuMemsetD32Async, q, 8, MiB / 4, other), OK);
  WANT(CU(cuLaunchHostFunc, s, note, "d"), OK);
  set(go);
  order[0] = 0;
  WANT(CU(cuMemFree_v2, p), OK);
  WANT(strcmp(order, "d"), 0);
  WANT(CU(cuStreamQuery, s), OK);
  WANT(h[3], 7);
  WANT(CU(cuMemFreeHost, h), OK);
  WANT(CU(cuMemFreeAsync, q, other), OK);
  WANT(CU(cuStreamSynchronize, other), OK);
}

struct prop { int type, handles, location, id; ptr w; unsigned char flags[8]; };
struct access { int location, id, flags; };

static u64 page(u64 at) {
  struct prop prop = {1, 0, 1, 0, 0, {0}};
  struct access access = {1, 0, 3};
  u64 h;
  WANT(CU(cuMemCreate, &h, 2 * MiB, &prop, (u64)0), OK);
  WANT(CU(cuMemMap, at, 2 * MiB, (size_t)0, h, (u64)0), OK);
  WANT(CU(cuMemSetAccess, at, 2 * MiB, &access, (size_t)1), OK);
  return h;
}

// Contents are the memory's and not the address's; memory that work may yet use is not to be unmapped, be the host in
// another thread's wait for that work or not.
static void pages(void) {
  ptr s = stream(1);
  u64 at, first, second, got = 1, value = 0x1122334455667788;
  struct access access = {1, 0, 3};
  WANT(CU(cuMemAddressReserve, &at, 2 * MiB, (size_t)0, (u64)0, (u64)0), OK);
  first = page(at);
  WANT(CU(cuMemcpyHtoD_v2, at + MiB, &value, (size_t)8), OK);
  WANT(CU(cuMemUnmap, at, 2 * MiB), OK);
  second = page(at);
  WANT(CU(cuMemcpyDtoH_v2, &got, at + MiB, (size_t)8), OK);
  WANT(got, 0);
  WANT(CU(cuMemsetD8_v2, at, 1, 2 * MiB), OK);
  WANT(CU(cuMemUnmap, at, 2 * MiB), OK);
  WANT(CU(cuMemRelease, second), OK);
  WANT(CU(cuMemMap, at, 2 * MiB, (size_t)0, first, (u64)0), OK);
  WANT(CU(cuMemSetAccess, at, 2 * MiB, &access, (size_t)1), OK);
  WANT(CU(cuMemcpyDtoH_v2, &got, at + MiB, (size_t)8), OK);
  WANT(got == value, 1);

  u32 *go = hold(s);
  WANT(CU(cuMemsetD8Async, at, 2, MiB, s), OK);
  pthread_t t = synchronize(s, go);
  WANT(CU(cuMemUnmap, at, 2 * MiB), ILLEGAL_ADDRESS);
  set(go);
  pthread_join(t, 0);
  WANT(CU(cuMemUnmap, at, 2 * MiB), OK);
  WANT(CU(cuMemRelease, first), OK);
  WANT(CU(cuMemAddressFree, at, 2 * MiB), OK);
}

// Each kernel of a graph takes its time, captured or added, and those of a graph within it.
static void graphs(void) {
  ptr s = stream(1), graph, outer, executable, node;
  WANT(CU(cuStreamBeginCapture_v2, s, 0), OK);
  launch(s);
  launch(s);
  WANT(CU(cuStreamEndCapture, s, &graph), OK);
  WANT(CU(cuGraphCreate, &outer, 0), OK);
  WANT(CU(cuGraphAddKernelNode_v2, &node, outer, (ptr)0, (u64)0, (ptr)1), OK);
  WANT(CU(cuGraphAddChildGraphNode, &node, outer, (ptr)0, (u64)0, graph), OK);
  WANT(CU(cuGraphInstantiateWithFlags, &executable, outer, (u64)0), OK);
  WANT(CU(cuGraphDestroy, outer), OK);
  u64 before = busy(0);
  WANT(CU(cuGraphUpload, executable, s), OK);
  WANT(CU(cuStreamSynchronize, s), OK);
  WANT(busy(0) - before, 0);
  WANT(CU(cuGraphLaunch, executable, s), OK);
  WANT(CU(cuGraphLaunch, executable, s), OK);
  WANT(CU(cuStreamSynchronize, s), OK);
  WANT(busy(0) - before, 6 * KERNEL);
}

// --- many threads, each in its stream: values stay what the stream's order makes them

static void *worker(ptr context) {
  CU(cuCtxSetCurrent, context);
  ptr s = stream(1);
  u32 *h;
  u64 p;
  WANT(CU(cuMemHostAlloc, &h, 4096, 0), OK);
  WANT(CU(cuMemAllocAsync, &p, MiB, s), OK);
  for (u32 i = 1; i <= 100; i++) {
    WANT(CU(cuMemsetD32Async, p, i, (size_t)64, s), OK);
    WANT(CU(cuMemcpyDtoHAsync_v2, h, p, (size_t)256, s), OK);
    WANT(CU(cuStreamSynchronize, s), OK);
    WANT(h[63], i);
  }
  WANT(CU(cuMemFreeAsync, p, s), OK);
  WANT(CU(cuStreamDestroy_v2, s), OK);
  WANT(CU(cuMemFreeHost, h), OK);
  return 0;
}

static void threads(void) {
  pthread_t t[8];
  ptr context;
  WANT(CU(cuCtxGetCurrent, &context), OK);
  for (int i = 0; i < 8; i++) pthread_create(&t[i], 0, worker, context);
  for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
}

// The program may end while work that never ends is under way.
static void unfinished(void) {
  ptr s = stream(1);
  hold(s);
  WANT(CU(cuLaunchHostFunc, s, note, "x"), OK);
  launch(s);
}

int main(int argc, char **argv) {
  struct { const char *name; void (*run)(void); } all[] = {
    {"query", query}, {"elapsed", elapsed}, {"legacy", legacy}, {"functions", functions}, {"values", values}, {"persistent", persistent},
    {"copies", copies}, {"numbers", numbers}, {"frees", frees}, {"pages", pages}, {"graphs", graphs}, {"threads", threads},
    {"unfinished", unfinished},
  };
  ptr context;
  test = "start";
  lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) return puts(dlerror()), 1;
  WANT(CU(cuInit, 0), OK);
  WANT(CU(cuDevicePrimaryCtxRetain, &context, 0), OK);
  WANT(CU(cuCtxSetCurrent, context), OK);
  WANT(CU(cuMemHostAlloc, &pinned, 4096, 0), OK);
  memset(pinned, 0, 4096);
  if (argc == 3 && !strcmp(argv[1], "kernels")) {
    for (int i = 0; i < atoi(argv[2]); i++) launch(0);
    WANT(CU(cuCtxSynchronize), OK);
    return failed;
  }
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    int wanted = argc == 1;
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
