// What libraries say by pointers without having computed: sizes of workspaces and numbers of errors, 0.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

static int (*load(const char *library, const char *name))() {
  void *l = dlopen(library, RTLD_NOW), *f = l ? dlsym(l, name) : 0;
  if (!f) fprintf(stderr, "%s\n", dlerror());
  return (int (*)())f;
}

int main(void) {
  int small = 7, device[2] = {7, 7};
  size_t size = 7, host = 7;
  int64_t rows = 7, columns = 7, values = 7;
  void *matrix = 0;
  printf("%d", load("libcusolver.so.11", "cusolverDnSpotrf_bufferSize")(0, 0, 4, 0, 4, &small));
  printf(" %d, ", small);
  printf("%d", load("libcusolver.so.12", "cusolverDnXgetrf_bufferSize")(0, 0, (int64_t)4, (int64_t)4, 0, 0, (int64_t)4, 0, &size, &host));
  printf(" %zu %zu, ", size, host), size = 7, small = 7;
  // With two numbers in floating point before the ones that count.
  printf("%d", load("libcusolver.so.12", "cusolverDnSsyevdx_bufferSize")(0, 0, 0, 0, 4, 0, 4, 0.0f, 1.0f, 1, 2, device, 0, &small));
  printf(" %d, ", small), small = 7;
  printf("%d", load("libcusparse.so.12", "cusparseSpMV_bufferSize")(0, 0, 0, 0, 0, 0, 0, 0, 0, &size));
  printf(" %zu, ", size), size = 7;
  // A pointer to the device's memory is not followed.
  printf("%d, ", load("libcusparse.so.12", "cusparseXcsrgeam2Nnz")(0, 4, 4, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0, (void *)0x87f0000600000, 0));
  load("libcusparse.so.12", "cusparseCreateCsr")(&matrix, (int64_t)3, (int64_t)4, (int64_t)5, 0, 0, 0, 0, 0, 0, 0);
  load("libcusparse.so.12", "cusparseSpMatGetSize")(matrix, &rows, &columns, &values);
  printf("%d %d %d, ", (int)rows, (int)columns, (int)values);
  printf("%d", load("libcufft.so.11", "cufftMakePlan1d")(1, 4, 0x29, 1, &size));
  printf(" %zu, ", size);
  printf("%d", load("libcublas.so.12", "cublasSgetrsBatched")(0, 0, 4, 1, 0, 4, 0, 0, 4, &small, 1));
  printf(" %d, ", small);
  printf("%d\n", load("libcusolver.so.12", "cusolverDnSgehrd_bufferSize")());
}
