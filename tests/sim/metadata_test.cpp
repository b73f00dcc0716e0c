// The ops that make slots and bounds on the simulator: planted mistakes are found by verification.
#include "tests/sim/planted_mistakes.h"

namespace kiln {
namespace {

using templates::Sizes;

TEST(MetadataOnSimulator, MistakesOfTopkToSlotsAreRejected) {
  const std::vector<Mutant> mutants{
      {"columns beyond the table are read", "kernel.cu", "&& column < width", ""},
      {"requests that do not exist are followed", "kernel.cu", "&& request < args.num_requests",
       ""},
      {"padded rows count", "kernel.cu", "is_valid ? count : 0", "count"},
      {"padded rows are looked up", "kernel.cu",
       "is_valid && request >= 0 && request < "
       "args.num_requests",
       "true"},
      {"only entries above 0 count", "kernel.cu", "count += entries[i] >= 0;",
       "count += entries[i] > 0;"},
      {"the second batch is left out", "kernel.cu", "first += batch * threads_per_row",
       "first += 2 * batch * threads_per_row"},
      {"one warp's count is left out", "kernel.cu", "int i = 0; i < warps_per_row",
       "int i = 1; i < warps_per_row"},
  };
  expect_rejected("topk_to_slots", mutants, {{"K", 512}},
                  {{"threads_per_row", 64}, {"batch", 1}, {"rows_per_cta", 2}},
                  {"worked example of B13.1", "padded rows", "what does not exist", "odd strides"});
}

TEST(MetadataOnSimulator, MistakesOfWindowSlotsAreRejected) {
  const std::vector<Mutant> both{
      {"columns beyond the table are read", "kernel.cu", "&& first_page + page < width", ""},
      {"pages behind the window are read", "kernel.cu", "column + i < window_count &&", ""},
      {"padded rows count", "kernel.cu", "if (!is_valid) row.count = 0;", ""},
      {"requests that do not exist are followed", "kernel.cu", "&& request < args.num_requests",
       ""},
      {"all groups have one table", "kernel.cu", "group * args.block_table_stride0 +", ""},
      {"the first page is not whole", "kernel.cu", "start_in_page + static_cast<u32>(column + i)",
       "static_cast<u32>(column + i)"},
  };
  const std::vector<Mutant> causal{
      {"the row itself is left out", "kernel.cu", "last - start + 1;", "last - start;"},
      {"the window is one longer", "kernel.cu", "last - (window - 1)", "last - window"},
      {"replay starts anywhere", "kernel.cu", "args.replay_start != nullptr)",
       "args.replay_start == reinterpret_cast<const i32*>(1))"},
      {"positions below 0 have a window", "kernel.cu", "last < start ? 0 :", "false ? 0 :"},
  };
  const std::vector<Mutant> draft{
      {"the block is left out", "kernel.cu", "last = seq_len - 1;",
       "last = seq_len - query_len - 1;"},
      {"the window includes the row", "kernel.cu", "- query_len - window",
       "- query_len - window + 1"},
      {"long blocks leave the row", "kernel.cu", "min(count, args.slot_width)", "count"},
  };
  const Sizes causal_shape{{"window", 128}, {"form", 0}}, draft_shape{{"window", 128}, {"form", 1}};
  expect_rejected("window_slots", both, causal_shape, {},
                  {"padded rows", "three groups, odd strides", "what does not exist"});
  expect_rejected("window_slots", causal, causal_shape, {},
                  {"padded rows", "bounded replay", "positions that do not exist"});
  expect_rejected("window_slots", draft, draft_shape, {},
                  {"padded rows", "blocks longer than a row"});
}

TEST(MetadataOnSimulator, MistakesOfRaggedIndptrAreRejected) {
  const std::vector<Mutant> mutants{
      {"the CTA's first row counts twice", "kernel.cu", "row < first ?", "row <= first ?"},
      {"one warp's sum is left out", "kernel.cu", "lane < warps ?", "lane + 1 < warps ?"},
      {"the scan includes the row", "kernel.cu", "begin += behind - length;", "begin += behind;"},
      {"the last boundary is missing", "kernel.cu", "mine <= args.num_rows",
       "mine < args.num_rows"},
      {"indptr leaves indices", "kernel.cu", "static_cast<i32>(min(begin, args.capacity))",
       "static_cast<i32>(begin)"},
      {"indices are left", "kernel.cu",
       "min(__shfl_sync(all_lanes, length, row), args.capacity - to)",
       "__shfl_sync(all_lanes, length, row)"},
      {"lengths below 0 are taken", "kernel.cu", "max(static_cast<i64>(args.lens[t]), 0ll)",
       "static_cast<i64>(args.lens[t])"},
      {"the second batch is left out", "kernel.cu", "column += batch * warp_lanes",
       "column += 2 * batch * warp_lanes"},
  };
  expect_rejected("ragged_indptr", mutants, {}, {{"batch", 4}, {"rows_per_cta", 8}},
                  {"any lengths", "lengths below zero and beyond the width", "many short rows",
                   "more than indices has room for"});
}

TEST(MetadataOnSimulator, MistakesOfRaggedKeysAreRejected) {
  const std::vector<Mutant> mutants{
      {"one warp's sum is left out", "kernel.cu", "lane_id() < warps ?", "lane_id() + 1 < warps ?"},
      {"lengths are not divided", "kernel.cu", "max(seq_len, i64{0}) / ratio",
       "max(seq_len, i64{0})"},
      {"the slice's base is left out", "kernel.cu", "base = args.query_start_loc[0]", "base = 0"},
      {"the window is one longer", "kernel.cu", "window - 1", "window"},
      {"the row's own key is left out", "kernel.cu", "keys_of(position + 1)", "keys_of(position)"},
      {"padding has a request", "kernel.cu", "write_row(args, t, -1, -1, 0, 0)",
       "write_row(args, t, 0, 0, 0, 0)"},
      {"columns beyond the table are read", "kernel.cu", "&& column < args.table_width", ""},
      {"indices are left", "kernel.cu", "keys = min(keys, args.capacity - begin);", ""},
      {"long requests are cut", "kernel.cu", "first < keys; first += step",
       "first < keys; first += keys"},
  };
  expect_rejected("ragged_keys", mutants, {{"ratio", 2}}, {},
                  {"several requests, some empty", "many requests", "pages that do not exist",
                   "more keys than there is room for", "requests longer than max_keys"});
}

}  // namespace
}  // namespace kiln
