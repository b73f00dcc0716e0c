// index_query on the simulator: planted mistakes are found by verification.
#include "tests/sim/planted_mistakes.h"

namespace kiln {
namespace {

using templates::Sizes;

TEST(IndexQueryOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> all{
      {"the lower half rotates", "kernel.cu", "lane >= first_rope_lane &&", "lane < 8 &&"},
      {"angles of the next position", "kernel.cu", "position * args.rope_table_stride",
       "(position > 0 ? position - 1 : 1) * args.rope_table_stride"},
      {"padding is rotated", "kernel.cu", "&& position < args.num_positions", ""},
      {"the factor of one head's width", "kernel.cu", "0x1p-6f", "0x1p-7f"},
      {"the weight of head 0", "kernel.cu", "args.head_weights_stride + piece.head]",
       "args.head_weights_stride]"},
      {"rows have one head less", "kernel.cu", "number / heads", "number / (heads + 1)"},
      {"the rotation goes back", "kernel.cu", "rotated<false>", "rotated<true>"},
  };
  const std::vector<Mutant> q4m{
      {"the scale of the first group", "kernel.cu", "scales[lane / 4]", "scales[0]"},
      {"odd codes come first", "quantise_group.cuh", "low | low >> 4", "low << 4 | low >> 8"},
  };
  const std::vector<Mutant> q8k{
      {"the scale is left out of the weight", "kernel.cu", "factor *= __uint_as_float",
       "factor *= 0.0f * __uint_as_float"},
      {"a NaN has a weight", "kernel.cu", "q.scale == 255 ? fp32_nan :", ""},
  };
  const std::vector<std::string> cases{"vectors and edges", "3 rows", "any bits",
                                       "positions beyond the table", "padded strides"};
  expect_rejected("index_query", all, {{"H", 7}, {"output", 1}}, {}, cases);
  expect_rejected("index_query", q4m, {{"H", 32}, {"output", 0}}, {}, cases);
  expect_rejected("index_query", q8k, {{"H", 7}, {"output", 1}}, {}, cases);
}

}  // namespace
}  // namespace kiln
