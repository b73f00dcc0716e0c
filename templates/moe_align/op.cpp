// Sorts the pairs of row and expert by expert and pads the run of each expert to whole blocks, for
// grouped GEMMs (ops.md B18.1, bit-exact).
//   sorted_token_ids  the pairs of expert 0, padding, those of expert 1, padding ..
//   expert_ids        the expert of each block of sorted_token_ids
#include <algorithm>

#include "templates/op.h"

namespace kiln::templates {

extern const Op moe_align;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostRows = int64_t{1} << 25;  // times 32 pairs: all numbers fit an int32
constexpr int64_t kMostCtas = 256;               // whatever the number of rows
constexpr int64_t kMaxSmem = 48 << 10;

int64_t vectors(const Sizes& s) { return (s["E"] + 3) / 4; }

// As kernel.cu declares it: three numbers of an expert, the counts of its warps.
int64_t smem_bytes(const Sizes& s, const Config& c) {
  return s["E"] * (12 + c["threads"] / 32) + 4 * 32;
}

Cost cost(const Sizes& s) {
  const double pairs = static_cast<double>(s["T"]) * static_cast<double>(s["K"]);
  const double entries = pairs + static_cast<double>(s["E"]) * static_cast<double>(s["block"] - 1);
  return Cost{.warm_read_bytes = 4 * pairs,
              .write_bytes = 4 * (entries + entries / static_cast<double>(s["block"]) + 1),
              .integer_operations = 80 * pairs};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads", {128, 256, 512}, "threads of a CTA"},
      {"rows_per_cta", {8, 16, 32, 64, 128, 256}, "rows whose pairs a CTA places"},
      {"more_ctas", {1, 8, 32}, "CTAs beyond those of the rows; they share all work"},
      {"counted",
       {0, 1},
       "1: a kernel before counts the pairs of each CTA; 0: each CTA counts all of them"},
  };
  space.rules = {
      {"its shared memory would be beyond 48 KB",
       [](const Sizes& s, const Config& c, const Gpu&) { return smem_bytes(s, c) <= kMaxSmem; }},
      {"threads of a CTA would have no pair",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["threads"] == 128 || c["threads"] < 2 * c["rows_per_cta"] * s["K"];
       }},
  };
  return space;
}

Config default_config(const Sizes& s) {
  return {
      {"threads", s["K"] < 2 ? 128 : 256}, {"rows_per_cta", 128}, {"more_ctas", 8}, {"counted", 1}};
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  const bool is_counted = c["counted"] != 0;
  const std::vector<jit::Constant> constants{constant("experts", s["E"]),
                                             constant("top_k", s["K"]),
                                             constant("block", s["block"]),
                                             constant("threads", c["threads"]),
                                             {"is_counted", "bool", is_counted ? "true" : "false"}};
  const Extent grid{.offset = c["more_ctas"],
                    .terms = {{.symbol = "T", .divisor = c["rows_per_cta"], .cap = kMostCtas}}};
  LaunchPlan plan;
  if (is_counted) {
    KernelLaunch count{.file = "count.cu", .entry = "moe_align_count"};
    count.constants = constants;
    count.grid_x = grid;
    count.threads = static_cast<int>(c["threads"]);
    count.instructions_per_thread = 60;
    plan.kernels.push_back(std::move(count));
    // Of each CTA the pairs of each expert.
    const int64_t of_cta = 16 * vectors(s);
    plan.workspace_bytes = {.offset = grid.offset * of_cta, .scale = of_cta, .terms = grid.terms};
  }
  KernelLaunch align{.file = "kernel.cu", .entry = "moe_align"};
  align.constants = constants;
  align.grid_x = grid;
  align.threads = static_cast<int>(c["threads"]);
  plan.kernels.push_back(std::move(align));
  return plan;
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double threads = static_cast<double>(c["threads"]);
  const double pairs = static_cast<double>(s["T"] * s["K"]);
  const double ctas = static_cast<double>(
      c["more_ctas"] + std::min(kMostCtas, (s["T"] + c["rows_per_cta"] - 1) / c["rows_per_cta"]));
  const double counting =
      c["counted"] != 0 ? ctas * static_cast<double>(vectors(s)) / threads : pairs / threads;
  const double placing = pairs / ctas / threads;
  return ModelHints{.bytes_in_flight_per_thread = 32,
                    .instructions_per_thread = 300 + 12 * counting + 60 * placing,
                    .dependent_loads = 3 + counting / 8 + placing};
}

