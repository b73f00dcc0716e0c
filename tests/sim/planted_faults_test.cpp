// Faults planted in kernels, one at a time, by changing a piece of their text: the simulator finds
// every one, and nothing in the kernels as they are. The ops' own templates run as the tuner
// verifies them, on a device; what they do not use (shared memory, barriers, cp.async, tensor
// cores, order between blocks) is planted in the kernels of tests/sim/kernels/.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <functional>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "runtime/sim/arena.h"
#include "runtime/sim/checker.h"
#include "runtime/sim/decode.h"
#include "runtime/sim/execute.h"
#include "templates/kit.h"
#include "tuner/trial.h"

namespace kiln::runtime::sim {
namespace {

// A piece of a kernel's text, what it becomes, and what the simulator says then.
template <class Call>
struct Plant {
  Call call;
  std::string text;  // stands in one place of one file
  std::string replacement;
  std::string at;  // a piece of the line that is named; "": the one that is changed
  std::vector<std::string> words;
};
template <class Call>
struct Plants {
  std::string name;
  std::vector<Plant<Call>> plants;
  std::optional<Report::Kind> kind{};  // what all of them are; nothing: any, or a fault
};
template <class Call>
void PrintTo(const Plants<Call>& plants, std::ostream* out) {
  *out << plants.name;
}

struct Place {
  jit::SourceFile* file = nullptr;
  size_t offset = 0;
  int line() const {
    const auto end = file->text.begin() + static_cast<std::ptrdiff_t>(offset);
    return 1 + static_cast<int>(std::count(file->text.begin(), end, '\n'));
  }
  std::string text() const { return file->path + ":" + std::to_string(line()); }
};

Place find_only(jit::KernelSource& source, const std::string& piece) {
  std::vector<Place> places;
  const auto search = [&](jit::SourceFile& file) {
    for (size_t at = 0; (at = file.text.find(piece, at)) != std::string::npos; ++at)
      places.push_back({&file, at});
  };
  search(source.main);
  for (jit::SourceFile& header : source.headers) search(header);
  if (places.size() != 1) {
    throw std::runtime_error(
        fmt::format("{} places in {} have: {}", places.size(), source.main.path, piece));
  }
  return places.front();
}

// Returns the line that the simulator has to name.
template <class Call>
Place apply(const Plant<Call>& plant, jit::KernelSource& source) {
  const Place place = find_only(source, plant.text);
  place.file->text.replace(place.offset, plant.text.size(), plant.replacement);
  return plant.at.empty() ? place : find_only(source, plant.at);
}

jit::Binary compile(const jit::KernelSource& source, const jit::CompileOptions& options = {}) {
  static const std::shared_ptr<jit::Compiler> compiler = jit::Compiler::load();
  return compiler->compile(source, "compute_80", options);
}

// Without what only sets the columns of a report.
std::string squeezed(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c != ' ' || result.empty() || result.back() != ' ') result += c;
  }
  return result;
}
void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& part : words) {
    EXPECT_NE(squeezed(text).find(squeezed(part)), std::string::npos)
        << "not there: " << part << "\n"
        << text;
  }
}

// --- in the templates

using Alignment = tuner::PreparedCase::Alignment;

// A case of an op's kit.
struct OpCall {
  std::string op;
  templates::Sizes shape;
  std::string name;
  templates::Config config{};  // over the default
  Alignment alignment = Alignment::natural;

  const templates::Kit& kit() const { return templates::require_kit(templates::require_op(op)); }
  templates::Case find() const {
    const templates::Sizes bucket = templates::all_buckets(*kit().op).front();
    for (templates::Case& one : kit().verify_cases(shape, bucket)) {
      if (one.name == name) return std::move(one);
    }
    throw std::runtime_error(fmt::format("{} has no case {}", op, name));
  }
};

const std::map<std::string, jit::Binary>& tools() {
  static const std::map<std::string, jit::Binary> binaries = [] {
    std::map<std::string, jit::Binary> by_file, by_entry;
    for (const auto& [file, entry] : tuner::tool_kernels()) {
      if (!by_file.contains(file)) by_file[file] = compile(tuner::tool_source(file, entry));
      by_entry[entry] = by_file[file];  // its PTX has all kernels of the file
      by_entry[entry].entry = entry;
    }
    return by_entry;
  }();
  return binaries;
}

