// The gate's slow side: records of threads, closing, waiting. See gate.h for an overview.

#define _GNU_SOURCE
#include "gate.h"

#include <errno.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

__thread struct gm_passing *gm_mine __attribute__((tls_model("initial-exec")));
volatile int gm_closed;
int gm_gate_on;

// Records are never given back to the system: one may be read whenever the gate closes.
enum { RECORDS = 63 };
static struct chunk {
  struct chunk *volatile next;
  struct gm_passing records[RECORDS];
} first __attribute__((aligned(64)));

// all_records runs a statement for each record p.
#define all_records(p, statement) \
  for (struct chunk *c_ = &first; c_; c_ = __atomic_load_n(&c_->next, __ATOMIC_ACQUIRE)) \
    for (struct gm_passing *p = c_->records; p < c_->records + RECORDS; p++) statement

static pthread_key_t key;

// A thread for which there is no memory passes by the record lost, which shows nothing. Then the
// gate is not closed any more.
static struct gm_passing lost;
static volatile int unseen;

static void set_unseen(void) { __atomic_store_n(&unseen, 1, __ATOMIC_SEQ_CST); }

int gm_gate_unseen(void) { return __atomic_load_n(&unseen, __ATOMIC_SEQ_CST); }

enum { ALL = 0x7fffffff }; // threads to wake

static long futex(volatile int *at, int what, int value, const struct timespec *wait) {
  return syscall(SYS_futex, at, what | FUTEX_PRIVATE_FLAG, value, wait, 0, 0);
}

static u64 now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

static void free_record(struct gm_passing *p) {
  p->waiting = 0;
  __atomic_store_n(&p->in, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&p->taken, 0, __ATOMIC_RELEASE);
}

// end_thread runs at the end of a thread, which may have been cancelled in the middle of a call.
// Another destructor that submits work behind it takes another record.
static void end_thread(void *record) {
  gm_mine = 0;
  if (record != &lost) free_record(record);
}

static struct gm_passing *next_record(void) {
  all_records(p, if (!p->taken && !__atomic_exchange_n(&p->taken, 1, __ATOMIC_ACQUIRE)) return p);
  struct chunk *c = mmap(0, sizeof *c, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (c == MAP_FAILED) return 0;
  c->records[0].taken = 1;
  struct chunk *next = __atomic_load_n(&first.next, __ATOMIC_RELAXED);
  do c->next = next;
  while (!__atomic_compare_exchange_n(&first.next, &next, c, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
  return c->records;
}

// gm_take_record takes a record for this thread. It has no lock, and no handler runs meanwhile:
// one that submits work would take another.
struct gm_passing *gm_take_record(void) {
  int keep = errno;
  sigset_t all, mask;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &mask);
  struct gm_passing *p = gm_mine;
  if (!p && !(p = next_record())) p = &lost, set_unseen();
  pthread_setspecific(key, p); // without it a thread that is cancelled in a call is in for ever
  gm_mine = p;
  pthread_sigmask(SIG_SETMASK, &mask, 0);
  errno = keep;
  return p;
}

static volatile int arrivals; // at the closed gate; who waits for one waits for a change

// gm_wait_for_gate is where a call stands that found the gate closed. It does not call Go: the
// stack may be small, and a handler of the program's that comes now may submit work, too. A thread
// that is cancelled meanwhile ends behind the call.
__attribute__((noinline, cold)) void gm_wait_for_gate(struct gm_passing *p) {
  if (p->in > 1 && p != &lost) return; // a call within a call, for which the gate waits
  int keep = errno, cancel;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
  do {
    __atomic_store_n(&p->in, p->in - 1, __ATOMIC_RELEASE);
    // The gate may have opened and closed again before this thread runs. Then it has not been counted since.
    for (int closing; (closing = __atomic_load_n(&gm_closed, __ATOMIC_ACQUIRE));) {
      p->waiting = 1;
      __atomic_add_fetch(&arrivals, 1, __ATOMIC_SEQ_CST);
      futex(&arrivals, FUTEX_WAKE, ALL, 0);
      futex(&gm_closed, FUTEX_WAIT, closing, 0);
    }
    p->waiting = 0;
    p->in++;
    __asm__ volatile("" ::: "memory");
  } while (__atomic_load_n(&gm_closed, __ATOMIC_ACQUIRE));
  pthread_setcancelstate(cancel, 0);
  errno = keep;
}

static u64 gate_passed(void) {
  u64 n = 0;
  all_records(p, n += p->passes);
  return n;
}

// A handler may leave a call at the gate by a jump: what is waiting is right from the next closing on.
static void gate_open(void) {
  __atomic_store_n(&gm_closed, 0, __ATOMIC_SEQ_CST);
  all_records(p, p->waiting = 0);
  futex(&gm_closed, FUTEX_WAKE, ALL, 0);
}

static int under_way(void) {
  all_records(p, if (__atomic_load_n(&p->in, __ATOMIC_ACQUIRE)) return 1);
  return 0;
}

static int gate_close(u64 within) {
  static unsigned closings;
  u64 until = now() + within;
  if (gm_gate_unseen()) return GM_GATE_UNSEEN;
  if (!++closings) closings = 1;
  __atomic_store_n(&gm_closed, (int)closings, __ATOMIC_SEQ_CST);
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0)) return gate_open(), GM_GATE_UNSEEN;
  for (int tries = 0; under_way(); tries++) {
    if (now() >= until) return gate_open(), GM_GATE_BUSY;
    // Most calls take microseconds. Those that do not are not worth a processor.
    struct timespec pause = {0, 50000};
    if (tries < 20) sched_yield();
    else nanosleep(&pause, 0);
  }
  // A thread that has no record, or a function that has no slot, was there before the barrier, or
  // finds the gate closed.
  return gm_gate_unseen() ? gate_open(), GM_GATE_UNSEEN : 0;
}

