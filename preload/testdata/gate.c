// The gate of libcuda.so.1 in front of gate_driver.c, closed and opened in the place of the pools:
// gate MODE [NUMBER ...]. It writes what is wrong, and the figures that were asked for.

#define _GNU_SOURCE
#include "gpumem.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

typedef void *ptr;

static void *front, *driver;
static const struct gm_gate *gate;
static volatile int *shut, *driver_wrong;

#define CHECK(what, ok) ((ok) ? 0 : (printf("%s:%d: %s\n", __func__, __LINE__, what), fflush(stdout)))

static const u64 second = 1000000000;

static u64 now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (u64)t.tv_sec * second + (u64)t.tv_nsec;
}

static void *symbol(void *library, const char *name) {
  void *p = dlsym(library, name);
  if (!p) printf("no symbol %s\n", name), exit(1);
  return p;
}

#define FUNCTION(name, args) int (*name) args = (int (*) args)symbol(front, #name)

static int (*record)(ptr, ptr), (*launch)(ptr, ptr), (*attribute)(void *, int, u64), (*copy)(u64, const void *, size_t), (*upload)(ptr, ptr);
static int (*get)(const char *, void **, int, u64, int *);

// open_front loads the library.
static void open_front(void) {
  if (!(front = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL))) puts(dlerror()), exit(1);
  driver = dlopen(getenv("GPUMEM_LIBCUDA"), RTLD_NOW | RTLD_LOCAL);
  shut = symbol(driver, "test_shut"), driver_wrong = symbol(driver, "test_wrong");
  *(void **)&record = symbol(front, "cuEventRecord"), *(void **)&launch = symbol(front, "cuGraphLaunch");
  *(void **)&attribute = symbol(front, "cuPointerGetAttribute"), *(void **)&copy = symbol(front, "cuMemcpyHtoD_v2");
  *(void **)&upload = symbol(front, "cuGraphUpload"), *(void **)&get = symbol(front, "cuGetProcAddress_v2");
}

// open_gate makes a context, with which the pools are loaded, and takes their gate.
static void open_gate(void) {
  FUNCTION(cuInit, (unsigned));
  FUNCTION(cuDevicePrimaryCtxRetain, (ptr *, int));
  FUNCTION(cuCtxSetCurrent, (ptr));
  ptr c;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&c, 0) || cuCtxSetCurrent(c)) puts("no context"), exit(1);
  void *pools = dlopen(getenv("GATE_POOLS"), RTLD_NOW | RTLD_NOLOAD);
  if (!pools || !*(int *)symbol(pools, "test_pools_loaded")) puts("the pools are not loaded"), exit(1);
  gate = *(const struct gm_gate **)symbol(pools, "test_gate");
}

static void *proc(const char *name, int version, u64 flags) {
  void *p = 0;
  if (get(name, &p, version, flags, 0)) printf("no function %s\n", name), exit(1);
  return p;
}

static void in_call(void (*f)(void)) { *(void (**)(void))symbol(driver, "test_in_call") = f; }

// start begins a thread with a stack that many of have room for.
static pthread_t start(void *(*f)(void *), void *arg) {
  pthread_attr_t a;
  pthread_t t;
  pthread_attr_init(&a), pthread_attr_setstacksize(&a, 256 << 10);
  if (pthread_create(&t, &a, f, arg)) puts("no thread"), exit(1);
  return t;
}

// until waits for a condition that comes by itself. A test that hangs is ended by who runs it.
#define until(condition) while (!(condition)) usleep(100)

// race: threads submit at full speed by each way there is, while the gate closes and opens.
static volatile int stop;
static volatile u64 begun, ended; // threads

static void *submit_all(void *arg) {
  int (*by_pointer)(void) = proc("cuNewSubmission", 13000, 0);
  unsigned n = (unsigned)(u64)arg;
  __atomic_add_fetch(&begun, 1, __ATOMIC_RELAXED);
  while (!stop) switch (n++ & 3) {
    case 0: record(0, 0); break;
    case 1: launch(0, 0); break;
    case 2: by_pointer(); break;
    default: attribute(0, 0, 0);
    }
  __atomic_add_fetch(&ended, 1, __ATOMIC_RELAXED);
  return 0;
}


