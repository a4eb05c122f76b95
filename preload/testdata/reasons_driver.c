// A driver that has what the simulated one that it is linked with has not: memory that is passed on
// by the system, access of a GPU to another, and NVML's answer of a system that computes
// confidentially.

#include <stddef.h>
#include <stdint.h>

int cuMemExportToShareableHandle(void *to, uint64_t h, int type, uint64_t flags) { return *(int *)to = 7, 0; }
int cuMemImportFromShareableHandle(uint64_t *h, void *from, int type) { return *h = 1 << 20, 0; }
int cuMemPoolExportToShareableHandle(void *to, void *pool, int type, uint64_t flags) { return *(int *)to = 7, 0; }
int cuMemPoolImportFromShareableHandle(void **pool, void *from, int type, uint64_t flags) { return *pool = (void *)16, 0; }
int cuMemGetHandleForAddressRange(void *to, uint64_t at, size_t n, int type, uint64_t flags) { return *(int *)to = 7, 0; }

int cuCtxEnablePeerAccess(void *peer, unsigned flags) { return 0; }

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetConfComputeState(unsigned state[3]) { return state[1] = 1, 0; }
