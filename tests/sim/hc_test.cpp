// The ops on residual streams on the simulator: planted mistakes are found by verification, and the
// fused op has the bits of the two that it stands for.
#include "tests/sim/op_chain.h"
#include "tests/sim/op_on_simulator.h"
#include "tests/sim/planted_mistakes.h"

namespace kiln {
namespace {

using templates::Case;
using templates::Config;
using templates::Sizes;

const std::vector<std::string> kCases{"33 rows", "single gates", "cancelling", "any bits",
                                      "padded strides"};

TEST(HcOnSimulator, PlantedMistakesInTheMixAreRejected) {
  const std::vector<Mutant> mutants{
      {"comb is transposed", "hc.cuh", "__fmul_rn(comb[i][j]", "__fmul_rn(comb[j][i]"},
      {"products are not rounded", "hc.cuh", "sum = __fadd_rn(sum, __fmul_rn(comb[i][j], h[i]))",
       "sum = __fmaf_rn(comb[i][j], h[i], sum)"},
      {"the gates of the first row", "kernel.cu", "args.post + row * args.post_stride",
       "args.post"},
      {"streams are dense", "kernel.cu", "x.load(h + piece * piece_elements, args.h_stride1)",
       "x.load(h + piece * piece_elements, columns)"},
      {"a stream is left out of the squares", "hc_sums.cuh", "j == 0 ? of_stream",
       "j <= 1 ? of_stream"},
      {"the last piece is missing", "kernel.cu", "piece >= pieces)", "piece + 1 >= pieces)"},
  };
  expect_rejected("hc_post", mutants, {{"K", 1280}, {"sqrsum", 1}},
                  {{"threads", 64}, {"pieces_per_thread", 3}}, kCases);
}

TEST(HcOnSimulator, PlantedMistakesInTheFoldAreRejected) {
  const std::vector<Mutant> mutants{
      {"products are not rounded", "hc.cuh", "__fadd_rn(three, __fmul_rn(pre.w, h[3]))",
       "__fmaf_rn(pre.w, h[3], three)"},
      {"another order of the sum", "hc.cuh",
       "__fadd_rn(__fmul_rn(pre.x, h[0]), __fmul_rn(pre.y, h[1]))",
       "__fadd_rn(__fmul_rn(pre.x, h[0]), __fmul_rn(pre.z, h[2]))"},
      {"the norm sees more than bf16", "kernel.cu", "norm_factor<columns>(sum)",
       "norm_factor<columns>(sum * 1.001f)"},
      {"the weights of the first row", "kernel.cu", "args.pre + row * args.pre_stride", "args.pre"},
      {"folded is normalised", "kernel.cu", "store_16(Part::place(to, thread, i), x.data[i])",
       "store_16(Part::place(to, thread, i), normalised(x.data[i], x.data[i], factor))"},
  };
  expect_rejected("hc_fold_norm", mutants, {{"K", 1280}, {"x_format", 2}},
                  {{"threads_per_row", 64}, {"rows_per_cta", 2}}, kCases);
}

TEST(HcOnSimulator, PlantedMistakesInTheFusedOpAreRejected) {
  const std::vector<Mutant> mutants{
      {"the weights of other streams", "kernel.cu", "fold(all, pre)",
       "fold(all, {pre.y, pre.x, pre.z, pre.w})"},
      {"nothing is folded", "kernel.cu", "x.data[i] = fold(all, pre);", ""},
      {"the mean is a sum", "kernel.cu", "{0.25f, 0.25f, 0.25f, 0.25f}",
       "{1.0f, 1.0f, 1.0f, 1.0f}"},
      {"sqrsum of the first row", "kernel.cu", "args.sqrsum[row]", "args.sqrsum[0]"},
  };
  expect_rejected("hc_post_fold_norm", mutants, {{"K", 1280}, {"x_format", 2}, {"sqrsum", 1}},
                  {{"threads_per_row", 64}, {"rows_per_cta", 2}}, kCases);
}

TEST(HcOnSimulator, PlantedMistakesInTheStatisticsAreRejected) {
  const std::vector<Mutant> mutants{
      {"fn counts with 16 bits", "hc_stats_partials.cuh", "int term = terms - 1;", "int term = 1;"},
      {"fn counts with 8 bits", "hc_stats_partials.cuh", "int term = terms - 1;", "int term = 0;"},
      {"pairs of h change places", "hc_stats_partials.cuh",
       "a[m][0].x, a[m][1].x, a[m][0].y, a[m][1].y", "a[m][0].y, a[m][1].y, a[m][0].x, a[m][1].x"},
      {"squares of one half", "hc_stats_partials.cuh",
       "sums.squares[m][half], sum_of_squares(a[m][half])",
       "sums.squares[m][half], sum_of_squares(a[m][0])"},
      {"streams are dense", "hc_stats_partials.cuh", "block / blocks_of_stream * args.h_stride1",
       "block / blocks_of_stream * i64{columns}"},
      {"a warp is left out", "hc_stats_partials.cuh", "int warp = 1; warp < warps",
       "int warp = 2; warp < warps"},
      {"the last split is left out", "hc_stats_gates.cuh",
       "int i = 1; i < (splits + groups - 1) / groups",
       "int i = 1; i < (splits + groups - 1) / groups - 1"},
      {"a group is left out", "hc_stats_gates.cuh", "int group = 1; group < groups",
       "int group = 2; group < groups"},
      {"3 steps", "hc_stats_gates.cuh", "sinkhorn_steps = 20", "sinkhorn_steps = 3"},
      {"rows last", "hc_stats_gates.cuh", "comb.divide_columns();\n#pragma unroll 1",
       "comb.divide_rows();\n#pragma unroll 1"},
      {"pre without epsilon", "hc_stats_gates.cuh", "__fadd_rn(sigmoid(logit(j)), gate_epsilon)",
       "sigmoid(logit(j)) * 1.00001f"},
      {"post without its 2", "hc_stats_gates.cuh", "__fmul_rn(2.0f, sigmoid",
       "__fmul_rn(1.0f, sigmoid"},
      {"one scale for all", "hc_stats_gates.cuh", "args.scale[kind]", "args.scale[0]"},
      {"comb is transposed", "hc_stats_gates.cuh", "logit(2 * streams + streams * j + c)",
       "logit(2 * streams + streams * c + j)"},
      {"the epsilon of V4", "hc_stats_gates.cuh", "1e-20f", "1e-6f"},
  };
  expect_rejected("hc_stats", mutants, {{"K", 256}},
                  {{"m_tiles", 1}, {"warps", 2}, {"splits", 16}, {"rows_per_gate_cta", 4}},
                  {"17 rows", "vectors", "one sign", "one column", "padded strides"});
}

class FusedStreams : public OpChain {};

// hc_post_fold_norm = hc_post, then hc_fold_norm.
TEST_F(FusedStreams, HasTheBitsOfHcPostAndHcFoldNorm) {
  constexpr int64_t kColumns = 384;
  const templates::Kit& kit = templates::require_kit(templates::require_op("hc_post_fold_norm"));
  const Sizes shape{{"K", kColumns}, {"x_format", 2}, {"sqrsum", 1}};
  for (const Case& c : kit.verify_cases(shape, {{"T", 1}})) {
    const int64_t rows = c.sizes["T"];
    if (rows == 0 || !c.strides.empty() || !c.absent.empty()) continue;
    SCOPED_TRACE(c.name);
    const Sizes sizes{{"K", kColumns}, {"T", rows}};
    const auto as = [&](const Sizes& more) {
      return Case{
          .name = c.name, .sizes = sizes.merged(more), .strides = {}, .knobs = {}, .absent = {}};
    };
    Pointers apart = tensors_of(kit, c);
    call("hc_post", as({{"sqrsum", 1}}), apart);
    apart["folded"] = allocate(2 * rows * kColumns);
    call("hc_fold_norm", as({{"x_format", 2}}), apart);
    for (const Config& config : {Config{}, Config{{"threads_per_row", 64}, {"rows_per_cta", 4}}}) {
      const Pointers fused = tensors_of(kit, c);
      call("hc_post_fold_norm", c, fused, config);
      for (const auto& [name, size] :
           std::map<std::string, int64_t>{{"h", 8 * rows * kColumns},
                                          {"x", 2 * rows * kColumns},
                                          {"x_codes", rows * kColumns},
                                          {"x_scales", rows * kColumns / 32},
                                          {"sqrsum", 4 * rows}}) {
        EXPECT_EQ(bytes(fused.at(name), size), bytes(apart.at(name), size)) << name;
      }
    }
  }
}

}  // namespace
}  // namespace kiln
