// Pools of the program by many threads: each makes pools with a limit, takes memory from them,
// frees it, waits, and ends them, also with memory that is live. Whenever all threads rest, the
// books are what the GPU has granted.
//
//	pools SEED THREADS ROUNDS

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint64_t u64;
typedef void *ptr;

#define FUNCTIONS(F) \
  F(cuInit, (unsigned)) F(cuCtxCreate_v2, (ptr *, unsigned, int)) F(cuCtxSetCurrent, (ptr)) F(cuCtxSynchronize, (void)) F(cuStreamSynchronize, (ptr)) \
  F(cuMemGetInfo_v2, (size_t *, size_t *)) F(cuMemPoolCreate, (ptr *, const void *)) F(cuMemPoolDestroy, (ptr)) F(cuMemPoolTrimTo, (ptr, size_t)) \
  F(cuMemAllocFromPoolAsync, (u64 *, size_t, ptr, ptr)) F(cuMemFreeAsync, (u64, ptr))
#define F(name, args) static int (*name) args;
FUNCTIONS(F)
#undef F
static int (*status)(int, u64 *, u64 *, char *, char *);

enum { MIB = 1 << 20 };
static ptr context;
static int rounds;
static volatile int faults, refused;
static pthread_barrier_t barrier;

static void fault(const char *what, u64 a, u64 b) {
  if (__sync_add_and_fetch(&faults, 1) < 10) printf("%s: %llu, %llu\n", what, (unsigned long long)a, (unsigned long long)b);
}

static void look(void) {
  size_t left, limit;
  u64 total, used;
  char text[96], more[96];
  if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
    if (cuCtxSynchronize() || cuMemGetInfo_v2(&left, &limit) || status(0, &total, &used, text, more)) fault("no books", 0, 0);
    else if (limit - left != used) fault("bytes are counted, and used", limit - left, used);
  }
  pthread_barrier_wait(&barrier);
}

static void *run(void *seed) {
  unsigned long long state = (uintptr_t)seed * 2 + 1;
  struct { int type, handles, location, id; ptr security; size_t limit; char rest[56]; } limited = {1, 0, 1, 0, 0, 64 * MIB, {0}};
  ptr pool;
  int code;
  if (cuCtxSetCurrent(context)) fault("cuCtxSetCurrent", 0, 0);
  for (int round = 0; round < rounds; round++) {
    u64 at[3] = {0};
    if ((code = cuMemPoolCreate(&pool, &limited))) fault("cuMemPoolCreate", code, 0);
    for (int i = 0; i < 3; i++) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      unsigned n = (unsigned)(state >> 33);
      code = cuMemAllocFromPoolAsync(&at[i], 1 + n % (20 * MIB), pool, 0);
      if (code && code != 2) fault("cuMemAllocFromPoolAsync", code, 0);
      if (code) at[i] = 0, refused = 1;
      if (n % 3 == 0 && cuStreamSynchronize(0)) fault("cuStreamSynchronize", 0, 0);
      if (n % 5 == 0 && cuMemPoolTrimTo(pool, 0)) fault("cuMemPoolTrimTo", 0, 0);
    }
    for (int i = 0; i < 3; i++)
      if (at[i] && (code = cuMemFreeAsync(at[i], 0))) fault("cuMemFreeAsync", code, 0);
    if (round % 2 && cuStreamSynchronize(0)) fault("cuStreamSynchronize", 0, 0);
    if ((code = cuMemPoolDestroy(pool))) fault("cuMemPoolDestroy", code, 0);
    if (round % 16 == 15) look();
  }
  look();
  return 0;
}

int main(int argc, char **argv) {
  pthread_t thread[64];
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *sim = dlopen(getenv("GPUMEM_LIBCUDA"), RTLD_NOW | RTLD_LOCAL);
  if (!lib || !sim || argc < 4) return puts(dlerror()), 1;
#define F(name, args) if (!(*(void **)&name = dlsym(lib, #name))) return puts("no " #name), 1;
  FUNCTIONS(F)
  if (!(*(void **)&status = dlsym(sim, "gpumemSimStatus"))) return puts("no gpumemSimStatus"), 1;
  int threads = atoi(argv[2]);
  rounds = atoi(argv[3]);
  if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0)) return puts("no context"), 1;
  pthread_barrier_init(&barrier, 0, threads);
  for (int i = 0; i < threads; i++) pthread_create(&thread[i], 0, run, (void *)(uintptr_t)(atoi(argv[1]) * 100 + i));
  for (int i = 0; i < threads; i++) pthread_join(thread[i], 0);
  if (!refused) fault("nothing was refused", 0, 0);
  return faults > 0;
}
