//go:build libgpumem

// The exported functions of libgpumem_c.so: each is a call into Go (main.go), behind a
// guard. After a fork the child has none of Go's threads, and a call that needs one would
// wait for ever; so it does not get there.

#define _GNU_SOURCE
#include "capi.h"
#include "_cgo_export.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

static volatile int child; // of the process that loaded this library

static void forked(void) { child = 1; }

// The text of a thread's last error is behind a pointer, made at the thread's first call:
// Go's runtime has this library's thread-local memory allocated when the library is
// loaded (static TLS), of which a program has a few hundred bytes for all that it loads.
static pthread_key_t key;

// Go's runtime begins in a constructor of this library, with a thread. Signals are blocked
// in that thread and in those that it makes, so that the program's own threads get them
// (Go leaves SIGCHLD and SIGPROF open). A constructor with a priority runs before Go's, and
// one without after it, because Go's object is the first that is linked.
static sigset_t mask;

__attribute__((constructor(101))) static void before(void) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &mask);
}

__attribute__((constructor)) static void after(void) {
  pthread_sigmask(SIG_SETMASK, &mask, 0);
  pthread_atfork(0, 0, forked);
  pthread_key_create(&key, free);
}

static gc_error *own(void) {
  static gc_error none; // where there is no memory for one
  gc_error *e = pthread_getspecific(key);
  if (e) return e;
  if (!(e = calloc(1, sizeof *e))) return &none;
  pthread_setspecific(key, e);
  return e;
}

// GUARDED answers a call in a child.
#define GUARDED \
  do { \
    if (child) { \
      strcpy(own()->text, "this process is the child of one that has GPU memory of gpumem, and cannot use it: start it with exec (multiprocessing: the start method spawn), or load gpumem after the fork"); \
      return GPUMEM_FORKED; \
    } \
  } while (0)

API int gpumem_abi(void) { return GPUMEM_ABI; }
API const char *gpumem_last_error(void) { return own()->text; }

API int gpumem_configure(int gpu, const char *device, const char *policy) {
  GUARDED;
  return gcConfigure(gpu, (char *)device, (char *)policy, own());
}

API int gpumem_is_open(gpumem_pool pool) { return !child && gcIsOpen(pool); }

API int gpumem_record(const char *path) {
  GUARDED;
  return gcRecord((char *)path, own());
}

API int gpumem_open(const char *device, const char *policy, gpumem_pool *pool) {
  GUARDED;
  return gcOpen((char *)device, (char *)policy, pool, own());
}

API int gpumem_close(gpumem_pool pool) {
  GUARDED;
  return gcClose(pool, own());
}

API int gpumem_alloc(gpumem_pool pool, size_t bytes, void *stream, void **address) {
  u64 at = 0;
  GUARDED;
  int code = gcAlloc(pool, bytes, (u64)stream, address ? &at : 0, own());
  if (address) *address = (void *)at;
  return code;
}

API int gpumem_free(gpumem_pool pool, void *address, void *stream) {
  GUARDED;
  return address ? gcFree(pool, (u64)address, (u64)stream, own()) : GPUMEM_OK;
}

API int gpumem_record_stream(gpumem_pool pool, void *address, void *stream) {
  GUARDED;
  return gcRecordStream(pool, (u64)address, (u64)stream, own());
}

API int gpumem_stream_ends(gpumem_pool pool, void *stream) {
  GUARDED;
  return gcStreamEnds(pool, (u64)stream, own());
}

API int gpumem_trim(gpumem_pool pool, uint64_t *released) {
  u64 n = 0;
  GUARDED;
  int code = gcTrim(pool, &n, own());
  if (released) *released = n;
  return code;
}

API int gpumem_info(gpumem_pool pool, uint64_t *free_bytes, uint64_t *total) {
  u64 f = 0, t = 0;
  GUARDED;
  int code = gcInfo(pool, &f, &t, own());
  if (free_bytes) *free_bytes = f;
  if (total) *total = t;
  return code;
}

API int gpumem_stats(gpumem_pool pool, struct gpumem_figures *figures) {
  struct gpumem_figures f = {0};
  GUARDED;
  if (!figures || figures->size < sizeof(size_t)) {
    strcpy(own()->text, "gpumem_stats: figures.size is not set to the size of the struct");
    return GPUMEM_INVALID;
  }
  int code = gcStats(pool, &f, own());
  if (!code) {
    f.size = figures->size < sizeof f ? figures->size : sizeof f;
    memcpy(figures, &f, f.size);
  }
  return code;
}

