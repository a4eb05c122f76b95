// A program of CUDA's runtime that asks for 0 bytes and for 1 MiB: runtime LIBRARY. It writes
// the code of each and whether there is an address; how many of 100 numbers it reads back, before and
// after a kernel, and of 10 that it then writes; then the codes of the releases. With a second argument a
// child does so, which was forked once the driver was loaded.

#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct { unsigned x, y, z; } dim3;

static int (*copy)(void *, const void *, size_t, int);

enum { APART = 512 };

static void write_numbers(char *at, int n) {
  for (int i = 1; i <= n; i++) copy(at + i * APART, &i, sizeof i, 1);
}

static int read_back(const char *at, int n) {
  int same = 0, got;
  for (int i = 1; i <= n; i++) copy(&got, at + i * APART, sizeof got, 2), same += got == i;
  return same;
}

int main(int argc, char **argv) {
  void *lib = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0, *p = &lib, *q = 0;
  if (!lib) return puts(dlerror()), 1;
  if (argc > 2) {
    if (!dlopen("libcuda.so.1", RTLD_NOW)) return 1;
    if (fork()) return wait(0) < 0;
  }
  int (*allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(lib, "cudaMalloc");
  int (*release)(void *) = (int (*)(void *))dlsym(lib, "cudaFree");
  int none = allocate(&p, 0), some = allocate(&q, 1 << 20);
  printf("%d %d, %d %d\n", none, p != 0, some, q != 0);
  copy = (int (*)(void *, const void *, size_t, int))dlsym(lib, "cudaMemcpy");
  write_numbers(q, 100);
  printf("%d ", read_back(q, 100));
  dim3 one = {1, 1, 1};
  ((int (*)(void *, dim3, dim3, void **, size_t, void *))dlsym(lib, "cudaLaunchKernel"))(0, one, one, 0, 0, 0);
  printf("%d ", read_back(q, 100));
  write_numbers(q, 10);
  printf("%d\n", read_back(q, 100));
  printf("%d %d\n", release(p), release(q));
  return 0;
}
