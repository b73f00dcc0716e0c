// Normalises, rotates, quantises and writes the index keys of a step into their paged cache (ops.md
// B10, B8, bit-exact).
//   cache[slots[t]] = quantised(rope(norm(k[t]), first position of the group of positions[t]))
#include "templates/op_insert.h"

namespace kiln::templates {

extern const Op index_key_insert;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kLanesPerRow = 16;  // of 8 elements

// Stored in problems as names; the numbers are constants of the kernel.
enum Format : int64_t { kF5 = 5, kF6 = 6 };

int64_t entry_bytes(int64_t format) { return format == kF5 ? 64 + 4 : 128 + 4; }

Cost cost(const Sizes& s) { return insert_cost(s, 128, entry_bytes(s["format"]), 6); }

Space space(const Sizes&, const Gpu&) { return insert_space(kLanesPerRow); }

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  return LaunchPlan{
      .kernels = {insert_launch("index_key_insert",
                                {constant("format", s["format"]), constant("ratio", s["ratio"])},
                                kLanesPerRow, c)},
      .reduction_signature = "pieces of 8, then halves"};
}

ModelHints model(const Sizes&, const Config& c, const Gpu&) { return insert_model(c, 220, 80); }

}  // namespace

const Op index_key_insert{
    .name = "index_key_insert",
    .version = 1,
    .summary =
        "Normalises, rotates, quantises and writes the index keys of a step into their paged "
        "cache.",
    .doc =
        "For row t, s = slots[t], p = positions[t] - positions[t] % ratio, the first position of "
        "the group:\n"
        "  x  = bf16((k[t] * r) * weight), r = 1 / sqrt(sum(k[t]^2) / 128 + 1e-20)\n"
        "  x' = x with its last 64 elements rotated: in pairs i = 0..31\n"
        "    a' = a * cos - b * sin, b' = a * sin + b * cos\n"
        "    cos = rope_table[p, i], sin = rope_table[p, 32 + i]\n"
        "    in fp32, products rounded, then one addition, then bf16 (nearest even)\n"
        "  entry s % page_size of page s / page_size = x', quantised\n"
        "k is the product of latent and wk, rounded to bf16. The norm is that of rms_norm, to the "
        "bit, and so is the order of its sum; every config adds in the same order.\n"
        "Formats; a page holds first the codes of all entries, then their scales (ops.md B8):\n"
        "  f5: q4m: 128 E2M1 codes (even element in bits 0..3), 4 UE8M0 scales (one per 32)   68 "
        "bytes\n"
        "  f6: q8k: 128 E4M3 codes, one scale 2^n in fp32                                    132 "
        "bytes\n"
        "q4m is that of act_quant; q8k is its q8a with one group of 128. A group that holds a NaN "
        "or an infinity becomes scale 255 and codes 0 (f5), or scale 0x7fc00000 and codes 0x7f "
        "(f6).\n"
        "A row whose slot is negative or beyond the cache is not written. The caller gives the "
        "slot -1 to a row whose token completes no group, and to one whose group compressor_update "
        "has not completed because the request has no block of the ring: nothing new stands in "
        "such a row. Entries are written whole; every other byte of the cache is left as it is. No "
        "two rows have the same slot.",
    .source = "ops.md B3, B4, B5, B8, B10, (f)4, (f)5",
    .sizes =
        {
            fixed("format", "format", "layout of the cache", {{"f5", kF5}, {"f6", kF6}}),
            fixed("ratio", "ratio", "tokens of an entry", 1, 128),
            stepped(dynamic("T", "num_rows", "rows of the step, padding included", 0, kMaxInt32),
                    "row"),
            stepped(dynamic("P", "num_positions", "rows of rope_table", 0, kMaxInt32), "position"),
            dynamic("page_size", "page_size", "entries of a page", 1, 65536),
            stepped(dynamic("num_pages", "num_pages", "pages of the cache", 0, kMaxInt32),
                    "page of the cache"),
            derived("page_bytes", "byte of a page",
                    [](const Sizes& s) { return s["page_size"] * entry_bytes(s["format"]); }),
            derived("128", "element", [](const Sizes&) { return int64_t{128}; }),
            derived("64", "element", [](const Sizes&) { return int64_t{64}; }),
        },
    .args =
        {
            vectors(in("k", DType::bf16, "T 128", "index keys before their norm"), 8),
            vectors(in("weight", DType::bf16, "128", "of the norm"), 1),
            in("positions", DType::i32, "T",
               "position of a token of each row's group; a row whose position is outside of "
               "rope_table is not rotated"),
            in("slots", DType::i64, "T", "where each row goes in the cache"),
            insert_rope_table(),
            insert_cache(4),
        },
    .requirements = {insert_requirement()},
    .buckets = {{"T", {1, 16, 256, 4096}}},
    .invariance = Op::Invariance::always,
    .model_shapes =
        [](int) {
          std::vector<Sizes> shapes;
          for (const int64_t format : {kF5, kF6}) {
            for (const int64_t ratio : {1, 2})
              shapes.push_back({{"format", format}, {"ratio", ratio}});
          }
          return shapes;
        },
    .cost = cost,
    .space = space,
    .default_config = insert_default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
