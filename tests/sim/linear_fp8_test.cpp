// linear_fp8 and pack_weights on the simulator: planted mistakes are found by verification; which
// kernels agree to the bit; what spoils what.
#include <cmath>
#include <functional>

#include "tests/sim/op_on_simulator.h"

namespace kiln {
namespace {

using templates::Case;
using templates::Config;
using templates::Sizes;
using tuner::Outcome;
using tuner::RunVerdict;

enum XFormat : int64_t { kBf16Q8a = 0, kCodesQ8a = 1, kBf16 = 2 };
enum WLayout : int64_t { kCheckpoint = 0, kPacked = 1 };
enum YFormat : int64_t { kYBf16 = 0, kYF32 = 1 };

Sizes shape(int64_t out_features, int64_t in_features, int64_t groups, int64_t x_format,
            int64_t w_layout, int64_t y_format = kYF32) {
  return {{"N", out_features},    {"K", in_features},     {"G", groups},
          {"x_format", x_format}, {"y_format", y_format}, {"w_layout", w_layout}};
}

Config stream(int64_t rows, int64_t columns, int64_t warps_along_depth, int64_t splits) {
  return {{"kernel", 0},
          {"rows", rows},
          {"columns", columns},
          {"warps_along_depth", warps_along_depth},
          {"splits", splits}};
}

Config tile(int64_t rows, int64_t columns, int64_t splits, int64_t warps_along_depth = 1) {
  return {{"kernel", 1},
          {"rows", rows},
          {"columns", columns},
          {"warps_along_depth", warps_along_depth},
          {"splits", splits}};
}

class LinearFp8OnSimulator : public OpOnSimulator {
 protected:
  LinearFp8OnSimulator() : OpOnSimulator("linear_fp8") {}

  std::vector<uint32_t> bits_of(const Case& c, const Config& config) {
    const auto prepared_case = prepared(c);
    const RunVerdict verdict = prepared_case->check(plan(c.sizes, config));
    EXPECT_EQ(verdict.outcome, Outcome::passed)
        << c.name << " " << templates::config_json(config).dump() << ": " << verdict.detail;
    return elements<uint32_t>(*prepared_case, "y_f32", c.sizes["M"] * c.sizes["G"] * c.sizes["N"]);
  }

  void expect_right(const Sizes& fixed_sizes, const std::vector<Config>& configs) {
    std::vector<std::unique_ptr<tuner::PreparedCase>> cases;
    for (const char* name :
         {"one row", "17 rows", "between two codes", "wide scales", "padded strides"})
      cases.push_back(prepared(case_named(name, fixed_sizes)));
    for (const Config& config : configs) {
      const tuner::RunnablePlan candidate = plan(fixed_sizes, config);
      for (const auto& c : cases) {
        const RunVerdict verdict = c->check(candidate);
        EXPECT_EQ(verdict.outcome, Outcome::passed)
            << templates::shape_json(op(), fixed_sizes).dump() << " "
            << templates::config_json(config).dump() << ", " << c->call().name << ": "
            << verdict.detail;
      }
    }
  }

