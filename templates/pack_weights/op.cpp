// Weights from the layout of a checkpoint to the one that the linears read fastest. One packed
// layout per weight format; a linear says by its shape which of the two it is given.
#include "templates/op.h"

namespace kiln::templates {

extern const Op pack_weights;

namespace {

constexpr int64_t kBlockRows = 8;
constexpr int64_t kBlockColumns = 64;
constexpr int64_t kBlockBytes = kBlockRows * kBlockColumns;
// Rows / 8 times blocks of a row stay below 2^31, the most CTAs of a grid.
constexpr int64_t kMostRows = int64_t{1} << 23;
constexpr int64_t kMostColumns = int64_t{1} << 16;

enum Format : int64_t { kE4m3 = 0 };

Extent block_rows(const Sizes&) { return {.terms = {{"R", kBlockRows}}}; }
Extent block_row_bytes(const Sizes&) {
  return {.scale = kBlockBytes, .terms = {{"K", kBlockColumns}}};
}

Cost cost(const Sizes& s) {
  return Cost{.cold_read_bytes = static_cast<double>(s["R"] * s["K"]),
              .write_bytes = static_cast<double>(s["block_rows"] * s["block_row_bytes"])};
}

Space space(const Sizes&, const Gpu&) {
  return Space{.axes = {{"warps", {1, 2, 4}, "warps of a CTA, a block each"}}, .rules = {}};
}

Config default_config(const Sizes&) { return {{"warps", 4}}; }

LaunchPlan plan(const Sizes&, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "pack_weights"};
  kernel.constants = {{"warps", "int", std::to_string(c["warps"])}};
  kernel.grid_x = {.terms = {{.symbol = "R", .divisor = kBlockRows * c["warps"]},
                             {.symbol = "K", .divisor = kBlockColumns}}};
  kernel.threads = static_cast<int>(32 * c["warps"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes&, const Config&, const Gpu&) {
  return ModelHints{
      .bytes_in_flight_per_thread = 16, .instructions_per_thread = 100, .dependent_loads = 1};
}

std::vector<Sizes> model_shapes(int) { return {{{"format", kE4m3}}}; }

}  // namespace

const Op pack_weights{
    .name = "pack_weights",
    .version = 1,
    .summary =
        "Copies the codes of a weight matrix from the layout of a checkpoint to the packed one, in "
        "which linears read them fastest.",
    .doc =
        "Done once, when weights are loaded. A linear that is given packed weights says so in its "
        "shape (\"w_layout\": \"packed\"); their scales stay as they are in the checkpoint. "
        "kiln_tensor_bytes says how much memory packed takes. Row r of packed holds the rows 8 r "
        "to "
        "8 r + 7 of w, in blocks of 64 columns and 512 bytes; columns that w lacks in the last "
        "block are 0. A matrix whose rows fall into groups (wo_a) is packed as one.\n"
        "e4m3: bytes 64 g + 4 j to 64 g + 4 j + 3 of a block hold row g, columns 4 j to 4 j + 3, "
        "as "
        "a little-endian word. Its lower half has columns 4 j (a) and 4 j + 2 (b), its upper half "
        "4 j + 1 (a) and 4 j + 3 (b):\n"
        "  bit 15: bit 7 of a; bits 4 to 10: bits 0 to 6 of a\n"
        "  bit 11: bit 7 of b; bits 12 to 14: bits 4 to 6 of b; bits 0 to 3: bits 0 to 3 of b",
    .source = "ops.md B6",
    .sizes =
        {
            fixed("format", "format", "of the codes", {{"e4m3", kE4m3}}),
            stepped(dynamic("R", "num_rows", "rows of w, of all groups; a multiple of 32", 0,
                            kMostRows),
                    "row"),
            stepped(dynamic("K", "in_features", "columns of w; a multiple of 32", 32, kMostColumns),
                    "column"),
            derived("block_rows", "row of blocks", block_rows),
            derived("block_row_bytes", "byte of a row of blocks", block_row_bytes),
        },
    .args =
        {
            cold(vectors(in("w", DType::u8, "R K", "codes as in the checkpoint"), 16)),
            vectors(out("packed", DType::u8, "block_rows block_row_bytes", "the same codes"), 16),
        },
    .requirements =
        {
            {.small = {.scale = 32, .terms = {{.symbol = "R", .divisor = 32}}},
             .big = {.terms = {{"R"}}},
             .sentence = "num_rows is a multiple of 32"},
            {.small = {.scale = 32, .terms = {{.symbol = "K", .divisor = 32}}},
             .big = {.terms = {{"K"}}},
             .sentence = "in_features is a multiple of 32"},
        },
    .model_shapes = model_shapes,
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
