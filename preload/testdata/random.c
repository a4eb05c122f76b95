// A program that takes and frees memory at random, plain and in streams, with work in
// all of them, on the simulated driver, which finds every use of memory that a run could
// get wrong. With a second argument each driver call fails in turn: then nothing may be
// refused or lost afterwards.
//
//	random SEED [faults]

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
typedef void *ptr;

static int (*init)(unsigned), (*retain)(ptr *, int), (*set)(ptr), (*alloc)(u64 *, size_t), (*free_)(u64), (*alloc_async)(u64 *, size_t, ptr),
    (*free_async)(u64, ptr), (*create)(ptr *, unsigned), (*destroy)(ptr), (*wait)(void), (*info)(size_t *, size_t *);
static int (*use)(u64, u64, ptr), (*hazards)(void);
static void (*fail)(int64_t);

static unsigned long long state;
static unsigned random_(unsigned n) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (unsigned)(state >> 33) % n;
}

enum { STREAMS = 3, BLOCKS = 40, MIB = 1 << 20 };
static ptr streams[STREAMS];
static struct { u64 at, bytes; int stream; } b[BLOCKS]; // stream -1: plain

static int failing;

// must is a call that may fail only where a fault was ordered.
static int must(int code, const char *what) {
  if (code && code != 2 && !failing) printf("%s = %d\n", what, code), exit(1);
  return code;
}

static void step(void) {
  int i = (int)random_(BLOCKS);
  if (b[i].at) {
    int code;
    if (b[i].stream < 0 || !random_(4)) code = must(free_(b[i].at), "cuMemFree");
    else code = must(free_async(b[i].at, streams[b[i].stream]), "cuMemFreeAsync");
    if (!code) b[i].at = 0;
    return;
  }
  b[i].bytes = 1 + random_(4 * MIB);
  b[i].stream = (int)random_(STREAMS + 1) - 1;
  int code = b[i].stream < 0 ? alloc(&b[i].at, b[i].bytes) : alloc_async(&b[i].at, b[i].bytes, streams[b[i].stream]);
  if (must(code, "an allocation")) {
    b[i].at = 0;
    return;
  }
  if (!failing) use(b[i].at, b[i].bytes, streams[b[i].stream < 0 ? (int)random_(STREAMS) : b[i].stream]);
}

static void all_free(void) {
  for (int i = 0; i < BLOCKS; i++) {
    if (b[i].at) must(free_(b[i].at), "cuMemFree");
    b[i].at = 0;
  }
}

int main(int argc, char **argv) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *sim = dlopen(getenv("GPUMEM_LIBCUDA"), RTLD_NOW | RTLD_LOCAL);
  if (!lib || !sim) return puts(dlerror()), 1;
#define GET(f, from, name) if (!(*(void **)&f = dlsym(from, name))) return puts("no " name), 1
  GET(init, lib, "cuInit"); GET(retain, lib, "cuDevicePrimaryCtxRetain"); GET(set, lib, "cuCtxSetCurrent"); GET(alloc, lib, "cuMemAlloc_v2");
  GET(free_, lib, "cuMemFree_v2"); GET(alloc_async, lib, "cuMemAllocAsync"); GET(free_async, lib, "cuMemFreeAsync"); GET(create, lib, "cuStreamCreate");
  GET(destroy, lib, "cuStreamDestroy_v2"); GET(wait, lib, "cuCtxSynchronize"); GET(info, lib, "cuMemGetInfo_v2");
  GET(use, sim, "gpumemSimUse"); GET(hazards, sim, "gpumemSimHazards"); GET(fail, sim, "gpumemSimFail");
  state = strtoull(argv[1], 0, 10) * 2 + 1;
  ptr c;
  init(0);
  retain(&c, 0);
  set(c);
  for (int i = 0; i < STREAMS; i++) must(create(&streams[i], 1), "cuStreamCreate");
  size_t before, after, total;
  must(info(&before, &total), "cuMemGetInfo");
  if (argc > 2) {
    for (int n = 1; n <= 150; n++) {
      failing = 1;
      fail(n);
      for (int i = 0; i < 60; i++) step();
      fail(0);
      failing = 0;
      all_free();
      must(wait(), "cuCtxSynchronize");
      must(info(&after, &total), "cuMemGetInfo");
      if (after != before) printf("call %d failed: %zu bytes are free afterwards, %zu before\n", n, after, before);
    }
  } else {
    for (int i = 0; i < 3000; i++) {
      step();
      if (!random_(50)) must(wait(), "cuCtxSynchronize");
      if (!random_(100)) { // a stream ends, and its memory with it
        int s = (int)random_(STREAMS);
        for (int k = 0; k < BLOCKS; k++)
          if (b[k].at && b[k].stream == s) must(free_async(b[k].at, streams[s]), "cuMemFreeAsync"), b[k].at = 0;
        must(destroy(streams[s]), "cuStreamDestroy");
        must(create(&streams[s], 1), "cuStreamCreate");
      }
    }
    all_free();
    must(wait(), "cuCtxSynchronize");
    must(info(&after, &total), "cuMemGetInfo");
    if (after != before) printf("%zu bytes are free at the end, %zu before\n", after, before);
  }
  if (hazards()) printf("%d unsafe uses of memory\n", hazards());
  return 0;
}
