// A program that takes memory in every way beside the pool, at random, and looks after each
// step whether the books are those of the GPU: what the lease has left, by cuMemGetInfo in a
// context that has no pool, and what the simulated GPU says that is used. Each difference, and
// each look beyond the limit, is a line.
//
// Graphs, too, with a third argument: the memory of a launch cannot be refused.
//
//	books SEED STEPS [graphs]

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
typedef void *ptr;

#define FUNCTIONS(F) \
  F(cuInit, (unsigned)) F(cuDevicePrimaryCtxRetain, (ptr *, int)) F(cuCtxSetCurrent, (ptr)) F(cuCtxCreate_v2, (ptr *, unsigned, int)) F(cuCtxDestroy_v2, (ptr)) F(cuCtxPopCurrent_v2, (ptr *)) \
  F(cuCtxSynchronize, (void)) F(cuStreamSynchronize, (ptr)) F(cuMemGetInfo_v2, (size_t *, size_t *)) F(cuMemAlloc_v2, (u64 *, size_t)) F(cuMemFree_v2, (u64)) \
  F(cuMemAllocPitch_v2, (u64 *, size_t *, size_t, size_t, unsigned)) F(cuMemAllocManaged, (u64 *, size_t, unsigned)) \
  F(cuMemAllocAsync, (u64 *, size_t, ptr)) F(cuMemAllocFromPoolAsync, (u64 *, size_t, ptr, ptr)) F(cuMemFreeAsync, (u64, ptr)) \
  F(cuMemCreate, (u64 *, size_t, const void *, u64)) F(cuMemRelease, (u64)) F(cuMemPoolCreate, (ptr *, const void *)) F(cuMemPoolDestroy, (ptr)) F(cuMemPoolTrimTo, (ptr, size_t)) \
  F(cuArrayCreate_v2, (u64 *, const void *)) F(cuArray3DCreate_v2, (u64 *, const void *)) F(cuMipmappedArrayCreate, (u64 *, const void *, unsigned)) \
  F(cuStreamCreate, (ptr *, unsigned)) F(cuStreamBeginCapture_v2, (ptr, int)) F(cuStreamEndCapture, (ptr, ptr *)) F(cuGraphInstantiateWithFlags, (ptr *, ptr, u64)) \
  F(cuGraphLaunch, (ptr, ptr)) F(cuGraphExecDestroy, (ptr)) F(cuGraphDestroy, (ptr)) F(cuDeviceGraphMemTrim, (int)) F(cuArrayDestroy, (u64)) F(cuMipmappedArrayDestroy, (u64))
#define F(name, args) static int (*name) args;
FUNCTIONS(F)
#undef F
static int (*status)(int, u64 *, u64 *, char *, char *);

enum { PLAIN, PITCH, MANAGED, ASYNC, POOLED, HANDLE, ARRAY, ARRAY3D, MIPMAP, KINDS, BLOCKS = 40, MIB = 1 << 20, CONTEXTS = 4 };
static struct { u64 at; int kind, context, used; size_t managed; } b[BLOCKS];
static ptr contexts[CONTEXTS], pool; // the primary one, one that stays, and others
static size_t managed;
static int faults, graphs;

static unsigned long long state;
static unsigned random_(unsigned n) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (unsigned)(state >> 33) % n;
}

static void must(int code, const char *what) {
  if (code) printf("%s = %d\n", what, code), exit(1);
}

static void look(const char *after, int n) {
  size_t left, limit;
  u64 total, used;
  char text[96];
  must(cuCtxSetCurrent(contexts[1]), "cuCtxSetCurrent");
  must(cuMemGetInfo_v2(&left, &limit), "cuMemGetInfo");
  must(status(0, &total, &used, text, text), "the GPU's status");
  int differ = limit - left != used + managed && used + managed <= limit, beyond = used > limit && !graphs;
  if (differ && faults++ < 5)
    printf("after %s %d: %zu bytes are counted, of managed memory %zu; the GPU has granted %llu\n", after, n, limit - left, managed, (unsigned long long)used);
  if (beyond && faults++ < 5) printf("after %s %d: %llu bytes are used in a lease of %zu\n", after, n, (unsigned long long)used, limit);
}

