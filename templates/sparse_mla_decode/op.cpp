// Attention of each row over two lists of slots of paged caches (ops.md B14, B14.1).
//   s[h, n] = 512^-0.5 * dot(q[t, h], k_n)   p = exp(s - max s)
//   out[t, h] = (sum_n p[h, n] * k_n) / (sum_n p[h, n] + exp(sink[h] - max s))
#include <algorithm>

#include "templates/op.h"

namespace kiln::templates {

extern const Op sparse_mla_decode;

namespace {

constexpr int64_t kHeadDim = 512;
constexpr int64_t kRopeDims = 64;
constexpr int64_t kMostHeads = 64;
constexpr int64_t kMostRows = int64_t{1} << 20;     // times 512 CTAs of the combine: 2^29
constexpr int64_t kMostColumns = int64_t{1} << 30;  // rounded up to tiles they fit an int32
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// Widths of the model: its window, its top-k.
constexpr int64_t kWindow = 128;
constexpr int64_t kTopK = 512;

// Stored in problems as names; the numbers are constants of the kernels (cache.cuh).
enum Format : int64_t { kNone = 0, kF1 = 1, kF2 = 2, kF3 = 3, kF4 = 4 };
enum Probability : int64_t { kBf16 = 0, kSplit = 1 };
enum Rope : int64_t { kNoRope = 0, kGptj = 1 };

int64_t entry_bytes(int64_t format) {
  switch (format) {
    case kNone:
      return 0;
    case kF1:
      return 512 + 16;
    case kF2:
      return 256 + 32;
    case kF3:
      return 576 + 8;
    case kF4:
      return 1024;
  }
  fail(Status::internal, "sparse_mla_decode: unknown format {}", format);
}

bool has_compressed(const Sizes& s) { return s["compressed_format"] != kNone; }

int64_t compressed_width(const Sizes& s) { return has_compressed(s) ? s["Kc"] : 0; }

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]);
  const double heads = static_cast<double>(s["H"]);
  const double window = static_cast<double>(s["Kw"]);
  const double compressed = static_cast<double>(compressed_width(s));
  const double entries = window * static_cast<double>(entry_bytes(s["window_format"])) +
                         compressed * static_cast<double>(entry_bytes(s["compressed_format"]));
  return Cost{.cold_read_bytes = rows * entries,
              .warm_read_bytes = rows * (heads * 2 * kHeadDim + 4 * (window + compressed)),
              .write_bytes = rows * heads * 2 * kHeadDim,
              .mma_fma = rows * heads * (window + compressed) * 2 * kHeadDim};
}

// What a config comes to, as the kernels derive it (layout.cuh, cache.cuh, tile.cuh, kernel.cu,
// lean.cu).
struct Tiling {
  int64_t warps, groups, heads_per_cta, splits;
  int64_t n_tiles;  // of 8 slots
  int64_t m_tiles;  // of 16 heads
  int64_t k_tiles;  // of 16 dims, of a warp
  int64_t head_blocks;
  int64_t query_tiles_in_registers;
  int64_t probability_terms;
  int64_t score_m_tiles;
  bool is_lean;  // lean.cu

  Tiling(const Sizes& s, const Config& c)
      : warps(c["warps"]),
        groups(c["groups"]),
        heads_per_cta(c["heads_per_cta"]),
        splits(c["splits"]),
        n_tiles(c["tile_slots"] / 8),
        m_tiles(heads_per_cta / 16),
        k_tiles(kHeadDim / 16 / warps),
        head_blocks((s["H"] + heads_per_cta - 1) / heads_per_cta),
        query_tiles_in_registers(k_tiles * c["query_quarters_in_registers"] / 4),
        probability_terms(s["probability"] == kSplit ? 2 : 1),
        score_m_tiles(c["score_m_tiles"]),
        is_lean(c["lean"] != 0) {}
};

// Codes of one tile's entries in the strip of a warp.
int64_t strip_bytes(int64_t format, const Tiling& t) {
  if (format == kNone) return 0;
  const int64_t lane_bytes = format == kF2 ? 8 : format == kF4 ? 32 : 16;
  return t.n_tiles * (kHeadDim / 64 / t.warps) * lane_bytes * 32;
}

