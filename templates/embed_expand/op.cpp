// Copies the embedding of each token into its residual streams (ops.md B6.3).
//   h[t, c] = table[ids[t] - first_id]
#include <algorithm>
#include <limits>

#include "templates/op.h"

namespace kiln::templates {

extern const Op embed_expand;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kPiece = 8;  // elements of one load
constexpr int64_t kMostColumns = 16384;
constexpr int64_t kMostCopies = 8;

void check_fixed(const Sizes& s) {
  if (s["K"] % kPiece != 0) {
    fail(Status::invalid_argument, "embed_expand: \"columns\" must be a multiple of {}, but is {}",
         kPiece, s["K"]);
  }
}

// The four streams of the target, and one row.
std::vector<Sizes> model_shapes(int) { return {{{"K", 5120}, {"C", 4}}, {{"K", 5120}, {"C", 1}}}; }

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]), bytes = 2 * static_cast<double>(s["K"]);
  return Cost{.cold_read_bytes = rows * bytes,
              .warm_read_bytes = rows * 4,
              .write_bytes = rows * bytes * static_cast<double>(s["C"]),
              .integer_operations = rows * bytes / 4};
}

int64_t row_parts(const Sizes& s, const Config& c) {
  const int64_t part = c["threads"] * c["pieces_per_thread"];
  return (s["K"] / kPiece + part - 1) / part;
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads", {32, 64, 128, 256, 512}, "threads of a CTA, which has a row or a part of one"},
      {"pieces_per_thread", {1, 2, 3, 5, 10}, "pieces of 8 columns that a thread loads at once"},
  };
  space.rules = {
      {"the last piece of every thread would lie beyond the row",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["pieces_per_thread"] == 1 ||
                c["threads"] * (c["pieces_per_thread"] - 1) < s["K"] / kPiece;
       }},
  };
  return space;
}

Config default_config(const Sizes&) { return {{"threads", 128}, {"pieces_per_thread", 1}}; }

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "embed_expand"};
  kernel.constants = {constant("columns", s["K"]), constant("copies", s["C"]),
                      constant("threads", c["threads"]),
                      constant("pieces_per_thread", c["pieces_per_thread"])};
  kernel.grid_x = grid_over_rows("T", row_parts(s, c), 1);
  kernel.threads = static_cast<int>(c["threads"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double pieces = static_cast<double>(c["pieces_per_thread"]);
  return ModelHints{.bytes_in_flight_per_thread = 16 * pieces,
                    .instructions_per_thread = 40 + pieces * (8 + 4 * static_cast<double>(s["C"])),
                    .dependent_loads = 2};
}

}  // namespace

const Op embed_expand{
    .name = "embed_expand",
    .version = 1,
    .summary = "Copies the embedding of each token into its residual streams.",
    .doc =
        "For each row t and stream c:\n"
        "  h[t, c] = table[ids[t] - first_id]  where 0 <= ids[t] - first_id < num_embeddings\n"
        "  h[t, c] = 0                         elsewhere\n"
        "A rank has the ids first_id .. first_id + num_embeddings - 1; the sum over the ranks is "
        "the embedding. Rows of padding and of images, whose ids are no token's, become zeros, and "
        "features may be written over them. num_streams 1 gives plain rows.",
    .source = "ops.md B6.3",
    .sizes =
        {
            stepped(fixed("K", "columns", "columns of an embedding; a multiple of 8", kPiece,
                          kMostColumns),
                    "column"),
            stepped(fixed("C", "num_streams", "residual streams that are written", 1, kMostCopies),
                    "stream"),
            stepped(dynamic("T", "num_rows", "rows (tokens), padding included", 0, kMaxInt32),
                    "row"),
            stepped(dynamic("V", "num_embeddings", "rows of table", 0, kMaxInt32), "embedding"),
            dynamic("first_id", "first_id", "id of the first row of table", 0, kMaxInt32),
        },
    .args =
        {
            in("ids", DType::i32, "T", "token of each row"),
            cold(vectors(in("table", DType::bf16, "V K", "embeddings of this rank"), kPiece)),
            vectors(out("h", DType::bf16, "T C K", "the residual streams"), kPiece),
        },
    .buckets = {{"T", {1, 16, 256, 4096}}},
    .model_shapes = model_shapes,
    .check_fixed = check_fixed,
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
