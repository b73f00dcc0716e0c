// Adds what the experts of each row have made of it, and the shared expert (ops.md B18.3).
//   y[t] = bf16(sum_i pairs[t, i] + shared[t])         in fp32, experts ascending
#include <algorithm>

#include "templates/op.h"

namespace kiln::templates {

extern const Op moe_combine;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kPiece = 8;

// Stored in problems as names; the numbers are constants of the kernel.
enum Result : int64_t { kBf16 = 0, kF32 = 1 };

int64_t pieces(const Sizes& s) { return s["H"] / kPiece; }

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]);
  const double hidden = static_cast<double>(s["H"]);
  const double top_k = static_cast<double>(s["K"]);
  const double shared = s["result"] == kBf16 ? 2 * hidden : 0;
  return Cost{.warm_read_bytes = rows * (top_k * (2 * hidden + 4) + shared),
              .write_bytes = rows * hidden * (s["result"] == kBf16 ? 2 : 4),
              .integer_operations = rows * hidden * top_k};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads", {32, 64, 128, 256}, "threads of a CTA; all work on one row"},
      {"pieces_per_thread", {1, 2, 4}, "times 8 columns that a thread adds up at once"},
  };
  space.rules = {
      {"a CTA would reach beyond the row",
       [](const Sizes& s, const Config& c, const Gpu&) {
         const int64_t of_cta = c["threads"] * c["pieces_per_thread"];
         return of_cta < 2 * pieces(s) || (c["threads"] == 32 && c["pieces_per_thread"] == 1);
       }},
  };
  return space;
}

Config default_config(const Sizes& s) {
  return {{"threads", pieces(s) > 64 ? 128 : 32}, {"pieces_per_thread", 1}};
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  const int64_t of_cta = c["threads"] * c["pieces_per_thread"];
  const int64_t parts = (pieces(s) + of_cta - 1) / of_cta;
  KernelLaunch kernel{.file = "kernel.cu", .entry = "moe_combine"};
  kernel.constants = {constant("hidden", s["H"]),
                      constant("top_k", s["K"]),
                      {"result_is_f32", "bool", s["result"] == kF32 ? "true" : "false"},
                      constant("threads", c["threads"]),
                      constant("pieces_per_thread", c["pieces_per_thread"]),
                      constant("parts", parts)};
  kernel.grid_x = {.scale = parts, .terms = {{.symbol = "T"}}};
  kernel.threads = static_cast<int>(c["threads"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double at_once = static_cast<double>(c["pieces_per_thread"]);
  const double top_k = static_cast<double>(s["K"]);
  return ModelHints{.bytes_in_flight_per_thread = 16 * at_once * std::min(top_k + 1, 9.0),
                    .instructions_per_thread = 60 + 14 * top_k + at_once * (top_k + 1) * 20,
                    .dependent_loads = 2 + (top_k - 1) / 8};
}

const ShapeCondition with_bf16{.symbol = "result", .values = {kBf16}};
const ShapeCondition with_f32{.symbol = "result", .values = {kF32}};

void check_fixed(const Sizes& s) {
  if (s["H"] % kPiece == 0) return;
  fail(Status::invalid_argument, "moe_combine: hidden_size is {}, but has to be a multiple of 8",
       s["H"]);
}

}  // namespace

const Op moe_combine{
    .name = "moe_combine",
    .version = 1,
    .summary = "Adds what the experts of each row have made of it, and the shared expert.",
    .doc =
        "  sum[t]   = 0 + pairs[t, i1] + pairs[t, i2] + ..    in fp32, one after the other\n"
        "  y[t]     = bf16(sum[t] + shared[t])                with result \"bf16\"\n"
        "  y_f32[t] = sum[t]                                  with result \"f32\"\n"
        "over the columns i of row t in ascending order of experts[t, i], of equal ones the first "
        "column first. A column adds nothing when its expert is negative, or, with an expert_map, "
        "beyond the map or negative there; whatever its row of pairs holds, it is not read. A row "
        "without any has sum 0. shared NULL: nothing is added.\n"
        "pairs holds results that the routing weights have multiplied (they enter before the down "
        "projection). With experts spread over ranks, every rank adds those that its expert_map "
        "names, the one of its moe_align; \"f32\" is for sums that are added over the ranks before "
        "the shared expert.\n"
        "The order does not depend on the kernels nor on the other rows.",
    .source = "ops.md B18.3, (f)11",
    .sizes =
        {
            stepped(fixed("K", "top_k", "experts of a row", 1, 32), "column"),
            fixed("H", "hidden_size", "columns of a row, a multiple of 8", 8, 16384),
            fixed("result", "result", "what is written", {{"bf16", kBf16}, {"f32", kF32}}),
            stepped(dynamic("T", "num_rows", "rows, padding included", 0, kMaxInt32 / 64), "row"),
            dynamic("E", "num_experts",
                    "entries of expert_map, that is the experts of all ranks (num_global_experts "
                    "of moe_align)",
                    0, kMaxInt32),
        },
    .args =
        {
            vectors(in("pairs", DType::bf16, "T K H", "result of each expert of each row"), 8),
            in("experts", DType::i32, "T K", "expert of each pair; negative: none"),
            optional(in("expert_map", DType::i32, "E",
                        "of each expert its number on this rank, negative: another rank's; NULL: "
                        "all are here")),
            only_in(with_bf16,
                    optional(vectors(
                        in("shared", DType::bf16, "T H", "result of the shared expert"), 8))),
            only_in(with_bf16, vectors(out("y", DType::bf16, "T H", "result"), 8)),
            only_in(with_f32, vectors(out("y_f32", DType::f32, "T H", "result"), 4)),
        },
    .buckets = {{"T", {1, 4, 16, 64, 256, 1024, 4096}}},
    .model_shapes =
        [](int) {
          return std::vector<Sizes>{{{"K", 6}, {"H", 5120}, {"result", kBf16}},
                                    {{"K", 6}, {"H", 5120}, {"result", kF32}},
                                    {{"K", 3}, {"H", 5120}, {"result", kBf16}}};
        },
    .check_fixed = check_fixed,
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