int64_t smem_bytes(const Sizes& s, const Config& c) {
  const Tiling t(s, c);
  const int64_t strip =
      std::max(strip_bytes(s["window_format"], t), strip_bytes(s["compressed_format"], t));
  const bool has_f3 = s["window_format"] == kF3 || s["compressed_format"] == kF3;
  const int64_t stage = t.warps * (strip + 8 * c["tile_slots"]) + (has_f3 ? t.n_tiles * 512 : 0);
  const int64_t head_groups = (std::min(s["H"], t.heads_per_cta) + 7) / 8;
  const int64_t queries = t.warps * t.m_tiles * (t.k_tiles - t.query_tiles_in_registers) * 512;
  const int64_t scores = head_groups * t.warps * t.n_tiles * 256;
  const int64_t probabilities = t.probability_terms * t.m_tiles * (t.n_tiles / 2) * 512;
  if (t.is_lean) {
    return t.warps * 16 * c["tile_slots"] + 12 * t.heads_per_cta + c["stages"] * stage + scores +
           probabilities;
  }
  const int64_t places = 2 * t.warps * (16 * c["tile_slots"] + 4);
  const int64_t group = places + 4 * t.heads_per_cta + c["stages"] * stage + scores + probabilities;
  const int64_t kept = (4 + 8 * t.groups) * t.heads_per_cta;
  const int64_t exchange = (t.groups - 1) * t.heads_per_cta * 4 * kHeadDim;
  return kept + std::max(queries + t.groups * group, exchange);
}

// Registers that hold tiles, and what everything else takes at least.
int64_t least_registers(const Sizes& s, const Config& c) {
  const Tiling t(s, c);
  constexpr int64_t kOther = 48;
  const int64_t output = t.m_tiles * t.k_tiles * 8;
  const int64_t keys = t.n_tiles * t.k_tiles * 2;
  const int64_t queries = t.m_tiles * t.query_tiles_in_registers * 4;
  const int64_t scores = std::max<int64_t>(t.n_tiles, 4) * t.score_m_tiles * 4;
  return output + keys + queries + scores + kOther;
}

// What is compiled and tried: each has been the fastest somewhere or close to it (NOTES.md). All
// other combinations of the axes cost minutes of compiling and were behind or spill.
struct TilingRow {
  int tile_slots, heads_per_cta, warps, groups, stages, query_quarters_in_registers, score_m_tiles,
      decode_among_products, ctas_per_sm, lean;
};
// clang-format off
constexpr TilingRow kTilings[] = {
    {16, 16, 4, 1, 1, 0, 1, 1, 2, 0},  // the default
    {32, 16, 4, 1, 1, 0, 1, 1, 2, 0}, {32, 16, 4, 1, 2, 0, 1, 1, 2, 0},
    {32, 16, 4, 2, 1, 2, 1, 1, 1, 0}, {32, 16, 4, 2, 1, 0, 1, 1, 1, 0},
    {32, 16, 4, 2, 1, 4, 1, 1, 1, 0}, {32, 16, 8, 1, 1, 4, 1, 1, 1, 0},
    {32, 16, 8, 2, 1, 0, 1, 1, 1, 0}, {32, 32, 4, 1, 1, 0, 1, 1, 2, 0},
    {32, 32, 4, 1, 1, 0, 1, 0, 2, 0}, {16, 32, 4, 1, 1, 1, 1, 1, 2, 0},
    {16, 32, 4, 1, 1, 1, 2, 1, 2, 0}, {32, 32, 4, 2, 1, 0, 1, 1, 1, 0},
    {32, 32, 8, 1, 1, 4, 2, 1, 1, 0},
    // Parts of few tiles.
    {32, 16, 8, 1, 1, 4, 1, 1, 1, 1},
};
// clang-format on

