// A reader of the lease's ledgers, for questions that need no pool: the layout is
// package node/ledger's.

#define _GNU_SOURCE
#include "gpumem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SLOTS_AT = 4096, SLOT = 128, UUID_AT = 64 };

#define LOCKS_AT ((off_t)1 << 40)

// same compares UUIDs: digits and letters alone, as "GPU-", "MIG-" and dashes differ
// between those who write them.
static int same(const char *a, const char *b) {
  if (!strncmp(a, "GPU-", 4) || !strncmp(a, "MIG-", 4)) a += 4;
  if (!strncmp(b, "GPU-", 4) || !strncmp(b, "MIG-", 4)) b += 4;
  for (;; a++, b++) {
    while (*a == '-') a++;
    while (*b == '-') b++;
    if ((*a | 32) != (*b | 32) || !*a) return *a == *b;
  }
}

// alive reports whether the process of a slot lives: it holds the slot's lock.
static int alive(int fd, unsigned slot) {
  struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCKS_AT + slot, .l_len = 1};
  return fcntl(fd, F_OFD_GETLK, &l) || l.l_type != F_UNLCK;
}

enum { PARTS_AT = 80, MAX_PARTS = 4 };

// A part is a limit for some of the lease's processes, see package node/ledger.
struct part {
  u64 id, limit, held;
};

// read_parts reads the parts ID=BYTES,... up to the next ':' or the end.
static int read_parts(const char *text, struct part part[MAX_PARTS]) {
  int n = 0;
  while (n < MAX_PARTS) {
    char *end;
    struct part p = {strtoull(text, &end, 16), 0, 0};
    if (!p.id || *end != '=') break;
    p.limit = strtoull(end + 1, &end, 10);
    part[n++] = p;
    if (*end != ',') break;
    text = end + 1;
  }
  return n;
}

// read_ledger returns 1 if the ledger is that of the GPU: then *limit is the least of the
// lease's limit and those of the parts, and *left the least that any of them leaves. It
// returns -1 if the ledger cannot be read.
static int read_ledger(const char *path, const char *parts, const char *uuid, u64 *limit, u64 *left) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return -1;
  unsigned char head[128];
  int ok = -1;
  unsigned slots;
  if (pread(fd, head, sizeof head, 0) != sizeof head || memcmp(head, "gpumemL1", 8)) goto end;
  ok = 0;
  head[127] = 0;
  if (head[UUID_AT] && uuid && !same((char *)head + UUID_AT, uuid)) goto end;
  memcpy(limit, head + 8, 8);
  memcpy(&slots, head + 28, 4);
  struct part part[MAX_PARTS];
  int n_parts = read_parts(parts, part);
  u64 held = 0;
  for (unsigned i = 0; i < slots && i < 65536; i++) {
    unsigned char s[SLOT];
    unsigned pid;
    u64 n, outside, charged;
    if (pread(fd, s, sizeof s, SLOTS_AT + (off_t)i * SLOT) != sizeof s) {
      ok = -1;
      goto end;
    }
    memcpy(&pid, s, 4);
    memcpy(&n, s + 16, 8);
    memcpy(&outside, s + 24, 8);
    memcpy(&charged, s + 72, 8);
    if (!pid || !alive(fd, i)) continue;
    n += outside + charged;
    held += n;
    for (int k = 0; k < n_parts * MAX_PARTS; k++) {
      u64 id;
      memcpy(&id, s + PARTS_AT + 8 * (k % MAX_PARTS), 8);
      if (id == part[k / MAX_PARTS].id) part[k / MAX_PARTS].held += n;
    }
  }
  *left = held < *limit ? *limit - held : 0;
  for (int k = 0; k < n_parts; k++) {
    u64 l = part[k].held < part[k].limit ? part[k].limit - part[k].held : 0;
    if (part[k].limit < *limit) *limit = part[k].limit;
    if (l < *left) *left = l;
  }
  ok = 1;
end:
  close(fd);
  return ok;
}

int gm_lease(const char *uuid, u64 *limit, u64 *left) {
  const struct gm_mark *mark = gm_marked();
  const char *ledgers = mark->state ? mark->ledgers : getenv("GPUMEM_LEDGER");
  const char *parts = mark->state ? mark->parts : getenv("GPUMEM_LEDGER_PARTS");
  char path[4096];
  int unread = 0;
  if (!parts) parts = "";
  while (ledgers && *ledgers) {
    size_t n = strcspn(ledgers, ":");
    if (n && n < sizeof path) {
      memcpy(path, ledgers, n);
      path[n] = 0;
      int found = read_ledger(path, parts, uuid, limit, left);
      if (found > 0) return 1;
      unread |= found < 0;
    }
    ledgers += n;
    ledgers += *ledgers == ':';
    parts += strcspn(parts, ":"); // those of the next ledger
    parts += *parts == ':';
  }
  // A lease that cannot be read leaves nothing.
  if (unread) return *limit = ~(u64)0, *left = 0, 1;
  // Without a lease there may be a limit for one process. What it holds only its pool knows.
  const char *one = mark->state ? 0 : getenv("GPUMEM_LIMIT");
  return (*limit = *left = one ? strtoull(one, 0, 10) : 0) != 0;
}
