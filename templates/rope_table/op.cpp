// Writes cosines and sines of the angles of consecutive positions (ops.md B5, (f)5).
//   table[j, i] = cos(a), table[j, 32 + i] = sin(a),  a = (first_position + j) * f_i
#include "templates/op.h"

namespace kiln::templates {

extern const Op rope_table;

namespace {

// Positions and angles below this are exact or nearly so in fp32.
constexpr int64_t kMostPositions = int64_t{1} << 24;

enum Frequencies : int64_t { kBase10000 = 0, kYarn = 1 };

std::vector<Sizes> model_shapes(int) {
  return {{{"frequencies", kBase10000}}, {{"frequencies", kYarn}}};
}

Cost cost(const Sizes& s) { return Cost{.write_bytes = 256.0 * static_cast<double>(s["P"])}; }

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads", {128, 256, 512}, "threads of a CTA"},
      {"positions_per_thread", {1, 2, 4, 8}, "positions of which a thread has one pair"},
  };
  return space;
}

Config default_config(const Sizes&) { return {{"threads", 256}, {"positions_per_thread", 2}}; }

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "rope_table"};
  kernel.constants = {{"yarn", "bool", s["frequencies"] == kYarn ? "true" : "false"},
                      constant("threads", c["threads"]),
                      constant("positions_per_thread", c["positions_per_thread"])};
  kernel.grid_x = {
      .terms = {{.symbol = "P", .divisor = c["threads"] / 32 * c["positions_per_thread"]}}};
  kernel.threads = static_cast<int>(c["threads"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes&, const Config& c, const Gpu&) {
  return ModelHints{
      .bytes_in_flight_per_thread = 4,
      .instructions_per_thread = 30 + 60 * static_cast<double>(c["positions_per_thread"]),
      .dependent_loads = 1};
}

}  // namespace

const Op rope_table{
    .name = "rope_table",
    .version = 1,
    .summary =
        "Writes cosines and sines of the angles of consecutive positions, for rope and "
        "sparse_mla_decode.",
    .doc =
        "For row j and pair i = 0 .. 31:\n"
        "  angle = fp32(first_position + j) * f_i          one product in fp32\n"
        "  rope_table[j, i] = fp32(cos(angle));  rope_table[j, 32 + i] = fp32(sin(angle))\n"
        "cos and sin in float64. f_i is the fp32 nearest to\n"
        "  base_10000:         10000^(-2i / 64)\n"
        "  base_160000_yarn:   (g / 16) * ramp + g * (1 - ramp),  g = 160000^(-2i / 64),\n"
        "                      ramp = clamp((i - 15) / 10, 0, 1)\n"
        "Of DeepSeek-V4.1-Flash the layers with a compressed list take the latter (compress_ratio "
        "1 or 2), layers 0 and 1 and the draft layers the former. A position is that of a token, "
        "or of the first token of a compressed entry.\n"
        "Any alignment and stride is legal here, but rope and the ops that insert or quantise with "
        "RoPE read 16 bytes at a time: for them rope_table is 16-byte aligned and its stride a "
        "multiple of 4.",
    .source = "ops.md B5, (f)5",
    .sizes =
        {
            fixed("frequencies", "frequencies", "of the pairs",
                  {{"base_10000", kBase10000}, {"base_160000_yarn", kYarn}}),
            stepped(dynamic("P", "num_positions", "rows of rope_table", 0, kMostPositions),
                    "position"),
            dynamic("first_position", "first_position", "position of the first row", 0,
                    kMostPositions),
            derived("64", "number", [](const Sizes&) { return int64_t{64}; }),
        },
    .args = {out("rope_table", DType::f32, "P 64", "of each position 32 cosines, then 32 sines")},
    .requirements =
        {
            {.small = {.terms = {{"P"}}},
             .big = {.offset = kMostPositions, .scale = -1, .terms = {{"first_position"}}},
             .sentence = "first_position + num_positions is at most 16777216, so that a position "
                         "is exact in fp32"},
        },
    .buckets = {{"P", {4096, 1048576}}},
    .model_shapes = model_shapes,
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
