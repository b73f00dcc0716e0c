/* A C program that needs no GPU: the library loads, answers, and says in a sentence that there is no driver. */
#include <kiln/kiln.h>
#include <stdio.h>
#include <string.h>

static int fail(const char *what) {
  fprintf(stderr, "%s; last error: \"%s\"\n", what, kiln_last_error());
  return 1;
}

int main(void) {
  kiln_combine_topk_swa_args args;
  kiln_session *session = (kiln_session *)&args; /* must become NULL */
  uint8_t hash[16] = {0};
  const uint8_t zero[16] = {0};
  if (strcmp(kiln_status_name(KILN_NO_DRIVER), "KILN_NO_DRIVER") != 0) return fail("status name");
  if (kiln_abi_hash(hash) != KILN_OK || memcmp(hash, zero, sizeof hash) == 0) return fail("hash");
  if (kiln_open(NULL, &session) != KILN_NO_DRIVER) return fail("open without a driver");
  if (session != NULL) return fail("a failed open has to give NULL");
  if (strstr(kiln_last_error(), "The CUDA driver was not found") == NULL) return fail("sentence");
  if (kiln_close(session) != KILN_OK) return fail("closing NULL");
  memset(&args, 0, sizeof args);
  args.struct_bytes = sizeof args;
  if (kiln_combine_topk_swa(NULL, &args, NULL) != KILN_INVALID_ARGUMENT) return fail("a NULL plan");
  printf("kiln %s\n", kiln_version());
  return 0;
}
