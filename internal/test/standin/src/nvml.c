// A stand-in for libnvidia-ml.so.1: the simulated devices with their memory, as
// the libcuda.so.1 beside this library knows them. All functions that are not here
// answer NVML_ERROR_NOT_SUPPORTED (noop.c, preload/names/nvml.txt).

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t u64;
#define FN __attribute__((visibility("default"))) int

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, UNKNOWN = 999 };

struct status { u64 total, used; char name[96], uuid[96]; };

// ask is a function of the library beside this one.
static void *ask(const char *name) {
  static void *lib;
  if (!lib) {
    Dl_info here;
    char path[4096];
    if (!dladdr((void *)ask, &here)) return 0;
    const char *slash = strrchr(here.dli_fname, '/');
    // What programs find under that name comes first: a library before the driver has its name, too.
    dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    snprintf(path, sizeof path, "%.*slibcuda.so.1", slash ? (int)(slash + 1 - here.dli_fname) : 0, here.dli_fname);
    lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  return lib ? dlsym(lib, name) : 0;
}

// look needs no context and makes none.
static int look(int i, struct status *s) {
  int (*f)(int, u64 *, u64 *, char *, char *) = (int (*)(int, u64 *, u64 *, char *, char *))ask("gpumemSimStatus");
  return !f ? UNKNOWN : f(i, &s->total, &s->used, s->name, s->uuid) ? INVALID : OK;
}

// A device's handle is its number and 1, so that none is null.
static int of(void *device, struct status *s) { return look((int)((intptr_t)device - 1), s); }

static int text(char *to, unsigned room, const char *s) {
  if (!to || strlen(s) >= room) return to ? SMALL : INVALID;
  strcpy(to, s);
  return OK;
}

static int count(unsigned *n) {
  struct status s;
  for (*n = 0; !look(*n, &s); ++*n) {}
  return OK;
}

static int byIndex(unsigned i, void **d) {
  struct status s;
  int e = look(i, &s);
  if (!e) *d = (void *)(intptr_t)(i + 1);
  return e;
}

FN nvmlInitWithFlags(unsigned f) { struct status s; (void)f; return look(0, &s) ? 9 : OK; } // NVML_ERROR_DRIVER_NOT_LOADED
FN nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
FN nvmlInit(void) { return nvmlInitWithFlags(0); }
FN nvmlShutdown(void) { return OK; }
FN nvmlSystemGetDriverVersion(char *s, unsigned n) { return text(s, n, "580.00.00"); }
FN nvmlSystemGetNVMLVersion(char *s, unsigned n) { return text(s, n, "13.580.00.00"); }
FN nvmlSystemGetCudaDriverVersion(int *v) { *v = 13000; return OK; }
FN nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 13000; return OK; }
FN nvmlDeviceGetCount(unsigned *n) { return count(n); }
FN nvmlDeviceGetCount_v2(unsigned *n) { return count(n); }
FN nvmlDeviceGetHandleByIndex(unsigned i, void **d) { return byIndex(i, d); }
FN nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { return byIndex(i, d); }
FN nvmlDeviceGetHandleByUUID(const char *uuid, void **d) {
  struct status s;
  for (unsigned i = 0; !look(i, &s); i++)
    if (!strcmp(uuid, s.uuid)) return byIndex(i, d);
  return NOT_FOUND;
}
static int byBus(const char *id, void **d) {
  unsigned domain, bus, slot;
  if (!id || sscanf(id, "%x:%x:%x", &domain, &bus, &slot) < 3 || domain || !bus) return NOT_FOUND;
  return byIndex(bus - 1, d) ? NOT_FOUND : OK;
}
FN nvmlDeviceGetHandleByPciBusId(const char *id, void **d) { return byBus(id, d); }
FN nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **d) { return byBus(id, d); }
FN nvmlDeviceGetIndex(void *d, unsigned *i) { *i = (unsigned)((intptr_t)d - 1); return OK; }
FN nvmlDeviceGetName(void *d, char *to, unsigned n) { struct status s; int e = of(d, &s); return e ? e : text(to, n, s.name); }
FN nvmlDeviceGetUUID(void *d, char *to, unsigned n) { struct status s; int e = of(d, &s); return e ? e : text(to, n, s.uuid); }
FN nvmlDeviceGetMemoryInfo(void *d, u64 *m) { // total, free, used
  struct status s;
  int e = of(d, &s);
  if (!e) m[0] = s.total, m[1] = s.total - s.used, m[2] = s.used;
  return e;
}
// No NVSwitch: what a GPU says whose fabric has the state 0, not supported. JAX 0.6 aborts
// over any other answer. version has the size of the rest and of itself.
FN nvmlDeviceGetGpuFabricInfoV(void *d, unsigned *version) {
  struct status s;
  int e = of(d, &s);
  unsigned size = *version & 0xffffff;
  if (!e && size > sizeof *version) memset(version + 1, 0, size - sizeof *version);
  return e;
}
struct fabricInfo { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; };
FN nvmlDeviceGetGpuFabricInfo(void *d, struct fabricInfo *info) {
  struct status s;
  int e = of(d, &s);
  if (!e) memset(info, 0, sizeof *info);
  return e;
}
struct memoryV2 { unsigned version; u64 total, reserved, free, used; };
FN nvmlDeviceGetMemoryInfo_v2(void *d, struct memoryV2 *m) {
  struct status s;
  int e = of(d, &s);
  if (!e) m->total = s.total, m->reserved = 0, m->free = s.total - s.used, m->used = s.used;
  return e;
}