class PlantedInOps : public testing::TestWithParam<Plants<OpCall>> {
 protected:
  // What the tuner would say of the changed op, on a device that nothing has failed on.
  static void expect_found(const Plant<OpCall>& plant) {
    const OpCall& call = plant.call;
    SCOPED_TRACE(call.op + ": " + plant.text + " -> " + plant.replacement);
    const templates::Op& op = *call.kit().op;
    const std::unique_ptr<Device> device = Device::open("sim:rtx-3090");
    tuner::DeviceTools device_tools(*device, tools(), int64_t{1} << 30);
    tuner::PreparedCase prepared(device_tools, call.kit(), call.find(), call.alignment);
    const templates::Config config = op.default_config(call.shape).merged(call.config);
    const std::string config_text = templates::config_json(config).dump();
    const templates::LaunchPlan plan = op.plan(call.shape, config, device->info().gpu);
    ASSERT_EQ(plan.kernels.size(), 1u);
    const templates::KernelLaunch& launch = plan.kernels.front();

    jit::KernelSource source = templates::kernel_source(op, launch);
    const Place place = apply(plant, source);
    const LoadedKernel kernel = device->load(compile(source, templates::compile_options(launch)),
                                             launch.threads, launch.dynamic_smem_bytes);
    device->describe(kernel, {&op, call.shape, config_text});
    const tuner::RunVerdict verdict = prepared.check(
        {.kernels = {{launch.entry, kernel, launch.grid_x, launch.grid_y, launch.grid_z}}});
    EXPECT_STREQ(tuner::outcome_name(verdict.outcome), "trap");
    expect_words(verdict.detail, plant.words);
    expect_words(verdict.detail, {"op " + op.name, launch.entry, "config " + config_text,
                                  place.text(), "PTX line", "block ("});
  }
};

TEST_P(PlantedInOps, IsFound) {
  EXPECT_GE(GetParam().plants.size(), 5u);
  for (const Plant<OpCall>& plant : GetParam().plants) expect_found(plant);
}

// So few blocks that one host thread runs them one after another: their races are none of the host.
const templates::Sizes kTop512{{"ratio", 1}, {"K", 512}};
const char* const kAligned = "worked example of B15.2";  // all rows of top-k and indices
const OpCall kVectors{"combine_topk_swa", kTop512, kAligned};
const OpCall kNoPrefetch{"combine_topk_swa", kTop512, kAligned, {{"prefetch_topk", 0}}};
const OpCall kLeastAligned{"combine_topk_swa", kTop512, kAligned, {}, Alignment::least};
const OpCall kScalars{"combine_topk_swa", kTop512, "wide, odd strides", {{"rows_per_cta", 8}}};

const templates::Config kOneBlock{{"max_ctas_per_request", 1}};
const templates::Config kTwoBlocks{{"max_ctas_per_request", 2}};
const char* const kGaps = "padded strides";  // between pages, table rows and rows of the output
const OpCall kF1{"gather_dequant_kv", {{"format", 1}}, kGaps, kOneBlock};
const OpCall kF2{"gather_dequant_kv", {{"format", 2}}, kGaps, kOneBlock};
const OpCall kF4{"gather_dequant_kv", {{"format", 4}}, kGaps, kOneBlock, Alignment::least};
const OpCall kBadPages{
    "gather_dequant_kv", {{"format", 1}}, "pages and columns out of range", kOneBlock};
const OpCall kOneRequest{
    "gather_dequant_kv", {{"format", 1}}, "every pair of code and scale", kTwoBlocks};

// clang-format off
// Gaps between rows are outside as well.
const Plants<OpCall> kOutside{"Outside", {
    {kVectors, "min(lane, num_requests - 1)", "min(lane, num_requests)", "args.seq_lens[request]",
     {"reads 4 bytes outside of `seq_lens`", "thread (2, 0, 0)",
      "const i32 seq_len = args.seq_lens[request];", "called at",
      "argument seq_lens, byte offset 8, element 2", "reads 4 bytes outside of `gather_lens`"}},
    {kVectors, "probe = min(lane, num_requests)", "probe = min(lane, 40)",
     "args.query_start_loc[probe]", {"reads 4 bytes outside of `query_start_loc`"}},
    {kVectors, "vector < vectors; vector +=", "vector <= vectors; vector +=",
     "vector_ints, values);", {"writes 16 bytes outside of `idx`"}},
    {kScalars, "column < row.from_topk ? topk[column]",
     "column < row.from_topk ? topk[column + 1]", "", {"reads 4 bytes outside of `topk`"}},
    {kScalars, "next < static_cast<u32>(width)", "next <= static_cast<u32>(width)",
     "idx[column] = index_at", {"writes 4 bytes outside of `idx`"}},
    {kScalars, "if (t >= args.num_tokens) return;", "if (t > args.num_tokens) return;",
     "args.len[t] = ",
     {"writes 4 bytes outside of `len`", "argument len, byte offset 84, element 21"}},
    {kF1, "block_table_stride + column]", "block_table_stride + column + 1]", "",
     {"reads 4 bytes outside of `block_table`"}},
    {kF1, "args.lens[index];", "args.lens[index + 1];", "", {"reads 4 bytes outside of `lens`"}},
    {kF1, "half * 256 + lane * 8, values", "half * 256 + lane * 16, values", "",
     {"writes 16 bytes outside of `out`"}},
    {kF1, "codes = page + entry * row_bytes", "codes = page + (entry + 1) * row_bytes",
     "load_stream_8(eight_codes);", {"reads 8 bytes outside of `cache`"}},
    {kBadPages, "page < args.num_pages", "page <= args.num_pages", "load_stream_8(eight_codes);",
     {"reads 8 bytes outside of `cache`"}},
}};

