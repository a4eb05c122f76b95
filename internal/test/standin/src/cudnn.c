// A stand-in for libcudnn.so.9: it says which version it is.

#include <stdint.h>

#define FN __attribute__((visibility("default"))) int

FN cudnnCreate(void **h) { *h = (void *)0x50; return 0; }
FN cudnnGetProperty(int t, int *v) { *v = t == 0 ? 9 : t == 1 ? 20 : 0; return 0; }
__attribute__((visibility("default"))) uint64_t cudnnGetVersion(void) { return 92000; }
__attribute__((visibility("default"))) uint64_t cudnnGetCudartVersion(void) { return 12090; }
__attribute__((visibility("default"))) const char *cudnnGetErrorString(int s) { (void)s; return "ok"; }
