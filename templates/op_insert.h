// What the descriptions of the ops that insert rows into a paged cache share (common/kv_insert.cuh,
// common/pages.cuh).
#pragma once

#include "templates/op.h"

namespace kiln::templates {

// Of a row of `elements` that becomes an entry of so many bytes; operations: of an element.
inline Cost insert_cost(const Sizes& s, int64_t elements, int64_t entry_bytes, int operations) {
  const double rows = static_cast<double>(s["T"]);
  const double row_bytes = 2 * static_cast<double>(elements);
  constexpr double kAngleBytes = 256, kIndexBytes = 16;
  return Cost{.warm_read_bytes = rows * (row_bytes + kAngleBytes + kIndexBytes),
              .write_bytes = rows * static_cast<double>(entry_bytes),
              .integer_operations = rows * static_cast<double>(elements) * operations};
}

inline Space insert_space(int64_t lanes_per_row) {
  Space space;
  space.axes = {
      {"threads",
       {32, 64, 128, 256, 512},
       fmt::format("threads of a CTA; {} to a row", lanes_per_row)},
      {"rows_per_thread", {1, 2, 4}, "rows that a thread loads before it works on the first"},
  };
  return space;
}

inline Config insert_default_config(const Sizes&) {
  return {{"threads", 128}, {"rows_per_thread", 1}};
}

// The constants of the config follow those of the op.
inline KernelLaunch insert_launch(std::string entry, std::vector<jit::Constant> constants,
                                  int64_t lanes_per_row, const Config& c) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = std::move(entry)};
  kernel.constants = std::move(constants);
  kernel.constants.push_back(constant("threads", c["threads"]));
  kernel.constants.push_back(constant("rows_per_thread", c["rows_per_thread"]));
  kernel.grid_x = {
      .terms = {{.symbol = "T", .divisor = c["threads"] / lanes_per_row * c["rows_per_thread"]}}};
  kernel.threads = static_cast<int>(c["threads"]);
  return kernel;
}

inline ModelHints insert_model(const Config& c, double instructions_of_row, double of_thread) {
  const double rows = static_cast<double>(c["rows_per_thread"]);
  return ModelHints{.bytes_in_flight_per_thread = 32 * rows,
                    .instructions_per_thread = of_thread + instructions_of_row * rows,
                    .dependent_loads = 2};
}

inline Arg insert_rope_table() {
  return vectors(in("rope_table", DType::f32, "P 64",
                    "of each position 32 cosines, then 32 sines, of the layer's frequencies"),
                 4);
}

// align_bytes: of its base and of the stride of its pages.
inline Arg insert_cache(int64_t align_bytes) {
  return Arg{.name = "cache",
             .dtype = DType::u8,
             .kind = ArgKind::output,
             .dims = {"num_pages", "page_bytes"},
             .doc = "pages of entries",
             .memory = Memory::cold,
             .align_bytes = align_bytes,
             .stride_multiple = align_bytes};
}

inline Requirement insert_requirement() {
  return {.small = {.terms = {{"num_pages"}, {"page_size"}}},
          .big = {.offset = std::numeric_limits<int32_t>::max(), .scale = 0},
          .sentence =
              "num_pages * page_size is at most 2147483647, so that a slot fits the int32 "
              "of its readers"};
}

}  // namespace kiln::templates
