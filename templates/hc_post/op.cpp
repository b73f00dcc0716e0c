// Mixes the output of a sub-layer into the four residual streams, in place (ops.md B1.4).
//   h[j] = post[j] * y + sum over i of comb[i][j] * h[i]
#include "templates/op_hc.h"
#include "templates/op_norm.h"

namespace kiln::templates {

extern const Op hc_post;

namespace {

void check_fixed(const Sizes& s) { check_hc_columns(s, "hc_post", kNormPiece); }

std::vector<Sizes> model_shapes(int) {
  return {{{"K", 5120}, {"sqrsum", kHcNoSqrsum}}, {{"K", 5120}, {"sqrsum", kHcSqrsum}}};
}

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]), columns = static_cast<double>(s["K"]);
  const double streams = static_cast<double>(kHcStreams);
  return Cost{.warm_read_bytes = rows * (2 * columns + 4 * (streams + streams * streams)),
              .in_place_read_bytes = rows * 2 * streams * columns,
              .write_bytes = rows * (2 * streams * columns + hc_sqrsum_bytes(s)),
              .integer_operations = rows * columns * 14};
}

constexpr int64_t kNarrow = 2;  // columns of a thread of narrow.cu

int64_t pieces_of(const Sizes& s, const Config& c) { return s["K"] / c["columns_per_piece"]; }

int64_t row_parts(const Sizes& s, const Config& c) {
  const int64_t part = c["threads"] * c["pieces_per_thread"];
  return (pieces_of(s, c) + part - 1) / part;
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads", {32, 64, 128, 256, 512}, "threads of a CTA, which has a row or a part of one"},
      {"pieces_per_thread", {1, 2, 3, 4, 5, 8, 10, 16}, "pieces of some columns, all streams"},
      {"columns_per_piece", {kNarrow, kNormPiece}, "few columns: more threads for few rows"},
  };
  space.rules = {
      {"the last piece of every thread would lie beyond the row",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["pieces_per_thread"] == 1 ||
                c["threads"] * (c["pieces_per_thread"] - 1) < pieces_of(s, c);
       }},
      {"two columns are all that a thread has, and no part of a sum",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["columns_per_piece"] == kNormPiece ||
                (c["pieces_per_thread"] == 1 && s["sqrsum"] == kHcNoSqrsum);
       }},
  };
  return space;
}

Config default_config(const Sizes&) {
  return {{"threads", 128}, {"pieces_per_thread", 1}, {"columns_per_piece", kNormPiece}};
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "hc_post"};
  kernel.constants = {constant("columns", s["K"]), constant("threads", c["threads"])};
  if (c["columns_per_piece"] == kNarrow) {
    kernel.file = "narrow.cu";
    kernel.entry = "hc_post_narrow";
  } else {
    kernel.constants.push_back(hc_with_sqrsum(s));
    kernel.constants.push_back(constant("pieces_per_thread", c["pieces_per_thread"]));
  }
  kernel.grid_x = grid_over_rows("T", row_parts(s, c), 1);
  kernel.threads = static_cast<int>(c["threads"]);
  return LaunchPlan{.kernels = {kernel},
                    .reduction_signature = "pieces of 8, then halves, of 256 columns in sqrsum"};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  if (c["columns_per_piece"] == kNarrow) {
    return ModelHints{
        .bytes_in_flight_per_thread = 20, .instructions_per_thread = 130, .dependent_loads = 1};
  }
  const double pieces = static_cast<double>(c["pieces_per_thread"]);
  return ModelHints{.bytes_in_flight_per_thread = 80,
                    .instructions_per_thread = 70 + pieces * (s["sqrsum"] == kHcSqrsum ? 310 : 250),
                    .dependent_loads = 1};
}

}  // namespace

const Op hc_post{
    .name = "hc_post",
    .version = 1,
    .summary = "Mixes the output of a sub-layer into the four residual streams, in place.",
    .doc =
        "For row t, stream j and column d, from the streams as they were:\n"
        "  h'[t, j, d] = bf16(post[t, j] * y[t, d] + sum over i of comb[t, i, j] * h[t, i, d])\n"
        "in fp32, every product and every sum rounded, post * y first and then i = 0 .. 3. The sum "
        "is over the first index of comb; its columns are the streams that "
        "are written.\n"
        "sqrsum \"stored\" also writes, for the statistics of the next sub-layer, the sums of the "
        "squares of h'[t], as rounded to bf16: sqrsum[t, p] is that of the columns 256 p .. 256 p "
        "+ 255 of all four streams. The sum of a row is that of its parts. Their bits do not "
        "depend on the kernel.\n"
        "y is the output of the sub-layer after the reduction over ranks.",
    .source = "ops.md B1.4, B1.5, (f)5",
    .sizes =
        {
            hc_columns(kHcColumns8, kNormPiece),
            hc_sqrsum_size(),
            hc_rows(),
            hc_four(),
            hc_sqrsum_parts(),
        },
    .args =
        {
            vectors(in("y", DType::bf16, "T K", "output of the sub-layer"), 8),
            inout(vectors(in("h", DType::bf16, "T 4 K", "the residual streams"), 8)),
            vectors(in("post", DType::f32, "T 4", "how much of y each stream takes"), 4),
            vectors(in("comb", DType::f32, "T 4 4", "how much of stream i stream j takes"), 4),
            hc_sqrsum(),
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