static void *submit_some(void *arg) {
  for (int i = 0; i < 3; i++) record(0, 0);
  return 0;
}

static void *come_and_go(void *arg) {
  while (!stop) pthread_join(start(submit_some, 0), 0);
  return 0;
}

static void race(int threads, int closings) {
  pthread_t t[256], changing;
  for (int i = 0; i < threads; i++) t[i] = start(submit_all, (void *)(u64)i);
  changing = start(come_and_go, 0);
  until(begun == (u64)threads);
  // Who closes gets a processor before all that submit. Where it may not, each closing takes the
  // turns of all others, and there are fewer.
  struct sched_param first = {1};
  if (sched_setscheduler(0, SCHED_FIFO, &first)) closings = closings / 100 + 1;
  unsigned random = 1;
  u64 before = gate->passed(), still = 0;
  for (int i = 0; i < closings; i++) {
    // Who wakes up stops another thread wherever that is, between two instructions of the gate, too.
    // While that sleeps again the other goes on.
    struct timespec pause = {0, (random = random * 1103515245 + 12345) >> 16 & 16383};
    if (i & 1) nanosleep(&pause, 0);
    else for (volatile int k = (int)pause.tv_nsec; k; k--) {}
    int code = gate->close(60 * second);
    if (code) printf("closing %d: %d\n", i, code), exit(1);
    *shut = 1;
    u64 passed = gate->passed();
    if (i & 1) nanosleep(&pause, 0);
    else for (volatile int k = (int)pause.tv_nsec & 255; k; k--) {}
    if (passed != gate->passed()) still++;
    *shut = 0;
    gate->open();
  }
  u64 passed = gate->passed() - before;
  CHECK("calls ended while the gate was closed", !still);
  stop = 1;
  for (int i = 0; i < threads; i++) pthread_join(t[i], 0);
  pthread_join(changing, 0);
  CHECK("calls reached the driver while the gate was closed", !*driver_wrong);
  if (*driver_wrong) printf("%d of them\n", *driver_wrong);
  CHECK("fewer calls than closings", passed > (u64)closings);
  fprintf(stderr, "%llu calls\n", (unsigned long long)passed);
}

// again: a thread that waits is counted also where the gate opens and closes before it runs.
static void *submit_on(void *arg) {
  while (!stop) record(0, 0);
  return 0;
}

static void again(int closings) {
  pthread_t t = start(submit_on, 0);
  for (int i = 0; i < closings; i++) {
    CHECK("close", !gate->close(60 * second));
    if (gate->waiting(60 * second) != 1) printf("closing %d: nobody waits\n", i), i = closings;
    gate->open();
  }
  stop = 1;
  pthread_join(t, 0);
}

// arguments: each of them comes to the driver, and the answer back, with the gate open, and by a
// thread that has no mark yet, and by one that waited.
#define A(i) (0x1111111111111111u * (unsigned)(i) ^ 0xa5)
static volatile int answers;

static void *call_with_arguments(void *arg) {
  FUNCTION(cuLaunchKernel, (u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64));
  int (*sixteen)(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) = proc("cuSixteen", 13000, 0);
  int a = 0, b = 0;
  if (arg) b = sixteen(A(0), A(1), A(2), A(3), A(4), A(5), A(6), A(7), A(8), A(9), A(10), A(11), A(12), A(13), A(14), A(15));
  a = cuLaunchKernel(A(0), A(1), A(2), A(3), A(4), A(5), A(6), A(7), A(8), A(9), A(10));
  if (!arg) b = sixteen(A(0), A(1), A(2), A(3), A(4), A(5), A(6), A(7), A(8), A(9), A(10), A(11), A(12), A(13), A(14), A(15));
  if (a != 4242 || b != 4242) printf("answers %d and %d\n", a, b);
  __atomic_add_fetch(&answers, 1, __ATOMIC_RELAXED);
  return 0;
}

