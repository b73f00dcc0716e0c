// index_query on the simulator: planted mistakes are found by verification.
#include "tests/sim/planted_mistakes.h"

namespace kiln {
namespace {

using templates::Sizes;

TEST(IndexQueryOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> all{
      {"the lower half rotates", "kernel.cu", "turned = x.turning", "turned = x.still"},
      {"angles of the next position", "kernel.cu", "position * args.rope_table_stride",
       "(position > 0 ? position - 1 : 1) * args.rope_table_stride"},
      {"padding is rotated", "kernel.cu", "&& position < args.num_positions", ""},
      {"the factor of one head's width", "kernel.cu", "0x1p-6f * __uint_as_float",
       "0x1p-7f * __uint_as_float"},
      {"the weight of head 0", "kernel.cu", "args.head_weights_stride + own_head]",
       "args.head_weights_stride]"},
      {"rows have one head less", "kernel.cu", "number / head_groups",
       "number / (head_groups + 1)"},
      {"the rotation goes back", "kernel.cu", "rotate<false>", "rotate<true>"},
  };
  const std::vector<Mutant> q4m{
      {"the factor of one head's width", "kernel.cu", "return 0x1p-6f;", "return 0x1p-7f;"},
      {"the scale of the first group", "kernel.cu", "args.scales_stride1 + lane / 4",
       "args.scales_stride1"},
      {"one largest for both halves", "quantise_group.cuh", "__byte_perm(both, 0, 0x3232)",
       "__byte_perm(both, 0, 0x1010)"},
      {"odd codes come first", "quantise_group.cuh", "0x4602", "0x6420"},
  };
  const std::vector<Mutant> q8k{
      {"the scale is left out of the weight", "kernel.cu", "0x1p-6f * __uint_as_float",
       "0x1p-6f + 0.0f * __uint_as_float"},
      {"a NaN has a weight", "kernel.cu", "scale == 255 ? fp32_nan :", ""},
      {"the largest of one half", "kernel.cu", "largest_magnitude(x.turning.pairs)",
       "largest_magnitude(x.still.pairs)"},
  };
  const std::vector<Mutant> by_warps{
      {"rows beyond the last are written", "kernel.cu", "wanted >= args.num_rows) return;",
       "wanted > args.num_rows) return;"},
  };
  const std::vector<Mutant> by_steps{
      {"heads of a thread are neighbours", "kernel.cu", "* head_groups;\n  const bool has_weight",
       ";\n  const bool has_weight"},
  };
  const std::vector<std::string> cases{"vectors and edges", "3 rows", "any bits",
                                       "positions beyond the table", "padded strides"};
  expect_rejected("index_query", all, {{"H", 7}, {"output", 1}}, {}, cases);
  expect_rejected("index_query", q4m, {{"H", 32}, {"output", 0}}, {}, cases);
  expect_rejected("index_query", by_warps, {{"H", 32}, {"output", 0}}, {{"heads_per_thread", 4}},
                  cases);
  expect_rejected("index_query", by_steps, {{"H", 7}, {"output", 1}}, {{"heads_per_thread", 4}},
                  cases);
  expect_rejected("index_query", q8k, {{"H", 7}, {"output", 1}}, {}, cases);
}

}  // namespace
}  // namespace kiln
