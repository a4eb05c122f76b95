//go:build libgpumem

// front.c has the functions that the library exports.
//
// Nearly all of them stand in stubs.c, hand their arguments to simServe here and
// so to simCall in Go. Here is what has to be in C: a thread's own state, host
// functions, what looks names up, what counts calls and makes them fail, and the
// end of a fork's child.

#define _GNU_SOURCE
#include "front.h"
#include "_cgo_export.h"
#include "../internal/guest/limits.h"
#include "../internal/guest/line.h"
#include "../internal/guest/quiet.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { notInitialized = 3, invalidValue = 1, notFound = 500, unknown = 999 };

// --- the state of the process and its threads

// What a fork's child may do: Go's threads are not there.
static volatile enum { NO_CHILD, MAY_BEGIN, REFUSED } child;
static volatile int initialised; // cuInit has succeeded
static int cannot_begin;   // Go's runtime cannot: there is no driver
static u64 threads;        // numbers given out
static __thread struct simThread self;
static __thread int calling; // the name of this thread's call
static __thread int granted; // this thread's pages that are not mapped yet were granted: see simMayExceed

static u64 calls[simNameCount];      // by name
static volatile int64_t failAt;      // calls until one fails; 0 or less: none will
static volatile int failWith;
static pthread_mutex_t fileLock = PTHREAD_MUTEX_INITIALIZER;

static void append(const char *variable, const char *text) {
  const char *path = getenv(variable);
  if (!path || !*path) return;
  int keep = errno, f = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (f >= 0) {
    (void)write_quietly(f, text, strlen(text)); // one write, so that lines of several processes do not mix
    close(f);
  }
  errno = keep;
}

void simLog(const char *line) {
  pthread_mutex_lock(&fileLock);
  append("GPUMEM_SIM_LOG", line);
  pthread_mutex_unlock(&fileLock);
}

void simWarn(const char *line) { write_line(line, strlen(line)); }

void simPeak(const char *line) { append("GPUMEM_SIM_PEAKS", line); }

int simUnprepared(void) {
  const char *started = getenv("GPUMEM_SIM_STARTED");
  return dlsym(RTLD_DEFAULT, "Py_IsInitialized") && (!started || atoi(started) != getpid());
}

// figuresAtEnd has Go write what the process held at most of each device, and the time of its work.
static void figuresAtEnd(void) {
  if (!child && !cannot_begin && threads) simFiguresAtEnd(); // without a call Go has nothing to say
}

// callsAtEnd writes how often each function was called: "cuMemAlloc_v2 12".
static void callsAtEnd(void) {
  const char *path = getenv("GPUMEM_SIM_CALLS");
  if (child || !path || !*path) return;
  char *text = 0;
  size_t size;
  FILE *f = open_memstream(&text, &size);
  if (!f) return;
  for (int i = 0; i < simNameCount; i++)
    if (calls[i]) fprintf(f, "%s %llu\n", simNames[i].symbol, (unsigned long long)calls[i]);
  fclose(f);
  append("GPUMEM_SIM_CALLS", text);
  free(text);
}

// The copy of a child that may begin, and what it serves.
static pthread_mutex_t copying = PTHREAD_MUTEX_INITIALIZER;
static struct copy {
  int (*serve)(int, u64 *);
  int (*status)(int, u64 *, u64 *, char *, char *);
  int (*processes)(int, u64 *, u64 *, int);
  int (*attribute)(int, int);
  u64 (*beyond)(int, u64 *);
  void (*refuse)(u64, int);
  void (*launched)(void);
} copied;

static void nobody_listens(void);

// forked runs in a child. One whose parent had a copy itself goes on by that, which knows of the fork.
static void forked(void) {
  pthread_mutex_init(&copying, 0); // its owner is not here
  if (child == NO_CHILD) child = initialised ? REFUSED : MAY_BEGIN;
  nobody_listens();
}

static char file[4096]; // of this library: a copy has that of the first

EXPORT void gpumemSimFile(const char *path) { snprintf(file, sizeof file, "%s", path); }

