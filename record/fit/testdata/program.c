// A program that takes GPU memory through the driver, holds MiB of it at the peak, and
// frees it: program MIB [EXIT [children]]. It ends with EXIT, or with 1 if it is refused.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
  int n = atoi(argv[1]), status;
  if (argc > 3)
    for (int i = 0; i < 2; i++)
      if (!fork()) return execl(argv[0], argv[0], argv[1], (char *)0);
  void *lib = dlopen("libcuda.so.1", RTLD_NOW);
  if (!lib) return fprintf(stderr, "%s\n", dlerror()), 1;
  int (*init)() = dlsym(lib, "cuInit"), (*retain)() = dlsym(lib, "cuDevicePrimaryCtxRetain"), (*set)() = dlsym(lib, "cuCtxSetCurrent");
  int (*alloc)() = dlsym(lib, "cuMemAlloc_v2"), (*release)() = dlsym(lib, "cuMemFree_v2");
  void *context;
  uint64_t *at = calloc(n + 1, sizeof *at);
  if (n && (init(0) || retain(&context, 0) || set(context))) return fprintf(stderr, "no context\n"), 1;
  for (int i = 0; i < n; i++)
    if (alloc(&at[i], (size_t)1 << 20)) return fprintf(stderr, "out of memory at %d MiB\n", i), 1;
  for (int i = 0; i < n; i++) release(at[i]);
  while (wait(&status) > 0) {}
  int code = argc > 2 ? atoi(argv[2]) : 0;
  if (code) fprintf(stderr, "cannot open the dataset\n\n");
  return code;
}
