// Rotates pairs of neighbouring elements by the angles of each row's position, or back (ops.md B5).
//   a' = a * cos - b * sin;  b' = a * sin + b * cos
#include <algorithm>
#include <limits>

#include "templates/op.h"

namespace kiln::templates {

extern const Op rope;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kRopeDims = 64;
constexpr int64_t kPieces = 8;  // loads of 16 bytes for the 64 elements of a head
constexpr int64_t kMostHeads = 1024;

enum Direction : int64_t { kForward = 0, kInverse = 1 };

int64_t head_groups(const Sizes& s, int64_t heads_per_thread) {
  return (s["H"] + heads_per_thread - 1) / heads_per_thread;
}

// q before attention, its output after it.
std::vector<Sizes> model_shapes(int tensor_parallel) {
  const int64_t heads = 64 / tensor_parallel;
  return {{{"H", heads}, {"direction", kForward}}, {{"H", heads}, {"direction", kInverse}}};
}

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]);
  const double bytes = rows * static_cast<double>(s["H"]) * 2 * kRopeDims;
  return Cost{.warm_read_bytes = rows * (4 + 4.0 * kRopeDims),
              .in_place_read_bytes = bytes,
              .write_bytes = bytes,
              .integer_operations = 2 * bytes};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads", {64, 128, 256, 512}, "threads of a CTA"},
      {"heads_per_thread", {1, 2, 4, 8}, "heads that a thread loads before it rotates the first"},
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
  KernelLaunch kernel{.file = "kernel.cu", .entry = "rope"};
  kernel.constants = {constant("heads", s["H"]),
                      {"inverse", "bool", s["direction"] == kInverse ? "true" : "false"},
                      constant("threads", c["threads"]),
                      constant("heads_per_thread", c["heads_per_thread"])};
  kernel.grid_x =
      grid_over_rows("T", head_groups(s, c["heads_per_thread"]), c["threads"] / kPieces);
  kernel.threads = static_cast<int>(c["threads"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes&, const Config& c, const Gpu&) {
  const double heads = static_cast<double>(c["heads_per_thread"]);
  return ModelHints{.bytes_in_flight_per_thread = 16 * heads,
                    .instructions_per_thread = 50 + 45 * heads,
                    .dependent_loads = 2};
}

}  // namespace

const Op rope{
    .name = "rope",
    .version = 1,
    .summary =
        "Rotates pairs of neighbouring elements of bf16, in place, by the angles of each row's "
        "position, or back.",
    .doc =
        "For elements a = x[t, h, 2i] and b = x[t, h, 2i + 1], cos = rope_table[positions[t], i] "
        "and sin = rope_table[positions[t], 32 + i]:\n"
        "  forward:  a' = a * cos - b * sin;  b' = a * sin + b * cos\n"
        "  inverse:  a' = a * cos + b * sin;  b' = b * cos - a * sin\n"
        "in fp32, each product rounded, then the sum, then once to bf16. inverse after "
        "sparse_mla_decode with inverse_rope \"none\" gives the bits of \"gptj\".\n"
        "x is the part of each head that is rotated, its last 64 elements: with heads of 512 "
        "elements the pointer stands at element 448 of the first one, and the strides are those of "
        "the heads. What lies between is neither read nor written.\n"
        "A row whose position is not in the table, as padded rows with -1, is left as it is. Which "
        "frequencies count, the table says: see rope_table.",
    .source = "ops.md B5, B7, B16.1, (f)5",
    .sizes =
        {
            stepped(fixed("H", "num_heads", "heads of a row", 1, kMostHeads), "head"),
            fixed("direction", "direction", "of the rotation",
                  {{"forward", kForward}, {"inverse", kInverse}}),
            stepped(dynamic("T", "num_rows", "rows, padding included", 0, kMaxInt32), "row"),
            stepped(dynamic("P", "num_positions", "rows of rope_table", 0, kMaxInt32), "position"),
            derived("64", "element", [](const Sizes&) { return kRopeDims; }),
        },
    .args =
        {
            inout(vectors(in("x", DType::bf16, "T H 64", "the last 64 elements of each head"), 8)),
            in("positions", DType::i32, "T", "row of rope_table for each row of x"),
            vectors(
                in("rope_table", DType::f32, "P 64", "of each position 32 cosines, then 32 sines"),
                4),
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
