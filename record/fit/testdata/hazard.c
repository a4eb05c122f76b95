// A program that writes to the same memory in two streams with nothing that orders them, which
// most GPUs let pass. It ends with 1 if it is refused.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int main(void) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW);
  if (!lib) return fprintf(stderr, "%s\n", dlerror()), 1;
  int (*init)() = dlsym(lib, "cuInit"), (*retain)() = dlsym(lib, "cuDevicePrimaryCtxRetain"), (*set)() = dlsym(lib, "cuCtxSetCurrent");
  int (*alloc)() = dlsym(lib, "cuMemAlloc_v2"), (*stream)() = dlsym(lib, "cuStreamCreate");
  int (*fill)(uint64_t, unsigned char, size_t, void *) = (int (*)(uint64_t, unsigned char, size_t, void *))dlsym(lib, "cuMemsetD8Async");
  void *context, *streams[2];
  uint64_t at;
  if (init(0) || retain(&context, 0) || set(context) || alloc(&at, (size_t)64 << 20)) return fprintf(stderr, "no memory\n"), 1;
  for (int i = 0; i < 2; i++) {
    int code = stream(&streams[i], 1);
    if (!code) code = fill(at, i, (size_t)64 << 20, streams[i]);
    if (code) return fprintf(stderr, "stream %d: error %d\n", i, code), 1;
  }
  return 0;
}
