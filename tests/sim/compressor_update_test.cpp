// compressor_update on the simulator: planted mistakes are found by verification.
#include "tests/sim/planted_mistakes.h"

namespace kiln {
namespace {

using templates::Sizes;

const std::vector<std::string> kCases{"chunks of both parities", "several requests, some empty",
                                      "steps around a ring of 8", "steps around a ring of 2",
                                      "requests without a block"};

TEST(CompressorUpdateOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> mutants{
      {"the partner is the row itself", "kernel.cu", "row_of(args, t - 1)", "row_of(args, t)"},
      {"the partner in the ring is the next token", "kernel.cu",
       "is_first ? ring.row(position - 1)", "is_first ? ring.row(position + 1)"},
      {"even positions complete a group", "kernel.cu", "(position & 1) != 0;\n",
       "(position & 1) == 0;\n"},
      {"groups without a block are completed", "kernel.cu",
       "is_odd && (!is_first || request.has_block(args))", "is_odd"},
      {"block 0 is a block", "kernel.cu", "block > 0 &&", "block >= 0 &&"},
      {"one token less is stored", "kernel.cu", "rows_left < args.block_rows",
       "rows_left + 1 < args.block_rows"},
      {"one token more is stored", "kernel.cu", "rows_left < args.block_rows",
       "rows_left < args.block_rows + 1"},
      {"the partner is replaced early", "kernel.cu", "!replaces_partner(from_first)", "true"},
      {"the late row is left out", "kernel.cu", "if (stores.late)", "if (false)"},
      {"the late row is another", "kernel.cu", "stores.late_row = first_row + whole - 1;",
       "stores.late_row = first_row + whole - 2;"},
      {"scores change places", "kernel.cu", "pool(partner.values[i][0], partner.scores[i][0],",
       "pool(partner.values[i][0], own.scores[i][0],"},
      {"exp is that of base 2", "exp.cuh", "1.44269504f", "1.0f"},
      {"the smaller score wins", "kernel.cu", "difference >= 0.0f", "difference < 0.0f"},
      {"the slice's base is left out", "kernel.cu", "base = load_i32(args.query_start_loc)",
       "base = 0"},
      {"padding is no padding", "kernel.cu", "|| request >= args.num_requests", ""},
      {"eps of other models", "norm.cuh", "1e-20f", "1e-2f"},
      {"half of the row is left out of the sum", "norm.cuh",
       "min(threads, warp_lanes) / 2; half >= 1", "min(threads, warp_lanes) / 2; half >= 2"},
  };
  expect_rejected("compressor_update", mutants, {{"ratio", 2}, {"rounding", 0}}, {}, kCases);
}

TEST(CompressorUpdateOnSimulator, MistakesOfTwoRowsAreRejected) {
  const std::vector<Mutant> mutants{
      {"the partner is the row itself", "kernel.cu", "row_of(args, t + i - 1)",
       "row_of(args, t + i)"},
      {"the partner in the ring is the next token", "kernel.cu",
       "Ring(args, request).row(position - 1)", "Ring(args, request).row(position + 1)"},
      {"the first row's partner is the row before", "kernel.cu", "    if (is_first) {",
       "    if (false) {"},
      {"groups without a block are completed", "kernel.cu",
       "if (!request.has_block(args)) continue;", ""},
      {"even positions complete a group", "kernel.cu", "(position & 1) == 0) continue;",
       "(position & 1) != 0) continue;"},
      {"what was guessed is used", "kernel.cu", "!early_rows || i == 0 || is_first",
       "!early_rows || i == 0"},
      {"the other row is left out", "kernel.cu", "for (int i = 1; i >= 0; --i)",
       "for (int i = 1; i >= 1; --i)"},
      {"one request for both rows", "kernel.cu", "i == 1 && requests[1] != requests[0]", "false"},
      {"the first row stores nothing late", "kernel.cu", "t + i > request.first_row()",
       "t + i >= request.first_row()"},
      {"the last but one stores nothing", "kernel.cu", "args.block_rows < request.end_row(args)",
       "args.block_rows < request.end_row(args) + 1"},
      {"the second row's store is the first's", "kernel.cu", "copy_row(args, t + i,",
       "copy_row(args, t,"},
      {"a row beyond the last", "kernel.cu", "has_second ? args.requests[t + 1] : -1",
       "args.requests[t]"},
  };
  for (const int64_t threads : {32, 64}) {
    expect_rejected("compressor_update", mutants, {{"ratio", 2}, {"rounding", 0}},
                    {{"threads_per_row", threads}, {"early_rows", 1}, {"takes_two_rows", 1}},
                    kCases);
  }
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
