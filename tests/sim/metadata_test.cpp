// The ops that make slots and bounds on the simulator: planted mistakes are found by verification.
#include "tests/sim/op_on_simulator.h"

namespace kiln {
namespace {

using templates::Case;
using templates::Config;
using templates::Sizes;

class MetadataOnSimulator : public OpOnSimulator {
 protected:
  using OpOnSimulator::OpOnSimulator;

  // As it is, the config is right on every case; with a mistake it is not on one of them.
  void reject(const std::vector<Mutant>& mutants, const Sizes& fixed_sizes, const Config& changes,
              const std::vector<std::string>& case_names) {
    const Config config = op().default_config(fixed_sizes).merged(changes);
    std::vector<std::unique_ptr<tuner::PreparedCase>> cases;
    for (const std::string& name : case_names)
      cases.push_back(prepared(case_named(name, fixed_sizes)));
    const auto verdict_of = [&](const tuner::RunnablePlan& candidate) {
      tuner::RunVerdict verdict;
      for (const auto& c : cases) {
        // The checker ends a kernel that reads beyond a tensor.
        try {
          verdict = c->check(candidate);
        } catch (const Error& error) {
          verdict = {tuner::Outcome::trap, error.what()};
        }
        if (verdict.outcome != tuner::Outcome::passed) break;
      }
      return verdict;
    };
    const tuner::RunVerdict right = verdict_of(plan(fixed_sizes, config));
    EXPECT_EQ(right.outcome, tuner::Outcome::passed) << right.detail;
    for (const Mutant& mutant : mutants) {
      const tuner::RunVerdict verdict = verdict_of(plan(fixed_sizes, config, &mutant));
      EXPECT_NE(verdict.outcome, tuner::Outcome::passed) << mutant.name;
    }
  }
};

class TopkToSlotsOnSimulator : public MetadataOnSimulator {
 protected:
  TopkToSlotsOnSimulator() : MetadataOnSimulator("topk_to_slots") {}
};

TEST_F(TopkToSlotsOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> mutants{
      {"columns beyond the table are read", "kernel.cu", "&& column < width", ""},
      {"requests that do not exist are followed", "kernel.cu", "&& request < args.num_requests",
       ""},
      {"padded rows count", "kernel.cu", "is_valid ? count : 0", "count"},
      {"padded rows are looked up", "kernel.cu", "const bool exists = is_valid &&",
       "const bool exists ="},
      {"only entries above 0 count", "kernel.cu", "count += entries[i] >= 0;",
       "count += entries[i] > 0;"},
      {"the second batch is the first", "kernel.cu", "first += batch * threads_per_row",
       "first += 2 * batch * threads_per_row"},
      {"one warp's count is left out", "kernel.cu", "int i = 0; i < warps_per_row",
       "int i = 1; i < warps_per_row"},
  };
  reject(mutants, {{"K", 512}}, {{"threads_per_row", 64}, {"batch", 1}, {"rows_per_cta", 2}},
         {"worked example of B13.1", "padded rows", "what does not exist", "odd strides"});
}

}  // namespace
}  // namespace kiln
