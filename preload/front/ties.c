// What ties the memory of a process to others, in a process that lends its memory or takes turns:
// while it lasts the process is not asked to leave. See gate.h.

#define _GNU_SOURCE
#include "gate.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Guarded by lock.
static struct tie {
  u64 key, context;
  int kind;
} *ties;
static int n_ties, room;
static int for_good; // kinds of which one never ends, or was not noted for want of memory
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void gm_tie(int kind, u64 key, u64 context) {
  pthread_mutex_lock(&lock);
  if (key && n_ties == room) {
    int more = room ? 2 * room : 16;
    struct tie *list = realloc(ties, (size_t)more * sizeof *list);
    if (list) ties = list, room = more;
  }
  if (key && n_ties < room) ties[n_ties++] = (struct tie){key, context, kind};
  else for_good |= kind;
  pthread_mutex_unlock(&lock);
}

// end_ties ends at most most of those of a key or a context, 0 for none, and returns their kinds.
static int end_ties(u64 key, u64 context, int most) {
  int kinds = 0;
  pthread_mutex_lock(&lock);
  for (int i = n_ties - 1; i >= 0 && most; i--) {
    if (!(key && ties[i].key == key) && !(context && ties[i].context == context)) continue;
    kinds |= ties[i].kind, most--;
    ties[i] = ties[--n_ties];
  }
  pthread_mutex_unlock(&lock);
  return kinds;
}

int gm_untie(u64 key, int most) { return end_ties(key, 0, most); }

void gm_untie_context(u64 context) { end_ties(0, context, ALL_TIES); }

int gm_tied(void) {
  pthread_mutex_lock(&lock);
  int kinds = for_good;
  for (int i = 0; i < n_ties; i++) kinds |= ties[i].kind;
  pthread_mutex_unlock(&lock);
  return kinds;
}

void gm_ties_forked(void) {
  pthread_mutex_init(&lock, 0); // its owner is not here
  n_ties = for_good = 0;
}

// is_confidential asks the driver's NVML whether the system computes confidentially.
static int is_confidential(const char *library) {
  struct { unsigned environment, feature, tools; } state = {0, 0, 0}; // nvmlConfComputeSystemState_t
  void *nvml = *library ? dlopen(library, RTLD_NOW | RTLD_LOCAL) : 0;
  int (*begin)(void), (*end)(void), (*ask)(void *), is = 0;
  if (!nvml) return 0;
  *(void **)&begin = dlsym(nvml, "nvmlInit_v2"), *(void **)&end = dlsym(nvml, "nvmlShutdown");
  *(void **)&ask = dlsym(nvml, "nvmlSystemGetConfComputeState");
  if (begin && end && ask && !begin()) is = !ask(&state) && state.feature, end();
  return dlclose(nvml), is;
}

// has_device reports whether the process has a device open with which memory of a GPU may be
// registered: those of RDMA, GDRCopy and GPUDirect Storage.
static int has_device(void) {
  static const char *const devices[] = {"/dev/infiniband/", "/dev/gdrdrv", "/dev/nvidia-fs"};
  char path[64];
  int found = 0;
  DIR *d = opendir("/proc/self/fd");
  if (!d) return 0;
  for (struct dirent *e; !found && (e = readdir(d));) {
    ssize_t n = readlinkat(dirfd(d), e->d_name, path, sizeof path - 1);
    path[n < 0 ? 0 : n] = 0;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) found |= !strncmp(path, devices[i], strlen(devices[i]));
  }
  return closedir(d), found;
}

// has_ranks reports whether NCCL has connected ranks in a way that no tie shows: by memory of the
// host that they map, or by a network, for which a rank and its proxy map some. Ranks that reach
// each other's GPU memory have exported or imported some. One rank alone connects to nobody.
static int has_ranks(void) {
  char *line = 0;
  size_t room_ = 0;
  int found = 0;
  FILE *f = fopen("/proc/self/maps", "re");
  if (!f) return 0;
  while (!found && getline(&line, &room_, f) > 0) found = strstr(line, " /dev/shm/nccl-") != 0;
  return free(line), fclose(f), found;
}

int gm_look(const char *libnvml) {
  static int confidential = -1; // which does not change; one thread looks
  if (confidential < 0) confidential = is_confidential(libnvml);
  return (confidential ? GM_CONFIDENTIAL : 0) | (has_device() ? GM_REGISTERED : 0) | (has_ranks() ? GM_RANKS : 0);
}
