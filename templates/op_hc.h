// What the descriptions of the ops on residual streams share (common/hc.cuh).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "templates/op.h"
#include "templates/op_norm.h"

namespace kiln::templates {

constexpr int64_t kHcStreams = 4;
constexpr int64_t kHcMostColumns = 16384;
constexpr int64_t kHcMostRows = int64_t{1} << 24;  // times the parts of a row: CTAs of a grid
constexpr int64_t kHcGroup = 32;                   // columns that share a scale

enum HcPrecision : int64_t { kHcFp32 = 0, kHcTf32 = 1 };
enum HcFormat : int64_t { kHcBf16 = 0, kHcCodes = 1, kHcBoth = 2 };

constexpr const char* kHcColumns8 = "columns of a stream (the hidden size); a multiple of 8";
constexpr const char* kHcColumns32 = "columns of a stream (the hidden size); a multiple of 32";
constexpr const char* kHcColumnsOfCodes =
    "columns of a stream (the hidden size); a multiple of 8, where codes are written of 32";
inline Size hc_columns(const char* what, int64_t least) {
  return stepped(fixed("K", "columns", what, least, kHcMostColumns), "column");
}
inline Size hc_rows() {
  return stepped(dynamic("T", "num_rows", "rows (tokens), padding included", 0, kHcMostRows),
                 "row");
}
inline Size hc_four() {
  return derived("4", "stream", [](const Sizes&) { return kHcStreams; });
}
inline int64_t hc_parts(const Sizes& s) {
  constexpr int64_t kColumns = 256;  // of each stream, of one sum of squares
  return (s["K"] + kColumns - 1) / kColumns;
}
enum HcSqrsum : int64_t { kHcNoSqrsum = 0, kHcSqrsum = 1 };
inline Size hc_sqrsum_size() {
  return fixed("sqrsum", "sqrsum", "whether the sums of squares are written",
               {{"none", kHcNoSqrsum}, {"stored", kHcSqrsum}});
}
inline Arg hc_sqrsum() {
  return only_in({.symbol = "sqrsum", .values = {kHcSqrsum}},
                 out("sqrsum", DType::f32, "T parts",
                     "sums of squares of the four streams; parts is columns / 256, rounded up"));
}
inline double hc_sqrsum_bytes(const Sizes& s) {
  return s["sqrsum"] == kHcSqrsum ? 4 * static_cast<double>(hc_parts(s)) : 0;
}
inline jit::Constant hc_with_sqrsum(const Sizes& s) {
  return {"with_sqrsum", "bool", s["sqrsum"] == kHcSqrsum ? "true" : "false"};
}
inline Size hc_sqrsum_parts() { return derived("parts", "part of 256 columns", hc_parts); }
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
  return hc_codes(out("x_scales", DType::u8, "T groups",
                      "their UE8M0 scales, one for 32 columns; groups is columns / 32"),
                  1);
}
inline void check_hc_columns(const Sizes& s, const char* op, int64_t multiple) {
  if (s["K"] % multiple != 0) {
    fail(Status::invalid_argument, "{}: \"columns\" must be a multiple of {}, but is {}", op,
         multiple, s["K"]);
  }
}

// --- ops of which threads share a row of the fold

constexpr int64_t kHcWarp = 32;
constexpr int64_t kHcMostThreads = 512;
constexpr int64_t kHcMostPieces = 8;  // of a thread
constexpr int64_t kHcBarriers = 16;   // of a CTA

inline std::vector<Axis> hc_row_axes() {
  return {
      {"threads_per_row", {32, 64, 128, 256, 512}, "threads that share a row"},
      {"rows_per_cta", {1, 2, 4, 8}, "rows that one CTA takes"},
  };
}

inline std::vector<Rule> hc_row_rules() {
  return {
      {"a CTA would have more than 512 threads",
       [](const Sizes&, const Config& c, const Gpu&) {
         return c["threads_per_row"] * c["rows_per_cta"] <= kHcMostThreads;
       }},
      {"a thread would hold more than 8 pieces of a row",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return norm_pieces_per_thread(s["K"], c["threads_per_row"]) <= kHcMostPieces;
       }},
      {"half of the threads of a row would have nothing",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["threads_per_row"] <=
                std::max<int64_t>(kHcWarp, power_of_two_above(s["K"] / kNormPiece));
       }},
      {"rows of several warps would be more than the 16 barriers of a CTA",
       [](const Sizes&, const Config& c, const Gpu&) {
         return c["threads_per_row"] <= kHcWarp || c["rows_per_cta"] <= kHcBarriers;
       }},
  };
}

inline Config hc_row_default(const Sizes& s) {
  constexpr int64_t kPieces = 3;
  int64_t threads = kHcWarp;
  while (norm_pieces_per_thread(s["K"], threads) > kPieces && threads < kHcMostThreads)
    threads *= 2;
  return {{"threads_per_row", threads}, {"rows_per_cta", 1}};
}

// --- the statistics: two kernels, partials.cu and gates.cu of an op's folder

