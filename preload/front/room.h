// Stacks for calls of Go's from where little is left of the caller's: a thread with a small
// stack, or a fiber, of whose stack nothing is known. With _GNU_SOURCE.

#ifndef GPUMEM_ROOM_H
#define GPUMEM_ROOM_H

#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

// Go's runtime believes to have 32 KiB where it does not know better, and calls the driver
// there; handlers of the program's signals may come on top.
enum { ROOM = 64 << 10, OTHER_STACK = 512 << 10, GUARD = 64 << 10 }; // 64 KiB: a page of any machine

typedef uint64_t word;
typedef word (*function)(word, word, word, word, word, word);

struct call {
  function f;
  word args[6], result;
};

// room returns where this thread's own stack begins to have ROOM below, and *span, how many
// bytes that is good for; 0 if there is no such place, or the stack is not known.
static uintptr_t room(uintptr_t *span) {
  pthread_attr_t a;
  void *low = 0;
  size_t n = 0;
  if (!pthread_getattr_np(pthread_self(), &a)) {
    if (pthread_attr_getstack(&a, &low, &n)) n = 0;
    pthread_attr_destroy(&a);
  }
  *span = n > ROOM ? n - ROOM : 0;
  return (uintptr_t)low + ROOM;
}

// make_call runs on the other stack.
__attribute__((noinline)) static void make_call(struct call *c) {
  word *a = c->args;
  c->result = c->f(a[0], a[1], a[2], a[3], a[4], a[5]);
}

// call_on makes a call on the stack below top.
__attribute__((noinline)) static void call_on(char *top, struct call *c) {
#if defined __x86_64__
  __asm__ volatile("movq %%rsp, %%rbx\n\tmovq %[top], %%rsp\n\tcallq *%[f]\n\tmovq %%rbx, %%rsp"
                   : "+D"(c)
                   : [top] "r"(top), [f] "r"(make_call)
                   : "rbx", "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",
                     "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
#elif defined __aarch64__
  register struct call *c0 __asm__("x0") = c;
  __asm__ volatile("mov x19, sp\n\tmov sp, %[top]\n\tblr %[f]\n\tmov sp, x19"
                   : "+r"(c0)
                   : [top] "r"(top), [f] "r"(make_call)
                   : "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17", "x19", "x30",
                     "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16",
                     "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
#endif
}

// The stacks that are not in use; each has the next at its top.
static char *stacks;
static pthread_mutex_t stacks_lock = PTHREAD_MUTEX_INITIALIZER;

// The stack where there is no memory for another, for one call at a time.
static char last_stack[OTHER_STACK] __attribute__((aligned(64)));
static pthread_mutex_t last_lock = PTHREAD_MUTEX_INITIALIZER;

// elsewhere makes a call on a stack of the library's.
static word elsewhere(function f, word a0, word a1, word a2, word a3, word a4, word a5) {
  struct call c = {f, {a0, a1, a2, a3, a4, a5}, 0};
  enum { LINK = 64 }; // bytes at the top
  pthread_mutex_lock(&stacks_lock);
  char *top = stacks;
  if (top) stacks = *(char **)top;
  pthread_mutex_unlock(&stacks_lock);
  if (!top) {
    char *low = mmap(0, GUARD + OTHER_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (low != MAP_FAILED) mprotect(low, GUARD, PROT_NONE), top = low + GUARD + OTHER_STACK - LINK;
  }
  if (!top) {
    pthread_mutex_lock(&last_lock);
    call_on(last_stack + sizeof last_stack, &c);
    pthread_mutex_unlock(&last_lock);
    return c.result;
  }
  call_on(top, &c);
  pthread_mutex_lock(&stacks_lock);
  *(char **)top = stacks;
  stacks = top;
  pthread_mutex_unlock(&stacks_lock);
  return c.result;
}

#endif
