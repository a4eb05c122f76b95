// A program that uses the driver through the library and checks what it is told. It has
// a limit of 64 MiB (GPUMEM_LIMIT). Each line of output is a fault.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t u64;
typedef void *ptr;

#define DRIVER(F) \
  F(cuInit, (unsigned)) F(cuDevicePrimaryCtxRetain, (ptr *, int)) F(cuDevicePrimaryCtxRelease_v2, (int)) F(cuDevicePrimaryCtxReset_v2, (int)) \
  F(cuCtxSetCurrent, (ptr)) F(cuCtxGetCurrent, (ptr *)) F(cuCtxSynchronize, (void)) F(cuCtxCreate_v2, (ptr *, unsigned, int)) F(cuCtxDestroy_v2, (ptr)) \
  F(cuMemAlloc_v2, (u64 *, size_t)) F(cuMemFree_v2, (u64)) F(cuMemGetInfo_v2, (size_t *, size_t *)) F(cuDeviceTotalMem_v2, (size_t *, int)) \
  F(cuMemAllocAsync, (u64 *, size_t, ptr)) F(cuMemFreeAsync, (u64, ptr)) F(cuMemAllocAsync_ptsz, (u64 *, size_t, ptr)) F(cuMemFreeAsync_ptsz, (u64, ptr)) \
  F(cuMemGetAddressRange_v2, (u64 *, size_t *, u64)) F(cuPointerGetAttribute, (void *, int, u64)) F(cuPointerGetAttributes, (unsigned, int *, void **, u64)) \
  F(cuMemAllocManaged, (u64 *, size_t, unsigned)) F(cuMemAllocPitch_v2, (u64 *, size_t *, size_t, size_t, unsigned)) \
  F(cuMemCreate, (u64 *, size_t, const int *, u64)) F(cuMemRelease, (u64)) F(cuMemMap, (u64, size_t, size_t, u64, u64)) F(cuMemUnmap, (u64, size_t)) \
  F(cuMemAddressReserve, (u64 *, size_t, size_t, u64, u64)) F(cuStreamCreate, (ptr *, unsigned)) F(cuStreamDestroy_v2, (ptr)) F(cuStreamSynchronize, (ptr)) \
  F(cuIpcGetMemHandle, (void *, u64)) F(cuDeviceGetDefaultMemPool, (ptr *, int)) F(cuMemPoolGetAttribute, (ptr, int, void *)) F(cuMemPoolTrimTo, (ptr, size_t)) \
  F(cuStreamBeginCapture_v2, (ptr, int)) F(cuStreamEndCapture, (ptr, ptr *)) F(cuMemPoolCreate, (ptr *, const void *)) F(cuMemPoolDestroy, (ptr)) F(cuDeviceSetMemPool, (int, ptr)) F(cuMemAllocFromPoolAsync, (u64 *, size_t, ptr, ptr)) \
  F(cuGetProcAddress, (const char *, void **, int, u64)) F(cuGetProcAddress_v2, (const char *, void **, int, u64, int *))

static struct {
#define F(name, args) int (*name) args;
  DRIVER(F)
#undef F
} cu;

static void *lib;
static int faults;

