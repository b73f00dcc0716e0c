// One rank of a serving stack: opens a session through the C interface, prepares a workload, seals,
// and prints what it did as one line of JSON.
//   rank DEVICE STORE WORKLOAD [die]
// die: kills itself as soon as its first kernel is ready.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/abi/kiln.h"

namespace {

void log_line(void*, kiln_log_level, const char* line) { fprintf(stderr, "%s\n", line); }

int die_after_the_first(void*, int done, int, const char*) {
  if (done >= 1) kill(getpid(), SIGKILL);
  return 0;
}

void print_digest(const char* name, const uint8_t (&digest)[16]) {
  printf(", \"%s\": \"", name);
  for (const uint8_t byte : digest) printf("%02x", byte);
  printf("\"");
}

int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, kiln_last_error());
  return 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) {
    fprintf(stderr, "rank DEVICE STORE WORKLOAD [die]\n");
    return 2;
  }
  kiln_options options = {};
  options.size = sizeof options;
  options.device = arguments[1];
  options.store = arguments[2];
  options.log = log_line;
  options.log_level = KILN_LOG_INFO;
  kiln_session* session = nullptr;
  if (kiln_open(&options, &session) != KILN_OK) return failed("kiln_open");
  const bool dies = count > 4 && strcmp(arguments[4], "die") == 0;
  if (kiln_prepare(session, arguments[3], dies ? die_after_the_first : nullptr, nullptr) != KILN_OK)
    return failed("kiln_prepare");
  if (kiln_seal(session) != KILN_OK) return failed("kiln_seal");
  kiln_stats stats = {};
  stats.size = sizeof stats;
  kiln_digests digests = {};
  digests.size = sizeof digests;
  if (kiln_get_stats(session, &stats) != KILN_OK) return failed("kiln_get_stats");
  if (kiln_get_digests(session, &digests) != KILN_OK) return failed("kiln_get_digests");
  printf("{\"compiles\": %llu, \"hits\": %llu, \"kernels\": %llu",
         static_cast<unsigned long long>(stats.compiles),
         static_cast<unsigned long long>(stats.binary_hits),
         static_cast<unsigned long long>(stats.kernels_loaded));
  print_digest("exact", digests.exact);
  print_digest("numerics", digests.numerics);
  printf("}\n");
  return kiln_close(session) == KILN_OK ? 0 : failed("kiln_close");
}
