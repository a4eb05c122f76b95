// What the driver grants for what is asked, by the change of what is free: a line for each,
// WORDS REQUESTED GRANTED, in bytes. A call that the driver does not have, or refuses, is a line
// WORDS REQUESTED error CODE.
//
//	grants
//	grants hold MIB   takes blocks of 64 MiB until MIB are had or one is refused, prints
//	                  "held BYTES CODE", and holds them until its input ends

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
typedef void *ptr;

#define DRIVER(F) \
  F(cuInit, (unsigned)) F(cuDevicePrimaryCtxRetain, (ptr *, int)) F(cuCtxSetCurrent, (ptr)) F(cuCtxCreate_v2, (ptr *, unsigned, int)) F(cuCtxDestroy_v2, (ptr)) \
  F(cuMemGetInfo_v2, (size_t *, size_t *)) F(cuMemAlloc_v2, (u64 *, size_t)) F(cuMemFree_v2, (u64)) F(cuMemAllocPitch_v2, (u64 *, size_t *, size_t, size_t, unsigned)) \
  F(cuMemAllocManaged, (u64 *, size_t, unsigned)) F(cuMemCreate, (u64 *, size_t, const int *, u64)) F(cuMemRelease, (u64)) \
  F(cuMemGetAllocationGranularity, (size_t *, const int *, int)) F(cuCtxSynchronize, (void)) F(cuDeviceGetDefaultMemPool, (ptr *, int)) \
  F(cuMemPoolGetAttribute, (ptr, int, void *)) F(cuMemAllocAsync, (u64 *, size_t, ptr)) F(cuMemFreeAsync, (u64, ptr))

static struct {
#define F(name, args) int (*name) args;
  DRIVER(F)
#undef F
} cu;

enum { KIB = 1 << 10, MIB = 1 << 20, BLOCK = 64 * MIB };

static size_t free_bytes(void) {
  size_t f = 0, t = 0;
  cu.cuMemGetInfo_v2(&f, &t);
  return f;
}

static void row(const char *words, size_t requested, int code, size_t before) {
  if (code) printf("%s %zu error %d\n", words, requested, code);
  else printf("%s %zu %lld\n", words, requested, (long long)before - (long long)free_bytes());
}

// many takes count grants of n bytes, prints what they take together, and frees them.
static void many(const char *words, int count, size_t n) {
  u64 *at = calloc(count, sizeof *at);
  size_t before = free_bytes();
  int code = 0, i = 0;
  for (; i < count && !code; i++) code = cu.cuMemAlloc_v2(&at[i], n);
  row(words, n * count, code, before);
  for (int k = 0; k < i; k++)
    if (at[k]) cu.cuMemFree_v2(at[k]);
  free(at);
}

static void grants(void) {
  static const size_t sizes[] = {1, 512, 256 * KIB, MIB, MIB + 1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 5 * MIB + 512, 20 * MIB, 100 * MIB + 1, 1024u * MIB};
  for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) many("alloc", 1, sizes[i]);
  many("alloc-100", 100, KIB);
  many("alloc-50", 50, MIB);
  many("alloc-50", 50, MIB + MIB / 2);
}

static void pitched(void) {
  size_t pitch = 0, before = free_bytes();
  u64 at = 0;
  int code = cu.cuMemAllocPitch_v2(&at, &pitch, 1000, 1100, 4);
  row("pitched", 1000 * 1100, code, before);
  if (!code) printf("pitch 1000 %zu\n", pitch), cu.cuMemFree_v2(at);
  u64 all[50] = {0};
  before = free_bytes();
  int i = 0;
  for (; i < 50 && !code; i++) code = cu.cuMemAllocPitch_v2(&all[i], &pitch, 1000, 1100, 4);
  row("pitched-50", 50 * 1000 * 1100, code, before);
  for (int k = 0; k < i; k++)
    if (all[k]) cu.cuMemFree_v2(all[k]);
}

// managed memory is far below what is free: a GPU can hang by more.
static void managed(void) {
  size_t before = free_bytes();
  u64 at = 0;
  int code = cu.cuMemAllocManaged(&at, 16 * MIB, 1);
  row("managed-untouched", 16 * MIB, code, before);
  if (!code) cu.cuMemFree_v2(at);
}

static void pages(void) {
  // CUmemAllocationProp: pinned memory of device 0.
  int props[8] = {1, 0, 1, 0};
  size_t least = 0, best = 0;
  int code = cu.cuMemGetAllocationGranularity(&least, props, 0);
  if (!code) code = cu.cuMemGetAllocationGranularity(&best, props, 1);
  if (code) { printf("granularity 0 error %d\n", code); return; }
  printf("granularity-least 1 %zu\ngranularity-best 1 %zu\n", least, best);
  for (size_t n = least; n <= 64 * MIB; n *= 4) {
    u64 handle = 0;
    size_t before = free_bytes();
    row("page", n, code = cu.cuMemCreate(&handle, n, props, 0), before);
    if (!code) cu.cuMemRelease(handle);
  }
}

static u64 reserved(ptr pool) {
  u64 bytes = 0;
  cu.cuMemPoolGetAttribute(pool, 5, &bytes); // CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
  return bytes;
}

static void pools(void) {
  static const size_t sizes[] = {KIB, 33 * MIB, 100 * MIB};
  ptr pool = 0;
  int code = cu.cuDeviceGetDefaultMemPool(&pool, 0);
  if (code) { printf("pool 0 error %d\n", code); return; }
  for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    u64 at = 0;
    size_t before = free_bytes();
    row("pool", sizes[i], code = cu.cuMemAllocAsync(&at, sizes[i], 0), before);
    if (code) continue;
    printf("pool-reserved %zu %llu\n", sizes[i], (unsigned long long)reserved(pool));
    cu.cuMemFreeAsync(at, 0);
    cu.cuCtxSynchronize();
    printf("pool-kept %zu %llu\n", sizes[i], (unsigned long long)reserved(pool));
  }
}

static void contexts(void) {
  ptr second = 0;
  size_t before = free_bytes();
  int code = cu.cuCtxCreate_v2(&second, 0, 0);
  row("second-context", 1, code, before);
  if (!code) cu.cuCtxDestroy_v2(second);
}

static int hold(size_t most) {
  size_t got = 0;
  int code = 0;
  u64 at;
  while (got < most && !(code = cu.cuMemAlloc_v2(&at, BLOCK))) got += BLOCK;
  printf("held %zu %d\n", got, code);
  fflush(stdout);
  while (getchar() != EOF) {}
  return 0;
}

int main(int argc, char **argv) {
  ptr lib = dlopen("libcuda.so.1", RTLD_NOW), context;
  if (!lib) return puts(dlerror()), 1;
#define F(name, args) \
  if (!(*(ptr *)&cu.name = dlsym(lib, #name))) return puts("no " #name), 1;
  DRIVER(F)
#undef F
  int code;
  if ((code = cu.cuInit(0)) || (code = cu.cuDevicePrimaryCtxRetain(&context, 0)) || (code = cu.cuCtxSetCurrent(context))) return printf("no context: %d\n", code), 1;
  if (argc > 2 && !strcmp(argv[1], "hold")) return hold((size_t)atol(argv[2]) * MIB);
  size_t f = 0, t = 0;
  cu.cuMemGetInfo_v2(&f, &t);
  printf("context 1 %zu\n", t - f);
  grants();
  pitched();
  managed();
  pages();
  pools();
  contexts();
  return 0;
}
