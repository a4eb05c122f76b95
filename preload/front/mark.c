// The mark of a folder whose library serves a container: the file "leased" beside this
// library, whose first line is the path of the container's lease file. Package share
// (containerlease.go) has the format of that file. What the environment says about the
// lease does not count then, and without a readable lease file there is no memory.

#define _GNU_SOURCE
#include "gpumem.h"
#include "line.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 64 << 10 }; // of a lease file at most

static const char path_letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./";

static struct gm_mark mark;
static char ledgers[FILE_BYTES], parts[FILE_BYTES];
static int says;

// slurp reads a file of less than n bytes into a text. It returns -1 where it cannot.
static ssize_t slurp(const char *path, char *text, size_t n) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return -1;
  size_t have = 0;
  ssize_t got = 0;
  while (have < n && ((got = read(fd, text + have, n - have)) > 0 || (got < 0 && errno == EINTR)))
    if (got > 0) have += (size_t)got;
  close(fd);
  if (got < 0) return -1;
  if (have == n) return errno = EFBIG, -1;
  text[have] = 0;
  return (ssize_t)have;
}

// count returns how often a word is in a text.
static int count(const char *text, const char *word) {
  int n = 0;
  while ((text = strstr(text, word))) text += strlen(word), n++;
  return n;
}

// read_lease takes the ledgers, their bytes, and the largest "outside", from the text of a
// lease file. It returns what is wrong with that, or 0.
//
// The bytes are a part of the lease that all its processes are in, number 1: a program can
// write another limit into the ledger, and not into this file.
static const char *read_lease(const char *text, size_t n) {
  static const char begin[] = "{\"gpumem\":1,", gpu[] = "{\"uuid\":\"", bytes[] = "\"bytes\":", key[] = "\"ledger\":\"", outside[] = "\"outside\":";
  if (strlen(text) != n || strncmp(text, begin, sizeof begin - 1) || n < 4 || strcmp(text + n - 4, "}]}\n")) return "it is not a lease file of this release";
  size_t used = 0, in_parts = 0;
  int found = 0;
  for (const char *p = text, *before = text; (p = strstr(p, key)); found++, before = p) {
    const char *limit = strstr(before, bytes);
    char *end;
    u64 v = limit && limit < p ? strtoull(limit += sizeof bytes - 1, &end, 10) : 0;
    if (!v || end == limit || end - limit > 19) return "the bytes of a GPU are damaged";
    // 22 characters at most, and the text has more for each GPU.
    in_parts += (size_t)snprintf(parts + in_parts, sizeof parts - in_parts, "%s1=%llu", in_parts ? ":" : "", (unsigned long long)v);
    p += sizeof key - 1;
    size_t len = strspn(p, path_letters);
    if (*p != '/' || p[len] != '"') return "the path of a ledger is damaged";
    if (used) ledgers[used++] = ':';
    memcpy(ledgers + used, p, len); // fits: it is shorter than the text
    used += len;
    ledgers[used] = 0;
    p += len;
  }
  if (!found || found != count(text, gpu)) return "a GPU has no ledger";
  for (const char *p = text; (p = strstr(p, outside));) {
    char *end;
    p += sizeof outside - 1;
    u64 v = strtoull(p, &end, 10);
    if (end == p || end - p > 19) return "its number of bytes outside is damaged";
    if (v > mark.outside) mark.outside = v;
    mark.has_outside = 1;
  }
  mark.ledgers = ledgers;
  mark.parts = parts;
  return 0;
}

static void refuse(const char *path, const char *why) {
  char line[4096];
  mark.state = GM_REFUSED;
  int n = snprintf(line, sizeof line, "gpumem: no GPU memory is served: lease file %s: %s; end this pod and start it again, and see the log of gpumem-kube agent on its node\n", path, why);
  if (says && n > 0) write_line(line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

// look reads the mark and what it names.
static void look(void) {
  static char text[FILE_BYTES + 1];
  char path[4096], lease[4096], *real;
  Dl_info here;
  if (!dladdr((void *)look, &here) || !here.dli_fname) return refuse("unknown", "the library's own file is not known");
  real = realpath(here.dli_fname, path);
  if (!real && strlen(here.dli_fname) >= sizeof path) return refuse("unknown", "the library's own path is too long");
  if (!real) strcpy(path, here.dli_fname);
  char *slash = strrchr(path, '/');
  size_t n = slash ? (size_t)(slash - path) + 1 : 0;
  if (n + sizeof "leased" > sizeof path) return refuse("unknown", "the library's own path is too long");
  strcpy(path + n, "leased");
  ssize_t got = slurp(path, lease, sizeof lease);
  if (got < 0 && (errno == ENOENT || errno == ENOTDIR)) return; // not marked
  if (got < 0) return refuse(path, strerror(errno));
  lease[strcspn(lease, "\n")] = 0;
  if (lease[0] != '/') return refuse(path, "its first line is not an absolute path");
  if ((got = slurp(lease, text, sizeof text)) < 0) return refuse(lease, strerror(errno));
  const char *why = read_lease(text, (size_t)got);
  if (why) return refuse(lease, why);
  mark.state = GM_MARKED;
}

const struct gm_mark *gm_mark_of(const char *other) {
  static int looked; // the constructor calls first, before there is another thread
  if (!looked) {
    void *loaded = dlopen(other, RTLD_LAZY | RTLD_NOLOAD); // it has said what is wrong
    says = !loaded;
    if (loaded) dlclose(loaded);
    look();
  }
  looked = 1;
  return &mark;
}

const struct gm_mark *gm_marked(void) { return &mark; }

// A file is a library of this machine's if it begins as one does. (A text of the linker's
// is none.)
static int is_library(const char *path) {
  unsigned char head[20];
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return 0;
  int ok = read(fd, head, sizeof head) == sizeof head && !memcmp(head, "\177ELF\2", 5) && head[16] == 3;
#if defined __x86_64__
  ok = ok && head[18] == 62 && !head[19];
#elif defined __aarch64__
  ok = ok && head[18] == 183 && !head[19];
#endif
  close(fd);
  return ok;
}

// The folders are those of package node/library, but for the linker's cache: what the
// container runtime mounts is in one of them.
const char *gm_find(const char *name, int (*ours)(const char *path)) {
  static const char *const folders[] = {
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib/aarch64-linux-gnu/nvidia", "/usr/local/nvidia/lib64",
  };
  static char path[4096];
  const char *search = getenv("LD_LIBRARY_PATH");
  while (search && *search) {
    size_t n = strcspn(search, ":;");
    if (n && snprintf(path, sizeof path, "%.*s/%s", (int)n, search, name) < (int)sizeof path && !ours(path) && is_library(path)) return path;
    search += n;
    search += *search != 0;
  }
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
    snprintf(path, sizeof path, "%s/%s", folders[i], name);
    if (!ours(path) && is_library(path)) return path;
  }
  return 0;
}
