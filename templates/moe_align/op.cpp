// Sorts the pairs of tokens and experts by expert, each expert's padded to whole blocks (ops.md
// B18.1).
#include <algorithm>
#include <limits>

#include "templates/op.h"

namespace kiln::templates {

extern const Op moe_align;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostExperts = 1024;
constexpr int64_t kMostTopK = 32;
constexpr int64_t kWarp = 32;
constexpr int64_t kSharedBytes = 48 << 10;

int64_t shared_bytes(const Sizes& s, int64_t warps) { return 4 * (s["E"] * (warps + 2) + 1); }

std::vector<Sizes> model_shapes(int) {
  std::vector<Sizes> shapes;
  for (const int64_t block : {16, 32, 64, 128})
    shapes.push_back({{"E", 384}, {"top_k", 6}, {"block", block}});
  shapes.push_back({{"E", 128}, {"top_k", 3}, {"block", 16}});
  return shapes;
}

Cost cost(const Sizes& s) {
  const double pairs = static_cast<double>(s["T"]) * static_cast<double>(s["top_k"]);
  const double capacity = static_cast<double>(s["P"]);
  return Cost{.warm_read_bytes = 4 * pairs,
              .write_bytes = 4 * capacity * (1 + 1 / static_cast<double>(s["block"])),
              .integer_operations = 90 * pairs};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {{"warps", {4, 8, 16, 32}, "warps of the CTA, one range of pairs each"}};
  space.rules = {
      {"the counters would be more than 48 KB",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return shared_bytes(s, c["warps"]) <= kSharedBytes;
       }},
  };
  return space;
}

Config default_config(const Sizes& s) {
  int64_t warps = 16;
  while (shared_bytes(s, warps) > kSharedBytes) warps /= 2;
  return {{"warps", warps}};
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "moe_align"};
  kernel.constants = {constant("num_experts", s["E"]), constant("top_k", s["top_k"]),
                      constant("block_size", s["block"]), constant("warps", c["warps"])};
  kernel.grid_x = {.offset = 1, .scale = 0};
  kernel.threads = static_cast<int>(kWarp * c["warps"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double pairs = static_cast<double>(s["T"]) * static_cast<double>(s["top_k"]);
  const double of_lane = pairs / static_cast<double>(kWarp * c["warps"]);
  const double filled = static_cast<double>(s["P"]) / static_cast<double>(kWarp * c["warps"]);
  return ModelHints{.bytes_in_flight_per_thread = 16,
                    .instructions_per_thread = 300 + 90 * of_lane + 4 * filled,
                    .dependent_loads = 3};
}

// Whole blocks of the capacity; the last may be a part of one.
Extent blocks(const Sizes& fixed) {
  return {.terms = {{.symbol = "P", .divisor = fixed["block"]}}};
}

}  // namespace

const Op moe_align{
    .name = "moe_align",
    .version = 1,
    .summary =
        "Sorts the pairs of tokens and experts by expert, each expert's padded to whole blocks.",
    .doc =
        "Pair n = t * top_k + i stands for ids[t, i]. With expert_map it belongs to expert "
        "expert_map[ids[t, i]], without to ids[t, i]; where that, or the id, is negative or too "
        "large, it belongs to none and is left out: experts of other ranks, padding.\n"
        "  sorted_token_ids: for each expert from 0 on its pairs, ascending, then as many times\n"
        "    num_rows * top_k as make whole blocks of block_size; an expert without pairs has "
        "none\n"
        "  expert_ids: the expert of each block\n"
        "  num_tokens_post_pad[0]: entries of sorted_token_ids that these are\n"
        "Behind them sorted_token_ids holds num_rows * top_k and expert_ids -1, as far as capacity "
        "goes. capacity is enough with num_rows * top_k + num_experts * (block_size - 1), rounded "
        "up to whole blocks; of a smaller one the first entries are written, and "
        "num_tokens_post_pad says what is wanted. num_rows * top_k stays below 2^31.\n"
        "One CTA does it all, in one launch.",
    .source = "ops.md B18.1, (f)11",
    .sizes =
        {
            stepped(fixed("E", "num_experts", "experts of this rank", 1, kMostExperts), "expert"),
            stepped(fixed("top_k", "top_k", "experts of a token", 1, kMostTopK), "choice"),
            fixed("block", "block_size", "entries of a block", 1, 1024),
            stepped(dynamic("T", "num_rows", "rows (tokens), padding included", 0,
                            kMaxInt32 / kMostTopK),
                    "row"),
            dynamic("G", "num_global_experts", "entries of expert_map", 0, kMaxInt32),
            dynamic("P", "capacity", "entries of sorted_token_ids", 0, kMaxInt32),
            derived("blocks", "block", blocks),
            derived("1", "number", [](const Sizes&) { return int64_t{1}; }),
        },
    .args =
        {
            in("ids", DType::i32, "T top_k", "chosen experts; negative: none"),
            optional(in("expert_map", DType::i32, "G",
                        "expert of this rank for each expert; negative: of another")),
            out("sorted_token_ids", DType::i32, "P", "pairs by expert"),
            out("expert_ids", DType::i32, "blocks", "expert of each block"),
            out("num_tokens_post_pad", DType::i32, "1", "entries that belong to blocks"),
        },
    .buckets = {{"T", {1, 16, 256, 4096}}},
    .model_shapes = model_shapes,
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
