// A stand-in for libcusolver.so.11: handles.

#define FN __attribute__((visibility("default"))) int

FN cusolverDnCreate(void **h) { *h = (void *)0x60; return 0; }
FN cusolverSpCreate(void **h) { *h = (void *)0x60; return 0; }
FN cusolverGetProperty(int t, int *v) { *v = t == 0 ? 11 : 0; return 0; }
