// A program that takes and frees GPU memory as its standard input says, one order a line,
// and answers each with the driver's code:
//
//	alloc MIB      cuMemAlloc            free N         cuMemFree of the block of order N
//	async MIB      cuMemAllocAsync       freeasync N    cuMemFreeAsync of it
//	managed MIB    cuMemAllocManaged     reset 0        a new primary context
//	release 0      the primary context ends
//	other MIB      cuMemAllocAsync in another stream
//	begin 0        begins to capture a graph in the first stream
//	end 0          ends that
//	pitch MIB      cuMemAllocPitch, in rows of 512 bytes; 0: in one that no GPU has
//	lost MIB       memory of a pool with a limit, which ends before it
//	pools N        so many pools, which keep 2 MiB each, with nothing live, and then end together
//	rounds N       so many pools one after the other, each of which ends while 16 MiB that were
//	               freed may be in use; then waits for the stream
//	current MIB    memory of a pool with a limit that is the current one, which ends before it:
//	               then the default pool is, and the other does not end again
//	fill N         writes to the first byte of the block of order N, and
//	read N         reads it: 997 if it is another
//	sync 0         cuStreamSynchronize of the first stream
//	query 0        cuStreamQuery of it
//	context 0      cuCtxCreate           destroy N      cuCtxDestroy of that of order N
//	context1 0     that before CUDA 3.2  destroy1 N     that before CUDA 4.0
//	attach N       cuCtxAttach to it     detach N       cuCtxDetach of it
//	alloc1 MIB     cuMemAlloc before CUDA 3.2; free1 N, array1 MIB, pitch1 MIB: so, too

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t u64;
typedef void *ptr;

static struct { int type, handles, location, id; ptr security; size_t limit; char rest[56]; } limited = {1, 0, 1, 0, 0, 64 << 20, {0}};
static int (*pool)(ptr *, const void *), (*from)(u64 *, size_t, ptr, ptr), (*end_pool)(ptr), (*set_pool)(ptr, int, void *);
static int (*sync)(ptr), (*free_async)(u64, ptr), (*look_at)(ptr, int, void *);

// use takes memory of a new pool that keeps what it has, and frees it.
static int use(ptr *p, size_t bytes, ptr s) {
  u64 at, all = ~(u64)0;
  return pool(p, &limited) ?: set_pool(*p, 4, &all) ?: from(&at, bytes, *p, s) ?: free_async(at, s);
}

static int pools(size_t n, ptr s) {
  static ptr p[1000];
  int code = 0;
  limited.limit = 2 << 20;
  for (size_t i = 0; i < n && !code; i++) code = use(&p[i], 1 << 20, s) ?: sync(s);
  for (size_t i = 0; i < n && !code; i++) code = end_pool(p[i]);
  limited.limit = 64 << 20;
  return code;
}

static int rounds(size_t n, ptr s) {
  ptr p;
  u64 v;
  int code = 0;
  for (size_t i = 0; i < n && !code; i++) {
    code = use(&p, 16 << 20, s) ?: end_pool(p) ?: sync(s);
    if (!code && !look_at(p, 5, &v)) code = 999; // the driver has it no more
  }
  return code;
}

static int (*set_current)(int, ptr), (*get_current)(ptr *, int), (*usual)(ptr *, int);

static int current(u64 *at, size_t bytes, ptr s) {
  ptr p, now, first;
  int code = pool(&p, &limited) ?: set_current(0, p) ?: from(at, bytes, p, s) ?: end_pool(p) ?: get_current(&now, 0) ?: usual(&first, 0);
  return code ?: now != first ? 998 : end_pool(p) ? 0 : 999;
}

int main(void) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) return puts(dlerror()), 1;
  int (*init)(unsigned), (*retain)(ptr *, int), (*reset)(int), (*set)(ptr), (*create)(ptr *, unsigned);
  int (*alloc)(u64 *, size_t), (*async)(u64 *, size_t, ptr), (*managed)(u64 *, size_t, unsigned), (*free_)(u64);
