// A stand-in for libcusparse.so.12: a handle and a version.

#define FN __attribute__((visibility("default"))) int

FN cusparseCreate(void **h) { *h = (void *)0x70; return 0; }
FN cusparseGetVersion(void *h, int *v) { (void)h; *v = 12500; return 0; }
FN cusparseGetProperty(int t, int *v) { *v = t == 0 ? 12 : 0; return 0; }
__attribute__((visibility("default"))) const char *cusparseGetErrorString(int s) { (void)s; return "ok"; }
