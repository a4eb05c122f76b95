// Prints the total in MiB and the UUID of each device, one on a line.
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW);
  if (!lib) return puts(dlerror()), 1;
  int (*init)(unsigned) = dlsym(lib, "cuInit");
  int (*count)(int *) = dlsym(lib, "cuDeviceGetCount");
  int (*total)(size_t *, int) = dlsym(lib, "cuDeviceTotalMem_v2");
  int (*uuid)(unsigned char *, int) = dlsym(lib, "cuDeviceGetUuid_v2");
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
  return 0;
}
