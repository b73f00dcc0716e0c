// Rotates and quantises the indexer's queries and scales its head weights (ops.md B11, bit-exact).
//   codes, scales = quantised(rope(q[t, h], positions[t]))       weights[t, h] = w[t, h] * 2^-6
#include <algorithm>
#include <limits>

#include "templates/op.h"

namespace kiln::templates {

extern const Op index_query;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kLanesPerHead = 8;  // of twice 8 elements

// Stored in problems as names; the numbers are constants of the kernel.
enum Output : int64_t { kQ4m = 0, kQ8k = 1, kBf16 = 2 };

int64_t code_bytes(const Sizes& s) { return s["output"] == kQ8k ? 128 : 64; }

Cost cost(const Sizes& s) {
  const double heads = static_cast<double>(s["T"]) * static_cast<double>(s["H"]);
  const double written = s["output"] == kBf16 ? 256 : s["output"] == kQ8k ? 128 : 68;
  return Cost{.warm_read_bytes = heads * (256 + 2) + static_cast<double>(s["T"]) * (256 + 4),
              .write_bytes = heads * (written + 4),
              .integer_operations = heads * 128 * 5};
}

int64_t head_groups(const Sizes& s, int64_t heads_per_thread) {
  return (s["H"] + heads_per_thread - 1) / heads_per_thread;
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads", {32, 64, 128, 256}, "threads of a CTA; 8 to a head"},
      {"heads_per_thread", {1, 2, 4, 8}, "heads of a thread, one after the other"},
  };
  space.rules = {
      {"a thread would have more heads than there are",
       [](const Sizes& s, const Config& c, const Gpu&) { return c["heads_per_thread"] <= s["H"]; }},
  };
  return space;
}

Config default_config(const Sizes& s) {
  return {{"threads", 128}, {"heads_per_thread", std::min<int64_t>(2, s["H"])}};
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "index_query"};
  kernel.constants = {constant("heads", s["H"]), constant("output", s["output"]),
                      constant("threads", c["threads"]),
                      constant("heads_per_thread", c["heads_per_thread"])};
  kernel.grid_x =
      grid_over_rows("T", head_groups(s, c["heads_per_thread"]), c["threads"] / kLanesPerHead);
  kernel.threads = static_cast<int>(c["threads"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes&, const Config& c, const Gpu&) {
  const double heads = static_cast<double>(c["heads_per_thread"]);
  return ModelHints{.bytes_in_flight_per_thread = heads > 1 ? 64.0 : 32.0,  // the next head too
                    .instructions_per_thread = 110 + 165 * heads,
                    .dependent_loads = 2};
}

const ShapeCondition with_codes{.symbol = "output", .values = {kQ4m, kQ8k}};
const ShapeCondition with_scales{.symbol = "output", .values = {kQ4m}};
const ShapeCondition with_bf16{.symbol = "output", .values = {kBf16}};

Arg bytes(Arg arg, int64_t multiple) {
  arg.align_bytes = multiple;
  arg.stride_multiple = multiple;
  return arg;
}

}  // namespace

const Op index_query{
    .name = "index_query",
    .version = 1,
    .summary = "Rotates and quantises the queries of the indexer and scales its head weights.",
    .doc =
        "For row t and head h, p = positions[t]:\n"
        "  x' = q[t, h] with its last 64 elements rotated: in pairs i = 0..31\n"
        "    a' = a * cos - b * sin, b' = a * sin + b * cos\n"
        "    cos = rope_table[p, i], sin = rope_table[p, 32 + i]\n"
        "    in fp32, products rounded, then one addition, then bf16 (nearest even)\n"
        "  q4m:  codes[t, h] = 128 E2M1 codes of x' (even element in bits 0..3: 64 bytes),\n"
        "        scales[t, h] = 4 UE8M0 scales, one per 32 elements\n"
        "  q8k:  codes[t, h] = 128 E4M3 codes of x' with one scale s = 2^n for all\n"
        "  bf16: y[t, h] = what the codes and scales of q4m stand for\n"
        "  weights[t, h] = head_weights[t, h] * 2^-6, in q8k * 2^-6 * s\n"
        "2^-6 is 128^-0.5 * 32^-0.5, for any num_heads. head_weights is the product of x and "
        "weights_proj, rounded to bf16; both products are exact in fp32 unless they leave its "
        "range.\n"
        "code_bytes is 64 (q4m) or 128 (q8k). q4m is that of act_quant; q8k is its q8a with one "
        "group of 128. A group that holds a NaN or an infinity becomes scale 255 and codes 0 "
        "(q4m), codes 0x7f and a NaN as weight (q8k), or NaN (bf16).\n"
        "A row whose position is outside of rope_table is not rotated: padding gives numbers "
        "that nobody reads. A row's bits depend on the row alone, on every rank.",
    .source = "ops.md B11, B4, B5, (f)4, (f)5",
    .sizes =
        {
            stepped(fixed("H", "num_heads", "heads of the indexer", 1, 128), "head"),
            fixed("output", "output", "what is written of the queries",
                  {{"q4m", kQ4m}, {"q8k", kQ8k}, {"bf16", kBf16}}),
            stepped(dynamic("T", "num_rows", "rows, padding included", 0, kMaxInt32), "row"),
            stepped(dynamic("P", "num_positions", "rows of rope_table", 0, kMaxInt32), "position"),
            derived("128", "element", [](const Sizes&) { return int64_t{128}; }),
            derived("64", "element", [](const Sizes&) { return int64_t{64}; }),
            derived("4", "group", [](const Sizes&) { return int64_t{4}; }),
            derived("code_bytes", "byte of codes", code_bytes),
        },
    .args =
        {
            vectors(in("q", DType::bf16, "T H 128", "queries before RoPE"), 8),
            in("head_weights", DType::bf16, "T H", "weight of each head before its factor"),
            in("positions", DType::i32, "T",
               "row of rope_table for each row; one outside of it is not rotated"),
            vectors(in("rope_table", DType::f32, "P 64",
                       "of each position 32 cosines, then 32 sines, of the layer's frequencies"),
                    4),
            only_in(with_codes,
                    bytes(out("codes", DType::u8, "T H code_bytes", "E2M1 or E4M3 codes"), 8)),
            only_in(with_scales, bytes(out("scales", DType::u8, "T H 4", "UE8M0 scales"), 1)),
            only_in(with_bf16,
                    vectors(out("y", DType::bf16, "T H 128", "quantised queries as numbers"), 8)),
            out("weights", DType::f32, "T H", "factor of each head's scores"),
        },
    .buckets = {{"T", {1, 4, 16, 64, 256, 1024, 4096}}},
    .model_shapes =
        [](int) {
          return std::vector<Sizes>{{{"H", 32}, {"output", kQ4m}},
                                    {{"H", 32}, {"output", kQ8k}},
                                    {{"H", 32}, {"output", kBf16}}};
        },
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
