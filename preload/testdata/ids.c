// A program that changes its user and groups, and cancels threads of its own, while others
// allocate: the C library does both by signals that each thread takes, Go's too. Timers have
// the signals next to those. It writes what is wrong; where a call does not return it is
// ended by SIGALRM.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static int (*init)(unsigned), (*retain)(void **, int), (*set)(void *), (*alloc)(uint64_t *, size_t), (*free_)(uint64_t);
static void *ctx;
static volatile int stop;

static int use(void) {
  uint64_t p;
  int code = set(ctx);
  return code || (code = alloc(&p, 1 << 20)) || (code = free_(p)) ? code : 0;
}

static void *busy(void *unused) {
  while (!stop)
    if (use()) puts("a call failed"), exit(1);
  return 0;
}

static void *waiting(void *unused) {
  if (use()) puts("a call failed"), exit(1);
  for (;;) pause();
}

// tasks reports for each thread whether it is wrong.
static int tasks(int (*wrong)(const char *status)) {
  DIR *d = opendir("/proc/self/task");
  int n = 0;
  for (struct dirent *e; (e = readdir(d));) {
    char path[300], text[4096] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
    FILE *f = e->d_name[0] == '.' ? 0 : fopen(path, "r");
    if (f && fread(text, 1, sizeof text - 1, f)) n += wrong(text);
    if (f) fclose(f);
  }
  closedir(d);
  return n;
}

// other_ids reports whether a thread has another effective user or group than this one.
static int other_ids(const char *status) {
  unsigned uid, gid;
  const char *u = strstr(status, "\nUid:"), *g = strstr(status, "\nGid:");
  int read = u && g && sscanf(u, "\nUid: %*u %u", &uid) == 1 && sscanf(g, "\nGid: %*u %u", &gid) == 1;
  return read && (uid != geteuid() || gid != getegid());
}

// internal_blocked reports whether a thread has a signal of the C library blocked.
static int internal_blocked(const char *status) {
  unsigned long long mask;
  const char *b = strstr(status, "\nSigBlk:");
  int any = 0;
  if (!b || sscanf(b, "\nSigBlk: %llx", &mask) != 1) return 0;
  for (int s = 32; s < SIGRTMIN; s++) any |= mask >> (s - 1) & 1;
  return any;
}

static void expect(int code, const char *call) {
  int n;
  if (code) printf("%s: %s\n", call, strerror(errno));
  if ((n = tasks(other_ids))) printf("after %s %d threads have other ids\n", call, n);
}
#define CALL(c) expect(c, #c)

static void ids(int root) {
  gid_t groups[64], one = 65534;
  int n = getgroups(64, groups);
  CALL(seteuid(geteuid()));
  CALL(setegid(getegid()));
  CALL(setreuid(-1, geteuid()));
  CALL(setregid(-1, getegid()));
  CALL(setresuid(-1, geteuid(), -1));
  CALL(setresgid(-1, getegid(), -1));
  CALL(setgid(getgid()));
  CALL(setuid(getuid()));
  if (!root) return;
  CALL(setgroups(1, &one));
  CALL(initgroups("root", 0));
  CALL(setgroups(n, groups));
  CALL(setegid(65534));
  CALL(seteuid(65534));
  CALL(seteuid(0));
  CALL(setegid(0));
  CALL(setresgid(65534, 65534, 0));
  CALL(setresuid(65534, 65534, 0));
  CALL(setresuid(0, 0, 0));
  CALL(setresgid(0, 0, 0));
}

static void *cancelled(void *(*run)(void *)) {
  pthread_t t;
  void *result = 0;
  struct timespec moment = {0, 2000000};
  pthread_create(&t, 0, run, 0);
  nanosleep(&moment, 0);
  pthread_cancel(t);
  pthread_join(t, &result);
  return result;
}

static void *testing(void *unused) {
  for (;;) {
    if (use()) puts("a call failed"), exit(1);
    pthread_testcancel();
  }
}

static void *testing_nothing(void *unused) { // there is no point in it at which it can be cancelled
  for (int i = 0; i < 500; i++)
    if (use()) puts("a call failed"), exit(1);
  return 0;
}

