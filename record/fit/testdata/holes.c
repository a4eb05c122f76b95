// A program that takes blocks of 1 MiB, frees half of them in fours, and takes blocks of
// 8 MiB, for which an allocator needs memory beside the holes unless it moves pages:
// holes MIB.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  int n = atoi(argv[1]);
  void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context;
  if (!lib) return fprintf(stderr, "%s\n", dlerror()), 1;
  int (*init)() = dlsym(lib, "cuInit"), (*retain)() = dlsym(lib, "cuDevicePrimaryCtxRetain"), (*set)() = dlsym(lib, "cuCtxSetCurrent");
  int (*alloc)() = dlsym(lib, "cuMemAlloc_v2"), (*release)() = dlsym(lib, "cuMemFree_v2");
  uint64_t *at = calloc(n, sizeof *at), large;
  if (init(0) || retain(&context, 0) || set(context)) return fprintf(stderr, "no context\n"), 1;
  for (int i = 0; i < n; i++)
    if (alloc(&at[i], (size_t)1 << 20)) return fprintf(stderr, "out of memory at %d MiB\n", i), 1;
  for (int i = 0; i < n; i++)
    if (i / 4 % 2) release(at[i]);
  for (int i = 0; i < n / 20; i++)
    if (alloc(&large, (size_t)8 << 20)) return fprintf(stderr, "out of memory at the block of 8 MiB %d\n", i), 1;
  return 0;
}
