// The functions of libcuda.so.1 that are about memory. All others jump to the driver's
// (forward.S, made by generate).
//
// A program that loads this library has loaded nothing else yet: the driver is loaded
// with it, the pools (libgpumem.so, in Go) when the program first makes a context, which
// counts. So a process that never uses a GPU has no thread more, and one that forks before it
// does has separate pools in the child.
//
// One call, cuMemAllocAsync(&p, n, stream):
//
//	serving()     the current context is one whose memory is served: its GPU's number.
//	              The first time for a GPU, the pools are loaded and one is opened
//	capturing()   into a graph that is being captured nothing is served: the driver
//	              makes a node of the call
//	gmAllocAsync  package shim. Its CUresult is the program's
//
// After a fork the pools are gone: Go's threads are not in the child. Its calls go to
// the driver, which refuses them if the parent had used it, as without this library.

#define _GNU_SOURCE
#include "gate.h"
#include "gpumem.h"
#include "limits.h"
#include "line.h"
#include "quiet.h"
#include "room.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default"))) int
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define MAX_GPUS 64

typedef void *ptr;

enum { LOCATION_DEVICE = 1, PINNED = 1 };

// Results of the driver's functions where there is no driver, or no function of that name.
static int no_driver(void) { return CU_NO_DEVICE; }
static int no_function(void) { return CU_NOT_FOUND; }

static void *driver;
static struct gm_settings settings;
static char driver_path[4096];
static const struct gm_mark *mark;
static int off;             // forward everything
static volatile int child; // this process was forked from one that had pools

struct ipc_handle { // CUipcMemHandle, which is passed by value
  char bytes[64];
};

// The driver's functions that this file serves or asks.
#define DRIVER(F) \
  F(cuMemAlloc_v2, (u64 *, size_t)) F(cuMemFree_v2, (u64)) F(cuMemGetInfo_v2, (size_t *, size_t *)) \
  F(cuMemAllocManaged, (u64 *, size_t, unsigned)) F(cuMemAllocPitch_v2, (u64 *, size_t *, size_t, size_t, unsigned)) \
  F(cuMemAllocAsync, (u64 *, size_t, ptr)) F(cuMemAllocAsync_ptsz, (u64 *, size_t, ptr)) \
  F(cuMemAllocFromPoolAsync, (u64 *, size_t, ptr, ptr)) F(cuMemAllocFromPoolAsync_ptsz, (u64 *, size_t, ptr, ptr)) \
  F(cuMemFreeAsync, (u64, ptr)) F(cuMemFreeAsync_ptsz, (u64, ptr)) \
  F(cuDeviceTotalMem_v2, (size_t *, int)) F(cuMemGetAddressRange_v2, (u64 *, size_t *, u64)) \
  F(cuPointerGetAttribute, (void *, int, u64)) F(cuPointerGetAttributes, (unsigned, int *, void **, u64)) \
  F(cuIpcGetMemHandle, (void *, u64)) F(cuMemRetainAllocationHandle, (u64 *, u64)) \
  F(cuMemGetHandleForAddressRange, (void *, u64, size_t, int, u64)) \
  F(cuMemCreate, (u64 *, size_t, const int *, u64)) F(cuMemRelease, (u64)) \
  F(cuMemMap, (u64, size_t, size_t, u64, u64)) F(cuMemUnmap, (u64, size_t)) \
  F(cuArrayCreate_v2, (ptr *, const size_t *)) F(cuArray3DCreate_v2, (ptr *, const size_t *)) \
  F(cuMipmappedArrayCreate, (ptr *, const size_t *, unsigned)) F(cuArrayDestroy, (ptr)) F(cuMipmappedArrayDestroy, (ptr)) \
  F(cuStreamDestroy_v2, (ptr)) F(cuCtxSynchronize, (void)) F(cuCtxEnablePeerAccess, (ptr, unsigned)) \
  F(cuDevicePrimaryCtxRetain, (ptr *, int)) F(cuDevicePrimaryCtxRelease_v2, (int)) F(cuDevicePrimaryCtxReset_v2, (int)) \
  F(cuDevicePrimaryCtxRelease, (int)) F(cuDevicePrimaryCtxReset, (int)) \
  F(cuMemPoolGetAttribute, (ptr, int, void *)) F(cuMemPoolTrimTo, (ptr, size_t)) F(cuMemPoolSetAccess, (ptr, const int *, size_t)) \
  F(cuGetProcAddress, (const char *, void **, int, u64)) F(cuGetProcAddress_v2, (const char *, void **, int, u64, int *)) \
  F(cuGetProcAddress_v2_ptsz, (const char *, void **, int, u64, int *)) \
  F(cuCtxDestroy_v2, (ptr)) F(cuCtxGetCurrent, (ptr *)) F(cuCtxGetDevice, (int *)) F(cuCtxPushCurrent_v2, (ptr)) \
  F(cuCtxPopCurrent_v2, (ptr *)) \
  F(cuDevicePrimaryCtxGetState, (int, unsigned *, int *)) F(cuDeviceGetUuid, (unsigned char *, int)) \
  F(cuDeviceGetUuid_v2, (unsigned char *, int)) \
  F(cuStreamIsCapturing, (ptr, int *)) F(cuStreamIsCapturing_ptsz, (ptr, int *)) F(cuMemPoolGetAccess, (int *, ptr, const int *)) \
  F(cuDeviceGetDefaultMemPool, (ptr *, int)) F(cuDeviceSetMemPool, (int, ptr)) F(cuMemSetMemPool, (const int *, int, ptr)) \
  F(cuCtxCreate, (ptr *, unsigned, int)) F(cuCtxCreate_v2, (ptr *, unsigned, int)) F(cuCtxCreate_v3, (ptr *, void *, int, unsigned, int)) \
  F(cuCtxCreate_v4, (ptr *, void *, unsigned, int)) F(cuMemGetAllocationGranularity, (size_t *, const void *, int)) \
  F(cuDeviceGetMemPool, (ptr *, int)) \
  F(cuGraphLaunch, (ptr, ptr)) F(cuGraphLaunch_ptsz, (ptr, ptr)) F(cuGraphUpload, (ptr, ptr)) F(cuGraphUpload_ptsz, (ptr, ptr)) \
  F(cuGraphAddMemAllocNode, (ptr *, ptr, const ptr *, size_t, void *)) F(cuGraphAddNode, (ptr *, ptr, const ptr *, size_t, void *)) \
  F(cuGraphAddNode_v2, (ptr *, ptr, const ptr *, const void *, size_t, void *)) \
  F(cuDeviceGraphMemTrim, (int)) F(cuDeviceGetGraphMemAttribute, (int, int, void *)) \
  F(cuStreamSynchronize, (ptr)) F(cuStreamSynchronize_ptsz, (ptr)) F(cuEventSynchronize, (ptr)) \
  F(cuCtxDestroy, (ptr)) F(cuCtxAttach, (ptr *, unsigned)) F(cuCtxDetach, (ptr)) F(cuStreamDestroy, (ptr)) \
  F(cuGreenCtxCreate, (ptr *, ptr, int, unsigned)) F(cuGreenCtxDestroy, (ptr)) \
  F(cuGLCtxCreate, (ptr *, unsigned, int)) F(cuGLCtxCreate_v2, (ptr *, unsigned, int)) \
  F(cuVDPAUCtxCreate, (ptr *, unsigned, int, unsigned, ptr)) F(cuVDPAUCtxCreate_v2, (ptr *, unsigned, int, unsigned, ptr)) \
  F(cuMemAlloc, (unsigned *, unsigned)) F(cuMemFree, (unsigned)) \
  F(cuMemAllocPitch, (unsigned *, unsigned *, unsigned, unsigned, unsigned)) \
  F(cuMemGetInfo, (unsigned *, unsigned *)) F(cuDeviceTotalMem, (unsigned *, int)) \
  F(cuArrayCreate, (ptr *, const unsigned *)) F(cuArray3DCreate, (ptr *, const unsigned *)) \
  F(cuThreadExchangeStreamCaptureMode, (int *)) F(cuDeviceGetCount, (int *)) F(cuStreamGetCtx, (ptr, ptr *)) \
  F(cuMemPoolCreate, (ptr *, const void *)) F(cuMemPoolDestroy, (ptr)) \
  F(cuStreamCreate, (ptr *, unsigned)) F(cuStreamCreateWithPriority, (ptr *, unsigned, int)) \
  F(cuGreenCtxStreamCreate, (ptr *, ptr, unsigned, int)) \
  F(cuIpcOpenMemHandle, (u64 *, struct ipc_handle, unsigned)) F(cuIpcOpenMemHandle_v2, (u64 *, struct ipc_handle, unsigned)) \
  F(cuIpcCloseMemHandle, (u64)) F(cuMemExportToShareableHandle, (void *, u64, int, u64)) \
  F(cuMemImportFromShareableHandle, (u64 *, void *, int)) F(cuMemPoolExportToShareableHandle, (void *, ptr, int, u64)) \
  F(cuMemPoolImportFromShareableHandle, (ptr *, void *, int, u64))

static struct {
#define F(name, args) int (*name) args;
  DRIVER(F)
#undef F
} r;

// pools is the pools' functions, and pools_elsewhere the same ones on a stack of the
// library's.
static struct functions {
#define F(type, name, args) type (*name) args;
  GM_FUNCTIONS(F)
#undef F
} pools, pools_elsewhere;

#define F(type, name, args) \
  static word name##_elsewhere(word a, word b, word c, word d, word e, word f) { \
    return elsewhere((function)(void *)pools.name, a, b, c, d, e, f); \
  }
GM_FUNCTIONS(F)
#undef F

// deep is where this thread's stack has room for the pools: from here, so many bytes. There
// is none before deepen.
static __thread struct {
  uintptr_t from, span;
  int done;
} deep __attribute__((tls_model("initial-exec")));

// in_room reports whether the caller's stack is the thread's own and has room.
static inline int in_room(uintptr_t from, uintptr_t span) { return (uintptr_t)__builtin_frame_address(0) - from < span; }

// deepen gives this thread's goroutine a stack on which signal handlers of the program
// may run, see package guest. None may before. It returns the functions for the stack that
// the thread is on.
__attribute__((noinline)) static const struct functions *deepen(void) {
  if (!deep.done) {
    sigset_t all, mask;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &mask);
    uintptr_t span, from = room(&span);
    if (in_room(from, span)) pools.gmDeepen();
    else gmDeepen_elsewhere(0, 0, 0, 0, 0, 0);
    deep.from = from, deep.span = span, deep.done = 1;
    pthread_sigmask(SIG_SETMASK, &mask, 0);
  }
  return in_room(deep.from, deep.span) ? &pools : &pools_elsewhere;
}

// gm is the pools' functions.
#define gm (*(LIKELY(in_room(deep.from, deep.span)) ? &pools : deepen()))

