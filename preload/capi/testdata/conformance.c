// A program that uses the pools through gpumem.h and checks what it gets. The device is
// the first argument, a file to record to the second. Each line of output is a fault.

#define _GNU_SOURCE
#include "gpumem.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int faults;
static void fault(int line, const char *what, long got, long want) {
  printf("line %d: %s = %ld, want %ld (%s)\n", line, what, got, want, gpumem_last_error());
  faults++;
}
#define WANT(expression, value) \
  do { long got_ = (long)(expression), want_ = (long)(value); if (got_ != want_) fault(__LINE__, #expression, got_, want_); } while (0)
#define TRUE(expression) WANT(!!(expression), 1)

enum { MIB = 1 << 20 };
static const char *device;

// stream returns the program's stream number n: of the driver, or any handle on a
// simulated GPU, which has no driver.
static void *stream(int n) {
  static void *made[8];
  if (strncmp(device, "cuda:", 5)) return (void *)(0x1000 * (size_t)(n + 1));
  if (!made[0]) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context = 0;
    int (*init)(unsigned), (*retain)(void **, int), (*set)(void *), (*create)(void **, unsigned);
    *(void **)&init = dlsym(lib, "cuInit");
    *(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain");
    *(void **)&set = dlsym(lib, "cuCtxSetCurrent");
    *(void **)&create = dlsym(lib, "cuStreamCreate");
    WANT(init(0), 0);
    WANT(retain(&context, atoi(device + 5)), 0);
    WANT(set(context), 0);
    for (int i = 0; i < 8; i++) WANT(create(&made[i], 1), 0);
  }
  return made[n];
}

static gpumem_pool opened(const char *policy) {
  gpumem_pool p = -1;
  WANT(gpumem_open(device, policy, &p), GPUMEM_OK);
  TRUE(p >= GPUMEM_GPUS);
  return p;
}

static struct gpumem_figures figures(gpumem_pool p) {
  struct gpumem_figures f;
  memset(&f, 0, sizeof f);
  f.size = sizeof f;
  WANT(gpumem_stats(p, &f), GPUMEM_OK);
  WANT(f.size, sizeof f);
  return f;
}

static void blocks(const char *policy) {
  gpumem_pool p = opened(policy);
  void *a = 0, *b = 0, *s1 = stream(0), *s2 = stream(1);
  WANT(gpumem_alloc(p, 3 * MIB, GPUMEM_STREAM_DEFAULT, &a), GPUMEM_OK);
  WANT(gpumem_alloc(p, 5 * MIB, s1, &b), GPUMEM_OK);
  TRUE(a && b && a != b);
  struct gpumem_figures f = figures(p);
  TRUE(f.bytes_in_use >= 8 * MIB && f.bytes_in_use <= f.pool_bytes && f.pool_bytes <= f.total);
  WANT(f.live, 2);
  WANT(f.allocs, 2);
  WANT(gpumem_free(p, b, s2), GPUMEM_OK); // in another stream
  WANT(gpumem_free(p, b, s2), GPUMEM_NOT_ALLOCATED);
  TRUE(strstr(gpumem_last_error(), "no live block"));
  WANT(gpumem_free(p, (char *)a + 256, 0), GPUMEM_NOT_ALLOCATED);
  WANT(gpumem_record_stream(p, a, s2), GPUMEM_OK);
  WANT(gpumem_record_stream(p, b, s2), GPUMEM_NOT_ALLOCATED);
  WANT(gpumem_free(p, a, 0), GPUMEM_OK);
  WANT(gpumem_free(p, 0, 0), GPUMEM_OK);
  // of no stream, of the stream of each thread, and of none
  WANT(gpumem_alloc(p, MIB, GPUMEM_STREAM_ANY, &a), GPUMEM_OK);
  WANT(gpumem_free(p, a, GPUMEM_STREAM_ANY), GPUMEM_OK);
  WANT(gpumem_alloc(p, MIB, GPUMEM_STREAM_PER_THREAD, &a), GPUMEM_OK);
  WANT(gpumem_free(p, a, GPUMEM_STREAM_PER_THREAD), GPUMEM_OK);
  a = &a;
  WANT(gpumem_alloc(p, 0, 0, &a), GPUMEM_OK);
  WANT((long)a, 0);
  WANT(gpumem_stream_ends(p, s1), GPUMEM_OK);
  WANT(gpumem_stream_ends(p, stream(7)), GPUMEM_OK);
  WANT(gpumem_alloc(p, MIB, s1, &a), GPUMEM_OK); // another stream with the same handle
  WANT(gpumem_free(p, a, s1), GPUMEM_OK);
  f = figures(p);
  WANT(f.live, 0);
  WANT(f.bytes_in_use, 0);
  WANT(f.frees, f.allocs);
  uint64_t released = 1, free_bytes = 0, total = 0;
  WANT(gpumem_trim(p, &released), GPUMEM_OK);
  WANT(gpumem_trim(p, 0), GPUMEM_OK);
  if (!strncmp(policy ? policy : "elastic", "elastic", 7)) {
    TRUE(released > 0);
    WANT(figures(p).pool_bytes, 0);
  }
  WANT(gpumem_info(p, &free_bytes, &total), GPUMEM_OK);
  TRUE(free_bytes > 0 && free_bytes <= total);
  WANT(gpumem_info(p, 0, 0), GPUMEM_OK);
  TRUE(figures(p).peak_bytes_in_use >= 8 * MIB);
  WANT(gpumem_reset_peaks(p), GPUMEM_OK);
  WANT(figures(p).peak_bytes_in_use, 0);
  WANT(gpumem_close(p), GPUMEM_OK);
  WANT(gpumem_alloc(p, 1, 0, &a), GPUMEM_CLOSED);
  WANT(gpumem_close(p), GPUMEM_CLOSED);
}

static void refusals(void) {
  gpumem_pool p = opened("elastic:limit=64MiB");
  void *a, *b;
  WANT(gpumem_alloc(p, 40 * MIB, 0, &a), GPUMEM_OK);
  WANT(gpumem_alloc(p, 40 * MIB, 0, &b), GPUMEM_OUT_OF_MEMORY);
  WANT((long)b, 0);
  TRUE(strchr(gpumem_last_error(), '\n')); // the reason follows
  WANT(gpumem_alloc(p, (size_t)1 << 63, 0, &b), GPUMEM_OUT_OF_MEMORY);
  WANT(gpumem_alloc(p, ~(size_t)0, 0, &b), GPUMEM_OUT_OF_MEMORY);
  WANT(figures(p).refused, 3);
  uint64_t free_bytes, total;
  WANT(gpumem_info(p, &free_bytes, &total), GPUMEM_OK);
  WANT(free_bytes, 24 * MIB);
  WANT(total, 64 * MIB);
  WANT(gpumem_free(p, a, 0), GPUMEM_OK);
  WANT(gpumem_alloc(p, 60 * MIB, 0, &b), GPUMEM_OK);
  WANT(figures(p).total, 64 * MIB);
  WANT(gpumem_close(p), GPUMEM_OK); // with a live block
}

static void arguments(void) {
  gpumem_pool p = 5;
  WANT(gpumem_abi(), GPUMEM_ABI);
  WANT(gpumem_open("nonsense", 0, &p), GPUMEM_INVALID);
  WANT(p, -1);
  WANT(gpumem_open(device, "nonsense", &p), GPUMEM_INVALID);
  WANT(gpumem_open(device, 0, 0), GPUMEM_INVALID);
  WANT(gpumem_open("cuda:63", 0, &p), GPUMEM_NO_DEVICE);
  WANT(gpumem_close(-1), GPUMEM_CLOSED);
  WANT(gpumem_close(1 << 30), GPUMEM_CLOSED);
  WANT(gpumem_close(0), GPUMEM_INVALID);
  WANT(gpumem_alloc(0, 1, 0, 0), GPUMEM_INVALID);
  struct gpumem_figures f = {0};
  WANT(gpumem_stats(0, &f), GPUMEM_INVALID);
  WANT(gpumem_stats(0, 0), GPUMEM_INVALID);
}

// shared is what other libraries' forms of the functions do: one pool for all.
static void shared(void) {
  WANT(gpumem_configure(0, device, "nonsense"), GPUMEM_INVALID);
  WANT(gpumem_configure(0, "nonsense", 0), GPUMEM_INVALID);
  WANT(gpumem_configure(-1, device, 0), GPUMEM_INVALID);
  WANT(gpumem_configure(0, device, "elastic:limit=100MiB"), GPUMEM_OK);
  void *a = gpumem_torch_alloc(60 * MIB, 0, 0);
  TRUE(a);
  WANT(gpumem_configure(0, device, 0), GPUMEM_INVALID); // too late
  WANT((long)gpumem_torch_pool_alloc(60 * MIB, 0, 0), 0);
  gpumem_torch_record_stream(a, stream(2));
  gpumem_torch_record_stream((void *)1, stream(2));
  gpumem_torch_free(a, 60 * MIB, 0, 0);
  // Phases of 60 % of the memory by turns, and no call to empty a cache.
  for (int i = 0; i < 6; i++) {
    if (i % 3 == 0) {
      a = gpumem_torch_alloc(60 * MIB, 0, stream(2));
      TRUE(a);
      gpumem_torch_free(a, 60 * MIB, 0, stream(2));
    } else if (i % 3 == 1) {
      a = gpumem_cupy_malloc(0, 60 * MIB, 0);
      TRUE(a);
      gpumem_cupy_free(0, a, 0);
    } else {
      a = gpumem_rmm_alloc(60 * MIB, stream(3), (void *)0);
      TRUE(a);
      gpumem_rmm_free(a, 60 * MIB, stream(3), (void *)0);
    }
  }
  WANT(figures(0).live, 0);
  WANT(figures(0).refused, 1);
  TRUE(figures(0).pool_bytes > 0);
  gpumem_torch_empty_cache();
  WANT(figures(0).pool_bytes, 0);
  char text[64], all[8192];
  int n = gpumem_report(0, all, sizeof all);
  TRUE(n > 100 && (int)strlen(all) == n);
  WANT(gpumem_report(0, text, sizeof text), n);
  WANT(strlen(text), sizeof text - 1);
  WANT(gpumem_report(0, 0, 0), n);
  WANT(gpumem_report(777, all, sizeof all), -1);
}

// recordings: the file is for the caller to look at.
static void recordings(const char *path) {
  void *a, *b;
  gpumem_pool p = opened("elastic:limit=64MiB");
  WANT(gpumem_is_open(p), 1);
  WANT(gpumem_alloc(p, 10 * MIB, 0, &a), GPUMEM_OK);
  WANT(gpumem_record(0), GPUMEM_INVALID);
  WANT(gpumem_record("/nonexistent/file"), GPUMEM_INVALID);
  WANT(gpumem_record(path), GPUMEM_OK);
  WANT(gpumem_record(path), GPUMEM_INVALID);
  WANT(gpumem_alloc(p, 20 * MIB, 0, &b), GPUMEM_OK);
  WANT(gpumem_alloc(p, 60 * MIB, 0, &b), GPUMEM_OUT_OF_MEMORY);
  WANT(gpumem_free(p, a, 0), GPUMEM_OK);
  WANT(gpumem_record(0), GPUMEM_OK);
  WANT(gpumem_close(p), GPUMEM_OK);
  WANT(gpumem_is_open(p), 0);
}

static gpumem_pool common;
static void *work(void *arg) {
  unsigned seed = (unsigned)(size_t)arg;
  void *held[16] = {0};
  for (int i = 0; i < 2000; i++) {
    seed = seed * 1664525 + 1013904223;
    int k = seed >> 28;
    void *in = stream(4 + (seed >> 20 & 3));
    if (held[k]) {
      WANT(gpumem_free(common, held[k], in), GPUMEM_OK);
      held[k] = 0;
    } else {
      WANT(gpumem_alloc(common, 1 + (seed >> 4 & 0xfffff), in, &held[k]), GPUMEM_OK);
    }
  }
  for (int k = 0; k < 16; k++) WANT(gpumem_free(common, held[k], 0), GPUMEM_OK);
  return 0;
}

static void threads(void) {
  common = opened(0);
  stream(0); // made before the threads
  pthread_t t[8];
  for (size_t i = 0; i < 8; i++) pthread_create(&t[i], 0, work, (void *)i);
  for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
  WANT(figures(common).live, 0);
  WANT(gpumem_close(common), GPUMEM_OK);
}

// texts: an error's text is the thread's.
static void *other(void *arg) {
  (void)arg;
  WANT(strlen(gpumem_last_error()), 0);
  gpumem_close(-1);
  return 0;
}

static void texts(void) {
  pthread_t t;
  gpumem_pool p;
  gpumem_open("nonsense", 0, &p);
  char before[512];
  snprintf(before, sizeof before, "%s", gpumem_last_error());
  pthread_create(&t, 0, other, 0);
  pthread_join(t, 0);
  WANT(strcmp(before, gpumem_last_error()), 0);
  TRUE(strstr(before, "nonsense"));
}

// signals: the library's threads have those blocked that programs use, and this one none. (Go
// leaves SIGCHLD and SIGPROF open.)
static void signals(void) {
  char path[64], line[256];
  int threads = 0;
  DIR *d = opendir("/proc/self/task");
  for (struct dirent *e; (e = readdir(d));) {
    if (e->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "/proc/self/task/%.20s/status", e->d_name);
    FILE *f = fopen(path, "r");
    unsigned long blocked = 0;
    while (f && fgets(line, sizeof line, f)) sscanf(line, "SigBlk: %lx", &blocked);
    if (f) fclose(f);
    if (atoi(e->d_name) == getpid()) {
      WANT(blocked, 0);
    } else {
      threads++;
      for (int s = 1; s < 32; s++)
        if (s == SIGINT || s == SIGTERM || s == SIGUSR1 || s == SIGALRM || s == SIGHUP) WANT(blocked >> (s - 1) & 1, 1);
    }
  }
  closedir(d);
  TRUE(threads > 0);
}

static void forks(void) {
  gpumem_pool p = opened(0);
  void *a, *b;
  WANT(gpumem_alloc(p, MIB, 0, &a), GPUMEM_OK);
  fflush(stdout);
  pid_t child = fork();
  if (!child) {
    alarm(20);
    faults = 0;
    gpumem_pool q;
    struct gpumem_figures f = {.size = sizeof f};
    WANT(gpumem_alloc(p, MIB, 0, &b), GPUMEM_FORKED);
    TRUE(strstr(gpumem_last_error(), "fork"));
    WANT(gpumem_free(p, a, 0), GPUMEM_FORKED);
    WANT(gpumem_open(device, 0, &q), GPUMEM_FORKED);
    WANT(gpumem_stats(p, &f), GPUMEM_FORKED);
    WANT(gpumem_trim(p, 0), GPUMEM_FORKED);
    WANT(gpumem_report(p, 0, 0), -1);
    WANT((long)gpumem_torch_alloc(MIB, 0, 0), 0);
    gpumem_torch_free(a, MIB, 0, 0);
    gpumem_torch_record_stream(a, 0);
    fflush(stdout);
    exit(faults != 0); // through exit handlers
  }
  int status = 0;
  waitpid(child, &status, 0);
  WANT(status, 0);
  WANT(gpumem_free(p, a, 0), GPUMEM_OK);
  WANT(gpumem_close(p), GPUMEM_OK);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  device = argv[1];
  arguments();
  blocks(0);
  blocks("elastic");
  blocks("jax:preallocate=false");
  blocks("platform");
  blocks("vmm");
  refusals();
  shared();
  threads();
  texts();
  recordings(argv[2]);
  if (strncmp(device, "cuda:", 5)) signals(); // a driver has threads too
  forks();
  return faults != 0;
}