  void expect_rejected(const Sizes& fixed_sizes, const Config& config,
                       const std::vector<Mutant>& mutants) {
    std::vector<std::unique_ptr<tuner::PreparedCase>> cases;
    for (const char* name : {"17 rows", "wide scales", "one large number in a group"})
      cases.push_back(prepared(case_named(name, fixed_sizes)));
    const auto verdict_of = [&](const tuner::RunnablePlan& candidate) {
      RunVerdict verdict;
      for (const auto& c : cases) {
        verdict = c->check(candidate);
        if (verdict.outcome != Outcome::passed) break;
      }
      return verdict;
    };
    const RunVerdict right = verdict_of(plan(fixed_sizes, config));
    EXPECT_EQ(right.outcome, Outcome::passed) << right.detail;
    for (const Mutant& mutant : mutants) {
      const RunVerdict verdict = verdict_of(plan(fixed_sizes, config, &mutant));
      EXPECT_EQ(verdict.outcome, Outcome::wrong) << mutant.name << ": " << verdict.detail;
    }
  }
};

TEST_F(LinearFp8OnSimulator, MistakesOfTheKernelForFewRowsAreRejected) {
  const std::vector<Mutant> mutants{
      {"the neighbour's scale", "stream.cu", "2 * j + lane_id() % 4 / 2",
       "2 * j + 1 - lane_id() % 4 / 2"},
      {"the last chunk of a part is dropped", "stream.cu",
       "if (parts_are_equal || j < part_chunks - 1 || j < own_chunks) {",
       "if (j < part_chunks - 1) {"},
      {"rows are swapped", "stream.cu", "const int row = 8 * r + 2 * q + i % 2;",
       "const int row = 8 * r + 2 * q + 1 - i % 2;"},
      {"the other group's weights", "stream.cu", "static_cast<i64>(group) * weight_group_bytes",
       "static_cast<i64>(group ^ 1) * weight_group_bytes"},
      {"the other group's scales", "stream.cu",
       "static_cast<i64>(group) * (columns / 32) * depth_groups",
       "static_cast<i64>(group ^ 1) * (columns / 32) * depth_groups"},
      {"the first block of rows again", "stream.cu", "min(first_row + row, args.num_rows - 1)",
       "min(row, args.num_rows - 1)"},
      {"half of a scale above 2^7", "stream.cu", "if (__any_sync(all_lanes, own_scales >",
       "if (false && __any_sync(all_lanes, own_scales >"},
      {"packed weights are off by one bit", "fragments.cuh", "((word >> 4) & 0x07000700u)",
       "((word >> 3) & 0x07000700u)"},
      {"the wrong split is added", "sum_splits.cu", "partial(args, s, row, group)",
       "partial(args, s == 1 ? 0 : s, row, group)"},
      {"a split is left out", "sum_splits.cu", "for (int s = 1; s < splits; ++s)",
       "for (int s = 1; s < splits - 1; ++s)"},
      {"a scale for half a group of x", "rows.cuh",
       "max_or_nan_bf16x2(largest[i], __shfl_xor_sync(all_lanes, largest[i], 1))", "largest[i]"},
  };
  expect_rejected(shape(96, 544, 2, kBf16Q8a, kPacked), stream(8, 32, 4, 2), mutants);
}

TEST_F(LinearFp8OnSimulator, MistakesOfTheKernelForManyRowsAreRejected) {
  const std::vector<Mutant> mutants{
      {"the neighbour's scale", "tile.cu", "2 * chunk_of_batch + (lane_id() % 4) / 2",
       "2 * chunk_of_batch + 1 - (lane_id() % 4) / 2"},
      {"the scales of the neighbouring columns", "tile.cu", ": block_ + min(b, blocks_left_)",
       ": (block_ + min(b, blocks_left_)) ^ (blocks_left_ > 0)"},
      {"the last chunk of a part is dropped", "tile.cu", "chunk < run_chunks; ++chunk",
       "chunk < run_chunks - 1; ++chunk"},
      {"rows are swapped", "tiles.cuh", "8 * block + lane_id() / 4;",
       "8 * block + (lane_id() / 4 ^ 1);"},
      {"the other group's weights", "tile.cu", "static_cast<i64>(tile.group) * weight_group_bytes",
       "static_cast<i64>(tile.group ^ 1) * weight_group_bytes"},
      {"half of a scale above 2^7", "tile.cu", "if constexpr (is_wide)\n      pairs",
       "if constexpr (false)\n      pairs"},
      {"the wrong split is added", "tile.cu", "(1 - tile.split) * split_step",
       "tile.split * split_step"},
      {"a scale for half a group of x", "prepare.cu", "__shfl_xor_sync(all_lanes, largest, 2)",
       "__shfl_xor_sync(all_lanes, largest, 1)"},
      {"paired order of weights alone", "fragments.cuh",
       "if constexpr (order == natural) return {first, second};", "return {first, second};"},
  };
  expect_rejected(shape(96, 544, 2, kBf16Q8a, kCheckpoint), tile(32, 128, 2), mutants);
}

TEST_F(LinearFp8OnSimulator, MistakesOfSumsOfTilesAreRejected) {
  const std::vector<Mutant> mutants{
      {"the wrong split is added", "sum_tiles.cu", "from[s * split_step",
       "from[(s == 1 ? 0 : s) * split_step"},
      {"a split is left out", "sum_tiles.cu", "for (int s = 1; s < splits; ++s) sums",
       "for (int s = 1; s < splits - 1; ++s) sums"},
      {"the other block of rows", "sum_tiles.cu", "(warp * own_fours + block)",
       "(warp * own_fours + (block ^ 1))"},
      {"the other run's chunks", "tile.cu", "ChunkCopies copies(args, tile, run,",
       "ChunkCopies copies(args, tile, run ^ 1,"},
      {"the other run's share", "tile.cu", "const int to = i / own_row_blocks;",
       "const int to = warps_along_depth - 1 - i / own_row_blocks;"},
  };
  expect_rejected(shape(96, 544, 1, kBf16Q8a, kPacked), tile(64, 128, 3, 2), mutants);
}

// wo_a: x comes as it is, from the caller.
TEST_F(LinearFp8OnSimulator, MistakesOfGroupsAreRejected) {
  const std::vector<Mutant> mutants{
      {"the other group's x", "tile.cu", "args.x + group * args.x_stride1",
       "args.x + (group ^ 1) * args.x_stride1"},
      {"the other group's y", "problem.cuh", "args.y_f32 + row * args.y_f32_stride0 + group *",
       "args.y_f32 + row * args.y_f32_stride0 + (group ^ 1) *"},
  };
  expect_rejected(shape(96, 160, 2, kBf16, kPacked), tile(64, 128, 1), mutants);
}

TEST_F(LinearFp8OnSimulator, EveryTileIsRight) {
  const std::vector<Config> configs{tile(32, 128, 3),  tile(64, 128, 1, 2), tile(64, 160, 1, 2),
                                    tile(128, 128, 2), tile(128, 256, 1),   tile(64, 128, 8),
                                    tile(160, 128, 1), tile(128, 128, 1, 2)};
  const std::vector<Sizes> shapes = kit().further_shapes();
  for (size_t s = 0; s < shapes.size(); ++s)
    expect_right(shapes[s], {configs[s % configs.size()], configs[(s + 3) % configs.size()]});
}

TEST_F(LinearFp8OnSimulator, EveryStreamIsRight) {
  expect_right(shape(96, 1056, 1, kBf16Q8a, kCheckpoint),
               {stream(1, 16, 8, 1), stream(4, 32, 4, 1), stream(16, 16, 8, 2),
                stream(32, 16, 9, 1), stream(8, 16, 16, 1)});
  expect_right(shape(160, 1088, 2, kCodesQ8a, kPacked),
               {stream(1, 32, 8, 1), stream(4, 16, 16, 1), stream(16, 32, 4, 3)});
  expect_right(shape(64, 576, 1, kBf16, kPacked), {stream(1, 16, 9, 1), stream(16, 16, 8, 1)});
}

TEST_F(LinearFp8OnSimulator, KernelsOfOneSignatureGiveTheSameBits) {
  for (const auto& [x_format, w_layout] : {std::pair{kBf16Q8a, kPacked},
                                           {kBf16Q8a, kCheckpoint},
                                           {kCodesQ8a, kCheckpoint},
                                           {kBf16, kPacked}}) {
    const Sizes fixed_sizes = shape(96, 544, 1, x_format, w_layout);
    const Case c = case_named("17 rows", fixed_sizes);
    const auto signature = [&](const Config& config) {
      return op().plan(fixed_sizes, config, gpu()).reduction_signature;
    };
    const std::vector<uint32_t> bits = bits_of(c, tile(64, 128, 4));
    for (const Config& config : {stream(8, 32, 4, 1), stream(16, 16, 4, 1), stream(1, 32, 4, 1),
                                 stream(8, 32, 1, 4), tile(32, 128, 4)}) {
      ASSERT_EQ(signature(config), signature(tile(64, 128, 4)));
      EXPECT_EQ(bits_of(c, config), bits) << templates::config_json(config).dump();
    }
    const Config other = stream(8, 32, 2, 2);  // adds two sums of two parts
    EXPECT_NE(signature(other), signature(tile(64, 128, 4)));
    EXPECT_NE(bits_of(c, other), bits);
  }
}

TEST_F(LinearFp8OnSimulator, ARowAloneEqualsTheRowAmongMany) {
  const Sizes fixed_sizes = shape(96, 160, 2, kBf16Q8a, kPacked);
  const Case together = case_named("70 rows", fixed_sizes);
  constexpr int64_t kOfRow = 2 * 96;
  for (const Config& config : {stream(8, 32, 2, 1), tile(32, 128, 2)}) {
    const std::vector<uint32_t> all = bits_of(together, config);
    for (const int64_t row : {0, 9, 63, 69}) {
      Case alone = together;
      alone.sizes.set("M", 1);
      alone.knobs.set("first_row", row);
      const auto begin = all.begin() + row * kOfRow;
      EXPECT_EQ(bits_of(alone, config), std::vector<uint32_t>(begin, begin + kOfRow))
          << "row " << row << " " << templates::config_json(config).dump();
    }
  }
}

// Undefined for the columns of its block; the others do not notice.
TEST_F(LinearFp8OnSimulator, AScaleOf255SpoilsOnlyItsColumns) {
  for (const Config& config : {stream(8, 32, 2, 1), tile(32, 128, 2)}) {
    Case c = case_named("8 rows", shape(96, 160, 1, kBf16Q8a, kPacked));
    const std::vector<uint32_t> sound = bits_of(c, config);
    c.knobs.set("scales", 3);
    const std::vector<uint32_t> spoilt = bits_of(c, config);
    for (size_t i = 0; i < sound.size(); ++i) {
      if (i % 96 < 32) continue;
      ASSERT_EQ(sound[i], spoilt[i]) << "column " << i % 96;
    }
  }
}

class PackWeightsOnSimulator : public OpOnSimulator {
 protected:
  PackWeightsOnSimulator() : OpOnSimulator("pack_weights") {}
};

TEST_F(PackWeightsOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> mutants{
      {"a column to the right", "kernel.cu", "column < args.in_features)\n    codes",
       "column + 16 < args.in_features)\n    codes"},
      {"the next lane's columns", "kernel.cu", "lane % 4 * 16;", "(lane + 1) % 4 * 16;"},
      {"the next row", "kernel.cu", "block_row * block_rows + lane / 4)",
       "block_row * block_rows + (lane / 4 + 1) % 8)"},
      {"codes a and b trade places", "kernel.cu", "codes & 0xff, codes >> 16 & 0xff",
       "codes >> 16 & 0xff, codes & 0xff"},
      {"a bit lower", "kernel.cu", "(b & 0x70) << 8", "(b & 0x70) << 7"},
  };
  const Sizes fixed_sizes{{"format", 0}};
  const Config config = op().default_config(fixed_sizes);
  const auto c = prepared(case_named("half a block at the end of a row", fixed_sizes));
  EXPECT_EQ(c->check(plan(fixed_sizes, config)).outcome, Outcome::passed);
  for (const Mutant& mutant : mutants) {
    const RunVerdict verdict = c->check(plan(fixed_sizes, config, &mutant));
    EXPECT_EQ(verdict.outcome, Outcome::wrong) << mutant.name << ": " << verdict.detail;
  }
}

}  // namespace
}  // namespace kiln
