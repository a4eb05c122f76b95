// front.h is what the two halves of the simulated driver know of each other:
// front.c, which has the exported functions, and the Go files, which serve them.

#ifndef LIBCUDASIM_FRONT_H
#define LIBCUDASIM_FRONT_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t u64;

#include "names.h" // SIM_NAMES: NAME(symbol, base, version) for each function

#define NAME(symbol, base, version) number_##symbol,
enum { SIM_NAMES simNameCount };
#undef NAME

enum { simArgs = 12, simDepth = 32 };

// A thread of the program, as the driver sees it. Only its own calls touch it.
struct simThread {
  u64 number;          // from 1; 0 before the thread's first call
  u64 stack[simDepth]; // contexts, the current one last
  u64 depth;
  u64 captureMode;     // of cuThreadExchangeStreamCaptureMode
  u64 wait;            // set by a call: return when this host function has run
};

// One exported function.
struct simName {
  const char *symbol; // cuMemAlloc_v2
  const char *base;   // cuMemAlloc, by which cuGetProcAddress is asked for it
  int version;        // 3020: CUDA 3.2 has it and those before have not
  void *function;
};

extern const struct simName simNames[];

// simServe makes a call of a function, by its number, with the words that it got.
int simServe(int name, u64 *args);

// simQueue has fn run with arg, after all that was queued before, on a thread
// that runs nothing else. status is passed before arg if withStatus is not 0, as
// cuStreamAddCallback wants it. It returns the function's number, from 1.
u64 simQueue(void *fn, void *arg, void *stream, int withStatus);

// simBegun and simDone are the numbers of the last host function that has begun, and that
// has run.
u64 simBegun(void);
u64 simDone(void);

// simAwait waits until the host function of that number has run.
void simAwait(u64 number);

// simLog writes a line to the file that GPUMEM_SIM_LOG names, if it does.
void simLog(const char *line);

// simPeak writes a line to the file that GPUMEM_SIM_PEAKS names, if it does.
void simPeak(const char *line);

// simUnprepared reports whether this is a Python whose start-up file has not run: with -I, -E or -S, or
// another PYTHONPATH.
int simUnprepared(void);

// simMayExceed reports whether a request is granted that the device has no memory for.
int simMayExceed(void);

// simLaunched is 1 if a kernel was launched by gpumemSimLaunched since it was last set to 0.
extern u64 simLaunched;

// simWarn writes a line to standard error. For settings that cannot be used.
void simWarn(const char *line);

#endif
