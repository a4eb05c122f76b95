// A program in a lease by turns, which does what may keep it from being asked to leave, as its
// standard input says, one order a line, and answers each with the driver's code:
//
//	alloc MIB     cuMemAlloc              free N        cuMemFree of the block of order N
//	fill N        cuMemsetD8 of the first 2^N MiB of the block of order 0
//	managed MIB   cuMemAllocManaged
//	context 0     cuCtxCreate             destroy N     cuCtxDestroy of that of order N
//	plain MIB     cuMemAlloc in the context of the order before
//	managed2 MIB  cuMemAllocManaged in it
//	get N         cuIpcGetMemHandle of the second half of the block of order N
//	open 0        cuIpcOpenMemHandle of another process's handle; open1 0: by cuGetProcAddress
//	close N       cuIpcCloseMemHandle of the memory of order N
//	export 0, import 0, poolexport 0, poolimport 0, range N: of handles that the system passes on
//	peer 0        cuCtxEnablePeerAccess
//	map MIB       cuMemCreate and cuMemMap  unmap N      cuMemUnmap and cuMemRelease of it
//	shm 0         maps a file of /dev/shm as ranks of NCCL do   unshm 0  ends that
//	device 0      opens a device of RDMA    undevice 0   closes it

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

typedef uint64_t u64;
typedef void *ptr;
struct ipc { u64 magic, pid, device, bytes, rest[4]; };

static void *lib;
#define CALL(name, args, ...) ((int (*) args)find(name))(__VA_ARGS__)

static void *find(const char *name) {
  void *p = dlsym(lib, name);
  if (!p) printf("no %s\n", name), exit(1);
  return p;
}

enum { MOST = 1000, PAGE = 2 << 20 };
static u64 at[MOST], handle[MOST], size[MOST];
static ptr context, shm;
static int device;

static int in_context(const char *name, u64 *to, size_t n) {
  ptr c;
  int code = CALL("cuCtxPushCurrent_v2", (ptr), context);
  if (code) return code;
  code = *name == 'm' ? CALL("cuMemAllocManaged", (u64 *, size_t, unsigned), to, n, 1) : CALL("cuMemAlloc_v2", (u64 *, size_t), to, n);
  return CALL("cuCtxPopCurrent_v2", (ptr *), &c), code;
}

static int make_context(ptr *c) {
  int code = CALL("cuCtxCreate_v2", (ptr *, unsigned, int), c, 0, 0);
  context = *c;
  return code ?: CALL("cuCtxPopCurrent_v2", (ptr *), c);
}

static int open_memory(u64 *to, int by_pointer) {
  int (*open)(u64 *, struct ipc, unsigned) = 0;
  if (by_pointer) CALL("cuGetProcAddress_v2", (const char *, ptr *, int, u64, int *), "cuIpcOpenMemHandle", (ptr *)&open, 12000, 0, 0);
  else *(void **)&open = find("cuIpcOpenMemHandle_v2");
  return open(to, (struct ipc){0x6d656d7570673031, 1, 0, PAGE, {0}}, 1); // of process 1
}

static int map(int i, size_t n) {
  int prop[8] = {1, 0, 1, 0}, access[3] = {1, 0, 3};
  size[i] = n;
  return CALL("cuMemAddressReserve", (u64 *, size_t, size_t, u64, u64), &at[i], n, 0, 0, 0) ?:
         CALL("cuMemCreate", (u64 *, size_t, const void *, u64), &handle[i], n, prop, 0) ?:
         CALL("cuMemMap", (u64, size_t, size_t, u64, u64), at[i], n, 0, handle[i], 0) ?:
         CALL("cuMemSetAccess", (u64, size_t, const void *, size_t), at[i], n, access, 1);
}

static int unmap(int i) {
  return CALL("cuMemUnmap", (u64, size_t), at[i], size[i]) ?: CALL("cuMemRelease", (u64), handle[i]);
}