API int gpumem_reset_peaks(gpumem_pool pool) {
  GUARDED;
  return gcResetPeaks(pool, own());
}

API int gpumem_report(gpumem_pool pool, char *text, size_t n) {
  if (child) return -1;
  int length = 0;
  char *all = gcReport(pool, &length, own());
  if (!all) return -1;
  if (text && n) {
    size_t k = (size_t)length < n - 1 ? (size_t)length : n - 1;
    memcpy(text, all, k);
    text[k] = 0;
  }
  free(all);
  return length;
}

// destroy is the destructor of a C++ exception: the first virtual function of
// std::exception.
static void destroy(void *exception) { (**(void (***)(void *))exception)(exception); }

// torch_throws throws the text as c10::OutOfMemoryError, which Python sees as
// torch.OutOfMemoryError. PyTorch is not there when this library is built, so its
// functions are looked up by name; if they are not there, it returns.
//
// A C++ exception passes through this file's frames (-fexceptions) and none of Go's.
static void torch_throws(const char *text) {
  void *c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  if (!c10) return;
  // std::string of libstdc++'s present ABI, and what c10::Error's constructor takes.
  struct string { char *p; size_t n, capacity, unused; };
  struct location { const char *function, *file; uint32_t line; };
  void *(*new_)(size_t) = dlsym(c10, "_Znwm");
  void *(*allocate)(size_t) = dlsym(c10, "__cxa_allocate_exception");
  void (*throw_)(void *, void *, void (*)(void *)) = dlsym(c10, "__cxa_throw");
  void (*construct)(void *, struct location, struct string *) =
    dlsym(c10, "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
  // It is in each library of PyTorch's that throws or catches it.
  static const char *const libraries[] = {"libc10.so", "libc10_cuda.so", "libtorch_python.so", "libtorch_cpu.so"};
  void *type = 0;
  for (int i = 0; i < 4 && !type; i++) {
    void *l = dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);
    if (l) type = dlsym(l, "_ZTIN3c1016OutOfMemoryErrorE");
  }
  if (!type) type = dlsym(c10, "_ZTIN3c105ErrorE"); // a RuntimeError
  if (!new_ || !allocate || !throw_ || !construct || !type) return;
  size_t n = strlen(text);
  struct string s = {new_(n + 1), n, n, 0};
  memcpy(s.p, text, n + 1);
  // The object's size is not known here: it is some 200 bytes, and more does no harm.
  void *e = allocate(1024);
  construct(e, (struct location){"gpumem_torch_alloc", "libgpumem_c.so", 0}, &s);
  // s is moved from, and what the constructor may have left in it is its own few bytes.
  throw_(e, type, destroy);
}

API void *gpumem_torch_pool_alloc(size_t bytes, int gpu, void *stream) {
  void *at = 0;
  gpumem_alloc(gpu, bytes, stream, &at);
  return at;
}

API void *gpumem_torch_alloc(size_t bytes, int gpu, void *stream) {
  void *at = 0;
  if (gpumem_alloc(gpu, bytes, stream, &at)) {
    char text[sizeof own()->text + 100] = "CUDA out of memory. ";
    strcat(text, own()->text);
    torch_throws(text);
  }
  return at;
}

API void gpumem_torch_free(void *address, size_t bytes, int gpu, void *stream) {
  (void)bytes;
  gpumem_free(gpu, address, stream);
}

API void gpumem_torch_record_stream(void *address, void *stream) {
  if (!child && address) gcRecordAnywhere((u64)address, (u64)stream);
}

API void gpumem_torch_empty_cache(void) {
  for (int i = 0; i < GPUMEM_GPUS; i++)
    if (gpumem_is_open(i)) gpumem_trim(i, 0);
}

API void *gpumem_cupy_malloc(void *param, size_t bytes, int gpu) {
  (void)param;
  return gpumem_torch_pool_alloc(bytes, gpu, GPUMEM_STREAM_ANY);
}

API void gpumem_cupy_free(void *param, void *address, int gpu) {
  (void)param;
  gpumem_free(gpu, address, GPUMEM_STREAM_ANY);
}

API void *gpumem_rmm_alloc(size_t bytes, void *stream, void *gpu) { return gpumem_torch_pool_alloc(bytes, (int)(intptr_t)gpu, stream); }

API void gpumem_rmm_free(void *address, size_t bytes, void *stream, void *gpu) {
  (void)bytes;
  gpumem_free((int)(intptr_t)gpu, address, stream);
}
