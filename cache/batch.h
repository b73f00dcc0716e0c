// What one transaction of the store writes, and what its records must be.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cache/store.h"

namespace kiln::cache {

// The records of one write, and what they name that must be in some layer.
struct Batch {
  std::vector<const jit::Binary*> binaries;
  std::vector<const PlanRecord*> plans;
  std::vector<const Verification*> verifications;
  std::vector<const Timing*> timings;
  std::vector<const Rejection*> rejections;
  const Decision* decision = nullptr;

  // Fails with invalid_argument for a record that no file may hold: a shape that is not JSON, a
  // time that is none.
  void require_records() const;

  // Binaries and plans that are named and not in the batch, each with what names it.
  std::map<Hash128, std::string> needed_binaries() const;
  std::map<Hash128, std::string> needed_plans() const;
};

void require_problem(const Problem& problem);

template <typename Record>
std::vector<const Record*> pointers(const std::vector<Record>& records) {
  std::vector<const Record*> result;
  for (const Record& record : records) result.push_back(&record);
  return result;
}

}  // namespace kiln::cache
