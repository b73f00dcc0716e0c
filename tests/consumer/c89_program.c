/* The header from C as old as servers still have it: C89, pedantic. Whatever the header gains later
 * has to stay within that. */
#include <kiln/kiln.h>
#include <stdio.h>
#include <string.h>

static int quiet(void *user, int done, int total, const char *what) {
  return user != NULL && done > total && what == NULL;
}

static void ignore_line(void *user, kiln_log_level level, const char *line) {
  if (user != NULL && level == KILN_LOG_ERROR) *(const char **)user = line;
}

static int fail(const char *what) {
  fprintf(stderr, "%s; last error: \"%s\"\n", what, kiln_last_error());
  return 1;
}

int main(void) {
  const char *shape = "{\"ratio\": 2, \"top_k\": 512}";
  const char *sizes = "{\"num_tokens\": 8, \"num_requests\": 2, \"idx_width\": 640,"
                      " \"rows_per_request\": 231, \"compressed_rows\": 101}";
  kiln_options options;
  kiln_session *session = NULL;
  kiln_stats stats;
  kiln_digests digests;
  uint64_t bytes = 0;

  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.log = ignore_line;
  options.store = ":memory:";
  options.store_mode = "read-only";
  options.compiles = "refused";
  if (kiln_open(&options, &session) != KILN_NO_DRIVER) return fail("open without a driver");
  if (session != NULL) return fail("a failed open has to give NULL");

  /* A struct that every function takes, of an op and of the library. */
  memset(&stats, 0, sizeof stats);
  memset(&digests, 0, sizeof digests);
  stats.size = sizeof stats;
  digests.size = sizeof digests;
  if (kiln_get_stats(session, &stats) != KILN_INVALID_ARGUMENT) return fail("a NULL session");
  if (kiln_get_digests(session, &digests) != KILN_INVALID_ARGUMENT) return fail("a NULL session");
  if (kiln_prepare(session, "", quiet, NULL) != KILN_INVALID_ARGUMENT) return fail("preparing NULL");
  if (kiln_tensor_bytes("combine_topk_swa", shape, sizes, "idx", &bytes) != KILN_OK ||
      bytes != 8 * 640 * sizeof(int32_t)) {
    return fail("the bytes of a result");
  }
  printf("kiln %s\n", kiln_version());
  return 0;
}
