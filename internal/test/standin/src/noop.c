// A function for each name of a library (NAMES, made by scripts/libcudasim from
// names.txt), which does nothing and returns RESULT. All are weak: the library's own
// file beside this one has others in the place of a few.

#define NAME(f) __attribute__((weak, visibility("default"))) int f(void) { return RESULT; }
// cuSOLVER's question for the size of a workspace, which has no answer.
#define SIZE(f) __attribute__((weak, visibility("default"))) int f(void) { return 9; } // CUSOLVER_STATUS_NOT_SUPPORTED
NAMES
