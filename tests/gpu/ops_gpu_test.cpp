// Every op on a real GPU: candidates against the oracle on every case of the kit, and the default
// at sizes beyond 16-bit grids and 32-bit offsets. Skipped where there is no GPU. KILN_TEST_FULL=1
// takes every candidate instead of the default and ten seeded ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "tests/gpu/op_call.h"
#include "tests/ops_testing.h"
#include "tuner/binaries.h"
#include "tuner/device_worker.h"

namespace kiln {
namespace {

using runtime::Device;
using runtime::DeviceBuffer;
using templates::ArgKind;
using templates::Case;
using templates::Kit;
using templates::Sizes;

std::vector<Sizes> all_shapes(const Kit& kit) {
  std::vector<Sizes> shapes = kit.op->model_shapes(2);
  if (kit.further_shapes != nullptr) {
    for (const Sizes& shape : kit.further_shapes()) shapes.push_back(shape);
  }
  return shapes;
}

std::vector<templates::Config> chosen_configs(const templates::Op& op, const Sizes& shape,
                                              const Gpu& gpu) {
  constexpr uint64_t kSeed = 20260902;
  constexpr size_t kSeeded = 10;
  const std::vector<templates::Config> all = templates::enumerate(op, shape, gpu).configs;
  if (std::getenv("KILN_TEST_FULL") != nullptr) return all;
  std::set<size_t> chosen{0};
  for (uint64_t draw = 0; chosen.size() < std::min(kSeeded + 1, all.size()); ++draw) {
    chosen.insert(templates::counter_bits(kSeed, 0, draw) % all.size());
  }
  std::vector<templates::Config> configs;
  for (const size_t index : chosen) configs.push_back(all[index]);
  return configs;
}

class OpsOnGpu : public testing::TestWithParam<const Kit*> {
 protected:
  void SetUp() override {
    const runtime::DeviceList list = runtime::list_devices();
    if (list.devices.empty()) GTEST_SKIP() << list.problem;
  }
};

TEST_P(OpsOnGpu, CandidatesEqualTheOracleOnEveryCase) {
  const Kit& kit = *GetParam();
  const templates::Op& op = *kit.op;
  ProvingDevice device("cuda:0");
  const Gpu& gpu = device.gpu;
  const Sizes bucket = templates::all_buckets(op).front();
  for (const Sizes& shape : all_shapes(kit)) {
    const std::vector<templates::Config> configs = chosen_configs(op, shape, gpu);
    for (const templates::Config& config : configs) {
      for (const templates::KernelLaunch& launch : op.plan(shape, config, gpu).kernels) {
        device.binaries.ahead(templates::kernel_source(op, launch), gpu.arch(),
                              templates::compile_options(launch));
      }
    }
    for (const templates::Config& config : configs) {
      const tuner::RunVerdict verdict =
          device.verify(kit, shape, config, kit.verify_cases(shape, bucket));
      EXPECT_EQ(verdict.outcome, tuner::Outcome::passed)
          << op.name << " " << templates::shape_json(op, shape).dump() << " "
          << templates::config_json(config).dump() << ": " << verdict.detail;
    }
  }
}

// The default config, at the sizes of the model and every tensor-parallel degree.
TEST_P(OpsOnGpu, MatrixAtFullSize) {
  constexpr int64_t kMostRows = 8192;
  const Kit& kit = *GetParam();
  const templates::Op& op = *kit.op;
  ProvingDevice device("cuda:0");
  const Gpu& gpu = device.gpu;
  const std::vector<MatrixCall> calls = matrix_calls(kit, kMostRows);
  for (const MatrixCall& one : calls) {
    for (const templates::KernelLaunch& launch :
         op.plan(one.shape, op.default_config(one.shape), gpu).kernels) {
      device.binaries.ahead(templates::kernel_source(op, launch), gpu.arch(),
                            templates::compile_options(launch));
    }
  }
  for (const MatrixCall& one : calls) {
    const tuner::RunVerdict verdict =
        device.verify(kit, one.shape, op.default_config(one.shape), std::vector{one.call});
    EXPECT_EQ(verdict.outcome, tuner::Outcome::passed)
        << op.name << " " << templates::shape_json(op, one.shape).dump() << " "
        << templates::dynamic_json(op, one.call.sizes).dump() << ": " << verdict.detail;
  }
  std::printf("%s: %zu calls\n", op.name.c_str(), calls.size());
}

// Indices of row `flat` in the outer dimensions, and where it begins in the storage.
struct Row {
  std::vector<int64_t> outer;
  int64_t begin = 0;
};
Row row_at(const templates::TensorLayout& layout, int64_t flat) {
  Row row{.outer = std::vector<int64_t>(layout.dims.size() - 1)};
  for (size_t dim = row.outer.size(); dim-- > 0;) {
    row.outer[dim] = flat % layout.dims[dim];
    flat /= layout.dims[dim];
    row.begin += row.outer[dim] * layout.strides[dim];
  }
  return row;
}
int64_t row_count(const templates::TensorLayout& layout) {
  int64_t rows = 1;
  for (size_t dim = 0; dim + 1 < layout.dims.size(); ++dim) rows *= layout.dims[dim];
  return rows;
}

bool is_by_row(const templates::Arg& arg) { return arg.dims.front() == "T"; }

// Rows of the call ("T") that are drawn and looked at: all, unless their contents are so many that
// the host would take long. Then runs of rows: both ends, where 16 bits end, some anywhere, and all
// rows that an output keeps of which few are kept. The other rows hold poison, as good an input as
// any; nothing is known of what comes of them.
class LookedAt {
 public:
  LookedAt(const Kit& kit, const Case& c, const std::vector<tuner::TensorPlan>& tensors)
      : rows_(c.sizes.get("T", 0)), is_drawn_(static_cast<size_t>(rows_), true) {
    constexpr int64_t kMostElements = int64_t{1} << 22;
    int64_t elements = 0;
    for (const tuner::TensorPlan& tensor : tensors) {
      if (tensor.arg->kind == ArgKind::output || !is_by_row(*tensor.arg)) continue;
      elements += row_count(tensor.layout) * tensor.layout.dims.back();
    }
    if (elements <= kMostElements) return;
    all_ = false;
    is_drawn_.assign(is_drawn_.size(), false);
    constexpr int64_t kRun = 8, kRuns = 12;
    for (const int64_t first : {int64_t{0}, rows_ - kRun, int64_t{32764}, int64_t{65532}})
      draw(first, kRun);
    for (uint64_t run = 0; run < kRuns; ++run)
      draw(templates::counter_range(20261130, 1, run, 0, rows_ - 1), kRun);
    for (const tuner::TensorPlan& tensor : tensors) draw_kept(kit, c, tensor);
  }

