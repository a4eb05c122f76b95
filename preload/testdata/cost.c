// What calls cost with the library, in nanoseconds of CPU time: a line for each, the name
// and the number.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uint64_t u64;
typedef void *ptr;

static int (*alloc)(u64 *, size_t), (*free_)(u64), (*alloc_async)(u64 *, size_t, ptr), (*free_async)(u64, ptr), (*get)(int *);

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

static long status(const char *name) {
  char line[256];
  long v = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (fgets(line, sizeof line, f))
    if (!strncmp(line, name, strlen(name))) v = atol(line + strlen(name) + 1);
  fclose(f);
  return v;
}

enum { N = 200000 };

int main(void) {
  long kb = status("VmRSS"), threads = status("Threads");
  double t = now();
  void *h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!h) return puts(dlerror()), 1;
  printf("dlopen-ns %.0f\n", now() - t);
  int (*init)(unsigned) = dlsym(h, "cuInit"), (*retain)(ptr *, int) = dlsym(h, "cuDevicePrimaryCtxRetain"), (*set)(ptr) = dlsym(h, "cuCtxSetCurrent");
  int (*create)(ptr *, unsigned) = dlsym(h, "cuStreamCreate");
  alloc = dlsym(h, "cuMemAlloc_v2"), free_ = dlsym(h, "cuMemFree_v2"), get = dlsym(h, "cuCtxGetDevice");
  alloc_async = dlsym(h, "cuMemAllocAsync"), free_async = dlsym(h, "cuMemFreeAsync");
  ptr c, s[2];
  init(0);
  long kb0 = status("VmRSS"), threads0 = status("Threads");
  u64 p;
  t = now();
  if (retain(&c, 0) || set(c) || create(&s[0], 1) || create(&s[1], 1) || alloc(&p, 1 << 20)) return puts("no memory"), 1;
  printf("first-ns %.0f\n", now() - t);
  printf("opened-kB %ld\n", status("VmRSS") - kb0);
  printf("opened-threads %ld\n", status("Threads") - threads0);
  free_(p);
  t = now();
  for (int i = 0; i < N; i++) alloc(&p, 1 << 16), free_(p);
  printf("safe-pair-ns %.0f\n", (now() - t) / N);
  t = now();
  for (int i = 0; i < N; i++) alloc_async(&p, 1 << 16, s[0]), free_async(p, s[0]);
  printf("stream-pair-ns %.0f\n", (now() - t) / N);
  t = now();
  for (int i = 0; i < N / 4; i++) alloc_async(&p, 1 << 16, s[i & 1]), free_async(p, s[i & 1]);
  printf("turns-pair-ns %.0f\n", (now() - t) / (N / 4));
  t = now();
  for (int i = 0, d; i < 5 * N; i++) get(&d);
  printf("forwarded-ns %.1f\n", (now() - t) / (5 * N));
  (void)kb, (void)threads;
  return 0;
}
