// rms_norm on the simulator: planted mistakes are found by verification.
#include "tests/sim/op_on_simulator.h"

namespace kiln {
namespace {

using templates::Config;
using templates::Sizes;

class RmsNormOnSimulator : public OpOnSimulator {
 protected:
  RmsNormOnSimulator() : OpOnSimulator("rms_norm") {}

  tuner::RunVerdict verdict_of(const Sizes& shape, const Config& config, const Mutant* mutant) {
    const tuner::RunnablePlan candidate = plan(shape, config, mutant);
    tuner::RunVerdict verdict;
    for (const char* name : {"33 rows", "vectors", "padded strides"}) {
      verdict = prepared(case_named(name, shape))->check(candidate);
      if (verdict.outcome != tuner::Outcome::passed) break;
    }
    return verdict;
  }

  // By its results or by the simulator's checker.
  bool is_rejected(const Sizes& shape, const Config& config, const Mutant& mutant) {
    try {
      return verdict_of(shape, config, &mutant).outcome != tuner::Outcome::passed;
    } catch (const Error& error) {
      return std::string(error.what()).find("with no barrier between them") != std::string::npos;
    }
  }
};

TEST_F(RmsNormOnSimulator, PlantedMistakesAreRejected) {
  const Sizes shape{{"K", 1280}};
  const Config config{{"threads_per_row", 64}, {"rows_per_cta", 2}, {"early_weights", 1}};
  const tuner::RunVerdict right = verdict_of(shape, config, nullptr);
  EXPECT_EQ(right.outcome, tuner::Outcome::passed) << right.detail;
  const std::vector<Mutant> mutants{
      {"the epsilon of V4", "norm.cuh", "1e-20f", "1e-6f"},
      {"no epsilon", "norm.cuh", "reciprocal, 1e-20f", "reciprocal, 0.0f"},
      {"the mean of half a row", "norm.cuh", "1.0f / static_cast<float>(columns)",
       "2.0f / static_cast<float>(columns)"},
      {"odd elements are forgotten", "norm.cuh", "__fadd_rn(even, odd)", "even"},
      {"another order of the sum", "norm.cuh", "for (int half = min(threads, warp_lanes) / 2; half",
       "for (int half = 1, last = 32; half < last && half"},
      {"a rounding before the weight", "norm.cuh",
       "__fmul_rn(__fmul_rn(low_bf16(pair), factor), low_bf16(weights))",
       "__fmul_rn(low_bf16(to_bf16x2(__fmul_rn(low_bf16(pair), factor), 0.0f)), "
       "low_bf16(weights))"},
      {"the weights of the neighbour", "norm.cuh", "row + column(thread, i)))",
       "row + column(thread ^ 1, i)))"},
      {"rows share their sums", "kernel.cu", "shared + row_in_cta * threads_per_row", "shared"},
      {"the last row is missing", "kernel.cu", "if (wanted != row)", "if (wanted + 1 >= row)"},
  };
  for (const Mutant& mutant : mutants)
    EXPECT_TRUE(is_rejected(shape, config, mutant)) << mutant.name;
}

}  // namespace
}  // namespace kiln
