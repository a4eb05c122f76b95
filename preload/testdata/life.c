// What programs do with their processes, with memory of the library in use. Each mode
// writes a line for each fault.
//
//	life churn N      takes and frees until it is killed, in N processes; a child that
//	                  ends is replaced, and all end with the first
//	life descriptors  closes the lease's file, opens others with its number, and forks. A
//	                  program that closes all of its descriptors loses the GPU with any
//	                  driver, whose own are among them
//	life copies FILE  has two copies of the library, this one and FILE
//	life unload       closes the library, uses it again
//	life spawn        starts programs from eight threads while others allocate
//	life threads      ends threads while others allocate, 64 at a time
//	life fork         forks between any two calls, and calls in the child
//	life nothing      calls nothing: prints the threads and KiB that the library costs

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t u64;
typedef void *ptr;
extern char **environ;

// cuda is a copy of the library, with a context.
struct cuda {
  int (*init)(unsigned), (*retain)(ptr *, int), (*release)(int), (*set)(ptr), (*alloc)(u64 *, size_t), (*free)(u64), (*info)(size_t *, size_t *), (*wait)(void),
      (*alloc_async)(u64 *, size_t, ptr), (*free_async)(u64, ptr);
  ptr lib, context;
};

enum { MIB = 1 << 20 };

static void fault(const char *what, long n) {
  printf("%s: %ld\n", what, n);
  fflush(stdout);
}

static void must(int code, const char *what) {
  if (!code) return;
  fault(what, code);
  _exit(1);
}

static void load(struct cuda *c, const char *file) {
  if (!(c->lib = dlopen(file, RTLD_NOW | RTLD_LOCAL))) {
    puts(dlerror());
    exit(1);
  }
#define GET(f, name) *(void **)&c->f = dlsym(c->lib, name)
  GET(init, "cuInit"), GET(retain, "cuDevicePrimaryCtxRetain"), GET(release, "cuDevicePrimaryCtxRelease_v2"), GET(set, "cuCtxSetCurrent");
  GET(alloc, "cuMemAlloc_v2"), GET(free, "cuMemFree_v2"), GET(info, "cuMemGetInfo_v2"), GET(wait, "cuCtxSynchronize");
  GET(alloc_async, "cuMemAllocAsync"), GET(free_async, "cuMemFreeAsync");
}

static void begin(struct cuda *c) {
  must(c->init(0), "cuInit");
  must(c->retain(&c->context, 0), "cuDevicePrimaryCtxRetain");
  must(c->set(c->context), "cuCtxSetCurrent");
}

static struct cuda lib;

// use takes and frees n times at random, at most 32 MiB at a time; n < 0: for ever. A
// refusal is a fault.
static void use(struct cuda *c, long n, unsigned seed) {
  u64 p[8] = {0};
  c->set(c->context);
  for (long i = 0; n < 0 || i < n; i++) {
    seed = seed * 1103515245 + 12345;
    u64 *at = &p[seed >> 16 & 7];
    if (*at) must(c->free(*at), "cuMemFree"), *at = 0;
    else must(c->alloc(at, 1 + (seed >> 8) % (4 * MIB)), "cuMemAlloc");
  }
  for (int i = 0; i < 8; i++)
    if (p[i]) must(c->free(p[i]), "cuMemFree");
}

// worker forks a process that uses memory until it is killed, or first ends.
static void worker(pid_t first) {
  if (fork()) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != first) _exit(0);
  load(&lib, "libcuda.so.1");
  begin(&lib);
  use(&lib, -1, (unsigned)getpid());
}

static int churn(int n) {
  for (int i = 0; i < n; i++) worker(getpid());
  while (wait(0) > 0) worker(getpid());
  return 0;
}

// open_all opens this program's file until a descriptor has number 1100.
static int open_all(int list[]) {
  int n = 0, fd;
  while ((fd = open("/proc/self/exe", O_RDONLY)) >= 0 && fd < 1100) list[n++] = fd;
  if (fd >= 0) close(fd);
  return n;
}

static int closed(const int list[], int n) {
  int bad = 0;
  for (int i = 0; i < n; i++) bad += fcntl(list[i], F_GETFD) < 0;
  return bad;
}

static int descriptors(void) {
  static int list[1200];
  load(&lib, "libcuda.so.1");
  begin(&lib);
  use(&lib, 100, 1);
  for (int fd = 3; fd < 2000; fd++) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n >= 7 && !memcmp(path + n - 7, "/ledger", 7)) close(fd);
  }
  int n = open_all(list), status;
  for (int round = 0; round < 2; round++) { // before the pool has noticed, and after
    pid_t pid = fork();
    if (!pid) _exit(closed(list, n) > 100 ? 100 : closed(list, n));
    waitpid(pid, &status, 0);
    if (status) fault("descriptors of the program that are closed in its child", WEXITSTATUS(status));
    use(&lib, 100, 2);
    if (closed(list, n)) fault("descriptors of the program that are closed", closed(list, n));
  }
  return 0;
}