static void arguments(void) {
  for (u64 i = 0; i < 2; i++) pthread_join(start(call_with_arguments, (void *)i), 0);
  for (u64 i = 0; i < 2; i++) call_with_arguments((void *)i);
  CHECK("close", !gate->close(second));
  *shut = 1;
  pthread_t t[2];
  for (u64 i = 0; i < 2; i++) t[i] = start(call_with_arguments, (void *)i);
  until(gate->waiting(second) == 2);
  CHECK("a call went on", answers == 4);
  *shut = 0;
  gate->open();
  for (u64 i = 0; i < 2; i++) pthread_join(t[i], 0);
  CHECK("nobody waits", !gate->waiting(0));
  CHECK("a call was wrong", !*driver_wrong && answers == 6);
}

// nested: a call within one passes the closed gate, as the driver may make it.
static volatile int inside, may_end;

static void call_again(void) {
  inside = 1;
  until(may_end);
  record(0, 0), launch(0, 0);
}

static void *copy_once(void *arg) { return copy(0, 0, 0), (void *)0; }
static void *upload_once(void *arg) { return upload(0, 0), (void *)0; }
static volatile int closed_with;
static void *close_gate(void *within) { return closed_with = gate->close((u64)within), (void *)0; }

static void nested(void *(*call)(void *)) {
  in_call(call_again), inside = may_end = 0, closed_with = 1;
  pthread_t t = start(call, 0), c;
  until(inside);
  u64 passed = gate->passed(), begin = now();
  CHECK("a call that runs is busy", gate->close(second / 50) == GM_GATE_BUSY);
  CHECK("the deadline came too early", now() - begin >= second / 50);
  record(0, 0); // the gate is open again
  c = start(close_gate, (void *)(60 * second));
  usleep(20000);
  CHECK("closed over a call that runs", closed_with == 1);
  may_end = 1;
  pthread_join(t, 0), pthread_join(c, 0);
  CHECK("not closed behind the call", !closed_with);
  CHECK("passes are not counted", gate->passed() == passed + 4);
  gate->open();
}

// ends: threads that end by themselves, and in the middle of a call, at the gate, and such that
// submit in their last moments.
static void wait_for_ever(void) {
  inside = 1;
  while (1) pause();
}

static pthread_key_t last;
static void submit_last(void *left) {
  record(0, 0);
  if ((u64)left > 1) pthread_setspecific(last, (void *)((u64)left - 1));
}

static void *end_late(void *arg) {
  pthread_setspecific(last, (void *)8); // more often than destructors run
  record(0, 0);
  return 0;
}

static void *record_once(void *arg) {
  record(0, 0);
  pthread_testcancel();
  return (void *)1;
}

static void ends(void) {
  in_call(wait_for_ever);
  for (int i = 0; i < 2; i++) {
    inside = 0;
    pthread_t t = start(i ? copy_once : upload_once, 0);
    until(inside);
    CHECK("a call that runs is busy", gate->close(0) == GM_GATE_BUSY);
    pthread_cancel(t), pthread_join(t, 0);
    CHECK("a thread that was cancelled in a call is in", !gate->close(10 * second));
    gate->open();
  }
  u64 passed = gate->passed();
  for (int i = 0; i < 1000; i++) pthread_join(start(submit_some, 0), 0);
  CHECK("passes of threads that ended", gate->passed() == passed + 3000);
  pthread_key_create(&last, submit_last);
  passed = gate->passed();
  for (int i = 0; i < 100; i++) pthread_join(start(end_late, 0), 0);
  CHECK("passes of destructors", gate->passed() >= passed + 200);
  CHECK("close", !gate->close(10 * second));
  pthread_t t = start(record_once, 0);
  until(gate->waiting(second) == 1);
  pthread_cancel(t);
  usleep(10000);
  CHECK("a thread at the gate ends there", gate->waiting(0) == 1);
  gate->open();
  ptr answer;
  pthread_join(t, &answer);
  CHECK("a thread at the gate is not cancelled behind it", answer == PTHREAD_CANCELED);
  CHECK("close", !gate->close(10 * second) && !gate->waiting(0));
  gate->open();
  CHECK("a call was wrong", !*driver_wrong);
}

