// What must never be the end of a program. Each mode writes what is wrong to standard output.
//
//	never cut LEDGER     the lease's file is cut short, and a handler ends the program at a fault
//	never faults         signals of faults are open in the threads of the pools
//	never pipe HOW       standard error has no reader as the library writes a line: default,
//	                     or with a SIGPIPE pending in the thread or the process
//	never file           standard error is a file that may not grow
//	never stack HOW KIB  threads or fibers with small stacks
//	never close LEDGER   all descriptors are closed
//	never last           the program has the last thread, with the pools in use
//	never limit WHAT     the process may have no more addresses, threads or descriptors

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

typedef uint64_t u64;

static int (*init)(unsigned), (*retain)(void **, int), (*set)(void *), (*alloc)(u64 *, size_t), (*free_)(u64), (*info)(size_t *, size_t *);
static void *context;

static void wrong(const char *what, long n) {
  printf("%s: %ld\n", what, n);
  fflush(stdout);
}

// ready loads the library, which loads the pools when there is a context.
static void ready(void) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) puts(dlerror()), exit(1);
  *(void **)&init = dlsym(lib, "cuInit"), *(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain"), *(void **)&set = dlsym(lib, "cuCtxSetCurrent");
  *(void **)&alloc = dlsym(lib, "cuMemAlloc_v2"), *(void **)&free_ = dlsym(lib, "cuMemFree_v2"), *(void **)&info = dlsym(lib, "cuMemGetInfo_v2");
  if (init(0)) puts("no driver"), exit(1);
}

static void begin(void) {
  ready();
  if (retain(&context, 0) || set(context)) puts("no context"), exit(1);
}

static void use(int n) {
  u64 p[8] = {0};
  size_t a, b;
  if (!context && retain(&context, 0)) wrong("a context", n);
  set(context);
  for (int i = 0, code; i < n; i++) {
    u64 *at = &p[i % 8];
    if ((code = *at ? free_(*at) : alloc(at, 1 + (size_t)(i % 100) * 1000))) wrong("a call", code);
    if (i & 8) *at = 0;
    if (i % 10 == 0 && (code = info(&a, &b))) wrong("cuMemGetInfo", code);
  }
}

static void fault(int s) { _exit(3); }

static void cut(const char *ledger, long to) {
  u64 p;
  size_t free_bytes = 1, total;
  begin();
  use(1);
  signal(SIGBUS, fault), signal(SIGSEGV, fault);
  if (truncate(ledger, to)) wrong("truncate", to);
  int failed = 0, code;
  for (int i = 0; i < 40; i++) failed |= alloc(&p, 16 << 20);
  if (!failed) wrong("bytes of a lease without a ledger", 40 * (16L << 20));
  if (!(code = info(&free_bytes, &total)) && free_bytes > 512 << 20) wrong("free bytes", (long)free_bytes);
}

// faults counts the threads in which the signal of a fault is blocked.
static void faults(void) {
  begin();
  use(8);
  DIR *d = opendir("/proc/self/task");
  for (struct dirent *e; (e = readdir(d));) {
    char path[300], line[256];
    unsigned long long mask;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
    FILE *f = e->d_name[0] == '.' ? 0 : fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
      if (sscanf(line, "SigBlk: %llx", &mask) == 1 && mask & (1 << (SIGSEGV - 1) | 1 << (SIGBUS - 1) | 1 << (SIGFPE - 1) | 1 << (SIGILL - 1))) wrong("signals of faults that are blocked in a thread", (long)mask);
    if (f) fclose(f);
  }
  closedir(d);
}

// line has the library write one.
static void line(void) {
  u64 p;
  if (alloc(&p, (size_t)1 << 63) != 2) wrong("8 EiB", 0);
}

static volatile int signals;
static void count(int s) { signals++; }

static void without_reader(const char *how) {
  int ends[2];
  begin();
  use(1);
  if (pipe(ends) || dup2(ends[1], 2) < 0 || close(ends[0])) wrong("pipe", 0);
  if (strcmp(how, "default")) {
    sigset_t one, mask;
    sigemptyset(&one), sigaddset(&one, SIGPIPE);
    signal(SIGPIPE, count);
    pthread_sigmask(SIG_BLOCK, &one, 0);
    if (!strcmp(how, "thread")) pthread_kill(pthread_self(), SIGPIPE);
    else if (!strcmp(how, "process")) kill(getpid(), SIGPIPE);
    line();
    pthread_sigmask(SIG_BLOCK, 0, &mask);
    if (!sigismember(&mask, SIGPIPE)) wrong("the program's mask", 0);
    pthread_sigmask(SIG_UNBLOCK, &one, 0);
    int want = strcmp(how, "none") != 0;
    if (signals != want) wrong("the program's own signals that it gets", signals);
  } else line();
}

