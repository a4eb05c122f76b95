// Prints the total in MiB and the UUID of each device, one on a line. With an argument NVML is
// started before, and the variable CUDA_VISIBLE_DEVICES is set to it then; at the end each device's
// number in NVML is printed, by the bus, and how many NVML sees.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  int (*nvmlInit)(void) = dlsym(nvml, "nvmlInit_v2");
  int (*nvmlCount)(unsigned *) = dlsym(nvml, "nvmlDeviceGetCount_v2");
  int (*byBus)(const char *, void **) = dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2");
  int (*index)(void *, unsigned *) = dlsym(nvml, "nvmlDeviceGetIndex");
  unsigned all = 0;
  if (argc > 1 && (nvmlInit() || nvmlCount(&all) || setenv("CUDA_VISIBLE_DEVICES", argv[1], 1))) return puts("NVML"), 1;
  void *lib = dlopen("libcuda.so.1", RTLD_NOW);
  if (!lib) return puts(dlerror()), 1;
  int (*init)(unsigned) = dlsym(lib, "cuInit");
  int (*count)(int *) = dlsym(lib, "cuDeviceGetCount");
  int (*total)(size_t *, int) = dlsym(lib, "cuDeviceTotalMem_v2");
  int (*uuid)(unsigned char *, int) = dlsym(lib, "cuDeviceGetUuid_v2");
  int (*bus)(char *, int, int) = dlsym(lib, "cuDeviceGetPCIBusId");
  int (*ordinal)(int *, const char *) = dlsym(lib, "cuDeviceGetByPCIBusId");
  int n = 0, e = init(0);
  if (e || count(&n)) return printf("error %d\n", e), 1;
  for (int d = 0; d < n; d++) {
    size_t bytes = 0;
    unsigned char id[16];
    if (total(&bytes, d) || uuid(id, d)) return 1;
    printf("%zu ", bytes >> 20);
    for (int i = 0; i < 16; i++) printf("%02x", id[i]);
    puts("");
  }
  for (int d = 0; argc > 1 && d < n; d++) {
    char id[32];
    void *handle;
    unsigned number;
    int again;
    if (bus(id, sizeof id, d) || byBus(id, &handle) || index(handle, &number) || ordinal(&again, id) || again != d) return 1;
    printf("%d is %u of %u\n", d, number, all);
  }
  return 0;
}
