// A driver of one GPU whose calls do nothing, so that what the pool library costs can be
// measured without what a driver costs: addresses and handles are counters, all work is
// complete, and nothing is ever refused.

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint64_t u64;
typedef void *ptr;

static _Thread_local ptr current;
static u64 next = 1ull << 40; // the next address or handle

static u64 take(u64 bytes) { return __sync_fetch_and_add(&next, (bytes + 0x1fffff) & ~0x1fffffull); }

#define NOTHING(name, ...) int name(__VA_ARGS__) { return 0; }

NOTHING(cuInit, unsigned flags)
int cuDriverGetVersion(int *v) { return *v = 12040, 0; }
int cuDeviceGetCount(int *n) { return *n = 1, 0; }
int cuDeviceGet(int *d, int n) { return *d = 0, n ? 101 : 0; }
int cuDeviceGetName(char *s, int n, int d) { return strncpy(s, "nothing", n), 0; }
int cuDeviceGetUuid(char u[16], int d) { return memset(u, 7, 16), 0; }
int cuDeviceGetUuid_v2(char u[16], int d) { return memset(u, 7, 16), 0; }
int cuDeviceTotalMem_v2(size_t *n, int d) { return *n = 8ull << 30, 0; }
// 18: integrated; 102: virtual memory; 115: pools; 16: multiprocessors.
int cuDeviceGetAttribute(int *v, int a, int d) { return *v = a == 102 || a == 115 || a == 16, 0; }
int cuDevicePrimaryCtxRetain(ptr *c, int d) { return *c = &next, 0; }
NOTHING(cuDevicePrimaryCtxRelease_v2, int d)
int cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) { return *flags = 0, *active = 1, 0; }
int cuCtxGetCurrent(ptr *c) { return *c = current, 0; }
int cuCtxSetCurrent(ptr c) { return current = c, 0; }
int cuCtxPushCurrent_v2(ptr c) { return current = c, 0; }
int cuCtxPopCurrent_v2(ptr *c) { return c && (*c = current), current = 0, 0; }
int cuCtxGetId(ptr c, u64 *id) { return *id = 1, 0; }
int cuCtxGetDevice(int *d) { return *d = 0, 0; }
NOTHING(cuCtxSynchronize, void)
NOTHING(cuThreadExchangeStreamCaptureMode, int *mode)
int cuMemGetInfo_v2(size_t *free, size_t *total) { return *free = *total = 8ull << 30, 0; }
int cuMemAlloc_v2(u64 *p, size_t n) { return *p = take(n), 0; }
NOTHING(cuMemFree_v2, u64 p)
int cuStreamCreate(ptr *s, unsigned flags) { return *s = (ptr)take(1), 0; }
NOTHING(cuStreamDestroy_v2, ptr s)
NOTHING(cuStreamQuery, ptr s)
int cuStreamGetId(ptr s, u64 *id) { return *id = (u64)s, 0; }
int cuStreamIsCapturing(ptr s, int *status) { return *status = 0, 0; }
NOTHING(cuStreamWaitEvent, ptr s, ptr e, unsigned flags)
NOTHING(cuStreamSynchronize, ptr s)
int cuEventCreate(ptr *e, unsigned flags) { return *e = (ptr)take(1), 0; }
NOTHING(cuEventDestroy_v2, ptr e)
NOTHING(cuEventRecord, ptr e, ptr s)
NOTHING(cuEventQuery, ptr e)
NOTHING(cuEventSynchronize, ptr e)
int cuMemAllocAsync(u64 *p, size_t n, ptr s) { return *p = take(n), 0; }
NOTHING(cuMemFreeAsync, u64 p, ptr s)
int cuMemGetAllocationGranularity(size_t *n, const void *prop, int option) { return *n = 2 << 20, 0; }
int cuMemAddressReserve(u64 *p, size_t n, size_t align, u64 hint, u64 flags) { return *p = take(n), 0; }
NOTHING(cuMemAddressFree, u64 p, size_t n)
int cuMemCreate(u64 *h, size_t n, const void *prop, u64 flags) { return *h = take(1), 0; }
NOTHING(cuMemRelease, u64 h)
NOTHING(cuMemMap, u64 p, size_t n, size_t offset, u64 h, u64 flags)
NOTHING(cuMemSetAccess, u64 p, size_t n, const void *desc, size_t count)
NOTHING(cuMemUnmap, u64 p, size_t n)
