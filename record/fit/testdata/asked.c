// A program that takes more than a GPU of 2 GiB has, and whose other thread grants or refuses it as beyond.py does. It
// ends with 1 if that is asked more than once for a block, or not for each.

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t (*beyond)(int, uint64_t *);
static void (*refuse)(uint64_t, int);
static int refuses, asked;

static void *listen(void *none) {
  uint64_t thread, number;
  while ((number = beyond(600000, &thread))) {
    __atomic_add_fetch(&asked, 1, __ATOMIC_SEQ_CST);
    refuse(number, __atomic_load_n(&refuses, __ATOMIC_SEQ_CST));
  }
  return none;
}

int main(void) {
  setenv("GPUMEM_SIM_BEYOND", "1", 1);
  void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context;
  if (!lib) return fprintf(stderr, "%s\n", dlerror()), 1;
  int (*init)() = dlsym(lib, "cuInit"), (*retain)() = dlsym(lib, "cuDevicePrimaryCtxRetain"), (*set)() = dlsym(lib, "cuCtxSetCurrent");
  int (*alloc)() = dlsym(lib, "cuMemAlloc_v2");
  if (init(0) || retain(&context, 0) || set(context)) return fprintf(stderr, "no context\n"), 1;
  char path[4096];
  snprintf(path, sizeof path, "%s/libcuda.so.1", getenv("GPUMEM_SIM_FOLDER"));
  void *driver = dlopen(path, RTLD_NOLOAD | RTLD_NOW);
  if (!driver) return fprintf(stderr, "%s\n", dlerror()), 1;
  beyond = (uint64_t(*)(int, uint64_t *))dlsym(driver, "gpumemSimBeyond");
  refuse = (void (*)(uint64_t, int))dlsym(driver, "gpumemSimRefuse");
  uint64_t at, none;
  beyond(0, &none); // from now on a request waits for the thread
  pthread_t thread;
  pthread_create(&thread, 0, listen, 0);
  static const struct { int gib, refuses, least, most; } blocks[] = {{3, 0, 1, 1}, {1, 0, 1, 1}, {1, 1, 1, 600}, {1, 0, 1, 1}};
  for (int i = 0; i < 4; i++) {
    int before = asked;
    __atomic_store_n(&refuses, blocks[i].refuses, __ATOMIC_SEQ_CST);
    int code = alloc(&at, (size_t)blocks[i].gib << 30), n = __atomic_load_n(&asked, __ATOMIC_SEQ_CST) - before;
    if (!code == blocks[i].refuses || n < blocks[i].least || n > blocks[i].most)
      return fprintf(stderr, "block %d: code %d, asked %d times\n", i, code, n), 1;
  }
  return 0;
}
