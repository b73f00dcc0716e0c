/* Leaves a file behind when it is loaded, and serves for nothing else. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void leave_mark(void) {
  const char *path = getenv("KILN_TEST_MARK");
  FILE *mark = path ? fopen(path, "w") : NULL;
  if (mark) fclose(mark);
}
