// Takes memory through the driver by each of several ways, one after another, and holds it
// until its standard input ends. Each LIBRARY is opened as dlopen takes it.
//
//	bypass LIBRARY MIB [LIBRARY MIB ...]

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *library;

static void call(const char *name, int code) {
  if (code) printf("%s: %d\n", name, code), exit(1);
}

#define FUNCTION(name, args) int(*name) args = (int(*) args)dlsym(library, #name)

int main(int argc, char **argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!(library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL))) return printf("%s\n", dlerror()), 1;
    FUNCTION(cuInit, (unsigned));
    FUNCTION(cuDevicePrimaryCtxRetain, (void **, int));
    FUNCTION(cuCtxSetCurrent, (void *));
    FUNCTION(cuMemAlloc_v2, (uint64_t *, size_t));
    void *context;
    uint64_t at;
    call("cuInit", cuInit(0));
    call("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
    call("cuCtxSetCurrent", cuCtxSetCurrent(context));
    call("cuMemAlloc", cuMemAlloc_v2(&at, (size_t)atol(argv[i + 1]) << 20));
  }
  puts("holds");
  fflush(stdout);
  char c;
  while (read(0, &c, 1) > 0) {
  }
  return 0;
}
