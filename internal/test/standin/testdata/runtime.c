// A program of CUDA's runtime that asks for 0 bytes and for 1 MiB: runtime LIBRARY. It writes
// the code of each and whether there is an address, then the codes of their releases.

#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
  void *lib = argc == 2 ? dlopen(argv[1], RTLD_NOW) : 0, *p = &lib, *q = 0;
  if (!lib) return puts(dlerror()), 1;
  int (*allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(lib, "cudaMalloc");
  int (*release)(void *) = (int (*)(void *))dlsym(lib, "cudaFree");
  int none = allocate(&p, 0), some = allocate(&q, 1 << 20);
  printf("%d %d, %d %d, %d %d\n", none, p != 0, some, q != 0, release(p), release(q));
  return 0;
}
