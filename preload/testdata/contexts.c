// Contexts by many threads: what the GPU has granted is at most the lease at all times, and the
// books are equal to it whenever no thread is in a call.
//
//	contexts SEED THREADS ROUNDS LIMIT [alone]
//
// It begins with a context, by which the process is counted, writes a line, and waits for one.
//
// Each thread makes contexts, ends them, takes memory in them, which it frees or leaves to end
// with them, and retains, releases and resets the primary context. alone compares the books with
// the GPU, which no other program uses then.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
typedef void *ptr;

#define FUNCTIONS(F) \
  F(cuInit, (unsigned)) F(cuCtxCreate_v2, (ptr *, unsigned, int)) F(cuCtxCreate_v3, (ptr *, ptr, int, unsigned, int)) F(cuCtxDestroy_v2, (ptr)) \
  F(cuCtxPopCurrent_v2, (ptr *)) F(cuDevicePrimaryCtxRetain, (ptr *, int)) F(cuDevicePrimaryCtxRelease_v2, (int)) F(cuDevicePrimaryCtxReset_v2, (int)) \
  F(cuMemAlloc_v2, (u64 *, size_t)) F(cuMemFree_v2, (u64)) F(cuMemGetInfo_v2, (size_t *, size_t *))
#define F(name, args) static int (*name) args;
FUNCTIONS(F)
#undef F
static int (*status)(int, u64 *, u64 *, char *, char *);

enum { MIB = 1 << 20, MINE = 3 };
static u64 limit, gpu; // bytes of the lease, and of the GPU
static int rounds, alone, threads;
static volatile int faults, refused, made, ended;
static pthread_barrier_t barrier;

static void fault(const char *what, u64 a, u64 b) {
  if (__sync_add_and_fetch(&faults, 1) < 10) printf("%s: %llu, %llu\n", what, (unsigned long long)a, (unsigned long long)b);
}

static u64 used(void) {
  u64 n = 0;
  char text[96], more[96];
  if (status(0, &gpu, &n, text, more)) fault("the GPU has no status", 0, 0);
  if (n > limit) fault("bytes are used in a lease of", n, limit);
  return n;
}

// look compares the books with the GPU while all threads wait.
static void look(void) {
  ptr context;
  size_t left, total;
  if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD && alone && !cuCtxCreate_v2(&context, 0, 0)) {
    u64 n = used();
    if (cuMemGetInfo_v2(&left, &total)) fault("cuMemGetInfo", 0, 0);
    if (limit - left != n && left != gpu - n) fault("bytes are counted, and used", limit - left, n);
    if (cuCtxDestroy_v2(context)) fault("cuCtxDestroy", 0, 0);
  }
  pthread_barrier_wait(&barrier);
}

static void *run(void *seed) {
  unsigned long long state = (uintptr_t)seed * 2 + 1;
  ptr c[MINE] = {0}, primary;
  int code;
  for (int round = 0; round < rounds; round++) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    unsigned n = (unsigned)(state >> 33);
    int i = (int)(n % MINE);
    u64 at = 0;
    if (n / MINE % 8 == 0) {
      if ((code = cuDevicePrimaryCtxRetain(&primary, 0)) && code != 2) fault("cuDevicePrimaryCtxRetain", code, 0);
      if (code) refused = 1;
      used();
      if (code) goto next;
      if (n / 24 % 16 == 0 && (code = cuDevicePrimaryCtxReset_v2(0))) fault("cuDevicePrimaryCtxReset", code, 0);
      if ((code = cuDevicePrimaryCtxRelease_v2(0))) fault("cuDevicePrimaryCtxRelease", code, 0); // what is reset is retained
    } else if (!c[i]) {
      code = n / 24 % 2 ? cuCtxCreate_v2(&c[i], 0, 0) : cuCtxCreate_v3(&c[i], 0, 0, 0, 0);
      if (code && code != 2) fault("cuCtxCreate", code, 0);
      if (code) c[i] = 0, refused = 1;
      else made = 1;
      used();
      if (!code && !cuMemAlloc_v2(&at, 1 + n % (5 * MIB)) && n / 48 % 2 && (code = cuMemFree_v2(at))) fault("cuMemFree", code, 0);
      if (c[i] && (code = cuCtxPopCurrent_v2(&primary))) fault("cuCtxPopCurrent", code, 0); // the stack of a thread has an end
    } else {
      if ((code = cuCtxDestroy_v2(c[i]))) fault("cuCtxDestroy", code, 0);
      c[i] = 0;
    }
  next:
    used();
    if (round % 16 == 15) look();
  }
  for (int i = 0; i < MINE; i++)
    if (c[i] && (code = cuCtxDestroy_v2(c[i]))) fault("cuCtxDestroy", code, 1);
  look();
  return 0;
}

static void *watch(void *unused) {
  while (!ended) used();
  return 0;
}

int main(int argc, char **argv) {
  pthread_t thread[64], watcher;
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *sim = dlopen(getenv("GPUMEM_LIBCUDA"), RTLD_NOW | RTLD_LOCAL);
  if (!lib || !sim || argc < 5) return puts(dlerror()), 1;
#define F(name, args) if (!(*(void **)&name = dlsym(lib, #name))) return puts("no " #name), 1;
  FUNCTIONS(F)
  if (!(*(void **)&status = dlsym(sim, "gpumemSimStatus"))) return puts("no gpumemSimStatus"), 1;
  threads = atoi(argv[2]), rounds = atoi(argv[3]), limit = strtoull(argv[4], 0, 10), alone = argc > 5;
  if (cuInit(0)) return puts("cuInit"), 1;
  ptr begin;
  size_t left, total;
  if (cuCtxCreate_v2(&begin, 0, 0) || cuMemGetInfo_v2(&left, &total) || cuCtxDestroy_v2(begin)) return puts("no context"), 1;
  puts("ready"), fflush(stdout), getchar();
  pthread_barrier_init(&barrier, 0, threads);
  pthread_create(&watcher, 0, watch, 0);
  for (int i = 0; i < threads; i++) pthread_create(&thread[i], 0, run, (void *)(uintptr_t)(atoi(argv[1]) * 100 + i));
  for (int i = 0; i < threads; i++) pthread_join(thread[i], 0);
  ended = 1;
  pthread_join(watcher, 0);
  if (!made) fault("no context was made", 0, 0);
  if (!refused) fault("nothing was refused", 0, 0);
  if (alone && used()) fault("bytes are used in the end", used(), 0);
  return faults > 0;
}
