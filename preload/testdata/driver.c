// A driver that differs from the one that it is linked with: of pitched memory each row takes
// 4096 bytes, and as a pool has ended another thread of the program waits for its stream.

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
