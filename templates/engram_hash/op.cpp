// Rows of the Engram table for each token: hashes of the n-grams that end there (ops.md B19.2).
//   r = t0 * m0, xor t1 * m1, xor ..;   rows[t, col] = r mod primes[col] + offsets[col]
#include <limits>

#include "templates/op.h"

namespace kiln::templates {

extern const Op engram_hash;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kLookBacks = 3;
constexpr int64_t kMostHeads = 64;

int64_t columns(const Sizes& s) { return kLookBacks * s["heads"]; }

std::vector<Sizes> model_shapes(int) { return {{{"heads", 8}}}; }

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]);
  const double all = static_cast<double>(columns(s));
  return Cost{.warm_read_bytes = rows * 8 + static_cast<double>(s["R"]) * 16 + all * 8,
              .write_bytes = rows * all * 4,
              .integer_operations = rows * all * 100};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {{"threads", {32, 64, 128, 256, 512}, "threads of a CTA, one a column of a token"}};
  return space;
}

Config default_config(const Sizes&) { return {{"threads", 128}}; }

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "engram_hash"};
  kernel.constants = {constant("num_heads", s["heads"]), constant("threads", c["threads"])};
  kernel.grid_x = grid_over_rows("T", columns(s), c["threads"]);
  kernel.threads = static_cast<int>(c["threads"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes&, const Config&, const Gpu&) {
  return ModelHints{
      .bytes_in_flight_per_thread = 16, .instructions_per_thread = 180, .dependent_loads = 3};
}

}  // namespace

const Op engram_hash{
    .name = "engram_hash",
    .version = 1,
    .summary = "Rows of the Engram table for each token: hashes of the n-grams that end there.",
    .doc =
        "For row t of request b = requests[t], with t0 = ids[t] and tn the id n places before it, "
        "n = 1 .. 3, in 64-bit integers that wrap:\n"
        "  r[0] = t0 * multipliers[0];  r[n] = r[n - 1] xor (tn * multipliers[n])\n"
        "  rows[t, (n - 1) * num_heads + a] = r[n] mod primes[..] + offsets[..], of that column\n"
        "An id before the first row of b in this call is taken from history: history[b, 2] is the "
        "last one before, history[b, 1] the one before that. A negative id is dead: an image, a "
        "masked token, or nothing, as before the sequence. Where one is met, it and all farther "
        "back count as pad_id; a dead t0 makes all four pad_id, and the gate of engram_inject is "
        "shut for it.\n"
        "Ids are compressed ids, below 2^31, of one map for the vocabulary. primes are above 0; "
        "offsets are the sums of the primes before, so that every column has rows of its own, and "
        "the last row fits int32. Multipliers are odd and so small that products stay below 2^63 "
        "(ops.md B19.2 has those of the model). A row whose request is outside 0 .. num_requests - "
        "1, or a row before the first one of its request, is padding: its rows are -1, which "
        "engram_fetch reads nowhere.",
    .source = "ops.md B19.2",
    .sizes =
        {
            fixed("heads", "num_heads",
                  "hashes of each of the three lengths of n-gram; columns is 3 * num_heads", 1,
                  kMostHeads),
            stepped(dynamic("T", "num_rows", "rows (tokens), padding included", 0, kMaxInt32),
                    "row"),
            stepped(dynamic("R", "num_requests", "requests", 0, kMaxInt32 - 1), "request"),
            dynamic("pad_id", "pad_id", "id that stands for what is not there", 0, kMaxInt32),
            derived("columns", "column", columns),
            derived("boundaries", "boundary of requests",
                    [](const Sizes& s) { return s["R"] + 1; }),
            derived("3", "token before", [](const Sizes&) { return kLookBacks; }),
            derived("4", "multiplier", [](const Sizes&) { return kLookBacks + 1; }),
        },
    .args =
        {
            in("ids", DType::i32, "T", "compressed id of each row; negative: dead"),
            in("requests", DType::i32, "T", "request of each row"),
            in("query_start_loc", DType::i32, "boundaries",
               "num_requests + 1: the first row of each request, then the end, ascending; the "
               "first "
               "need not be 0"),
            in("history", DType::i32, "R 3", "ids before the first row of each request"),
            in("multipliers", DType::i64, "4", "of the token and of those before it"),
            in("primes", DType::i32, "columns", "rows of the table for each column"),
            in("offsets", DType::i32, "columns", "first row of each column"),
            out("rows", DType::i32, "T columns", "rows of the table; -1: none"),
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
