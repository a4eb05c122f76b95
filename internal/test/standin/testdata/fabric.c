// What NVML says of the first device's fabric, as JAX 0.6 asks for it: the code, the state
// and the bytes that were left alone behind the struct.

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct info { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; };

int main(void) {
  void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device;
  struct { struct info info; unsigned char behind[8]; } v;
  memset(&v, 0x5a, sizeof v);
  v.info.version = sizeof v.info | 2 << 24; // nvmlGpuFabricInfo_v2
  if (!lib || ((int (*)(void))dlsym(lib, "nvmlInit_v2"))()) return puts("no NVML"), 1;
  if (((int (*)(unsigned, void **))dlsym(lib, "nvmlDeviceGetHandleByIndex_v2"))(0, &device)) return puts("no device"), 1;
  int e = ((int (*)(void *, void *))dlsym(lib, "nvmlDeviceGetGpuFabricInfoV"))(device, &v);
  int left = 0;
  for (unsigned i = 0; i < sizeof v.behind; i++) left += v.behind[i] == 0x5a;
  printf("%d %d %d\n", e, v.info.state, left);
  return 0;
}
