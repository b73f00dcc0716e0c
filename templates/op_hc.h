// What the descriptions of the ops on residual streams share (common/hc.cuh).
#pragma once

#include <cstdint>
#include <limits>

#include "templates/op.h"

namespace kiln::templates {

constexpr int64_t kHcStreams = 4;
constexpr int64_t kHcMostColumns = 16384;
constexpr int64_t kHcMostRows = std::numeric_limits<int32_t>::max();
constexpr int64_t kHcGroup = 32;  // columns that share a scale

enum HcFormat : int64_t { kHcBf16 = 0, kHcCodes = 1, kHcBoth = 2 };

inline Size hc_columns() {
  return stepped(fixed("K", "columns",
                       "columns of a stream (the hidden size); a multiple of 8, where codes are "
                       "written of 32",
                       8, kHcMostColumns),
                 "column");
}
inline Size hc_rows() {
  return stepped(dynamic("T", "num_rows", "rows (tokens), padding included", 0, kHcMostRows),
                 "row");
}
inline Size hc_four() {
  return derived("4", "stream", [](const Sizes&) { return kHcStreams; });
}
inline Size hc_groups() {
  return derived("groups", "group", [](const Sizes& s) { return s["K"] / kHcGroup; });
}
inline Size hc_format() {
  return fixed("x_format", "x_format", "what is written of x",
               {{"bf16", kHcBf16}, {"codes_q8a", kHcCodes}, {"bf16_and_codes_q8a", kHcBoth}});
}

inline Arg hc_codes(Arg arg, int64_t multiple) {
  arg = only_in({.symbol = "x_format", .values = {kHcCodes, kHcBoth}}, std::move(arg));
  arg.align_bytes = multiple;
  arg.stride_multiple = multiple;
  return arg;
}
inline Arg hc_x() {
  return only_in({.symbol = "x_format", .values = {kHcBf16, kHcBoth}},
                 vectors(out("x", DType::bf16, "T K", "the input of the next sub-layer"), 8));
}
inline Arg hc_x_codes() { return hc_codes(out("x_codes", DType::u8, "T K", "its E4M3 codes"), 8); }
inline Arg hc_x_scales() {
  return hc_codes(out("x_scales", DType::u8, "T groups", "their UE8M0 scales, one for 32 columns"),
                  1);
}
inline Arg hc_inout(Arg arg) {
  arg.kind = ArgKind::inout;
  return arg;
}

inline void check_hc_columns(const Sizes& s, const char* op, int64_t multiple) {
  if (s["K"] % multiple != 0) {
    fail(Status::invalid_argument, "{}: \"columns\" must be a multiple of {}, but is {}", op,
         multiple, s["K"]);
  }
}

// Bytes of x in the format of the shape.
inline double hc_x_bytes(const Sizes& s) {
  const double columns = static_cast<double>(s["K"]);
  const int64_t format = s["x_format"];
  return (format != kHcCodes ? 2 * columns : 0) +
         (format != kHcBf16 ? columns + columns / static_cast<double>(kHcGroup) : 0);
}

}  // namespace kiln::templates
