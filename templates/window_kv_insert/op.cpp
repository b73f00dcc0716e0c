// Rotates, quantises and writes the window kv of a step into its paged cache (ops.md B7, B8,
// bit-exact); the norm before can be taken in.
//   cache[slots[t]] = quantised(rope(kv[t], positions[t]))
#include "templates/op_insert.h"

namespace kiln::templates {

extern const Op window_kv_insert;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kLanesPerRow = 32;  // of twice 8 elements

// Stored in problems as names; the numbers are constants of the kernel (common/kv_insert.cuh).
enum Format : int64_t { kF1 = 1, kF3 = 3, kF4 = 4 };
enum Norm : int64_t { kNone = 0, kRms = 1 };

int64_t entry_bytes(int64_t format) { return format == kF1 ? 528 : format == kF3 ? 584 : 1024; }

Cost cost(const Sizes& s) { return insert_cost(s, 512, entry_bytes(s["format"]), 4); }

Space space(const Sizes&, const Gpu&) { return insert_space(kLanesPerRow); }

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  return LaunchPlan{
      .kernels = {insert_launch("window_kv_insert",
                                {constant("format", s["format"]),
                                 {"has_norm", "bool", s["norm"] == kRms ? "true" : "false"}},
                                kLanesPerRow, c)},
      .reduction_signature = s["norm"] == kRms ? "pieces of 8, then halves" : ""};
}

ModelHints model(const Sizes&, const Config& c, const Gpu&) { return insert_model(c, 300, 60); }

}  // namespace

const Op window_kv_insert{
    .name = "window_kv_insert",
    .version = 1,
    .summary = "Rotates, quantises and writes the window kv of a step into its paged cache.",
    .doc =
        "For row t, s = slots[t], p = positions[t]:\n"
        "  x  = kv[t], or with norm \"rms\" bf16((kv[t] * r) * weight),\n"
        "       r = 1 / sqrt(sum(kv[t]^2) / 512 + 1e-20)\n"
        "  x' = x with its last 64 elements rotated: in pairs i = 0..31\n"
        "    a' = a * cos - b * sin, b' = a * sin + b * cos\n"
        "    cos = rope_table[p, i], sin = rope_table[p, 32 + i]\n"
        "    in fp32, products rounded, then one addition, then bf16 (nearest even)\n"
        "  entry s % page_size of page s / page_size = x', quantised\n"
        "Formats; a page holds first the codes of all entries, then their scales (ops.md B8):\n"
        "  f1: q8a: 512 E4M3 codes, 16 UE8M0 scales (one per 32 elements)        528 "
        "bytes\n"
        "  f3: q8d: 448 E4M3 codes, then 64 bf16; 7 UE8M0 scales (one per 64) and a 0   584 "
        "bytes\n"
        "  f4: 512 bf16: what codes and scales of f1 stand for                  1024 bytes\n"
        "The norm is that of rms_norm, to the bit, and so is the order of its sum; every config "
        "adds in the same order. q8a and q8d are those of act_quant, to the bit: a group that "
        "holds a NaN or an infinity "
        "becomes scale 255 and codes 0x7f (f4: 0x7fc0); a NaN that rotation makes in the bf16 of "
        "f3 is 0x7fff.\n"
        "A row whose slot is negative or beyond the cache is not written. Entries are written "
        "whole; every other byte of the cache is left as it is. No two rows have the same slot.",
    .source = "ops.md B3, B4, B5, B7, B8, (f)4, (f)5",
    .sizes =
        {
            fixed("format", "format", "layout of the cache",
                  {{"f1", kF1}, {"f3", kF3}, {"f4", kF4}}),
            fixed("norm", "norm", "of the rows, before they are rotated",
                  {{"none", kNone}, {"rms", kRms}}),
            stepped(dynamic("T", "num_rows", "rows of the step, padding included", 0, kMaxInt32),
                    "row"),
            stepped(dynamic("P", "num_positions", "rows of rope_table", 0, kMaxInt32), "position"),
            dynamic("page_size", "page_size", "entries of a page", 1, 65536),
            stepped(dynamic("num_pages", "num_pages", "pages of the cache", 0, kMaxInt32),
                    "page of the cache"),
            derived("page_bytes", "byte of a page",
                    [](const Sizes& s) { return s["page_size"] * entry_bytes(s["format"]); }),
            derived("512", "element", [](const Sizes&) { return int64_t{512}; }),
            derived("64", "element", [](const Sizes&) { return int64_t{64}; }),
        },
    .args =
        {
            vectors(in("kv", DType::bf16, "T 512", "kv after its norm, or before it"), 8),
            only_in({.symbol = "norm", .values = {kRms}},
                    vectors(in("weight", DType::bf16, "512", "of the norm"), 1)),
            in("positions", DType::i32, "T",
               "row of rope_table for each row; one outside of it is not rotated"),
            in("slots", DType::i64, "T", "where each row goes in the cache"),
            insert_rope_table(),
            insert_cache(8),
        },
    .requirements = {insert_requirement()},
    .buckets = {{"T", {1, 16, 256, 4096}}},
    .invariance = Op::Invariance::always,
    .model_shapes =
        [](int) {
          std::vector<Sizes> shapes;
          for (const int64_t format : {kF1, kF3, kF4}) {
            for (const int64_t norm : {kNone, kRms})
              shapes.push_back({{"format", format}, {"norm", norm}});
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
