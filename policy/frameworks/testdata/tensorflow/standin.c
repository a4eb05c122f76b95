// The stand-in for NVIDIA's driver, NVML and CUDA runtime of ../xla/libcuda.c, with
// what TensorFlow and CuPy call beside what XLA calls. The environment is read again
// by cuInit: tensorflow.py asks forked copies of one process, each of its own device.
//
// Build: gcc -O1 -shared -fPIC -o libcuda.so.1 standin.c -lpthread

#define cuInit unusedInit
#include "../xla/libcuda.c"
#undef cuInit

FN cuInit(unsigned f) { begin(); return OK; }

FN cudaFree(void *p) { return 0; }
FN cudaDeviceSynchronize(void) { return 0; }
FN cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return 0; }
FN cudaMemGetInfo(u64 *f, u64 *t) { begin(); return cuMemGetInfo_v2(f, t); }
FN __cudaRegisterFunction(void) { return 0; }
FN __cudaRegisterVar(void) { return 0; }
FN __cudaRegisterFatBinaryEnd(void) { return 0; }
FN __cudaUnregisterFatBinary(void) { return 0; }
__attribute__((visibility("default"))) void **__cudaRegisterFatBinary(void *p) { static void *h; return &h; }
__attribute__((visibility("default"))) const char *cudaGetErrorString(int e) { return e ? "stand-in error" : "no error"; }
__attribute__((visibility("default"))) const char *cudaGetErrorName(int e) { return e ? "cudaErrorStandIn" : "cudaSuccess"; }