bool is_listed(const Config& c) {
  return std::any_of(std::begin(kTilings), std::end(kTilings), [&](const TilingRow& row) {
    return c["tile_slots"] == row.tile_slots && c["heads_per_cta"] == row.heads_per_cta &&
           c["warps"] == row.warps && c["groups"] == row.groups && c["stages"] == row.stages &&
           c["query_quarters_in_registers"] == row.query_quarters_in_registers &&
           c["score_m_tiles"] == row.score_m_tiles &&
           c["decode_among_products"] == row.decode_among_products &&
           c["ctas_per_sm"] == row.ctas_per_sm && c["lean"] == row.lean;
  });
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"tile_slots", {16, 32}, "slots that a group of warps takes in one step"},
      {"splits", {1, 2, 4, 5, 8, 10, 20, 40}, "CTAs that share the slots of a row"},
      {"heads_per_cta", {16, 32}, "heads of a CTA"},
      {"warps", {4, 8}, "warps of a group, each with its part of the 512 dims"},
      {"groups", {1, 2}, "groups of warps of a CTA, each with its part of the slots"},
      {"stages", {1, 2}, "tiles of raw codes under way"},
      {"query_quarters_in_registers", {0, 1, 2, 4}, "quarters of the queries kept in registers"},
      {"score_m_tiles", {1, 2}, "tiles of 16 heads whose scores are formed at once"},
      {"decode_among_products", {0, 1}, "1: keys are decoded among the score products, 0: before"},
      {"ctas_per_sm", {1, 2}, "CTAs of an SM that the registers are cut for"},
      {"lean", {0, 1}, "1: the kernel for parts of few tiles"},
  };
  space.rules = {
      {"a combination that was never near the fastest",
       [](const Sizes&, const Config& c, const Gpu&) { return is_listed(c); }},
      {"the part of a group would be shorter than a tile",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["splits"] * c["groups"] * c["tile_slots"] <=
                kWindow + (has_compressed(s) ? kTopK : 0);
       }},
      {"a CTA would hold more tiles of heads than there are",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["heads_per_cta"] == 16 || c["heads_per_cta"] < 2 * s["H"];
       }},
      {"the tiles of a thread would not fit its registers",
       [](const Sizes& s, const Config& c, const Gpu& gpu) {
         const int64_t given = std::min<int64_t>(
             gpu.max_registers_per_thread + 1,
             gpu.registers_per_sm / (32 * c["warps"] * c["groups"] * c["ctas_per_sm"]));
         return least_registers(s, c) <= given;
       }},
      {"the CTAs of an SM would want more shared memory than it has",
       [](const Sizes& s, const Config& c, const Gpu& gpu) {
         const int64_t bytes = smem_bytes(s, c);
         return bytes <= gpu.smem_per_cta_optin_bytes &&
                c["ctas_per_sm"] * (bytes + gpu.smem_reserved_per_cta_bytes) <=
                    gpu.smem_per_sm_bytes;
       }},
  };
  return space;
}

