// Asks NVML what engines ask, of device 0: a line for each function, with its result and the
// number that it gives.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void *lib;
typedef int (*function)();

static function of(const char *name) { return (function)dlsym(lib, name); }

int main(void) {
  static const char *const one[] = { // of a device, into an unsigned
    "nvmlDeviceGetArchitecture", "nvmlDeviceGetBrand", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetMultiGpuBoard", "nvmlDeviceGetMemoryBusWidth",
    "nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceIsMigDeviceHandle", "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetFanSpeed",
  };
  void *a, *b;
  unsigned n = 0, m = 0;
  if (!(lib = dlopen("libnvidia-ml.so.1", RTLD_NOW)) || of("nvmlInit_v2")()) return 1;
  if (of("nvmlDeviceGetHandleByIndex_v2")(0, &a) || of("nvmlDeviceGetHandleByIndex_v2")(1, &b)) return 2;
  for (unsigned i = 0; i < sizeof one / sizeof *one; i++) {
    n = 0;
    int code = of(one[i])(a, &n);
    printf("%s %d %u\n", one[i] + 10, code, n);
  }
#define SAY(name, ...) do { n = m = 0; int code = of("nvmlDevice" name)(__VA_ARGS__); printf("%s %d %u %u\n", name, code, n, m); } while (0)
  SAY("GetCudaComputeCapability", a, &n, &m);
  SAY("GetMigMode", a, &n, &m);
  SAY("GetP2PStatus", a, b, 2, &n);
  SAY("GetP2PStatus", a, a, 2, &n);
  SAY("GetTopologyCommonAncestor", a, b, &n);
  SAY("GetNvLinkState", a, 0, &n);
  SAY("GetClockInfo", a, 1, &n);
  SAY("GetClockInfo", a, 4, &n);
  SAY("GetTemperature", a, 0, &n);
  SAY("GetMinorNumber", (void *)9, &n);
  void *near[2] = {0, 0};
  n = 2;
  int code = of("nvmlDeviceGetTopologyNearestGpus")(a, 30, &n, near);
  printf("nearest %d %u %d\n", code, n, near[0] == b);
  struct { char legacy[16]; unsigned domain, bus, slot, id, subsystem; char bus_id[32]; } pci;
  memset(&pci, 0, sizeof pci);
  code = of("nvmlDeviceGetPciInfo_v3")(b, &pci);
  printf("pci %d %s %s %u\n", code, pci.legacy, pci.bus_id, pci.bus);
  return 0;
}