static void fault(int line, const char *what, long got, long want) {
  printf("line %d: %s = %ld, want %ld\n", line, what, got, want);
  faults++;
}
#define WANT(expression, value) \
  do { long got_ = (long)(expression), want_ = (long)(value); if (got_ != want_) fault(__LINE__, #expression, got_, want_); } while (0)
#define TRUE(expression) WANT(!!(expression), 1)

enum { MIB = 1 << 20, OOM = 2, INVALID = 1 };

static size_t free_bytes(void) {
  size_t f = 0, t = 0;
  WANT(cu.cuMemGetInfo_v2(&f, &t), 0);
  WANT(t, 64 * MIB);
  return f;
}

static void plain(void) {
  u64 a, b, base;
  size_t n, before = free_bytes();
  WANT(cu.cuMemAlloc_v2(&a, 3 * MIB), 0);
  TRUE(free_bytes() <= before - 3 * MIB);
  WANT(cu.cuMemGetAddressRange_v2(&base, &n, a + 12345), 0);
  WANT(base, a);
  WANT(n, 3 * MIB);
  WANT(cu.cuMemGetAddressRange_v2(0, 0, a), 0);
  u64 start = 0, size = 0;
  int type = 0, attributes[] = {11, 2, 12};
  void *values[] = {&start, &type, &size};
  WANT(cu.cuPointerGetAttribute(&start, 11, a + 77), 0);
  WANT(start, a);
  start = 0;
  WANT(cu.cuPointerGetAttributes(3, attributes, values, a + 99), 0);
  WANT(start, a);
  WANT(size, 3 * MIB);
  WANT(type, 2);
  WANT(cu.cuMemGetInfo_v2(0, 0), 0);
  WANT(cu.cuMemAlloc_v2(&b, 0), INVALID);
  WANT(cu.cuMemAlloc_v2(&b, (size_t)1 << 63), OOM);
  WANT(cu.cuMemAlloc_v2(&b, ~(size_t)0), OOM);
  WANT(cu.cuMemAlloc_v2(&b, 65 * MIB), OOM);
  WANT(cu.cuMemFree_v2(a + 256), INVALID);
  TRUE(cu.cuMemFree_v2(0x1234));
  WANT(cu.cuMemFree_v2(a), 0);
  WANT(cu.cuMemFree_v2(a), INVALID);
  TRUE(cu.cuMemGetAddressRange_v2(&base, &n, a));
  WANT(free_bytes(), before);
  // What is pending is free when memory is short, and after a wait of the program's.
  for (int i = 0; i < 20; i++) {
    WANT(cu.cuMemAlloc_v2(&a, 60 * MIB), 0);
    WANT(cu.cuMemFree_v2(a), 0);
    if (i & 1) WANT(cu.cuCtxSynchronize(), 0);
  }
  char handle[64];
  WANT(cu.cuMemAlloc_v2(&a, MIB), 0);
  TRUE(cu.cuIpcGetMemHandle(handle, a));
  WANT(cu.cuMemFree_v2(a), 0);
}

static void async(void) {
  u64 a[8], b;
  ptr s[2];
  for (int i = 0; i < 2; i++) WANT(cu.cuStreamCreate(&s[i], 1), 0);
  for (int round = 0; round < 50; round++) {
    for (int i = 0; i < 8; i++) WANT(cu.cuMemAllocAsync(&a[i], (i + 1) * MIB, s[i & 1]), 0);
    for (int i = 0; i < 8; i++) WANT(cu.cuMemFreeAsync(a[i], s[(i + round) & 1]), 0);
  }
  ptr own[] = {0, (ptr)1, (ptr)2}; // the driver's own streams
  for (int i = 0; i < 3; i++) {
    WANT(cu.cuMemAllocAsync(&b, MIB, own[i]), 0);
    WANT(cu.cuMemFreeAsync(b, own[i]), 0);
    WANT(cu.cuMemAllocAsync_ptsz(&b, MIB, own[i]), 0);
    WANT(cu.cuMemFreeAsync_ptsz(b, own[i]), 0);
  }
  WANT(cu.cuMemAllocAsync(&b, 65 * MIB, s[0]), OOM);
  WANT(cu.cuMemAlloc_v2(&a[0], MIB), 0); // freed in the other way
  WANT(cu.cuMemFreeAsync(a[0], s[0]), 0);
  WANT(cu.cuMemAllocAsync(&a[0], MIB, s[0]), 0);
  WANT(cu.cuMemFree_v2(a[0]), 0);
  // A stream ends while memory of it lives.
  WANT(cu.cuMemAllocAsync(&a[0], MIB, s[1]), 0);
  WANT(cu.cuStreamSynchronize(s[1]), 0);
  WANT(cu.cuStreamDestroy_v2(s[1]), 0);
  WANT(cu.cuMemFreeAsync(a[0], s[0]), 0);
  for (int i = 0; i < 5; i++) {
    WANT(cu.cuStreamCreate(&s[1], 1), 0);
    WANT(cu.cuMemAllocAsync(&a[0], MIB, s[1]), 0);
    WANT(cu.cuMemFreeAsync(a[0], s[1]), 0);
    WANT(cu.cuStreamDestroy_v2(s[1]), 0);
  }
  ptr pool;
  u64 used = 1, high = 0, reserved = 0;
  WANT(cu.cuDeviceGetDefaultMemPool(&pool, 0), 0);
  WANT(cu.cuMemAllocAsync(&b, 5 * MIB, s[0]), 0);
  WANT(cu.cuMemPoolGetAttribute(pool, 7, &used), 0);
  WANT(cu.cuMemPoolGetAttribute(pool, 8, &high), 0);
  WANT(cu.cuMemPoolGetAttribute(pool, 5, &reserved), 0);
  WANT(used, 5 * MIB);
  TRUE(high >= 36 * MIB && reserved >= used);
  WANT(cu.cuMemFreeAsync(b, s[0]), 0);
  WANT(cu.cuCtxSynchronize(), 0);
  WANT(cu.cuMemPoolTrimTo(pool, 0), 0);
  WANT(cu.cuMemPoolGetAttribute(pool, 5, &reserved), 0);
  WANT(reserved, 0);
  WANT(cu.cuStreamDestroy_v2(s[0]), 0);
}

// A thread without a current context: the memory is that of the stream's GPU, and counts.
static void *without_context(void *s) {
  u64 a;
  WANT(cu.cuMemAllocAsync(&a, 40 * MIB, s), 0);
  WANT(cu.cuMemFreeAsync(a, s), 0);
  WANT(cu.cuMemAllocAsync(&a, 70 * MIB, s), OOM);
  return 0;
}

// What is allocated in a graph is the driver's, also in the thread's own stream.
static void captured(void) {
  ptr own = (ptr)2, graph;
  u64 a, b;
  WANT(cu.cuStreamBeginCapture_v2(own, 2), 0);
  WANT(cu.cuMemAllocAsync(&a, MIB, own), 0);
  WANT(cu.cuMemFreeAsync(a, own), 0);
  WANT(cu.cuStreamEndCapture(own, &graph), 0);
  for (int i = 0; i < 4; i++) {
    WANT(cu.cuMemAlloc_v2(&b, MIB), 0);
    TRUE(b != a);
    WANT(cu.cuMemFree_v2(b), 0);
  }
}

// Pools that the program makes: a plain one is served, one with a limit is the driver's,
// by whichever way memory is taken of it, and counts.
static void own_pools(void) {
  pthread_t thread;
  struct { int type, handles, location, id; ptr security; size_t limit; char rest[56]; } plain = {1, 0, 1, 0, 0, 0, {0}}, small = {1, 0, 1, 0, 0, 4 * MIB, {0}};
  ptr s, usual, p[2];
  u64 a, b, used = 0, reserved = 0, before;
  WANT(cu.cuStreamCreate(&s, 1), 0);
  pthread_create(&thread, 0, without_context, s);
  pthread_join(thread, 0);
  WANT(cu.cuDeviceGetDefaultMemPool(&usual, 0), 0);
  WANT(cu.cuMemPoolCreate(&p[0], &plain), 0);
  WANT(cu.cuMemPoolCreate(&p[1], &small), 0);
  WANT(cu.cuMemPoolGetAttribute(usual, 7, &before), 0);
  WANT(cu.cuMemAllocFromPoolAsync(&a, MIB, p[0], s), 0);
  WANT(cu.cuMemPoolGetAttribute(p[0], 7, &used), 0);
  WANT(used, before + MIB); // of the one pool that all are
  WANT(cu.cuMemFreeAsync(a, s), 0);
  size_t all = free_bytes();
  WANT(cu.cuMemAllocFromPoolAsync(&a, 5 * MIB, p[1], s), OOM);
  WANT(cu.cuMemAllocFromPoolAsync(&a, 3 * MIB, p[1], s), 0);
  WANT(cu.cuMemPoolGetAttribute(p[1], 5, &reserved), 0);
  TRUE(reserved >= 3 * MIB);
  WANT(all - free_bytes(), reserved); // what the driver has taken for it
  WANT(cu.cuMemPoolGetAttribute(p[1], 7, &used), 0);
  WANT(used, 3 * MIB);
  WANT(cu.cuDeviceSetMemPool(0, p[1]), 0);
  WANT(cu.cuMemAllocAsync(&b, 2 * MIB, s), OOM);
  WANT(cu.cuDeviceSetMemPool(0, p[0]), 0);
  WANT(cu.cuMemAllocAsync(&b, 2 * MIB, s), 0);
  WANT(cu.cuMemFreeAsync(b, s), 0);
  WANT(cu.cuDeviceSetMemPool(0, usual), 0);
  WANT(cu.cuMemFreeAsync(a, s), 0);
  WANT(cu.cuStreamSynchronize(s), 0);
  WANT(free_bytes(), all);
  WANT(cu.cuMemPoolDestroy(p[1]), 0);
  WANT(cu.cuMemPoolDestroy(p[0]), 0);
  WANT(cu.cuMemAllocFromPoolAsync(&a, MIB, p[0], s), INVALID);
  WANT(cu.cuStreamDestroy_v2(s), 0);
}

// What the program takes past the pool counts against its limit.
static void charged(void) {
  u64 a, b, h, at;
  size_t pitch;
  size_t all = free_bytes();
  WANT(cu.cuMemAllocManaged(&a, 40 * MIB, 1), 0);
  WANT(cu.cuMemAlloc_v2(&b, 30 * MIB), OOM);
  WANT(free_bytes(), all - 40 * MIB);
  WANT(cu.cuMemFree_v2(a), 0);
  WANT(cu.cuMemAllocPitch_v2(&a, &pitch, MIB, 40, 4), 0);
  WANT(cu.cuMemAlloc_v2(&b, 30 * MIB), OOM);
  WANT(cu.cuMemFree_v2(a), 0);
  int prop[8] = {1, 0, 1, 0}; // pinned, on device 0
  WANT(cu.cuMemCreate(&h, 40 * MIB, prop, 0), 0);
  WANT(cu.cuMemAlloc_v2(&b, 30 * MIB), OOM);
  WANT(cu.cuMemAddressReserve(&at, 40 * MIB, 0, 0, 0), 0);
  WANT(cu.cuMemMap(at, 40 * MIB, 0, h, 0), 0);
  WANT(cu.cuMemRelease(h), 0);
  WANT(cu.cuMemAlloc_v2(&b, 30 * MIB), OOM); // it is mapped
  WANT(cu.cuMemUnmap(at, 40 * MIB), 0);
  WANT(cu.cuMemAlloc_v2(&b, 30 * MIB), 0);
  WANT(cu.cuMemCreate(&h, 40 * MIB, prop, 0), OOM);
  WANT(cu.cuMemFree_v2(b), 0);
  WANT(cu.cuMemCreate(&h, 40 * MIB, prop, 0), 0); // what is idle makes room
  WANT(cu.cuMemRelease(h), 0);
  WANT(free_bytes(), all);
}

static void contexts(void) {
  ptr c, own;
  u64 a;
  WANT(cu.cuCtxGetCurrent(&c), 0);
  WANT(cu.cuCtxCreate_v2(&own, 0, 0), 0); // is current now
  WANT(cu.cuMemAlloc_v2(&a, 40 * MIB), 0);
  WANT(cu.cuCtxSetCurrent(c), 0);
  u64 b;
  WANT(cu.cuMemAlloc_v2(&b, 30 * MIB), OOM); // the other context's counts
  WANT(cu.cuCtxSetCurrent(own), 0);
  WANT(cu.cuMemFree_v2(a), 0);
  WANT(cu.cuMemAlloc_v2(&a, 40 * MIB), 0);
  WANT(cu.cuCtxDestroy_v2(own), 0); // and its memory with it
  WANT(cu.cuCtxSetCurrent(c), 0);
  WANT(cu.cuMemAlloc_v2(&b, 60 * MIB), 0);
  WANT(cu.cuMemFree_v2(b), 0);
  // A reset takes the memory with it.
  WANT(cu.cuMemAlloc_v2(&a, 60 * MIB), 0);
  WANT(cu.cuDevicePrimaryCtxReset_v2(0), 0);
  WANT(cu.cuDevicePrimaryCtxRetain(&c, 0), 0);
  WANT(cu.cuCtxSetCurrent(c), 0);
  WANT(cu.cuMemAlloc_v2(&a, 60 * MIB), 0);
  WANT(cu.cuMemFree_v2(a), 0);
}

static void entries(void) {
  static const struct { const char *name; int version; u64 flags; const char *want; } t[] = {
    {"cuMemAlloc", 12080, 0, "cuMemAlloc_v2"}, {"cuMemFree", 13000, 0, "cuMemFree_v2"}, {"cuMemAllocAsync", 12080, 0, "cuMemAllocAsync"},
    {"cuMemAllocAsync", 12080, 2, "cuMemAllocAsync_ptsz"}, {"cuMemFreeAsync", 12080, 2, "cuMemFreeAsync_ptsz"}, {"cuMemGetInfo", 11030, 0, "cuMemGetInfo_v2"},
    {"cuGetProcAddress", 12080, 0, "cuGetProcAddress_v2"}, {"cuMemCreate", 12080, 0, "cuMemCreate"}, {"cuStreamDestroy", 12080, 0, "cuStreamDestroy_v2"},
  };
  for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
    void *p = 0;
    int status;
    WANT(cu.cuGetProcAddress_v2(t[i].name, &p, t[i].version, t[i].flags, &status), 0);
    if (p != dlsym(lib, t[i].want)) printf("cuGetProcAddress_v2(%s, %d) is not %s\n", t[i].name, t[i].version, t[i].want), faults++;
  }
  // Programs whose streams are each thread's own ask another function, which a driver may not have.
  int (*per_thread)(const char *, void **, int, u64, int *), status;
  *(void **)&per_thread = dlsym(lib, "cuGetProcAddress_v2_ptsz");
  void *old = 0;
  if (!per_thread("cuMemAllocAsync", &old, 12080, 0, &status)) TRUE(old == dlsym(lib, "cuMemAllocAsync_ptsz"));
  if (!per_thread("cuMemAllocAsync", &old, 12080, 1, &status)) TRUE(old == dlsym(lib, "cuMemAllocAsync"));
  if (!per_thread("cuMemAlloc", &old, 12080, 0, &status)) TRUE(old == dlsym(lib, "cuMemAlloc_v2"));
  if (!cu.cuGetProcAddress_v2("cuMemAlloc", &old, 3010, 0, 0)) TRUE(old != dlsym(lib, "cuMemAlloc_v2"));
  // By the other name it is the same library, or one that only needs it (in a wheel, which has no links).
  TRUE(dlsym(dlopen("libcuda.so", RTLD_NOW), "cuInit") == dlsym(lib, "cuInit"));
}

static void *thread(void *n) {
  ptr c;
  cu.cuDevicePrimaryCtxRetain(&c, 0);
  cu.cuCtxSetCurrent(c);
  u64 a[4] = {0};
  for (int i = 0; i < 500; i++) {
    u64 *at = &a[i & 3];
    if (*at && cu.cuMemFree_v2(*at)) return "free";
    if (cu.cuMemAlloc_v2(at, 1000 + (size_t)n * 100 + i * 16)) return "alloc";
  }
  for (int i = 0; i < 4; i++)
    if (cu.cuMemFree_v2(a[i])) return "free";
  return 0;
}

static void threads(void) {
  pthread_t t[64];
  for (long i = 0; i < 64; i++) pthread_create(&t[i], 0, thread, (void *)i);
  for (int i = 0; i < 64; i++) {
    void *r;
    pthread_join(t[i], &r);
    if (r) printf("thread %d: %s\n", i, (char *)r), faults++;
  }
}

// A child gets what the driver answers after a fork, at once, and ends.
static void forks(void) {
  for (int i = 0; i < 20; i++) {
    pid_t p = fork();
    if (!p) {
      u64 a = 0;
      size_t f, t;
      alarm(10);
      if (!cu.cuMemAlloc_v2(&a, MIB)) cu.cuMemFree_v2(a);
      cu.cuMemGetInfo_v2(&f, &t);
      cu.cuCtxSynchronize();
      exit(7); // with the handlers that the library has added
    }
    int status;
    waitpid(p, &status, 0);
    WANT(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), 7);
  }
}