// gpus is what is known of each GPU, by its number.
static struct gpu {
  struct gm_device d;
  volatile int state; // 0: not open yet, 1: open, -1: it has no account, so there is no memory
  int unserved;       // no pool could be made: the driver serves, and it is counted
  int retained;       // how often the program has retained the primary context; guarded by primaries
  ptr primary;        // the context that the program has retained, while it is there
  int ending;         // the primary context is about to end: no pool begins; guarded by opening
  ptr pool;           // the driver's default pool; 0 until it is known
  ptr other;          // the program's current pool, if that is one that the driver serves
  dev_t dev;          // the lease's file: its descriptor may be closed by the program, and
  ino_t ino;          // another file may have the number
} gpus[MAX_GPUS];
static volatile int opened; // GPUs with numbers below have been opened

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER; // of own_pools and counted_pools

// primaries are held, by GPU, while its primary context is made or ended. They come before
// opening.
static pthread_mutex_t primaries[MAX_GPUS] = {[0 ... MAX_GPUS - 1] = PTHREAD_MUTEX_INITIALIZER};

static int tried; // to load the pools; guarded by opening
static int fit_noted; // a line of fit_note; guarded by opening
static int wrong; // a setting is: there is no memory

// is_gpu reports whether d is a number that a GPU may have.
static int is_gpu(int d) { return d >= 0 && d < MAX_GPUS; }

