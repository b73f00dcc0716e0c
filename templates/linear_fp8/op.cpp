// A linear with E4M3 weights in 32 x 32 blocks (ops.md B6), and the grouped one behind attention
// (B16):
//   y[t, g, n] = sum_k x[t, g, k] * w[g, n, k] * 2^(w_scales[g, n / 32, k / 32] - 127)
// Few rows: stream.cu, and sum_splits.cu if K is split. Many: prepare.cu, tile.cu, and sum_tiles.cu
// if K is split into more than two parts.
#include <algorithm>

#include "templates/op.h"

namespace kiln::templates {

extern const Op linear_fp8;

namespace {

constexpr int64_t kScaleBlock = 32;     // rows and columns that share a scale, elements of x too
constexpr int64_t kChunkElements = 64;  // of K, as in fragments.cuh
constexpr int64_t kBlockRows = 8;       // of packed weights
constexpr int64_t kMostRows = int64_t{1} << 20;
constexpr int64_t kMostFeatures = int64_t{1} << 16;
constexpr int64_t kMostGroups = 64;

// Stored in problems as names; the numbers are constants of the kernels.
enum XFormat : int64_t { kBf16Q8a = 0, kCodesQ8a = 1, kBf16 = 2 };
enum YFormat : int64_t { kYBf16 = 0, kYF32 = 1, kPartialSums = 2 };  // the last: of stream.cu
enum WLayout : int64_t { kCheckpoint = 0, kPacked = 1 };
enum SlotOrder : int64_t { kNatural = 0, kPaired = 1 };

int64_t up_to(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

int64_t chunks(const Sizes& s) { return up_to(s["K"], kChunkElements); }
int64_t weight_rows(const Sizes& s) {
  return s["G"] * s["N"] / (s["w_layout"] == kPacked ? kBlockRows : 1);
}
int64_t weight_row_bytes(const Sizes& s) {
  return s["w_layout"] == kPacked ? chunks(s) * kBlockRows * kChunkElements : s["K"];
}
int64_t scale_rows(const Sizes& s) { return s["G"] * s["N"] / kScaleBlock; }
int64_t scale_columns(const Sizes& s) { return s["K"] / kScaleBlock; }

void check_fixed(const Sizes& s) {
  for (const char* symbol : {"N", "K"}) {
    if (s[symbol] % kScaleBlock == 0) continue;
    fail(Status::invalid_argument, "linear_fp8: {} must be a multiple of {}, but is {}",
         linear_fp8.find_size(symbol)->field, kScaleBlock, s[symbol]);
  }
}

Cost cost(const Sizes& s) {
  const auto times = [&](double rows, const char* columns) {
    return rows * static_cast<double>(s["G"]) * static_cast<double>(s[columns]);
  };
  const auto rows = static_cast<double>(s["M"]);
  const double weights = times(static_cast<double>(s["N"]), "K");
  return Cost{.cold_read_bytes = weights * (1 + 1.0 / 1024),
              .warm_read_bytes = times(rows, "K") * (s["x_format"] == kCodesQ8a ? 33.0 / 32 : 2),
              .write_bytes = times(rows, "N") * (s["y_format"] == kYF32 ? 4 : 2),
              .mma_fma = rows * weights};
}

// --- configs

// Tiles of the kernel for many rows, each with the warps, slots and residency that it is best with
// (NOTES.md).
struct Tile {
  int64_t rows, columns;
  int64_t warps_along_rows, warps_along_columns, warps_along_depth;
  int64_t most_stages, ctas_per_sm;

  int64_t warps() const { return warps_along_rows * warps_along_columns * warps_along_depth; }
  int64_t threads() const { return 32 * warps(); }
  int64_t slot_bytes() const {
    return warps_along_depth * (rows * kChunkElements * 2 + columns * kChunkElements);
  }
  int64_t stages(const Gpu& gpu) const {
    return std::clamp<int64_t>(gpu.smem_per_cta_optin_bytes / slot_bytes(), 3, most_stages);
  }
  int64_t smem_bytes(const Gpu& gpu) const {
    return stages(gpu) * slot_bytes();  // sums of runs, exchanged at the end, take less
  }
};
constexpr Tile kTiles[] = {
    {32, 128, 1, 4, 1, 4, 3},  {64, 128, 1, 4, 1, 3, 3},  {64, 128, 1, 4, 2, 4, 1},
    {64, 160, 1, 5, 2, 3, 1},  {128, 128, 1, 4, 1, 3, 2}, {128, 128, 1, 4, 2, 3, 1},
    {128, 256, 1, 8, 1, 3, 1}, {160, 128, 2, 4, 1, 3, 1},
};

enum Kernel : int64_t { kStream = 0, kTile = 1 };

bool is_stream(const Config& c) { return c["kernel"] == kStream; }

const Tile* find_tile(const Config& c) {
  const auto* found = std::find_if(std::begin(kTiles), std::end(kTiles), [&](const Tile& tile) {
    return tile.rows == c["rows"] && tile.columns == c["columns"] &&
           tile.warps_along_depth == c["warps_along_depth"];
  });
  return found == std::end(kTiles) ? nullptr : found;
}

constexpr int64_t kStreamColumns = 16;  // of a warp

// What a config of the kernel for few rows comes to.
struct Stream {
  int64_t rows, warps_along_columns, warps_along_depth, splits;
  int64_t ctas_per_sm;
  int64_t part_chunks;  // of the longest part of K
  int64_t registers;    // of a thread
  int64_t ring_chunks;  // of weights, of a warp
  int64_t passes;       // over the tiles of a group
  int64_t ctas;         // of a group and split

  Stream(const Sizes& s, const Config& c, const Gpu& gpu)
      : rows(c["rows"]),
        warps_along_columns(c["columns"] / kStreamColumns),
        warps_along_depth(c["warps_along_depth"]),
        splits(c["splits"]),
        // Few warps leave room for a second CTA, whose loads fill the gaps of the first.
        ctas_per_sm(warps() <= 10 ? 2 : 1),
        part_chunks(up_to(chunks(s), parts())),
        registers(std::min<int64_t>(gpu.registers_per_sm / (32 * warps() * ctas_per_sm) / 8 * 8,
                                    gpu.max_registers_per_thread)),
        ring_chunks(part_chunks),
        passes(up_to(up_to(s["N"], c["columns"]),
                     std::max<int64_t>(gpu.sm_count * ctas_per_sm / (splits * s["G"]), 1))),
        // No more than these passes need: every CTA reads all of x.
        ctas(up_to(up_to(s["N"], c["columns"]), passes)) {
    // Half of a part is nearly as fast.
    const int64_t whole = ctas_per_sm * (smem_bytes() + gpu.smem_reserved_per_cta_bytes);
    if (part_chunks % 2 == 0 &&
        (whole > gpu.smem_per_sm_bytes || smem_bytes() > gpu.smem_per_cta_optin_bytes))
      ring_chunks = part_chunks / 2;
  }

  int64_t parts() const { return splits * warps_along_depth; }
  int64_t warps() const { return warps_along_columns * warps_along_depth; }
  int64_t row_blocks() const { return up_to(rows, 8); }

  // Chunks of x in registers, 8 of them for each block of rows; the others are in shared memory.
  int64_t most_own_chunks() const {
    constexpr int64_t kOther = 48, kOtherBesideShared = 56;
    const int64_t all = (registers - kOther) / 8 / row_blocks();
    return all >= part_chunks ? part_chunks : (registers - kOtherBesideShared) / 8 / row_blocks();
  }
  int64_t shared_chunks() const {
    return std::max<int64_t>(part_chunks - std::max<int64_t>(most_own_chunks(), 0), 0);
  }
  int64_t ring_bytes() const { return warps() * ring_chunks * kStreamColumns * kChunkElements; }
  int64_t smem_bytes() const {
    const int64_t x_chunks = rows < 8 ? part_chunks : shared_chunks();
    const int64_t x_bytes = warps() * rows * x_chunks * kChunkElements * 2;
    const int64_t sums_bytes = (passes == 1 ? 1 : 2) * warps() * rows * kStreamColumns * 4;
    return ring_bytes() + x_bytes + sums_bytes;
  }
};

int64_t smem_bytes(const Sizes& s, const Config& c, const Gpu& gpu) {
  if (is_stream(c)) return Stream(s, c, gpu).smem_bytes();
  return find_tile(c)->smem_bytes(gpu);
}

// Rules of one kernel hold for every config of the other.
Rule of_stream(std::string why,
               bool (*keeps)(const Stream&, const Sizes&, const Config&, const Gpu&)) {
  return {std::move(why), [keeps](const Sizes& s, const Config& c, const Gpu& gpu) {
            return !is_stream(c) || keeps(Stream(s, c, gpu), s, c, gpu);
          }};
}
Rule of_tile(std::string why, bool (*keeps)(const Tile&, const Sizes&, const Config&, const Gpu&)) {
  return {std::move(why), [keeps](const Sizes& s, const Config& c, const Gpu& gpu) {
            return is_stream(c) || keeps(*find_tile(c), s, c, gpu);
          }};
}

std::vector<Rule> rules() {
  return {
      {"the kernel for many rows has no such tile",
       [](const Sizes&, const Config& c, const Gpu&) {
         return is_stream(c) || find_tile(c) != nullptr;
       }},
      {"the kernel for few rows has 8 to 16 warps, at least 4 along K, and up to 32 rows",
       [](const Sizes&, const Config& c, const Gpu&) {
         if (!is_stream(c)) return true;
         const int64_t warps = c["columns"] / kStreamColumns * c["warps_along_depth"];
         return c["rows"] <= 32 && c["warps_along_depth"] >= 4 && warps >= 8 && warps <= 16;
       }},
      of_tile("splits are for tiles too few to keep the SMs busy",
              [](const Tile& tile, const Sizes& s, const Config& c, const Gpu& gpu) {
                constexpr int64_t kNarrow = 16;  // tiles of a row that want more than 4
                const int64_t tiles = up_to(s["N"], tile.columns) * s["G"];
                return c["splits"] == 1 ||
                       (tiles < 2 * gpu.sm_count && tiles * c["splits"] <= 3 * gpu.sm_count &&
                        (c["splits"] <= 4 || tiles <= kNarrow));
              }),
      of_tile("splits are for smaller tiles, where they fit",
              [](const Tile& tile, const Sizes&, const Config& c, const Gpu& gpu) {
                constexpr int64_t kSmall = 128 * 128;
                constexpr Tile kSmallWithRuns{128, 128, 1, 4, 2, 3, 1};
                return c["splits"] == 1 || tile.rows * tile.columns <= kSmall ||
                       (tile.columns == 256 &&
                        kSmallWithRuns.smem_bytes(gpu) > gpu.smem_per_cta_optin_bytes);
              }),
      of_tile("a run of K would be shorter than six chunks of 64",
              [](const Tile& tile, const Sizes& s, const Config& c, const Gpu&) {
                const int64_t runs = c["splits"] * tile.warps_along_depth;
                return runs == 1 || chunks(s) >= 6 * runs;
              }),
      of_stream("twelve warps are for K too long for the registers of sixteen",
                [](const Stream& stream, const Sizes& s, const Config&, const Gpu&) {
                  return stream.warps_along_depth != 12 ||
                         (stream.splits == 1 && chunks(s) >= 6 * 16);
                }),
      of_stream("parts of K would differ too much, or be empty",
                [](const Stream& stream, const Sizes& s, const Config&, const Gpu&) {
                  return stream.parts() <= chunks(s) &&
                         5 * stream.part_chunks * stream.parts() <= 6 * chunks(s);
                }),
      of_stream("a lane takes the scales of 16 chunks at most",
                [](const Stream& stream, const Sizes&, const Config&, const Gpu&) {
                  return stream.part_chunks <= 16;
                }),
      of_stream("most of x would be in shared memory",
                [](const Stream& stream, const Sizes&, const Config&, const Gpu&) {
                  return stream.rows < 8 ? stream.shared_chunks() == 0
                                         : 2 * stream.shared_chunks() <= stream.part_chunks;
                }),
      of_stream("too few bytes would be under way",
                [](const Stream& stream, const Sizes&, const Config&, const Gpu& gpu) {
                  constexpr double kLeastNs = 1000;  // DRAM answers after about 0.7 us
                  const double bytes_per_ns = gpu.dram_gb_per_s / gpu.sm_count;
                  return static_cast<double>(stream.ctas_per_sm * stream.ring_bytes()) >=
                         kLeastNs * bytes_per_ns;
                }),
      of_stream("splits are for outputs too narrow to keep the SMs busy, or x too long to be held",
                [](const Stream& stream, const Sizes& s, const Config& c, const Gpu& gpu) {
                  return stream.splits == 1 || (stream.splits <= 3 && chunks(s) >= 192) ||
                         (stream.splits == 2 &&
                          2 * up_to(s["N"], c["columns"]) * s["G"] < gpu.sm_count);
                }),
      of_stream("more than half of the SMs would be without work",
                [](const Stream& stream, const Sizes& s, const Config&, const Gpu& gpu) {
                  return 2 * stream.ctas * stream.splits * s["G"] >= gpu.sm_count;
                }),
      {"the CTAs of an SM would want more shared memory than it has",
       [](const Sizes& s, const Config& c, const Gpu& gpu) {
         const int64_t bytes = smem_bytes(s, c, gpu);
         const int64_t ctas = is_stream(c) ? Stream(s, c, gpu).ctas_per_sm : 1;
         return bytes <= gpu.smem_per_cta_optin_bytes &&
                ctas * (bytes + gpu.smem_reserved_per_cta_bytes) <= gpu.smem_per_sm_bytes;
       }},
  };
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"kernel", {kStream, kTile}, "0: weights stream past x in registers; 1: tiles of y"},
      {"rows", {1, 4, 8, 16, 32, 64, 128, 160}, "rows of y that a CTA computes at once"},
      {"columns", {16, 32, 128, 160, 256}, "columns of y that a CTA computes at once"},
      {"warps_along_depth", {1, 2, 4, 8, 9, 10, 12, 16}, "warps of a CTA that share a part of K"},
      {"splits", {1, 2, 3, 4, 7, 8}, "CTAs that share K, whose sums are added in the end"},
  };
  space.rules = rules();
  return space;
}

Config default_config(const Sizes&) {
  return {
      {"kernel", kTile}, {"rows", 64}, {"columns", 128}, {"warps_along_depth", 1}, {"splits", 1}};
}

// --- plan

using Constants = std::vector<jit::Constant>;

KernelLaunch kernel(std::string file, std::string entry, Constants constants,
                    const Constants& own) {
  KernelLaunch launch{.file = std::move(file), .entry = std::move(entry)};
  launch.constants = std::move(constants);
  launch.constants.insert(launch.constants.end(), own.begin(), own.end());
  return launch;
}

// Chunks of every run of K that prepare.cu has brought to L2: no more than DRAM delivers beside it,
// or it would take longer.
int64_t chunks_ahead(const Sizes& s, int64_t runs, const Gpu& gpu) {
  constexpr double kNs = 300;
  constexpr int64_t kMost = 2;
  const auto all_runs = static_cast<double>(runs * s["G"] * s["N"] * kChunkElements);
  return std::min(
      {static_cast<int64_t>(gpu.dram_gb_per_s * kNs / all_runs), kMost, up_to(chunks(s), runs)});
}

void plan_stream(LaunchPlan& plan, const Constants& problem, const Sizes& s, const Config& c,
                 const Gpu& gpu) {
  const Stream stream(s, c, gpu);
  const int64_t output = stream.splits > 1 ? int64_t{kPartialSums} : s["y_format"];
  KernelLaunch main = kernel(
      "stream.cu", "linear_fp8_stream", problem,
      {constant("ctas", stream.ctas), constant("warps_along_columns", stream.warps_along_columns),
       constant("warps_along_depth", stream.warps_along_depth), constant("rows", stream.rows),
       constant("shared_chunks", stream.shared_chunks()),
       constant("ring_chunks", stream.ring_chunks), constant("min_ctas_per_sm", stream.ctas_per_sm),
       constant("output", output)});
  main.grid_x = {.scale = stream.ctas * stream.splits * s["G"],
                 .terms = {{.symbol = "M", .divisor = stream.rows}}};
  main.threads = static_cast<int>(32 * stream.warps());
  main.dynamic_smem_bytes = stream.smem_bytes();
  plan.kernels.push_back(std::move(main));
  if (stream.splits == 1) return;

  constexpr int64_t kThreads = 128, kElements = 4;  // of a thread
  KernelLaunch sum = kernel("sum_splits.cu", "linear_fp8_sum_splits", problem,
                            {constant("threads", kThreads), constant("output", s["y_format"])});
  sum.grid_x = grid_over_rows("M", s["G"] * s["N"] / kElements, kThreads);
  sum.threads = kThreads;
  sum.instructions_per_thread = 60 + static_cast<double>(10 * stream.splits);
  plan.kernels.push_back(std::move(sum));
  plan.workspace_bytes = {.scale = 4 * stream.splits * s["G"] * s["N"], .terms = {{"M"}}};
}

void plan_tile(LaunchPlan& plan, const Constants& problem, const Sizes& s, const Config& c,
               const Gpu& gpu) {
  const Tile& tile = *find_tile(c);
  const int64_t splits = c["splits"];
  const bool x_is_prepared = s["x_format"] != kBf16;
  // The last of two CTAs has one sum in registers and needs one more; of more splits the last would
  // read for longer than a kernel of all SMs. Someone has to clear its counters.
  const bool adds_splits = splits == 2 && x_is_prepared;
  const int64_t tiles = up_to(s["N"], tile.columns) * s["G"];  // of a row of tiles
  constexpr int64_t kBandRows = 8;
  constexpr int64_t kCounterUnit = 256;  // keeps x aligned
  const int64_t counter_bytes =
      adds_splits ? up_to(tiles * tile.warps() * 4, kCounterUnit) * kCounterUnit : 0;
  Constants of_tiles = problem;
  of_tiles.insert(of_tiles.end(),
                  {constant("tile_rows", tile.rows), constant("tile_columns", tile.columns),
                   constant("warps_along_rows", tile.warps_along_rows),
                   constant("warps_along_columns", tile.warps_along_columns),
                   constant("warps_along_depth", tile.warps_along_depth),
                   constant("band_rows", kBandRows), constant("adds_splits", adds_splits ? 1 : 0),
                   constant("counter_bytes", counter_bytes), constant("output", s["y_format"])});

  if (x_is_prepared) {
    constexpr int64_t kThreads = 128, kElements = 8;  // of a piece
    const int64_t pieces = tile.rows >= 128 ? 4 : 1;
    const int64_t ahead = chunks_ahead(s, splits * tile.warps_along_depth, gpu);
    KernelLaunch prepare = kernel("prepare.cu", "linear_fp8_prepare", of_tiles,
                                  {constant("threads", kThreads), constant("pieces", pieces),
                                   constant("chunks_ahead", ahead)});
    prepare.grid_x = grid_over_rows("M", s["G"] * s["K"] / kElements, kThreads * pieces);
    prepare.threads = kThreads;
    prepare.instructions_per_thread = 60 + 125 * static_cast<double>(pieces);
    plan.kernels.push_back(std::move(prepare));
  }

  KernelLaunch main =
      kernel("tile.cu", "linear_fp8_tile", of_tiles,
             {constant("stages", tile.stages(gpu)), constant("min_ctas_per_sm", tile.ctas_per_sm)});
  main.grid_x = {.scale = tiles * splits, .terms = {{.symbol = "M", .divisor = tile.rows}}};
  main.threads = static_cast<int>(tile.threads());
  main.dynamic_smem_bytes = tile.smem_bytes(gpu);
  plan.kernels.push_back(std::move(main));

  if (splits > 1 && !adds_splits) {
    constexpr int64_t kWarps = 4;
    constexpr int64_t kUnit = 8 * 32;  // elements of y that a warp adds
    KernelLaunch sum = kernel("sum_tiles.cu", "linear_fp8_sum_tiles", of_tiles,
                              {constant("warps_of_cta", kWarps)});
    sum.grid_x = {.scale = up_to(tiles * tile.rows * tile.columns / kUnit, kWarps),
                  .terms = {{.symbol = "M", .divisor = tile.rows}}};
    sum.threads = 32 * kWarps;
    sum.instructions_per_thread = 80 + static_cast<double>(20 * splits);
    plan.kernels.push_back(std::move(sum));
  }

  const int64_t row_bytes = (x_is_prepared ? 2 * s["G"] * s["K"] : 0) +
                            (splits > 1 ? 4 * splits * tiles * tile.columns : 0);
  if (row_bytes > 0)
    plan.workspace_bytes = {.scale = tile.rows * row_bytes + counter_bytes,
                            .terms = {{.symbol = "M", .divisor = tile.rows}}};
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu& gpu) {
  // The checkpoint's layout decodes cheaper in paired order, which needs someone to order x.
  const int64_t order = s["w_layout"] == kPacked || s["x_format"] == kBf16 ? kNatural : kPaired;
  const int64_t splits = c["splits"];
  const Constants problem{constant("columns", s["N"]),   constant("depth", s["K"]),
                          constant("groups", s["G"]),    constant("weight_layout", s["w_layout"]),
                          constant("slot_order", order), constant("x_format", s["x_format"]),
                          constant("splits", splits)};
  LaunchPlan plan;
  if (is_stream(c))
    plan_stream(plan, problem, s, c, gpu);
  else
    plan_tile(plan, problem, s, c, gpu);

  // Chunks of 64 are added in ascending order within a part of K, then the parts are.
  const int64_t in_cta = c["warps_along_depth"];
  plan.reduction_signature = splits > 1 && in_cta > 1
                                 ? fmt::format("K in {} times {} parts", splits, in_cta)
                                 : fmt::format("K in {} parts", splits * in_cta);
  return plan;
}

ModelHints model(const Sizes& s, const Config& c, const Gpu& gpu) {
  const auto bytes = [](int64_t count, int64_t threads) {
    return static_cast<double>(count) / static_cast<double>(threads);
  };
  if (is_stream(c)) {
    const int64_t warps = c["columns"] / kStreamColumns * c["warps_along_depth"];
    const int64_t part = up_to(chunks(s), c["splits"] * c["warps_along_depth"]);
    const int64_t ctas = gpu.sm_count * (warps <= 10 ? 2 : 1);
    const int64_t passes = up_to(s["N"] * s["G"] * c["splits"], ctas * c["columns"]);
    const int64_t row_blocks = up_to(c["rows"], 8);
    const int64_t of_x = c["rows"] < 8 ? 40 + part * c["rows"] * 20 / 8 : part * row_blocks * 65;
    const int64_t instructions = 250 + of_x + passes * (60 + part * (60 + 8 * row_blocks));
    return ModelHints{.bytes_in_flight_per_thread = bytes(part * 1024, 32),
                      .instructions_per_thread = static_cast<double>(instructions),
                      .dependent_loads = 3 + static_cast<double>(warps) / 16};
  }
  const Tile& tile = *find_tile(c);
  const int64_t steps = up_to(chunks(s), c["splits"] * tile.warps_along_depth);
  // Of a warp and a chunk: mma, and for every 32 x 16 block of weights what decodes it.
  const int64_t of_tile =
      tile.rows * tile.columns / (tile.warps_along_rows * tile.warps_along_columns);
  const int64_t instructions = 40 + of_tile / 32 + tile.columns / tile.warps_along_columns * 5;
  return ModelHints{.bytes_in_flight_per_thread =
                        bytes((tile.most_stages - 1) * tile.slot_bytes(), tile.threads()),
                    .instructions_per_thread = 400 + static_cast<double>(steps * instructions),
                    .dependent_loads =
                        3 + static_cast<double>(steps) / static_cast<double>(4 * tile.most_stages)};
}

// --- the model's linears, in the layout that is fastest

std::vector<Sizes> model_shapes(int tensor_parallel) {
  const auto linear = [](int64_t out_features, int64_t in_features, int64_t groups = 1,
                         XFormat x_format = kBf16Q8a) {
    return Sizes{{"N", out_features},    {"K", in_features},   {"G", groups},
                 {"x_format", x_format}, {"y_format", kYBf16}, {"w_layout", kPacked}};
  };
  const int64_t ranks = tensor_parallel;
  return {
      linear(2304 / ranks, 5120),            // shared experts w1, w3
      linear(5120, 2304 / ranks),            // and w2
      linear(4096, 1280),                    // indexer wq_b
      linear(1280 + 512, 5120),              // wq_a and wkv
      linear(32768 / ranks, 1280),           // wq_b
      linear(1024, 4096, 8 / ranks, kBf16),  // wo_a
      linear(5120, 8192 / ranks),            // wo_b
      linear(25600, 6144),                   // engram wkv
      linear(5120, 15360),                   // draft main_proj
  };
}

Arg bytes(Arg arg) {  // read one at a time
  arg.align_bytes = 1;
  return arg;
}

}  // namespace

