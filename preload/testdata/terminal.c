// A program of one terminal of several on a GPU: it fills its blocks, and then checks one and
// writes it anew, until its input ends. At the end it checks all, and says so. No word is like another's: not of
// another block, nor of another program, nor of an earlier round.
//
//	terminal SEED MIB

#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint64_t u64;
typedef void *ptr;

enum { BLOCK = 4 << 20, WORDS = BLOCK / 8, MOST = 1024 };

static int (*alloc)(u64 *, size_t), (*to)(u64, const void *, size_t), (*from)(void *, u64, size_t);
static u64 at[MOST], version[MOST], seed, buffer[WORDS];

static void must(const char *what, int code) {
  if (code) printf("%s: %d\n", what, code), exit(1);
}

static u64 word(u64 block, u64 i) { return (seed << 56 | block << 40 | version[block] << 24 | i) * 0x9e3779b97f4a7c15u; }

static void fill(u64 block) {
  version[block]++;
  for (u64 i = 0; i < WORDS; i++) buffer[i] = word(block, i);
  must("write", to(at[block], buffer, BLOCK));
}

static void check(u64 block) {
  must("read", from(buffer, at[block], BLOCK));
  for (u64 i = 0; i < WORDS; i++)
    if (buffer[i] != word(block, i)) printf("word %lu of block %lu is wrong\n", (long)i, (long)block), exit(1);
}

int main(int argc, char **argv) {
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (argc != 3 || !cuda) return 2;
  int (*init)(unsigned) = dlsym(cuda, "cuInit"), (*retain)(ptr *, int) = dlsym(cuda, "cuDevicePrimaryCtxRetain");
  int (*current)(ptr) = dlsym(cuda, "cuCtxSetCurrent");
  alloc = dlsym(cuda, "cuMemAlloc_v2"), to = dlsym(cuda, "cuMemcpyHtoD_v2"), from = dlsym(cuda, "cuMemcpyDtoH_v2");
  ptr context;
  must("context", init(0) ?: retain(&context, 0) ?: current(context));
  seed = atoi(argv[1]);
  u64 blocks = (u64)atoi(argv[2]) * (1 << 20) / BLOCK;
  for (u64 i = 0; i < blocks; i++) must("alloc", alloc(&at[i], BLOCK)), fill(i);
  puts("filled"), fflush(stdout);
  u64 random = seed;
  for (struct pollfd input = {0, POLLIN, 0}; !poll(&input, 1, 0);) {
    random = random * 6364136223846793005 + 1442695040888963407;
    u64 i = (random >> 33) % blocks;
    check(i), fill(i);
  }
  for (u64 i = 0; i < blocks; i++) check(i);
  puts("all is right");
}