const Plants<OpCall> kMisaligned{"Misaligned", {
    {kVectors, "early[i] = reinterpret_cast<const int4*>(topk)",
     "early[i] = reinterpret_cast<const int4*>(topk + 1)", "",
     {"an access of 16 bytes",
      "which is not a multiple of 16 (nearest argument: topk, byte offset 4, element 1)",
      "thread (0, 0, 0)", "early[i] = reinterpret_cast<const int4*>(topk)"}},
    {kVectors, "reinterpret_cast<int4*>(idx)", "reinterpret_cast<int4*>(idx + 2)",
     "vector_ints, early[i]);", {"an access of 16 bytes", "nearest argument: idx"}},
    {kNoPrefetch, "reads ? reinterpret_cast<const int4*>(topk)",
     "reads ? reinterpret_cast<const int4*>(topk + 1)", "",
     {"an access of 16 bytes", "nearest argument: topk"}},
    {kLeastAligned, "(reinterpret_cast<u64>(p) & 15)", "(reinterpret_cast<u64>(p) & 3)",
     "early[i] = reinterpret_cast",
     {"an access of 16 bytes", "nearest argument: topk, byte offset 0"}},
    {kScalars, "= topk_vectors_legal && width % vector_ints == 0 && aligned_16(idx)", "= true",
     "early[i] = reinterpret_cast", {"an access of 16 bytes", "nearest argument: topk"}},
    {kF1, "448 + 2 * (element - 448) : element)", "448 + 2 * (element - 448) : element + 4)",
     "load_stream_8(eight_codes);", {"an access of 8 bytes", "nearest argument: cache"}},
    {kF1, "half * 256 + lane * 8, values", "half * 256 + lane * 8 + 4, values", "",
     {"an access of 16 bytes", "nearest argument: out"}},
    {kF2, "load_stream_4(codes + element / 2)", "load_stream_4(codes + element / 2 + 2)", "",
     {"an access of 4 bytes", "nearest argument: cache"}},
    {kF4, "static_cast<u64>(page_stride)) & 15)", "static_cast<u64>(page_stride)) & 7)",
     "return load_16(p);", {"an access of 16 bytes", "nearest argument: cache"}},
}};

const Plants<OpCall> kWritesToInputs{"WritesToInputs", {
    {kVectors, "args.len[t] = row", "const_cast<i32*>(args.seq_lens)[0] = row", "",
     {"writes 4 bytes of the input `seq_lens`", "argument seq_lens, byte offset 0, element 0",
      "thread (0, 0, 0)", "if (thread == 0) args.len[t] = row.from_topk + row.from_window;"}},
    {kVectors, "reinterpret_cast<int4*>(idx)", "reinterpret_cast<int4*>(const_cast<i32*>(topk))",
     "vector_ints, early[i]);", {"writes 16 bytes of the input `topk`"}},
    {kScalars, "idx[column] = index_at(row",
     "const_cast<i32*>(topk)[column % top_k] = index_at(row", "",
     {"writes 4 bytes of the input `topk`"}},
    {kF1, "store_16(out_row + half",
     "store_16(reinterpret_cast<u16*>(const_cast<u8*>(args.cache)) + half", "",
     {"writes 16 bytes of the input `cache`"}},
    {kF1, "args.block_table[request.index * args.block_table_stride + column]",
     "atomicMax(const_cast<i32*>(args.block_table) + column, 0)", "",
     {"updates 4 bytes of the input `block_table`"}},
    {kF1, "args.lens[index];", "atomicSub(const_cast<i32*>(args.lens) + index, 0);", "",
     {"updates 4 bytes of the input `lens`"}},
}};

const Plants<OpCall> kReadsOfOutputs{"ReadsOfOutputs", {
    {kVectors, "args.len[t] = row", "args.len[t] += row", "",
     {"reads 4 bytes of the output `len`", "argument len, byte offset 0, element 0",
      "thread (0, 0, 0)", "if (thread == 0) args.len[t] = row.from_topk + row.from_window;"}},
    {kVectors, "if (vector < topk_vectors) out[vector]",
     "if (vector < topk_vectors && out[vector].x != 7) out[vector]", "",
     {"reads 4 bytes of the output `idx`"}},
    {kVectors, "out[vector] = index_vector_at(row, vector * vector_ints, values)",
     "if (out[vector].y != 7) out[vector] = index_vector_at(row, vector * vector_ints, values)",
     "", {"reads 4 bytes of the output `idx`"}},
    {kScalars, "idx[column] = index_at(row", "idx[column] |= index_at(row", "",
     {"reads 4 bytes of the output `idx`"}},
    {kF1, "store_16(out_row + half",
     "if (out_row[half * 256 + lane * 8] != 7) store_16(out_row + half", "",
     {"reads 2 bytes of the output `out`"}},
    {kF1, "load_row(args.cache + page_offset", "load_row(reinterpret_cast<const u8*>(args.out)",
     "load_stream_8(eight_codes);", {"reads 8 bytes of the output `out`"}},
}};

