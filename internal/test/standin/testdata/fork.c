// Forks once the driver is loaded, and prints what the child gets: of cuInit, of an allocation, how
// many GPUs NVML counts, and of a child of its own. With an argument the parent has called cuInit.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*function)();
static void *lib, *nvml;

static function of(const char *name) { return (function)dlsym(lib, name); }

static void child(int more) {
  uint64_t at = 0;
  void *context, *looked_up = 0;
  unsigned gpus = 0;
  int code = of("cuInit")(0), taken = -1;
  if (!code && !of("cuDevicePrimaryCtxRetain")(&context, 0) && !of("cuCtxSetCurrent")(context)) taken = of("cuMemAlloc_v2")(&at, (size_t)1 << 20);
  int found = of("cuGetProcAddress_v2")("cuMemFree", &looked_up, 12000, (uint64_t)0, (int *)0);
  if (!found && at) found = ((function)looked_up)(at);
  ((function)dlsym(nvml, "nvmlInit_v2"))();
  ((function)dlsym(nvml, "nvmlDeviceGetCount_v2"))(&gpus);
  printf("%d %d %d %u\n", code, taken, found, gpus);
  fflush(stdout);
  if (more && !fork()) child(0), _exit(0);
  while (wait(0) > 0) {}
}

int main(int argc, char **argv) {
  (void)argv;
  if (!(lib = dlopen("libcuda.so.1", RTLD_NOW)) || !(nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW))) return 1;
  unsigned gpus = 0;
  ((function)dlsym(nvml, "nvmlInit_v2"))(); // which an engine asks before it forks
  ((function)dlsym(nvml, "nvmlDeviceGetCount_v2"))(&gpus);
  if (argc > 1 && of("cuInit")(0)) return 2;
  if (!fork()) child(argc == 1), _exit(0);
  while (wait(0) > 0) {}
  printf("parent %d\n", of("cuInit")(0));
  return 0;
}
