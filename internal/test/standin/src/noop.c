// A function for each name of a library (NAMES, made by scripts/libcudasim from
// names.txt), which does nothing and returns RESULT. All are weak: the library's own
// file beside this one has others in the place of a few. All are names of two functions,
// since to compile thousands takes seconds.

static int none(void) { return RESULT; }
// cuSOLVER's question for the size of a workspace, which has no answer.
static int no_size(void) { return 9; } // CUSOLVER_STATUS_NOT_SUPPORTED

#define NAME(f) int f(void) __attribute__((weak, visibility("default"), alias("none")));
#define SIZE(f) int f(void) __attribute__((weak, visibility("default"), alias("no_size")));
NAMES