// many: more threads than the first records are for.
static void *stand(void *arg) { return record(0, 0), __atomic_add_fetch(&answers, 1, __ATOMIC_RELAXED), (void *)0; }

static void many(int threads) {
  pthread_t t[2000];
  CHECK("close", !gate->close(second));
  *shut = 1;
  for (int i = 0; i < threads; i++) t[i] = start(stand, 0);
  until(gate->waiting(second) == threads);
  CHECK("a call went on", !answers);
  *shut = 0;
  gate->open();
  for (int i = 0; i < threads; i++) pthread_join(t[i], 0);
  CHECK("passes", gate->passed() == (u64)threads);
  in_call(wait_for_ever), inside = 0;
  // The record of one of the last threads is in another piece of memory.
  CHECK("close", !gate->close(second));
  gate->open();
  for (int i = 0; i < threads; i++) inside = 0, t[i] = start(copy_once, 0);
  until(gate->close(0) == GM_GATE_BUSY);
  for (int i = 0; i < threads; i++) {
    CHECK("one of the calls is still under way", gate->close(0) == GM_GATE_BUSY);
    pthread_cancel(t[i]), pthread_join(t[i], 0);
  }
  CHECK("close", !gate->close(10 * second));
  gate->open();
}

// forks: the child's gate is open, and other threads' calls are not under way in it.
static int child_of(void (*f)(void)) {
  fflush(stdout);
  int pid = fork(), status = 1;
  if (!pid) f(), fflush(stdout), _exit(0);
  waitpid(pid, &status, 0);
  return status;
}

static void submit_in_child(void) { record(0, 0), launch(0, 0); }

static void close_in_child(void) {
  CHECK("a call of the parent's is under way in the child", !gate->close(second));
  gate->open();
}

static void forks(void) {
  record(0, 0);
  CHECK("close", !gate->close(second));
  alarm(20);
  CHECK("a child of a closed gate", !child_of(submit_in_child));
  gate->open();
  in_call(wait_for_ever);
  pthread_t t = start(copy_once, 0);
  until(inside);
  CHECK("a child", !child_of(close_in_child));
  CHECK("the parent's call is under way", gate->close(0) == GM_GATE_BUSY);
  pthread_cancel(t), pthread_join(t, 0);
}

// signals: a handler that submits while its thread is at the gate waits there, too; one whose thread
// is in a call passes.
static volatile int handling, handled;

static void submit_in_handler(int s) {
  handling++;
  record(0, 0);
  handled++;
}

static void interrupted(void) {
  raise(SIGUSR1);
  inside = 1;
  until(may_end);
}

static void signals(void) {
  struct sigaction a = {.sa_handler = submit_in_handler, .sa_flags = SA_NODEFER};
  sigaction(SIGUSR1, &a, 0);
  CHECK("close", !gate->close(second));
  *shut = 1;
  pthread_t t = start(record_once, 0);
  until(gate->waiting(second) == 1);
  for (int i = 1; i <= 5; i++) {
    pthread_kill(t, SIGUSR1);
    until(handling == i); // or it would be one with the next
  }
  usleep(10000);
  CHECK("waiting", gate->waiting(second) == 1);
  CHECK("a handler went on", !handled);
  *shut = 0;
  u64 passed = gate->passed();
  gate->open();
  pthread_join(t, 0);
  CHECK("not all went on", handled == 5 && gate->passed() == passed + 6);
  CHECK("waiting", !gate->waiting(0) && !*driver_wrong);
  // In a call, with the gate about to close.
  in_call(interrupted), inside = may_end = handled = 0, closed_with = 1;
  t = start(copy_once, 0);
  until(inside);
  CHECK("a handler did not pass", handled == 1);
  pthread_t c = start(close_gate, (void *)(60 * second));
  usleep(10000);
  pthread_kill(t, SIGUSR1);
  until(handled == 2);
  may_end = 1;
  pthread_join(t, 0), pthread_join(c, 0);
  CHECK("not closed", !closed_with);
  gate->open();
  // While records are taken and calls pass at full speed.
  stop = 0;
  pthread_t all[8];
  for (int i = 0; i < 8; i++) all[i] = start(submit_all, 0);
  until(begun == 8);
  for (int i = 0; i < 2000; i++) {
    pthread_kill(all[i % 8], SIGUSR1);
    if (gate->close(60 * second)) puts("not closed among handlers");
    *shut = 1, *shut = 0;
    gate->open();
  }
  stop = 1;
  for (int i = 0; i < 8; i++) pthread_join(all[i], 0);
  CHECK("a call was wrong", !*driver_wrong);
  CHECK("in", !gate->close(second));
}

