// The header in C++.
#include "gpumem.h"
#include <cstdio>

int main() {
  gpumem_pool pool = -1;
  void *p = nullptr;
  gpumem_figures f{};
  f.size = sizeof f;
  if (gpumem_open("sim:1GiB", nullptr, &pool) || gpumem_alloc(pool, 1 << 20, GPUMEM_STREAM_DEFAULT, &p) || gpumem_stats(pool, &f)) {
    std::puts(gpumem_last_error());
    return 1;
  }
  return f.live != 1;
}
