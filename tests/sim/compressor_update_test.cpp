// compressor_update on the simulator: planted mistakes are found by verification.
#include "tests/sim/planted_mistakes.h"

namespace kiln {
namespace {

using templates::Sizes;

TEST(CompressorUpdateOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> mutants{
      {"the partner is the row itself", "kernel.cu", "args.projections + (t - 1) *",
       "args.projections + t *"},
      {"the partner in the ring is the next token", "kernel.cu", "ring_row(position - 1)",
       "ring_row(position + 1)"},
      {"even positions complete a group", "kernel.cu", "(position & 1) != 0;\n",
       "(position & 1) == 0;\n"},
      {"groups without a block are completed", "kernel.cu", "is_odd && (!is_first || has_block)",
       "is_odd"},
      {"block 0 is a block", "kernel.cu", "block > 0 &&", "block >= 0 &&"},
      {"one token less is stored", "kernel.cu", "rows_left < block_rows",
       "rows_left + 1 < block_rows"},
      {"one token more is stored", "kernel.cu", "rows_left < block_rows",
       "rows_left < block_rows + 1"},
      {"the partner is replaced early", "kernel.cu", "!replaces_partner(from_first)", "true"},
      {"the late row is left out", "kernel.cu", "if (plan.stores_late)", "if (false)"},
      {"the late row is another", "kernel.cu", "plan.late_row = first_row + whole - 1;",
       "plan.late_row = first_row + whole - 2;"},
      {"scores change places", "kernel.cu", "pool(partner.values[i][0], partner.scores[i][0],",
       "pool(partner.values[i][0], own.scores[i][0],"},
      {"exp is that of base 2", "kernel.cu", "1.44269504f", "1.0f"},
      {"the slice's base is left out", "kernel.cu", "base = args.query_start_loc[0]", "base = 0"},
      {"padding is no padding", "kernel.cu", "|| request >= args.num_requests", ""},
      {"eps of other models", "norm.cuh", "1e-20f", "1e-2f"},
      {"half of the row is left out of the sum", "norm.cuh", "half >= 1; half /= 2)\n    sum",
       "half >= 2; half /= 2)\n    sum"},
  };
  expect_rejected(
      "compressor_update", mutants, {{"ratio", 2}, {"rounding", 0}}, {},
      {"chunks of both parities", "several requests, some empty", "steps around a ring of 8",
       "steps around a ring of 2", "requests without a block"});
}

// Beside rows of any other size these rows, and with them the mistakes, would count for nothing.
TEST(CompressorUpdateOnSimulator, MistakesInTinyRowsAreRejected) {
  const std::vector<Mutant> mutants{
      {"eps of most models", "norm.cuh", "1e-20f", "1e-6f"},
      {"no eps", "norm.cuh", "1e-20f", "0.0f"},
  };
  for (const int64_t ratio : {1, 2}) {
    for (const int64_t rounding : {0, 1}) {
      expect_rejected("compressor_update", mutants, {{"ratio", ratio}, {"rounding", rounding}}, {},
                      {"tiny values"});
    }
  }
}

TEST(CompressorUpdateOnSimulator, MistakesOfUnroundedPoolingAreRejected) {
  const std::vector<Mutant> mutants{
      {"squares of one half", "kernel.cu", "even = __fmaf_rn(x[i], x[i], even);", ""},
      {"the wrong weight", "kernel.cu", "high_bf16(w[i])", "low_bf16(w[i])"},
  };
  for (const int64_t ratio : {1, 2}) {
    expect_rejected("compressor_update", mutants, {{"ratio", ratio}, {"rounding", 1}},
                    {{"threads_per_row", 32}, {"early_rows", 1}}, {"chunks of both parities"});
  }
}

}  // namespace
}  // namespace kiln
