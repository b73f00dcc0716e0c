// rms_norm and qkv_norm on the simulator: planted mistakes are found by verification, and the fused
// norms have the bits of the ops that they stand for.
#include "tests/sim/op_chain.h"
#include "tests/sim/op_on_simulator.h"

namespace kiln {
namespace {

using templates::Case;
using templates::Config;
using templates::Sizes;

const std::vector<std::string> kCases{"33 rows", "5 rows", "padded strides"};

const Sizes kTwoWarps{{"K", 1280}};
const Config kTwoRowsInTurn{
    {"threads_per_row", 64}, {"rows_per_cta", 2}, {"rows_in_turn", 2}, {"early_weights", 1}};
constexpr const char* kNoBarrier = "with no barrier between them";

class RmsNormOnSimulator : public OpOnSimulator {
 protected:
  RmsNormOnSimulator() : OpOnSimulator("rms_norm") {}
};

TEST_F(RmsNormOnSimulator, PlantedMistakesAreRejected) {
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
      {"the weights of the neighbour", "norm.cuh", "place(row, thread, i)))",
       "place(row, thread ^ 1, i)))"},
      {"the last row is missing", "kernel.cu", "if (row >= args.num_rows)",
       "if (row + 1 >= args.num_rows)"},
  };
  expect_rejected(mutants, kCases, kTwoWarps, kTwoRowsInTurn);
}

TEST_F(RmsNormOnSimulator, SharedSumsAreFound) {
  const Mutant mutant{"rows share their sums", "kernel.cu", "+ row_in_cta * threads_per_row", ""};
  EXPECT_NE(report_on(mutant, kCases, kTwoWarps, kTwoRowsInTurn).find(kNoBarrier),
            std::string::npos);
}

TEST_F(RmsNormOnSimulator, SumsSharedByTurnsAreFound) {
  const Mutant mutant{"turns share their sums", "kernel.cu", "turn % 2 * block_threads +", ""};
  EXPECT_NE(report_on(mutant, kCases, kTwoWarps, kTwoRowsInTurn).find(kNoBarrier),
            std::string::npos);
}

class QkvNormOnSimulator : public OpOnSimulator {
 protected:
  QkvNormOnSimulator() : OpOnSimulator("qkv_norm") {}
};

TEST_F(QkvNormOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> mutants{
      {"kv takes the columns of q", "kernel.cu", "qkv + q_columns", "qkv"},
      {"kv takes the weights of q", "kernel.cu", "norm.piece(turn, args.kv_weight",
       "norm.piece(turn, args.q_weight"},
      {"the scale of the next group", "norm_quantised.cuh", "row.scales + thread / lanes_per_group",
       "row.scales + (thread / lanes_per_group ^ 1)"},
      {"a lane stores the scale of its own piece", "norm_quantised.cuh",
       "lane == i % lanes_per_group ?", "lane == 0 ?"},
      {"codes of a power of two more", "quantise_group.cuh", "254u * 0x00800080u",
       "253u * 0x00800080u"},
      {"the largest of 16", "quantise_group.cuh", "distance < lanes_per_group",
       "2 * distance < lanes_per_group"},
  };
  const Sizes shape{{"Q", 1280}, {"V", 512}, {"qr_format", 2}};
  const Config config{{"q_threads", 64},
                      {"kv_threads", 64},
                      {"rows_per_cta", 2},
                      {"rows_in_turn", 2},
                      {"early_weights", 0}};
  expect_rejected(mutants, kCases, shape, config);
  const Mutant shared_sums{"the parts share their sums", "kernel.cu",
                           "first_kv_thread + row_in_cta * kv_threads", "row_in_cta * kv_threads"};
  EXPECT_NE(report_on(shared_sums, kCases, shape, config).find("with no barrier between them"),
            std::string::npos);
}

// qkv_norm = rms_norm of both parts, then act_quant of the first.
class FusedNorms : public OpChain {};

TEST_F(FusedNorms, QkvNormHasTheBitsOfRmsNormAndActQuant) {
  constexpr int64_t kQ = 1280, kV = 512, kWidth = kQ + kV;
  const templates::Kit& kit = templates::require_kit(templates::require_op("qkv_norm"));
  const Sizes shape{{"Q", kQ}, {"V", kV}, {"qr_format", 2}};
  for (const Case& c : kit.verify_cases(shape, {{"T", 1}})) {
    const int64_t rows = c.sizes["T"];
    if (rows == 0 || !c.strides.empty()) continue;
    SCOPED_TRACE(c.name);
    Pointers fused = tensors_of(kit, c);
    const auto norm = [&](int64_t first, int64_t columns, const char* weight) {
      const Case part{.name = c.name,
                      .sizes = {{"K", columns}, {"T", rows}},
                      .strides = {{"x_stride", kWidth}},
                      .knobs = {},
                      .absent = {}};
      const runtime::DevicePtr y = allocate(2 * rows * columns);
      const runtime::DevicePtr x = fused.at("qkv") + static_cast<uint64_t>(2 * first);
      call("rms_norm", part, {{"x", x}, {"weight", fused.at(weight)}, {"y", y}});
      return y;
    };
    const runtime::DevicePtr qr = norm(0, kQ, "q_weight");
    const runtime::DevicePtr kv = norm(kQ, kV, "kv_weight");
    const Case quantised{.name = c.name,
                         .sizes = {{"format", 0}, {"K", kQ}, {"output", 0}, {"T", rows}},
                         .strides = {},
                         .knobs = {},
                         .absent = {}};
    const runtime::DevicePtr codes = allocate(rows * kQ), scales = allocate(rows * kQ / 32);
    call("act_quant", quantised, {{"x", qr}, {"codes", codes}, {"scales", scales}});
    for (const Config& config :
         {Config{}, Config{{"q_threads", 128}, {"kv_threads", 16}, {"rows_per_cta", 2}},
          Config{{"kv_threads", 0}, {"rows_in_turn", 2}},
          Config{{"kv_threads", 0}, {"early_weights", 0}},
          Config{{"q_threads", 64}, {"kv_threads", 64}, {"early_weights", 0}}}) {
      call("qkv_norm", c, fused, config);
      EXPECT_EQ(bytes(fused.at("qr"), 2 * rows * kQ), bytes(qr, 2 * rows * kQ));
      EXPECT_EQ(bytes(fused.at("kv"), 2 * rows * kV), bytes(kv, 2 * rows * kV));
      EXPECT_EQ(bytes(fused.at("qr_codes"), rows * kQ), bytes(codes, rows * kQ));
      EXPECT_EQ(bytes(fused.at("qr_scales"), rows * kQ / 32), bytes(scales, rows * kQ / 32));
    }
  }
}

}  // namespace
}  // namespace kiln