static void full_file(void) {
  FILE *f = tmpfile();
  struct rlimit none = {0, RLIM_INFINITY};
  begin();
  use(1);
  dup2(fileno(f), 2);
  setrlimit(RLIMIT_FSIZE, &none);
  line();
  u64 p;
  for (int i = 0; i < 10; i++)
    if (alloc(&p, 16 << 20)) wrong("no memory, as the lease's file may not grow", i); // it does not
}

static void *in_thread(void *unused) {
  use(60);
  return 0;
}

static ucontext_t outside, fiber;

static void in_fiber(void) {
  for (;;) use(5), swapcontext(&fiber, &outside);
}

static void stack(const char *how, size_t bytes) {
  ready(); // the first context, which loads the pools, is made on the small stack
  if (!strcmp(how, "thread")) {
    for (int i = 0; i < 4; i++) {
      pthread_attr_t a;
      pthread_t t;
      pthread_attr_init(&a);
      if (pthread_attr_setstacksize(&a, bytes) || pthread_create(&t, &a, in_thread, 0)) wrong("a thread", i);
      else pthread_join(t, 0);
    }
    return;
  }
  char *s = mmap(0, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(s, 4096, PROT_NONE);
  getcontext(&fiber);
  fiber.uc_stack.ss_sp = s + 4096, fiber.uc_stack.ss_size = bytes;
  makecontext(&fiber, in_fiber, 0);
  for (int i = 0; i < 20; i++) swapcontext(&outside, &fiber), use(5);
}

// closed waits until the pool, by a timer, has published what is in use since.
static void closed(const char *ledger) {
  u64 p, in_use = 0;
  begin();
  use(8);
  syscall(SYS_close_range, 3, ~0U, 0);
  if (alloc(&p, 5 << 20)) wrong("cuMemAlloc", 0);
  use(100);
  while (in_use < 5 << 20) {
    int f = open(ledger, O_RDONLY);
    if (f < 0 || pread(f, &in_use, 8, 4096 + 32) != 8) wrong("the ledger", f), exit(1);
    close(f);
    usleep(1000);
  }
  if (free_(p)) wrong("cuMemFree", 0);
}

static void limit(const char *what) {
  long pages = 0;
  ready();
  FILE *f = fopen("/proc/self/statm", "r");
  if (!f || fscanf(f, "%ld", &pages) != 1) wrong("statm", 0);
  if (f) fclose(f);
  int fd = open("/dev/null", O_RDONLY), kind = !strcmp(what, "addresses") ? RLIMIT_AS : !strcmp(what, "threads") ? RLIMIT_NPROC : RLIMIT_NOFILE;
  close(fd);
  struct rlimit l = {kind == RLIMIT_AS ? (rlim_t)pages * 4096 + (200 << 20) : kind == RLIMIT_NPROC ? 1 : (rlim_t)fd, RLIM_INFINITY};
  struct rlimit now;
  getrlimit(kind, &now), l.rlim_max = now.rlim_max;
  if (setrlimit(kind, &l)) wrong("setrlimit", kind);
  u64 p;
  size_t a = 1, b;
  for (int i = 0; i < 3; i++)
    if (retain(&context, 0) != 2 || !alloc(&p, 1 << 20)) wrong("a context or memory without the pools", i);
  if (!info(&a, &b) && a) wrong("free bytes, none of which can be had", (long)a);
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void *later(void *unused) {
  pthread_mutex_lock(&gate);
  pthread_mutex_unlock(&gate);
  use(20000);
  return 0;
}

// last has the program take the last thread that the process may have.
static void last(void) {
  pthread_t t[8];
  struct rlimit few = {1000, RLIM_INFINITY}, now;
  getrlimit(RLIMIT_NPROC, &now);
  few.rlim_max = now.rlim_max;
  setrlimit(RLIMIT_NPROC, &few);
  begin();
  use(1);
  pthread_mutex_lock(&gate);
  for (int i = 0; i < 8; i++)
    if (pthread_create(&t[i], 0, later, 0)) wrong("a thread", i);
  few.rlim_cur = 1;
  setrlimit(RLIMIT_NPROC, &few);
  pthread_mutex_unlock(&gate);
  for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
}

int main(int n, char **args) {
  const char *mode = n > 1 ? args[1] : "";
  if (!strcmp(mode, "cut") && n > 3) cut(args[2], atol(args[3]));
  else if (!strcmp(mode, "faults")) faults();
  else if (!strcmp(mode, "pipe") && n > 2) without_reader(args[2]);
  else if (!strcmp(mode, "file")) full_file();
  else if (!strcmp(mode, "stack") && n > 3) stack(args[2], (size_t)atol(args[3]) << 10);
  else if (!strcmp(mode, "close") && n > 2) closed(args[2]);
  else if (!strcmp(mode, "limit") && n > 2) limit(args[2]);
  else if (!strcmp(mode, "last")) last();
  else return puts("usage: never MODE"), 2;
  return 0;
}
