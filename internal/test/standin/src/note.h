// What a library says about its figures: a line in the file that GPUMEM_SIM_NOTES names, or else on standard error.

#ifndef STANDIN_NOTE_H
#define STANDIN_NOTE_H

#include <stdio.h>
#include <stdlib.h>

static void note(_Atomic int *said, const char *line) {
  const char *path = getenv("GPUMEM_SIM_NOTES");
  if ((*said)++) return;
  FILE *f = path && *path ? fopen(path, "a") : 0;
  if (!f) {
    fprintf(stderr, "gpumem: %s\n", line);
    return;
  }
  fprintf(f, "%s\n", line);
  fclose(f);
}

#endif