// pointers: whatever a program is given, calls that submit work pass the gate, and others do not.
static void *call_pointer(void *p) {
  int (*f)(void);
  *(void **)&f = p;
  return (void *)(u64)f();
}

static void pointers(void) {
  static const struct { const char *name; int version; u64 flags; int answer; } t[] = {
    {"cuMemcpyHtoD", 2000, 0, 1}, {"cuMemcpyHtoD", 3020, 0, 2}, {"cuMemcpyHtoD", 12000, 2, 3}, {"cuNewSubmission", 13000, 0, 4},
    {"cuEventRecord", 2000, 0, 0}, {"cuGraphLaunch", 10000, 0, 0},
  };
  for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
    void *p = proc(t[i].name, t[i].version, t[i].flags), *answer;
    CHECK("another pointer the second time", proc(t[i].name, t[i].version, t[i].flags) == p);
    CHECK("close", !gate->close(second));
    *shut = 1;
    pthread_t thread = start(call_pointer, p);
    until(gate->waiting(second) == 1);
    *shut = 0;
    gate->open();
    pthread_join(thread, &answer);
    if ((int)(u64)answer != t[i].answer) printf("%s at %d: %d\n", t[i].name, t[i].version, (int)(u64)answer);
  }
  CHECK("a call was wrong", !*driver_wrong);
  CHECK("close", !gate->close(second));
  FUNCTION(cuCtxGetDevice, (int *)); // not at the gate
  int d;
  cuCtxGetDevice(&d);
  CHECK("cuCtxGetDevice", proc("cuCtxGetDevice", 2000, 0) == symbol(driver, "cuCtxGetDevice"));
  CHECK("cuStreamQuery", call_pointer(proc("cuStreamQuery", 2000, 0)) == (void *)5);
  gate->open();
}

// full: more functions than slots. The gate does not close any more, and all of them work.
static volatile int given;

static void *ask_for_many(void *arg) {
  for (int n = 100; n < 900; n++) {
    char name[16];
    snprintf(name, sizeof name, "cuNew%d", n);
    int answer = (int)(u64)call_pointer(proc(name, 13000, 0));
    if (answer != n) printf("%s: %d\n", name, answer);
    given = n;
  }
  return 0;
}

static void *ask_for_pointers(void *arg) {
  for (int n = 100; n < 900; n++) {
    char name[16];
    snprintf(name, sizeof name, "cuNew%d", n);
    proc(name, 13000, 0), given = n;
  }
  return 0;
}

// Who is given a function that is not behind the gate waits until that is open.
static void full(void) {
  CHECK("close", !gate->close(second));
  *shut = 1;
  pthread_t t = start(ask_for_pointers, 0);
  until(gate->waiting(second) == 1);
  CHECK("it was given all", given > 300 && given < 899);
  *shut = 0;
  gate->open();
  pthread_join(t, 0);
  CHECK("closed", gate->close(second) == GM_GATE_UNSEEN);
  ask_for_many(0);
  record(0, 0);
}

static ptr made_meanwhile;

// make_stream is another thread that gets the handle of a stream that is just gone.
static void make_stream(void) {
  FUNCTION(cuStreamCreate, (ptr *, unsigned));
  CHECK("create", !cuStreamCreate(&made_meanwhile, 0));
}