// load_copy loads this library once more. The linker knows a library by its file, so the copy is another one.
static void load_copy(void) {
  Dl_info here;
  char path[64];
  sigset_t all, mask;
  if (!*file && dladdr((void *)load_copy, &here) && here.dli_fname) gpumemSimFile(here.dli_fname);
  int from = open(file, O_RDONLY | O_CLOEXEC);
  int to = from < 0 ? -1 : memfd_create("libcuda.so.1", MFD_CLOEXEC);
  ssize_t n = 1;
  while (to >= 0 && n > 0) n = sendfile(to, from, 0, 1 << 30);
  if (from >= 0) close(from);
  if (to < 0 || n < 0) return;
  snprintf(path, sizeof path, "/proc/self/fd/%d", to);
  sigfillset(&all); // threads that it starts are no place for the program's handlers
  pthread_sigmask(SIG_BLOCK, &all, &mask);
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  pthread_sigmask(SIG_SETMASK, &mask, 0);
  close(to);
  void (*named)(const char *) = lib ? (void (*)(const char *))dlsym(lib, "gpumemSimFile") : 0;
  if (!named) return;
  named(file);
  *(void **)&copied.serve = dlsym(lib, "gpumemSimServe");
  *(void **)&copied.status = dlsym(lib, "gpumemSimStatus");
  *(void **)&copied.processes = dlsym(lib, "gpumemSimProcesses");
  *(void **)&copied.attribute = dlsym(lib, "gpumemSimAttribute");
  *(void **)&copied.beyond = dlsym(lib, "gpumemSimBeyond");
  *(void **)&copied.refuse = dlsym(lib, "gpumemSimRefuse");
  *(void **)&copied.launched = dlsym(lib, "gpumemSimLaunched");
}

// copy returns the copy's functions; those are null where it could not be loaded.
static const struct copy *copy(void) {
  static int tried;
  pthread_mutex_lock(&copying);
  if (!tried) {
    tried = 1;
    load_copy();
  }
  pthread_mutex_unlock(&copying);
  return &copied;
}

// Where Go's runtime may not begin there is no driver. The runtime begins by this call,
// which scripts/libcudasim has the linker send here.
void __real_x_cgo_sys_thread_create(void *(*begin)(void *), void *arg);

void __wrap_x_cgo_sys_thread_create(void *(*begin)(void *), void *arg) {
  const char *lacks = go_lacks();
  char line[512];
  cannot_begin = lacks != 0;
  if (!lacks) {
    // Its threads have all signals blocked, by which quiet_all knows them.
    sigset_t all, mask;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &mask);
    __real_x_cgo_sys_thread_create(begin, arg);
    pthread_sigmask(SIG_SETMASK, &mask, 0);
    return;
  }
  int n = snprintf(line, sizeof line, "libcudasim: no simulated GPU: %s\n", lacks);
  write_line(line, (size_t)n);
}

__attribute__((constructor)) static void begin(void) {
  pthread_atfork(0, 0, forked);
  atexit(callsAtEnd);
  atexit(figuresAtEnd);
}

static pthread_once_t quieting = PTHREAD_ONCE_INIT;

// quiet_all runs when Go's runtime has begun. Its threads are known by their signals.
static void quiet_all(void) { quiet_threads(0, 0); }

// enter is what every call does first: 0, or the code that it fails with.
static int enter(int name) {
  if (child || cannot_begin) return notInitialized;
  __atomic_fetch_add(&calls[name], 1, __ATOMIC_RELAXED);
  calling = name;
  if (name == number_cuMemMap) granted = 0;
  if (__builtin_expect(failAt > 0, 0) && __atomic_sub_fetch(&failAt, 1, __ATOMIC_RELAXED) == 0) return failWith;
  if (!self.number) {
    sigset_t all, mask;
    int cancel;
    sigfillset(&all);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_sigmask(SIG_BLOCK, &all, &mask);
    simDeepen();
    pthread_once(&quieting, quiet_all);
    pthread_sigmask(SIG_SETMASK, &mask, 0);
    pthread_setcancelstate(cancel, 0);
    self.number = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
  }
  return 0;
}