static int copies(const char *file) {
  struct cuda other;
  u64 p, q;
  load(&lib, "libcuda.so.1");
  load(&other, file);
  begin(&lib);
  begin(&other);
  for (int i = 0; i < 100; i++) {
    must(lib.alloc(&p, MIB), "the first's cuMemAlloc");
    must(other.alloc(&q, MIB), "the second's cuMemAlloc");
    if (p < q + MIB && q < p + MIB) fault("blocks of the two overlap", i);
    must(lib.free(p), "the first's cuMemFree");
    must(other.free(q), "the second's cuMemFree");
  }
  use(&lib, 1000, 1);
  use(&other, 1000, 2);
  return 0;
}

static int unload(void) {
  for (int i = 0; i < 3; i++) {
    load(&lib, "libcuda.so.1");
    begin(&lib);
    use(&lib, 1000, (unsigned)i);
    dlclose(lib.lib);
    usleep(1000);
  }
  return 0;
}

static volatile int ended;

static void *user(void *seed) {
  while (!ended) use(&lib, 100, (unsigned)(uintptr_t)seed);
  return 0;
}

static void *spawner(void *unused) {
  char *args[] = {"true", 0};
  for (int i = 0; i < 20; i++) {
    pid_t pid;
    int status = 1;
    if (i % 2) {
      if (posix_spawnp(&pid, "true", 0, 0, args, environ)) fault("posix_spawn", i);
    } else if (!(pid = vfork())) {
      execvp("true", args);
      _exit(127);
    }
    waitpid(pid, &status, 0);
    if (status) fault("a child ended with", status);
  }
  return 0;
}

static int spawn(void) {
  pthread_t users[4], spawners[8];
  load(&lib, "libcuda.so.1");
  begin(&lib);
  for (uintptr_t i = 0; i < 4; i++) pthread_create(&users[i], 0, user, (void *)i);
  for (int i = 0; i < 8; i++) pthread_create(&spawners[i], 0, spawner, 0);
  for (int i = 0; i < 8; i++) pthread_join(spawners[i], 0);
  ended = 1;
  for (int i = 0; i < 4; i++) pthread_join(users[i], 0);
  return 0;
}

static void *once(void *seed) {
  use(&lib, 50, (unsigned)(uintptr_t)seed);
  return 0;
}

static int threads(void) {
  pthread_t t[64];
  load(&lib, "libcuda.so.1");
  begin(&lib);
  for (int round = 0; round < 10; round++) {
    for (uintptr_t i = 0; i < 64; i++)
      if ((errno = pthread_create(&t[i], 0, once, (void *)i))) must(errno, "pthread_create");
    for (int i = 0; i < 64; i++) pthread_join(t[i], 0);
  }
  return 0;
}

// in_child calls everything in a child, which must end by itself.
static void in_child(const char *after) {
  int status;
  pid_t pid = fork();
  if (!pid) {
    u64 p = 0;
    size_t a, b;
    alarm(20);
    if (lib.context && !lib.alloc(&p, MIB)) lib.free(p);
    if (lib.context && !lib.alloc_async(&p, MIB, 0)) lib.free_async(p, 0);
    lib.info(&a, &b);
    lib.wait();
    exit(0); // runs what the library has for the end
  }
  waitpid(pid, &status, 0);
  if (status) fault(after, status);
}

static int forks(void) {
  u64 p, q;
  size_t a, b;
  load(&lib, "libcuda.so.1");
#define STEP(call) must(call, #call), in_child("a child of after " #call " ended with")
  STEP(lib.init(0));
  STEP(lib.retain(&lib.context, 0));
  STEP(lib.set(lib.context));
  STEP(lib.info(&a, &b));
  STEP(lib.alloc(&p, MIB));
  STEP(lib.alloc_async(&q, MIB, 0));
  STEP(lib.free_async(q, 0));
  STEP(lib.free(p));
  STEP(lib.wait());
  use(&lib, 100, 1);
  STEP(lib.release(0));
  return 0;
}

static long of_status(const char *key) {
  char line[256];
  long n = -1;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && n < 0 && fgets(line, sizeof line, f))
    if (!strncmp(line, key, strlen(key))) n = atol(line + strlen(key));
  if (f) fclose(f);
  return n;
}

static int nothing(void) {
  long threads = of_status("Threads:"), anonymous = of_status("RssAnon:");
  load(&lib, "libcuda.so.1");
  threads = of_status("Threads:") - threads, anonymous = of_status("RssAnon:") - anonymous;
  if (threads > 0) fault("threads of a library that was not called", threads);
  if (anonymous > 512) fault("KiB of a library that was not called", anonymous);
  return 0;
}

int main(int n, char **args) {
  const char *mode = n > 1 ? args[1] : "";
  if (!strcmp(mode, "churn") && n > 2) return churn(atoi(args[2]));
  if (!strcmp(mode, "descriptors")) return descriptors();
  if (!strcmp(mode, "copies") && n > 2) return copies(args[2]);
  if (!strcmp(mode, "unload")) return unload();
  if (!strcmp(mode, "spawn")) return spawn();
  if (!strcmp(mode, "threads")) return threads();
  if (!strcmp(mode, "fork")) return forks();
  if (!strcmp(mode, "nothing")) return nothing();
  fprintf(stderr, "usage: life MODE\n");
  return 2;
}
