/* A libkiln_sim.so of another build (BUILD), or of one that does not say which: nothing of it may be
 * called but its name. */
#include <stdlib.h>

#ifdef BUILD
const char *kiln_sim_build(void) { return BUILD; }
#endif

void *kiln_sim_open(const void *options) {
  (void)options;
  abort();
}