// Several blocks write one element, each its own value.
const Plants<OpCall> kRacesOfBlocks{"RacesOfBlocks", {
    {kVectors, "args.len[t] = row", "args.len[0] = row", "",
     {"writes global memory that block (0, 0, 0) wrote in the same launch; nothing orders them",
      "block (1, 0, 0)", "thread (0, 0, 0)", "argument len, byte offset 0, element 0",
      "if (thread == 0) args.len[t] = row.from_topk + row.from_window;"}},
    {kVectors, "args.idx + t * args.idx_stride", "args.idx + row_in_cta * args.idx_stride",
     "vector_ints, early[i]);",
     {"writes global memory that block (0, 0, 0) wrote", "argument idx"}},
    {kVectors, "reinterpret_cast<int4*>(idx)", "reinterpret_cast<int4*>(args.idx)",
     "vector_ints, early[i]);",
     {"writes global memory that block (0, 0, 0) wrote", "argument idx"}},
    {kScalars, "idx[column] = index_at(row", "args.idx[column] = index_at(row", "",
     {"writes global memory that block (", "argument idx"}},
    {kF1, "request.index * args.out_stride0 + (", "0 * args.out_stride0 + (", "store_16(out_row",
     {"writes global memory that block (", "argument out"}},
    {kOneRequest, "(args.offset + row + u)", "(args.offset + u)", "store_16(out_row",
     {"writes global memory that block (", "argument out"}},
}};

const Plants<OpCall> kLanesThatNeverMeet{"LanesThatNeverMeet", {
    {kVectors, "__shfl_sync(all_lanes, gather_len, b)}",
     "lane < 8 ? __shfl_sync(all_lanes, gather_len, b) : __shfl_sync(all_lanes, seq_len, 0)}", "",
     {"all threads of the block wait for others, which will never come",
      "warp 0 lanes 0x000000ff at", "warp 0 lanes 0xffffff00 at"}},
    {kVectors, "{b, __shfl_sync(all_lanes, boundary, b)",
     "{b, lane < 8 ? __shfl_sync(all_lanes, boundary, b) : 0", "",
     {"all threads of the block wait for others"}},
    {kVectors, "__ballot_sync(all_lanes, lane <= num_requests && boundary <= t)",
     "boundary <= t ? __ballot_sync(all_lanes, lane <= num_requests) : 1", "",
     {"all threads of the block wait for others"}},
    {kVectors, "__ballot_sync(all_lanes, lane <= num_requests && boundary <= t)",
     "__ballot_sync(0xffff, lane <= num_requests && boundary <= t)", "",
     {"the member mask 0x0000ffff, which does not name that lane", "thread (16, 0, 0)"}},
    {kF1, "__ballot_sync(all_lanes, my_page_offset != no_entry)",
     "my_page_offset != no_entry ? __ballot_sync(all_lanes, true) : 0", "",
     {"all threads of the block wait for others"}},
    {kF1, "__shfl_sync(all_lanes, my_entry_in_page, u)",
     "lane < 16 ? __shfl_sync(all_lanes, my_entry_in_page, u) : 0", "",
     {"all threads of the block wait for others"}},
    {kF1, "__shfl_sync(all_lanes, my_page_offset, u)",
     "__shfl_sync(1u << lane | 1, my_page_offset, 0)", "",
     {"all threads of the block wait for others"}},
}};
// clang-format on

INSTANTIATE_TEST_SUITE_P(All, PlantedInOps,
                         testing::Values(kOutside, kMisaligned, kWritesToInputs, kReadsOfOutputs,
                                         kRacesOfBlocks, kLanesThatNeverMeet),
                         [](const auto& one) { return one.param.name; });

// --- in the kernels of this folder

using Words = std::vector<uint32_t>;

struct Tensor {
  std::string name;
  Words words;  // before
  enum class Content { given, nothing } content = Content::given;
  enum class Use { input, scratch } use = Use::input;
  int64_t element_bytes = 4;
};
Tensor empty_tensor(std::string name, size_t count) {
  return {.name = std::move(name),
          .words = Words(count),
          .content = Tensor::Content::nothing,
          .use = Tensor::Use::scratch};
}

struct KernelCall {
  std::string kernel;  // its file, and its entry
  Size3 grid;
  uint32_t threads = 0;
  std::vector<Tensor> tensors;
  std::vector<int64_t> sizes;
  std::function<void(const std::vector<Words>& after)> expect_right;

