// A stand-in for libcusolver.so.11 (CUDA 12) and libcusolver.so.12 (CUDA 13): handles, and workspaces of 0 bytes.

#include "note.h"

#define FN __attribute__((visibility("default"))) int

#if MAJOR == 11
static const int version[] = {11, 7, 5};
#else
static const int version[] = {12, 0, 4};
#endif
FN cusolverDnCreate(void **h) { *h = (void *)0x60; return 0; }
FN cusolverSpCreate(void **h) { *h = (void *)0x60; return 0; }
FN cusolverGetProperty(unsigned t, int *v) { *v = t < 3 ? version[t] : 0; return 0; }
FN cusolverGetVersion(int *v) { *v = 1000 * version[0] + 100 * version[1] + version[2]; return 0; }

// On a card a factorization may want a workspace as large as its matrix.
void given(void) {
  static _Atomic int said;
  note(&said, "cuSOLVER's workspaces are unknown, and count 0 bytes.");
}
