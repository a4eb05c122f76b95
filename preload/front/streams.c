// The streams that the program has made, in a process that lends its memory or takes turns: those
// are asked whether their work is done. See gate.h.

#define _GNU_SOURCE
#include "gate.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

// The driver's functions.
static struct {
  int (*query)(u64), (*capturing)(u64, int *), (*context)(u64, u64 *), (*current)(u64 *), (*push)(u64), (*pop)(u64 *), (*mode)(int *);
} driver;

// Guarded by lock, which is held while they are asked, and not while one is made or destroyed: that
// may wait for other threads.
static struct stream {
  u64 handle, context;
  u64 green; // the green context; 0 for none
  int ending;
} *streams;
static int n_streams, room;
static int untracked; // there was no memory to note one: work may always be running
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// can_ask reports whether the driver has all functions that ask for the streams' work; cuStreamGetCtx may lack.
static int can_ask(void) {
  void *const all[] = {driver.query, driver.capturing, driver.current, driver.push, driver.pop, driver.mode};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!all[i]) return 0;
  return 1;
}

void gm_find_streams_driver(void *library) {
#define FIND(field, name) *(void **)&driver.field = dlsym(library, name)
  FIND(query, "cuStreamQuery"), FIND(capturing, "cuStreamIsCapturing"), FIND(context, "cuStreamGetCtx"), FIND(current, "cuCtxGetCurrent");
  FIND(push, "cuCtxPushCurrent_v2"), FIND(pop, "cuCtxPopCurrent_v2"), FIND(mode, "cuThreadExchangeStreamCaptureMode");
#undef FIND
  untracked = !can_ask();
}

void gm_stream_made(u64 handle, u64 green) {
  u64 context = 0;
  if (untracked) return;
  if (!driver.context || driver.context(handle, &context)) driver.current(&context);
  pthread_mutex_lock(&lock);
  if (n_streams == room) {
    int more = room ? 2 * room : 64;
    struct stream *list = realloc(streams, (size_t)more * sizeof *list);
    if (list) streams = list, room = more;
    else untracked = 1;
  }
  if (n_streams < room) streams[n_streams++] = (struct stream){handle, context, green, 0};
  pthread_mutex_unlock(&lock);
}

static int is_of(const struct stream *s, u64 handle, u64 context) {
  return handle ? s->handle == handle : context && (s->context == context || s->green == context);
}

// set_ending notes for streams of a handle or a context, 0 for none, that they end, do not end,
// or are gone (-1): those that ended, as the driver may have given a handle to another thread since.
static void set_ending(u64 handle, u64 context, int ends) {
  pthread_mutex_lock(&lock);
  for (int i = n_streams - 1; i >= 0; i--) {
    struct stream *s = &streams[i];
    if (!is_of(s, handle, context) || (ends <= 0 && !s->ending)) continue;
    s->ending = ends;
    if (ends < 0) *s = streams[--n_streams];
  }
  pthread_mutex_unlock(&lock);
}

void gm_stream_ends(u64 handle, int ends) { set_ending(handle, 0, ends); }

void gm_context_ends(u64 context, int ends) { set_ending(0, context, ends); }

void gm_streams_forked(void) {
  pthread_mutex_init(&lock, 0); // its owner is not here
  n_streams = 0;                // handles of the parent's
}

// capturing is CU_SUCCESS, GM_CAPTURING or the driver's error.
static int capturing(u64 handle) {
  int status = 0, code = driver.capturing(handle, &status);
  return code ? code : status ? GM_CAPTURING : 0;
}

// ask calls a question for all streams, each with its context, until an answer is not 0. The caller
// holds lock.
static int ask(int (*question)(u64)) {
  int code = 0;
  for (int i = 0; i < n_streams && !code; i++) {
    u64 context;
    if (streams[i].ending) continue;
    if ((code = driver.push(streams[i].context))) break;
    code = question(streams[i].handle);
    driver.pop(&context);
  }
  return code;
}

enum { CAPTURE_RELAXED = 2 };

// A stream in which a graph is captured must not be asked for its work: that spoils the capture. None begins
// meanwhile, as the gate is closed.
int gm_streams_running(void) {
  int mode = CAPTURE_RELAXED;
  if (untracked) return GM_RUNNING;
  driver.mode(&mode);
  pthread_mutex_lock(&lock);
  int code = ask(capturing);
  if (!code) code = ask(driver.query);
  pthread_mutex_unlock(&lock);
  driver.mode(&mode);
  return code;
}
