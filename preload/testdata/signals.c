// A program with timers whose handlers use the stack that they find (no SA_ONSTACK), in
// threads that allocate; and the threads of the pools, which must leave signals to it.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static int (*init)(unsigned), (*retain)(void **, int), (*set)(void *), (*alloc)(uint64_t *, size_t), (*free_)(uint64_t);
static void *ctx;

static void handler(int s) {
  volatile char room[61440];
  for (int i = 0; i < 61440; i += 64) room[i] = 1;
}

static void *work(void *seed) {
  unsigned r = (unsigned)(uintptr_t)seed;
  uint64_t p[64] = {0};
  set(ctx);
  for (int i = 0; i < 60000; i++) {
    r = r * 1103515245 + 12345;
    uint64_t *at = &p[r >> 16 & 63];
    int had = *at != 0, code = had ? free_(*at) : alloc(at, 1 + (r >> 10) % 100000);
    if (code) puts("a call failed"), exit(1);
    if (had) *at = 0;
  }
  return 0;
}

// unblocked counts threads in which signals of the program's are open: all but those of
// faults, and those of the C library, which are below SIGRTMIN.
static int unblocked(void) {
  sigset_t programs;
  unsigned long long mask, want;
  sigfillset(&programs);
  for (int s = 1; s < 32; s++)
    if (strchr("\4\5\7\10\11\13\23", s)) sigdelset(&programs, s); // SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGSTOP
  memcpy(&want, &programs, sizeof want);
  DIR *d = opendir("/proc/self/task");
  int n = 0;
  for (struct dirent *e; (e = readdir(d));) {
    char path[300], line[256];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
    FILE *f = e->d_name[0] == '.' ? 0 : fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
      if (sscanf(line, "SigBlk: %llx", &mask) == 1 && (~mask & want)) n++;
    if (f) fclose(f);
  }
  closedir(d);
  return n;
}

int main(void) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) return puts(dlerror()), 1;
  *(void **)&init = dlsym(lib, "cuInit"), *(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain"), *(void **)&set = dlsym(lib, "cuCtxSetCurrent");
  *(void **)&alloc = dlsym(lib, "cuMemAlloc_v2"), *(void **)&free_ = dlsym(lib, "cuMemFree_v2");
  if (init(0) || retain(&ctx, 0) || set(ctx)) return puts("no context"), 1;
  int before = unblocked();
  uint64_t p;
  if (alloc(&p, 1)) return puts("no memory"), 1;
  int after = unblocked();
  if (after > before) printf("%d threads of the pools have signals of the program's unblocked\n", after - before);
  int timers[] = {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}, signals[] = {SIGALRM, SIGVTALRM, SIGPROF};
  struct itimerval often = {{0, 200}, {0, 200}};
  for (int i = 0; i < 3; i++) signal(signals[i], handler), setitimer(timers[i], &often, 0);
  pthread_t t[3];
  for (uintptr_t i = 0; i < 3; i++) pthread_create(&t[i], 0, work, (void *)(i + 1));
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
  if ((after = unblocked()) > before) printf("%d later threads of the pools have signals of the program's unblocked\n", after - before);
  return 0;
}