  jit::KernelSource source() const {
    return {.main = read(kernel + ".cu"),
            .headers = {read("common.cuh")},
            .constants = {},
            .entry = kernel};
  }
  static jit::SourceFile read(const std::string& name) {
    std::ifstream file(std::string(KILN_SIM_KERNELS) + "/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return {"tests/sim/kernels/" + name, text.str()};
  }
};

struct Outcome {
  std::string fault;
  std::vector<Report> reports;
  std::vector<Words> after;
};

// The compiler puts a folder before the path.
SourceLine lines_of(const jit::SourceFile& source) {
  return [&source](const std::string& file, int number) {
    std::string line;
    std::istringstream lines(file.ends_with(source.path) ? source.text : std::string());
    for (int i = 0; i < number; ++i) std::getline(lines, line);
    return line;
  };
}

Outcome run(const KernelCall& call, const jit::KernelSource& source) {
  const auto module = std::make_shared<const Module>(parse_ptx(compile(source).image));
  Arena arena(int64_t{1} << 28, Marks::on);
  SymbolAddresses constants;  // compiled in wherever they are used, so nothing reads them
  for (const Variable& variable : module->variables) {
    if (variable.space != Space::shared) constants[variable.name] = arena.allocate(variable.bytes);
  }
  const std::shared_ptr<const Program> program = decode(module, call.kernel, constants);
  Subject subject{.kernel = call.kernel};
  std::vector<uint64_t> params;
  for (const Tensor& tensor : call.tensors) {
    const auto bytes = static_cast<int64_t>(4 * tensor.words.size());
    params.push_back(arena.allocate(bytes));
    if (tensor.content == Tensor::Content::given)
      arena.copy_in(params.back(), tensor.words.data(), bytes);
    subject.views.push_back({.name = tensor.name,
                             .begin = params.back(),
                             .element_bytes = tensor.element_bytes,
                             .dims = {bytes / tensor.element_bytes},
                             .strides_bytes = {tensor.element_bytes},
                             .may_write = tensor.use == Tensor::Use::scratch});
  }
  for (const int64_t size : call.sizes) params.push_back(static_cast<uint64_t>(size));
  Launch launch;
  launch.program = program.get();
  launch.grid = call.grid;
  launch.block = {call.threads, 1, 1};
  launch.params = std::as_bytes(std::span(params));
  launch.arena = &arena;
  Checker checker(arena, launch, subject);
  launch.checker = &checker;

  Outcome outcome;
  outcome.fault = execute(launch, {.threads = 1,
                                   .limit = std::chrono::seconds(20),
                                   .source_line = lines_of(source.main)})
                      .fault;
  outcome.reports = checker.reports();
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    outcome.after.emplace_back(call.tensors[i].words.size());
    arena.copy_out(outcome.after.back().data(), params[i],
                   static_cast<int64_t>(4 * call.tensors[i].words.size()));
  }
  return outcome;
}

float as_float(uint32_t word) { return std::bit_cast<float>(word); }

// Small whole numbers, whose sums are exact in any order.
int small(uint64_t seed, uint64_t index) {
  return static_cast<int>(templates::counter_range(seed, 0, index, -4, 4));
}
Words small_floats(uint64_t seed, size_t count) {
  Words words(count);
  for (size_t i = 0; i < count; ++i)
    words[i] = std::bit_cast<uint32_t>(static_cast<float>(small(seed, i)));
  return words;
}

KernelCall tile_gemm() {
  constexpr int64_t kRows = 64, kColumns = 32, kDepth = 128;
  const auto bf16 = [](uint64_t seed, int64_t count) {
    Words words(static_cast<size_t>(count) / 2);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(small(seed, i)));
      words[i / 2] |= bits >> 16 << (i % 2 * 16);
    }
    return words;
  };
  const auto expect_right = [](const std::vector<Words>& after) {
    for (int64_t m = 0; m < kRows; ++m) {
      for (int64_t n = 0; n < kColumns; ++n) {
        int sum = 0;
        for (int64_t k = 0; k < kDepth; ++k)
          sum += small(1, static_cast<uint64_t>(m * kDepth + k)) *
                 small(2, static_cast<uint64_t>(n * kDepth + k));
        ASSERT_EQ(as_float(after[2][static_cast<size_t>(m * kColumns + n)]), sum) << m << ", " << n;
      }
    }
  };
  return {.kernel = "tile_gemm",
          .grid = {kRows / 32, kColumns / 16, 1},
          .threads = 64,
          .tensors = {{.name = "a", .words = bf16(1, kRows * kDepth), .element_bytes = 2},
                      {.name = "b", .words = bf16(2, kColumns * kDepth), .element_bytes = 2},
                      empty_tensor("c", kRows * kColumns)},
          .sizes = {kColumns, kDepth},
          .expect_right = expect_right};
}

KernelCall row_normalise() {
  constexpr size_t kRows = 5, kColumns = 200;
  const Words in = small_floats(3, kRows * kColumns);
  return {.kernel = "row_normalise",
          .grid = {2, 1, 1},
          .threads = 128,
          .tensors = {{.name = "in", .words = in},
                      {.name = "out",
                       .words = Words(in.size()),
                       .content = Tensor::Content::nothing,
                       .use = Tensor::Use::scratch}},
          .sizes = {kRows, kColumns},
          .expect_right = [in](const std::vector<Words>& after) {
            for (size_t i = 0; i < in.size(); ++i) {
              float sum = 1;
              for (size_t j = 0; j < kColumns; ++j)
                sum += std::fabs(as_float(in[i / kColumns * kColumns + j]));
              ASSERT_NEAR(as_float(after[1][i]), as_float(in[i]) / sum, 1e-6) << i;
            }
          }};
}

