/* kiln.h in strict C99: compiled with every warning an error, linked with libkiln.so. Prints the status of an open and its sentence. */
#include "kiln.h"

#include <stdio.h>
#include <string.h>

int main(void) {
  kiln_options options;
  kiln_session *session = NULL;
  kiln_plan *plan = NULL;
  kiln_combine_topk_swa_args args;
  kiln_status status;

  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.store = ":memory:";
  status = kiln_open(&options, &session);
  if (status != KILN_OK) {
    printf("%s: %s\n", kiln_status_name(status), kiln_last_error());
    return status == KILN_NO_DRIVER && session == NULL ? 0 : 1;
  }
  memset(&args, 0, sizeof args);
  args.struct_bytes = sizeof args;
  status = kiln_plan_create(session, "combine_topk_swa", "{\"ratio\": 2}", &plan);
  printf("%s: %s\n", kiln_status_name(status), kiln_last_error());
  if (status != KILN_INVALID_ARGUMENT || plan != NULL) return 1;
  if (kiln_combine_topk_swa(plan, &args, NULL) != KILN_INVALID_ARGUMENT) return 1;
  return kiln_close(session) == KILN_OK ? 0 : 1;
}
