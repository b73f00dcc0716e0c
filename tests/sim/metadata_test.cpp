// The ops that make slots and bounds on the simulator: planted mistakes are found by verification.
#include <functional>

#include "tests/sim/op_on_simulator.h"

namespace kiln {
namespace {

using templates::Case;
using templates::Config;
using templates::Sizes;

class MetadataOnSimulator : public OpOnSimulator {
 protected:
  using OpOnSimulator::OpOnSimulator;

  using Verdict = std::function<tuner::RunVerdict(const Mutant*)>;

  // Of the op with a mistake, or as it is: the first case that does not pass.
  Verdict verdicts(const Sizes& fixed_sizes, const Config& changes,
                   const std::vector<std::string>& case_names) {
    const auto cases = std::make_shared<std::vector<std::unique_ptr<tuner::PreparedCase>>>();
    for (const std::string& name : case_names)
      cases->push_back(prepared(case_named(name, fixed_sizes)));
    const Config config = op().default_config(fixed_sizes).merged(changes);
    return [this, cases, fixed_sizes, config](const Mutant* mutant) {
      const tuner::RunnablePlan candidate = plan(fixed_sizes, config, mutant);
      tuner::RunVerdict verdict;
      for (const auto& c : *cases) {
        verdict = c->check(candidate);
        if (verdict.outcome != tuner::Outcome::passed) break;
      }
      return verdict;
    };
  }

  void reject(const std::vector<Mutant>& mutants, const Sizes& fixed_sizes, const Config& changes,
              const std::vector<std::string>& case_names) {
    const Verdict verdict_of = verdicts(fixed_sizes, changes, case_names);
    const tuner::RunVerdict right = verdict_of(nullptr);
    EXPECT_EQ(right.outcome, tuner::Outcome::passed) << right.detail;
    for (const Mutant& mutant : mutants) {
      const tuner::RunVerdict verdict = verdict_of(&mutant);
      EXPECT_EQ(verdict.outcome, tuner::Outcome::wrong) << mutant.name << ": " << verdict.detail;
    }
  }

  // The checker ends a kernel that reads beyond a tensor, and with it the device.
  void expect_fault(const Mutant& mutant, const Sizes& fixed_sizes, const std::string& case_name,
                    const std::string& text) {
    std::string found;
    try {
      found = verdicts(fixed_sizes, {}, {case_name})(&mutant).detail;
    } catch (const Error& error) {
      found = error.what();
    }
    EXPECT_NE(found.find(text), std::string::npos) << mutant.name << ": " << found;
  }
};

class TopkToSlotsOnSimulator : public MetadataOnSimulator {
 protected:
  TopkToSlotsOnSimulator() : MetadataOnSimulator("topk_to_slots") {}
};

TEST_F(TopkToSlotsOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> mutants{
      {"padded rows count", "kernel.cu", "is_valid ? count : 0", "count"},
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

TEST_F(TopkToSlotsOnSimulator, ReadsBeyondTheTableAreFound) {
  expect_fault({"columns beyond the table are read", "kernel.cu", "&& column < width", ""},
               {{"K", 512}}, "what does not exist", "outside of");
}

TEST_F(TopkToSlotsOnSimulator, RequestsOfPaddedRowsAreNotFollowed) {
  expect_fault({"requests are followed", "kernel.cu",
                "is_valid && request >= 0 && request < args.num_requests", "true"},
               {{"K", 512}}, "padded rows", "outside of `block_table`");
}

class WindowSlotsOnSimulator : public MetadataOnSimulator {
 protected:
  WindowSlotsOnSimulator() : MetadataOnSimulator("window_slots") {}
};

TEST_F(WindowSlotsOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> both{
      {"pages before the window are read", "kernel.cu", "column + i < window_count &&",
       "first_page + page >= 0 &&"},
      {"padded rows count", "kernel.cu", "if (!is_valid) row.count = 0;", ""},
      {"all groups have one table", "kernel.cu", "group * args.block_table_stride0 +", ""},
      {"the first page is not whole", "kernel.cu", "start_in_page + static_cast<u32>(column + i)",
       "static_cast<u32>(column + i)"},
  };
  const std::vector<Mutant> causal{
      {"the row itself is left out", "kernel.cu", "last - start + 1;", "last - start;"},
      {"the window is one longer", "kernel.cu", "last - (window - 1)", "last - window"},
      {"replay starts anywhere", "kernel.cu", "args.replay_start != nullptr)",
       "args.replay_start == reinterpret_cast<const i32*>(1))"},
      {"positions below 0 have a window", "kernel.cu", "last < start ? 0 :", "false ? 0 :"},
  };
  const std::vector<Mutant> draft{
      {"the block is left out", "kernel.cu", "last = seq_len - 1;",
       "last = seq_len - query_len - 1;"},
      {"the window includes the row", "kernel.cu", "- query_len - window",
       "- query_len - window + 1"},
      {"long blocks leave the row", "kernel.cu", "min(count, args.slot_width)", "count"},
  };
  const std::vector<std::string> cases{"padded rows", "three groups, odd strides",
                                       "what does not exist"};
  const auto with = [](std::vector<std::string> names, std::vector<std::string> more) {
    names.insert(names.end(), more.begin(), more.end());
    return names;
  };
  const Sizes causal_shape{{"window", 128}, {"form", 0}}, draft_shape{{"window", 128}, {"form", 1}};
  reject(both, causal_shape, {}, cases);
  reject(causal, causal_shape, {}, with(cases, {"bounded replay", "positions that do not exist"}));
  reject(draft, draft_shape, {}, with(cases, {"blocks longer than a row"}));
}

TEST_F(WindowSlotsOnSimulator, ReadsBeyondTheTableAreFound) {
  expect_fault(
      {"columns beyond the table are read", "kernel.cu", "&& first_page + page < width", ""},
      {{"window", 128}, {"form", 0}}, "what does not exist", "outside of `block_table`");
}

}  // namespace
}  // namespace kiln
