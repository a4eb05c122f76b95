// What a call costs before the driver has it: table DRIVER NAMES writes a line for each name of a list
// that the library exports: NAME and where it goes. "driver" is a single jump to the driver's function of the
// name, as DRIVER has it; "elsewhere" is one to another place; "served" is code of the library.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// target returns where a function that is one jump by a table goes; 0 if it is more.
static void *target(const unsigned char *code) {
#if defined __x86_64__
  int32_t at;
  if (code[0] != 0xff || code[1] != 0x25) return 0; // jmp *at(%rip)
  memcpy(&at, code + 2, 4);
  return *(void **)(code + 6 + at);
#elif defined __aarch64__
  uint32_t w[3];
  memcpy(w, code, sizeof w);
  if ((w[0] & 0x9f00001f) != 0x90000010 || (w[1] & 0xffc003ff) != 0xf9400210 || w[2] != 0xd61f0200) return 0; // adrp, ldr, br x16
  int64_t pages = (int64_t)((uint64_t)(w[0] >> 5 & 0x7ffff) << 45) >> 43 | (w[0] >> 29 & 3);
  return *(void **)(((uintptr_t)code & ~(uintptr_t)4095) + pages * 4096 + (w[1] >> 10 & 0xfff) * 8);
#endif
}

int main(int argc, char **argv) {
  void *front = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *driver = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : 0;
  if (!front || !driver) return puts(dlerror()), 1;
  FILE *names = fopen(argv[2], "r");
  if (!names) return puts("no names"), 1;
  char line[256], name[128];
  while (fgets(line, sizeof line, names)) {
    if (sscanf(line, "%127s", name) != 1) continue;
    unsigned char *code = dlsym(front, name);
    void *to = code ? target(code) : 0, *own = dlsym(driver, name);
    if (code) printf("%s %s\n", name, !to ? "served" : to == own ? "driver" : "elsewhere");
  }
  return 0;
}
