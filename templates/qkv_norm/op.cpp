// The two norms of a projected row [q | kv], and Q8a of the first (ops.md B7).
//   qr = rms_norm(qkv[:, :q_columns], q_weight);  kv = rms_norm(qkv[:, q_columns:], kv_weight)
#include <algorithm>

#include "templates/op.h"
#include "templates/op_norm.h"

namespace kiln::templates {

extern const Op qkv_norm;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostColumns = 8192;
constexpr int64_t kGroup = 32;  // that share a scale
constexpr int64_t kMostPieces = 8;
constexpr int64_t kWarp = 32;

enum QrFormat : int64_t { kBf16 = 0, kCodes = 1, kBoth = 2 };

// Threads that share the kv part of a row.
int64_t threads_of_kv(const Config& c) {
  return c["kv_threads"] == 0 ? c["q_threads"] : c["kv_threads"];
}

int64_t block_threads(const Config& c) {
  return (c["q_threads"] + c["kv_threads"]) * c["rows_per_cta"];
}

void check_fixed(const Sizes& s) {
  if (s["Q"] % kGroup != 0) {
    fail(Status::invalid_argument, "qkv_norm: \"q_columns\" must be a multiple of {}, but is {}",
         kGroup, s["Q"]);
  }
  if (s["V"] % kNormPiece != 0) {
    fail(Status::invalid_argument, "qkv_norm: \"kv_columns\" must be a multiple of {}, but is {}",
         kNormPiece, s["V"]);
  }
}

std::vector<Sizes> model_shapes(int) {
  std::vector<Sizes> shapes;
  for (const int64_t format : {kBf16, kCodes, kBoth})
    shapes.push_back({{"Q", 1280}, {"V", 512}, {"qr_format", format}});
  return shapes;
}

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]);
  const double q = static_cast<double>(s["Q"]), kv = static_cast<double>(s["V"]);
  const double of_q = (s["qr_format"] != kCodes ? 2 * q : 0) +
                      (s["qr_format"] != kBf16 ? q + q / static_cast<double>(kGroup) : 0);
  return Cost{.warm_read_bytes = 2 * (rows + 1) * (q + kv),
              .write_bytes = rows * (of_q + 2 * kv),
              .integer_operations = rows * (q + kv) * 6};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"q_threads", {32, 64, 128, 256}, "threads that share the q part of a row"},
      {"kv_threads",
       {0, 16, 32, 64, 128},
       "threads that share the kv part of a row; 0: those of the q part take it too"},
      {"rows_per_cta", {1, 2, 4, 8}, "rows that one CTA takes"},
      {"rows_in_turn", {1, 2, 4}, "rows that a thread takes one after another"},
      {"early_weights",
       {0, 1},
       "1: read the weights together with the row; 0: each piece before its product"},
  };
  space.rules = {
      {"a CTA would have more than 512 threads",
       [](const Sizes&, const Config& c, const Gpu&) { return block_threads(c) <= 512; }},
      {"the last warp of a CTA would not be whole",
       [](const Sizes&, const Config& c, const Gpu&) {
         return c["kv_threads"] * c["rows_per_cta"] % kWarp == 0;
       }},
      {"a thread would hold more than 8 pieces of a row",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return std::max(norm_pieces_per_thread(s["Q"], c["q_threads"]),
                         norm_pieces_per_thread(s["V"], threads_of_kv(c))) <= kMostPieces;
       }},
      {"several warps would share both parts of a row",
       [](const Sizes&, const Config& c, const Gpu&) {
         return c["kv_threads"] != 0 || c["q_threads"] == kWarp;
       }},
      {"half of the threads of a part would have nothing",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["q_threads"] <= std::max<int64_t>(32, power_of_two_above(s["Q"] / kNormPiece)) &&
                c["kv_threads"] <= std::max<int64_t>(32, power_of_two_above(s["V"] / kNormPiece));
       }},
  };
  return space;
}