static int share(void) {
  char path[] = "/dev/shm/nccl-XXXXXX";
  int f = mkstemp(path);
  if (f < 0 || ftruncate(f, 4096)) return 999;
  shm = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
  return close(f), unlink(path), shm == MAP_FAILED ? 999 : 0;
}

// own_devices has a /dev for this process alone.
static int own_devices(void) {
  if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS)) return 0;
  if (mount(0, "/", 0, MS_REC | MS_PRIVATE, 0) || mount("none", "/dev", "tmpfs", 0, 0)) return 0;
  return !mkdir("/dev/infiniband", 0777) && (device = open("/dev/infiniband/uverbs0", O_RDWR | O_CREAT, 0666)) >= 0;
}

static int obey(const char *order, int i, size_t n) {
  int to;
  u64 ignored;
#define IS(word) !strcmp(order, word)
  if (IS("alloc")) return CALL("cuMemAlloc_v2", (u64 *, size_t), &at[i], n << 20);
  if (IS("free")) return CALL("cuMemFree_v2", (u64), at[n]);
  if (IS("fill")) return CALL("cuMemsetD8_v2", (u64, unsigned char, size_t), at[0], 1, (size_t)1 << (20 + n));
  if (IS("managed")) return CALL("cuMemAllocManaged", (u64 *, size_t, unsigned), &at[i], n << 20, 1);
  if (IS("context")) return make_context((ptr *)&at[i]);
  if (IS("destroy")) return CALL("cuCtxDestroy_v2", (ptr), (ptr)at[n]);
  if (IS("plain") || IS("managed2")) return in_context(order, &at[i], n << 20);
  if (IS("get")) return CALL("cuIpcGetMemHandle", (void *, u64), &(struct ipc){0}, at[n] + (1 << 20));
  if (IS("open") || IS("open1")) return open_memory(&at[i], order[4] == '1');
  if (IS("close")) return CALL("cuIpcCloseMemHandle", (u64), at[n]);
  if (IS("export")) return CALL("cuMemExportToShareableHandle", (void *, u64, int, u64), &to, 1, 1, 0);
  if (IS("import")) return CALL("cuMemImportFromShareableHandle", (u64 *, void *, int), &ignored, 0, 1);
  if (IS("poolexport")) return CALL("cuMemPoolExportToShareableHandle", (void *, ptr, int, u64), &to, 0, 1, 0);
  if (IS("poolimport")) return CALL("cuMemPoolImportFromShareableHandle", (ptr *, void *, int, u64), (ptr *)&ignored, 0, 1, 0);
  if (IS("range")) return CALL("cuMemGetHandleForAddressRange", (void *, u64, size_t, int, u64), &to, at[n], PAGE, 1, 0);
  if (IS("peer")) return CALL("cuCtxGetCurrent", (ptr *), (ptr *)&ignored) ?: CALL("cuCtxEnablePeerAccess", (ptr, unsigned), (ptr)ignored, 0);
  if (IS("map")) return map(i, n << 20);
  if (IS("unmap")) return unmap(n);
  if (IS("shm")) return share();
  if (IS("unshm")) return munmap(shm, 4096);
  return IS("undevice") ? close(device) : 998;
}

int main(int argc, char **argv) {
  if (argc > 1 && !own_devices()) return puts("no devices"), 0;
  if (!(lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL))) return puts(dlerror()), 1;
  ptr c, s;
  int no = CALL("cuInit", (unsigned), 0) ?: CALL("cuDevicePrimaryCtxRetain", (ptr *, int), &c, 0) ?: CALL("cuCtxSetCurrent", (ptr), c);
  if (no || (no = CALL("cuStreamCreate", (ptr *, unsigned), &s, 1))) return printf("no context: %d\n", no), 0;
  puts("ready"), fflush(stdout);
  char order[20];
  size_t n;
  for (int i = 0; i < MOST && scanf("%19s %zu", order, &n) == 2; i++) printf("%d\n", obey(order, i, n)), fflush(stdout);
}
