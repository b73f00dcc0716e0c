// Every op through the C interface on a real GPU: the first call under capture, and one graph of
// all ops replayed with other lengths, tables and padded rows. Skipped where there is no GPU.
#include <gtest/gtest.h>

#include <optional>

#include "tests/gpu/op_call.h"

namespace kiln {
namespace {

using runtime::Device;
using templates::Case;
using templates::Kit;

constexpr uint8_t kPoison = 0xab;

std::unique_ptr<Device> open_device() {
  const runtime::DeviceList list = runtime::list_devices();
  return list.devices.empty() ? nullptr : Device::open(list.devices.front().id);
}

// One op with a fixed shape: its plan, its memory, and the struct that a graph captures.
class CapturedOp {
 public:
  CapturedOp(Device& device, kiln_session* session, const Kit& kit, const templates::Sizes& shape)
      : device_(device), kit_(kit), cases_(kit.replay_cases(shape)) {
    const Case& first = cases_.front();
    tensors_ = tuner::tensor_plans(*kit.op, first);
    std::map<std::string, runtime::DevicePtr> pointers;
    for (const tuner::TensorPlan& tensor : tensors_) {
      buffers_.emplace_back(device, *tensor.arg, shape, std::max<int64_t>(tensor.bytes(), 16));
      pointers[tensor.arg->name] = buffers_.back().get();
    }
    call_.emplace(device, session, kit, shape, first, tensors_, pointers);
  }

  kiln_status call(runtime::Stream stream) { return call_->run(stream); }
  size_t replays() const { return cases_.size(); }

  void set_contents(size_t replay) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].bytes() == 0) continue;
      if (tensors_[i].arg->kind == templates::ArgKind::output) {
        const std::vector<uint8_t> poison(static_cast<size_t>(tensors_[i].bytes()), kPoison);
        buffers_[i].write(poison.data(), tensors_[i].bytes());
      } else {
        const std::vector<std::byte> contents =
            tuner::host_contents(kit_, cases_[replay], tensors_[i]);
        buffers_[i].write(contents.data(), tensors_[i].bytes());
      }
    }
  }

  void expect_truth(size_t replay) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].arg->kind == templates::ArgKind::input || tensors_[i].bytes() == 0) continue;
      std::vector<std::byte> got(static_cast<size_t>(tensors_[i].bytes()));
      device_.copy_to_host(got.data(), buffers_[i].get(), tensors_[i].bytes());
      expect_tensor(cases_[replay], tensors_[i], got);
    }
  }

 private:
  void expect_tensor(const Case& c, const tuner::TensorPlan& tensor,
                     const std::vector<std::byte>& got) {
    OutputCheck check(kit_, c, *tensor.arg, kPoison);
    const int64_t size = templates::dtype_bytes(tensor.arg->dtype);
    int64_t count = 1;
    for (const int64_t dim : tensor.layout.dims) count *= dim;
    // An odd step, so that all rows and columns have their turn.
    constexpr int64_t kMostElements = 20'000;
    const int64_t step = count <= kMostElements ? 1 : count / kMostElements | 1;
    for (int64_t flat = 0; flat < count; flat += step) {
      std::vector<int64_t> index(tensor.layout.dims.size());
      int64_t rest = flat, storage = 0;
      for (size_t dim = index.size(); dim-- > 0;) {
        index[dim] = rest % tensor.layout.dims[dim];
        rest /= tensor.layout.dims[dim];
        storage += index[dim] * tensor.layout.strides[dim];
      }
      ASSERT_TRUE(check.holds(index, got.data() + storage * size));
    }
    check.expect_small_error();
  }

  Device& device_;
  const Kit& kit_;
  std::vector<Case> cases_;
  std::vector<tuner::TensorPlan> tensors_;
  std::vector<TensorMemory> buffers_;
  std::optional<OpCall> call_;
};

