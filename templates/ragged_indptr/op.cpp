// Packs the columns that count of dense rows of slots, one row behind the other (ops.md B13.3 1,
// bit-exact).
//   indptr[t] = sum of the lengths of the rows before t
//   indices[indptr[t] + i] = slots[t, i],   i < length of row t
#include <algorithm>

#include "templates/op.h"

namespace kiln::templates {

extern const Op ragged_indptr;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]);
  const double columns = static_cast<double>(s.get("W", 512));
  return Cost{.warm_read_bytes = rows * (4 * columns + 4),
              .write_bytes = rows * (4 * columns + 4),
              .integer_operations = rows * columns};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads", {128, 256, 512, 1024}, "threads of a CTA"},
      {"rows_per_cta", {1, 4, 8, 16, 32}, "rows that one CTA packs"},
      {"batch", {4, 8, 16}, "columns that a lane loads before it stores the first"},
  };
  space.rules = {
      {"warps of a CTA would have no row",
       [](const Sizes&, const Config& c, const Gpu&) {
         return c["threads"] == 128 || c["threads"] <= 32 * c["rows_per_cta"];
       }},
  };
  return space;
}

Config default_config(const Sizes&) {
  return {{"threads", 256}, {"rows_per_cta", 16}, {"batch", 8}};
}

LaunchPlan plan(const Sizes&, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "ragged_indptr"};
  kernel.constants = {constant("threads", c["threads"]),
                      constant("rows_per_cta", c["rows_per_cta"]), constant("batch", c["batch"])};
  // One more than the rows need: the end of the last row is a boundary too.
  kernel.grid_x = {.offset = 1, .terms = {{.symbol = "T", .divisor = c["rows_per_cta"]}}};
  kernel.threads = static_cast<int>(c["threads"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double rows = static_cast<double>(s["T"]);
  const double lengths = rows / 2 / static_cast<double>(c["threads"]);
  const double columns = static_cast<double>(s.get("W", 512)) *
                         static_cast<double>(c["rows_per_cta"]) / static_cast<double>(c["threads"]);
  return ModelHints{.bytes_in_flight_per_thread = 4 * static_cast<double>(c["batch"]),
                    .instructions_per_thread = 120 + 4 * lengths + 6 * columns,
                    .dependent_loads = 2 + lengths / 8 + columns / static_cast<double>(c["batch"])};
}

}  // namespace

const Op ragged_indptr{
    .name = "ragged_indptr",
    .version = 1,
    .summary =
        "Packs the columns that count of dense rows of slots, one row behind the other, with the "
        "boundaries of the rows.",
    .doc =
        "With n[t] = lens[t], at least 0 and at most width:\n"
        "  indptr[t] = min(n[0] + .. + n[t - 1], capacity)   for t = 0 .. num_rows\n"
        "  indices[indptr[t] + i] = slots[t, i]   for i < n[t], as far as capacity reaches\n"
        "The rest of indices is left as it is: what lies beyond capacity is dropped, and indptr "
        "never points behind it. Every column that counts keeps its place in its row, also one "
        "that holds -1.\n"
        "slots and lens are those of topk_to_slots, window_slots (one group) or combine_topk_swa; "
        "the result serves all layers that would have read them, for kernels that take ragged "
        "lists.",
    .source = "ops.md B13.3 1",
    .sizes =
        {
            stepped(dynamic("T", "num_rows", "rows, padding included", 0, kMaxInt32 - 1), "row"),
            dynamic("W", "width", "columns of slots", 0, kMaxInt32),
            dynamic("N", "capacity", "entries that indices has room for", 0, kMaxInt32),
            derived("boundaries", "boundary of rows", [](const Sizes& s) { return s["T"] + 1; }),
        },
    .args =
        {
            in("slots", DType::i32, "T W", "slots of each row"),
            in("lens", DType::i32, "T", "columns of slots that count"),
            out("indptr", DType::i32, "boundaries",
                "first entry of each row in indices and, last, the end of all"),
            out("indices", DType::i32, "N", "slots of all rows, packed"),
        },
    .buckets = {{"T", {1, 16, 256, 1024, 4096}}},
    .model_shapes = [](int) { return std::vector<Sizes>{Sizes{}}; },
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