// streams: those that the program has made, and no others, are asked.
static void streams(void) {
  FUNCTION(cuStreamCreate, (ptr *, unsigned));
  FUNCTION(cuStreamDestroy_v2, (ptr));
  FUNCTION(cuCtxSetCurrent, (ptr));
  FUNCTION(cuCtxDestroy_v2, (ptr));
  FUNCTION(cuGreenCtxDestroy, (ptr));
  FUNCTION(cuGreenCtxStreamCreate, (ptr *, ptr, unsigned, int));
  FUNCTION(cuDevicePrimaryCtxReset_v2, (int));
  int (*with_priority)(ptr *, unsigned, int) = proc("cuStreamCreateWithPriority", 5050, 0);
  volatile int *busy = symbol(driver, "test_busy"), *capturing = symbol(driver, "test_capturing"), *refuse = symbol(driver, "test_refuse");
  ptr s[300];
  CHECK("no streams", !gate->running());
  for (int i = 0; i < 300; i++) CHECK("create", !(i & 1 ? cuStreamCreate(&s[i], 0) : with_priority(&s[i], 0, 0)));
  CHECK("idle", !gate->running());
  for (int i = 0; i < 300; i++) {
    busy[(u64)s[i]] = 1;
    CHECK("not seen", gate->running() == GM_RUNNING);
    capturing[(u64)s[299 - i]] = 1; // it may be asked before the other one, and must not be
    CHECK("not seen", gate->running() == GM_CAPTURING);
    busy[(u64)s[i]] = capturing[(u64)s[299 - i]] = 0;
  }
  *refuse = 1;
  busy[(u64)s[7]] = 1;
  CHECK("refused", cuStreamDestroy_v2(s[7]) == 400);
  CHECK("a stream that is still there", gate->running() == GM_RUNNING);
  busy[(u64)s[7]] = 0;
  for (int i = 0; i < 150; i++) CHECK("destroy", !cuStreamDestroy_v2(s[i])), CHECK("asked", !gate->running());
  *(int *)symbol(driver, "test_next") = (int)(u64)s[250];
  *(void (*volatile *)(void))symbol(driver, "test_meanwhile") = make_stream;
  CHECK("destroy", !cuStreamDestroy_v2(s[250]));
  busy[(u64)s[250]] = 1;
  CHECK("a new stream with the handle of an old one", made_meanwhile == s[250] && gate->running() == GM_RUNNING);
  CHECK("destroy", !cuStreamDestroy_v2(s[250]));
  CHECK("idle", !gate->running());
  *(int *)symbol(driver, "test_next") = 1000;
  // A context takes its streams with it.
  ptr in_other, green;
  cuCtxSetCurrent((ptr)0x200);
  CHECK("create", !cuStreamCreate(&in_other, 0));
  CHECK("create", !cuGreenCtxStreamCreate(&green, (ptr)0x300, 0, 0));
  busy[(u64)in_other] = 1;
  *refuse = 1;
  CHECK("refused", cuCtxDestroy_v2((ptr)0x200) == 201);
  CHECK("a context that is still there", gate->running() == GM_RUNNING);
  CHECK("destroy", !cuCtxDestroy_v2((ptr)0x200));
  CHECK("idle", !gate->running());
  busy[(u64)green] = 1;
  CHECK("not seen", gate->running() == GM_RUNNING);
  CHECK("destroy", !cuGreenCtxDestroy((ptr)0x300));
  CHECK("idle", !gate->running());
  busy[(u64)s[200]] = 1;
  CHECK("not seen", gate->running() == GM_RUNNING);
  CHECK("reset", !cuDevicePrimaryCtxReset_v2(0));
  CHECK("idle", !gate->running());
  CHECK("the driver was asked about a stream that is gone, or captured, or in another context", !*driver_wrong);
}

// barrier: seccomp answers membarrier from here on, by an error or by SIGSYS.
static void catch_barrier(unsigned answer) {
  struct sock_filter f[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), // nr of struct seccomp_data
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, answer),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog p = {sizeof f / sizeof *f, f};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p)) puts("no seccomp"), exit(1);
}

static void refuse_barrier(void) { catch_barrier(SECCOMP_RET_ERRNO | EPERM); }

static volatile int barriers;