  bool all() const { return all_; }
  bool is_drawn(int64_t t) const { return is_drawn_[static_cast<size_t>(t)]; }
  // A row may also be made of the one before it.
  bool is_checked(int64_t t) const { return is_drawn(t) && (t == 0 || is_drawn(t - 1)); }
  // Of those that are checked, `most` or fewer.
  std::vector<int64_t> checked(int64_t most) const {
    std::vector<int64_t> found;
    for (int64_t t = 0; t < rows_; ++t) {
      if (is_checked(t)) found.push_back(t);
    }
    const int64_t count = static_cast<int64_t>(found.size());
    std::vector<int64_t> some;
    for (int64_t i = 0; i < std::min(count, most); ++i)
      some.push_back(found[static_cast<size_t>(i * count / std::min(count, most))]);
    return some;
  }

 private:
  void draw(int64_t first, int64_t count) {
    for (int64_t t = std::max<int64_t>(first, 0); t < std::min(first + count, rows_); ++t)
      is_drawn_[static_cast<size_t>(t)] = true;
  }
  void draw_kept(const Kit& kit, const Case& c, const tuner::TensorPlan& tensor) {
    if (kit.written_by == nullptr || tensor.arg->kind != ArgKind::inout) return;
    for (int64_t t = 0; t < rows_; ++t) {
      if (!kit.written_by(c, *tensor.arg, t).empty()) draw(t - 1, 2);
    }
  }

