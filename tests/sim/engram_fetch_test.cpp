// engram_fetch on the simulator: a row of a table on the host is read by one of the pairs that name
// it, whatever the workspace held; planted mistakes are found by verification.
#include <map>
#include <optional>

#include "tests/sim/planted_mistakes.h"
#include "tuner/tensors.h"

namespace kiln {
namespace {

using templates::Case;
using templates::Config;
using templates::Sizes;

constexpr int64_t kBf16 = 0, kCodes = 1, kDevice = 0, kHost = 1;

Sizes shape(int64_t heads, int64_t columns, int64_t source, int64_t format) {
  return {{"H", heads}, {"K", columns}, {"source", source}, {"x_format", format}};
}

class EngramFetchOnSimulator : public OpOnSimulator {
 protected:
  EngramFetchOnSimulator() : OpOnSimulator("engram_fetch") {}

  std::vector<int64_t> named_rows(const Case& c) const {
    std::vector<int64_t> rows;
    for (const tuner::TensorPlan& tensor : tuner::tensor_plans(op(), c)) {
      if (tensor.arg->name != "rows") continue;
      const std::vector<std::byte> bytes = tuner::host_contents(kit(), c, tensor);
      for (size_t at = 0; at < bytes.size(); at += 4) {
        int32_t row = 0;
        std::memcpy(&row, &bytes[at], sizeof(row));
        rows.push_back(row - c.sizes["first_row"]);
      }
    }
    return rows;
  }

