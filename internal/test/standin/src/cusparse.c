// A stand-in for libcusparse.so.12: a handle, a version, and matrices that know their size.

#include <stdint.h>
#include <stdlib.h>

#define FN __attribute__((visibility("default"))) int

FN cusparseCreate(void **h) { *h = (void *)0x70; return 0; }
FN cusparseGetVersion(void *h, int *v) { (void)h; *v = 12500; return 0; }
FN cusparseGetProperty(int t, int *v) { *v = t == 0 ? 12 : t == 1 ? 5 : 0; return 0; }
__attribute__((visibility("default"))) const char *cusparseGetErrorString(int s) { (void)s; return "ok"; }

struct matrix { int64_t rows, columns, values; };

// All kinds of matrices are made with these arguments first.
#define CREATE(f)                                                                      \
  FN f(struct matrix **m, int64_t rows, int64_t columns, int64_t values) {             \
    if (!(*m = malloc(sizeof **m))) return 2; /* CUSPARSE_STATUS_ALLOC_FAILED */       \
    **m = (struct matrix){rows, columns, values};                                      \
    return 0;                                                                          \
  }
CREATE(cusparseCreateCsr)
CREATE(cusparseCreateConstCsr)
CREATE(cusparseCreateCsc)
CREATE(cusparseCreateConstCsc)
CREATE(cusparseCreateCoo)
CREATE(cusparseCreateConstCoo)
CREATE(cusparseCreateBsr)
CREATE(cusparseCreateConstBsr)
CREATE(cusparseCreateBlockedEll)
CREATE(cusparseCreateConstBlockedEll)
CREATE(cusparseCreateSlicedEll)
CREATE(cusparseCreateConstSlicedEll)
FN cusparseDestroySpMat(void *m) { free(m); return 0; }

// A product that was not computed has the values that its matrix was made with, none mostly.
FN cusparseSpMatGetSize(const struct matrix *m, int64_t *rows, int64_t *columns, int64_t *values) {
  *rows = m->rows, *columns = m->columns, *values = m->values;
  return 0;
}
