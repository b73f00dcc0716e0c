// rope and rope_table on the simulator: planted mistakes are found by verification, and rotating
// back after the attention gives the bits of rotating back within it.
#include "tests/sim/op_chain.h"
#include "tests/sim/op_on_simulator.h"

namespace kiln {
namespace {

using templates::Case;
using templates::Config;
using templates::Sizes;

class RopeOnSimulator : public OpOnSimulator {
 protected:
  RopeOnSimulator() : OpOnSimulator("rope") {}
};

TEST_F(RopeOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> mutants{
      {"forward is back", "kernel.cu", "rotated<inverse>", "rotated<!inverse>"},
      {"sines are cosines", "rope.cuh", "(row + rope_pairs) + piece", "(row) + piece"},
      {"the angles of the next piece", "kernel.cu", "rope_table_stride, piece)",
       "rope_table_stride, piece ^ 1)"},
      {"a fused multiply-add", "rope.cuh", "__fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine))",
       "__fmaf_rn(a, cosine, -__fmul_rn(b, sine))"},
      {"the position before", "kernel.cu", "args.positions[row]",
       "max(args.positions[row] - 1, 0)"},
      {"the last head is left out", "kernel.cu", "if (has_head(head)) store_16",
       "if (has_head(head + 1)) store_16"},
  };
  const std::vector<std::string> cases{"base 10000", "YaRN to 2^20", "pairs that cancel",
                                       "padded strides"};
  const Sizes shape{{"H", 3}, {"direction", 0}};
  const Config config{{"threads", 64}, {"heads_per_thread", 2}};
  expect_rejected(mutants, cases, shape, config);
  const Mutant last_position{"a position below is one", "kernel.cu", "if (position < 0 ||",
                             "if (position < -1 ||"};
  EXPECT_NE(report_on(last_position, {"positions outside"}, shape, config).find("rope_table"),
            std::string::npos);
}

class RopeTableOnSimulator : public OpOnSimulator {
 protected:
  RopeTableOnSimulator() : OpOnSimulator("rope_table") {}
};

TEST_F(RopeTableOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> mutants{
      {"the other frequencies", "kernel.cu", "yarn ? base_160000_yarn", "!yarn ? base_160000_yarn"},
      {"an angle in float64", "kernel.cu", "static_cast<double>(__fmul_rn(position, frequency))",
       "__dmul_rn(static_cast<double>(position), static_cast<double>(frequency))"},
      {"a remainder by a double alone", "kernel.cu", "__fma_rn(-quotient, low_half, ",
       "__fma_rn(0.0, low_half, "},
      {"the next quadrant", "kernel.cu", "quadrant == 1 || quadrant == 2",
       "quadrant == 1 || quadrant == 3"},
      {"the first position is 0", "kernel.cu", "args.first_position + row", "row"},
  };
  expect_rejected(mutants, {"one position", "the last positions of fp32", "padded rows"},
                  {{"frequencies", 1}}, {{"threads", 128}, {"positions_per_thread", 2}});
}

class RopeAfterAttention : public OpChain {};

TEST_F(RopeAfterAttention, HasTheBitsOfTheRotationWithinIt) {
  constexpr int64_t kHeadDim = 512, kRopeBegin = 448;
  const templates::Kit& kit = templates::require_kit(templates::require_op("sparse_mla_decode"));
  for (const int64_t heads : {8, 20}) {
    const Sizes plain{{"H", heads},
                      {"window_format", 1},
                      {"compressed_format", 2},
                      {"probability", 0},
                      {"inverse_rope", 0}};
    const Sizes rotated = plain.merged({{"inverse_rope", 1}});
    const templates::Sizes bucket = templates::all_buckets(*kit.op).front();
    const std::vector<Case> all = kit.verify_cases(rotated, bucket);
    for (const Config& config : {Config{}, Config{{"splits", 2}, {"lean", 0}}}) {
      for (const Case& c : all) {
        const bool is_chosen = c.name == "plain" || c.name == "-1 anywhere" ||
                               c.name == "rows without valid columns" || c.name == "many columns";
        if (!is_chosen) continue;
        SCOPED_TRACE(c.name);
        Pointers fused = tensors_of(kit, c);
        call("sparse_mla_decode", c, fused, config);
        Case unrotated = c;
        unrotated.sizes = c.sizes.merged(plain).merged({{"P", 0}});
        Pointers apart = fused;
        const int64_t rows = c.sizes["T"], bytes_out = 2 * rows * heads * kHeadDim;
        apart["out"] = allocate(bytes_out);
        call("sparse_mla_decode", unrotated, apart, config);
        const auto before = bytes(apart.at("out"), bytes_out);
        const Case rope{.name = c.name,
                        .sizes = {{"H", heads}, {"direction", 1}, {"T", rows}, {"P", c.sizes["P"]}},
                        .strides = {{"x_stride0", heads * kHeadDim}, {"x_stride1", kHeadDim}},
                        .knobs = {},
                        .absent = {}};
        call("rope", rope,
             {{"x", apart.at("out") + static_cast<uint64_t>(2 * kRopeBegin)},
              {"positions", fused.at("positions")},
              {"rope_table", fused.at("rope_table")}});
        const auto after = bytes(apart.at("out"), bytes_out);
        EXPECT_NE(before, after);
        EXPECT_EQ(after, bytes(fused.at("out"), bytes_out));
      }
    }
  }
}

}  // namespace
}  // namespace kiln
