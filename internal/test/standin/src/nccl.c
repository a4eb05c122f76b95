// A stand-in for libnccl.so.2, from its public header nccl.h: communicators that know their
// size and rank, and collectives that do nothing. It allocates nothing of the GPU by itself.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Both names of each function: pncclX is nccl's own, below profilers.
#define FN(name, ...) \
  __attribute__((visibility("default"))) int p##name(__VA_ARGS__) __attribute__((alias(#name))); \
  __attribute__((visibility("default"))) int name(__VA_ARGS__)

enum { OK = 0, SYSTEM = 2, INVALID = 4 };

typedef struct { char bytes[128]; } id;
typedef struct { int count, rank, device; } comm;

// driver calls a function of the driver.
static int driver(const char *name, uint64_t a, uint64_t b) {
  static void *lib;
  if (!lib) lib = dlopen("libcuda.so.1", RTLD_NOW);
  int (*f)(uint64_t, uint64_t) = lib ? (int (*)(uint64_t, uint64_t))dlsym(lib, name) : 0;
  return f && !f(a, b) ? OK : SYSTEM;
}

static int make(comm **c, int count, int rank) {
  if (!c || count < 1 || rank < 0 || rank >= count) return INVALID;
  *c = malloc(sizeof **c);
  if (!*c) return SYSTEM;
  **c = (comm){count, rank, 0};
  driver("cuCtxGetDevice", (uint64_t)&(*c)->device, 0);
  return OK;
}

FN(ncclGetVersion, int *v) { *v = 22703; return OK; }
FN(ncclGetUniqueId, id *i) { memset(i, 1, sizeof *i); return OK; }
FN(ncclCommInitRank, comm **c, int count, id i, int rank) { (void)i; return make(c, count, rank); }
FN(ncclCommInitRankConfig, comm **c, int count, id i, int rank, void *config) { (void)i, (void)config; return make(c, count, rank); }
FN(ncclCommInitRankScalable, comm **c, int count, int rank, int ids, id *i, void *config) { (void)ids, (void)i, (void)config; return make(c, count, rank); }
FN(ncclCommInitAll, comm **c, int count, const int *devices) {
  for (int i = 0; i < count; i++) {
    int e = make(c + i, count, i);
    if (e) return e;
    c[i]->device = devices ? devices[i] : i;
  }
  return OK;
}
// The ranks of the other colours are not known here, so the part counts as the whole.
FN(ncclCommSplit, comm *c, int colour, int key, comm **part, void *config) {
  (void)key, (void)config;
  if (colour < 0) { *part = 0; return OK; }
  return make(part, c->count, c->rank);
}
FN(ncclCommDestroy, comm *c) { free(c); return OK; }
FN(ncclCommAbort, comm *c) { free(c); return OK; }
FN(ncclCommCount, const comm *c, int *n) { *n = c->count; return OK; }
FN(ncclCommUserRank, const comm *c, int *n) { *n = c->rank; return OK; }
FN(ncclCommCuDevice, const comm *c, int *n) { *n = c->device; return OK; }
FN(ncclCommGetAsyncError, comm *c, int *e) { (void)c; *e = OK; return OK; }
FN(ncclCommRegister, const comm *c, void *at, size_t n, void **handle) { (void)c, (void)n; *handle = at; return OK; }
FN(ncclCommWindowRegister, comm *c, void *at, size_t n, void **window, int flags) { (void)c, (void)at, (void)n, (void)flags; *window = 0; return OK; }
FN(ncclMemAlloc, void **p, size_t n) { return driver("cuMemAlloc_v2", (uint64_t)p, n); }
FN(ncclMemFree, void *p) { return driver("cuMemFree_v2", (uint64_t)p, 0); }

__attribute__((visibility("default"))) const char *ncclGetErrorString(int e) { return e ? "an error of the simulated NCCL" : "no error"; }
__attribute__((visibility("default"))) const char *pncclGetErrorString(int e) { return ncclGetErrorString(e); }
__attribute__((visibility("default"))) const char *ncclGetLastError(comm *c) { (void)c; return ""; }
__attribute__((visibility("default"))) const char *pncclGetLastError(comm *c) { return ncclGetLastError(c); }
