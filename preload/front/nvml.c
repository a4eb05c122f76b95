// The functions of libnvidia-ml.so.1 that tell how much memory a GPU has: within the
// lease, as cuMemGetInfo does. All others jump to the library's own.

#define _GNU_SOURCE
#include "gpumem.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define API __attribute__((visibility("default"))) int

enum { NVML_FUNCTION_NOT_FOUND = 13, NVML_LIBRARY_NOT_FOUND = 12 };

static int no_library(void) { return NVML_LIBRARY_NOT_FOUND; }
static int no_function(void) { return NVML_FUNCTION_NOT_FOUND; }

typedef void *ptr;
static struct {
  int (*info)(ptr, u64 *), (*info2)(ptr, u64 *), (*uuid)(ptr, char *, unsigned);
} r;

static int same_file(const char *a, const char *b) {
  struct stat x, y;
  return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// ours reports whether a file is this library.
static int ours(const char *path) {
  Dl_info here;
  return dladdr((void *)ours, &here) && here.dli_fname && same_file(here.dli_fname, path);
}

// is_off reports whether the program was started with GPUMEM_OFF, in the words that libcuda.so.1
// beside this library knows.
static int is_off(void) {
  const char *v = getenv("GPUMEM_OFF");
  return v && *v && strcmp(v, "0") && strcmp(v, "no") && strcmp(v, "false");
}

// less reports whether a lease on a GPU leaves less than the GPU has.
static int less(u64 total, u64 limit, u64 left) { return limit < total || !left; }

__attribute__((constructor)) static void load(void) {
  const struct gm_mark *mark = gm_mark_of("libcuda.so.1");
  const char *path = getenv("GPUMEM_LIBNVML");
  if (mark->state && (!path || !*path)) path = gm_find("libnvidia-ml.so.1", ours);
  void *lib = path && *path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : 0;
  void *none = lib ? (void *)no_function : (void *)no_library;
  int i = 0;
  for (const char *name = gm_names; *name; name += strlen(name) + 1, i++) {
    void *p = lib ? dlsym(lib, name) : 0;
    gm_table[i] = p ? p : none;
  }
#define GET(f, name) if (!lib || !(*(void **)&r.f = dlsym(lib, name))) *(void **)&r.f = none
  GET(info, "nvmlDeviceGetMemoryInfo");
  GET(info2, "nvmlDeviceGetMemoryInfo_v2");
  GET(uuid, "nvmlDeviceGetUUID");
}

// within makes a GPU's figures those of the lease on it.
static void within(ptr device, u64 *total, u64 *free_, u64 *used) {
  char uuid[128];
  u64 limit, left;
  int state = gm_marked()->state;
  if (state == GM_REFUSED) {
    *free_ = 0;
    *used = *total;
    return;
  }
  if (!state && is_off()) return;
  if (r.uuid(device, uuid, sizeof uuid) || !gm_lease(uuid, &limit, &left) || !less(*total, limit, left)) return;
  if (limit < *total) *total = limit;
  if (left < *free_) *free_ = left;
  *used = *total - *free_;
}

// nvmlMemory_t is total, free and used.
API nvmlDeviceGetMemoryInfo(ptr device, u64 *m) {
  int code = r.info(device, m);
  if (!code && m) within(device, &m[0], &m[1], &m[2]);
  return code;
}

// nvmlMemory_v2_t has its version, total, reserved, free and used.
API nvmlDeviceGetMemoryInfo_v2(ptr device, u64 *m) {
  int code = r.info2(device, m);
  if (!code && m) within(device, &m[1], &m[3], &m[4]);
  return code;
}
