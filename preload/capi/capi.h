// What the C side (capi.c), which owns the exported names, and the Go side (main.go) say
// to each other. See ../gpumem.h for what the functions do.

#ifndef GPUMEM_CAPI_H
#define GPUMEM_CAPI_H

#include "../gpumem.h"

// In Go every pointer type has a name.
typedef struct gpumem_figures gpumem_figures;
typedef uint64_t u64;

// The text of an error goes to a buffer of the thread's.
typedef struct gc_error {
  char text[8192];
} gc_error;

#endif
