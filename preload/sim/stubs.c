//go:build libgpumem

// stubs.c has a function for every name of the driver's interface. Each takes
// twelve words, as many as the longest signature that is served has, and hands
// them on. Words beyond those that the caller passed hold any value and are not
// read: each handler knows its function's signature. All are weak, because front.c
// defines a few itself.

#include "front.h"

#define NAME(symbol, base, version)                                                             \
  __attribute__((weak, visibility("default"))) int symbol(u64 a, u64 b, u64 c, u64 d, u64 e,   \
                                                          u64 f, u64 g, u64 h, u64 i, u64 j,   \
                                                          u64 k, u64 l) {                       \
    u64 args[simArgs] = {a, b, c, d, e, f, g, h, i, j, k, l};                                   \
    return simServe(number_##symbol, args);                                                     \
  }
SIM_NAMES
#undef NAME

const struct simName simNames[] = {
#define NAME(symbol, base, version) {#symbol, #base, version, (void *)symbol},
    SIM_NAMES
#undef NAME
};