static int gate_waiting(u64 within) {
  for (u64 until = now() + within;;) {
    int seen = __atomic_load_n(&arrivals, __ATOMIC_SEQ_CST), n = 0;
    all_records(p, n += p->waiting);
    u64 t = now();
    if (n || t >= until) return n;
    struct timespec left = {(time_t)((until - t) / 1000000000), (long)((until - t) % 1000000000)};
    futex(&arrivals, FUTEX_WAIT, seen, &left);
  }
}

static const struct gm_gate gate = {gate_passed, gate_close, gate_open, gate_waiting, gm_streams_running, gm_tied, gm_look};

const struct gm_gate *gm_gate_for_pools(void) { return gm_gate_on ? &gate : 0; }

static int may_use_barrier(void) { return !syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0); }

const char *gm_make_gate(void *driver) {
  if (!may_use_barrier()) return "the kernel refuses membarrier(2), which Linux has since 4.14; a container's seccomp profile may forbid it";
  if (pthread_key_create(&key, end_thread)) return "the program has no key for data of threads left";
  gm_find_streams_driver(driver);
  gm_gate_on = 1;
  return 0;
}

void gm_gate_forked(void) {
  if (!gm_gate_on) return;
  gm_closed = 0;
  all_records(p, if (p != gm_mine) free_record(p));
  if (!may_use_barrier()) set_unseen();
  gm_streams_forked();
  gm_ties_forked();
}

struct gm_passing *gm_enter_slot(void) { return gm_enter_gate(); }

// is_form reports whether a name is one of the forms of a function: its versions, and those for
// streams of each thread's own.
static int is_form(const char *name, const char *function) {
  size_t n = strlen(function);
  if (strncmp(name, function, n)) return 0;
  name += n;
  if (name[0] == '_' && name[1] == 'v' && name[2]) name += 3;
  return !*name || !strcmp(name, "_ptsz") || !strcmp(name, "_ptds");
}

int gm_passes_gate(const char *function) {
  int i = 0;
  for (const char *name = gm_names; *name; name += strlen(name) + 1, i++)
    if (is_form(name, function)) return gm_submits[i]; // as all its forms
  return 1;
}

void *gm_slot_of(void *function) {
  for (int i = 0; i < gm_slot_count; i++) {
    void *has = gm_gated[i];
    if (!has && __atomic_compare_exchange_n(&gm_gated[i], &has, function, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) has = function;
    if (has == function) return (void *)(gm_slots + i * GM_SLOT_BYTES);
  }
  set_unseen();
  gm_leave_gate(gm_enter_gate()); // if it is closed now, wait
  return function;
}