class Replay : public testing::Test {
 protected:
  void SetUp() override {
    device_ = open_device();
    if (device_ == nullptr) GTEST_SKIP() << runtime::list_devices().problem;
    stream_ = device_->create_stream();
    kiln_options options{};
    options.size = sizeof(options);
    options.store = ":memory:";
    ASSERT_EQ(kiln_open(&options, &session_), KILN_OK) << kiln_last_error();
  }
  void TearDown() override {
    if (device_ == nullptr) return;
    ops_.clear();
    EXPECT_EQ(kiln_close(session_), KILN_OK) << kiln_last_error();
    device_->destroy_stream(stream_);
  }
  void make_ops() {
    for (const Kit* kit : templates::kits()) {
      for (const templates::Sizes& shape : kit->op->model_shapes(2)) {
        ops_.push_back(std::make_unique<CapturedOp>(*device_, session_, *kit, shape));
      }
    }
  }
  void replay_and_check(runtime::Graph& graph) {
    size_t replays = 0;
    for (const auto& op : ops_) replays = std::max(replays, op->replays());
    for (size_t replay = 0; replay < replays; ++replay) {
      for (const auto& op : ops_) op->set_contents(replay % op->replays());
      device_->launch_graph(graph, stream_);
      device_->synchronize(stream_);
      for (const auto& op : ops_) op->expect_truth(replay % op->replays());
    }
  }

  std::unique_ptr<Device> device_;
  runtime::Stream stream_ = nullptr;
  kiln_session* session_ = nullptr;
  std::vector<std::unique_ptr<CapturedOp>> ops_;
};

TEST_F(Replay, OneGraphOfEveryOpServesOtherLengthsTablesAndPadding) {
  ASSERT_EQ(kiln_prepare(session_, nullptr, nullptr, nullptr), KILN_OK) << kiln_last_error();
  ASSERT_EQ(kiln_seal(session_), KILN_OK) << kiln_last_error();
  make_ops();
  device_->begin_capture(stream_);
  for (const auto& op : ops_) EXPECT_EQ(op->call(stream_), KILN_OK) << kiln_last_error();
  const auto graph = device_->end_capture(stream_);
  replay_and_check(*graph);
}

TEST_F(Replay, FirstCallUnderCaptureIsRefusedAndTheCaptureSurvives) {
  make_ops();
  device_->begin_capture(stream_);
  for (const auto& op : ops_) EXPECT_EQ(op->call(stream_), KILN_NOT_PREPARED);
  EXPECT_EQ(device_->capture_state(stream_), runtime::CaptureState::active);
  ASSERT_EQ(kiln_prepare(session_, nullptr, nullptr, nullptr), KILN_OK) << kiln_last_error();
  for (const auto& op : ops_) EXPECT_EQ(op->call(stream_), KILN_OK) << kiln_last_error();
  const auto graph = device_->end_capture(stream_);
  replay_and_check(*graph);
}

TEST_F(Replay, SessionOpenedPreparedAndClosedDuringACaptureLeavesItValid) {
  ASSERT_EQ(kiln_prepare(session_, nullptr, nullptr, nullptr), KILN_OK) << kiln_last_error();
  make_ops();
  device_->begin_capture(stream_);
  kiln_options options{};
  options.size = sizeof(options);
  options.store = ":memory:";
  kiln_session* other = nullptr;
  ASSERT_EQ(kiln_open(&options, &other), KILN_OK) << kiln_last_error();
  EXPECT_EQ(kiln_prepare(other, nullptr, nullptr, nullptr), KILN_OK) << kiln_last_error();
  EXPECT_EQ(kiln_close(other), KILN_OK) << kiln_last_error();
  EXPECT_EQ(device_->capture_state(stream_), runtime::CaptureState::active);
  for (const auto& op : ops_) EXPECT_EQ(op->call(stream_), KILN_OK) << kiln_last_error();
  const auto graph = device_->end_capture(stream_);
  replay_and_check(*graph);
}

TEST_F(Replay, FirstCallOutsideCaptureCompilesOnce) {
  make_ops();
  for (const auto& op : ops_) op->set_contents(0);
  for (const auto& op : ops_) EXPECT_EQ(op->call(stream_), KILN_OK) << kiln_last_error();
  kiln_stats first{}, second{};
  first.size = second.size = sizeof(kiln_stats);
  EXPECT_EQ(kiln_get_stats(session_, &first), KILN_OK);
  device_->synchronize(stream_);
  for (const auto& op : ops_) op->set_contents(0);  // some work in place
  for (const auto& op : ops_) EXPECT_EQ(op->call(stream_), KILN_OK) << kiln_last_error();
  EXPECT_EQ(kiln_get_stats(session_, &second), KILN_OK);
  EXPECT_GT(first.compiles, 0u);
  EXPECT_EQ(second.compiles, first.compiles);
  device_->synchronize(stream_);
  for (const auto& op : ops_) op->expect_truth(0);
}

}  // namespace
}  // namespace kiln