KernelCall warp_transpose() {
  constexpr size_t kRows = 70, kColumns = 41;
  Words in(kRows * kColumns);
  std::iota(in.begin(), in.end(), 1u);
  return {.kernel = "warp_transpose",
          .grid = {1, 1, 1},
          .threads = 64,
          .tensors = {{.name = "in", .words = in},
                      {.name = "out",
                       .words = Words(in.size()),
                       .content = Tensor::Content::nothing,
                       .use = Tensor::Use::scratch}},
          .sizes = {kRows, kColumns},
          .expect_right = [in](const std::vector<Words>& after) {
            for (size_t i = 0; i < in.size(); ++i)
              ASSERT_EQ(after[1][i % kColumns * kRows + i / kColumns], in[i]) << i;
          }};
}

KernelCall histogram() {
  constexpr size_t kKeys = 64;
  Words keys(700);
  Words expected(kKeys, 10);
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = static_cast<uint32_t>(templates::counter_range(5, 0, i, 0, kKeys - 1));
    ++expected[keys[i]];
  }
  return {.kernel = "histogram",
          .grid = {3, 1, 1},
          .threads = 128,
          .tensors = {{.name = "keys", .words = keys},
                      {.name = "counts", .words = Words(kKeys, 10), .use = Tensor::Use::scratch}},
          .sizes = {static_cast<int64_t>(keys.size())},
          .expect_right = [expected](const std::vector<Words>& after) {
            EXPECT_EQ(after[1], expected);
          }};
}

KernelCall grid_sum() {
  const Words in = small_floats(6, 1000);
  return {.kernel = "grid_sum",
          .grid = {4, 1, 1},
          .threads = 64,
          .tensors = {{.name = "in", .words = in},
                      empty_tensor("parts", 8),
                      {.name = "arrived", .words = {0}, .use = Tensor::Use::scratch},
                      empty_tensor("out", 1)},
          .sizes = {static_cast<int64_t>(in.size())},
          .expect_right = [in](const std::vector<Words>& after) {
            float sum = 0;
            for (const uint32_t word : in) sum += as_float(word);
            EXPECT_EQ(as_float(after[3][0]), sum);
            EXPECT_EQ(after[2][0], 0u);
          }};
}

using MakeCall = KernelCall (*)();

class KernelsAsTheyAre : public testing::TestWithParam<MakeCall> {};

TEST_P(KernelsAsTheyAre, AreRightAndWithoutAReport) {
  const KernelCall call = GetParam()();
  const Outcome outcome = run(call, call.source());
  EXPECT_EQ(outcome.fault, "");
  for (const Report& report : outcome.reports) ADD_FAILURE() << describe(report);
  call.expect_right(outcome.after);
}

INSTANTIATE_TEST_SUITE_P(All, KernelsAsTheyAre,
                         testing::Values(tile_gemm, row_normalise, warp_transpose, histogram,
                                         grid_sum),
                         [](const auto& one) { return one.param().kernel; });

class PlantedInKernels : public testing::TestWithParam<Plants<MakeCall>> {
 protected:
  static void expect_found(const Plant<MakeCall>& plant, std::optional<Report::Kind> kind) {
    const KernelCall call = plant.call();
    SCOPED_TRACE(call.kernel + ": " + plant.text + " -> " + plant.replacement);
    jit::KernelSource source = call.source();
    const Place place = apply(plant, source);
    const SourceLine source_line = lines_of(source.main);
    const Outcome outcome = run(call, source);
    std::string all = outcome.fault;
    std::string found;
    for (const Report& report : outcome.reports) {
      const std::string text = describe(report, source_line);
      all += "\n" + text;
      if (report.kind == kind &&
          (report.line == place.line() || report.caller_line == place.line()))
        found = text;
    }
    if (!kind.has_value()) {
      found = outcome.fault;
    } else {
      EXPECT_EQ(outcome.fault, "");
      ASSERT_NE(found, "") << "no " << kind_name(*kind) << " at " << place.text() << "\n" << all;
      expect_words(found, {source_line(place.file->path, place.line()), "thread ("});
    }
    expect_words(found, plant.words);
    expect_words(found, {call.kernel, place.text(), "block ("});
  }
};

TEST_P(PlantedInKernels, IsFound) {
  EXPECT_GE(GetParam().plants.size(), 5u);
  for (const Plant<MakeCall>& plant : GetParam().plants) expect_found(plant, GetParam().kind);
}

// clang-format off
const Plants<MakeCall> kNoBarrier{"NoBarrier", {
    {tile_gemm, "__syncthreads();  // everyone's", "// everyone's", "load_matrices(from_a", {}},
    {tile_gemm, "__syncthreads();  // everyone's", "__syncwarp();  //", "load_matrices(from_b", {}},
    {tile_gemm, "__syncthreads();  // the stage may", "// the stage may",
     "copy_async_16(&stage.a",
     {"writes shared memory that thread (", ") read with no", "barrier between them"}},
    {row_normalise, "__syncthreads();  // all warps", "// all warps", "of_warp[warp] = sum", {}},
    {row_normalise, "__syncthreads();  // the row's", "// the row's", "1 / of_row", {}},
    {histogram, "pair_barrier();  //", "//", "of_warp[warp + 1][key]", {}},
    {histogram, "1 + warp_id() / 2)", "1 + warp_id() % 2)", "of_warp[warp + 1][key]", {}},
    {histogram, "__syncthreads();  // all pairs", "// all pairs", "count += of_warp[w]", {}},
    {grid_sum, "__syncthreads();  // all warps", "// all warps", "of_warp[warp_id()] = sum", {}},
    {grid_sum, "__syncthreads();  // it is known", "// it is known", "is_last = atomicAdd", {}},
}, Report::Kind::shared_race};

