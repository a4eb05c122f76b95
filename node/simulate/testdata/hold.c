// Makes a context on a device and allocates and frees: hold DEVICE BYTES|-BYTES|_exit|wait|gpu DEVICE...
// wait is for the end of descriptor 3.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW);
  if (!lib) return fprintf(stderr, "%s\n", dlerror()), 1;
  int (*init)(unsigned) = dlsym(lib, "cuInit");
  int (*retain)(void **, int) = dlsym(lib, "cuDevicePrimaryCtxRetain");
  int (*current)(void *) = dlsym(lib, "cuCtxSetCurrent");
  int (*alloc)(uint64_t *, size_t) = dlsym(lib, "cuMemAlloc_v2");
  int (*release)(uint64_t) = dlsym(lib, "cuMemFree_v2");
  void *context;
  uint64_t last = 0;
  if (init(0) || retain(&context, atoi(argv[1])) || current(context)) return 1;
  for (int i = 2; i < argc; i++) {
    if (!strcmp(argv[i], "_exit")) _exit(0);
    if (!strcmp(argv[i], "wait")) {
      char c;
      while (read(3, &c, 1) > 0) {}
      continue;
    }
    if (!strcmp(argv[i], "gpu")) {
      if (retain(&context, atoi(argv[++i])) || current(context)) return 1;
      continue;
    }
    long long bytes = atoll(argv[i]);
    if (bytes < 0) release(last);
    else alloc(&last, (size_t)bytes);
  }
  return 0;
}