static void await(u64 number);

int simServe(int name, u64 *args) {
  if (__builtin_expect(child == MAY_BEGIN, 0)) return copy()->serve ? copied.serve(name, args) : notInitialized;
  int code = enter(name);
  if (code) return code;
  self.wait = 0;
  code = simCall(name, args, &self);
  if (!code && name == number_cuInit) initialised = 1;
  if (self.wait) await(self.wait);
  return code;
}

EXPORT int gpumemSimServe(int name, u64 *args) { return simServe(name, args); }

// --- names

// lookup is the newest function of that base name that a version has. status is
// CUdriverProcAddressQueryResult: 0 found, 1 no such name, 2 not in that version.
static void *lookup(const char *base, int version, u64 flags, int *status) {
  void *plain = 0, *perThread = 0;
  int newest = 0, newestPerThread = 0;
  *status = 1;
  for (int i = 0; i < simNameCount; i++) {
    const struct simName *n = &simNames[i];
    if (strcmp(n->base, base)) continue;
    const char *suffix = strstr(n->symbol, "_pt");
    if (!suffix) *status = 2;
    if (n->version > version) continue;
    if (!suffix && n->version >= newest) newest = n->version, plain = n->function;
    if (suffix && n->version >= newestPerThread) newestPerThread = n->version, perThread = n->function;
  }
  void *found = (flags & 2) && perThread ? perThread : plain; // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
  if (found) *status = 0;
  return found;
}

// find is enter for a call that wants nothing of Go.
static int find(int name) { return child == MAY_BEGIN ? 0 : enter(name); }

EXPORT int cuGetProcAddress_v2(const char *base, void **fn, int version, u64 flags, int *status) {
  int code = find(number_cuGetProcAddress_v2), none;
  if (code) return code;
  if (!base || !fn || flags > 2) return invalidValue;
  *fn = lookup(base, version, flags, status ? status : &none);
  return 0;
}

EXPORT int cuGetProcAddress_v2_ptsz(const char *base, void **fn, int version, u64 flags, int *status) {
  return cuGetProcAddress_v2(base, fn, version, flags ? flags : 2, status);
}

EXPORT int cuGetProcAddress(const char *base, void **fn, int version, u64 flags) {
  int code = find(number_cuGetProcAddress), status;
  if (code) return code;
  if (!base || !fn || flags > 2) return invalidValue;
  *fn = lookup(base, version, flags, &status);
  return status ? notFound : 0;
}

// NVIDIA's libraries ask for private tables. There are none.
EXPORT int cuGetExportTable(const void **table, const void *id) {
  int code = enter(number_cuGetExportTable);
  if (code) return code;
  if (table) *table = 0;
  return notFound;
}

// --- host functions: one after the other, on a thread that no call waits on
// with a lock (the caller may hold locks that the function takes).

struct job {
  void *fn, *arg, *stream;
  int withStatus;
  struct job *next;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static struct job *first, **last = &first;
static u64 queued, begun, done;
static int started;

__attribute__((noreturn)) static void *worker(void *unused) {
  (void)unused;
  pthread_mutex_lock(&mu);
  while (1) {
    while (!first) pthread_cond_wait(&change, &mu);
    struct job *j = first;
    if (!(first = j->next)) last = &first;
    begun++;
    pthread_mutex_unlock(&mu);
    if (j->withStatus)
      ((void (*)(void *, int, void *))j->fn)(j->stream, 0, j->arg);
    else
      ((void (*)(void *))j->fn)(j->arg);
    free(j);
    pthread_mutex_lock(&mu);
    done++;
    pthread_cond_broadcast(&change);
  }
}

u64 simQueue(void *fn, void *arg, void *stream, int withStatus) {
  struct job *j = malloc(sizeof *j);
  if (!j) return 0;
  *j = (struct job){fn, arg, stream, withStatus, 0};
  pthread_mutex_lock(&mu);
  if (!started) {
    pthread_t t;
    started = !pthread_create(&t, 0, worker, 0);
    if (started) pthread_detach(t);
  }
  *last = j, last = &j->next;
  u64 n = ++queued;
  pthread_cond_broadcast(&change);
  pthread_mutex_unlock(&mu);
  return n;
}

u64 simBegun(void) {
  pthread_mutex_lock(&mu);
  u64 n = begun;
  pthread_mutex_unlock(&mu);
  return n;
}

u64 simDone(void) {
  pthread_mutex_lock(&mu);
  u64 n = done;
  pthread_mutex_unlock(&mu);
  return n;
}

void simAwait(u64 number) { await(number); }

static void await(u64 number) {
  pthread_mutex_lock(&mu);
  while (done < number) pthread_cond_wait(&change, &mu);
  pthread_mutex_unlock(&mu);
}

// --- requests beyond the device (GPUMEM_SIM_BEYOND): a thread of the program may refuse them

// How long a request waits for an answer, and for a listener that does something else, which may
// wait for a lock of this thread, in milliseconds.
enum { patience = 2000, short_patience = 100 };

static struct {
  pthread_mutex_t mu;
  pthread_cond_t change;
  enum { NOBODY, BUSY, LISTENS } listener;
  int refuses;
  u64 asked, answered; // how often
  u64 thread;          // that asked last
} beyond = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NOBODY, 0, 0, 0, 0};