// at_barrier is in its place: calls wait already.
static void at_barrier(int s, siginfo_t *info, void *context) {
  start(record_once, 0);
  CHECK("a call passed before the barrier", gate->waiting(second) == 1);
  barriers++;
  mcontext_t *m = &((ucontext_t *)context)->uc_mcontext;
#if defined __x86_64__
  m->gregs[REG_RAX] = 0;
#elif defined __aarch64__
  m->regs[0] = 0;
#endif
}

static void barrier(void) {
  struct sigaction a = {.sa_sigaction = at_barrier, .sa_flags = SA_SIGINFO};
  sigaction(SIGSYS, &a, 0);
  catch_barrier(SECCOMP_RET_TRAP);
  CHECK("close", !gate->close(second) && barriers == 1);
  gate->open();
}

static void no_barrier(void) {
  CHECK("close", !gate->close(second));
  gate->open();
  refuse_barrier();
  CHECK("closed without a barrier", gate->close(second) == GM_GATE_UNSEEN);
  record(0, 0); // it is open
}

// none: without a gate the program has the driver's own functions.
static void none(void) {
  CHECK("there is a gate", !gate);
  CHECK("cuEventRecord", proc("cuEventRecord", 2000, 0) == symbol(driver, "cuEventRecord"));
  CHECK("cuStreamCreate", proc("cuStreamCreate", 2000, 0) == symbol(driver, "cuStreamCreate"));
  launch(0, 0), record(0, 0);
}

// cost: nanoseconds of CPU time of a call that is forwarded, and of one that is marked and
// served, with the gate where there is one.
static double cost_of(int (*f)(ptr, ptr, unsigned)) {
  enum { N = 20000000, ROUNDS = 5 };
  double best = 1e9;
  struct timespec a, b;
  for (int k = 0; k < ROUNDS; k++) {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    for (int i = 0; i < N / ROUNDS; i++) f(0, 0, 0);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    double ns = ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / (N / ROUNDS);
    if (ns < best) best = ns;
  }
  return best;
}

static void cost(void) {
  FUNCTION(cuStreamWaitEvent, (ptr, ptr, unsigned));
  int (*direct)(ptr, ptr, unsigned) = symbol(driver, "cuStreamWaitEvent");
  cuStreamWaitEvent(0, 0, 0), launch(0, 0);
  size_t heap = mallinfo2().uordblks;
  double straight = cost_of(direct), forwarded = cost_of(cuStreamWaitEvent);
  if (mallinfo2().uordblks != heap) puts("the heap has grown");
  printf("direct-ns %.2f\nforwarded-ns %.2f\n", straight, forwarded);
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  int a = argc > 2 ? atoi(argv[2]) : 0, b = argc > 3 ? atoi(argv[3]) : 0;
  if (!strcmp(mode, "refused")) refuse_barrier();
  open_front();
  if (!strcmp(mode, "forwarded")) return none(), 0;
  open_gate();
  int without = !strcmp(mode, "none") || !strcmp(mode, "cost") || !strcmp(mode, "refused");
  if (!gate && !without) return puts("there is no gate"), 1;
  if (!strcmp(mode, "race")) race(a, b);
  else if (!strcmp(mode, "again")) again(a);
  else if (!strcmp(mode, "arguments")) arguments();
  else if (!strcmp(mode, "nested")) nested(copy_once), nested(upload_once);
  else if (!strcmp(mode, "ends")) ends();
  else if (!strcmp(mode, "many")) many(a);
  else if (!strcmp(mode, "forks")) forks();
  else if (!strcmp(mode, "signals")) signals();
  else if (!strcmp(mode, "pointers")) pointers();
  else if (!strcmp(mode, "full")) full();
  else if (!strcmp(mode, "streams")) streams();
  else if (!strcmp(mode, "barrier")) barrier();
  else if (!strcmp(mode, "no-barrier")) no_barrier();
  else if (!strcmp(mode, "none") || !strcmp(mode, "refused")) none();
  else if (!strcmp(mode, "cost")) cost();
  else return puts("no such mode"), 1;
  return 0;
}