const Op linear_fp8{
    .name = "linear_fp8",
    .version = 1,
    .summary =
        "Multiplies rows of activations by E4M3 weights that have a UE8M0 scale for each block of "
        "32 x 32.",
    .doc =
        "For each row t, group g and column n of y:\n"
        "  y[t, g, n] = sum_k x[t, g, k] * w[g, n, k] * 2^(w_scales[g, n / 32, k / 32] - 127)\n"
        "Sums are fp32, rounded once to the type of y. There is no bias. Groups are linears of one "
        "shape, each with its own part of x and y (wo_a; else groups is 1); their weights follow "
        "one another.\n"
        "x_format says what multiplies the weights: \"bf16_q8a\": x quantised by groups of 32 "
        "along "
        "in_features, as act_quant does with q8a, the form the model was trained with; "
        "\"codes_q8a\": E4M3 codes times 2^(scale - 127), so that several linears share one "
        "act_quant; \"bf16\": x as it is.\n"
        "w_layout is \"checkpoint\", [groups * out_features, in_features], or \"packed\", what "
        "pack_weights makes of it; nothing can check that. The rows of w and "
        "w_scales are dense. A shape is served as it is: nothing has to be padded to a tile.\n"
        "Decoded weights and activations are exact bf16 numbers for scales of 2^-124 to 2^119. "
        "Beyond these they are rounded once to bf16 and may be infinite; scale byte 0 is 2^-127. A "
        "weight scale of 255 is undefined: no writer stores one, and it spoils only its 32 "
        "columns. "
        "The weight codes 0x7f and 0xff read as 480 and -480. An infinity or a NaN in x, its codes "
        "or its scales (255) makes its row of the group NaN or infinite, and so does a sum beyond "
        "fp32. A row of zeros gives zeros.\n"
        "The bits of a row depend on the shape and the kernels, not on the other rows; kernels of "
        "one reduction signature agree to the bit.",
    .source = "ops.md B6, B4, B16.3, (f)3",
    .sizes =
        {
            stepped(fixed("N", "out_features", "columns of y of a group; a multiple of 32",
                          kScaleBlock, kMostFeatures),
                    "column"),
            stepped(fixed("K", "in_features", "elements of a row of x; a multiple of 32",
                          kScaleBlock, kMostFeatures),
                    "element"),
            stepped(fixed("G", "groups", "linears side by side", 1, kMostGroups), "group"),
            fixed("x_format", "x_format", "what of x is multiplied",
                  {{"bf16_q8a", kBf16Q8a}, {"codes_q8a", kCodesQ8a}, {"bf16", kBf16}}),
            fixed("y_format", "y_format", "type of the result", {{"bf16", kYBf16}, {"f32", kYF32}}),
            fixed("w_layout", "w_layout", "order of the bytes of w",
                  {{"checkpoint", kCheckpoint}, {"packed", kPacked}}),
            stepped(dynamic("M", "num_rows", "rows of x and y", 0, kMostRows), "row"),
            derived("x_groups", "group of 32", scale_columns),
            derived("w_rows", "row", weight_rows),
            derived("w_row_bytes", "byte of a row", weight_row_bytes),
            derived("scale_rows", "row of blocks", scale_rows),
            derived("scale_columns", "block", scale_columns),
        },
    .args =
        {
            only_in({.symbol = "x_format", .values = {kBf16Q8a, kBf16}},
                    vectors(in("x", DType::bf16, "M G K", "activations"), 8)),
            only_in({.symbol = "x_format", .values = {kCodesQ8a}},
                    vectors(in("x_codes", DType::u8, "M G K", "E4M3 codes of act_quant"), 16)),
            only_in({.symbol = "x_format", .values = {kCodesQ8a}},
                    bytes(in("x_scales", DType::u8, "M G x_groups", "their UE8M0 scales"))),
            cold(vectors(in("w", DType::u8, "w_rows w_row_bytes",
                            "E4M3 codes; checkpoint: [groups * out_features, in_features]; packed: "
                            "[groups * out_features / 8, ceil(in_features / 64) * 512]"),
                         1)),
            cold(bytes(in("w_scales", DType::u8, "scale_rows scale_columns",
                          "UE8M0, [groups * out_features / 32, in_features / 32]"))),
            only_in({.symbol = "y_format", .values = {kYBf16}},
                    vectors(out("y", DType::bf16, "M G N", "result"), 8)),
            only_in({.symbol = "y_format", .values = {kYF32}},
                    to_within(vectors(out("y_f32", DType::f32, "M G N", "result"), 4), 1e-4)),
        },
    .requirements =
        {
            {.small = {.terms = {{"w_stride"}}},
             .big = {.terms = {{"w_row_bytes"}}},
             .sentence = "rows of w are dense: w_stride is the bytes of a row, no more"},
            {.small = {.terms = {{"w_scales_stride"}}},
             .big = {.terms = {{"scale_columns"}}},
             .sentence =
                 "rows of w_scales are dense: w_scales_stride is in_features / 32, no more"},
        },
    // Of the kernel for few rows, blocks of 1, 4, 16 and 32 rows end with a bucket.
    .buckets = {{"M", {1, 4, 16, 32, 64, 256, 1024, 4096}}},
    .has_workspace = true,
    .tolerance = {Tolerance::Kind::relative_rms, 1.0 / 256},
    .model_shapes = model_shapes,
    .check_fixed = check_fixed,
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