static void nobody_listens(void) {
  pthread_mutex_init(&beyond.mu, 0);
  pthread_cond_init(&beyond.change, 0);
  beyond.listener = NOBODY, beyond.refuses = 0;
  beyond.asked = beyond.answered = 0;
}

static void within(int milliseconds, struct timespec *until) {
  clock_gettime(CLOCK_REALTIME, until);
  long n = until->tv_nsec + milliseconds % 1000 * 1000000L;
  until->tv_sec += milliseconds / 1000 + n / 1000000000L;
  until->tv_nsec = n % 1000000000L;
}

// holds_python reports whether the listener, which is Python's, cannot run while this thread waits.
static int holds_python(void) {
  int (*holds)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
  return holds && holds();
}

// The pool library makes all pages of a block, 512 for 1 GiB, and maps them then: the first that is granted
// has the answer for all.
int simMayExceed(void) {
  int makes = calling == number_cuMemCreate;
  if (granted && makes) return 1;
  struct timespec until;
  int python = holds_python();
  pthread_mutex_lock(&beyond.mu);
  if (beyond.listener != NOBODY && !python) {
    within(short_patience, &until);
    while (beyond.listener == BUSY && !pthread_cond_timedwait(&beyond.change, &beyond.mu, &until)) {}
  }
  if (beyond.listener == LISTENS && !python) {
    u64 number = ++beyond.asked;
    beyond.thread = (u64)pthread_self();
    pthread_cond_broadcast(&beyond.change);
    within(patience, &until);
    while (beyond.answered < number && !pthread_cond_timedwait(&beyond.change, &beyond.mu, &until)) {}
    if (beyond.answered < number) beyond.answered = number; // nobody waits for it now
  }
  int refuses = beyond.refuses;
  pthread_mutex_unlock(&beyond.mu);
  granted = makes && !refuses;
  return !refuses;
}

// gpumemSimBeyond waits some milliseconds for a request that the device has no memory for, and
// returns its number, with the thread that makes it, or 0. That thread waits for gpumemSimRefuse, whose
// answer counts for requests that cannot wait, too. With the number 0 the listener does something
// else until it calls this again.
EXPORT u64 gpumemSimBeyond(int milliseconds, u64 *thread) {
  if (child == MAY_BEGIN) return copy()->beyond ? copied.beyond(milliseconds, thread) : 0;
  struct timespec until;
  within(milliseconds, &until);
  pthread_mutex_lock(&beyond.mu);
  beyond.listener = LISTENS;
  pthread_cond_broadcast(&beyond.change);
  while (beyond.answered == beyond.asked)
    if (pthread_cond_timedwait(&beyond.change, &beyond.mu, &until)) break;
  u64 number = beyond.answered != beyond.asked ? beyond.asked : 0;
  if (thread) *thread = number ? beyond.thread : 0;
  pthread_mutex_unlock(&beyond.mu);
  return number;
}