// Values of fields that the device does not have: each says so, as on a card without NVLink and
// without a chip-to-chip link. XLA logs an error where the call itself fails.
struct fieldValue { unsigned field, scope; long long timestamp, latency; int type, result; u64 value; };
FN nvmlDeviceGetFieldValues(void *d, int n, struct fieldValue *values) {
  struct status s;
  int e = of(d, &s);
  for (int i = 0; !e && i < n; i++) values[i].result = NOT_SUPPORTED, values[i].value = 0;
  return e;
}

// Programs that hold memory of a shared device: process, bytes, and from v2 on
// the numbers of MIG's instances.
struct processV1 { unsigned pid; u64 used; };
struct processV2 { unsigned pid; u64 used; unsigned gpu, compute; };

static int processes(void *d, unsigned *count, void *to, int v1) {
  enum { most = 4096 };
  static __thread u64 pids[most], used[most];
  int (*f)(int, u64 *, u64 *, int) = (int (*)(int, u64 *, u64 *, int))ask("gpumemSimProcesses");
  int n = f ? f((int)((intptr_t)d - 1), pids, used, most) : -1;
  if (n < 0 || !count) return INVALID;
  if (n > most) n = most;
  unsigned room = *count;
  *count = n;
  if ((int)room < n) return SMALL;
  for (int i = 0; i < n; i++)
    if (v1) ((struct processV1 *)to)[i] = (struct processV1){pids[i], used[i]};
    else ((struct processV2 *)to)[i] = (struct processV2){pids[i], used[i], ~0u, ~0u};
  return OK;
}
FN nvmlDeviceGetComputeRunningProcesses(void *d, unsigned *n, void *to) { return processes(d, n, to, 1); }
FN nvmlDeviceGetComputeRunningProcesses_v2(void *d, unsigned *n, void *to) { return processes(d, n, to, 0); }
FN nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, void *to) { return processes(d, n, to, 0); }
static int none(unsigned *n) { *n = 0; return OK; }
FN nvmlDeviceGetGraphicsRunningProcesses(void *d, unsigned *n, void *to) { (void)d, (void)to; return none(n); }
FN nvmlDeviceGetGraphicsRunningProcesses_v2(void *d, unsigned *n, void *to) { (void)d, (void)to; return none(n); }
FN nvmlDeviceGetGraphicsRunningProcesses_v3(void *d, unsigned *n, void *to) { (void)d, (void)to; return none(n); }
FN nvmlDeviceGetMPSComputeRunningProcesses_v3(void *d, unsigned *n, void *to) { (void)d, (void)to; return none(n); }

// What engines and monitors ask besides. The GPU is a card in a PCIe slot without NVLink: peers,
// links and what they reach are as the driver's own answers, and what only other cards have is not
// supported. Nothing runs on it, so it is idle and cool.
static int value(void *d, unsigned *to, unsigned v) {
  struct status s;
  int e = of(d, &s);
  if (!e && !to) e = INVALID;
  if (!e) *to = v;
  return e;
}

// attribute is one of the driver's, by the number of CUdevice_attribute; 0 where it is not known.
static int attribute(void *d, int number) {
  int (*f)(int, int) = (int (*)(int, int))ask("gpumemSimAttribute");
  return f ? f((int)((intptr_t)d - 1), number) : 0;
}
enum { CLOCK = 13, MULTIPROCESSORS = 16, MEMORY_CLOCK = 36, BUS_WIDTH = 37, CC_MAJOR = 75, CC_MINOR = 76 };

