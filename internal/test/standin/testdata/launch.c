// Launches kernels by the runtime whose file is its argument: as the compiler writes f<<<1, 1, 0, s>>>(), by a
// configuration, and cooperatively; then in a stream that there is not. It prints how long the GPU was busy with
// them, in microseconds, and the result of the last.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

typedef struct { unsigned x, y, z; } dim3;

int main(int argc, char **argv) {
  void *lib = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL), *driver = dlopen("libcuda.so.1", RTLD_NOW), *s = 0, *got;
  dim3 one = {1, 1, 1}, grid, block;
  size_t shared;
#define CALL(name, ...) ((int (*)(__VA_ARGS__))dlsym(lib, #name))
  int e = CALL(cudaStreamCreate, void **)(&s);
  int (*launch)(void *, dim3, dim3, void **, size_t, void *) = dlsym(lib, "__cudaLaunchKernel");
  e |= CALL(__cudaPushCallConfiguration, dim3, dim3, size_t, void *)(one, one, 0, s);
  e |= CALL(__cudaPopCallConfiguration, dim3 *, dim3 *, size_t *, void **)(&grid, &block, &shared, &got);
  e |= launch((void *)1, grid, block, 0, shared, got);
  e |= CALL(cudaLaunchKernel, void *, dim3, dim3, void **, size_t, void *)((void *)1, one, one, 0, 0, 0);
  struct { dim3 grid, block; size_t shared; void *stream; } config = {one, one, 0, s};
  e |= CALL(cudaLaunchKernelExC, void *, void *, void **)(&config, (void *)1, 0);
  e |= CALL(cudaLaunchCooperativeKernel, void *, dim3, dim3, void **, size_t, void *)((void *)1, one, one, 0, 0, s);
  e |= CALL(cudaDeviceSynchronize, void)();
  uint64_t busy = ((uint64_t(*)(int, int))dlsym(driver, "gpumemSimBusy"))(0, 0);
  printf("%d %d %d\n", e, (int)(busy / 1000), launch((void *)1, one, one, 0, 0, (void *)0x1234));
  return 0;
}
