// Passes memory and an event from a process to its child by handles. The parent forks before it uses
// the GPU. The child prints: of opening, what is free before and after, of copying from there, of
// closing, of closing twice, of opening the event, of a handle of nobody, and the parent the result of
// opening its own memory.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*function)();
typedef struct { uint64_t words[8]; } ipc;
typedef int (*opener)(uint64_t *, ipc, unsigned);
typedef int (*event_opener)(void **, ipc);
static void *lib;
static function of(const char *name) { return (function)dlsym(lib, name); }

static int begin(void) {
  void *context;
  return of("cuInit")(0) || of("cuDevicePrimaryCtxRetain")(&context, 0) || of("cuCtxSetCurrent")(context);
}

static size_t available(void) {
  size_t left, total;
  return of("cuMemGetInfo_v2")(&left, &total) ? 0 : left;
}

static void child(int from) {
  ipc memory, event, none;
  uint64_t at = 0;
  void *e;
  char text[16] = "unchanged";
  if (read(from, &memory, sizeof memory) != sizeof memory || read(from, &event, sizeof event) != sizeof event || begin()) _exit(1);
  memset(&none, 0, sizeof none);
  size_t before = available();
  int code = ((opener)of("cuIpcOpenMemHandle_v2"))(&at, memory, 1);
  printf("%d %d ", code, before == available());
  printf("%d ", of("cuMemcpyDtoH_v2")(text, at + 4096, sizeof text));
  printf("%d ", of("cuIpcCloseMemHandle")(at));
  printf("%d ", of("cuIpcCloseMemHandle")(at));
  printf("%d ", ((event_opener)of("cuIpcOpenEventHandle"))(&e, event));
  printf("%d\n", ((opener)of("cuIpcOpenMemHandle_v2"))(&at, none, 1));
  fflush(stdout);
  _exit(0);
}

int main(void) {
  int pipes[2];
  ipc memory, event;
  uint64_t at;
  void *e;
  if (!(lib = dlopen("libcuda.so.1", RTLD_NOW)) || pipe(pipes)) return 1;
  if (!fork()) child(pipes[0]);
  if (begin() || of("cuMemAlloc_v2")(&at, (size_t)1 << 20) || of("cuEventCreate")(&e, 6)) return 2;
  if (of("cuIpcGetMemHandle")(&memory, at) || of("cuIpcGetEventHandle")(&event, e)) return 3;
  if (write(pipes[1], &memory, sizeof memory) < 0 || write(pipes[1], &event, sizeof event) < 0) return 4;
  while (wait(0) > 0) {}
  printf("%d %d\n", ((opener)of("cuIpcOpenMemHandle_v2"))(&at, memory, 1), of("cuIpcGetMemHandle")(&memory, (uint64_t)64));
  return 0;
}
