// A program in a container, and what it may try: each argument is done in turn, and what
// the library answers is written.
//
//	use             makes a context; writes the code
//	take MIB        cuMemAlloc; writes the code
//	set NAME=VALUE  changes its environment
//	fork            goes on in a child; the parent waits for it
//	info            cuMemGetInfo; writes the code, and the MiB that are free
//	nvml            writes the MiB of the first GPU that are free, by NVML
//	all             calls whatever takes memory or makes a context; writes the codes that are not 2

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t u64;
typedef void *ptr;

static ptr lib;

static ptr get(const char *name) {
  ptr p = dlsym(lib, name);
  if (!p) printf("no %s\n", name), exit(1);
  return p;
}

static ptr by_address(const char *name) {
  int (*address)(const char *, ptr *, int, u64, int *) = get("cuGetProcAddress_v2"), status;
  ptr p = 0;
  return address(name, &p, 12000, 0, &status) ? 0 : p;
}

static int use(void) {
  int (*init)(unsigned) = get("cuInit"), (*retain)(ptr *, int) = get("cuDevicePrimaryCtxRetain"), (*set)(ptr) = get("cuCtxSetCurrent");
  ptr c;
  int code = init(0);
  if (!code) code = retain(&c, 0);
  return code ? code : set(c);
}

static int take(size_t mib) {
  u64 at;
  return ((int (*)(u64 *, size_t))get("cuMemAlloc_v2"))(&at, mib << 20);
}

static void all(void) {
  u64 at = 0;
  size_t pitch, desc[8] = {16, 16, 0, 0};
  ptr p = 0;
  int prop[64] = {1, 0, 1, 0};
  ((int *)(desc + 2))[0] = 1, ((int *)(desc + 2))[1] = 1;
  ((int (*)(unsigned))get("cuInit"))(0);
#define TRY(name, types, ...) do { \
    int code = ((int (*) types)get(name))(__VA_ARGS__); \
    if (code != 2) printf("%s %d\n", name, code); \
  } while (0)
#define TRY_ADDRESS(name, types, ...) do { \
    ptr f = by_address(name); \
    int code = f ? ((int (*) types)f)(__VA_ARGS__) : 2; \
    if (code != 2) printf("%s by its address %d\n", name, code); \
  } while (0)
  TRY("cuDevicePrimaryCtxRetain", (ptr *, int), &p, 0);
  TRY("cuCtxCreate_v2", (ptr *, unsigned, int), &p, 0, 0);
  TRY("cuCtxCreate_v3", (ptr *, ptr, int, unsigned, int), &p, 0, 0, 0, 0);
  TRY("cuCtxCreate_v4", (ptr *, ptr, unsigned, int), &p, 0, 0, 0);
  TRY("cuGreenCtxCreate", (ptr *, ptr, int, unsigned), &p, 0, 0, 1);
  TRY("cuCtxCreate", (ptr *, unsigned, int), &p, 0, 0);
  TRY("cuGLCtxCreate_v2", (ptr *, unsigned, int), &p, 0, 0);
  TRY("cuMemAlloc", (unsigned *, unsigned), (unsigned *)&at, 1 << 20);
  TRY("cuMemAllocPitch", (unsigned *, unsigned *, unsigned, unsigned, unsigned), (unsigned *)&at, (unsigned *)&pitch, 100, 100, 4);
  TRY("cuArrayCreate", (ptr *, unsigned *), &p, (unsigned[]){16, 16, 1, 1});
  TRY("cuArray3DCreate", (ptr *, unsigned *), &p, (unsigned[]){16, 16, 0, 1, 1, 0});
  TRY_ADDRESS("cuDevicePrimaryCtxRetain", (ptr *, int), &p, 0);
  TRY_ADDRESS("cuCtxCreate", (ptr *, unsigned, int), &p, 0, 0);
  TRY_ADDRESS("cuMemAlloc", (u64 *, size_t), &at, 1 << 20);
  TRY("cuMemAlloc_v2", (u64 *, size_t), &at, 1 << 20);
  TRY("cuMemAllocManaged", (u64 *, size_t, unsigned), &at, 1 << 20, 1);
  TRY("cuMemAllocPitch_v2", (u64 *, size_t *, size_t, size_t, unsigned), &at, &pitch, 100, 100, 4);
  TRY("cuMemAllocAsync", (u64 *, size_t, ptr), &at, 1 << 20, 0);
  TRY("cuMemAllocAsync_ptsz", (u64 *, size_t, ptr), &at, 1 << 20, 0);
  TRY("cuMemAllocFromPoolAsync", (u64 *, size_t, ptr, ptr), &at, 1 << 20, (ptr)&p, 0);
  TRY("cuArrayCreate_v2", (ptr *, size_t *), &p, desc);
  TRY("cuArray3DCreate_v2", (ptr *, size_t *), &p, desc);
  TRY("cuMipmappedArrayCreate", (ptr *, size_t *, unsigned), &p, desc, 1);
  TRY("cuMemCreate", (u64 *, size_t, int *, u64), &at, 2 << 20, prop, 0);
  TRY("cuGraphAddMemAllocNode", (ptr *, ptr, ptr, size_t, ptr), &p, p, 0, 0, desc);
}

static void info(void) {
  size_t free_ = 0, total = 0;
  int code = ((int (*)(size_t *, size_t *))get("cuMemGetInfo_v2"))(&free_, &total);
  printf("%d %zu of %zu\n", code, free_ >> 20, total >> 20);
}

static void nvml(void) {
  ptr so = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), device;
  if (!so) puts(dlerror()), exit(1);
  u64 m[3] = {0};
  int code = ((int (*)(void))dlsym(so, "nvmlInit_v2"))();
  if (!code) code = ((int (*)(unsigned, ptr *))dlsym(so, "nvmlDeviceGetHandleByIndex_v2"))(0, &device);
  if (!code) code = ((int (*)(ptr, u64 *))dlsym(so, "nvmlDeviceGetMemoryInfo"))(device, m);
  printf("%d %llu of %llu\n", code, (unsigned long long)m[1] >> 20, (unsigned long long)m[0] >> 20);
}

int main(int argc, char **argv) {
  if (!(lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL))) return puts(dlerror()), 1;
  setvbuf(stdout, 0, _IONBF, 0);
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "use")) printf("%d\n", use());
    else if (!strcmp(argv[i], "take") && i + 1 < argc) printf("%d\n", take(atoi(argv[++i])));
    else if (!strcmp(argv[i], "set") && i + 1 < argc) putenv(argv[++i]);
    else if (!strcmp(argv[i], "info")) info();
    else if (!strcmp(argv[i], "nvml")) nvml();
    else if (!strcmp(argv[i], "all")) all();
    else if (!strcmp(argv[i], "fork")) {
      pid_t child = fork();
      if (child) return waitpid(child, 0, 0) < 0;
    } else return 2;
  }
}
