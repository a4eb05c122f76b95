// Interface between the C front and the Go pools (libgpumem.so).

#ifndef GPUMEM_FRONT_H
#define GPUMEM_FRONT_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t u64;

// CUresult values that the front itself answers with.
enum {
  CU_SUCCESS = 0, CU_INVALID_VALUE = 1, CU_OUT_OF_MEMORY = 2, CU_NOT_INITIALIZED = 3, CU_NO_DEVICE = 100,
  CU_INVALID_HANDLE = 400, CU_NOT_FOUND = 500, CU_NOT_SUPPORTED = 801, CU_UNKNOWN = 999,
  NOT_MINE = -1, // of a pool: ask the driver
};

// Answers of a gate's close and running beside those of the driver.
enum { GM_GATE_BUSY = -2, GM_GATE_UNSEEN = -3, GM_RUNNING = 600, GM_CAPTURING = 900 };

// Kinds of what ties the memory of a process to others.
enum { GM_SHARED = 1, GM_MANAGED = 2, GM_RANKS = 4, GM_REGISTERED = 8, GM_CONFIDENTIAL = 16 };

// The gate for the pools, see gate.h. One thread at a time may call close and open.
struct gm_gate {
  // passed returns how many calls have passed the gate and ended. It only grows. A handler of a
  // signal that passes in the middle of a call may not count by itself.
  u64 (*passed)(void);
  // close lets no call pass from then on, and waits until none is under way. 0: so it is, until
  // open. GM_GATE_BUSY: a call was still under way after within nanoseconds, and GM_GATE_UNSEEN:
  // the program has calls that the gate does not see, now and ever; the gate is open again.
  int (*close)(u64 within);
  void (*open)(void);
  // waiting returns how many threads stand at the closed gate. Where there is none it waits for
  // one, at most within nanoseconds.
  int (*waiting)(u64 within);
  // running asks, while the gate is closed, all streams that the program has made: 0 if all their
  // work is done, GM_RUNNING, GM_CAPTURING, or the driver's error. It does not see the legacy stream,
  // those that are each thread's own, and work of a stream that the program has destroyed.
  int (*running)(void);
  // tied returns what ties the memory of the process to others now: GM_SHARED, GM_MANAGED, 0.
  int (*tied)(void);
  // look returns what the system knows of that, which takes a millisecond: GM_RANKS, GM_REGISTERED,
  // GM_CONFIDENTIAL by the driver's NVML, if that is not "". What it does not say is nothing.
  int (*look)(const char *libnvml);
};

#define GM_TURN_AUTO (~(u64)0)

// The settings, read with getenv: a program may make them itself before it uses a GPU. The pools
// ask for no variable: Go's runtime has those that lay behind the arguments of main when it was
// loaded, and a program that has set its title, as setproctitle does, has written over them.
struct gm_settings {
  const char *libcuda; // file of the driver
  const char *policy;  // of the pools: package policy's Policy in JSON; "" for elastic
  const char *ledgers; // files of the lease, ':' between; "" for none
  const char *parts;   // of each ledger that this process is in, see node/ledger; "" for none
  const char *record;  // file to record to; "" for none
  const char *whole;   // in a run of gpumem fit, the beginning of the name of fit_note's file; else ""
  u64 limit;           // bytes for this process, without a lease; 0 for none
  u64 outside;         // bytes that the context and libraries take
  u64 more;            // bytes that each further context takes
  u64 beyond;          // bytes that the driver may grant although it says that the GPU has less
  int ordered;         // plain memory is freed in stream order
  int report;          // say at the end what the pool did
  const struct gm_gate *gate; // 0 unless the process lends its memory or takes turns
  u64 lend;            // nanoseconds without work after which it lends it; 0: it lends nothing
  u64 turn;            // nanoseconds of its turns; 0: it has none, GM_TURN_AUTO: by what a way out and in costs
  int pinned;          // what it lends lies in pinned memory of the host, which it keeps
  const char *libnvml; // file of the driver's NVML; "" for none
};

// One GPU, shared by the front and the pools, which write it with atomic stores.
struct gm_device {
  volatile u64 from, to; // where the pool's blocks lie; from == to: nowhere
  volatile u64 pending;  // bytes that wait for a synchronization
  volatile u64 context;  // the primary context, whose memory is served; 0: no pool
  volatile u64 ledger;   // descriptor of the lease's file; 0 for none
  volatile u64 counts;   // 1: what the program takes past the pool is counted
  u64 block;             // bytes of the driver's unit, which the front asks for; 0: unknown
};