static volatile int returned;

// No call of the library is a point at which a thread can be cancelled: first makes the first
// request of all, and refused one that the library has a line to write about.
static void *first(void *unused) {
  pthread_cancel(pthread_self());
  if (use()) puts("no memory");
  returned++;
  pthread_testcancel();
  return 0;
}

static void *refused(void *unused) {
  uint64_t p;
  set(ctx);
  pthread_cancel(pthread_self());
  if (!alloc(&p, 1ull << 63)) puts("8 EiB were granted");
  returned++;
  pthread_testcancel();
  return 0;
}

static volatile int fired;
static void fire(union sigval v) { fired = v.sival_int; }

// timers: one whose signal, the first that is the program's, waits in all of its threads for
// the one that asks; then one that calls a function, in a thread that has no signal blocked.
static void timers(const sigset_t *own) {
  timer_t t;
  struct itimerspec soon = {{0, 0}, {0, 1000000}};
  struct timespec moment = {0, 1000000}, long_ = {5, 0};
  struct sigevent by_signal = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
  if (timer_create(CLOCK_MONOTONIC, &by_signal, &t)) perror("timer_create");
  for (int i = 0; i < 20; i++) {
    if (timer_settime(t, 0, &soon, 0)) perror("timer_settime");
    if (sigtimedwait(own, 0, &long_) != SIGRTMIN) puts("a timer's signal was not there");
  }
  timer_delete(t);
  struct sigevent by_thread = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = fire, .sigev_value.sival_int = 1};
  if (timer_create(CLOCK_MONOTONIC, &by_thread, &t) || timer_settime(t, 0, &soon, 0)) perror("timer_create");
  for (int i = 0; i < 5000 && !fired; i++) nanosleep(&moment, 0);
  if (!fired) puts("a timer's function was not called");
  timer_delete(t);
}

int main(int argc, char **argv) {
  struct rlimit core = {0, 0};
  setrlimit(RLIMIT_CORE, &core);
  alarm(50);
  sigset_t own;
  sigemptyset(&own), sigaddset(&own, SIGRTMIN), sigprocmask(SIG_BLOCK, &own, 0);
  if (argc > 1 && !geteuid()) expect(setresuid(atoi(argv[1]), atoi(argv[1]), atoi(argv[1])), "setresuid");
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) return puts(dlerror()), 1;
  *(void **)&init = dlsym(lib, "cuInit"), *(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain");
  *(void **)&set = dlsym(lib, "cuCtxSetCurrent");
  *(void **)&alloc = dlsym(lib, "cuMemAlloc_v2"), *(void **)&free_ = dlsym(lib, "cuMemFree_v2");
  int root = !geteuid();
  ids(root);
  if (init(0) || retain(&ctx, 0) || set(ctx)) return puts("no context"), 1;
  ids(root);
  if (cancelled(first) != PTHREAD_CANCELED || returned != 1) puts("a thread was cancelled in the library's first call");
  if (use()) return puts("no memory"), 1;
  ids(root);
  pthread_t t[3];
  for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, busy, 0);
  for (int i = 0; i < 8; i++) ids(root);
  for (int i = 0; i < 8; i++) {
    if (cancelled(waiting) != PTHREAD_CANCELED || cancelled(testing) != PTHREAD_CANCELED) puts("a thread was not cancelled");
    if (cancelled(testing_nothing) && use()) puts("no memory after a thread was cancelled");
  }
  freopen("/dev/null", "w", stderr);
  if (cancelled(refused) != PTHREAD_CANCELED || returned != 2) puts("a thread was cancelled in the library");
  if (use()) puts("no memory after a thread was cancelled");
  timers(&own);
  ids(root);
  // The C library blocks them, for moments, in threads that begin or end.
  struct timespec moment = {0, 1000000};
  int n = 1;
  for (int i = 0; i < 2000 && n; i++) n = tasks(internal_blocked), nanosleep(&moment, 0);
  if (n) printf("%d threads have signals of the C library blocked\n", n);
  stop = 1;
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
  return 0;
}
