// The ops that write caches, on the simulator: planted mistakes are found by verification.
#include "tests/sim/planted_mistakes.h"

namespace kiln {
namespace {

using templates::Sizes;

class Inserts : public OpOnSimulator {
 public:
  Inserts(const char* op, const Sizes& shape) : OpOnSimulator(op), shape_(shape) {}

  tuner::RunVerdict verdict_of(const templates::Case& c) {
    return prepared(c)->check(plan(shape_, op().default_config(shape_)));
  }

 private:
  void TestBody() override {}

  Sizes shape_;
};

void reject(const char* op, const Sizes& shape, const std::vector<Mutant>& mutants) {
  expect_rejected(op, mutants, shape, {{"threads", 128}, {"rows_per_thread", 2}},
                  {"5 rows", "vectors and edges", "ties under every scale", "any bits",
                   "rows without a slot", "positions beyond the table", "padded strides"});
}

// The calls that a captured graph replays on a GPU.
TEST(InsertsOnSimulator, ReplayedCallsAreRight) {
  for (const char* name : {"window_kv_insert", "compressed_kv_insert", "index_key_insert"}) {
    const templates::Op& op = templates::require_op(name);
    const Sizes shape = op.model_shapes(2).back();
    Inserts inserts(name, shape);
    for (const templates::Case& c : templates::require_kit(op).replay_cases(shape)) {
      const tuner::RunVerdict verdict = inserts.verdict_of(c);
      EXPECT_EQ(verdict.outcome, tuner::Outcome::passed)
          << name << " " << c.name << ": " << verdict.detail;
    }
  }
}

TEST(WindowInsertOnSimulator, PlantedMistakesAreRejected) {
  reject(
      "window_kv_insert", {{"format", 1}, {"norm", 0}},
      {{"the first position is 1", "kv_insert.cuh", "kv.table + position * kv.table_stride",
        "kv.table + (position + 1) % kv.num_positions * kv.table_stride"},
       {"angles of the neighbour", "kv_insert.cuh", "(lane - first_rope_lane)",
        "((lane - first_rope_lane) ^ 1)"},
       {"the tail begins early", "kv_insert.cuh", "part.rotates = lane >= first_rope_lane",
        "part.rotates = lane >= 23"},
       {"rotated backwards", "kv_insert.cuh", "rotate<false>", "rotate<true>"},
       {"the floor of Q8b", "quantise.cuh", "fmaxf(largest, 1e-4f) * reciprocal_of_448",
        "fmaxf(largest * reciprocal_of_448, 1e-4f)"},
       {"scales behind the codes of one entry", "kv_insert.cuh",
        "static_cast<u64>(kv.page_size) * row_bytes", "static_cast<u64>(row_bytes)"},
       {"scales of every second group", "kv_insert.cuh", "if (column % group == 0)",
        "if (column % (2 * group) == 0)"},
       {"padded rows are written", "kv_insert.cuh", "is_written = has_slot &&", "is_written ="},
       {"a slot beyond the cache", "pages.cuh", " && slot < num_pages * page_size", ""},
       {"slots of 32 bits", "pages.cuh", "slot >= 0 && slot <", "low < 0x80000000u && low <"},
       {"a position beyond the table", "kv_insert.cuh", "positions[i] < kv.num_positions", "true"},
       {"pages without gaps", "kv_insert.cuh", "kv.page_stride;\n  u8* row",
        "kv.page_size * 528;\n  u8* row"},
       {"rows without gaps", "kv_insert.cuh", "row * kv.x_stride", "row * 512"},
       {"the second row again", "kv_insert.cuh", "first + i * rows_at_once, kv.rows - 1",
        "first, kv.rows - 1"}});
}

TEST(WindowInsertOnSimulator, PlantedMistakesInTheOtherFormatsAreRejected) {
  reject("window_kv_insert", {{"format", 3}, {"norm", 0}},
         {{"a scale for the bf16", "kv_insert.cuh", "is_tail ? 0 : static_cast<u8>(q.scale)",
           "static_cast<u8>(q.scale)"},
          {"the bf16 lie behind 512 codes", "kv_insert.cuh",
           "row + first_rope_column + 2 * (column", "row + 64 + first_rope_column + 2 * (column"},
          {"16 bytes at an odd page", "kv_insert.cuh",
           "static_cast<u64>(kv.page_stride)) & 15) == 0", "u64{0}) & 15) == 0"},
          {"groups of 32", "kernel.cu", "format == F3 ? q8d : q8a", "q8a"}});
  reject("window_kv_insert", {{"format", 4}, {"norm", 0}},
         {{"rows that are not quantised", "kv_insert.cuh", "store_bf16x8(row + 2 * column, q.fake",
           "store_bf16x8(row + 2 * column, piece.pairs"}});
}

TEST(WindowInsertOnSimulator, PlantedMistakesInTheNormAreRejected) {
  reject("window_kv_insert", {{"format", 3}, {"norm", 1}},
         {{"half a row", "kv_insert.cuh", "squares[half] = sum_of_squares",
           "squares[half] = half == 0 ? 0.0f : sum_of_squares"},
          {"a pair is left out", "kv_insert.cuh", "x[1], x[2], x[3]", "x[1], x[2], 0"},
          {"the weights of the first half", "kv_insert.cuh", "weights[half].pairs",
           "weights[0].pairs"},
          {"a factor for 256 columns", "kv_insert.cuh", "norm_factor<kv_columns_of_row>",
           "norm_factor<kv_columns_of_row / 2>"},
          {"the same weights everywhere", "kv_insert.cuh", "kv.weight + column", "kv.weight"},
          {"no norm", "kernel.cu", "format, quantiser, has_norm", "format, quantiser, false"}});
}

TEST(CompressedInsertOnSimulator, PlantedMistakesAreRejected) {
  reject(
      "compressed_kv_insert", {{"format", 2}, {"ratio", 2}},
      {{"rotation by the last token", "kv_insert.cuh", " - positions[i] % ratio", ""},
       {"the odd element in the low bits", "quantise_group.cuh", "0x4602", "0x6420"},
       {"the sign of the next", "quantise_group.cuh", "0x5713", "0x7531"},
       {"halves one power too large", "quantise_group.cuh", "half, both_halves(0x4304)",
        "half, both_halves(0x4305)"},
       {"scales of Q4m", "kernel.cu", "? q8d : q4n", "? q8d : q4m"},
       {"a quotient beside a tie", "quantise_group.cuh", "low_bf16(magnitudes) * reciprocal",
        "low_bf16(magnitudes) * (1.01f * reciprocal)"},
       {"quotients beyond 6", "quantise_group.cuh", "both_halves(0x40c0)", "both_halves(0x40e0)"},
       {"a scale of infinity", "quantise_group.cuh", "quantiser == q4n ? 0x7f : 255", "0"}});
  reject("compressed_kv_insert", {{"format", 1}, {"ratio", 2}},
         {{"groups of 64", "kernel.cu", "format == F1 ? q8a", "format == F1 ? q8d"},
          {"rotation by the last token", "kv_insert.cuh", " - positions[i] % ratio", ""}});
}

TEST(IndexKeyInsertOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> of_both{
      {"no norm", "kernel.cu", "normalised(pieces[i].x, weights, factor_of_row(pieces[i].x, lane))",
       "pieces[i].x"},
      {"the norm of two rows", "kernel.cu", "sum_of_row<lanes_per_row>",
       "sum_of_row<2 * lanes_per_row>"},
      {"the first half rotates", "kernel.cu", "rotates = lane >= first_rope_lane",
       "rotates = lane < first_rope_lane"},
      {"rotation by the last token", "kernel.cu", " - positions[i] % ratio", ""},
      {"padded rows are written", "kernel.cu", "is_written = has_slot &&", "is_written ="}};
  reject("index_key_insert", {{"format", 5}, {"ratio", 2}}, of_both);
  reject("index_key_insert", {{"format", 6}, {"ratio", 2}},
         {{"groups of 32", "kernel.cu", "q4m : q8k", "q4m : q8a"},
          {"8 bytes at an odd page", "kernel.cu", "static_cast<u64>(args.cache_stride)) & 7) == 0",
           "u64{0}) & 7) == 0"},
          {"NaN as infinity", "kernel.cu", "q.scale == 255 ? fp32_nan : q.scale << 23",
           "q.scale << 23"}});
}

}  // namespace
}  // namespace kiln