// kinds of charges: see package shim.
enum { GM_PLAIN, GM_HANDLE, GM_ARRAY };

// The pools' functions. All return a CUresult or NOT_MINE unless they return nothing.
#define GM_FUNCTIONS(F) \
  F(void, gmDeepen, (void)) \
  F(int, gmInit, (struct gm_settings *)) \
  F(int, gmOpen, (int, const char *, int, struct gm_device *)) \
  F(int, gmServe, (int)) \
  F(int, gmAlloc, (int, u64, u64 *)) \
  F(int, gmFree, (int, u64)) \
  F(int, gmAllocAsync, (int, u64, u64, u64 *)) \
  F(int, gmFreeAsync, (int, u64, u64)) \
  F(int, gmInfo, (int, u64 *, u64 *)) \
  F(int, gmRange, (int, u64, u64 *, u64 *)) \
  F(void, gmStreamDestroyed, (int, u64)) \
  F(u64, gmSynchronizing, (int)) \
  F(void, gmSynchronized, (int, u64)) \
  F(void, gmPeer, (int, int)) \
  F(void, gmTrim, (int)) \
  F(int, gmPoolAttribute, (int, int, u64 *)) \
  F(int, gmTake, (int, u64)) \
  F(void, gmFailed, (int, u64)) \
  F(int, gmResize, (int, u64, u64)) \
  F(void, gmDone, (int, int, u64, u64, u64)) \
  F(void, gmRetained, (int, int, u64)) \
  F(u64, gmRemove, (int, int, u64)) \
  F(void, gmRemoved, (int, u64, int)) \
  F(void, gmReleasing, (int, int)) \
  F(u64, gmReleases, (int)) \
  F(int, gmReleasedSince, (int, u64)) \
  F(int, gmTakePooled, (int, u64, u64, u64, u64, u64 *)) \
  F(int, gmReservedPooled, (int, u64, u64, u64)) \
  F(int, gmTakeContext, (int)) \
  F(void, gmTookContext, (int, u64)) \
  F(void, gmLeft, (int, u64 *, u64 *)) \
  F(void, gmMapped, (int, u64, u64, u64)) \
  F(void, gmUnmapped, (int, u64, u64)) \
  F(u64, gmRemoveContext, (int, u64)) \
  F(void, gmRemovedContext, (int, u64, int)) \
  F(void, gmDrop, (int)) \
  F(void, gmExit, (void))

// names.c and forward.S, which generate makes: the functions that are not served. Their names stand
// one behind the other, each with its 0, and another 0 at the end: a list of pointers would take
// 32 bytes more for each. gm_table[i] is where calls of the i-th go.
extern __attribute__((visibility("hidden"))) const char gm_names[];
extern __attribute__((visibility("hidden"))) void *gm_table[];

// mark.c

// What the mark beside the library says: not there, so the environment counts; there, with
// the lease of the container; or there and without a lease, so there is no memory.
enum { GM_UNMARKED, GM_MARKED, GM_REFUSED };

struct gm_mark {
  int state;
  const char *ledgers; // files of the lease, ':' between; 0 without one
  const char *parts;   // the lease's bytes of each, as a part that all its processes are in
  u64 outside;         // bytes, if has_outside
  int has_outside;
};

// gm_mark_of reads the mark, once, and says what is wrong with it unless the other library
// of this folder is loaded, which has. gm_marked returns it again.
const struct gm_mark *gm_mark_of(const char *other);
const struct gm_mark *gm_marked(void);

// gm_find returns the file with this name in the usual folders that is a library and not
// ours; 0 if there is none. The text is good until the next call.
const char *gm_find(const char *name, int (*ours)(const char *path));

// ledger.c

// gm_lease reads the limit of the lease on the GPU with this UUID, and what its processes
// leave of it, by the mark, else by the environment: GPUMEM_LEDGER and GPUMEM_LEDGER_PARTS,
// or GPUMEM_LIMIT. It returns 0 where there is no limit.
int gm_lease(const char *uuid, u64 *limit, u64 *left);

// In Go every pointer type has a name.
typedef struct gm_settings gm_settings;
typedef struct gm_device gm_device;

#endif