FN nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor) {
  struct status s;
  int e = of(d, &s);
  if (!e && (!major || !minor)) e = INVALID;
  if (!e) *major = attribute(d, CC_MAJOR), *minor = attribute(d, CC_MINOR);
  return e;
}

// NVML_DEVICE_ARCH_*: 3 is Maxwell.
FN nvmlDeviceGetArchitecture(void *d, unsigned *to) {
  int major = attribute(d, CC_MAJOR), minor = attribute(d, CC_MINOR);
  if (major == 7) return value(d, to, minor < 5 ? 5 : 6);
  if (major == 8) return value(d, to, minor < 9 ? 7 : 8);
  return value(d, to, major < 7 ? major - 2 : major == 9 ? 9 : 10);
}

// NVML_BRAND_*: Tesla 2, GeForce 5, NVIDIA 14.
FN nvmlDeviceGetBrand(void *d, unsigned *to) {
  struct status s;
  int e = of(d, &s);
  return e ? e : value(d, to, strstr(s.name, "GeForce") ? 5 : strstr(s.name, "Tesla") ? 2 : 14);
}

static int number(void *d) { return (int)((intptr_t)d - 1); }
FN nvmlDeviceGetMinorNumber(void *d, unsigned *to) { return value(d, to, number(d)); }
FN nvmlDeviceGetBoardId(void *d, unsigned *to) { return value(d, to, (number(d) + 1) << 8); }
FN nvmlDeviceGetMultiGpuBoard(void *d, unsigned *to) { return value(d, to, 0); }
FN nvmlDeviceOnSameBoard(void *a, void *b, int *to) { struct status s; int e = of(b, &s); return e ? e : value(a, (unsigned *)to, a == b); }
FN nvmlDeviceGetMemoryBusWidth(void *d, unsigned *to) { return value(d, to, attribute(d, BUS_WIDTH)); }
FN nvmlDeviceGetNumGpuCores(void *d, unsigned *to) { // 64 a multiprocessor in Volta, Turing and the A100
  int major = attribute(d, CC_MAJOR), few = major == 7 || (major == 8 && !attribute(d, CC_MINOR));
  return value(d, to, (unsigned)attribute(d, MULTIPROCESSORS) * (few ? 64 : 128));
}

// nvmlPciInfo_t. The first version has no more than the first five, and the second one two names.
struct pci { char legacy[16]; unsigned domain, bus, slot, id, subsystem; char bus_id[32]; };
enum { PCI_ID = 0x20b010de }; // an A100's
static int pci(void *d, struct pci *p, int version) {
  struct status s;
  int e = of(d, &s);
  if (e || !p) return e ? e : INVALID;
  snprintf(p->legacy, sizeof p->legacy, "0000:%02X:00.0", number(d) + 1);
  p->domain = 0, p->bus = number(d) + 1, p->slot = 0, p->id = PCI_ID;
  if (version > 1) p->subsystem = 0;
  if (version > 2) snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", number(d) + 1);
  return OK;
}
FN nvmlDeviceGetPciInfo(void *d, struct pci *p) { return pci(d, p, 1); }
FN nvmlDeviceGetPciInfo_v2(void *d, struct pci *p) { return pci(d, p, 2); }
FN nvmlDeviceGetPciInfo_v3(void *d, struct pci *p) { return pci(d, p, 3); }

// nvmlGpuP2PStatus_t 5, not supported, as cuDeviceCanAccessPeer says; of a device and itself OK.
FN nvmlDeviceGetP2PStatus(void *a, void *b, int index, unsigned *to) {
  struct status s;
  int e = of(b, &s);
  (void)index;
  return e ? e : value(a, to, a == b ? 0 : 5);
}

// nvmlGpuTopologyLevel_t: 0 the device itself, 30 the same host bridge.
enum { SAME_BRIDGE = 30 };
FN nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, unsigned *to) {
  struct status s;
  int e = of(b, &s);
  return e ? e : value(a, to, a == b ? 0 : SAME_BRIDGE);
}
FN nvmlDeviceGetTopologyNearestGpus(void *d, unsigned level, unsigned *n, void **list) {
  struct status s;
  unsigned all = 0, room = n ? *n : 0, found = 0;
  int e = of(d, &s);
  if (e || !n) return e ? e : INVALID;
  count(&all);
  for (unsigned i = 0; level == SAME_BRIDGE && i < all; i++) {
    if ((int)i == number(d)) continue;
    if (list && found < room) list[found] = (void *)(intptr_t)(i + 1);
    found++;
  }
  *n = found;
  return OK;
}