// One split needs no workspace, whatever the number of rows.
Config default_config(const Sizes&) {
  return {{"tile_slots", 16},   {"splits", 1}, {"heads_per_cta", 16},
          {"warps", 4},         {"stages", 1}, {"query_quarters_in_registers", 0},
          {"score_m_tiles", 1}, {"groups", 1}, {"decode_among_products", 1},
          {"ctas_per_sm", 2},   {"lean", 0}};
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  const Tiling t(s, c);
  LaunchPlan plan;
  const std::vector<jit::Constant> shared_by_both{
      constant("heads", s["H"]),
      constant("heads_per_cta", t.heads_per_cta),
      {"inverse_rope", "bool", s["inverse_rope"] == kGptj ? "true" : "false"},
  };

  KernelLaunch decode{.file = "kernel.cu", .entry = "sparse_mla_decode"};
  if (t.is_lean) decode = {.file = "lean.cu", .entry = "sparse_mla_decode_lean"};
  decode.constants = shared_by_both;
  for (jit::Constant& own : std::vector<jit::Constant>{
           constant("window_format", s["window_format"]),
           constant("compressed_format", s["compressed_format"]),
           {"is_split", "bool", t.splits > 1 ? "true" : "false"},
           {"split_probability", "bool", s["probability"] == kSplit ? "true" : "false"},
           constant("warps", t.warps),
           constant("tile_slots", c["tile_slots"]),
           constant("stages", c["stages"]),
           constant("query_tiles_in_registers", t.query_tiles_in_registers),
           constant("score_m_tiles", c["score_m_tiles"]),
           {"decode_among_products", "bool", c["decode_among_products"] != 0 ? "true" : "false"},
           constant("groups", t.groups),
           constant("ctas_per_sm", c["ctas_per_sm"]),
       })
    decode.constants.push_back(std::move(own));
  // How many splits is a matter of the grid: one binary serves them all.
  decode.grid_x = {.scale = t.head_blocks, .terms = {{"T"}}};
  decode.grid_y = {.offset = t.splits, .scale = 0};
  decode.threads = static_cast<int>(32 * t.warps * t.groups);
  decode.dynamic_smem_bytes = smem_bytes(s, c);
  plan.kernels.push_back(std::move(decode));

  if (t.splits > 1) {
    // Eight lanes share the splits of a column where there are many of them.
    const int64_t split_lanes = t.splits >= 8 ? 8 : 1;
    constexpr int64_t kCombineWarps = 2;
    KernelLaunch combine{.file = "combine.cu", .entry = "sparse_mla_combine"};
    combine.constants = shared_by_both;
    combine.constants.push_back(constant("splits", t.splits));
    combine.constants.push_back(constant("split_lanes", split_lanes));
    combine.constants.push_back(constant("block_warps", kCombineWarps));
    combine.grid_x = {.scale = s["H"] * 2 * split_lanes / kCombineWarps, .terms = {{"T"}}};
    combine.threads = static_cast<int>(32 * kCombineWarps);
    combine.instructions_per_thread = 200;
    plan.kernels.push_back(std::move(combine));
    // Of each row, split and head: the output in 24 bits, its reference, its sum.
    plan.workspace_bytes = {
        .scale = t.splits * t.head_blocks * t.heads_per_cta * (3 * kHeadDim + 8), .terms = {{"T"}}};
  }
  // Dims are summed within warps, then over them; p is summed within lanes, then over them; groups
  // are joined before splits.
  plan.reduction_signature = fmt::format(
      "tiles of {} slots{}, {} splits of {} groups, {} warps, {} lanes a head", c["tile_slots"],
      t.is_lean ? " by turns" : "", t.splits, t.groups, t.warps, 32 * t.warps / t.heads_per_cta);
  return plan;
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const Tiling t(s, c);
  const int64_t slots = s["Kw"] + compressed_width(s);
  const int64_t tiles = (slots + c["tile_slots"] - 1) / c["tile_slots"];
  const double tiles_per_cta =
      static_cast<double>((tiles + t.splits * t.groups - 1) / (t.splits * t.groups));
  const double bytes_per_tile =
      static_cast<double>(c["tile_slots"] * std::max(entry_bytes(s["window_format"]),
                                                     entry_bytes(s["compressed_format"])));
  // Of a warp and a tile: addresses and softmax; then of each fragment of keys the decoding, and of
  // each tile of heads two mma and what feeds them.
  const double instructions =
      180 + static_cast<double>(t.n_tiles * t.k_tiles) * (8 + 5 * static_cast<double>(t.m_tiles));
  const double start_and_end = t.is_lean ? 250 : 400;
  return ModelHints{
      .bytes_in_flight_per_thread =
          static_cast<double>(c["stages"]) * bytes_per_tile / (32 * static_cast<double>(t.warps)),
      .instructions_per_thread = start_and_end + tiles_per_cta * instructions,
      .dependent_loads = 2 + tiles_per_cta / static_cast<double>(c["stages"]),
  };
}

std::vector<Sizes> model_shapes(int tensor_parallel) {
  const int64_t heads = kMostHeads / tensor_parallel;
  std::vector<Sizes> shapes;
  for (const auto& [window, compressed] : std::vector<std::pair<int64_t, int64_t>>{
           {kF1, kF2}, {kF3, kF3}, {kF1, kNone}, {kF3, kNone}}) {
    shapes.push_back({{"H", heads},
                      {"window_format", window},
                      {"compressed_format", compressed},
                      {"probability", kBf16},
                      {"inverse_rope", kNoRope}});
  }
  return shapes;
}