int main(void) {
  setvbuf(stdout, 0, _IOLBF, 0);
  struct sigaction before[65], after;
  lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) return puts(dlerror()), 1;
#define F(name, args) if (!(*(void **)&cu.name = dlsym(lib, #name))) return puts("no " #name), 1;
  DRIVER(F)
#undef F
  ptr c;
  size_t total;
  WANT(cu.cuInit(0), 0);
  for (int s = 1; s < 65; s++) sigaction(s, 0, &before[s]); // as the driver leaves them
  WANT(cu.cuDeviceTotalMem_v2(&total, 0), 0);
  WANT(total, 64 * MIB);
  WANT(cu.cuDevicePrimaryCtxRetain(&c, 0), 0);
  WANT(cu.cuCtxSetCurrent(c), 0);
  plain();
  async();
  captured();
  own_pools();
  charged();
  contexts();
  entries();
  threads();
  forks();
  ptr now;
  WANT(cu.cuCtxGetCurrent(&now), 0);
  for (int s = 1; s < 65; s++)
    if (s != SIGSEGV && s != SIGBUS && s != SIGFPE && !sigaction(s, 0, &after) && after.sa_handler != before[s].sa_handler)
      printf("the handler of signal %d was changed\n", s), faults++;
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, 0, &mask);
  for (int s = 1; s < 65; s++)
    if (sigismember(&mask, s) == 1) printf("signal %d is blocked\n", s), faults++;
  WANT(dlclose(lib), 0);
  u64 a;
  WANT(cu.cuMemAlloc_v2(&a, MIB), 0); // still there
  return faults != 0;
}