// All processors are near, as in a machine with one socket.
static int all_near(void *d, unsigned n, unsigned long *set, long bits) {
  struct status s;
  int e = of(d, &s);
  if (e || !set || !n) return e ? e : INVALID;
  for (unsigned i = 0; i < n; i++)
    for (int b = set[i] = 0; b < 64; b++)
      if (64L * i + b < bits) set[i] |= 1UL << b;
  return OK;
}
FN nvmlDeviceGetCpuAffinity(void *d, unsigned n, unsigned long *set) { return all_near(d, n, set, sysconf(_SC_NPROCESSORS_ONLN)); }
FN nvmlDeviceGetCpuAffinityWithinScope(void *d, unsigned n, unsigned long *set, unsigned scope) {
  (void)scope;
  return all_near(d, n, set, sysconf(_SC_NPROCESSORS_ONLN));
}
FN nvmlDeviceGetMemoryAffinity(void *d, unsigned n, unsigned long *set, unsigned scope) { (void)scope; return all_near(d, n, set, 1); }

// Cards for data centres have MIG from Ampere on; it is off.
static int has_mig(void *d) {
  int major = attribute(d, CC_MAJOR);
  return major >= 8 && major < 12 && !attribute(d, CC_MINOR);
}
FN nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *pending) {
  int e = has_mig(d) ? value(d, now, 0) : NOT_SUPPORTED;
  return e ? e : value(d, pending, 0);
}
FN nvmlDeviceGetMaxMigDeviceCount(void *d, unsigned *to) { return value(d, to, has_mig(d) ? 7 : 0); }
FN nvmlDeviceIsMigDeviceHandle(void *d, unsigned *to) { return value(d, to, 0); }

FN nvmlDeviceGetComputeMode(void *d, unsigned *to) { return value(d, to, 0); } // default: shared
FN nvmlDeviceGetPersistenceMode(void *d, unsigned *to) { return value(d, to, 1); }
FN nvmlDeviceGetAccountingMode(void *d, unsigned *to) { return value(d, to, 0); }
FN nvmlDeviceGetVirtualizationMode(void *d, unsigned *to) { return value(d, to, 0); }
FN nvmlDeviceGetEccMode(void *d, unsigned *now, unsigned *pending) { int e = value(d, now, 0); return e ? e : value(d, pending, 0); }

// Milliwatts, degrees, MHz. NVML_PSTATE_0; nvmlClocksEventReasonGpuIdle is 1.
enum { WATTS = 300000, LEAST_WATTS = 100000, IDLE_WATTS = 50000, COOL = 35, HOT = 90 };
FN nvmlDeviceGetPowerManagementMode(void *d, unsigned *to) { return value(d, to, 1); }
FN nvmlDeviceGetPowerManagementLimit(void *d, unsigned *to) { return value(d, to, WATTS); }
FN nvmlDeviceGetPowerManagementDefaultLimit(void *d, unsigned *to) { return value(d, to, WATTS); }
FN nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *to) { return value(d, to, WATTS); }
FN nvmlDeviceGetPowerManagementLimitConstraints(void *d, unsigned *least, unsigned *most) {
  int e = value(d, least, LEAST_WATTS);
  return e ? e : value(d, most, WATTS);
}
FN nvmlDeviceGetPowerUsage(void *d, unsigned *to) { return value(d, to, IDLE_WATTS); }
FN nvmlDeviceGetPowerState(void *d, unsigned *to) { return value(d, to, 0); }
FN nvmlDeviceGetPerformanceState(void *d, unsigned *to) { return value(d, to, 0); }
FN nvmlDeviceGetTotalEnergyConsumption(void *d, u64 *to) { struct status s; int e = of(d, &s); if (!e) *to = 0; return e; }
FN nvmlDeviceGetTemperature(void *d, int sensor, unsigned *to) { return sensor ? INVALID : value(d, to, COOL); }
FN nvmlDeviceGetTemperatureThreshold(void *d, int kind, unsigned *to) { (void)kind; return value(d, to, HOT); }
FN nvmlDeviceGetCurrentClocksThrottleReasons(void *d, u64 *to) { struct status s; int e = of(d, &s); if (!e) *to = 1; return e; }
FN nvmlDeviceGetCurrentClocksEventReasons(void *d, u64 *to) { return nvmlDeviceGetCurrentClocksThrottleReasons(d, to); }

