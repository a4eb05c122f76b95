// A program by turns: it fills its blocks, and checks them whenever its input has a line, which it
// answers by "ok BLOCKS BYTES" or by what is wrong. It ends with its input.
//
//	turns contents SEED MIB   blocks from 256 bytes to a quarter of MIB; with each line
//	                          some are freed, and others allocated and written, by each kind of copy
//	turns MODE MIB            one block, and work that does not end by itself:
//	  host-function           waits for a thread that submits work until the line "go"
//	  kernel, value           a kernel, or a wait for a value, which the line "go" ends
//	  capture                 a graph is being captured until the line "go"
//	turns idle MIB            one block, and no work without a line
//	turns graph MIB           a block, and a graph with a kernel, a copy and a fill, which each line
//	                          launches; "turns graph MIB computes" checks what they do, which is nothing on
//	                          a simulated GPU. The first answer ends with GPUMEM_LEDGER

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t u64;
typedef void *ptr;

#define DRIVER(F) \
  F(cuInit, (unsigned)) F(cuDevicePrimaryCtxRetain, (ptr *, int)) F(cuCtxSetCurrent, (ptr)) F(cuCtxSynchronize, (void)) \
  F(cuMemAlloc_v2, (u64 *, size_t)) F(cuMemFree_v2, (u64)) F(cuMemAllocAsync, (u64 *, size_t, ptr)) F(cuMemFreeAsync, (u64, ptr)) \
  F(cuMemcpyHtoD_v2, (u64, const void *, size_t)) F(cuMemcpyDtoH_v2, (void *, u64, size_t)) F(cuMemcpyDtoD_v2, (u64, u64, size_t)) \
  F(cuMemcpyHtoDAsync_v2, (u64, const void *, size_t, ptr)) F(cuMemsetD32_v2, (u64, unsigned, size_t)) F(cuMemsetD8Async, (u64, unsigned char, size_t, ptr)) \
  F(cuStreamCreate, (ptr *, unsigned)) F(cuStreamSynchronize, (ptr)) F(cuLaunchHostFunc, (ptr, void (*)(void *), void *)) \
  F(cuMemHostAlloc, (ptr *, size_t, unsigned)) F(cuStreamWaitValue32_v2, (ptr, u64, unsigned, unsigned)) \
  F(cuStreamBeginCapture_v2, (ptr, int)) F(cuStreamEndCapture, (ptr, ptr *)) F(cuModuleLoadData, (ptr *, const void *)) \
  F(cuModuleGetFunction, (ptr *, ptr, const char *)) F(cuGraphInstantiateWithFlags, (ptr *, ptr, u64)) F(cuGraphLaunch, (ptr, ptr)) \
  F(cuMemcpyDtoDAsync_v2, (u64, u64, size_t, ptr)) F(cuMemsetD32Async, (u64, unsigned, size_t, ptr)) \
  F(cuLaunchKernel, (ptr, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, ptr, void **, void **))

static struct {
#define F(name, args) int (*name) args;
  DRIVER(F)
#undef F
} cu;

enum { MIB = 1 << 20, BLOCKS = 400, RELAXED = 2 };

static void fault(const char *what, long n) {
  printf("%s: %ld\n", what, n), fflush(stdout);
  _exit(1);
}

static void must(const char *name, int code) {
  if (code) fault(name, code);
}

#define MUST(name, ...) must(#name, cu.name(__VA_ARGS__))

static u64 random_state;
static u64 rnd(u64 n) {
  random_state = random_state * 6364136223846793005 + 1442695040888963407;
  return (random_state >> 33) % n;
}

// A block's contents follow from its number: no two words are alike, in one block or in two. That
// of a block of one word follows from it, too.
static struct block {
  u64 at, number;
  size_t bytes;
  int async, one_word;
} blocks[BLOCKS];
static u64 *buffer; // of the largest block
static size_t most, live;
static int n_live;
static u64 numbers;
static ptr stream;

static u64 word(u64 number, u64 i) { return (number << 32 | i) * 0x9e3779b97f4a7c15u ^ number; }

static void pattern(const struct block *b) {
  for (size_t i = 0; i < b->bytes / 8; i++) buffer[i] = b->one_word ? (b->number & 0xffffffff) * 0x100000001u : word(b->number, i);
}

// fill writes a block whose number is new.
static void fill(struct block *b) {
  struct block *from = &blocks[rnd(BLOCKS)];
  b->number = ++numbers, b->one_word = 0;
  switch (rnd(5)) {
  case 0:
    pattern(b);
    MUST(cuMemcpyHtoD_v2, b->at, buffer, b->bytes);
    break;
  case 1:
    pattern(b);
    MUST(cuMemcpyHtoDAsync_v2, b->at, buffer, b->bytes, stream);
    MUST(cuStreamSynchronize, stream);
    break;
  case 2:
    b->one_word = 1;
    MUST(cuMemsetD32_v2, b->at, (unsigned)b->number, b->bytes / 4);
    MUST(cuCtxSynchronize);
    break;
  case 3:
    if (from->at && from != b && from->bytes >= b->bytes) {
      b->number = from->number, b->one_word = from->one_word;
      MUST(cuMemcpyDtoD_v2, b->at, from->at, b->bytes);
      MUST(cuCtxSynchronize);
      break;
    } // else as in parts
  default: {
    size_t half = b->bytes / 16 * 8;
    pattern(b);
    MUST(cuMemcpyHtoD_v2, b->at + half, (char *)buffer + half, b->bytes - half);
    MUST(cuMemcpyHtoD_v2, b->at, buffer, half);
  }
  }
}

