// A library that has a runtime in it, as libcudart_static.a is in others: its functions are hidden, and
// serve nothing on the simulated driver. With PROGRAM the program that loads it.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef PROGRAM
#define RUNTIME __attribute__((visibility("hidden"), noipa, aligned(16))) int
static volatile int symbolNotFound = 500;
RUNTIME cudaMalloc(void **p, size_t n) { (void)p, (void)n; return symbolNotFound; }
RUNTIME cudaFree(void *p) { (void)p; return symbolNotFound; }
// Too short for a jump, with another function close behind it: left alone.
__asm__(".text\n.type cudaDeviceReset,%function\ncudaDeviceReset: ret\n.type behind,%function\nbehind: ret\n.balign 16");
RUNTIME cudaOfNoRuntime(void) { return symbolNotFound; }
#if RELEASE == 12
RUNTIME cudaGetDeviceProperties_v2(void) { return symbolNotFound; }
#elif RELEASE == 13
RUNTIME cudaGetDriverEntryPointByVersion(void) { return symbolNotFound; }
#endif
extern void behind_(void) __asm__("behind");

// Three digits: what is served, a block, and a function that is no other runtime's.
__attribute__((aligned(16))) int use(void) {
  void *p = 0;
  int served = !cudaMalloc(&p, 1 << 20), block = p && !cudaFree(p), other = cudaOfNoRuntime() == symbolNotFound;
  behind_();
  return 100 * served + 10 * block + other;
}
#else
int main(int n, char **args) { // LIBRARY RUNTIME...
  void *library = dlopen(args[1], RTLD_NOW);
  int (*use)(void) = library ? (int (*)(void))dlsym(library, "use") : 0;
  if (!use) return fprintf(stderr, "%s\n", dlerror()), 2;
  for (int i = 2; i < n; i++) {
    void *runtime = dlopen(args[i], RTLD_NOW);
    int (*redirect)(void) = runtime ? (int (*)(void))dlsym(runtime, "gpumemRedirect") : 0;
    if (!redirect) return fprintf(stderr, "%s\n", dlerror()), 2;
    printf("%d", redirect());
    printf(" %d ", redirect());
  }
  printf("%d\n", use());
}
#endif