#define GET(f, name) if (!(*(void **)&f = dlsym(lib, name))) return puts("no " name), 1
  GET(init, "cuInit"); GET(retain, "cuDevicePrimaryCtxRetain"); GET(reset, "cuDevicePrimaryCtxReset_v2"); GET(set, "cuCtxSetCurrent");
  GET(create, "cuStreamCreate"); GET(alloc, "cuMemAlloc_v2"); GET(async, "cuMemAllocAsync"); GET(managed, "cuMemAllocManaged");
  int (*begin)(ptr, int), (*end)(ptr, ptr *);
  GET(begin, "cuStreamBeginCapture_v2"); GET(end, "cuStreamEndCapture");
  GET(free_, "cuMemFree_v2"); GET(free_async, "cuMemFreeAsync");
  int (*release)(int);
  GET(release, "cuDevicePrimaryCtxRelease_v2");
  int (*context)(ptr *, unsigned, int), (*destroy)(ptr), (*pop)(ptr *);
  GET(context, "cuCtxCreate_v2"); GET(destroy, "cuCtxDestroy_v2"); GET(pop, "cuCtxPopCurrent_v2");
  int (*context1)(ptr *, unsigned, int), (*destroy1)(ptr), (*attach)(ptr *, unsigned), (*detach)(ptr), (*push)(ptr);
  GET(context1, "cuCtxCreate"); GET(destroy1, "cuCtxDestroy"); GET(attach, "cuCtxAttach"); GET(detach, "cuCtxDetach");
  GET(push, "cuCtxPushCurrent_v2");
  int (*alloc1)(unsigned *, unsigned), (*free1)(unsigned), (*array1)(ptr *, const unsigned *);
  int (*pitch1)(unsigned *, unsigned *, unsigned, unsigned, unsigned);
  GET(alloc1, "cuMemAlloc"); GET(free1, "cuMemFree"); GET(pitch1, "cuMemAllocPitch"); GET(array1, "cuArrayCreate");
  unsigned row;
  int (*pitched)(u64 *, size_t *, size_t, size_t, unsigned);
  size_t pitch;
  GET(set_pool, "cuMemPoolSetAttribute"); GET(look_at, "cuMemPoolGetAttribute"); GET(sync, "cuStreamSynchronize");
  GET(set_current, "cuDeviceSetMemPool"); GET(get_current, "cuDeviceGetMemPool"); GET(usual, "cuDeviceGetDefaultMemPool");
  int (*query)(ptr);
  GET(query, "cuStreamQuery");
  GET(pool, "cuMemPoolCreate"); GET(from, "cuMemAllocFromPoolAsync"); GET(end_pool, "cuMemPoolDestroy");
  GET(pitched, "cuMemAllocPitch_v2");
  int (*fill)(u64, unsigned char, size_t), (*read)(void *, u64, size_t);
  GET(fill, "cuMemsetD8_v2"); GET(read, "cuMemcpyDtoH_v2");
  unsigned char byte;
  ptr c, s, other, graph;
  u64 at[1000] = {0};
  if (retain(&c, 0) != 3) return puts("a context before cuInit"), 1; // which does not stand in the way of one after it
  int no = init(0) ?: retain(&c, 0);
  if (no) return printf("no context: %d\n", no), 0;
  if (set(c) || create(&s, 1) || create(&other, 1)) return puts("no streams"), 1;
  char order[20];
  size_t n;
  for (int i = 0, code; i < 1000 && scanf("%19s %zu", order, &n) == 2; i++) {
    if (!strcmp(order, "alloc")) code = alloc(&at[i], n << 20);
    else if (!strcmp(order, "async")) code = async(&at[i], n << 20, s);
    else if (!strcmp(order, "other")) code = async(&at[i], n << 20, other);
    else if (!strcmp(order, "begin")) code = begin(s, 0);
    else if (!strcmp(order, "end")) code = end(s, &graph);
    else if (!strcmp(order, "pitch")) code = pitched(&at[i], &pitch, n ? 512 : (size_t)-1, n ? n * 2048 : 1, 4);
    else if (!strcmp(order, "lost")) code = pool(&graph, &limited) ?: from(&at[i], n << 20, graph, s) ?: end_pool(graph);
    else if (!strcmp(order, "pools")) code = pools(n, s);
    else if (!strcmp(order, "rounds")) code = rounds(n, s);
    else if (!strcmp(order, "current")) code = current(&at[i], n << 20, s);
    else if (!strcmp(order, "fill")) code = fill(at[n], n + 1, 1);
    else if (!strcmp(order, "read")) code = read(&byte, at[n], 1) ?: byte == n + 1 ? 0 : 997;
    else if (!strcmp(order, "query")) code = query(s);
    else if (!strcmp(order, "sync")) code = sync(s);
    else if (!strcmp(order, "context")) code = context((ptr *)&at[i], 0, 0) ?: pop(&graph);
    else if (!strcmp(order, "release")) code = release(0);
    else if (!strcmp(order, "context1")) code = context1((ptr *)&at[i], 0, 0) ?: pop(&graph);
    else if (!strcmp(order, "destroy1")) code = destroy1((ptr)at[n]);
    else if (!strcmp(order, "attach")) code = push((ptr)at[n]) ?: attach((ptr *)&at[i], 0) ?: pop(&graph);
    else if (!strcmp(order, "detach")) code = detach((ptr)at[n]);
    else if (!strcmp(order, "alloc1")) code = alloc1((unsigned *)&at[i], n << 20);
    else if (!strcmp(order, "free1")) code = free1(at[n]);
    else if (!strcmp(order, "pitch1")) code = pitch1((unsigned *)&at[i], &row, 512, n * 2048, 4);
    else if (!strcmp(order, "array1")) code = array1((ptr *)&at[i], (unsigned[]){1024, n * 1024, 1, 1}); // bytes
    else if (!strcmp(order, "destroy")) code = destroy((ptr)at[n]);
    else if (!strcmp(order, "managed")) code = managed(&at[i], n << 20, 1);
    else if (!strcmp(order, "free")) code = free_(at[n]);
    else if (!strcmp(order, "freeasync")) code = free_async(at[n], s);
    else code = reset(0) || retain(&c, 0) || set(c) || create(&s, 1);
    printf("%d\n", code);
    fflush(stdout);
  }
}