static void take(int i) {
  static const int pinned[8] = {1, 0, 1, 0};
  struct { size_t x, y, z; int format, channels, flags; } a = {1 + random_(600), random_(600), random_(9), 0x20, 1 << random_(3), random_(2)};
  struct { size_t x, y; int format, channels; } flat = {a.x, a.y, 0x01, a.channels};
  size_t n = random_(2) ? 1 + random_(4096) : 1 + random_(5 * MIB), pitch;
  int code = 2, kind = (int)random_(KINDS), c = (int)random_(CONTEXTS);
  if (!contexts[c]) c = 1;
  must(cuCtxSetCurrent(contexts[c]), "cuCtxSetCurrent");
  b[i].managed = 0;
  if (kind == PLAIN) code = cuMemAlloc_v2(&b[i].at, n);
  if (kind == PITCH) code = cuMemAllocPitch_v2(&b[i].at, &pitch, 1 + random_(5000), 1 + random_(300), 4);
  if (kind == MANAGED && !(code = cuMemAllocManaged(&b[i].at, n, 1))) managed += b[i].managed = (n + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
  if (kind == ASYNC) code = cuMemAllocAsync(&b[i].at, n, 0);
  if (kind == POOLED) code = cuMemAllocFromPoolAsync(&b[i].at, n, pool, 0);
  if (kind == HANDLE) code = cuMemCreate(&b[i].at, (1 + random_(3)) * (size_t)(2 * MIB), pinned, 0);
  if (kind == ARRAY) code = cuArrayCreate_v2(&b[i].at, &flat);
  if (kind == ARRAY3D) code = cuArray3DCreate_v2(&b[i].at, &a);
  if (kind == MIPMAP) code = cuMipmappedArrayCreate(&b[i].at, &a, 1 + random_(5));
  if (code && code != 2) printf("kind %d = %d\n", kind, code), faults++;
  if (!code) b[i].used = 1, b[i].kind = kind, b[i].context = c;
  look("a request of kind", kind);
}

static void give(int i) {
  int k = b[i].kind, code;
  must(cuCtxSetCurrent(contexts[b[i].context]), "cuCtxSetCurrent");
  code = k == HANDLE ? cuMemRelease(b[i].at) : k == ARRAY || k == ARRAY3D ? cuArrayDestroy(b[i].at) : k == MIPMAP ? cuMipmappedArrayDestroy(b[i].at)
         : (k == ASYNC || k == POOLED) && random_(2) ? cuMemFreeAsync(b[i].at, 0) : cuMemFree_v2(b[i].at);
  if (code) printf("release of kind %d = %d\n", k, code), faults++;
  managed -= b[i].managed;
  b[i].used = 0;
  look("the release of kind", k);
}

// graph launches a graph that allocates.
static void graph(void) {
  static ptr streams[2];
  ptr g, run;
  u64 at;
  int code, c = (int)random_(2);
  must(cuCtxSetCurrent(contexts[c]), "cuCtxSetCurrent");
  if (!streams[c]) must(cuStreamCreate(&streams[c], 1), "cuStreamCreate");
  must(cuStreamBeginCapture_v2(streams[c], 0), "cuStreamBeginCapture");
  must(cuMemAllocAsync(&at, 1 + random_(6 * MIB), streams[c]), "cuMemAllocAsync in a graph");
  must(cuStreamEndCapture(streams[c], &g), "cuStreamEndCapture");
  look("a capture", c);
  must(cuGraphInstantiateWithFlags(&run, g, 0), "cuGraphInstantiate");
  if ((code = cuGraphLaunch(run, streams[c]))) printf("cuGraphLaunch = %d\n", code), faults++;
  look("a launch", c);
  must(cuGraphExecDestroy(run), "cuGraphExecDestroy");
  must(cuGraphDestroy(g), "cuGraphDestroy");
}

// stays reports whether a block outlives the context that it was taken in.
static int stays(int i) { return b[i].kind == HANDLE || b[i].kind == MANAGED || b[i].kind == ASYNC || b[i].kind == POOLED; }

static void step(void) {
  int i = (int)random_(BLOCKS), c = 2 + (int)random_(CONTEXTS - 2);
  ptr popped;
  switch (random_(30)) {
  case 0:
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    look("a wait", 0);
    return;
  case 1:
    must(cuStreamSynchronize(0), "cuStreamSynchronize");
    look("a wait for a stream", 0);
    return;
  case 2:
    must(cuMemPoolTrimTo(pool, 0), "cuMemPoolTrimTo");
    look("a trim", 0);
    return;
  case 4:
    must(cuDeviceGraphMemTrim(0), "cuDeviceGraphMemTrim");
    look("a trim of graphs", 0);
    return;
  case 5:
    if (graphs) graph();
    return;
  case 3: // a context begins, or ends with what was taken in it
    if (!contexts[c]) {
      int code = cuCtxCreate_v2(&contexts[c], 0, 0);
      if (code && code != 2) printf("cuCtxCreate = %d\n", code), faults++;
      if (code) contexts[c] = 0;
      else must(cuCtxPopCurrent_v2(&popped), "cuCtxPopCurrent"); // the stack of a thread has an end
      look("a context", c);
      return;
    }
    for (int k = 0; k < BLOCKS; k++) // the rest ends with it
      if (b[k].used && b[k].context == c && stays(k)) give(k);
      else if (b[k].context == c) b[k].used = 0;
    must(cuCtxDestroy_v2(contexts[c]), "cuCtxDestroy");
    contexts[c] = 0;
    look("a context's end", c);
    return;
  }
  if (b[i].used) give(i);
  else take(i);
}

int main(int argc, char **argv) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *sim = dlopen(getenv("GPUMEM_LIBCUDA"), RTLD_NOW | RTLD_LOCAL);
  if (!lib || !sim || argc < 3) return puts(dlerror()), 1;
#define F(name, args) if (!(*(void **)&name = dlsym(lib, #name))) return puts("no " #name), 1;
  FUNCTIONS(F)
  if (!(*(void **)&status = dlsym(sim, "gpumemSimStatus"))) return puts("no gpumemSimStatus"), 1;
  struct { int type, handles, location, id; void *security; size_t limit; char rest[56]; } limited = {1, 0, 1, 0, 0, 96 * MIB, {0}};
  graphs = argc > 3;
  state = strtoull(argv[1], 0, 10) * 2 + 1;
  must(cuInit(0), "cuInit");
  must(cuDevicePrimaryCtxRetain(&contexts[0], 0), "cuDevicePrimaryCtxRetain");
  must(cuCtxSetCurrent(contexts[0]), "cuCtxSetCurrent");
  must(cuCtxCreate_v2(&contexts[1], 0, 0), "cuCtxCreate");
  must(cuMemPoolCreate(&pool, &limited), "cuMemPoolCreate");
  look("the start", 0);
  for (int n = atoi(argv[2]); n > 0; n--) step();
  for (int i = 0; i < BLOCKS; i++)
    if (b[i].used) give(i);
  must(cuMemPoolDestroy(pool), "cuMemPoolDestroy");
  must(cuCtxSynchronize(), "cuCtxSynchronize"); // what was freed in the pool may not be out of use before
  look("the end", 0);
  return faults > 0;
}
