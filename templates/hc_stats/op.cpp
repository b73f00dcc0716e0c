// The gates of a sub-layer from the residual streams that it starts with (ops.md B1.1, B1.2).
//   m = (h . fn) / rms(h);   pre, post = gates of m;   comb = Sinkhorn of m, 20 steps
#include <algorithm>

#include "templates/op_hc.h"

namespace kiln::templates {

extern const Op hc_stats;

namespace {

void check_fixed(const Sizes& s) {
  check_hc_columns(s, "hc_stats", kHcBlockColumns);
  if (s["S"] == 1 || s["S"] == kHcStreams) return;
  fail(Status::invalid_argument,
       "hc_stats: \"num_streams\" must be 4, or 1 where all streams are equal, but is {}", s["S"]);
}

Sizes shape(int64_t streams, HcPrecision precision) {
  return {{"K", 5120}, {"S", streams}, {"precision", precision}};
}

// All layers but the first, and that one; the form that is less exact is the caller's choice.
std::vector<Sizes> model_shapes(int) {
  return {shape(kHcStreams, kHcFp32), shape(1, kHcFp32), shape(kHcStreams, kHcTf32)};
}

Tolerance tolerance_in(const Sizes& s) {
  return {Tolerance::Kind::relative_rms, s["precision"] == kHcTf32 ? 1e-4 : 1e-6};
}

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]);
  const double width = static_cast<double>(s["S"] * s["K"]);
  const double terms = s["precision"] == kHcTf32 ? 2 : 3;
  return Cost{.cold_read_bytes = 4 * width * static_cast<double>(kHcGates),
              .warm_read_bytes = 2 * rows * width,
              .write_bytes = rows * 4 * static_cast<double>(kHcGates),
              .integer_operations = rows * width * 2,
              .mma_fma = terms * rows * width * static_cast<double>(kHcGates)};
}

Space space(const Sizes&, const Gpu&) {
  return {.axes = hc_stats_axes(), .rules = hc_stats_rules()};
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  LaunchPlan plan;
  add_hc_stats(plan, "hc_stats", s, c);
  return plan;
}

ModelHints model(const Sizes&, const Config& c, const Gpu&) {
  const double tiles = static_cast<double>(c["m_tiles"]);
  return ModelHints{.bytes_in_flight_per_thread = 96 + 32 * tiles, .dependent_loads = 3};
}

}  // namespace

const Op hc_stats{
    .name = "hc_stats",
    .version = 1,
    .summary = "The gates of a sub-layer from the residual streams that it starts with.",
    .doc =
        "For each row t, v = h[t] as num_streams * columns numbers:\n"
        "  rs = 1 / sqrt(sum(v^2) / (num_streams * columns) + 1e-20)\n"
        "  m[k] = (sum over c of v[c] * fn[k, c]) * rs, k = 0 .. 23\n"
        "  pre[t, j] = sigmoid(m[j] * scale[0] + base[j]) + 1e-6\n"
        "  post[t, j] = 2 * sigmoid(m[4 + j] * scale[1] + base[4 + j])\n"
        "  A[r, c] = m[8 + 4 r + c] * scale[2] + base[8 + 4 r + c]\n"
        "  A[r, :] = softmax(A[r, :]) + 1e-6;  A[r, c] /= sum over r of A[r, c] + 1e-6\n"
        "  19 times:  A[r, c] /= sum over c of A[r, c] + 1e-6, then over r likewise\n"
        "  comb[t] = A\n"
        "Column i * columns + d of fn belongs to stream i. pre are the weights of the next "
        "sub-layer's fold, post and comb those of this one's hc_post.\n"
        "precision \"fp32\": fn counts with all of its 24 bits, as three bf16 whose products with "
        "h "
        "are exact; the gates are within 1e-6 (relative rms). \"tf32\" takes two, 16 bits where "
        "TF32 has 11: within 1e-4.\n"
        "num_streams 1 is the form for the first layer, whose four streams are equal: h is one of "
        "them and fn[k, d] the sum over i of fn[k, i * columns + d], which the caller makes when "
        "it loads the weights.\n"
        "A row of zeros has m = 0. A row that holds a NaN or an infinity has gates of NaN. Where "
        "the sum of squares leaves fp32, rs is 0.",
    .source = "ops.md B1.1, B1.2, (f)2",
    .sizes =
        {
            hc_columns(kHcColumns32, kHcBlockColumns),
            stepped(fixed("S", "num_streams",
                          "residual streams: 4, or 1 where all of them are equal", 1, kHcStreams),
                    "stream"),
            fixed("precision", "precision", "how much of fn counts",
                  {{"fp32", kHcFp32}, {"tf32", kHcTf32}}),
            hc_rows(),
            hc_four(),
            derived("24", "gate", [](const Sizes&) { return kHcGates; }),
            derived("3", "kind of gate", [](const Sizes&) { return int64_t{3}; }),
            derived("width", "column", [](const Sizes& s) { return s["S"] * s["K"]; }),
        },
    .args =
        {
            vectors(in("h", DType::bf16, "T S K", "the residual streams"), 8),
            cold(vectors(in("fn", DType::f32, "24 width",
                            "what each gate sees of the streams; width is num_streams * columns"),
                         4)),
            in("scale", DType::f32, "3", "of the logits of pre, of post and of comb"),
            in("base", DType::f32, "24", "added to the logits"),
            vectors(out("pre", DType::f32, "T 4", "weight of each stream in the next fold"), 4),
            vectors(out("post", DType::f32, "T 4", "how much of the output each stream takes"), 4),
            vectors(out("comb", DType::f32, "T 4 4", "how much of stream i stream j takes"), 4),
        },
    .buckets = {{"T", {1, 16, 64, 256, 1024, 4096}}},
    .has_workspace = true,
    .tolerance = {Tolerance::Kind::relative_rms, 1e-6},
    .tolerance_in = tolerance_in,
    .model_shapes = model_shapes,
    .check_fixed = check_fixed,
    .cost = cost,
    .space = space,
    .default_config = hc_stats_default,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