void check_fixed(const Sizes& s) {
  if (s["block"] % 8 == 0) return;
  fail(Status::invalid_argument, "moe_align: block_size is {}, but has to be a multiple of 8",
       s["block"]);
}

Extent in_blocks(const Sizes& s, int64_t scale) {
  return {.scale = scale, .terms = {{.symbol = "padded_pairs", .divisor = s["block"]}}};
}

Arg entries(Arg arg) {
  arg.align_bytes = 16;
  return arg;
}

}  // namespace

const Op moe_align{
    .name = "moe_align",
    .version = 1,
    .summary =
        "Sorts the pairs of row and expert by expert, the run of each padded to whole "
        "blocks, for the grouped GEMMs of the experts.",
    .doc =
        "Pair t * top_k + i is column i of row t of experts. Its expert is e = experts[t, i], "
        "with an expert_map e = expert_map[experts[t, i]], the number of the expert on this rank. "
        "A pair is skipped when experts[t, i] is negative or beyond the map, or e is outside 0 .. "
        "num_experts - 1. With n[e] pairs of expert e and r[e] = n[e] rounded up to block_size:\n"
        "  start[e]            = r[0] + .. + r[e - 1]\n"
        "  sorted_token_ids    from start[e] on the n[e] pairs of e in ascending order, then\n"
        "                      num_rows * top_k as padding up to start[e] + r[e]\n"
        "  expert_ids[b]       = e for the blocks b of start[e] .. start[e] + r[e] - 1\n"
        "  num_tokens_post_pad = the sum of all r[e]\n"
        "  expert_counts[e]    = n[e]\n"
        "Both lists have room for whatever is routed: num_rows * top_k + num_experts * "
        "(block_size - 1) entries, rounded up to whole blocks; kiln_tensor_bytes answers it. "
        "Behind num_tokens_post_pad "
        "sorted_token_ids holds num_rows * top_k and expert_ids -1, so that a kernel in a graph "
        "may look at all blocks. The order is that of a stable sort: it does not depend on the "
        "kernels, and no number is left to chance. num_rows 0 is legal.",
    .source = "ops.md B18.1, (f)11",
    .sizes =
        {
            fixed("E", "num_experts", "experts on this rank", 1, 1024),
            fixed("K", "top_k", "experts of a row", 1, 32),
            fixed("block", "block_size", "entries of a block, a multiple of 8", 16, 128),
            stepped(dynamic("T", "num_rows", "rows, padding included", 0, kMostRows), "row"),
            dynamic("G", "num_global_experts",
                    "entries of expert_map, that is the experts of all ranks: with a map of 0 "
                    "entries every pair is skipped, without a map it is not read",
                    0, kMaxInt32),
            derived("padded_pairs", "entry",
                    [](const Sizes& s) { return s["T"] * s["K"] + s["E"] * (s["block"] - 1); }),
            derived("entries", "entry", [](const Sizes& s) { return in_blocks(s, s["block"]); }),
            derived("blocks", "block", [](const Sizes& s) { return in_blocks(s, 1); }),
            derived("1", "number", [](const Sizes&) { return int64_t{1}; }),
        },
    .args =
        {
            in("experts", DType::i32, "T K", "experts of each row; negative: none"),
            optional(in("expert_map", DType::i32, "G",
                        "of each expert its number on this rank, negative: another rank's; NULL: "
                        "they are the same")),
            entries(out("sorted_token_ids", DType::i32, "entries",
                        "pairs by expert, padded; room for num_rows * top_k + num_experts * "
                        "(block_size - 1), rounded up to block_size")),
            out("expert_ids", DType::i32, "blocks",
                "expert of each block; room for sorted_token_ids / block_size; -1: none"),
            out("num_tokens_post_pad", DType::i32, "1", "entries of all runs, padding included"),
            optional(out("expert_counts", DType::i32, "E", "pairs of each expert")),
        },
    .buckets = {{"T", {1, 4, 16, 64, 256, 1024, 4096}}},
    .has_workspace = true,
    .model_shapes =
        [](int) {
          return std::vector<Sizes>{{{"E", 384}, {"K", 6}, {"block", 16}},
                                    {{"E", 384}, {"K", 6}, {"block", 64}},
                                    {{"E", 128}, {"K", 3}, {"block", 16}}};
        },
    .check_fixed = check_fixed,
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