EXPORT void gpumemSimRefuse(u64 number, int refuses) {
  if (child == MAY_BEGIN) {
    if (copy()->refuse) copied.refuse(number, refuses);
    return;
  }
  pthread_mutex_lock(&beyond.mu);
  beyond.refuses = refuses;
  if (number > beyond.answered) beyond.answered = number;
  if (!number) beyond.listener = BUSY;
  pthread_cond_broadcast(&beyond.change);
  pthread_mutex_unlock(&beyond.mu);
}

// --- kernels of the runtime that stands in for NVIDIA's (internal/test/standin/src/cudart.c), which are no calls

u64 simLaunched;

EXPORT void gpumemSimLaunched(void) {
  if (child != MAY_BEGIN) __atomic_store_n(&simLaunched, 1, __ATOMIC_RELAXED);
  else if (copied.launched) copied.launched(); // else nothing was written
}

// --- for tests: what a driver does not have

// gpumemSimUse says that work in the stream writes these bytes. It is work of
// some length; what was there before stays. The code is 700 if that is a hazard.
EXPORT int gpumemSimUse(u64 addr, u64 bytes, void *stream) {
  return child || cannot_begin ? notInitialized : simUse(addr, bytes, (u64)(uintptr_t)stream, &self);
}

// gpumemSimHazards is how many uses of memory so far would go wrong in some run
// of the program, up to 100 a device. gpumemSimHazard is the text of one, from 0.
EXPORT int gpumemSimHazards(void) { return child || cannot_begin ? 0 : simHazards(); }
EXPORT int gpumemSimHazard(int i, char *text, size_t bytes) { return child || cannot_begin ? notInitialized : simHazard(i, text, bytes); }

// gpumemSimFail makes the n-th driver call from now fail with
// CUDA_ERROR_UNKNOWN, or with another code; 0 takes it back.
EXPORT void gpumemSimFailWith(int64_t n, int code) { failWith = code, failAt = n; }
EXPORT void gpumemSimFail(int64_t n) { gpumemSimFailWith(n, unknown); }

// gpumemSimCalls is how often a function was called so far; all of them for 0.
EXPORT u64 gpumemSimCalls(const char *symbol) {
  u64 sum = 0;
  for (int i = 0; i < simNameCount; i++)
    if (!symbol || !strcmp(symbol, simNames[i].symbol)) sum += __atomic_load_n(&calls[i], __ATOMIC_RELAXED);
  return sum;
}

// gpumemSimStatus describes a device without using it, for NVML: 0, or -1 if
// there is none of that number. name and uuid have room for 96 bytes.
EXPORT int gpumemSimStatus(int ordinal, u64 *total, u64 *used, char *name, char *uuid) {
  if (child) return copy()->status ? copied.status(ordinal, total, used, name, uuid) : -1;
  return cannot_begin ? -1 : simStatus(ordinal, total, used, name, uuid);
}

// gpumemSimBusy is the time, in nanoseconds, of the work that all programs gave an engine of a device that this
// one uses: 0 kernels, 1 copies to the device, 2 copies to the host. It is 0 unless work takes time.
EXPORT u64 gpumemSimBusy(int ordinal, int engine) { return child || cannot_begin ? 0 : simBusy(ordinal, engine); }

// gpumemSimProcesses is how many programs hold memory of a shared device, and
// which and how much, as far as there is room; -1 if there is no such device.
EXPORT int gpumemSimProcesses(int ordinal, u64 *pids, u64 *used, int room) {
  if (child) return copy()->processes ? copied.processes(ordinal, pids, used, room) : -1;
  return cannot_begin ? -1 : simProcesses(ordinal, pids, used, room);
}

// gpumemSimAttribute is an attribute of a device, by the number of CUdevice_attribute; 0 if there is
// none.
EXPORT int gpumemSimAttribute(int ordinal, int number) {
  if (child) return copy()->attribute ? copied.attribute(ordinal, number) : 0;
  return cannot_begin ? 0 : simAttribute(ordinal, number);
}
