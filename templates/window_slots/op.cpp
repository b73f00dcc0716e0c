// The slots of each row's window in the paged window caches (ops.md B13.2, bit-exact), for any
// number of caches with tables of their own.
//   start = max(pos - (window - 1), 0, replay_start[b])     n = pos - start + 1
//   slots[g, t, i] = slot of position start + i in cache g, i < n; else -1
#include <algorithm>

#include "templates/op.h"

namespace kiln::templates {

extern const Op window_slots;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// Stored in problems as names; the numbers are constants of the kernel.
enum Form : int64_t { kCausal = 0, kDraft = 1 };

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]);
  const double groups = static_cast<double>(s.get("G", 1));
  const double columns = static_cast<double>(s["W"]);
  return Cost{.warm_read_bytes = rows * 9,
              .write_bytes = rows * (groups * 4 * columns + 4),
              .integer_operations = rows * groups * columns * 8};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads_per_row", {32, 64}, "threads that share a row; whole warps"},
      {"rows_per_cta", {1, 2, 4, 8}, "rows that one CTA writes"},
  };
  return space;
}

Config default_config(const Sizes&) { return {{"threads_per_row", 32}, {"rows_per_cta", 4}}; }

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "window_slots"};
  kernel.constants = {constant("window", s["window"]),
                      {"is_draft", "bool", s["form"] == kDraft ? "true" : "false"},
                      constant("threads_per_row", c["threads_per_row"]),
                      constant("rows_per_cta", c["rows_per_cta"])};
  kernel.grid_x = {.terms = {{.symbol = "T", .divisor = c["rows_per_cta"]}, {.symbol = "G"}}};
  kernel.threads = static_cast<int>(c["threads_per_row"] * c["rows_per_cta"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double vectors =
      static_cast<double>(s["W"]) / 4 / static_cast<double>(c["threads_per_row"]);
  return ModelHints{.bytes_in_flight_per_thread = 16,
                    .instructions_per_thread = 80 + vectors * 40,
                    .dependent_loads = 2};
}

const ShapeCondition causal{.symbol = "form", .values = {kCausal}};
const ShapeCondition draft{.symbol = "form", .values = {kDraft}};

Arg at_any_byte(Arg arg) {
  arg.align_bytes = 1;
  return arg;
}

}  // namespace

const Op window_slots{
    .name = "window_slots",
    .version = 1,
    .summary = "Writes the slots of each row's window in the paged window caches.",
    .doc =
        "For row t of request b = requests[t], where is_valid[t] is not 0 (NULL: everywhere), and "
        "for each group g of caches, which has a block table of its own:\n"
        "  causal: last = positions[t];     start = max(last - (window - 1), 0, replay_start[b])\n"
        "  draft:  last = seq_lens[b] - 1;  start = max(seq_lens[b] - query_len[b] - window, 0)\n"
        "  n     = last - start + 1, at least 0, at most slot_width\n"
        "  slots[g, t, i] = block_table[g, b, x / page_size] * page_size + x % page_size,\n"
        "                   x = start + i, for i < n\n"
        "  slots[g, t, i] = -1  for n <= i < slot_width\n"
        "  lens[t] = n\n"
        "The oldest position stands first. Other rows are padding: slots all -1, lens 0, and "
        "nothing is read through their request. In the form draft all rows of a request see the "
        "window before the block and the whole block.\n"
        "A page outside 0 .. num_pages - 1 and a column beyond the table give -1, so does a "
        "request outside 0 .. num_requests - 1 (in the form draft it has n = 0); these columns "
        "still count in lens. Entries of block_table that no window reaches are never read: their "
        "pages may have been freed.\n"
        "One call serves all layers: slots and lens are the caller's memory, and "
        "sparse_mla_decode reads one group of them as window_slots and window_lens.",
    .source = "ops.md B13.2, (f)8",
    .sizes =
        {
            fixed("window", "window", "positions that a row sees, itself included", 1, 8192),
            fixed("form", "form",
                  "causal: a row sees up to itself; draft: up to the end of its request",
                  {{"causal", kCausal}, {"draft", kDraft}}),
            stepped(dynamic("T", "num_rows", "rows, padding included", 0, kMaxInt32), "row"),
            stepped(dynamic("G", "num_groups", "groups of caches with a block table of their own",
                            1, kMaxInt32),
                    "group"),
            stepped(dynamic("R", "num_requests", "requests", 0, kMaxInt32 - 1), "request"),
            dynamic("W", "slot_width", "columns of slots that are written", 0, kMaxInt32),
            dynamic("table_width", "table_width", "columns of block_table", 0, kMaxInt32),
            dynamic("page_size", "page_size", "entries of a page", 1, 65536),
            dynamic("num_pages", "num_pages", "pages of each cache", 0, kMaxInt32),
            derived("boundaries", "boundary of requests",
                    [](const Sizes& s) { return s["R"] + 1; }),
        },
    .args =
        {
            only_in(causal, in("positions", DType::i32, "T",
                               "position of each row; below 0: the row has no window")),
            in("requests", DType::i32, "T", "request of each row"),
            at_any_byte(optional(
                in("is_valid", DType::u8, "T", "0 for a row of padding; NULL: no row is"))),
            only_in(draft, in("query_start_loc", DType::i32, "boundaries",
                              "first row of each request and, last, their end; query_len is the "
                              "distance of two")),
            only_in(draft,
                    in("seq_lens", DType::i32, "R", "tokens of each request after this step")),
            only_in(causal, optional(in("replay_start", DType::i32, "R",
                                        "first position of each request that has an entry; NULL "
                                        "means 0"))),
            in("block_table", DType::i32, "G R table_width",
               "page of the cache for each page of a request; only entries in use are read"),
            out("slots", DType::i32, "G T W", "slots of the caches; -1: none"),
            out("lens", DType::i32, "T", "columns of slots that count, in every group"),
        },
    .requirements =
        {
            {.small = {.terms = {{"window"}}},
             .big = {.terms = {{"W"}}},
             .sentence = "slot_width is at least window"},
            {.small = {.terms = {{"num_pages"}, {"page_size"}}},
             .big = {.offset = kMaxInt32, .scale = 0},
             .sentence = "num_pages * page_size is at most 2147483647, so that a slot fits an "
                         "int32"},
            {.small = {.terms = {{"T"}, {"G"}}},
             .big = {.offset = kMaxInt32, .scale = 0},
             .sentence = "num_rows * num_groups is at most 2147483647"},
        },
    .buckets = {{"T", {1, 4, 16, 64, 256, 1024, 4096}}},
    .model_shapes =
        [](int) {
          return std::vector<Sizes>{{{"window", 128}, {"form", kCausal}},
                                    {{"window", 128}, {"form", kDraft}}};
        },
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