static void say(const char *what, const char *why) {
  char line[2048];
  int n = snprintf(line, sizeof line, "gpumem: %s%s%s\n", what, *why ? ": " : "", why);
  if (n > 0) write_line(line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

// forked runs in a child. Where its parent had pools it has none: it closes the lease's
// file, whose lock is the parent's.
static void forked(void) {
  pthread_mutex_init(&opening, 0); // its owner is not here
  pthread_mutex_init(&own, 0);
  for (int d = 0; d < MAX_GPUS; d++) pthread_mutex_init(&primaries[d], 0);
  gm_gate_forked();
  if (!tried) return;
  child = 1;
  for (int d = 0; d < opened; d++) {
    struct stat st;
    int fd = (int)gpus[d].d.ledger;
    if (fd && !fstat(fd, &st) && st.st_dev == gpus[d].dev && st.st_ino == gpus[d].ino) close(fd);
  }
}

// fit_note adds a line to the file whole.PID of this process in a run of gpumem fit, which is there
// while nothing of the recording is lost: libgpumem.so removes it where writing fails. The lines have
// the time in nanoseconds since 1970:
//
//	gpu NUMBER UUID TIME    the process uses this GPU from then on
//	refused TIME            the driver had no memory for a context
//	end TIME                its end, if it ends by exit
//	gone TIME               by others: it has ended, however it did
static void fit_note(const char *what, int create) {
  char path[4096], line[128];
  struct timespec now;
  const char *whole = getenv("GPUMEM_RECORD_WHOLE");
  if (!whole || !*whole || snprintf(path, sizeof path, "%s.%d", whole, (int)getpid()) >= (int)sizeof path) return;
  int f = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | (create ? O_CREAT : 0), 0666);
  if (f < 0) return;
  clock_gettime(CLOCK_REALTIME, &now);
  int n = snprintf(line, sizeof line, "%s %lld%09ld\n", what, (long long)now.tv_sec, now.tv_nsec);
  if (write_quietly(f, line, (size_t)n) != n) unlink(path);
  close(f);
}

static void at_exit(void) {
  if (!pools.gmExit || child) return;
  fit_note("end", 0);
  gm.gmExit();
}

static const char *setting(const char *name) {
  const char *v = getenv(name);
  return v ? v : "";
}

// number reads a number; what is none leaves no memory to serve.
static u64 number(const char *name, const char *what) {
  const char *v = setting(name), *p = v;
  char *end;
  if (!*v) return 0;
  while (*p >= '0' && *p <= '9') p++;
  u64 n = strtoull(v, &end, 10);
  if (*p || p - v > 19) say("no GPU memory is served", what), wrong = 1;
  return n;
}

static u64 bytes(const char *name) {
  return number(name, "GPUMEM_LIMIT, GPUMEM_OUTSIDE, GPUMEM_CONTEXT and GPUMEM_BEYOND are numbers of bytes");
}

static u64 nanoseconds(const char *name) {
  if (!strcmp(setting(name), "auto")) return GM_TURN_AUTO;
  return number(name, "GPUMEM_LEND and GPUMEM_TURNS are numbers of nanoseconds; gpumem run sets them");
}

static int same_file(const char *a, const char *b) {
  struct stat x, y;
  return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// chosen reports whether a setting is other than empty and no.
static int chosen(const char *name) {
  const char *v = setting(name);
  return *v && strcmp(v, "0") && strcmp(v, "no") && strcmp(v, "false");
}

static int no_memory(void) { return CU_OUT_OF_MEMORY; }

// takes reports whether a function that is not served takes memory by itself, or makes a
// context, which does. Without the lease of a container there is none.
static int takes(const char *name) {
  static const char *const t[] = {
    "cuCtxCreate", "cuGreenCtxCreate", "cuCtxFromGreenCtx", "cuGLCtxCreate", "cuVDPAUCtxCreate", "cuGraphAddMemAllocNode",
    "cuMemAlloc", "cuMemAllocPitch", "cuArrayCreate", "cuArray3DCreate",
  };
  for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
    size_t n = strlen(t[i]);
    if (!strncmp(name, t[i], n) && (!name[n] || (name[n] == '_' && name[n + 1] == 'v'))) return 1;
  }
  return 0;
}

static int ours(const char *path) {
  Dl_info here;
  return dladdr((void *)no_driver, &here) && here.dli_fname && same_file(here.dli_fname, path);
}

// PASSING is a call of the driver's that passes the gate, if there is one.
#define PASSING(call) \
  ({ \
    struct gm_passing *passing_ = gm_gate_on ? gm_enter_gate() : 0; \
    int passed_ = call; \
    if (passing_) gm_leave_gate(passing_); \
    passed_; \
  })

// slot_of is a function of the driver's behind the gate.
static void *slot_of(void *function) {
  static volatile int said;
  void *slot = gm_slot_of(function);
  if (slot == function && !__sync_lock_test_and_set(&said, 1))
    say("this process keeps its memory and takes no turns any more", "it has asked cuGetProcAddress for more functions than the gate has slots");
  return slot;
}

// The program's streams are noted where there is a gate.
static int noted(int code, ptr *s, ptr green) {
  if (!code) gm_stream_made((u64)*s, (u64)green);
  return code;
}

static int note_stream(ptr *s, unsigned flags) { return noted(r.cuStreamCreate(s, flags), s, 0); }
static int note_prior_stream(ptr *s, unsigned flags, int priority) { return noted(r.cuStreamCreateWithPriority(s, flags, priority), s, 0); }
static int note_green_stream(ptr *s, ptr green, unsigned flags, int priority) {
  return noted(r.cuGreenCtxStreamCreate(s, green, flags, priority), s, green);
}

// current_context is the context whose end is the end of what a call takes.
static u64 current_context(void) {
  ptr c = 0;
  return r.cuCtxGetCurrent(&c) ? 0 : (u64)c;
}

// So is memory that other processes use, too. What is passed on by the system lives as long as
// anybody has a handle for it, so that this is for good.

// tied notes a tie if a call went well: of the address that it has written, or for good, if that is 0.
static int tied(int code, int kind, const u64 *at) {
  if (!code && gm_gate_on) gm_tie(kind, at ? *at : 0, current_context());
  return code;
}

// UNTIED is a call of the driver's that ends most ties of a key at most. Once it has returned the key
// may be another's.
#define UNTIED(call, key, most) \
  do { \
    if (!gm_gate_on) return call; \
    int kinds_ = gm_untie((u64)(key), most), code_ = call; \
    return code_ && kinds_ ? gm_tie(kinds_, (u64)(key), current_context()), code_ : code_; \
  } while (0)

static int note_open(u64 *at, struct ipc_handle h, unsigned flags) { return tied(r.cuIpcOpenMemHandle_v2(at, h, flags), GM_SHARED, at); }
static int note_old_open(u64 *at, struct ipc_handle h, unsigned flags) { return tied(r.cuIpcOpenMemHandle(at, h, flags), GM_SHARED, at); }
static int note_close(u64 at) { UNTIED(r.cuIpcCloseMemHandle(at), at, 1); }
static int note_export(void *to, u64 h, int type, u64 flags) { return tied(r.cuMemExportToShareableHandle(to, h, type, flags), GM_SHARED, 0); }
static int note_import(u64 *h, void *from, int type) { return tied(r.cuMemImportFromShareableHandle(h, from, type), GM_SHARED, 0); }
static int note_pool_export(void *to, ptr pool, int type, u64 flags) {
  return tied(r.cuMemPoolExportToShareableHandle(to, pool, type, flags), GM_SHARED, 0);
}
static int note_pool_import(ptr *pool, void *from, int type, u64 flags) {
  return tied(r.cuMemPoolImportFromShareableHandle(pool, from, type, flags), GM_SHARED, 0);
}

// before_driver is what the program gets for a function of the driver's that is not served, where
// there is a gate: passes reports whether calls are to pass it.
static void *before_driver(const char *name, void *function, int passes) {
  static const struct { const char *name; void *function; } notes[] = {
    {"cuStreamCreate", note_stream}, {"cuStreamCreateWithPriority", note_prior_stream}, {"cuGreenCtxStreamCreate", note_green_stream},
    {"cuIpcOpenMemHandle_v2", note_open}, {"cuIpcOpenMemHandle", note_old_open}, {"cuIpcCloseMemHandle", note_close},
    {"cuMemExportToShareableHandle", note_export}, {"cuMemImportFromShareableHandle", note_import},
    {"cuMemPoolExportToShareableHandle", note_pool_export}, {"cuMemPoolImportFromShareableHandle", note_pool_import},
  };
  for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
    if (!strcmp(name, notes[i].name)) return notes[i].function;
  return passes ? slot_of(function) : function;
}

// make_gate makes the gate of a process that is to lend its memory or to take turns. What it gives
// out is decided here, so that settings which the program itself makes later do not count.
static void make_gate(void) {
  int wanted = *setting("GPUMEM_LEND") || *setting("GPUMEM_TURNS");
  const char *lacks = wanted && driver && !off && !mark->state ? gm_make_gate(driver) : 0;
  if (lacks) say("this process keeps its memory and takes no turns", lacks);
}

__attribute__((constructor)) static void load(void) {
  mark = gm_mark_of("libnvidia-ml.so.1");
  const char *path = setting("GPUMEM_LIBCUDA");
  if (mark->state && !*path && !(path = gm_find("libcuda.so.1", ours))) path = "";
  snprintf(driver_path, sizeof driver_path, "%s", path);
  off = !mark->state && chosen("GPUMEM_OFF");
  if (!*path && mark->state)
    say("no driver", "libcuda.so.1 of the driver is not in the usual folders; name it by GPUMEM_LIBCUDA");
  else if (!*path)
    say("no driver", "GPUMEM_LIBCUDA does not name the driver's libcuda.so.1; gpumem run sets it");
  else if (!strchr(path, '/') || ours(path))
    say("no driver", "GPUMEM_LIBCUDA is to be the driver's libcuda.so.1 with its folder, not this library");
  else {
    sigset_t all, mask;
    sigfillset(&all); // threads that a driver starts are no place for the program's handlers
    pthread_sigmask(SIG_BLOCK, &all, &mask);
    if (!(driver = dlopen(path, RTLD_NOW | RTLD_LOCAL))) say("no driver", dlerror());
    pthread_sigmask(SIG_SETMASK, &mask, 0);
  }
  void *none = driver ? (void *)no_function : (void *)no_driver;
  make_gate();
  int i = 0;
  for (const char *name = gm_names; *name; name += strlen(name) + 1, i++) {
    void *p = driver ? dlsym(driver, name) : 0;
    if (p && gm_gate_on) p = before_driver(name, p, gm_submits[i]);
    gm_table[i] = p ? p : none;
    if (mark->state == GM_REFUSED && takes(name)) gm_table[i] = (void *)no_memory;
  }
#define F(name, args) \
  *(void **)&r.name = driver ? dlsym(driver, #name) : 0; \
  if (!r.name) *(void **)&r.name = none;
  DRIVER(F)
#undef F
  pthread_atfork(0, 0, forked);
}

// note_python adds to the name of GPUMEM_FIT a file that shows a Python without gpumem fit's
// start-up file: with -I, -E or -S, or another PYTHONPATH.
static void note_python(void) {
  char path[4096];
  int f;
  if (!*setting("GPUMEM_FIT") || !dlsym(RTLD_DEFAULT, "Py_IsInitialized") || atoi(setting("GPUMEM_FIT_STARTED")) == getpid()) return;
  if (snprintf(path, sizeof path, "%s.python", setting("GPUMEM_FIT")) >= (int)sizeof path) return;
  if ((f = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) >= 0) close(f);
}

// load_pools loads libgpumem.so from the folder of this library. What Go's runtime does
// to the process is undone: its handlers but those of faults in Go, which pass on all
// others; and its threads have all signals blocked, so that the program's own get them.
static int load_pools(void) {
  static int result = CU_UNKNOWN;
  if (tried) return result;
  tried = 1;
  note_python();
  Dl_info here;
  char path[4096];
  if (!dladdr((void *)load_pools, &here) || !here.dli_fname) {
    say("the pools are not loaded", "the library's own file is not known");
    return result;
  }
  const char *slash = strrchr(here.dli_fname, '/');
  int n = slash ? (int)(slash - here.dli_fname) + 1 : 0;
  if (snprintf(path, sizeof path, "%.*slibgpumem.so", n, here.dli_fname) >= (int)sizeof path) return result;
  struct sigaction before[65];
  sigset_t all, mask;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &mask);
  const char *lacks = go_lacks();
  if (lacks) {
    pthread_sigmask(SIG_SETMASK, &mask, 0);
    say("the pools are not loaded, and there is no GPU memory without them", lacks);
    return result;
  }
  int running[1024], n_running = threads_now(running, 1024);
  for (int s = 1; s < 65; s++) sigaction(s, 0, &before[s]);
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!lib) {
    say("the pools are not loaded", dlerror());
  } else {
    int missing = 0;
#define F(type, name, args) \
    missing |= !(*(void **)&pools.name = dlsym(lib, #name)); \
    *(void **)&pools_elsewhere.name = (void *)name##_elsewhere;
    GM_FUNCTIONS(F)
#undef F
    u64 outside = mark->has_outside ? mark->outside : bytes("GPUMEM_OUTSIDE");
    settings = (struct gm_settings){
      .libcuda = driver_path, .policy = setting("GPUMEM_POLICY"), .record = setting("GPUMEM_RECORD"),
      .whole = setting("GPUMEM_RECORD_WHOLE"),
      .ledgers = mark->state ? mark->ledgers : setting("GPUMEM_LEDGER"),
      .parts = mark->state ? mark->parts : setting("GPUMEM_LEDGER_PARTS"),
      .limit = mark->state ? 0 : bytes("GPUMEM_LIMIT"), .outside = outside,
      .more = *setting("GPUMEM_CONTEXT") && !mark->state ? bytes("GPUMEM_CONTEXT") : outside,
      .beyond = bytes("GPUMEM_BEYOND"),
      .ordered = !strcmp(setting("GPUMEM_FREES"), "stream"), .report = strcmp(setting("GPUMEM_REPORT"), "0") != 0,
      .gate = gm_gate_for_pools(), .lend = nanoseconds("GPUMEM_LEND"), .turn = nanoseconds("GPUMEM_TURNS"),
      .pinned = chosen("GPUMEM_LEND_PINNED"), .libnvml = setting("GPUMEM_LIBNVML"),
    };
    if (missing) say("the pools are not loaded", "libgpumem.so is of another release than libcuda.so.1 beside it");
    else result = gm.gmInit(&settings); // waits until Go's runtime has begun
    quiet_threads(running, n_running);
  }
  for (int s = 1; s < 65; s++)
    if (s != SIGSEGV && s != SIGBUS && s != SIGFPE) sigaction(s, &before[s], 0);
  pthread_sigmask(SIG_SETMASK, &mask, 0);
  if (!result) atexit(at_exit);
  return result;
}

// uuid_of writes the UUID of GPU d in hexadecimal; all zeros where it has none.
static void uuid_of(int d, char text[40]) {
  unsigned char u[16];
  if (r.cuDeviceGetUuid_v2(u, d) && r.cuDeviceGetUuid(u, d)) memset(u, 0, sizeof u);
  for (int i = 0; i < 16; i++) snprintf(text + 2 * i, 3, "%02x", u[i]);
}

// block_of returns the unit in which the driver takes memory of GPU d; 0 where it does not
// say. The prop is CUmemAllocationProp: pinned memory of the device.
static size_t block_of(int d) {
  int prop[8] = {PINNED, 0, LOCATION_DEVICE, d};
  size_t n = 0;
  return r.cuMemGetAllocationGranularity(&n, prop, 1) ? 0 : n; // 1: recommended
}

// open_here opens GPU d, once. The state reports whether that went well. there: a context is
// there that was not seen when it was made, and counts whether the lease has room or not.
static void open_here(int d, int there) {
  pthread_mutex_lock(&opening);
  if (!gpus[d].state) {
    char uuid[40];
    int code = load_pools();
    uuid_of(d, uuid);
    gpus[d].d.block = block_of(d);
    if (!code) code = gm.gmOpen(d, uuid, there, &gpus[d].d); // says why not
    if (!code) {
      char what[80];
      snprintf(what, sizeof what, "gpu %d %s", d, uuid);
      fit_note(what, !fit_noted), fit_noted = 1;
    }
    // A lease that is full may have room later.
    gpus[d].state = code == CU_OUT_OF_MEMORY ? 0 : code ? -1 : 1;
    struct stat st;
    if (!code && gpus[d].d.ledger && !fstat((int)gpus[d].d.ledger, &st)) gpus[d].dev = st.st_dev, gpus[d].ino = st.st_ino;
    if (!code && d >= opened) opened = d + 1;
  }
  pthread_mutex_unlock(&opening);
}

static word open_elsewhere(word d, word there, word a2, word a3, word a4, word a5) { return open_here((int)d, (int)there), 0; }

// open_gpu is open_here where there is room for it: it may load the pools. A thread that is
// cancelled meanwhile ends behind it, without the lock.
static void open_gpu(int d, int there) {
  uintptr_t span, from = room(&span);
  int cancel;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
  if (in_room(from, span)) open_here(d, there);
  else elsewhere(open_elsewhere, (word)d, (word)there, 0, 0, 0, 0);
  pthread_setcancelstate(cancel, 0);
}

// refused returns the answer to every request for memory, or 0 if there may be some: a
// container without its lease has none, and its forked children have what the driver says.
static int refused(void) {
  return mark->state == GM_REFUSED ? CU_OUT_OF_MEMORY : mark->state && child ? CU_NOT_INITIALIZED : 0;
}

// bypassed reports whether all calls are the driver's.
static int bypassed(void) { return off || child; }

// counting returns the GPU of the current context if what the program takes from the
// driver there is counted; else -1. A GPU that should be and cannot be opened answers
// *code: there is no memory without the lease.
static int counting(int *code) {
  int d;
  *code = refused();
  if (*code || bypassed() || r.cuCtxGetDevice(&d) || d < 0) return -1;
  if (!is_gpu(d)) return *code = mark->state ? CU_OUT_OF_MEMORY : 0, -1;
  if (!gpus[d].state) open_gpu(d, 1);
  if (gpus[d].state == 1 && !wrong) return d;
  *code = CU_OUT_OF_MEMORY;
  return -1;
}

// serving returns the GPU of the current context if that is the primary one, whose
// memory the pool serves; else -1. The memory of other contexts is the driver's, and
// counted.
static int serving(int *code) {
  ptr current = 0;
  *code = 0;
  if (off || child) return -1;
  if (r.cuCtxGetCurrent(&current) || !current) return -1;
  for (int d = 0; d < opened; d++)
    if (LIKELY(gpus[d].d.context == (u64)current)) return d;
  int d = counting(code);
  if (d < 0) return -1;
  if (!gpus[d].d.context && !gpus[d].unserved) {
    unsigned flags;
    int active = 0;
    if (r.cuDevicePrimaryCtxGetState(d, &flags, &active) || !active) return -1;
    pthread_mutex_lock(&opening);
    // Another thread may have ended the context meanwhile, which the pool would make again.
    int there = !gpus[d].ending && !r.cuDevicePrimaryCtxGetState(d, &flags, &active) && active;
    if (there && !gpus[d].d.context) *code = gm.gmServe(d);
    if (*code == NOT_MINE) *code = 0, gpus[d].unserved = 1; // it says why
    pthread_mutex_unlock(&opening);
    if (*code) return -1;
  }
  return gpus[d].d.context == (u64)current ? d : -1;
}

// owner returns the first GPU from d on whose pool the address may be of; else -1. Between the
// lowest and the highest address of a pool are others' too: its functions answer NOT_MINE to them.
static int owner(u64 at, int d) {
  if (child) return -1;
  for (; d < opened; d++) {
    u64 from = __atomic_load_n(&gpus[d].d.from, __ATOMIC_ACQUIRE);
    if (at - from < __atomic_load_n(&gpus[d].d.to, __ATOMIC_ACQUIRE) - from) return d;
  }
  return -1;
}

// block_at finds the block in which an address lies, and returns CU_NOT_FOUND for one of a
// pool's in no block, and NOT_MINE for one that is in no pool.
static int block_at(u64 at, int *gpu, u64 *base, u64 *n) {
  int code = NOT_MINE;
  for (int d = owner(at, 0); d >= 0 && code == NOT_MINE; d = owner(at, d + 1)) *gpu = d, code = gm.gmRange(d, at, base, n);
  return code;
}

// in_pool reports whether an address is one of a pool's.
static int in_pool(u64 at) {
  int d;
  u64 base, n;
  return block_at(at, &d, &base, &n) != NOT_MINE;
}

// UNCOUNTED is the answer to a call that the driver serves and that counts nothing by itself: for
// a pool of host memory, or into a graph that is being captured, whose memory counts from its
// launch on, see graphs_changed.
enum { UNCOUNTED = -2 };

// gpu_count returns how many GPUs the program sees.
static int gpu_count(void) {
  static int n;
  if (!n && r.cuDeviceGetCount(&n)) n = 0;
  return n;
}

// is_there reports whether the driver has a GPU with this number. Before cuInit it has none.
static int is_there(int d) { return is_gpu(d) && d < gpu_count(); }

// CHARGED is a call of the driver's that takes n bytes of key for the program.
#define CHARGED(n, call, kind, key) \
  do { \
    int code_, d_ = counting(&code_); \
    if (code_) return code_; \
    if (d_ < 0) return call; \
    end_pools(d_, n); \
    if ((code_ = gm.gmTake(d_, n))) return code_; \
    code_ = call; \
    if (code_) gm.gmFailed(d_, n); \
    else gm.gmDone(d_, kind, (u64)(key), n, current_context()); \
    return code_; \
  } while (0)

// releasing is called before a call of the driver's that may release memory whose bytes are
// known after it, and released, with the answer, when they are counted: a request that is
// refused meanwhile is tried again.
static u64 releasing(void) {
  u64 gpus_ = 0;
  for (int d = 0; !child && d < opened; d++)
    if (gpus[d].d.counts) gpus_ |= (u64)1 << d, gm.gmReleasing(d, 1);
  return gpus_;
}

static void released(u64 gpus_) {
  for (int d = 0; !child && gpus_; d++, gpus_ >>= 1)
    if (gpus_ & 1) gm.gmReleasing(d, 0);
}

// RELEASED is a call of the driver's that releases what a key names, on whatever GPU it
// was charged.
#define RELEASED(call, kind, key) \
  do { \
    u64 token_ = 0, pools_ = 0; \
    int d_ = 0; \
    for (; !child && d_ < opened; d_++) \
      if (gpus[d_].d.counts && (token_ = gm.gmRemove(d_, kind, (u64)(key)))) break; \
    if (!token_) pools_ = releasing(); \
    int code_ = call; \
    if (token_) gm.gmRemoved(d_, token_, code_); \
    else pools_changed(), released(pools_); \
    return code_; \
  } while (0)

// counted_pools are those pools of the driver that have memory of the program's, with their
// GPU. What such a pool has reserved is asked for after each call that can change it.
//
// A pool that the program ends while blocks of it are live, or the GPU is at work with what was
// freed in them, would release that by itself some time later, and not say when. So the driver
// ends it when it has no memory any more. Guarded by own.
static struct counted {
  ptr pool;
  int gpu;
  int ended; // by the program
} *counted_pools;
static volatile int n_counted, n_ended;

#define UNKNOWN (~(u64)0) // in the place of bytes

enum { POOL_RESERVED_CURRENT = 5, POOL_USED_CURRENT = 7, POOL_USED_HIGH = 8 };

// count_reserved counts what a pool of GPU d has reserved, of which counted bytes are counted
// already, and writes how much that is. What the driver does not say stays as it is. The caller
// holds own, so that the pool does not end meanwhile, and no other one gets its handle.
static int count_reserved(int d, ptr pool, u64 counted, u64 *reserved) {
  int code = r.cuMemPoolGetAttribute(pool, POOL_RESERVED_CURRENT, reserved), gone = code == CU_INVALID_VALUE || code == CU_INVALID_HANDLE;
  if (code) *reserved = gone ? 0 : UNKNOWN;
  return gm.gmReservedPooled(d, (u64)pool, *reserved, counted);
}

// add_pool adds a pool; where there is no memory for that its bytes are counted as it grows, and
// no less until the end. The caller holds own.
static void add_pool(int d, ptr pool) {
  static int room;
  int i = 0;
  while (i < n_counted && (counted_pools[i].pool != pool || counted_pools[i].gpu != d)) i++;
  if (i < n_counted) return;
  if (n_counted == room) {
    int more = room ? 2 * room : 64;
    void *list = realloc(counted_pools, (size_t)more * sizeof *counted_pools);
    if (!list) return;
    counted_pools = list, room = more;
  }
  counted_pools[i] = (struct counted){pool, d, 0}, n_counted = i + 1;
}

static void remove_pool(int i) {
  n_ended -= counted_pools[i].ended;
  counted_pools[i] = counted_pools[n_counted - 1], n_counted--;
}

static int pool_changed(int d, ptr pool, u64 counted) {
  u64 reserved = 0;
  pthread_mutex_lock(&own);
  add_pool(d, pool);
  int code = count_reserved(d, pool, counted, &reserved);
  pthread_mutex_unlock(&own);
  return code;
}

// graphs_take is whether a graph of the program may take memory. The driver reserves it when
// the graph is first launched, says then how much that is, and keeps it until it is trimmed.
static volatile int graphs_take;

enum { GRAPH_RESERVED_CURRENT = 2 };

#define GRAPHS (~(u64)0) // in the place of a pool

// graphs_changed counts what the graphs of GPU d have reserved now. It cannot be refused.
static void graphs_changed(int d) {
  static volatile int said;
  u64 reserved = 0;
  pthread_mutex_lock(&own);
  int code = r.cuDeviceGetGraphMemAttribute(d, GRAPH_RESERVED_CURRENT, &reserved); // what it does not say stays
  if (!code && gm.gmReservedPooled(d, GRAPHS, reserved, 0) && !__sync_lock_test_and_set(&said, 1))
    say("a graph took memory beyond the lease when it was launched, which the driver does not let anyone refuse", "take a larger --mem");
  pthread_mutex_unlock(&own);
}

// end_pool has the driver end a pool that has no memory on GPU d, if it has none on another. The
// caller holds own.
static void end_pool(ptr pool) {
  for (int i = 0; i < n_counted; i++)
    if (counted_pools[i].pool == pool) return;
  r.cuMemPoolDestroy(pool);
}

// pools_changed counts what all of them have reserved now, and has those end that can.
static void pools_changed(void) {
  for (int d = 0; !child && graphs_take && d < opened; d++)
    if (gpus[d].d.counts) graphs_changed(d);
  if (child || !n_counted) return;
  pthread_mutex_lock(&own);
  for (int i = n_counted - 1; i >= 0; i--) {
    struct counted c = counted_pools[i];
    u64 reserved = 0;
    if (c.ended) r.cuMemPoolTrimTo(c.pool, 0);
    count_reserved(c.gpu, c.pool, 0, &reserved);
    if (reserved) continue;
    remove_pool(i);
    if (c.ended) end_pool(c.pool);
  }
  pthread_mutex_unlock(&own);
}

enum { CAPTURE_RELAXED = 2 };

// end_pools has those pools end that can, if that may make room in the lease for n bytes on GPU
// d. It is called in the middle of a capture, too, which it must not spoil.
static void end_pools(int d, size_t n) {
  u64 limit, left;
  int mode = CAPTURE_RELAXED;
  if (LIKELY(!n_ended)) return;
  gm.gmLeft(d, &limit, &left);
  if (left / 4 > n) return; // a pool may take more than what is asked for
  r.cuThreadExchangeStreamCaptureMode(&mode);
  pools_changed();
  r.cuThreadExchangeStreamCaptureMode(&mode);
}

static size_t pool_limit(ptr pool);

static int pool_figures(ptr pool, u64 *reserved, u64 *used) {
  int code = r.cuMemPoolGetAttribute(pool, POOL_RESERVED_CURRENT, reserved);
  return code ? code : r.cuMemPoolGetAttribute(pool, POOL_USED_CURRENT, used);
}

// POOLED is a call of the driver's that takes n bytes from a pool of the driver in a stream,
// or from the current one for 0. Where the pool has grown by more than the lease has room for,
// the block is freed and the request refused, unless other threads release memory.
#define POOLED(n, call, from, s, at) \
  for (int tries_ = 100;; tries_--) { \
    int code_, d_ = counting(&code_); \
    ptr pool_ = from; \
    u64 reserved_ = 0, used_ = 0, counted_ = 0, seen_ = 0; \
    if (code_) return code_; \
    if (d_ >= 0) seen_ = gm.gmReleases(d_); \
    if (d_ < 0 || (!pool_ && r.cuDeviceGetMemPool(&pool_, d_))) return call; \
    end_pools(d_, n); \
    if (pool_figures(pool_, &reserved_, &used_)) return call; \
    if ((code_ = gm.gmTakePooled(d_, n, reserved_, used_, pool_limit(pool_), &counted_))) return code_; \
    code_ = call; \
    int full_ = pool_changed(d_, pool_, counted_); \
    if (code_ || !full_) return code_; \
    gm.gmReleasing(d_, 1); \
    r.cuMemFreeAsync(*at, s); \
    r.cuStreamSynchronize(s); \
    r.cuMemPoolTrimTo(pool_, 0); \
    pool_changed(d_, pool_, 0); \
    gm.gmReleasing(d_, 0); \
    if (full_ != CU_OUT_OF_MEMORY || !tries_ || !gm.gmReleasedSince(d_, seen_ + 1)) return full_; \
  }

API cuMemAlloc_v2(u64 *at, size_t n) {
  int code, d = at && n ? serving(&code) : (code = 0, -1);
  if (LIKELY(d >= 0)) return end_pools(d, n), gm.gmAlloc(d, n, at);
  if (code) return code;
  CHARGED(n, r.cuMemAlloc_v2(at, n), GM_PLAIN, *at);
}

static int release_plain(u64 at) { RELEASED(r.cuMemFree_v2(at), GM_PLAIN, at); }

// It is apart from what a served block takes.
__attribute__((noinline)) static int plain_free(u64 at) { UNTIED(release_plain(at), at, ALL_TIES); }

API cuMemFree_v2(u64 at) {
  int code = NOT_MINE;
  for (int d = owner(at, 0); d >= 0 && code == NOT_MINE; d = owner(at, d + 1)) code = gm.gmFree(d, at);
  return code == NOT_MINE ? plain_free(at) : code;
}

// The handles of the driver's own streams. The legacy one is waited for by other
// streams and waits for them; a thread's own is another stream in each thread.
enum { LEGACY = 1, PER_THREAD = 2 };

// capturing returns 0 for a stream in which no graph is captured, and else the CUresult of
// freeing memory there that was not allocated in the graph. The driver does not say of the
// legacy stream while one that waits for it is captured.
static int capturing(ptr s) {
  int status = 0, code = r.cuStreamIsCapturing(s, &status);
  return code ? code : status ? CU_INVALID_VALUE : 0;
}

// The program's own pools of the driver. Those of plain memory of one GPU are served as its
// default pool is. A pool with a limit, or for other processes, or of host memory, is the
// driver's.
static struct own_pool {
  ptr pool;
  int device; // a GPU, NOT_MINE or UNCOUNTED
  size_t limit; // bytes; 0 for none
  struct own_pool *next;
} *own_pools;

struct pool_properties { // CUmemPoolProps
  int type, handles, location, id;
  void *security;
  size_t limit;
  unsigned short usage;
};

// pool_device returns the GPU whose memory a pool has, if that is served; NOT_MINE and
// UNCOUNTED leave it to the driver. A pool that is not known is another process's.
static int pool_device(int d, ptr pool) {
  if (!gpus[d].pool && r.cuDeviceGetDefaultMemPool(&gpus[d].pool, d)) return NOT_MINE;
  if (pool == gpus[d].pool) return d;
  int device = NOT_MINE;
  pthread_mutex_lock(&own);
  for (struct own_pool *p = own_pools; p; p = p->next)
    if (p->pool == pool) device = p->device;
  pthread_mutex_unlock(&own);
  return device;
}

// pool_limit returns the most bytes that a pool may have; 0 for no limit.
static size_t pool_limit(ptr pool) {
  size_t limit = 0;
  pthread_mutex_lock(&own);
  for (struct own_pool *p = own_pools; p; p = p->next)
    if (p->pool == pool) limit = p->limit;
  pthread_mutex_unlock(&own);
  return limit;
}

// forget_pool removes a pool. The caller holds own.
static void forget_pool(ptr pool) {
  struct own_pool **p = &own_pools, *found;
  while (*p && (*p)->pool != pool) p = &(*p)->next;
  if ((found = *p)) *p = found->next;
  free(found);
}

static void know_pool(struct own_pool *p) {
  pthread_mutex_lock(&own);
  p->next = own_pools;
  own_pools = p;
  pthread_mutex_unlock(&own);
}

// servable reports whether a pool has plain memory of one GPU, for this process, without a limit.
static int servable(const struct pool_properties *p) {
  int plain = p->location == LOCATION_DEVICE && p->type == PINNED;
  return plain && !p->handles && !p->limit && !p->usage;
}

API cuMemPoolCreate(ptr *pool, const void *properties) {
  const struct pool_properties *p = properties;
  int code = r.cuMemPoolCreate(pool, properties);
  struct own_pool *o = code ? 0 : malloc(sizeof *o);
  if (!o) return code; // unknown: the driver serves it
  *o = (struct own_pool){*pool, p->location == LOCATION_DEVICE ? NOT_MINE : UNCOUNTED, p->limit, 0};
  if (servable(p)) o->device = p->id;
  know_pool(o);
  return code;
}

// is_default reports whether a pool is the default one of its GPU, which does not end.
static int is_default(ptr pool) {
  for (int d = 0; d < gpu_count() && d < MAX_GPUS; d++) {
    ptr p = 0;
    if (!r.cuDeviceGetDefaultMemPool(&p, d) && p == pool) return 1;
  }
  return 0;
}

// leave_pool makes the default pool the current one where this one is.
static void leave_pool(ptr pool) {
  for (int d = 0; d < gpu_count() && d < MAX_GPUS; d++) {
    ptr now = 0, usual = 0;
    if (!r.cuDeviceGetMemPool(&now, d) && now == pool && !r.cuDeviceGetDefaultMemPool(&usual, d)) r.cuDeviceSetMemPool(d, usual);
  }
}

// ends_later notes the end of a pool that still has memory, and reports whether it has. The
// caller holds own.
static int ends_later(ptr pool) {
  int later = 0;
  if (child || !n_counted || is_default(pool)) return 0;
  for (int i = n_counted - 1; i >= 0; i--) {
    struct counted *c = &counted_pools[i];
    u64 reserved = 0;
    if (c->pool != pool) continue;
    if (!later) r.cuMemPoolTrimTo(pool, 0);
    count_reserved(c->gpu, pool, 0, &reserved);
    if (reserved) c->ended = 1, n_ended++, later = 1;
    else remove_pool(i);
  }
  if (later) leave_pool(pool);
  return later;
}

// has_ended reports whether the program has ended a pool. The caller holds own.
static int has_ended(ptr pool) {
  for (int i = 0; n_ended && i < n_counted; i++)
    if (counted_pools[i].pool == pool && counted_pools[i].ended) return 1;
  return 0;
}

API cuMemPoolDestroy(ptr pool) {
  u64 all = releasing();
  pthread_mutex_lock(&own); // until it is forgotten no other pool gets the handle
  int code = has_ended(pool) ? CU_INVALID_VALUE : 0;
  if (!code && !ends_later(pool)) code = r.cuMemPoolDestroy(pool);
  if (!code) forget_pool(pool);
  pthread_mutex_unlock(&own);
  released(all);
  for (int d = 0; !code && d < MAX_GPUS; d++)
    if (gpus[d].other == pool) gpus[d].other = 0; // the default pool is the current one again
  return code;
}

static int current_pool(int code, int d, ptr pool) {
  if (!code && is_gpu(d)) gpus[d].other = pool_device(d, pool) == d ? 0 : pool;
  return code;
}

API cuDeviceSetMemPool(int d, ptr pool) { return current_pool(r.cuDeviceSetMemPool(d, pool), d, pool); }

API cuMemSetMemPool(const int *location, int type, ptr pool) {
  int code = r.cuMemSetMemPool(location, type, pool);
  return !code && location[0] == LOCATION_DEVICE && type == PINNED ? current_pool(code, location[1], pool) : code;
}

// alloc_async serves a request in a stream from a pool, 0 for the current one; NOT_MINE and
// UNCOUNTED leave it to the driver.
static int alloc_async(u64 *at, size_t n, ptr pool, ptr s) {
  int code, d = at && n ? serving(&code) : (code = 0, -1);
  if (d < 0) return code ? code : NOT_MINE;
  if (!pool && gpus[d].other) return NOT_MINE;
  if (pool && (code = pool_device(d, pool)) != d) return code == UNCOUNTED ? code : NOT_MINE;
  if (!s) s = (ptr)LEGACY;
  if (capturing(s)) return graphs_take = 1, UNCOUNTED;
  end_pools(d, n);
  if (s == (ptr)PER_THREAD) return gm.gmAlloc(d, n, at); // out of use everywhere
  return gm.gmAllocAsync(d, n, (u64)s, at);
}

// enter makes the context of a stream current, if it may be another than the thread's, or
// the thread has none: the memory is that of the stream's GPU. It reports whether it did.
static int enter(ptr s) {
  ptr of = 0, now = 0;
  if (off || child || (u64)s <= PER_THREAD) return 0;
  if (!r.cuCtxGetCurrent(&now) && now && gpu_count() == 1) return 0;
  return !r.cuStreamGetCtx(s, &of) && of && of != now && !r.cuCtxPushCurrent_v2(of);
}

static int leave(int entered, int code) {
  ptr c;
  if (entered) r.cuCtxPopCurrent_v2(&c);
  return code;
}

// in_graph makes a request that the driver serves one that is not counted, if a graph is being
// captured in the stream: the driver takes the memory when that is launched.
static int in_graph(int code, ptr s) {
  int status = 0;
  if (code != NOT_MINE || bypassed()) return code;
  if (r.cuStreamIsCapturing(s, &status) || !status) return code;
  graphs_take = 1;
  return UNCOUNTED;
}

static int from_current(u64 *at, size_t n, ptr s, int (*call)(u64 *, size_t, ptr), ptr unnamed) {
  int code = in_graph(alloc_async(at, n, 0, s ? s : unnamed), s);
  if (code == UNCOUNTED) return call(at, n, s);
  if (code != NOT_MINE) return code;
  POOLED(n, call(at, n, s), 0, s, at);
}

static int from_pool(u64 *at, size_t n, ptr pool, ptr s, int (*call)(u64 *, size_t, ptr, ptr), ptr unnamed) {
  int code = pool ? in_graph(alloc_async(at, n, pool, s ? s : unnamed), s) : UNCOUNTED; // its error
  if (code == UNCOUNTED) return call(at, n, pool, s);
  if (code != NOT_MINE) return code;
  POOLED(n, call(at, n, pool, s), pool, s, at);
}

API cuMemAllocAsync(u64 *at, size_t n, ptr s) {
  int entered = enter(s);
  return leave(entered, from_current(at, n, s, r.cuMemAllocAsync, 0));
}

API cuMemAllocAsync_ptsz(u64 *at, size_t n, ptr s) {
  int entered = enter(s);
  return leave(entered, from_current(at, n, s, r.cuMemAllocAsync_ptsz, (ptr)PER_THREAD));
}

API cuMemAllocFromPoolAsync(u64 *at, size_t n, ptr pool, ptr s) {
  int entered = enter(s);
  return leave(entered, from_pool(at, n, pool, s, r.cuMemAllocFromPoolAsync, 0));
}

API cuMemAllocFromPoolAsync_ptsz(u64 *at, size_t n, ptr pool, ptr s) {
  int entered = enter(s);
  return leave(entered, from_pool(at, n, pool, s, r.cuMemAllocFromPoolAsync_ptsz, (ptr)PER_THREAD));
}

// free_async frees a served block in a stream; NOT_MINE leaves it to the driver. A block
// that was not allocated in a graph cannot be freed in one.
static int free_async(u64 at, ptr s) {
  int d = owner(at, 0), code;
  if (d < 0) return NOT_MINE;
  if (!s) s = (ptr)LEGACY;
  if ((code = capturing(s))) return in_pool(at) ? code : NOT_MINE;
  for (code = NOT_MINE; d >= 0 && code == NOT_MINE; d = owner(at, d + 1))
    code = s == (ptr)PER_THREAD ? gm.gmFree(d, at) : gm.gmFreeAsync(d, at, (u64)s);
  return code;
}

API cuMemFreeAsync(u64 at, ptr s) {
  int code = free_async(at, s);
  if (code != NOT_MINE) return code;
  RELEASED(r.cuMemFreeAsync(at, s), GM_PLAIN, at);
}

API cuMemFreeAsync_ptsz(u64 at, ptr s) {
  int code = free_async(at, s ? s : (ptr)PER_THREAD);
  if (code != NOT_MINE) return code;
  RELEASED(r.cuMemFreeAsync_ptsz(at, s), GM_PLAIN, at);
}

// lease is the limit on GPU d, and what its processes leave of it; 0 where there is none.
static int lease(int d, u64 *limit, u64 *left) {
  if (!is_gpu(d)) return 0;
  char text[40];
  if (off) return 0;
  if (!child && gpus[d].d.counts) return gm.gmLeft(d, limit, left), *limit != ~(u64)0;
  uuid_of(d, text);
  return gm_lease(text, limit, left);
}

// The program's compiler may see less than the pool has: GPUMEM_DEVICE_TOTAL, in bytes, is
// that of gpumem fit.
API cuDeviceTotalMem_v2(size_t *n, int d) {
  u64 limit, left, seen = strtoull(setting("GPUMEM_DEVICE_TOTAL"), 0, 10);
  int code = r.cuDeviceTotalMem_v2(n, d);
  if (!code && n && lease(d, &limit, &left) && limit < *n) *n = limit;
  if (!code && n && seen) *n = seen;
  return code;
}

API cuMemGetInfo_v2(size_t *free_, size_t *total) {
  u64 f = 0, t = 0, limit, left;
  if (mark->state == GM_REFUSED) { // no context: the total is that of the first GPU
    size_t n;
    int code = r.cuDeviceTotalMem_v2(&n, 0);
    if (!code && free_) *free_ = 0;
    if (!code && total) *total = n;
    return code;
  }
  int code, none, d = serving(&code);
  pools_changed();
  if (code && code != CU_OUT_OF_MEMORY) return code;
  none = code; // a full lease has nothing free, and one that cannot be used
  if (d >= 0) {
    if ((code = gm.gmInfo(d, &f, &t))) return code;
  } else {
    size_t rf, rt;
    if ((code = r.cuMemGetInfo_v2(&rf, &rt))) return code;
    f = rf, t = rt;
    if (!r.cuCtxGetDevice(&d) && lease(d, &limit, &left)) {
      if (limit < t) t = limit;
      if (left < f) f = left;
    }
    if (none) f = 0;
  }
  if (free_) *free_ = f;
  if (total) *total = t;
  return 0;
}

API cuMemGetAddressRange_v2(u64 *base, size_t *n, u64 at) {
  u64 b, s;
  int d, code = block_at(at, &d, &b, &s);
  if (code == NOT_MINE) return r.cuMemGetAddressRange_v2(base, n, at);
  if (code) return code;
  if (base) *base = b;
  if (n) *n = s;
  return 0;
}

enum { ATTRIBUTE_CONTEXT = 1, ATTRIBUTE_RANGE_START = 11, ATTRIBUTE_RANGE_SIZE = 12 };

// attribute answers the attributes that the driver knows of its pages alone, not of the
// blocks in them; NOT_MINE leaves it to the driver.
static int attribute(void *v, int a, u64 at) {
  u64 b, s;
  int d;
  int of_block = a == ATTRIBUTE_CONTEXT || a == ATTRIBUTE_RANGE_START || a == ATTRIBUTE_RANGE_SIZE;
  if (!v || !of_block) return NOT_MINE;
  int code = block_at(at, &d, &b, &s);
  if (code) return code == CU_NOT_FOUND ? CU_INVALID_VALUE : code;
  *(u64 *)v = a == ATTRIBUTE_CONTEXT ? gpus[d].d.context : a == ATTRIBUTE_RANGE_START ? b : s;
  return 0;
}

API cuPointerGetAttribute(void *v, int a, u64 at) {
  int code = attribute(v, a, at);
  return code == NOT_MINE ? PASSING(r.cuPointerGetAttribute(v, a, at)) : code;
}

API cuPointerGetAttributes(unsigned n, int *a, void **v, u64 at) {
  int code = PASSING(r.cuPointerGetAttributes(n, a, v, at));
  if (!code && a && v)
    for (unsigned i = 0; i < n; i++) attribute(v[i], a[i], at);
  return code;
}

// no_export refuses what would give another process or device pages that hold blocks of
// others, too.
static int no_export(const char *call) {
  static volatile int said;
  if (!__sync_lock_test_and_set(&said, 1))
    say(call, "memory that the pool serves cannot be shared with other processes; run this program with gpumem run --pool off");
  return CU_NOT_SUPPORTED;
}

// In a run of gpumem fit the simulated driver passes pages, too: nothing is read or written there.
API cuIpcGetMemHandle(void *h, u64 at) {
  if (in_pool(at) && !*setting("GPUMEM_FIT")) return no_export("cuIpcGetMemHandle");
  int code = r.cuIpcGetMemHandle(h, at);
  u64 base = 0;
  size_t n;
  if (!code && gm_gate_on && !r.cuMemGetAddressRange_v2(&base, &n, at)) at = base;
  return tied(code, GM_SHARED, &at);
}

API cuMemRetainAllocationHandle(u64 *h, u64 at) {
  if (in_pool(at)) return no_export("cuMemRetainAllocationHandle");
  int code = r.cuMemRetainAllocationHandle(h, at);
  if (!code && !child)
    for (int d = 0; d < opened; d++)
      if (gpus[d].d.counts) gm.gmRetained(d, GM_HANDLE, *h);
  return code;
}

API cuMemGetHandleForAddressRange(void *h, u64 at, size_t n, int kind, u64 flags) {
  if (in_pool(at)) return no_export("cuMemGetHandleForAddressRange");
  return tied(r.cuMemGetHandleForAddressRange(h, at, n, kind, flags), GM_SHARED, 0);
}

static int alloc_managed(u64 *at, size_t n, unsigned flags) { CHARGED(n, r.cuMemAllocManaged(at, n, flags), GM_PLAIN, *at); }

API cuMemAllocManaged(u64 *at, size_t n, unsigned flags) { return tied(alloc_managed(at, n, flags), GM_MANAGED, at); }

// times is a product; where it is too large, the most.
static size_t times(size_t a, size_t b) {
  size_t n;
  return __builtin_mul_overflow(a, b, &n) ? ~(size_t)0 : n;
}

enum { ROW = 512 }; // a row begins at a multiple on all GPUs so far

// rows is the bytes of rows as they are on the GPUs so far.
static size_t rows(size_t width, size_t height) {
  return width > ~(size_t)0 - ROW ? width : times((width + ROW - 1) / ROW * ROW, height);
}

// PITCHED is a call of the driver's that takes pitched memory. The driver chooses how long rows
// are, so that is what counts.
#define PITCHED(call, release) \
  do { \
    size_t n_ = rows(width, height); \
    int code_, d_ = counting(&code_); \
    if (code_) return code_; \
    if (d_ < 0) return call; \
    end_pools(d_, n_); \
    if ((code_ = gm.gmTake(d_, n_))) return code_; \
    if ((code_ = call)) return gm.gmFailed(d_, n_), code_; \
    size_t granted_ = times(*pitch, height); \
    if ((code_ = gm.gmResize(d_, n_, granted_))) return release, gm.gmFailed(d_, n_), code_; \
    gm.gmDone(d_, GM_PLAIN, *at, granted_, current_context()); \
    return 0; \
  } while (0)

API cuMemAllocPitch_v2(u64 *at, size_t *pitch, size_t width, size_t height, unsigned element) {
  PITCHED(r.cuMemAllocPitch_v2(at, pitch, width, height, element), r.cuMemFree_v2(*at));
}

// Before CUDA 3.2 addresses and sizes had 32 bits. What does not fit is the most.
API cuMemAllocPitch(unsigned *at, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
  PITCHED(r.cuMemAllocPitch(at, pitch, width, height, element), r.cuMemFree(*at));
}

API cuMemAlloc(unsigned *at, unsigned n) { CHARGED(n, r.cuMemAlloc(at, n), GM_PLAIN, *at); }

API cuMemFree(unsigned at) { RELEASED(r.cuMemFree(at), GM_PLAIN, at); }

static unsigned short_size(size_t n) { return n < ~0u ? (unsigned)n : ~0u; }

API cuMemGetInfo(unsigned *free_, unsigned *total) {
  size_t f = 0, t = 0;
  int code = cuMemGetInfo_v2(&f, &t);
  if (!code && free_) *free_ = short_size(f);
  if (!code && total) *total = short_size(t);
  return code;
}

API cuDeviceTotalMem(unsigned *n, int d) {
  size_t all = 0;
  int code = cuDeviceTotalMem_v2(&all, d);
  if (!code && n) *n = short_size(all);
  return code;
}

// CUmemAllocationProp begins with type, handle types, location's type and number.
enum { LOCATION_TYPE = 2, LOCATION_ID = 3 };

API cuMemCreate(u64 *h, size_t n, const int *prop, u64 flags) {
  int d = prop && prop[LOCATION_TYPE] == LOCATION_DEVICE ? prop[LOCATION_ID] : -1, code = refused();
  if (code) return code;
  if (bypassed() || !is_there(d)) return r.cuMemCreate(h, n, prop, flags);
  if (!gpus[d].state) open_gpu(d, 0);
  if (gpus[d].state != 1) return CU_OUT_OF_MEMORY;
  end_pools(d, n);
  if ((code = gm.gmTake(d, n))) return code;
  if ((code = r.cuMemCreate(h, n, prop, flags))) gm.gmFailed(d, n);
  else gm.gmDone(d, GM_HANDLE, *h, n, 0); // it belongs to no context
  return code;
}

API cuMemRelease(u64 h) { RELEASED(r.cuMemRelease(h), GM_HANDLE, h); }

API cuMemMap(u64 at, size_t n, size_t offset, u64 h, u64 flags) {
  int code = r.cuMemMap(at, n, offset, h, flags);
  if (!code && !child)
    for (int d = 0; d < opened; d++)
      if (gpus[d].d.counts) gm.gmMapped(d, at, n, h);
  return code;
}

API cuMemUnmap(u64 at, size_t n) {
  u64 all = releasing();
  int code = r.cuMemUnmap(at, n);
  if (!code && !child)
    for (int d = 0; d < opened; d++)
      if (gpus[d].d.counts) gm.gmUnmapped(d, at, n);
  return released(all), code;
}

// element is the bytes of an array's element: CUarray_format and channels.
static size_t element(int format, unsigned channels) {
  size_t n = format == 0x01 || format == 0x08 ? 1 : format == 0x02 || format == 0x09 || format == 0x10 ? 2 : 4;
  return n * (channels ? channels : 1);
}

static size_t some(size_t n) { return n ? n : 1; }

// CUDA_ARRAY_DESCRIPTOR is width, height, format and channels; CUDA_ARRAY3D_DESCRIPTOR has
// the depth before the format, and flags at the end.
API cuArrayCreate_v2(ptr *a, const size_t *desc) {
  const int *f = (const int *)(desc + 2);
  size_t n = desc ? times(times(some(desc[0]), some(desc[1])), element(f[0], f[1])) : 0;
  CHARGED(n, r.cuArrayCreate_v2(a, desc), GM_ARRAY, *a);
}

enum { LAYERED = 1, CUBEMAP = 4 };

// array3d is the bytes of all levels. The depth of a layered array is a number of layers.
static size_t array3d(const size_t *desc, unsigned levels) {
  const int *f = (const int *)(desc + 3);
  size_t n = 0;
  for (unsigned l = 0; desc && l < levels && l < 64; l++) {
    size_t layers = some(f[2] & (LAYERED | CUBEMAP) ? desc[2] : desc[2] >> l);
    size_t layer = times(times(some(desc[0] >> l), some(desc[1] >> l)), element(f[0], f[1]));
    if (__builtin_add_overflow(n, times(layer, layers), &n)) return ~(size_t)0;
  }
  return n;
}

API cuArray3DCreate_v2(ptr *a, const size_t *desc) { CHARGED(array3d(desc, 1), r.cuArray3DCreate_v2(a, desc), GM_ARRAY, *a); }

API cuArrayCreate(ptr *a, const unsigned *desc) { // before CUDA 3.2
  size_t n = desc ? times(times(some(desc[0]), some(desc[1])), element((int)desc[2], desc[3])) : 0;
  CHARGED(n, r.cuArrayCreate(a, desc), GM_ARRAY, *a);
}

API cuArray3DCreate(ptr *a, const unsigned *desc) {
  size_t n = desc ? times(times(times(some(desc[0]), some(desc[1])), some(desc[2])), element((int)desc[3], desc[4])) : 0;
  CHARGED(n, r.cuArray3DCreate(a, desc), GM_ARRAY, *a);
}

API cuMipmappedArrayCreate(ptr *a, const size_t *desc, unsigned levels) {
  CHARGED(array3d(desc, levels ? levels : 1), r.cuMipmappedArrayCreate(a, desc, levels), GM_ARRAY, *a);
}

API cuArrayDestroy(ptr a) { RELEASED(r.cuArrayDestroy(a), GM_ARRAY, a); }

API cuMipmappedArrayDestroy(ptr a) { RELEASED(r.cuMipmappedArrayDestroy(a), GM_ARRAY, a); }

// stream_ends is called before the end of a stream.
static void stream_ends(ptr s) {
  if (!child)
    for (int d = 0; d < opened; d++)
      if (gpus[d].d.context) gm.gmStreamDestroyed(d, (u64)s);
}

static int destroy_stream(ptr s, int (*call)(ptr)) {
  stream_ends(s);
  if (!gm_gate_on) return call(s);
  gm_stream_ends((u64)s, 1);
  int code = call(s);
  gm_stream_ends((u64)s, code ? 0 : -1);
  return code;
}

API cuStreamDestroy_v2(ptr s) { return destroy_stream(s, r.cuStreamDestroy_v2); }
API cuStreamDestroy(ptr s) { return destroy_stream(s, r.cuStreamDestroy); } // before CUDA 4.0

// wait_for_all is the program's wait for the current context.
static int wait_for_all(void) {
  ptr current;
  if (!child && !r.cuCtxGetCurrent(&current) && current)
    for (int d = 0; d < opened; d++)
      if (gpus[d].d.context == (u64)current && gpus[d].d.pending) {
        u64 n = gm.gmSynchronizing(d);
        int code = r.cuCtxSynchronize();
        if (!code) gm.gmSynchronized(d, n);
        return code;
      }
  return r.cuCtxSynchronize();
}

API cuCtxSynchronize(void) {
  int code = wait_for_all();
  if (!code) pools_changed();
  return code;
}

// launched counts what a graph has reserved.
static int launched(int code) {
  int c;
  if (graphs_take) counting(&c), pools_changed();
  return code;
}

API cuGraphLaunch(ptr g, ptr s) { return launched(PASSING(r.cuGraphLaunch(g, s))); }
API cuGraphLaunch_ptsz(ptr g, ptr s) { return launched(PASSING(r.cuGraphLaunch_ptsz(g, s))); }
API cuGraphUpload(ptr g, ptr s) { return launched(PASSING(r.cuGraphUpload(g, s))); }
API cuGraphUpload_ptsz(ptr g, ptr s) { return launched(PASSING(r.cuGraphUpload_ptsz(g, s))); }
API cuDeviceGraphMemTrim(int d) {
  u64 all = releasing();
  int code = r.cuDeviceGraphMemTrim(d);
  return pools_changed(), released(all), code;
}

enum { MEM_ALLOC_NODE = 10 }; // CUgraphNodeType

// adds notes a node of that type.
static void adds(const int *params) {
  if (params && *params == MEM_ALLOC_NODE) graphs_take = 1;
}

API cuGraphAddMemAllocNode(ptr *node, ptr g, const ptr *after, size_t n, void *params) {
  int code = refused();
  return code ? code : (graphs_take = 1, PASSING(r.cuGraphAddMemAllocNode(node, g, after, n, params)));
}
API cuGraphAddNode(ptr *node, ptr g, const ptr *after, size_t n, void *params) {
  return adds(params), PASSING(r.cuGraphAddNode(node, g, after, n, params));
}
API cuGraphAddNode_v2(ptr *node, ptr g, const ptr *after, const void *edges, size_t n, void *params) {
  return adds(params), PASSING(r.cuGraphAddNode_v2(node, g, after, edges, n, params));
}

// A wait lets the driver's pools release what they do not need.
static int waited(int code) { return pools_changed(), code; }

API cuStreamSynchronize(ptr s) { return waited(r.cuStreamSynchronize(s)); }
API cuStreamSynchronize_ptsz(ptr s) { return waited(r.cuStreamSynchronize_ptsz(s)); }
API cuEventSynchronize(ptr e) { return waited(r.cuEventSynchronize(e)); }

// take_context counts a context that is about to be made on GPU d, the first one with what is
// outside of the pool, and took_context says what became of it; 0: nothing. Where the lease has
// no room none is made: it would hold memory that others are promised.
static int take_context(int d) {
  if (!gpus[d].state) open_gpu(d, 0);
  if (gpus[d].state != 1) return CU_OUT_OF_MEMORY;
  end_pools(d, ~(size_t)0);
  return gm.gmTakeContext(d);
}

static void took_context(int d, int code, ptr context) {
  if (code == CU_OUT_OF_MEMORY) fit_note("refused", 0);
  gm.gmTookContext(d, code ? 0 : (u64)context);
}

// MADE is a call of the driver's that makes a context on GPU d.
#define MADE(c, d, call) \
  do { \
    int code_ = refused(); \
    if (code_) return code_; \
    if (bypassed() || !is_there(d)) return call; \
    if ((code_ = take_context(d))) return code_; \
    code_ = call; \
    took_context(d, code_, *c); \
    return code_; \
  } while (0)

API cuCtxCreate(ptr *c, unsigned flags, int d) { MADE(c, d, r.cuCtxCreate(c, flags, d)); } // before CUDA 3.2
API cuCtxCreate_v2(ptr *c, unsigned flags, int d) { MADE(c, d, r.cuCtxCreate_v2(c, flags, d)); }
API cuCtxCreate_v3(ptr *c, void *params, int n, unsigned flags, int d) { MADE(c, d, r.cuCtxCreate_v3(c, params, n, flags, d)); }
API cuCtxCreate_v4(ptr *c, void *params, unsigned flags, int d) { MADE(c, d, r.cuCtxCreate_v4(c, params, flags, d)); }

API cuGLCtxCreate(ptr *c, unsigned flags, int d) { MADE(c, d, r.cuGLCtxCreate(c, flags, d)); }
API cuGLCtxCreate_v2(ptr *c, unsigned flags, int d) { MADE(c, d, r.cuGLCtxCreate_v2(c, flags, d)); }
API cuVDPAUCtxCreate(ptr *c, unsigned flags, int d, unsigned of, ptr get) { MADE(c, d, r.cuVDPAUCtxCreate(c, flags, d, of, get)); }
API cuVDPAUCtxCreate_v2(ptr *c, unsigned flags, int d, unsigned of, ptr get) { MADE(c, d, r.cuVDPAUCtxCreate_v2(c, flags, d, of, get)); }
API cuGreenCtxCreate(ptr *c, ptr resources, int d, unsigned flags) { MADE(c, d, r.cuGreenCtxCreate(c, resources, d, flags)); }

static void context_ended(ptr c, int code) {
  gm_context_ends((u64)c, code ? 0 : -1);
  if (!code) gm_untie_context((u64)c);
}

// end_context ends a context. What it has taken ends with it. Which GPU it is of the driver says
// of the current one alone, so each is asked.
static int end_context(ptr c, int (*call)(ptr)) {
  u64 tokens[MAX_GPUS] = {0};
  int n = child ? 0 : opened;
  for (int d = 0; d < n; d++)
    if (gpus[d].d.counts) tokens[d] = gm.gmRemoveContext(d, (u64)c);
  if (gm_gate_on) gm_context_ends((u64)c, 1);
  int code = call(c);
  if (gm_gate_on) context_ended(c, code);
  pools_changed();
  for (int d = 0; d < n; d++)
    if (tokens[d]) gm.gmRemovedContext(d, tokens[d], code);
  return code;
}

// attached are the contexts that the program has attached, once for each time: that many calls
// of cuCtxDetach do not end them. Guarded by own.
static struct attached {
  ptr context;
  struct attached *next;
} *attached;

static void attach(ptr c) {
  struct attached *a = malloc(sizeof *a);
  if (!a) return; // its end is taken for the context's, and undone where the driver refuses
  pthread_mutex_lock(&own);
  *a = (struct attached){c, attached}, attached = a;
  pthread_mutex_unlock(&own);
}

// detach reports whether the context was attached, once more than it was detached.
static int detach(ptr c) {
  pthread_mutex_lock(&own);
  struct attached **a = &attached, *found;
  while (*a && (*a)->context != c) a = &(*a)->next;
  if ((found = *a)) *a = found->next;
  pthread_mutex_unlock(&own);
  free(found);
  return found != 0;
}

// destroy_context ends a context however often it is attached; another may get its handle.
static int destroy_context(ptr c, int (*call)(ptr)) {
  int code = end_context(c, call);
  while (!code && detach(c)) {}
  return code;
}

API cuCtxDestroy_v2(ptr c) { return destroy_context(c, r.cuCtxDestroy_v2); }
API cuCtxDestroy(ptr c) { return destroy_context(c, r.cuCtxDestroy); } // before CUDA 4.0
API cuGreenCtxDestroy(ptr c) { return destroy_context(c, r.cuGreenCtxDestroy); }

API cuCtxAttach(ptr *c, unsigned flags) {
  int code = r.cuCtxAttach(c, flags);
  if (!code) attach(*c);
  return code;
}

API cuCtxDetach(ptr c) {
  if (!detach(c)) return end_context(c, r.cuCtxDetach);
  int code = r.cuCtxDetach(c);
  if (code) attach(c);
  return code;
}

// The current context's GPU may use the memory of the peer's from now on.
API cuCtxEnablePeerAccess(ptr peer, unsigned flags) {
  int code = r.cuCtxEnablePeerAccess(peer, flags), d, of;
  if (code || child || r.cuCtxGetDevice(&d)) return code;
  if (r.cuCtxPushCurrent_v2(peer)) return code;
  if (!r.cuCtxGetDevice(&of) && of >= 0 && of < MAX_GPUS && gpus[of].state == 1) gm.gmPeer(of, d);
  r.cuCtxPopCurrent_v2(&peer);
  return code;
}

// A pool's memory is the served pool's: CUmemAccessDesc is the location's type and number,
// and flags, 3 for reading and writing.
API cuMemPoolSetAccess(ptr pool, const int *desc, size_t n) {
  int code = r.cuMemPoolSetAccess(pool, desc, n);
  if (!code && !child)
    for (size_t i = 0; i < n; i++)
      if (desc[3 * i] == LOCATION_DEVICE && desc[3 * i + 2] == 3)
        for (int d = 0; d < opened; d++)
          if (gpus[d].d.context && d != desc[3 * i + 1] && pool_device(d, pool) == d) gm.gmPeer(d, desc[3 * i + 1]);
  return code;
}

API cuMemPoolGetAttribute(ptr pool, int a, void *v) {
  u64 n;
  int code = r.cuMemPoolGetAttribute(pool, a, v), d, c, figure = a >= POOL_RESERVED_CURRENT && a <= POOL_USED_HIGH;
  if (code || !v || !figure) return code;
  if ((d = serving(&c)) < 0 || pool_device(d, pool) != d) return code;
  if (!(code = gm.gmPoolAttribute(d, a, &n))) *(u64 *)v = n;
  return code;
}

API cuMemPoolTrimTo(ptr pool, size_t keep) {
  int c, d = serving(&c);
  u64 all = releasing();
  if (d >= 0 && !keep && pool_device(d, pool) == d) gm.gmTrim(d);
  int code = r.cuMemPoolTrimTo(pool, keep);
  return pools_changed(), released(all), code;
}

API cuDevicePrimaryCtxRetain(ptr *c, int d) {
  int code = refused();
  if (code) return code;
  if (bypassed() || !is_there(d)) return r.cuDevicePrimaryCtxRetain(c, d);
  pthread_mutex_lock(&primaries[d]);
  int made = !gpus[d].primary;
  if (!made || !(code = take_context(d))) {
    code = r.cuDevicePrimaryCtxRetain(c, d);
    if (made) took_context(d, code, *c);
    if (!code) gpus[d].retained++, gpus[d].primary = *c;
  }
  pthread_mutex_unlock(&primaries[d]);
  return code;
}

// drop ends the pool of GPU d, whose memory ends with the context. None begins until the
// context has ended.
static void drop(int d, int ending) {
  pthread_mutex_lock(&opening);
  if (ending && gpus[d].d.context) gm.gmDrop(d);
  gpus[d].pool = gpus[d].other = 0;
  gpus[d].ending = ending;
  pthread_mutex_unlock(&opening);
}

// end_primary releases the primary context of GPU d once, or resets it. It ends with the
// program's last use, or with a reset, and all that the program has taken in it: the pool
// has retained it, too.
static int end_primary(int d, int (*call)(int), int reset) {
  if (bypassed() || !is_gpu(d)) return call(d);
  pthread_mutex_lock(&primaries[d]);
  struct gpu *g = &gpus[d];
  int ends = g->primary && (reset || g->retained == 1);
  int counted = ends && g->d.counts;
  u64 token = 0;
  if (counted) {
    token = gm.gmRemoveContext(d, (u64)g->primary);
    drop(d, 1);
  }
  if (gm_gate_on && ends) gm_context_ends((u64)g->primary, 1);
  int code = call(d);
  if (gm_gate_on && ends) context_ended(g->primary, code);
  if (counted) {
    drop(d, 0);
    gm.gmRemovedContext(d, token, code);
  }
  if (ends && !code) g->primary = 0;
  if (!reset && !code && g->retained > 0) g->retained--;
  pthread_mutex_unlock(&primaries[d]);
  return code;
}

API cuDevicePrimaryCtxRelease_v2(int d) { return end_primary(d, r.cuDevicePrimaryCtxRelease_v2, 0); }
API cuDevicePrimaryCtxReset_v2(int d) { return end_primary(d, r.cuDevicePrimaryCtxReset_v2, 1); }
API cuDevicePrimaryCtxRelease(int d) { return end_primary(d, r.cuDevicePrimaryCtxRelease, 0); } // before CUDA 11
API cuDevicePrimaryCtxReset(int d) { return end_primary(d, r.cuDevicePrimaryCtxReset, 1); }

API cuGetProcAddress(const char *, void **, int, u64);
API cuGetProcAddress_v2(const char *, void **, int, u64, int *);
API cuGetProcAddress_v2_ptsz(const char *, void **, int, u64, int *);

enum { PER_THREAD_STREAM = 2 }; // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

// served returns the function that is served under a name which cuGetProcAddress was
// asked for, at a version of CUDA: the name without _v2 is another function before the
// version from, and may be one from the version until on.
static void *served(const char *name, int version, u64 flags) {
  static const struct { const char *name; int from, until; void *function, *per_thread; } t[] = {
#define S(name, from, fn) {name, from, 1 << 30, fn, 0}
#define OLD(name, until) {#name, 2000, until, name, 0}
    OLD(cuMemAlloc, 3020), OLD(cuMemFree, 3020), OLD(cuMemGetInfo, 3020), OLD(cuMemAllocPitch, 3020), OLD(cuDeviceTotalMem, 3020),
    OLD(cuArrayCreate, 3020), OLD(cuArray3DCreate, 3020), OLD(cuStreamDestroy, 4000), OLD(cuCtxDestroy, 4000),
    OLD(cuGLCtxCreate, 3020), OLD(cuVDPAUCtxCreate, 3020),
    S("cuGLCtxCreate", 3020, cuGLCtxCreate_v2), S("cuVDPAUCtxCreate", 3020, cuVDPAUCtxCreate_v2),
    S("cuCtxAttach", 2000, cuCtxAttach), S("cuCtxDetach", 2000, cuCtxDetach),
    S("cuGreenCtxCreate", 12040, cuGreenCtxCreate), S("cuGreenCtxDestroy", 12040, cuGreenCtxDestroy),
#undef OLD
    S("cuMemAlloc", 3020, cuMemAlloc_v2), S("cuMemFree", 3020, cuMemFree_v2), S("cuMemGetInfo", 3020, cuMemGetInfo_v2),
    S("cuMemAllocManaged", 6000, cuMemAllocManaged), S("cuMemAllocPitch", 3020, cuMemAllocPitch_v2),
    {"cuMemAllocAsync", 11020, 1 << 30, cuMemAllocAsync, cuMemAllocAsync_ptsz},
    {"cuMemAllocFromPoolAsync", 11020, 1 << 30, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz},
    {"cuMemFreeAsync", 11020, 1 << 30, cuMemFreeAsync, cuMemFreeAsync_ptsz},
    S("cuDeviceTotalMem", 3020, cuDeviceTotalMem_v2), S("cuMemGetAddressRange", 3020, cuMemGetAddressRange_v2),
    S("cuPointerGetAttribute", 4000, cuPointerGetAttribute), S("cuPointerGetAttributes", 7000, cuPointerGetAttributes),
    S("cuIpcGetMemHandle", 4010, cuIpcGetMemHandle), S("cuMemRetainAllocationHandle", 11000, cuMemRetainAllocationHandle),
    S("cuMemGetHandleForAddressRange", 11070, cuMemGetHandleForAddressRange),
    S("cuMemCreate", 10020, cuMemCreate), S("cuMemRelease", 10020, cuMemRelease), S("cuMemMap", 10020, cuMemMap),
    S("cuMemUnmap", 10020, cuMemUnmap),
    S("cuArrayCreate", 3020, cuArrayCreate_v2), S("cuArray3DCreate", 3020, cuArray3DCreate_v2),
    S("cuMipmappedArrayCreate", 5000, cuMipmappedArrayCreate),
    S("cuArrayDestroy", 2000, cuArrayDestroy), S("cuMipmappedArrayDestroy", 5000, cuMipmappedArrayDestroy),
    S("cuStreamDestroy", 4000, cuStreamDestroy_v2), {"cuStreamSynchronize", 2000, 1 << 30, cuStreamSynchronize, cuStreamSynchronize_ptsz},
    S("cuEventSynchronize", 2000, cuEventSynchronize), {"cuCtxCreate", 2000, 3020, cuCtxCreate, 0},
    {"cuCtxCreate", 3020, 11040, cuCtxCreate_v2, 0},
    {"cuGraphLaunch", 10000, 1 << 30, cuGraphLaunch, cuGraphLaunch_ptsz},
    {"cuGraphUpload", 11010, 1 << 30, cuGraphUpload, cuGraphUpload_ptsz},
    S("cuGraphAddMemAllocNode", 11040, cuGraphAddMemAllocNode), {"cuGraphAddNode", 12020, 12030, cuGraphAddNode, 0},
    S("cuGraphAddNode", 12030, cuGraphAddNode_v2), S("cuDeviceGraphMemTrim", 11040, cuDeviceGraphMemTrim),
    {"cuCtxCreate", 11040, 12050, cuCtxCreate_v3, 0}, S("cuCtxCreate", 12050, cuCtxCreate_v4),
    {"cuCtxSynchronize", 2000, 13000, cuCtxSynchronize, 0},
    S("cuCtxDestroy", 4000, cuCtxDestroy_v2), S("cuCtxEnablePeerAccess", 4000, cuCtxEnablePeerAccess),
    S("cuDevicePrimaryCtxRetain", 7000, cuDevicePrimaryCtxRetain),
    S("cuDevicePrimaryCtxRelease", 11000, cuDevicePrimaryCtxRelease_v2), S("cuDevicePrimaryCtxReset", 11000, cuDevicePrimaryCtxReset_v2),
    {"cuDevicePrimaryCtxRelease", 7000, 11000, cuDevicePrimaryCtxRelease, 0},
    {"cuDevicePrimaryCtxReset", 7000, 11000, cuDevicePrimaryCtxReset, 0},
    S("cuMemPoolGetAttribute", 11020, cuMemPoolGetAttribute), S("cuMemPoolTrimTo", 11020, cuMemPoolTrimTo),
    S("cuMemPoolSetAccess", 11020, cuMemPoolSetAccess),
    S("cuMemPoolCreate", 11020, cuMemPoolCreate), S("cuMemPoolDestroy", 11020, cuMemPoolDestroy),
    S("cuDeviceSetMemPool", 11020, cuDeviceSetMemPool),
    S("cuMemSetMemPool", 13000, cuMemSetMemPool),
    {"cuGetProcAddress", 12000, 1 << 30, cuGetProcAddress_v2, cuGetProcAddress_v2_ptsz},
    {"cuGetProcAddress", 11030, 12000, cuGetProcAddress, 0},
#undef S
  };
  for (size_t i = 0; i < sizeof t / sizeof *t; i++)
    if (version >= t[i].from && version < t[i].until && !strcmp(name, t[i].name))
      return t[i].per_thread && flags & PER_THREAD_STREAM ? t[i].per_thread : t[i].function;
  return 0;
}

static int substitute(int code, const char *name, void **p, int version, u64 flags) {
  void *s;
  int found = !code && name && p && *p;
  if (found && (s = served(name, version, flags))) *p = s;
  else if (found && mark->state == GM_REFUSED && takes(name)) *p = (void *)no_memory;
  else if (found && gm_gate_on)
    *p = before_driver(version >= 11000 && !strcmp(name, "cuIpcOpenMemHandle") ? "cuIpcOpenMemHandle_v2" : name, *p, gm_passes_gate(name));
  return code;
}

API cuGetProcAddress(const char *name, void **p, int version, u64 flags) {
  return substitute(r.cuGetProcAddress(name, p, version, flags), name, p, version, flags);
}

API cuGetProcAddress_v2(const char *name, void **p, int version, u64 flags, int *status) {
  return substitute(r.cuGetProcAddress_v2(name, p, version, flags, status), name, p, version, flags);
}

// Without flags it is asked by a program whose streams are each thread's own.
API cuGetProcAddress_v2_ptsz(const char *name, void **p, int version, u64 flags, int *status) {
  return substitute(r.cuGetProcAddress_v2_ptsz(name, p, version, flags, status), name, p, version, flags ? flags : PER_THREAD_STREAM);
}
