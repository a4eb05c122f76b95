// Makes contexts on a shared device whose file is cut after cuInit, FILE: prints the codes of two tries.
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context;
  int (*init)(unsigned) = dlsym(lib, "cuInit");
  int (*retain)(void **, int) = dlsym(lib, "cuDevicePrimaryCtxRetain");
  if (argc < 2 || init(0) || truncate(argv[1], 100)) return 1;
  int first = retain(&context, 0), second = retain(&context, 0);
  printf("%d %d\n", first, second);
  return 0;
}
