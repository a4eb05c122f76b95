// Prints what the device has of shared memory: a multiprocessor, and a block at most.

#include <dlfcn.h>
#include <stdio.h>

int main(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  int multiprocessor = -1, block = -1;
  int (*attribute)(int *, int, int) = dlsym(driver, "cuDeviceGetAttribute");
  int e = ((int (*)(unsigned))dlsym(driver, "cuInit"))(0);
  e |= attribute(&multiprocessor, 81, 0) | attribute(&block, 97, 0);
  printf("%d %d %d\n", e, multiprocessor, block);
  return 0;
}