  int64_t rows_;
  bool all_ = true;
  std::vector<bool> is_drawn_;
};

// Rows that are not drawn, and gaps of gigabytes, cost nothing on the host.
void fill_input(Device& device, const Kit& kit, const Case& c, const tuner::TensorPlan& tensor,
                const LookedAt& looked_at, runtime::DevicePtr memory) {
  const bool some_rows =
      !looked_at.all() && is_by_row(*tensor.arg) && tensor.layout.dims.size() > 1;
  const int64_t rows = row_count(tensor.layout), columns = tensor.layout.dims.back();
  constexpr int64_t kFilledAtOnce = int64_t{1} << 31;
  const bool has_gaps = tensor.layout.elements > 2 * rows * columns;
  if (!some_rows && !has_gaps && tensor.bytes() <= kFilledAtOnce) {
    const std::vector<std::byte> contents = tuner::host_contents(kit, c, tensor);
    device.copy_to_device(memory, contents.data(), static_cast<int64_t>(contents.size()));
    return;
  }
  const int64_t size = templates::dtype_bytes(tensor.arg->dtype);
  std::vector<std::byte> row_bytes(static_cast<size_t>(columns * size));
  for (int64_t flat = 0; flat < rows && !row_bytes.empty(); ++flat) {
    const Row row = row_at(tensor.layout, flat);
    if (some_rows && !looked_at.is_drawn(row.outer.front())) continue;
    kit.fill(c, *tensor.arg, row.outer, row_bytes);
    device.copy_to_device(memory + static_cast<uint64_t>(row.begin * size), row_bytes.data(),
                          static_cast<int64_t>(row_bytes.size()));
  }
}

// Elements of one output, as the device has them, and what they should be.
class Elements {
 public:
  Elements(Device& device, const Kit& kit, const Case& c, const tuner::TensorPlan& tensor,
           runtime::DevicePtr memory)
      : device_(device), kit_(kit), case_(c), tensor_(tensor), memory_(memory) {}

  void add(const std::vector<int64_t>& outer, int64_t begin, int64_t count, int64_t step = 1) {
    int64_t first = 0;
    for (size_t dim = 0; dim < outer.size(); ++dim)
      first += outer[dim] * tensor_.layout.strides[dim];
    std::vector<std::byte> got(static_cast<size_t>(count * size_));
    device_.copy_to_host(got.data(), memory_ + static_cast<uint64_t>((first + begin) * size_),
                         count * size_);
    for (int64_t i = 0; i < count; i += step) {
      indices_.push_back(outer);
      indices_.back().push_back(begin + i);
      const auto at = got.begin() + i * size_;
      got_.insert(got_.end(), at, at + size_);
    }
  }

  enum Wanted { kAll, kOnlyUntouched };
  // Untouched: what the op must leave as it was; it is known without the rows that are not drawn.
  void check(uint8_t poison, Wanted wanted) const {
    std::vector<std::optional<double>> truths(indices_.size());
    tuner::parallel_pieces(static_cast<int64_t>(truths.size()), [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
        truths[i] = kit_.expected(case_, *tensor_.arg, indices_[i]);
    });
    OutputCheck check(kit_, case_, *tensor_.arg, poison);
    for (size_t i = 0; i < truths.size(); ++i) {
      if (wanted == kOnlyUntouched && truths[i]) continue;
      const std::byte* got = got_.data() + i * static_cast<size_t>(size_);
      ASSERT_TRUE(check.holds(indices_[i], got, truths[i]));
    }
    check.expect_small_error();
  }

