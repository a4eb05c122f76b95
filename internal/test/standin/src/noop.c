// A function for each name of a library (NAMES, made by scripts/libcudasim from
// names.txt), which does nothing and returns RESULT. All are weak: the library's own
// file beside this one has others in the place of a few. All are names of two functions,
// since to compile thousands takes seconds.

static int none(void) { return RESULT; }
// cuSOLVER's question for the size of a workspace, which has no answer.
static int no_size(void) { return 9; } // CUSOLVER_STATUS_NOT_SUPPORTED

// What a function gives by a pointer, a workspace's size or a number of errors, is 0. A pointer into
// the device's memory is left alone: these addresses are above all of a program's.
typedef unsigned long long u64;
static void give_i(u64 p) { if (p && !(p >> 48)) *(int *)p = 0; }
static void give_q(u64 p) { if (p && !(p >> 48)) *(u64 *)p = 0; }
__attribute__((weak)) void given(void) {} // for a library that has something to say about it

#define GIVES(f, gives)                                                                               \
  __attribute__((weak, visibility("default"))) int f(                                                 \
      u64 a0, u64 a1, u64 a2, u64 a3, u64 a4, u64 a5, u64 a6, u64 a7, u64 a8, u64 a9, u64 a10, u64 a11, \
      u64 a12, u64 a13, u64 a14, u64 a15, u64 a16, u64 a17, u64 a18, u64 a19, u64 a20, u64 a21, u64 a22) { \
    gives given();                                                                                    \
    return RESULT;                                                                                    \
  }

#define NAME(f) int f(void) __attribute__((weak, visibility("default"), alias("none")));
#define SIZE(f) int f(void) __attribute__((weak, visibility("default"), alias("no_size")));
NAMES
