// Mistakes planted in the kernel of an op, one at a time: each has to be found by verification, be
// it that an output is wrong or that the checker ends the kernel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/sim/op_on_simulator.h"

namespace kiln {

// A device with prepared cases. A fault ends both.
class MistakeProof : public OpOnSimulator {
 public:
  MistakeProof(const char* op, templates::Sizes fixed_sizes, const templates::Config& changes,
               const std::vector<std::string>& case_names)
      : OpOnSimulator(op),
        fixed_sizes_(std::move(fixed_sizes)),
        config_(this->op().default_config(fixed_sizes_).merged(changes)) {
    for (const std::string& name : case_names)
      cases_.push_back(prepared(case_named(name, fixed_sizes_)));
  }

  // The first verdict that is no pass.
  tuner::RunVerdict verdict(const Mutant* mutant) {
    const tuner::RunnablePlan candidate = plan(fixed_sizes_, config_, mutant);
    tuner::RunVerdict verdict;
    try {
      for (const auto& c : cases_) {
        verdict = c->check(candidate);
        if (verdict.outcome != tuner::Outcome::passed) break;
      }
    } catch (const Error& error) {
      verdict = {tuner::Outcome::trap, error.what()};
    }
    return verdict;
  }

 private:
  void TestBody() override {}

  const templates::Sizes fixed_sizes_;
  const templates::Config config_;
  std::vector<std::unique_ptr<tuner::PreparedCase>> cases_;
};

// A mistake that keeps a kernel from being launched, or an error of the test itself, shows nothing.
inline bool is_found(const tuner::RunVerdict& verdict) {
  return verdict.outcome == tuner::Outcome::wrong ||
         (verdict.outcome == tuner::Outcome::trap &&
          verdict.detail.find("could not finish the work") != std::string::npos);
}

// As it is, the config is right on every case; with a mistake it is not on one of them.
inline void expect_rejected(const char* op, const std::vector<Mutant>& mutants,
                            const templates::Sizes& fixed_sizes, const templates::Config& changes,
                            const std::vector<std::string>& case_names) {
  std::unique_ptr<MistakeProof> proof;
  const auto verdict_of = [&](const Mutant* mutant) {
    if (proof == nullptr)
      proof = std::make_unique<MistakeProof>(op, fixed_sizes, changes, case_names);
    const tuner::RunVerdict verdict = proof->verdict(mutant);
    const bool is_usable =
        verdict.outcome == tuner::Outcome::passed || verdict.outcome == tuner::Outcome::wrong;
    if (!is_usable) proof.reset();
    return verdict;
  };
  const tuner::RunVerdict right = verdict_of(nullptr);
  EXPECT_EQ(right.outcome, tuner::Outcome::passed) << right.detail;
  for (const Mutant& mutant : mutants) {
    const tuner::RunVerdict verdict = verdict_of(&mutant);
    EXPECT_TRUE(is_found(verdict)) << op << ": " << mutant.name << ": "
                                   << tuner::outcome_name(verdict.outcome) << " " << verdict.detail;
  }
}

}  // namespace kiln
