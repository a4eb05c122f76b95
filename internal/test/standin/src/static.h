// Runtimes that are linked into a program's libraries (libcudart_static.a, as in CuPy's and RMM's
// wheels): their functions become jumps to the ones of this library. The linker finds none
// of them by name, but mostly leaves their names in the library's table of symbols.

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
enum { JUMP = 14 };
static void jump(unsigned char *at, const void *to) { // jmp *(%rip), and the address
  memcpy(at, "\xff\x25\0\0\0\0", 6);
  memcpy(at + 6, &to, 8);
}
#elif defined(__aarch64__)
enum { JUMP = 16 };
static void jump(unsigned char *at, const void *to) { // ldr x16, 8; br x16; the address
  memcpy(at, "\x50\0\0\x58\0\x02\x1f\xd6", 8);
  memcpy(at + 8, &to, 8);
}
#endif

// table is the table of symbols of a file in memory.
struct table { const ElfW(Sym) *symbols; u64 n; const char *names; u64 bytes; };

static int holds(u64 whole, u64 at, u64 bytes) { return at <= whole && bytes <= whole - at; }

static int findTable(const unsigned char *file, u64 size, struct table *t) {
  const ElfW(Ehdr) *head = (const void *)file;
  if (size < sizeof *head || memcmp(file, ELFMAG, SELFMAG) || head->e_shentsize != sizeof(ElfW(Shdr))) return 0;
  if (!holds(size, head->e_shoff, head->e_shnum * sizeof(ElfW(Shdr)))) return 0;
  const ElfW(Shdr) *sections = (const void *)(file + head->e_shoff);
  for (int i = 0; i < head->e_shnum; i++) {
    const ElfW(Shdr) *s = &sections[i];
    if (s->sh_type != SHT_SYMTAB || s->sh_link >= head->e_shnum) continue;
    const ElfW(Shdr) *names = &sections[s->sh_link];
    if (!holds(size, s->sh_offset, s->sh_size) || !holds(size, names->sh_offset, names->sh_size)) return 0;
    *t = (struct table){(const void *)(file + s->sh_offset), s->sh_size / sizeof(ElfW(Sym)), (const char *)file + names->sh_offset, names->sh_size};
    return t->bytes && !t->names[t->bytes - 1];
  }
  return 0;
}

// runtimeName is the name of symbol i if that is a function of a runtime, else null.
static const char *runtimeName(const struct table *t, u64 i) {
  const ElfW(Sym) *s = &t->symbols[i];
  if ((s->st_info & 15) != STT_FUNC || !s->st_value || s->st_name >= t->bytes) return 0;
  const char *name = t->names + s->st_name;
  return !strncmp(name, "cuda", 4) || !strncmp(name, "__cuda", 6) ? name : 0;
}

// fits reports whether a jump has room in function i and the filling behind it.
static int fits(const struct table *t, u64 i) {
  u64 at = t->symbols[i].st_value;
  if (t->symbols[i].st_size >= JUMP) return 1;
  for (u64 k = 0; k < t->n; k++) {
    u64 other = t->symbols[k].st_value;
    if ((t->symbols[k].st_info & 15) == STT_FUNC && other > at && other < at + JUMP) return 0;
  }
  return 1;
}

// release is the major release of the runtime in a table, 0 if none is there.
static int release(const struct table *t) {
  int has12 = 0, has13 = 0;
  for (u64 i = 0; i < t->n; i++) {
    const char *name = runtimeName(t, i);
    if (!name) continue;
    has12 |= !strcmp(name, "cudaGetDeviceProperties_v2"); // 12.0 to 12.9
    has13 |= !strcmp(name, "cudaGetDriverEntryPointByVersion"); // since 12.5
  }
  return has12 ? 12 : has13 ? 13 : 0;
}

// redirect makes jumps of the runtime's functions in a table, whose library lies at base.
static int redirect(const struct table *t, u64 base, void *self) {
  u64 page = sysconf(_SC_PAGESIZE), low = ~0UL, high = 0;
  for (u64 i = 0; i < t->n; i++) {
    if (!runtimeName(t, i)) continue;
    u64 at = base + t->symbols[i].st_value;
    low = at < low ? at : low;
    high = at > high ? at : high;
  }
  low -= low % page;
  high += JUMP;
  if (mprotect((void *)low, high - low, PROT_READ | PROT_WRITE | PROT_EXEC)) return -1;
  for (u64 i = 0; i < t->n; i++) {
    const char *name = runtimeName(t, i);
    void *to = name ? dlsym(self, name) : 0;
    if (to && fits(t, i)) jump((unsigned char *)base + t->symbols[i].st_value, to);
  }
  __builtin___clear_cache((char *)low, (char *)high);
  return mprotect((void *)low, high - low, PROT_READ | PROT_EXEC) ? -1 : 1;
}

struct scan { void *self; int redirected, failed; };

// seen are the libraries that were looked into, by their addresses.
static u64 *seen, seenN;
static int isNew(u64 base) {
  for (u64 i = 0; i < seenN; i++)
    if (seen[i] == base) return 0;
  u64 *more = realloc(seen, (seenN + 1) * sizeof *seen);
  if (!more) return 0;
  seen = more;
  seen[seenN++] = base;
  return 1;
}

static int look(struct dl_phdr_info *info, size_t size, void *data) {
  struct scan *s = data;
  struct table t;
  struct stat st;
  (void)size;
  int f = isNew(info->dlpi_addr) && info->dlpi_name && *info->dlpi_name ? open(info->dlpi_name, O_RDONLY | O_CLOEXEC) : -1;
  if (f < 0) return 0;
  void *file = fstat(f, &st) ? MAP_FAILED : mmap(0, st.st_size, PROT_READ, MAP_PRIVATE, f, 0);
  close(f);
  if (file == MAP_FAILED) return 0;
  if (findTable(file, st.st_size, &t) && release(&t) == CUDART) {
    if (redirect(&t, info->dlpi_addr, s->self) > 0) s->redirected++; else s->failed++;
  }
  munmap(file, st.st_size);
  return 0;
}

// gpumemRedirect looks into libraries that were loaded since the last call, and returns in how many
// of them a runtime was redirected, or -1 if that failed in one. One thread calls it at a time.
FN gpumemRedirect(void) {
  Dl_info own;
  struct scan s = {0};
  if (!dladdr((void *)gpumemRedirect, &own) || !(s.self = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD))) return -1;
  dl_iterate_phdr(look, &s);
  dlclose(s.self);
  return s.failed ? -1 : s.redirected;
}
