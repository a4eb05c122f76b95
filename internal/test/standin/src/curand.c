// A stand-in for libcurand.so.10: generators, and numbers that stay as the memory was. Of the host's there are none.

#define FN __attribute__((visibility("default"))) int

FN curandCreateGenerator(void **g, int type) { (void)type; *g = (void *)0x80; return 0; }
FN curandCreateGeneratorHost(void **g, int type) { (void)g, (void)type; return 204; } // CURAND_STATUS_ARCH_MISMATCH
FN curandGetVersion(int *v) { *v = 10400; return 0; }
FN curandGetProperty(int t, int *v) { *v = t == 0 ? 10 : t == 1 ? 4 : 0; return 0; }
