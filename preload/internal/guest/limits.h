// Whether Go's runtime may begin in this process. It ends the program where it is refused
// memory or a thread, so a library asks for them first. With _GNU_SOURCE.

#ifndef GPUMEM_LIMITS_H
#define GPUMEM_LIMITS_H

#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>

// Measured with Go 1.26 on amd64: 850 MB of addresses, and 5 threads; of a process that may
// not have many it has up to 11, see threads.go.
enum { GO_ADDRESSES = 1 << 30, GO_WRITABLE = 64 << 20, GO_THREADS = 12 };

static inline void *wait_at(void *gate) {
  pthread_mutex_lock(gate);
  pthread_mutex_unlock(gate);
  return 0;
}

// go_lacks returns what Go's runtime needs and this process may not have, or 0.
static inline const char *go_lacks(void) {
  const char *lacks = 0;
  void *none = mmap(0, GO_ADDRESSES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void *some = mmap(0, GO_WRITABLE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (none == MAP_FAILED || some == MAP_FAILED)
    lacks = "Go's runtime needs 1 GiB of addresses and 64 MiB of memory, more than this process may have; raise its limit (ulimit -v, ulimit -d)";
  pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
  pthread_t thread[GO_THREADS];
  int n = 0;
  pthread_mutex_lock(&gate);
  while (!lacks && n < GO_THREADS && !pthread_create(&thread[n], 0, wait_at, &gate)) n++;
  pthread_mutex_unlock(&gate);
  if (!lacks && n < GO_THREADS) lacks = "Go's runtime needs 12 threads, more than this process may have; raise its limit (ulimit -u, pids.max of its cgroup, ulimit -v)";
  for (int i = 0; i < n; i++) pthread_join(thread[i], 0);
  if (none != MAP_FAILED) munmap(none, GO_ADDRESSES);
  if (some != MAP_FAILED) munmap(some, GO_WRITABLE);
  return lacks;
}

#endif