constexpr int64_t kHcBlockColumns = 32;
constexpr int64_t kHcGates = 24;
constexpr int64_t kHcGateWarps = 8;
constexpr int64_t kHcSlotBytes = 128;  // of the workspace, of a row and split

// Streams of the statistics: all, or the first layer's one.
inline int64_t hc_stat_streams(const Sizes& s) { return s.get("S", kHcStreams); }
inline int64_t hc_blocks(const Sizes& s) { return hc_stat_streams(s) * s["K"] / kHcBlockColumns; }

inline std::vector<Axis> hc_stats_axes() {
  return {
      {"m_tiles", {1, 2, 4}, "tiles of 16 rows that share the terms of fn"},
      {"warps", {1, 2, 4, 5, 8}, "warps of a CTA, which take blocks of 32 columns in turn"},
      {"splits", {1, 2, 4, 8, 16, 32, 64, 128}, "CTAs that share the columns of a row"},
      {"rows_per_gate_cta", {1, 4, 32}, "rows of a CTA of the kernel that makes the gates"},
  };
}

inline std::vector<Rule> hc_stats_rules() {
  return {
      {"a warp would have no column",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["splits"] * c["warps"] <= hc_blocks(s);
       }},
      {"a warp would add more than 256 blocks one by one",
       [](const Sizes& s, const Config& c, const Gpu&) {
         constexpr int64_t kMostBlocks = 256;
         return hc_blocks(s) <= kMostBlocks * c["splits"] * c["warps"];
       }},
      {"a CTA would hold more than 48 KB of sums",
       [](const Sizes&, const Config& c, const Gpu&) {
         constexpr int64_t kMostSharedBytes = 48 << 10;
         return c["warps"] * c["m_tiles"] * 16 * (kHcGates + 1) * 4 <= kMostSharedBytes;
       }},
  };
}

inline Config hc_stats_default(const Sizes& s) {
  const int64_t warps = std::min<int64_t>(4, hc_blocks(s));
  int64_t splits = 16;
  while (splits > 1 && splits * warps > hc_blocks(s)) splits /= 2;
  return {{"m_tiles", 1}, {"warps", warps}, {"splits", splits}, {"rows_per_gate_cta", 4}};
}

// Adds the two kernels and what they need to the plan of an op; `prefix` begins their names.
inline void add_hc_stats(LaunchPlan& plan, const std::string& prefix, const Sizes& s,
                         const Config& c) {
  KernelLaunch partials{.file = "partials.cu", .entry = prefix + "_partials"};
  constexpr int64_t kAllTerms = 3, kLeadingTerms = 2;  // bf16 that stand for an element of fn
  const bool is_tf32 = s.get("precision", kHcFp32) == kHcTf32;
  partials.constants = {constant("columns", s["K"]), constant("num_streams", hc_stat_streams(s)),
                        constant("terms", is_tf32 ? kLeadingTerms : kAllTerms),
                        constant("warps", c["warps"]), constant("m_tiles", c["m_tiles"])};
  partials.grid_x = {.terms = {{.symbol = "T", .divisor = 16 * c["m_tiles"]}}};
  partials.grid_y = {.offset = c["splits"], .scale = 0};
  partials.threads = static_cast<int>(kHcWarp * c["warps"]);
  const double tiles = static_cast<double>(c["m_tiles"]);
  const double of_warp = static_cast<double>((hc_blocks(s) + c["splits"] * c["warps"] - 1) /
                                             (c["splits"] * c["warps"]));
  partials.instructions_per_thread = 150 + of_warp * (190 + 75 * tiles);
  plan.kernels.push_back(std::move(partials));

  KernelLaunch gates{.file = "gates.cu", .entry = prefix + "_gates"};
  gates.constants = {
      constant("columns", s["K"]),     constant("num_streams", hc_stat_streams(s)),
      constant("splits", c["splits"]), constant("groups", std::min(kHcGateWarps, c["splits"])),
      constant("warps", kHcGateWarps), constant("rows_per_cta", c["rows_per_gate_cta"])};
  gates.grid_x = {.terms = {{.symbol = "T", .divisor = c["rows_per_gate_cta"]}}};
  gates.threads = static_cast<int>(kHcWarp * kHcGateWarps);
  gates.instructions_per_thread = 2500;
  plan.kernels.push_back(std::move(gates));

  plan.workspace_bytes = {.scale = c["splits"] * kHcSlotBytes, .terms = {{"T"}}};
  plan.reduction_signature =
      fmt::format("blocks of 32 by {} warps of {} splits", c["warps"], c["splits"]);
}

// Bytes of x in the format of the shape.
inline double hc_x_bytes(const Sizes& s) {
  const double columns = static_cast<double>(s["K"]);
  const int64_t format = s["x_format"];
  return (format != kHcCodes ? 2 * columns : 0) +
         (format != kHcBf16 ? columns + columns / static_cast<double>(kHcGroup) : 0);
}

}  // namespace kiln::templates
