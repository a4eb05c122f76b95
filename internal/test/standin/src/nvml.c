// A stand-in for libnvidia-ml.so.1: the simulated devices with their memory, as
// the libcuda.so.1 beside this library knows them. All functions that are not here
// answer NVML_ERROR_NOT_SUPPORTED (noop.c, preload/names/nvml.txt).

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

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

FN nvmlDeviceGetDisplayMode(void *d, int *on) { (void)d; *on = 0; return OK; }
FN nvmlDeviceGetDisplayActive(void *d, int *on) { (void)d; *on = 0; return OK; }
FN nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *v) { (void)d; *v = 4; return OK; }
FN nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *v) { (void)d; *v = 16; return OK; }
FN nvmlDeviceGetCurrPcieLinkGeneration(void *d, unsigned *v) { (void)d; *v = 4; return OK; }
FN nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *v) { (void)d; *v = 16; return OK; }
__attribute__((visibility("default"))) const char *nvmlErrorString(int e) { return e ? "not supported by the simulated driver" : "The operation was successful"; }