  // How often each row of the table is read: without the kernel that copies (of a scan, with
  // no_copies), x has what was read from the table and nothing else. Rows of codes, as the truth of
  // a code is never poison by chance for a whole row.
  std::map<int64_t, int> reads_of_rows(const Case& c, const Config& config,
                                       const Mutant* mutant = nullptr) {
    tuner::RunnablePlan reading = plan(c.sizes, config, mutant);
    if (config["scan"] == 0) reading.kernels.pop_back();
    const auto run = prepared(c);
    run->check(reading);
    const std::vector<int64_t> rows = named_rows(c);
    const int64_t heads = c.sizes["H"], columns = c.sizes["K"];
    const auto codes =
        elements<uint8_t>(*run, "x_codes", static_cast<int64_t>(rows.size()) * columns);
    std::map<int64_t, int> reads;
    for (size_t pair = 0; pair < rows.size(); ++pair) {
      if (rows[pair] < 0 || rows[pair] >= c.sizes["R"]) continue;
      const auto number = static_cast<int64_t>(pair);
      bool is_read = true;
      for (int64_t d = 0; d < columns && is_read; ++d) {
        const std::vector<int64_t> index{number / heads, number % heads * columns + d};
        is_read = kit().expected(c, *op().find_arg("x_codes"), index) ==
                  codes[static_cast<size_t>(number * columns + d)];
      }
      reads[rows[pair]] += is_read ? 1 : 0;
    }
    return reads;
  }
};

const Mutant no_copies{"nothing is copied", "scan.cu", "row >= 0 ? pairs : 0", "0"};

TEST_F(EngramFetchOnSimulator, RowOnTheHostIsReadOnce) {
  const Sizes fixed = shape(13, 96, kHost, kCodes);  // more pairs than a scan looks at at once
  const Config config = op().default_config(fixed);
  const Config scan = config.merged({{"scan", 1}, {"pairs_per_warp", 1}, {"loads", 1}});
  for (const char* name : {"33 rows", "29 rows of a large table", "one row", "rows that meet"}) {
    const Case c = case_named(name, fixed);
    const std::map<int64_t, int> reads = reads_of_rows(c, config);
    EXPECT_FALSE(reads.empty());
    for (const auto& [row, times] : reads) EXPECT_EQ(times, 1) << name << ", row " << row;
    EXPECT_EQ(reads_of_rows(c, scan, &no_copies), reads) << name;
  }
}

TEST_F(EngramFetchOnSimulator, CountOfReadsSeesAClaimThatDoesNotHold) {
  const Sizes fixed = shape(7, 96, kHost, kCodes);
  const Config config = op().default_config(fixed);
  const Case c = case_named("rows that meet", fixed);
  const std::vector<Mutant> mutants{
      {"everyone reads", "kernel.cu", "if (original >= 0) row = skipped;", ""},
      {"claims begin anywhere", "kernel.cu", "static_cast<u32>(row) * 0x9e3779b1u",
       "(static_cast<u32>(row) + pair) * 0x9e3779b1u"},
      {"nobody reads", "kernel.cu", "if (original >= 0) row = skipped;", "row = skipped;"},
      {"eight probes", "kernel.cu", "probes < capacity", "probes < 8"},
  };
  for (const Mutant& mutant : mutants) {
    int wrong = 0;
    for (const auto& [row, times] : reads_of_rows(c, config, &mutant)) wrong += times != 1 ? 1 : 0;
    EXPECT_GT(wrong, 0) << mutant.name;
  }
}

TEST(EngramFetchMistakes, L77OfDuplicateAndForeignRowsAreRejected) {
  const std::vector<Mutant> mutants{
      {"claims of the last call", "clear.cu", "if (pair >= pairs_of(args)) return;", "return;"},
      {"half of the claims are cleared", "clear.cu", "pair >= pairs_of(args)",
       "2 * pair >= pairs_of(args)"},
      {"more than the claims are cleared", "clear.cu", "pair >= pairs_of(args)", "false"},
      {"claims are told apart by 3 bits of the row", "kernel.cu", "other >> 32 == row",
       "(other >> 32 & 7) == (row & 7)"},
      {"any claim is the row's", "kernel.cu", "other >> 32 == row", "other >> 32 == row || true"},
      {"claims do not wrap", "kernel.cu", "place + 1 == capacity ? 0 : place + 1", "place + 1"},
      {"the copy of the pair behind", "kernel.cu", "originals_of(args)[pair] = original",
       "originals_of(args)[pair] = original < 0 ? -1 : original + 1"},
      {"copies are not marked", "kernel.cu", "originals_of(args)[pair] = original",
       "originals_of(args)[pair] = -1"},
      {"pair 0 is no original", "copy.cu", "original < 0", "original <= 0"},
      {"warps whose first pair is no copy copy nothing", "copy.cu",
       "!__any_sync(all_lanes, original != skipped)",
       "__shfl_sync(all_lanes, original, 0) == skipped"},
      {"the copy of another head", "pieces.cuh", "head * columns + piece", "piece"},
  };
  const std::vector<std::string> cases{"33 rows", "29 rows of a large table",
                                       "3 rows of a large table", "one row", "padded strides"};
  expect_rejected("engram_fetch", mutants, shape(7, 96, kHost, kBf16),
                  {{"threads", 64}, {"pairs_per_warp", 8}, {"loads", 2}}, cases);
  const std::vector<Mutant> of_codes{
      {"scales are not copied", "copy.cu", "piece % pieces_per_group == 0", "false"},
      {"the scale of the group behind", "pieces.cuh", "piece / pieces_per_group;",
       "(piece + 1) / pieces_per_group;"},
  };
  expect_rejected("engram_fetch", of_codes, shape(7, 96, kHost, kCodes), {}, cases);
}

TEST(EngramFetchMistakes, OfAScanAreRejected) {
  const std::vector<Mutant> mutants{
      {"everyone reads and writes all", "scan.cu", "row >= 0 && is_named_before(",
       "false && is_named_before("},
      {"every other look ahead", "scan.cu", "first < end; first += warp_lanes",
       "first < end; first += 2 * warp_lanes"},
      {"one copy a look", "scan.cu", "same &= same - 1", "same = 0"},
      {"pairs beyond the end", "scan.cu", "pair < end &&", "true &&"},
      {"the row of nobody is copied", "scan.cu", "row >= 0 ? pairs : 0", "pairs"},
      {"a piece a lane", "scan.cu", "i < pieces_of_lane; ++i", "i < 1; ++i"},
  };
  // A row of the table is more than a warp loads at once.
  expect_rejected("engram_fetch", mutants, shape(24, 288, kHost, kBf16),
                  {{"threads", 64}, {"pairs_per_warp", 1}, {"loads", 1}, {"scan", 1}},
                  {"33 rows", "one row", "none in the table", "padded strides"});
}

TEST(EngramFetchMistakes, OfATableOnTheDeviceAreRejected) {
  const std::vector<Mutant> mutants{
      {"rows count from 0", "table.cuh", " - args.first_row", ""},
      {"rows wrap", "table.cuh", "const i64 row = args.rows", "const i32 row = args.rows"},
      {"one row more", "table.cuh", "row < args.num_table_rows", "row <= args.num_table_rows"},
      {"a row is lost", "table.cuh", "row >= 0 && row <", "row > 0 && row <"},
      {"negative rows are row 0", "table.cuh", "if (row < 0) return {{0, 0, 0, 0}, 0};",
       "if (row < 0) row = 0;"},
      {"what has no row is left as it was", "table.cuh", "no_row = -1", "no_row = skipped"},
      {"the scale of the row behind", "table.cuh", "args.table_scales + row *",
       "args.table_scales + (row + 1) *"},
      {"the scale of the first group", "table.cuh", "piece / pieces_per_group", "0"},
      {"tables are dense", "table.cuh", "row * args.table_stride", "row * columns"},
      {"scales are dense", "table.cuh", "row * args.table_scales_stride",
       "row * (columns / group_columns)"},
      {"rows are dense", "table.cuh", "t * args.rows_stride", "t * num_heads"},
      {"codes change places", "table.cuh", "{low.x, low.y, high.x, high.y}",
       "{high.x, high.y, low.x, low.y}"},
      {"the last pair is missing", "pieces.cuh", "pairs_of(args)) - begin",
       "pairs_of(args)) - begin - 1"},
  };
  expect_rejected("engram_fetch", mutants, shape(5, 96, kDevice, kBf16),
                  {{"threads", 64}, {"pairs_per_warp", 8}, {"loads", 2}},
                  {"33 rows", "a part of the table", "padded strides", "none in the table",
                   "rows that would wrap"});
  const std::vector<Mutant> of_many_pairs{
      {"steps beyond the last begin again", "pieces.cuh", "place >= pairs_per_warp", "false"},
  };
  expect_rejected("engram_fetch", of_many_pairs, shape(5, 96, kDevice, kBf16),
                  {{"threads", 64}, {"pairs_per_warp", 32}, {"loads", 8}}, {"33 rows"});
}

}  // namespace
}  // namespace kiln