 private:
  Device& device_;
  const Kit& kit_;
  const Case& case_;
  const tuner::TensorPlan& tensor_;
  runtime::DevicePtr memory_;
  int64_t size_ = templates::dtype_bytes(tensor_.arg->dtype);
  std::vector<std::vector<int64_t>> indices_;
  std::vector<std::byte> got_;
};

// Rows of the call: as many as are looked at. Pages of a cache: what the rows have written there,
// and anything else that nobody may have touched. Other outputs: everywhere.
void check_output(Device& device, const Kit& kit, const Case& c, const tuner::TensorPlan& tensor,
                  const LookedAt& looked_at, runtime::DevicePtr memory, uint8_t poison) {
  constexpr int64_t kRowsChecked = 400, kColumnsChecked = 20000;
  const int64_t rows = row_count(tensor.layout), columns = tensor.layout.dims.back();
  const bool is_flat = tensor.layout.dims.size() == 1;
  Elements elements(device, kit, c, tensor, memory);
  if (kit.written_by != nullptr && !is_by_row(*tensor.arg) && tensor.arg->kind == ArgKind::output) {
    constexpr int64_t kGuardElements = 16;
    Elements guards(device, kit, c, tensor, memory);
    for (const int64_t t : looked_at.checked(kRowsChecked / 8)) {
      for (const templates::ElementRange& range : kit.written_by(c, *tensor.arg, t)) {
        elements.add(range.outer, range.begin, range.count);
        const int64_t end = range.begin + range.count;
        guards.add(range.outer, end, std::min(kGuardElements, columns - end));
      }
    }
    elements.check(poison, Elements::kAll);
    constexpr uint64_t kGuards = 400;
    for (uint64_t i = 0; i < kGuards && rows * columns > 0; ++i) {
      const Row row = row_at(tensor.layout, templates::counter_range(3, 1, i, 0, rows - 1));
      const int64_t begin = templates::counter_range(3, 2, i, 0, columns - 1);
      guards.add(row.outer, begin, std::min(kGuardElements, columns - begin));
    }
    guards.check(poison, Elements::kOnlyUntouched);
    return;
  }
  if (is_by_row(*tensor.arg) && !looked_at.all()) {
    const int64_t of_each = rows / std::max<int64_t>(c.sizes["T"], 1);
    if (is_flat) {
      for (const int64_t t : looked_at.checked(kRowsChecked)) elements.add({}, t, 1);
    } else {
      for (const int64_t t : looked_at.checked(kRowsChecked / std::min<int64_t>(of_each, 4))) {
        for (int64_t i = 0; i < std::min<int64_t>(of_each, 4); ++i) {
          const int64_t of_row = (t * 7 + i * of_each / 4) % of_each;
          elements.add(row_at(tensor.layout, t * of_each + of_row).outer, 0, columns);
        }
      }
    }
  } else {
    for (int64_t n = 0; n < std::min(rows, kRowsChecked); ++n) {
      const int64_t flat =
          rows <= kRowsChecked ? n : rows - 1 - n * (rows - 1) / (kRowsChecked - 1);
      const int64_t step = rows == 1 ? std::max<int64_t>(1, columns / kColumnsChecked) : 1;
      elements.add(row_at(tensor.layout, flat).outer, 0, columns, step);
    }
  }
  elements.check(poison, Elements::kAll);
}

void run_large_case(Device& device, kiln_session* session, const Kit& kit, const Sizes& shape,
                    const Case& c) {
  SCOPED_TRACE(kit.op->name + " " + templates::shape_json(*kit.op, shape).dump() + ", " + c.name);
  constexpr uint8_t kPoison = 0xab;
  const std::vector<tuner::TensorPlan> tensors = tuner::tensor_plans(*kit.op, c);
  const LookedAt looked_at(kit, c, tensors);
  std::vector<DeviceBuffer> buffers;
  std::map<std::string, runtime::DevicePtr> pointers;
  const runtime::Stream stream = device.create_stream();
  for (const tuner::TensorPlan& tensor : tensors) {
    if (tensor.bytes() + (int64_t{1} << 28) > device.free_bytes()) {
      device.destroy_stream(stream);
      GTEST_SKIP() << "not enough memory on this GPU for " << c.name;
    }
    buffers.emplace_back(device, std::max<int64_t>(tensor.bytes(), 16));
    pointers[tensor.arg->name] = buffers.back().get();
    device.fill(buffers.back().get(), kPoison, buffers.back().bytes(), stream);
    device.synchronize(stream);
    if (tensor.arg->kind != ArgKind::output)
      fill_input(device, kit, c, tensor, looked_at, buffers.back().get());
  }

  OpCall call(device, session, kit, shape, c, tensors, pointers);
  ASSERT_EQ(call.run(stream), KILN_OK) << kiln_last_error();
  device.synchronize(stream);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].arg->kind != ArgKind::input && tensors[i].bytes() != 0)
      check_output(device, kit, c, tensors[i], looked_at, buffers[i].get(), kPoison);
  }
  device.destroy_stream(stream);
}

TEST_P(OpsOnGpu, C141LargeSizesAndFarOffsets) {
  const Kit& kit = *GetParam();
  if (kit.large_cases == nullptr) GTEST_SKIP() << "the op has no size that can grow";
  const auto device = Device::open("cuda:0");
  kiln_options options{};
  options.size = sizeof(options);
  options.store = ":memory:";
  kiln_session* session = nullptr;
  ASSERT_EQ(kiln_open(&options, &session), KILN_OK) << kiln_last_error();
  // All shapes at once, on all cores.
  const std::string workload = R"({"ops": [{"op": ")" + kit.op->name + R"("}]})";
  ASSERT_EQ(kiln_prepare(session, workload.c_str(), nullptr, nullptr), KILN_OK)
      << kiln_last_error();
  for (const Sizes& shape : kit.op->model_shapes(2)) {
    for (const Case& c : kit.large_cases(shape)) run_large_case(*device, session, kit, shape, c);
  }
  EXPECT_EQ(kiln_close(session), KILN_OK);
}

INSTANTIATE_TEST_SUITE_P(Registry, OpsOnGpu,
                         testing::ValuesIn(templates::kits().begin(), templates::kits().end()),
                         [](const auto& kit) { return kit.param->op->name; });

}  // namespace
}  // namespace kiln
