// The gate: calls that submit work to the GPU pass it, in a process that lends its memory or
// takes turns (GPUMEM_LEND, GPUMEM_TURNS). While the gate is closed they wait, and none is under
// way, so that the pool's memory can be unmapped and come back. In other processes there is none.
//
// A call marks its thread as in before it looks whether the gate is closed, and as out when
// the driver has returned. Who closes sets closed before it looks at the marks. Neither may look
// before its own store is seen, and a passing call has no instruction for that, as it would cost
// more than all the rest. So who closes has the kernel run one on each processor that runs a
// thread of this process: membarrier(2). After it a call has either seen closed, or its mark is
// seen.
//
// A call within a call passes, as the driver may make one. So does one of a signal's handler:
// the call that it interrupts is waited for. A thread at the closed gate is not in.
//
// What no gate can see: functions of NVIDIA's private tables (cuGetExportTable), and those that
// a program finds in the driver's file past this library.

#ifndef GPUMEM_GATE_H
#define GPUMEM_GATE_H

#include "gpumem.h"

#define GM_HIDDEN __attribute__((visibility("hidden")))
#define GM_UNLIKELY(x) __builtin_expect(!!(x), 0)

// A gm_passing is the mark of a thread. Only the thread writes in and passes, without a locked
// instruction. One that has ended leaves its record to another, which counts on.
// The slots know where in and passes are.
struct gm_passing {
  volatile u64 in;      // calls that are under way: more than one where they are nested
  volatile u64 passes;  // calls that have ended
  volatile int taken;   // by a thread
  volatile int waiting; // at the closed gate
} __attribute__((aligned(64)));

extern GM_HIDDEN __thread struct gm_passing *gm_mine __attribute__((tls_model("initial-exec"))); // 0 before the first call
extern GM_HIDDEN volatile int gm_closed; // 0, or the number of the closing: those that wait know it from the next one
extern GM_HIDDEN int gm_gate_on; // does not change after the library is loaded

GM_HIDDEN struct gm_passing *gm_take_record(void);
GM_HIDDEN void gm_wait_for_gate(struct gm_passing *);

// gm_enter_gate returns when the call may go to the driver.
static inline struct gm_passing *gm_enter_gate(void) {
  struct gm_passing *p = gm_mine;
  if (GM_UNLIKELY(!p)) p = gm_take_record();
  p->in++;
  __asm__ volatile("" ::: "memory"); // membarrier orders the processor, and this the compiler
  if (GM_UNLIKELY(__atomic_load_n(&gm_closed, __ATOMIC_ACQUIRE))) gm_wait_for_gate(p);
  return p;
}

// gm_leave_gate ends a call. What the driver wrote is seen before the mark is gone.
static inline void gm_leave_gate(struct gm_passing *p) {
  p->passes++;
  __atomic_store_n(&p->in, p->in - 1, __ATOMIC_RELEASE);
}

// gm_gated are the driver's functions behind the slots. Slot i is the function at gm_slots + i *
// GM_SLOT_BYTES: it passes the gate to gm_gated[i], with 16 words, which is what the largest
// function of the driver has, and nothing in a register for floating-point numbers, of which
// those that are marked have none. Made by generate.
enum { GM_SLOT_BYTES = 16 };
extern GM_HIDDEN void *volatile gm_gated[];
extern GM_HIDDEN const char gm_slots[];
extern GM_HIDDEN const int gm_slot_count;

// gm_enter_slot is gm_enter_gate for a slot that finds no record, or the gate closed.
GM_HIDDEN struct gm_passing *gm_enter_slot(void);

// gm_submits is 1 for each name of gm_names that is marked.
extern GM_HIDDEN const unsigned char gm_submits[];

// gm_passes_gate reports whether a function that cuGetProcAddress was asked for is to pass the
// gate. One whose name is not known may submit work.
GM_HIDDEN int gm_passes_gate(const char *name);

// gm_slot_of returns the slot that passes the gate to a function of the driver. Where none is
// left it is the function itself: the gate is not closed any more, and was not when it returns.
GM_HIDDEN void *gm_slot_of(void *function);

// gm_make_gate makes the gate when the library is loaded: it returns 0, or what this process lacks for a gate. gm_gate_unseen
// reports whether calls pass that the gate does not see.
GM_HIDDEN const char *gm_make_gate(void *driver);
GM_HIDDEN const struct gm_gate *gm_gate_for_pools(void);
GM_HIDDEN int gm_gate_unseen(void);

// gm_gate_forked runs in a child, whose gate is open, and which has the forking thread alone.
GM_HIDDEN void gm_gate_forked(void);

// streams.c: the streams that the program has made. A stream or a context that is about to be
// destroyed, ends 1, is not asked any more; 0: the driver has refused that; -1: it is gone.
GM_HIDDEN void gm_find_streams_driver(void *driver);
GM_HIDDEN void gm_stream_made(u64 stream, u64 green);
GM_HIDDEN void gm_stream_ends(u64 stream, int ends);
GM_HIDDEN void gm_context_ends(u64 context, int ends);
GM_HIDDEN void gm_streams_forked(void);
GM_HIDDEN int gm_streams_running(void);

// ties.c: memory that others use, too. A tie of a kind of gpumem.h lasts until gm_untie of its key,
// or the end of its context, if that is not 0; one with the key 0 for good. gm_untie ends most of them
// at most and returns their kinds, and gm_tied returns those that last.
enum { ALL_TIES = 0x7fffffff };
GM_HIDDEN void gm_tie(int kind, u64 key, u64 context);
GM_HIDDEN int gm_untie(u64 key, int most);
GM_HIDDEN void gm_untie_context(u64 context);
GM_HIDDEN int gm_tied(void);
GM_HIDDEN int gm_look(const char *libnvml);
GM_HIDDEN void gm_ties_forked(void);

#endif
