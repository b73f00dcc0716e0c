// Weights packed by kiln_pack_weights and then multiplied, through the C interface on a simulated
// GPU: the linear gives what it gives with the checkpoint's layout.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

constexpr int64_t kRows = 5, kOutFeatures = 96, kInFeatures = 160;

std::string linear_shape(const char* w_layout) {
  return std::string(R"({"out_features": 96, "in_features": 160, "groups": 1,)") +
         R"("x_format": "bf16_q8a", "y_format": "f32", "w_layout": ")" + w_layout + "\"}";
}

class PackedLinear : public testing::Test {
 protected:
  void SetUp() override {
    kiln_options options{};
    options.size = sizeof options;
    options.device = "sim:rtx-3090";
    options.store = store_.c_str();
    ASSERT_OK(kiln_open(&options, &session_));
  }
  void TearDown() override { EXPECT_OK(kiln_close(session_)); }

  template <class T>
  T* on_device(const std::vector<T>& values) {
    void* memory = nullptr;
    EXPECT_OK(kiln_memory_allocate(session_, values.size() * sizeof(T), &memory));
    EXPECT_OK(kiln_memory_write(session_, memory, values.data(), values.size() * sizeof(T)));
    return static_cast<T*>(memory);
  }
  kiln_plan* plan(const char* op, const std::string& shape) {
    kiln_plan* plan = nullptr;
    EXPECT_OK(kiln_plan_create(session_, op, shape.c_str(), &plan));
    return plan;
  }

  std::vector<float> multiplied(const uint16_t* x, const uint8_t* w, const uint8_t* w_scales,
                                const char* w_layout) {
    const std::string shape = linear_shape(w_layout);
    uint64_t w_bytes = 0;
    EXPECT_OK(kiln_tensor_bytes("linear_fp8", shape.c_str(), R"({"num_rows": 0})", "w", &w_bytes));
    std::vector<float> y(kRows * kOutFeatures, -1.0f);
    kiln_linear_fp8_args args{};
    args.struct_bytes = sizeof args;
    args.x = x;
    args.x_stride0 = args.x_stride1 = kInFeatures;
    args.w = w;
    const bool is_packed = std::string(w_layout) == "packed";
    args.w_stride = static_cast<int64_t>(w_bytes) / (is_packed ? kOutFeatures / 8 : kOutFeatures);
    args.w_scales = w_scales;
    args.w_scales_stride = kInFeatures / 32;
    args.y_f32 = on_device(y);
    args.y_f32_stride0 = args.y_f32_stride1 = kOutFeatures;
    args.num_rows = kRows;
    kiln_plan* linear = plan("linear_fp8", shape);
    EXPECT_OK(kiln_linear_fp8_workspace(linear, &args, &args.workspace_bytes));
    EXPECT_OK(kiln_memory_allocate(session_, args.workspace_bytes, &args.workspace));
    EXPECT_OK(kiln_linear_fp8(linear, &args, nullptr));
    EXPECT_OK(kiln_synchronize(session_, nullptr));
    EXPECT_OK(kiln_memory_read(session_, y.data(), args.y_f32, y.size() * sizeof(float)));
    return y;
  }

  TemporaryFolder folder_;
  std::string store_ = folder_.file("kiln.db");
  kiln_session* session_ = nullptr;
};

TEST_F(PackedLinear, EqualsTheLinearOfTheCheckpoint) {
  const std::string pack_shape = R"({"format": "e4m3"})";
  const std::string workload = R"({"ops": [{"op": "pack_weights", "shape": )" + pack_shape +
                               R"(}, {"op": "linear_fp8", "shape": )" + linear_shape("packed") +
                               R"(}, {"op": "linear_fp8", "shape": )" + linear_shape("checkpoint") +
                               "}]}";
  ASSERT_OK(kiln_prepare(session_, workload.c_str(), nullptr, nullptr));
  ASSERT_OK(kiln_seal(session_));

  std::vector<uint8_t> codes(kOutFeatures * kInFeatures), scales(codes.size() / 1024);
  for (size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<uint8_t>(i * 37 + i / 251) % 0x7f | static_cast<uint8_t>(i % 3 << 7);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(115 + i % 7);
  std::vector<uint16_t> x(kRows * kInFeatures);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(0x3f00 + i * 29 % 251);
  const uint8_t* w = on_device(codes);
  const uint8_t* w_scales = on_device(scales);
  const uint16_t* rows = on_device(x);

  uint64_t packed_bytes = 0;
  ASSERT_OK(kiln_tensor_bytes("pack_weights", pack_shape.c_str(),
                              R"({"num_rows": 96, "in_features": 160})", "packed", &packed_bytes));
  EXPECT_EQ(packed_bytes, 96u * 192);
  kiln_pack_weights_args args{};
  args.struct_bytes = sizeof args;
  args.w = w;
  args.w_stride = kInFeatures;
  args.packed = on_device(std::vector<uint8_t>(packed_bytes, 0xff));
  args.packed_stride = static_cast<int64_t>(packed_bytes) / (kOutFeatures / 8);
  args.num_rows = kOutFeatures;
  args.in_features = kInFeatures;
  kiln_plan* pack = plan("pack_weights", pack_shape);
  args.num_rows = kOutFeatures - 8;
  EXPECT_REFUSED(kiln_pack_weights(pack, &args, nullptr), KILN_INVALID_ARGUMENT,
                 "num_rows is a multiple of 32");
  args.num_rows = kOutFeatures;
  ASSERT_OK(kiln_pack_weights(pack, &args, nullptr));

  const std::vector<float> plain = multiplied(rows, w, w_scales, "checkpoint");
  const std::vector<float> packed = multiplied(rows, args.packed, w_scales, "packed");
  double error = 0, squares = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    error += std::pow(plain[i] - packed[i], 2);
    squares += std::pow(plain[i], 2);
  }
  EXPECT_GT(squares, 0);
  EXPECT_LT(std::sqrt(error / squares), 1e-6);  // the orders within an mma differ
}

}  // namespace
}  // namespace kiln::runtime