static void take(struct block *b, size_t bytes, int async) {
  b->bytes = bytes, b->async = async;
  if (async) MUST(cuMemAllocAsync, &b->at, bytes, stream);
  else MUST(cuMemAlloc_v2, &b->at, bytes);
  if (async) MUST(cuStreamSynchronize, stream);
  live += bytes, n_live++;
  fill(b);
}

static void give(struct block *b) {
  if (b->async) MUST(cuMemFreeAsync, b->at, stream);
  else MUST(cuMemFree_v2, b->at);
  live -= b->bytes, n_live--, b->at = 0;
}

// check compares all blocks with what was written.
static void check(void) {
  static u64 *got;
  if (!got) got = malloc(most);
  for (struct block *b = blocks; b < blocks + BLOCKS; b++) {
    if (!b->at) continue;
    MUST(cuMemcpyDtoH_v2, got, b->at, b->bytes);
    pattern(b);
    if (!memcmp(got, buffer, b->bytes)) continue;
    size_t i = 0;
    while (got[i] == buffer[i]) i++;
    printf("block %d of %zu bytes at %#llx: at %zu there is %#llx, want %#llx\n", (int)(b - blocks), b->bytes, (unsigned long long)b->at, i * 8,
      (unsigned long long)got[i], (unsigned long long)buffer[i]);
    fflush(stdout);
    _exit(1);
  }
}

// churn frees some blocks, and takes others: most are small, and most bytes lie in large ones.
static void churn(size_t limit, int steps) {
  for (int n = 0; n < steps; n++) {
    struct block *b = &blocks[rnd(BLOCKS)];
    if (b->at) {
      give(b);
      continue;
    }
    size_t bytes = (256 + rnd((most - 256) >> rnd(16))) & ~(size_t)7;
    if (live + bytes <= limit) take(b, bytes, rnd(3) == 0);
  }
}

static int next_line(char line[64]) { return fgets(line, 64, stdin) != 0; }

static void answer(void) { printf("ok %d %zu\n", n_live, live), fflush(stdout); }

static void contents(size_t limit) {
  char line[64];
  churn(limit, 3 * BLOCKS);
  for (answer(); next_line(line); answer()) check(), churn(limit, 20);
  for (struct block *b = blocks; b < blocks + BLOCKS; b++)
    if (b->at) give(b);
}

// --- work that does not end by itself

static volatile int released, go;

static void wait_for_release(void *arg) {
  while (!released) usleep(1000);
}

// submit submits work until the line "go", and releases the host function behind it: while it stands at
// the gate it releases nothing.
static void *submit(void *arg) {
  ptr own;
  u64 at;
  MUST(cuCtxSetCurrent, arg);
  MUST(cuStreamCreate, &own, 1);
  MUST(cuMemAlloc_v2, &at, 256);
  while (!go) MUST(cuMemsetD8Async, at, 1, 256, own);
  MUST(cuMemsetD8Async, at, 1, 256, own);
  released = 1;
  return 0;
}

static void endless(const char *mode, size_t bytes, ptr context) {
  char line[64];
  ptr graph, module, kernel, end;
  pthread_t other;
  take(&blocks[0], bytes, 0);
  MUST(cuMemHostAlloc, &end, 4, 2);
  *(volatile int *)end = 0;
  if (!strcmp(mode, "host-function")) {
    MUST(cuLaunchHostFunc, stream, wait_for_release, 0);
    pthread_create(&other, 0, submit, context);
  } else if (!strcmp(mode, "kernel")) {
    u64 at = (u64)end;
    void *args[] = {&at};
    MUST(cuModuleLoadData, &module, "x");
    MUST(cuModuleGetFunction, &kernel, module, "gpumem_persistent_kernel");
    MUST(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, args, 0);
  } else if (!strcmp(mode, "value")) {
    MUST(cuStreamWaitValue32_v2, stream, (u64)end, 1, 1);
  } else if (!strcmp(mode, "capture")) {
    MUST(cuStreamBeginCapture_v2, stream, RELAXED);
  } else if (strcmp(mode, "idle")) {
    fault(mode, 2);
  }
  for (answer(); next_line(line); answer()) {
    if (strcmp(line, "go\n")) {
      check();
      continue;
    }
    go = *(volatile int *)end = 1;
    if (!strcmp(mode, "capture")) MUST(cuStreamEndCapture, stream, &graph);
    MUST(cuStreamSynchronize, stream);
    check();
  }
  give(&blocks[0]);
}

