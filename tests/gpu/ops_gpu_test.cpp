// Every op on a real GPU: candidates against the oracle on every case of the kit, and the default
// at sizes beyond 16-bit grids and 32-bit offsets. Skipped where there is no GPU. KILN_TEST_FULL=1
// takes every candidate instead of the default and ten seeded ones.
#include <gtest/gtest.h>

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

// What has gaps of gigabytes is filled row by row, so that they cost nothing on the host; the
// outputs are read so.
void run_large_case(Device& device, kiln_session* session, const Kit& kit, const Sizes& shape,
                    const Case& c) {
  SCOPED_TRACE(kit.op->name + " " + templates::shape_json(*kit.op, shape).dump() + ", " + c.name);
  constexpr uint8_t kPoison = 0xab;
  std::vector<tuner::TensorPlan> tensors = tuner::tensor_plans(*kit.op, c);
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
    if (tensor.arg->kind == ArgKind::output) continue;
    constexpr int64_t kFilledAtOnce = int64_t{1} << 31;
    if (tensor.bytes() <= kFilledAtOnce) {
      const std::vector<std::byte> contents = tuner::host_contents(kit, c, tensor);
      device.copy_to_device(buffers.back().get(), contents.data(),
                            static_cast<int64_t>(contents.size()));
      continue;
    }
    const int64_t size = templates::dtype_bytes(tensor.arg->dtype);
    std::vector<std::byte> row_bytes(static_cast<size_t>(tensor.layout.dims.back() * size));
    for (int64_t flat = 0; flat < row_count(tensor.layout) && !row_bytes.empty(); ++flat) {
      const Row row = row_at(tensor.layout, flat);
      kit.fill(c, *tensor.arg, row.outer, row_bytes);
      device.copy_to_device(buffers.back().get() + static_cast<uint64_t>(row.begin * size),
                            row_bytes.data(), static_cast<int64_t>(row_bytes.size()));
    }
  }

  OpCall call(device, session, kit, shape, c, tensors, pointers);
  ASSERT_EQ(call.run(stream), KILN_OK) << kiln_last_error();
  device.synchronize(stream);

  constexpr int64_t kRowsChecked = 400;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const tuner::TensorPlan& tensor = tensors[i];
    if (tensor.arg->kind == ArgKind::input || tensor.bytes() == 0) continue;
    const int64_t size = templates::dtype_bytes(tensor.arg->dtype);
    const int64_t rows = row_count(tensor.layout);
    const int64_t columns = tensor.layout.dims.back();
    std::vector<std::byte> got(static_cast<size_t>(columns * size));
    OutputCheck check(kit, c, *tensor.arg, kPoison);
    for (int64_t n = 0; n < std::min(rows, kRowsChecked); ++n) {
      const int64_t flat =
          rows <= kRowsChecked ? n : rows - 1 - n * (rows - 1) / (kRowsChecked - 1);
      Row row = row_at(tensor.layout, flat);
      device.copy_to_host(got.data(), buffers[i].get() + static_cast<uint64_t>(row.begin * size),
                          columns * size);
      const int64_t step = rows == 1 ? std::max<int64_t>(1, columns / 20000) : 1;
      for (int64_t column = 0; column < columns; column += step) {
        std::vector<int64_t> index = row.outer;
        index.push_back(column);
        ASSERT_TRUE(check.holds(index, got.data() + column * size));
      }
    }
    check.expect_small_error();
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
