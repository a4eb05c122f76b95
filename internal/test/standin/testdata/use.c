// A program that takes memory of the first device and keeps it until its standard
// input ends: use BYTES. Then a line: the code of cuMemAlloc, free and total as
// the driver says, and the same as NVML says.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void *lib;
#define CALL(name, ...) ((int (*)())dlsym(lib, #name))(__VA_ARGS__)

int main(int argc, char **argv) {
  if (argc != 2 || !(lib = dlopen("libcuda.so.1", RTLD_NOW))) return puts("no libcuda.so.1"), 1;
  void *context;
  uint64_t p, memory[3] = {0};
  size_t free = 0, total = 0;
  int e = CALL(cuInit, 0);
  if (e) return printf("cuInit %d\n", e), 1;
  e = CALL(cuDevicePrimaryCtxRetain, &context, 0);
  if (!e) e = CALL(cuCtxSetCurrent, context);
  if (!e) e = CALL(cuMemAlloc_v2, &p, (size_t)strtoull(argv[1], 0, 10));
  CALL(cuMemGetInfo_v2, &free, &total);
  lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  void *device;
  if (!lib || CALL(nvmlInit_v2) || CALL(nvmlDeviceGetHandleByIndex_v2, 0, &device) || CALL(nvmlDeviceGetMemoryInfo, device, memory)) return puts("no NVML"), 1;
  printf("%d %zu %zu %llu %llu\n", e, free, total, (unsigned long long)memory[1], (unsigned long long)memory[0]);
  fflush(stdout);
  while (getchar() != EOF) {}
  return 0;
}