// --- a graph whose nodes have addresses of memory that leaves

static const char add_one[] =
  ".version 6.4\n.target sm_75\n.address_size 64\n"
  ".visible .entry add_one(.param .u64 at, .param .u32 n) {\n"
  "  .reg .pred %q;\n  .reg .b32 %r<6>;\n  .reg .b64 %d<4>;\n"
  "  ld.param.u64 %d1, [at];\n  ld.param.u32 %r1, [n];\n"
  "  mov.u32 %r2, %ctaid.x;\n  mov.u32 %r3, %ntid.x;\n  mov.u32 %r4, %tid.x;\n  mad.lo.u32 %r5, %r2, %r3, %r4;\n"
  "  setp.ge.u32 %q, %r5, %r1;\n  @%q bra done;\n"
  "  cvta.to.global.u64 %d2, %d1;\n  mul.wide.u32 %d3, %r5, 4;\n  add.s64 %d2, %d2, %d3;\n"
  "  ld.global.u32 %r2, [%d2];\n  add.u32 %r2, %r2, 1;\n  st.global.u32 [%d2], %r2;\ndone:\n  ret;\n}\n";

enum { WORDS = MIB / 4, FILLED = 0x1234567 };

// expect finds fault with a block of MIB whose words are not as they are to be; those of another block if want is 0.
static void expect(const char *what, u64 at, unsigned want, u64 other) {
  static unsigned got[WORDS], same[WORDS];
  MUST(cuMemcpyDtoH_v2, got, at, MIB);
  if (other) MUST(cuMemcpyDtoH_v2, same, other, MIB);
  for (int i = 0; i < WORDS; i++)
    if (got[i] != (other ? same[i] : want)) fault(what, i);
}

static void graph(size_t bytes, int computes) {
  u64 counted, copied, filled;
  ptr module, kernel, template, ready;
  unsigned n = WORDS, launches = 0;
  void *args[] = {&counted, &n};
  char line[64];
  take(&blocks[0], bytes, 0);
  MUST(cuMemAlloc_v2, &counted, MIB), MUST(cuMemAlloc_v2, &copied, MIB), MUST(cuMemAlloc_v2, &filled, MIB);
  MUST(cuMemsetD32_v2, counted, 0, WORDS);
  MUST(cuModuleLoadData, &module, add_one);
  MUST(cuModuleGetFunction, &kernel, module, "add_one");
  MUST(cuStreamBeginCapture_v2, stream, RELAXED);
  MUST(cuLaunchKernel, kernel, WORDS / 256, 1, 1, 256, 1, 1, 0, stream, args, 0);
  MUST(cuMemcpyDtoDAsync_v2, copied, blocks[0].at, MIB, stream);
  MUST(cuMemsetD32Async, filled, FILLED, WORDS, stream);
  MUST(cuStreamEndCapture, stream, &template);
  MUST(cuGraphInstantiateWithFlags, &ready, template, 0);
  const char *ledger = getenv("GPUMEM_LEDGER");
  printf("ok %d %zu %s\n", n_live, live, ledger ? ledger : ""), fflush(stdout);
  for (; next_line(line); answer()) {
    check();
    MUST(cuMemsetD32_v2, copied, 0, WORDS), MUST(cuMemsetD32_v2, filled, 0, WORDS), MUST(cuCtxSynchronize);
    MUST(cuGraphLaunch, ready, stream);
    MUST(cuStreamSynchronize, stream);
    launches++;
    if (!computes) continue;
    expect("word of the graph's kernel", counted, launches, 0);
    expect("word of the graph's copy", copied, 0, blocks[0].at);
    expect("word of the graph's fill", filled, FILLED, 0);
  }
}

int main(int argc, char **argv) {
  ptr lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), context;
  if (!lib) return puts(dlerror()), 1;
#define F(name, args) if (!(cu.name = (int (*) args)dlsym(lib, #name))) return puts("no " #name), 1;
  DRIVER(F)
#undef F
  int is_contents = argc == 4 && !strcmp(argv[1], "contents");
  int computes = argc == 4 && !strcmp(argv[3], "computes");
  if (!is_contents && !computes && argc != 3) return 2;
  size_t limit = strtoul(argv[is_contents ? 3 : 2], 0, 10) * MIB;
  random_state = numbers = is_contents ? strtoul(argv[2], 0, 10) << 20 : 1 << 20; // no two programs write alike
  most = is_contents ? limit / 4 : limit;
  buffer = malloc(most);
  MUST(cuInit, 0);
  MUST(cuDevicePrimaryCtxRetain, &context, 0);
  MUST(cuCtxSetCurrent, context);
  MUST(cuStreamCreate, &stream, 1);
  if (is_contents) contents(limit);
  else if (!strcmp(argv[1], "graph")) graph(limit, computes);
  else endless(argv[1], limit, context);
  return 0;
}