const ShapeCondition with_compressed{.symbol = "compressed_format", .values = {kF1, kF2, kF3, kF4}};
const ShapeCondition with_rope{.symbol = "inverse_rope", .values = {kGptj}};

Arg cache(std::string name, std::string pages, std::string page_bytes, std::string doc,
          ShapeCondition only_in) {
  return Arg{.name = std::move(name),
             .dtype = DType::u8,
             .kind = ArgKind::input,
             .dims = {std::move(pages), std::move(page_bytes)},
             .doc = std::move(doc),
             .only_in = std::move(only_in),
             .memory = Memory::cold,
             .align_bytes = 16,
             .stride_multiple = 16};
}

}  // namespace

const Op sparse_mla_decode{
    .name = "sparse_mla_decode",
    .version = 2,
    .summary =
        "Attention of each row over the keys that its two lists of slots name in paged caches; a "
        "key is also its value.",
    .doc =
        "For row t and local head h, over the valid columns n of the window list and then of the "
        "compressed list:\n"
        "  s[n] = 512^-0.5 * dot(q[t, h], k_n)          fp32 sums\n"
        "  m    = max_n s[n];  p[n] = exp(s[n] - m);  l = sum_n p[n]\n"
        "  out[t, h, 0..511] = (sum_n p[n] * k_n) / (l + exp(sink[h] - m))\n"
        "  lse[t, h] = m + ln(l)                          natural, without the sink\n"
        "Column n of a list is valid when n < lens[t] and its slot is in 0 .. num_pages * "
        "page_size - 1; -1 and any other number outside is skipped wherever it stands. A length "
        "below 0 counts as 0, one above the width as the width; any width from 0 up is legal. "
        "Nothing is read through a column that is not valid. A slot that is listed twice counts "
        "twice. k_n is the entry of its slot, 512 bf16 values dequantised as by gather_dequant_kv; "
        "here the E4M3 codes 0x7f and 0xff read as 480 and -480, and a UE8M0 scale of 255 is "
        "undefined: no writer stores them.\n"
        "An element that is not finite spoils no more than depends on it: one of q its head of its "
        "row, one of sink its head of all rows, one of a valid slot the rows that list the slot. "
        "With compressed_format \"none\" the compressed sizes are not used.\n"
        "A row without valid columns gives out = 0 (with inverse_rope of either sign) and lse = "
        "-infinity. A sink of -infinity is "
        "the same as none, +infinity gives out = 0; so does one above m by more than 88.\n"
        "With probability \"bf16\" p is rounded to bf16 before it multiplies the values, as the "
        "model's reference does; with \"split\" it keeps 16 bits, at twice the work of that "
        "product.\n"
        "With inverse_rope \"gptj\" elements 448..511 of out are rotated back by the row's "
        "position, pair by pair, after a rounding to bf16:\n"
        "  a' = a * cos + b * sin;  b' = b * cos - a * sin\n"
        "Slot page * page_size + r is entry r of the page. Pages hold first the codes of all "
        "entries, then their scales (ops.md B8):\n"
        "  f1: 512 E4M3 codes, 16 UE8M0 scales (one per 32 elements)             528 bytes an "
        "entry\n"
        "  f2: 512 E2M1 codes (even element in bits 0..3), 32 E4M3 scales (one per 16)   288 "
        "bytes\n"
        "  f3: 448 E4M3 codes then 64 bf16, 8 UE8M0 scales (one per 64, the last unused) 584 "
        "bytes\n"
        "  f4: 512 bf16                                                         1024 bytes\n"
        "The bits of a row depend on the two widths and the kernels, not on the other rows.",
    .source = "ops.md B14, B14.1, B8, B16.1, (f)9",
    .sizes =
        {
            stepped(fixed("H", "num_heads", "local heads", 1, kMostHeads), "head"),
            fixed("window_format", "window_format", "layout of the window cache",
                  {{"f1", kF1}, {"f2", kF2}, {"f3", kF3}, {"f4", kF4}}),
            fixed("compressed_format", "compressed_format",
                  "layout of the compressed cache; none: the layer has no compressed list",
                  {{"none", kNone}, {"f1", kF1}, {"f2", kF2}, {"f3", kF3}, {"f4", kF4}}),
            fixed("probability", "probability", "precision of p in the product with the values",
                  {{"bf16", kBf16}, {"split", kSplit}}),
            fixed("inverse_rope", "inverse_rope", "rotation of the last 64 elements of out",
                  {{"none", kNoRope}, {"gptj", kGptj}}),
            stepped(dynamic("T", "num_rows", "rows, padding included", 0, kMostRows), "row"),
            dynamic("Kw", "window_width", "columns of window_slots", 0, kMostColumns),
            dynamic("Kc", "compressed_width", "columns of compressed_slots", 0, kMostColumns),
            dynamic("window_page_size", "window_page_size", "entries of a page", 1, 65536),
            stepped(dynamic("num_window_pages", "num_window_pages", "pages of window_cache", 0,
                            kMaxInt32),
                    "page"),
            dynamic("compressed_page_size", "compressed_page_size",
                    "entries of a page; 0 is for layers without a compressed list", 0, 65536),
            stepped(dynamic("num_compressed_pages", "num_compressed_pages",
                            "pages of compressed_cache", 0, kMaxInt32),
                    "page"),
            stepped(dynamic("P", "num_positions", "rows of rope_table", 0, kMaxInt32), "position"),
            derived("window_page_bytes", "byte of a page",
                    [](const Sizes& s) {
                      return s["window_page_size"] * entry_bytes(s["window_format"]);
                    }),
            derived("compressed_page_bytes", "byte of a page",
                    [](const Sizes& s) {
                      return s["compressed_page_size"] * entry_bytes(s["compressed_format"]);
                    }),
            derived("512", "element", [](const Sizes&) { return kHeadDim; }),
            derived("64", "element", [](const Sizes&) { return kRopeDims; }),
        },
    .args =
        {
            vectors(in("q", DType::bf16, "T H 512", "queries after RoPE, not scaled"), 8),
            cache("window_cache", "num_window_pages", "window_page_bytes",
                  "pages of entries of this layer", {}),
            in("window_slots", DType::i32, "T Kw", "slots of window_cache; -1: none"),
            in("window_lens", DType::i32, "T", "columns of window_slots that count"),
            cache("compressed_cache", "num_compressed_pages", "compressed_page_bytes",
                  "pages of entries of the layer that compressed them", with_compressed),
            only_in(with_compressed, in("compressed_slots", DType::i32, "T Kc",
                                        "slots of compressed_cache; -1: none")),
            only_in(with_compressed, in("compressed_lens", DType::i32, "T",
                                        "columns of compressed_slots that count")),
            optional(in("sink", DType::f32, "H", "logit of each head that has no value")),
            only_in(with_rope,
                    in("positions", DType::i32, "T",
                       "row of rope_table for each row; one outside of it is not rotated")),
            only_in(with_rope, in("rope_table", DType::f32, "P 64",
                                  "of each position 32 cosines, then 32 sines")),
            vectors(out("out", DType::bf16, "T H 512", "attention output"), 8),
            to_within(optional(out("lse", DType::f32, "T H", "log of the sum of exp(s)")),
                      1.0 / 65536),
        },
    .requirements =
        {
            {.small = {.terms = {{"num_window_pages"}, {"window_page_size"}}},
             .big = {.offset = kMaxInt32, .scale = 0},
             .sentence = "num_window_pages * window_page_size is at most 2147483647, so that a "
                         "slot fits an int32"},
            {.small = {.terms = {{"num_compressed_pages"}, {"compressed_page_size"}}},
             .big = {.offset = kMaxInt32, .scale = 0},
             .sentence = "num_compressed_pages * compressed_page_size is at most 2147483647, so "
                         "that a slot fits an int32"},
        },
    .buckets = {{"T", {1, 4, 16, 64, 256, 1024}}},
    .has_workspace = true,
    .tolerance = {Tolerance::Kind::relative_rms, 1.0 / 256},
    .model_shapes = model_shapes,
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