const Plants<MakeCall> kNoWarpSync{"NoWarpSync", {
    {tile_gemm, "__syncwarp();  // the half is", "// the half is", "*reinterpret_cast<float4*>(c",
     {"reads shared memory that thread (", "wrote with no bar.warp.sync or barrier between them"}},
    {tile_gemm, "__syncwarp();  // the half may", "// the half may", "% 2] = sums[h][i]",
     {"writes shared memory that thread ("}},
    {warp_transpose, "__syncwarp();  // the tile is", "// the tile is", "= tile[lane][i]", {}},
    {warp_transpose, "__syncwarp();  // the tile may", "// the tile may", "tile[i][lane] =", {}},
    {warp_transpose, "__syncwarp();  // the tile is",
     "__syncwarp(lane < 16 ? 0xffff : 0xffff0000);  //", "= tile[lane][i]", {}},
    {warp_transpose, "__syncwarp();  // the tile is",
     "if (__all_sync(all_lanes, lane < 0)) return;  //", "= tile[lane][i]", {}},
    {histogram, "__syncwarp();  // the counts", "// the counts", "atomicAdd(&of_warp", {}},
    {histogram, "atomicAdd(&of_warp[warp][keys[i]], 1)", "++of_warp[warp][keys[i]]", "", {}},
}, Report::Kind::shared_race};

const Plants<MakeCall> kNoWaitForCopies{"NoWaitForCopies", {
    {tile_gemm, "wait_for_copies<1>();", "wait_for_copies<2>();", "load_matrices(from_a",
     {"reads shared memory that a cp.async of thread (", "did not wait for its group"}},
    {tile_gemm, "wait_for_copies<1>();", "", "load_matrices(from_b", {}},
    {tile_gemm, "commit_copies();  // the first slice", "", "load_matrices(from_a", {}},
    {tile_gemm, "commit_copies();  // the next slice", "", "load_matrices(from_a", {}},
    {tile_gemm, "= stages[s % 2];", "= stages[next % 2];", "load_matrices(from_a", {}},
    {tile_gemm, "copy_slice(stages[next % 2], a", "copy_slice(stages[s % 2], a",
     "copy_async_16(&stage.a", {"writes shared memory that a cp.async of thread ("}},
    {tile_gemm, "    wait_for_copies<1>();", "    stages[0].a[0][0] = 0; wait_for_copies<1>();",
     "", {"writes shared memory that a cp.async of thread ("}},
}, Report::Kind::async_pending};

const Plants<MakeCall> kSharedNotWritten{"SharedNotWritten", {
    {tile_gemm, "i < vectors; i += num_threads", "i < vectors - 1; i += num_threads",
     "load_matrices(from_b", {"reads shared memory that nobody wrote"}},
    {tile_gemm, "for (int i = 0; i < 4; ++i) half", "for (int i = 0; i < 3; ++i) half",
     "*reinterpret_cast<float4*>(c", {}},
    {row_normalise, "lane < num_warps ?", "lane <= num_warps ?", "",
     {"thread (4, 0, 0)", "address 0x10 of shared memory"}},
    {row_normalise, "if (lane == 0) of_row", "if (lane == 0 && all > 1000) of_row", "1 / of_row",
     {}},
    {warp_transpose, "first_column + lane < columns)", "first_column + lane < columns - 20)",
     "= tile[lane][i]", {}},
    {histogram, "for (int key = lane; key < num_keys; key += warp_lanes) of_warp[warp][key] = 0",
     "of_warp[warp][lane] = 0", "atomicAdd(&of_warp", {"updates shared memory that nobody wrote"}},
    {grid_sum, "if (lane_id() == 0) of_warp", "if (threadIdx.x == 0) of_warp",
     "part += of_warp[w]", {"thread (0, 0, 0)"}},
}, Report::Kind::uninitialised_shared};

const Plants<MakeCall> kGlobalNotWritten{"GlobalNotWritten", {
    {grid_sum, "parts[blockIdx.x] = part", "if (blockIdx.x != 2) parts[blockIdx.x] = part",
     "total += parts[block]",
     {"reads global memory that nobody wrote", "argument parts, byte offset 8, element 2",
      "thread (2, 0, 0)"}},
    {grid_sum, "parts[blockIdx.x] = part", "parts[blockIdx.x + 1] = part",
     "total += parts[block]", {"element 0"}},
    {grid_sum, "block < gridDim.x; block", "block <= gridDim.x; block", "", {"argument parts"}},
    {grid_sum, "out[0] = total", "out[0] += total", "", {"argument out"}},
    {tile_gemm, "*reinterpret_cast<float4*>(c + row * columns + 8 * h + column) = four;",
     "atomicAdd(c + row * columns + 8 * h + column, four.x);", "",
     {"updates global memory that nobody wrote", "argument c"}},
    {row_normalise, "out[row * columns + i] = in", "out[row * columns + i] += in", "",
     {"argument out"}},
    {warp_transpose, "out[(first_column + i) * rows + first_row + lane] = tile",
     "out[(first_column + i) * rows + first_row + lane] |= tile", "", {"argument out"}},
}, Report::Kind::uninitialised_global};

