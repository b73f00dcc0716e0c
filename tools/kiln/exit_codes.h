// What `kiln` returns to the shell. The table is the only place that lists the codes: help and
// tests read it. Scripts depend on the numbers: never renumber.
#pragma once

#include <span>
#include <stdexcept>
#include <string>

#include "jit/base/error.h"

namespace kiln::cli {

enum class ExitCode : int {
  ok = 0,
  failed = 1,
  usage = 2,
  no_device = 3,
  no_compiler = 4,
  not_verified = 5,
  store = 6,
  different = 7,
  interrupted = 130,
};

struct ExitCodeRow {
  ExitCode code;
  const char* meaning;
};
std::span<const ExitCodeRow> exit_codes();

ExitCode exit_code_of(Status status);

// What to do next when the library fails with this status; "" when the sentence says all.
std::string next_step_of(Status status);

// A failure of the command line itself: one sentence, and what to do next.
class Failure : public std::runtime_error {
 public:
  Failure(ExitCode code, const std::string& sentence, std::string next_step = "")
      : std::runtime_error(sentence), code_(code), next_step_(std::move(next_step)) {}
  ExitCode code() const { return code_; }
  const std::string& next_step() const { return next_step_; }

 private:
  ExitCode code_;
  std::string next_step_;
};

}  // namespace kiln::cli