// At most five pieces a thread at the widths of the model.
Config default_config(const Sizes& s) {
  constexpr int64_t kPieces = 5;
  int64_t q_threads = 32, kv_threads = 32;
  while (norm_pieces_per_thread(s["Q"], q_threads) > kPieces && q_threads < 256) q_threads *= 2;
  while (norm_pieces_per_thread(s["V"], kv_threads) > kPieces && kv_threads < 128) kv_threads *= 2;
  return {{"q_threads", q_threads},
          {"kv_threads", kv_threads},
          {"rows_per_cta", q_threads + kv_threads <= 128 ? 2 : 1},
          {"rows_in_turn", 1},
          {"early_weights", 1}};
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "qkv_norm"};
  kernel.constants = {constant("q_columns", s["Q"]),
                      constant("kv_columns", s["V"]),
                      constant("qr_format", s["qr_format"]),
                      constant("q_threads", c["q_threads"]),
                      constant("kv_threads", c["kv_threads"]),
                      constant("rows_per_cta", c["rows_per_cta"]),
                      constant("rows_in_turn", c["rows_in_turn"]),
                      {"early_weights", "bool", c["early_weights"] != 0 ? "true" : "false"}};
  kernel.grid_x = {.terms = {{.symbol = "T", .divisor = c["rows_per_cta"] * c["rows_in_turn"]}}};
  kernel.threads = static_cast<int>(block_threads(c));
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = "pieces of 8, then halves"};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double q_pieces = static_cast<double>(norm_pieces_per_thread(s["Q"], c["q_threads"]));
  const double kv_pieces = static_cast<double>(norm_pieces_per_thread(s["V"], threads_of_kv(c)));
  const double of_q = 60 + q_pieces * (s["qr_format"] == kBf16 ? 49 : 135);
  const double of_kv = 60 + kv_pieces * 49;
  // Of a thread on the average of a CTA, where it takes one part.
  const double q_threads = static_cast<double>(c["q_threads"]);
  const double kv_threads = static_cast<double>(c["kv_threads"]);
  const double all = q_threads + kv_threads;
  const bool takes_both = c["kv_threads"] == 0;
  const double rows = static_cast<double>(c["rows_in_turn"]);
  const double pieces =
      takes_both ? q_pieces + kv_pieces : (q_pieces * q_threads + kv_pieces * kv_threads) / all;
  const double instructions =
      takes_both ? of_q + of_kv : (of_q * q_threads + of_kv * kv_threads) / all;
  return ModelHints{.bytes_in_flight_per_thread = 16 * pieces * std::min(rows, 2.0),
                    .instructions_per_thread = 30 + rows * instructions,
                    .dependent_loads = c["early_weights"] != 0 ? 1.0 : 2.0};
}

Arg with_codes(Arg arg, int64_t multiple) {
  arg = only_in({.symbol = "qr_format", .values = {kCodes, kBoth}}, std::move(arg));
  arg.align_bytes = multiple;
  arg.stride_multiple = multiple;
  return arg;
}

}  // namespace

const Op qkv_norm{
    .name = "qkv_norm",
    .version = 1,
    .summary =
        "The norms of the q and the kv part of projected rows, and the q part's FP8 codes and "
        "scales.",
    .doc =
        "For each row, with rms_norm and act_quant as these ops define them, to the bit:\n"
        "  qr = rms_norm(qkv[t, 0 .. q_columns - 1], q_weight)\n"
        "  kv = rms_norm(qkv[t, q_columns .. q_columns + kv_columns - 1], kv_weight)\n"
        "  qr_codes, qr_scales = act_quant(qr), format q8a\n"
        "qr_format says what of qr is written: \"codes_q8a\" is what linears with x_format "
        "\"codes_q8a\" take, so that neither they nor a pass in between quantise it.",
    .source = "ops.md B7, B3, B4",
    .sizes =
        {
            stepped(fixed("Q", "q_columns", "elements of the q part; a multiple of 32", 32,
                          kMostColumns),
                    "column"),
            stepped(fixed("V", "kv_columns", "elements of the kv part; a multiple of 8", 8,
                          kMostColumns / 2),
                    "column"),
            fixed("qr_format", "qr_format", "what is written of the q part",
                  {{"bf16", kBf16}, {"codes_q8a", kCodes}, {"bf16_and_codes_q8a", kBoth}}),
            stepped(dynamic("T", "num_rows", "rows", 0, kMaxInt32), "row"),
            derived("qkv_columns", "column", [](const Sizes& s) { return s["Q"] + s["V"]; }),
            derived("q_groups", "group", [](const Sizes& s) { return s["Q"] / kGroup; }),
        },
    .args =
        {
            vectors(in("qkv", DType::bf16, "T qkv_columns", "the projected rows"), 8),
            vectors(in("q_weight", DType::bf16, "Q", "a factor for each column of the q part"), 1),
            vectors(in("kv_weight", DType::bf16, "V", "a factor for each column of the kv part"),
                    1),
            only_in({.symbol = "qr_format", .values = {kBf16, kBoth}},
                    vectors(out("qr", DType::bf16, "T Q", "the norm of the q part"), 8)),
            with_codes(out("qr_codes", DType::u8, "T Q", "its E4M3 codes"), 8),
            with_codes(
                out("qr_scales", DType::u8, "T q_groups", "their UE8M0 scales, one for 32 columns"),
                1),
            vectors(out("kv", DType::bf16, "T V", "the norm of the kv part"), 8),
        },
    .buckets = {{"T", {1, 16, 256, 4096}}},
    .invariance = Op::Invariance::always,
    .model_shapes = model_shapes,
    .check_fixed = check_fixed,
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