const Plants<MakeCall> kNoOrderOfBlocks{"NoOrderOfBlocks", {
    {grid_sum, "__threadfence();  // the part", "// the part", "total += parts[block]",
     {"reads global memory that block (", "wrote in the same launch; nothing orders them",
      "argument parts"}},
    {grid_sum, "__threadfence();  // the part", "__threadfence_block();  //",
     "total += parts[block]", {"argument parts"}},
    {grid_sum, "__threadfence();  // the arrivals", "// the arrivals", "total += parts[block]",
     {"argument parts"}},
    {grid_sum, "atomicAdd(arrived, 1)", "(*arrived)++", "", {"argument arrived"}},
    {grid_sum, "if (!is_last || warp_id() != 0)", "if (warp_id() != 0)", "out[0] = total",
     {"argument out"}},
    {histogram, "atomicAdd(&counts[threadIdx.x], count)", "counts[threadIdx.x] += count", "",
     {"argument counts"}},
    {histogram, "atomicAdd(&counts[threadIdx.x], count)",
     "atomicAdd_block(&counts[threadIdx.x], count)", "",
     {"updates global memory that block (", "argument counts"}},
    {tile_gemm, "c += (blockIdx.x * tile_rows +", "c += (", "*reinterpret_cast<float4*>(c",
     {"argument c"}},
    {row_normalise, "out[row * columns + i] =", "out[row / 2 * columns + i] =", "",
     {"argument out"}},
}, Report::Kind::global_race};

// Two parts of a warp come to barriers of the block at two places.
const std::string kOther = ") asm volatile(\"bar.sync 0;\"); else __syncthreads();  //";
const Plants<MakeCall> kBarrierInTwoParts{"BarrierInTwoParts", {
    {row_normalise, "__syncthreads();  // all warps", "if (lane < 16" + kOther, "",
     {"a barrier for the whole block is reached by the lanes 0xffff0000 of a warp without "
      "0x0000ffff"}},
    {row_normalise, "__syncthreads();  // the row's", "if (lane % 2 == 0" + kOther, "", {}},
    {tile_gemm, "__syncthreads();  // everyone's", "if (lane == 31" + kOther, "", {}},
    {tile_gemm, "__syncthreads();  // the stage", "if (sums[0][0] < 0" + kOther, "", {}},
    {grid_sum, "__syncthreads();  // all warps", "if (lane_id() == 0" + kOther, "", {}},
    {grid_sum, "__syncthreads();  // it is known", "if (threadIdx.x < 5" + kOther, "", {}},
    {histogram, "__syncthreads();  // all pairs", "if (threadIdx.x > 120" + kOther, "", {}},
}, Report::Kind::divergent_barrier};

// Warps or lanes that go past a barrier, so that the others wait for ever, or wait as a part of their
// warp at what all of it has to execute.
const Plants<MakeCall> kBarrierThatSomePass{"BarrierThatSomePass", {
    {histogram, "  pair_barrier();  //", "  if (warp != 1) pair_barrier();  //", "",
     {"all threads of the block wait for others", "warp 0 lanes 0xffffffff at"}},
    {histogram, "  pair_barrier();  //", "  if (warp % 2 == 0) pair_barrier();  //", "",
     {"all threads of the block wait"}},
    {histogram, "1 + warp_id() / 2)", "1 + warp_id())", "", {"all threads of the block wait"}},
    {histogram, "bar.sync %0, 64;", "bar.sync %0, 96;", "", {"all threads of the block wait"}},
    {histogram, "  pair_barrier();  //", "  if (lane > 3) pair_barrier();  //", "",
     {"all threads of the block wait", "warp 0 lanes 0xfffffff0 at"}},
    {grid_sum, "__syncthreads();  // all warps", "if (lane_id() != 0) __syncthreads();  //",
     "__syncthreads();  // it is known", {"all threads of the block wait"}},
    {row_normalise, "__syncthreads();  // the row's", "if (lane % 2 == 0) __syncthreads();  //",
     "", {"warp 0 lanes 0x55555555 at"}},
    {tile_gemm, "__syncthreads();  // everyone's", "if (lane != 31) __syncthreads();  //",
     "load_matrices(from_a",
     {"all threads of the block wait for others", "warp 0 lanes 0x80000000 at",
      "ldmatrix.sync"}},
}};
// clang-format on

INSTANTIATE_TEST_SUITE_P(All, PlantedInKernels,
                         testing::Values(kNoBarrier, kNoWarpSync, kNoWaitForCopies,
                                         kSharedNotWritten, kGlobalNotWritten, kNoOrderOfBlocks,
                                         kBarrierInTwoParts, kBarrierThatSomePass),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace kiln::runtime::sim
