// A driver that differs from the one that it is linked with: of pitched memory each row takes
// 4096 bytes, as a pool has ended another thread of the program waits for its stream, and it has
// the functions for memory from before CUDA 3.2, whose addresses have 32 bits.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

int cuMemAllocPitch_v2(uint64_t *at, size_t *pitch, size_t width, size_t height, unsigned element) {
  int (*driver)(uint64_t *, size_t *, size_t, size_t, unsigned);
  *(void **)&driver = dlsym(RTLD_NEXT, "cuMemAllocPitch_v2");
  return driver(at, pitch, (width + 4095) / 4096 * 4096, height, element);
}

static uint64_t short_addresses[64]; // by 64 MiB

static int shorten(int code, uint64_t long_, unsigned *at) {
  unsigned i = 1;
  while (!code && i < 64 && short_addresses[i]) i++;
  if (!code) short_addresses[i] = long_, *at = i << 26;
  return code;
}

int cuMemAlloc(unsigned *at, unsigned n) {
  int (*driver)(uint64_t *, size_t);
  *(void **)&driver = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
  uint64_t long_;
  int code = driver(&long_, n);
  return shorten(code, long_, at);
}

int cuMemAllocPitch(unsigned *at, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
  uint64_t long_;
  size_t row;
  int code = cuMemAllocPitch_v2(&long_, &row, width, height, element);
  return *pitch = (unsigned)row, shorten(code, long_, at);
}

int cuMemFree(unsigned at) {
  int (*driver)(uint64_t);
  *(void **)&driver = dlsym(RTLD_NEXT, "cuMemFree_v2");
  int code = driver(short_addresses[at >> 26]);
  return code ? code : (short_addresses[at >> 26] = 0, 0);
}

int cuArrayCreate(void **array, const unsigned *desc) {
  int (*driver)(void **, const void *);
  *(void **)&driver = dlsym(RTLD_NEXT, "cuArrayCreate_v2");
  struct { size_t width, height; unsigned format, channels; } now = {desc[0], desc[1], desc[2], desc[3]};
  return driver(array, &now);
}

static void *other(void *context) {
  void *front = dlopen("libcuda.so.1", RTLD_NOW);
  int (*set)(void *), (*wait)(void *);
  *(void **)&set = dlsym(front, "cuCtxSetCurrent"), *(void **)&wait = dlsym(front, "cuStreamSynchronize");
  set(context), wait(0);
  return 0;
}

int cuMemPoolDestroy(void *pool) {
  int (*driver)(void *), (*current)(void **);
  *(void **)&driver = dlsym(RTLD_NEXT, "cuMemPoolDestroy"), *(void **)&current = dlsym(RTLD_NEXT, "cuCtxGetCurrent");
  void *context;
  pthread_t thread;
  struct timespec until;
  int code = driver(pool);
  if (code || current(&context) || pthread_create(&thread, 0, other, context)) return code;
  clock_gettime(CLOCK_REALTIME, &until), until.tv_sec++;
  if (pthread_timedjoin_np(thread, 0, &until)) pthread_detach(thread); // it waits for this call
  return 0;
}
