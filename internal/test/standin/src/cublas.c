// A stand-in for libcublas.so.12: a handle, and nothing computed.

#define FN __attribute__((visibility("default"))) int

FN cublasCreate_v2(void **h) { *h = (void *)0x10; return 0; }
FN cublasGetVersion_v2(void *h, int *v) { (void)h; *v = 120900; return 0; }
FN cublasGetPointerMode_v2(void *h, int *m) { (void)h; *m = 0; return 0; }
FN cublasGetMathMode(void *h, int *m) { (void)h; *m = 0; return 0; }
__attribute__((visibility("default"))) const char *cublasGetStatusString(int s) { (void)s; return "ok"; }
