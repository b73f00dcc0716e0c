#include "tuner/outcome.h"

#include <algorithm>
#include <array>

#include "jit/base/error.h"

namespace kiln::tuner {
namespace {

struct Row {
  Outcome outcome;
  const char* name;
};
constexpr std::array kRows = {
    Row{Outcome::passed, "passed"},       Row{Outcome::wrong, "wrong"},
    Row{Outcome::launch, "launch"},       Row{Outcome::trap, "trap"},
    Row{Outcome::timeout, "timeout"},     Row{Outcome::crash, "crash"},
    Row{Outcome::no_memory, "no memory"}, Row{Outcome::impossible, "impossible"},
    Row{Outcome::harness, "harness"},
};

}  // namespace

const char* outcome_name(Outcome outcome) {
  for (const Row& row : kRows) {
    if (row.outcome == outcome) return row.name;
  }
  fail(Status::internal, "unknown outcome {}", static_cast<int>(outcome));
}

Outcome outcome_of(const std::string& name) {
  for (const Row& row : kRows) {
    if (name == row.name) return row.outcome;
  }
  fail(Status::internal, "unknown outcome \"{}\"", name);
}

bool disproves(Outcome outcome) { return outcome == Outcome::wrong || outcome == Outcome::trap; }

bool disproves(const std::string& name) {
  return std::any_of(kRows.begin(), kRows.end(),
                     [&](const Row& row) { return name == row.name && disproves(row.outcome); });
}

}  // namespace kiln::tuner
