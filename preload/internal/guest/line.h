// How a library that programs do not know of writes to files. With _GNU_SOURCE.

#ifndef GPUMEM_LINE_H
#define GPUMEM_LINE_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// take_back removes the signal that a failed write has left pending in this thread. If one
// of the program's was pending before, it still is: where the two were one, it is put back.
static inline void take_back(int s, int before) {
  struct timespec now = {0, 0};
  sigset_t one, pending;
  siginfo_t info;
  sigemptyset(&one);
  sigaddset(&one, s);
  if (sigtimedwait(&one, &info, &now) != s || !before || sigpending(&pending) || sigismember(&pending, s)) return;
  syscall(SYS_rt_tgsigqueueinfo, getpid(), (int)syscall(SYS_gettid), s, &info);
}

// write_quietly is write, but where nobody reads the file, or it may not grow, that is an
// error alone: SIGPIPE and SIGXFSZ, which would end the program, are not raised. And a thread
// that is cancelled goes on to the program's next point for it: its caller may be Go's.
static inline ssize_t write_quietly(int fd, const void *from, size_t n) {
  sigset_t ends, mask, pending;
  int cancel;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
  sigemptyset(&ends);
  sigaddset(&ends, SIGPIPE);
  sigaddset(&ends, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &ends, &mask);
  sigpending(&pending);
  ssize_t got = write(fd, from, n);
  int code = errno;
  if (got < 0 && code == EPIPE) take_back(SIGPIPE, sigismember(&pending, SIGPIPE));
  if (got < 0 && code == EFBIG) take_back(SIGXFSZ, sigismember(&pending, SIGXFSZ));
  pthread_sigmask(SIG_SETMASK, &mask, 0);
  pthread_setcancelstate(cancel, 0);
  errno = code;
  return got;
}

// write_line writes to standard error, or nothing, and leaves errno alone.
static inline void write_line(const char *line, size_t n) {
  int keep = errno;
  if (write_quietly(2, line, n) < 0) errno = keep;
}

#endif
