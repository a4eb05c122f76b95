// What ties the memory of a process to others, in a process that lends its memory or takes turns:
// while it lasts the process is not asked to leave. See gate.h.

#define _GNU_SOURCE
#include "gate.h"

#include <pthread.h>
#include <stdlib.h>

// Guarded by lock.
static struct tie {
  u64 key, context;
  int kind;
} *ties;
static int n_ties, room;
static int for_good; // kinds of which one never ends, or was not noted for want of memory
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void gm_tie(int kind, u64 key, u64 context) {
  pthread_mutex_lock(&lock);
  if (key && n_ties == room) {
    int more = room ? 2 * room : 16;
    struct tie *list = realloc(ties, (size_t)more * sizeof *list);
    if (list) ties = list, room = more;
  }
  if (key && n_ties < room) ties[n_ties++] = (struct tie){key, context, kind};
  else for_good |= kind;
  pthread_mutex_unlock(&lock);
}

// end_ties ends at most most of those of a key or a context, 0 for none, and returns their kinds.
static int end_ties(u64 key, u64 context, int most) {
  int kinds = 0;
  pthread_mutex_lock(&lock);
  for (int i = n_ties - 1; i >= 0 && most; i--) {
    if (!(key && ties[i].key == key) && !(context && ties[i].context == context)) continue;
    kinds |= ties[i].kind, most--;
    ties[i] = ties[--n_ties];
  }
  pthread_mutex_unlock(&lock);
  return kinds;
}

int gm_untie(u64 key, int most) { return end_ties(key, 0, most); }

void gm_untie_context(u64 context) { end_ties(0, context, ALL_TIES); }

int gm_tied(void) {
  pthread_mutex_lock(&lock);
  int kinds = for_good;
  for (int i = 0; i < n_ties; i++) kinds |= ties[i].kind;
  pthread_mutex_unlock(&lock);
  return kinds;
}

void gm_ties_forked(void) {
  pthread_mutex_init(&lock, 0); // its owner is not here
  n_ties = for_good = 0;
}
