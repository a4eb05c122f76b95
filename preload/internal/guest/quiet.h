// How the first threads of Go's runtime, which begin before package guest does, leave all
// signals to the program. For C that loads a library of Go's, with _GNU_SOURCE.

#ifndef GPUMEM_QUIET_H
#define GPUMEM_QUIET_H

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

// quieted counts the threads that have run quiet.
static volatile int quieted;

// quiet blocks all signals in the thread that it interrupts, but those of faults: a fault
// whose signal is blocked is the end of the program, and Go's runtime answers its own. And
// but those of the C library, which sigfillset leaves out: setuid, setgid and setgroups send
// one to each thread and wait until all have taken it.
static void quiet(int s, siginfo_t *info, void *context) {
  if (info->si_code != SI_TKILL || info->si_pid != getpid()) return;
  sigset_t *mask = &((ucontext_t *)context)->uc_sigmask;
  sigset_t all;
  sigfillset(&all);
  memcpy(mask, &all, 8); // what the kernel has of a mask
  sigdelset(mask, SIGSEGV), sigdelset(mask, SIGBUS), sigdelset(mask, SIGFPE), sigdelset(mask, SIGILL);
  __sync_add_and_fetch(&quieted, 1);
}

// threads_now writes the numbers of this process's threads, and returns how many.
static int threads_now(int list[], int max) {
  DIR *d = opendir("/proc/self/task");
  int n = 0;
  for (struct dirent *e; d && n < max && (e = readdir(d));)
    if (e->d_name[0] != '.') list[n++] = atoi(e->d_name);
  if (d) closedir(d);
  return n;
}

// quiet_threads blocks all signals in the first threads of Go's runtime, which are not
// in the list of those before: see package guest, which sees to later ones. They have
// SIGPROF unblocked, or will have: one that is just beginning has all signals blocked, those
// of the C library too, and may have read what it will unblock before package guest came. Its
// beginning takes microseconds and is waited for.
static void quiet_threads(const int *before, int n) {
  int sent = 0;
  struct sigaction sa = {.sa_sigaction = quiet, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART}, old;
  sigaction(SIGPROF, &sa, &old);
  for (int pass = 0, beginning = 1; beginning && pass < 100; pass++) {
    int now[1024], m = threads_now(now, 1024);
    beginning = 0;
    for (int i = 0; i < m; i++) {
      int known = now[i] == (int)syscall(SYS_gettid);
      for (int j = 0; j < n && !known; j++) known = now[i] == before[j];
      if (known) continue;
      // A thread of the program's that began meanwhile has its signals as it wants them.
      char path[64], line[256];
      unsigned long long blocked = 0;
      snprintf(path, sizeof path, "/proc/self/task/%d/status", now[i]);
      FILE *f = fopen(path, "re");
      while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "SigBlk: %llx", &blocked) == 1) break;
      if (f) fclose(f);
      if (blocked >> (SIGRTMIN - 2) & 1) beginning = 1; // the last of the C library's own
      int is_first = blocked >> (SIGALRM - 1) & 1 && !(blocked >> (SIGPROF - 1) & 1);
      if (is_first && !syscall(SYS_tgkill, getpid(), now[i], SIGPROF)) sent++;
    }
    for (int i = 0; i < 1000 && quieted < sent; i++) usleep(100);
    if (beginning) usleep(100);
  }
  sigaction(SIGPROF, &old, 0);
}

#endif