// nvmlClockType_t: graphics, multiprocessors, memory, video. The driver's attributes are in kHz.
static int clock_of(void *d, unsigned kind, unsigned *to) {
  return kind > 3 ? INVALID : value(d, to, attribute(d, kind == 2 ? MEMORY_CLOCK : CLOCK) / 1000);
}
FN nvmlDeviceGetClockInfo(void *d, unsigned kind, unsigned *to) { return clock_of(d, kind, to); }
FN nvmlDeviceGetMaxClockInfo(void *d, unsigned kind, unsigned *to) { return clock_of(d, kind, to); }
FN nvmlDeviceGetApplicationsClock(void *d, unsigned kind, unsigned *to) { return clock_of(d, kind, to); }
FN nvmlDeviceGetDefaultApplicationsClock(void *d, unsigned kind, unsigned *to) { return clock_of(d, kind, to); }
FN nvmlDeviceGetClock(void *d, unsigned kind, unsigned id, unsigned *to) { (void)id; return clock_of(d, kind, to); }

// Of the last period, in microseconds: nothing.
struct utilization { unsigned gpu, memory; };
FN nvmlDeviceGetUtilizationRates(void *d, struct utilization *u) {
  struct status s;
  int e = of(d, &s);
  if (!e) u->gpu = u->memory = 0;
  return e;
}
static int unused(void *d, unsigned *part, unsigned *period) { int e = value(d, part, 0); return e ? e : value(d, period, 1000000); }
FN nvmlDeviceGetEncoderUtilization(void *d, unsigned *part, unsigned *period) { return unused(d, part, period); }
FN nvmlDeviceGetDecoderUtilization(void *d, unsigned *part, unsigned *period) { return unused(d, part, period); }
FN nvmlDeviceGetProcessUtilization(void *d, void *to, unsigned *n, u64 since) { // no samples
  (void)d, (void)to, (void)since;
  if (n) *n = 0;
  return NOT_FOUND;
}
FN nvmlDeviceGetPcieThroughput(void *d, unsigned counter, unsigned *to) { (void)counter; return value(d, to, 0); }
FN nvmlDeviceGetPcieReplayCounter(void *d, unsigned *to) { return value(d, to, 0); }
struct bar { u64 total, free, used; };
FN nvmlDeviceGetBAR1MemoryInfo(void *d, struct bar *b) {
  struct status s;
  int e = of(d, &s);
  if (!e) *b = (struct bar){256 << 20, 255 << 20, 1 << 20};
  return e;
}
FN nvmlUnitGetCount(unsigned *n) { *n = 0; return OK; }
struct branch { unsigned version; char name[80]; };
FN nvmlSystemGetDriverBranch(struct branch *b, unsigned n) { return text(b->name, n < sizeof b->name ? n : sizeof b->name, "r580_00"); }
FN nvmlSystemGetProcessName(unsigned pid, char *to, unsigned n) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/%u/exe", pid);
  ssize_t got = readlink(link, path, sizeof path - 1);
  if (got < 0) return NOT_FOUND;
  path[got] = 0;
  return text(to, n, path);
}

FN nvmlDeviceGetDisplayMode(void *d, int *on) { (void)d; *on = 0; return OK; }
FN nvmlDeviceGetDisplayActive(void *d, int *on) { (void)d; *on = 0; return OK; }
FN nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *v) { (void)d; *v = 4; return OK; }
FN nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *v) { (void)d; *v = 16; return OK; }
FN nvmlDeviceGetCurrPcieLinkGeneration(void *d, unsigned *v) { (void)d; *v = 4; return OK; }
FN nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *v) { (void)d; *v = 16; return OK; }
__attribute__((visibility("default"))) const char *nvmlErrorString(int e) {
  switch (e) {
  case OK: return "The operation was successful";
  case INVALID: return "Invalid Argument";
  case NOT_SUPPORTED: return "Not Supported";
  case NOT_FOUND: return "Not Found";
  case SMALL: return "Insufficient Size";
  case 9: return "Driver Not Loaded";
  }
  return "Unknown Error";
}
