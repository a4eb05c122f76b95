// A driver for tests of the gate. It counts calls that come while test_shut says that none may.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t u64;
typedef void *ptr;

volatile int test_shut;      // between closing and opening
volatile int test_wrong;     // calls that came or ran then, and questions about streams that are gone
void (*volatile test_in_call)(void); // runs in cuMemcpyHtoD_v2 and cuGraphUpload

static void wrong(void) { __atomic_add_fetch(&test_wrong, 1, __ATOMIC_RELAXED); }

// submit is work of some hundred nanoseconds at most, without a locked instruction, which would
// hide that the gate lacks one.
__attribute__((noinline)) static int submit(unsigned n) {
  static __thread unsigned turn;
  if (test_shut) wrong();
  for (volatile unsigned i = (turn += 7, turn % (n + 1)); i; i--) {}
  if (test_shut) wrong();
  return 0;
}

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *v) { return *v = 13000, 0; }
int cuDeviceGetCount(int *n) { return *n = 1, 0; }
int cuDeviceGetUuid_v2(char u[16], int d) { return memset(u, 7, 16), 0; }
int cuDevicePrimaryCtxRetain(ptr *c, int d) { return *c = (ptr)0x100, 0; }
int cuDevicePrimaryCtxReset_v2(int d) { return 0; }
int cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) { return *flags = 0, *active = 1, 0; }
static __thread ptr current;
int cuCtxGetCurrent(ptr *c) { return *c = current, 0; }
int cuCtxSetCurrent(ptr c) { return current = c, 0; }
int cuCtxPushCurrent_v2(ptr c) { return current = c, 0; }
int cuCtxPopCurrent_v2(ptr *c) { return *c = current, current = 0, 0; }
int cuCtxGetDevice(int *d) { return *d = 0, 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return 0; }

int cuEventRecord(ptr e, ptr s) { return submit(40); }
int cuGraphLaunch(ptr g, ptr s) { return submit(40); }
int cuPointerGetAttribute(void *v, int a, u64 at) { return submit(40); }
int cuStreamWaitEvent(ptr s, ptr e, unsigned flags) { return 0; } // for its cost
int cuMemcpyHtoD_v2(u64 to, const void *from, size_t n) { return test_in_call(), 0; }
int cuGraphUpload(ptr g, ptr s) { return test_in_call(), 0; }

// Each argument is checked: the i-th is i and a byte that is its own.
static int same(const u64 *a, int n) {
  for (int i = 0; i < n; i++)
    if (a[i] != (0x1111111111111111u * (unsigned)i ^ 0xa5)) return -1 - i;
  return 4242;
}

int cuLaunchKernel(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 g, u64 h, u64 i, u64 j, u64 k) {
  u64 all[] = {a, b, c, d, e, f, g, h, i, j, k};
  return same(all, 11);
}

static int sixteen(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 g, u64 h, u64 i, u64 j, u64 k, u64 l, u64 m, u64 n, u64 o, u64 p) {
  u64 all[] = {a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p};
  return test_shut ? wrong(), 1 : same(all, 16);
}

// Forms that only cuGetProcAddress gives out: by version, and for streams of each thread's own.
static int copy1(void) { return 1 + submit(0); }
static int copy2(void) { return 2 + submit(0); }
static int copy3(void) { return 3 + submit(0); }
static int copy4(void) { return 4 + submit(0); }
static int query(void) { return 5; }

#define NEW(n) static int new##n(void) { return n + submit(0); } // 100 to 899
#define TEN(F, n) F(n##0) F(n##1) F(n##2) F(n##3) F(n##4) F(n##5) F(n##6) F(n##7) F(n##8) F(n##9)
#define HUNDRED(F, n) \
  TEN(F, n##0) TEN(F, n##1) TEN(F, n##2) TEN(F, n##3) TEN(F, n##4) TEN(F, n##5) TEN(F, n##6) TEN(F, n##7) TEN(F, n##8) TEN(F, n##9)
#define EACH(F) HUNDRED(F, 1) HUNDRED(F, 2) HUNDRED(F, 3) HUNDRED(F, 4) HUNDRED(F, 5) HUNDRED(F, 6) HUNDRED(F, 7) HUNDRED(F, 8)
EACH(NEW)
#define ENTRY(n) new##n,
static int (*const new_functions[])(void) = {EACH(ENTRY)};
static void *find_new(int n) { return n < 100 || n > 899 ? 0 : (void *)new_functions[n - 100]; }

static void *find(const char *name, int version, u64 flags) {
  int n;
  if (!strcmp(name, "cuMemcpyHtoD")) return flags & 2 ? (void *)copy3 : version < 3020 ? (void *)copy1 : (void *)copy2;
  if (!strcmp(name, "cuNewSubmission")) return (void *)copy4;
  if (!strcmp(name, "cuStreamQuery")) return (void *)query;
  if (!strcmp(name, "cuSixteen")) return (void *)sixteen;
  if (sscanf(name, "cuNew%d", &n) == 1) return find_new(n);
  void *self = dlopen(getenv("GPUMEM_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD);
  return dlsym(self, name);
}

int cuGetProcAddress(const char *name, void **p, int version, u64 flags) { return *p = find(name, version, flags), *p ? 0 : 500; }
int cuGetProcAddress_v2(const char *name, void **p, int version, u64 flags, int *status) { return cuGetProcAddress(name, p, version, flags); }

// Streams: a handle is in live while it is there. What the driver is asked of another is wrong.
enum { STREAMS = 4096 };
volatile int test_live[STREAMS], test_busy[STREAMS], test_capturing[STREAMS], test_contexts[STREAMS];
int test_next = 16;          // the smallest handles are the driver's own streams

static int make(ptr *s, int context) {
  int h = __atomic_fetch_add(&test_next, 1, __ATOMIC_RELAXED) % STREAMS;
  test_live[h] = 1, test_contexts[h] = context;
  return *s = (ptr)(u64)h, 0;
}

int cuStreamCreate(ptr *s, unsigned flags) { return make(s, (int)(u64)current); }
int cuStreamCreateWithPriority(ptr *s, unsigned flags, int priority) { return make(s, (int)(u64)current); }
int cuGreenCtxStreamCreate(ptr *s, ptr green, unsigned flags, int priority) { return make(s, (int)(u64)green + 1); }
int cuStreamGetCtx(ptr s, ptr *c) { return *c = (ptr)(u64)test_contexts[(u64)s], 0; }

volatile int test_refuse; // the next end of a stream or context
void (*volatile test_meanwhile)(void); // is called in the next one, when the stream is gone

int cuStreamDestroy_v2(ptr s) {
  if (test_refuse) return test_refuse = 0, 400;
  test_live[(u64)s] = 0;
  void (*meanwhile)(void) = test_meanwhile;
  test_meanwhile = 0;
  if (meanwhile) meanwhile();
  return 0;
}

static int end(int context) {
  if (test_refuse) return test_refuse = 0, 201;
  for (int h = 0; h < STREAMS; h++)
    if (test_contexts[h] == context) test_live[h] = 0;
  return 0;
}

int cuCtxDestroy_v2(ptr c) { return end((int)(u64)c); }
int cuGreenCtxDestroy(ptr c) { return end((int)(u64)c + 1); }

int cuStreamQuery(ptr s) {
  if (!test_live[(u64)s] || test_capturing[(u64)s] || test_contexts[(u64)s] != (int)(u64)current) wrong();
  return test_busy[(u64)s] ? 600 : 0;
}

int cuStreamIsCapturing(ptr s, int *status) {
  if (!test_live[(u64)s]) wrong();
  return *status = test_capturing[(u64)s], 0;
}
