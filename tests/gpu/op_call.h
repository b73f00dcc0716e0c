// What the tests that call ops through the C interface on a GPU share.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/abi/kiln.h"
#include "runtime/call.h"
#include "runtime/device.h"
#include "templates/kit.h"
#include "tuner/tensors.h"

namespace kiln {

inline double element_at(templates::DType dtype, const std::byte* at) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, static_cast<size_t>(templates::dtype_bytes(dtype)));
  return tuner::element_value(dtype, bits);
}

// Memory of one tensor: where the description says that it lies.
class TensorMemory {
 public:
  TensorMemory(runtime::Device& device, const templates::Arg& arg, const templates::Sizes& shape,
               int64_t bytes)
      : device_(&device) {
    if (arg.is_pinned(shape))
      pinned_ = runtime::PinnedBuffer(device, bytes);
    else
      memory_ = runtime::DeviceBuffer(device, bytes);
  }

  runtime::DevicePtr get() const {
    return pinned_.get() != nullptr ? pinned_.on_device() : memory_.get();
  }
  // While no kernel reads it.
  void write(const void* from, int64_t bytes) {
    if (pinned_.get() != nullptr)
      std::memcpy(pinned_.get(), from, static_cast<size_t>(bytes));
    else
      device_->copy_to_device(memory_.get(), from, bytes);
  }

 private:
  runtime::Device* device_;
  runtime::DeviceBuffer memory_;
  runtime::PinnedBuffer pinned_;
};

// One op with a fixed shape: its plan, its workspace, and the struct of a call.
class OpCall {
 public:
  // The workspace is what the default config needs: sessions without a store serve nothing else.
  OpCall(runtime::Device& device, kiln_session* session, const templates::Kit& kit,
         const templates::Sizes& shape, const templates::Case& c,
         std::span<const tuner::TensorPlan> tensors,
         const std::map<std::string, runtime::DevicePtr>& pointers) {
    const templates::Op& op = *kit.op;
    const int64_t workspace_bytes = op.plan(shape, op.default_config(shape), device.info().gpu)
                                        .workspace_bytes.value(tuner::extent_symbols(op, c));
    tuner::Workspace workspace;
    if (workspace_bytes > 0) {
      workspace_ = std::make_unique<runtime::DeviceBuffer>(device, workspace_bytes);
      workspace = {workspace_->get(), workspace_bytes};
    }
    args_ = tuner::pack_arguments(op, c, tensors, pointers, workspace);
    const std::string text = templates::shape_json(op, shape).dump();
    EXPECT_EQ(kiln_plan_create(session, op.name.c_str(), text.c_str(), &plan_), KILN_OK)
        << kiln_last_error();
    while (templates::ops()[static_cast<size_t>(op_index_)] != &op) ++op_index_;
  }
  ~OpCall() { EXPECT_EQ(kiln_plan_destroy(plan_), KILN_OK) << kiln_last_error(); }
  OpCall(const OpCall&) = delete;
  OpCall& operator=(const OpCall&) = delete;

  kiln_status run(runtime::Stream stream) {
    return runtime::call_op(plan_, op_index_, args_.data(), stream);
  }

 private:
  std::unique_ptr<runtime::DeviceBuffer> workspace_;
  std::vector<uint64_t> args_;
  kiln_plan* plan_ = nullptr;
  int op_index_ = 0;
};

// Compares an output with the truth as the op's tolerance wants it. What has no truth must still be
// the poison that was there before.
class OutputCheck {
 public:
  OutputCheck(const templates::Kit& kit, const templates::Case& c, const templates::Arg& arg,
              uint8_t poison)
      : kit_(kit),
        case_(c),
        arg_(arg),
        tolerance_(kit.op->tolerance_of(arg, c.sizes)),
        poison_(static_cast<size_t>(templates::dtype_bytes(arg.dtype)), std::byte{poison}) {}

  // False, with a failure of the test, when the element is wrong.
  bool holds(const std::vector<int64_t>& index, const std::byte* got) {
    return holds(index, got, kit_.expected(case_, arg_, index));
  }
  bool holds(const std::vector<int64_t>& index, const std::byte* got, std::optional<double> truth) {
    const double want =
        truth ? tuner::element_value(arg_.dtype, tuner::element_bits(arg_.dtype, *truth))
              : element_at(arg_.dtype, poison_.data());
    const double have = element_at(arg_.dtype, got);
    const bool is_exact = tolerance_.kind == templates::Tolerance::Kind::bit_exact;
    if (!is_exact && truth && std::isfinite(want) && std::isfinite(have)) {
      error_squares_ += (have - want) * (have - want);
      want_squares_ += want * want;
      return true;
    }
    const bool is_right = have == want || (std::isnan(have) && std::isnan(want));
    EXPECT_TRUE(is_right) << kit_.op->name << ", " << case_.name << ", " << arg_.name
                          << testing::PrintToString(index) << ": expected " << want << ", got "
                          << have;
    return is_right;
  }
  void expect_small_error() const {
    EXPECT_LE(std::sqrt(error_squares_), tolerance_.bound * std::sqrt(want_squares_))
        << kit_.op->name << ", " << case_.name << ", " << arg_.name;
  }

 private:
  const templates::Kit& kit_;
  const templates::Case& case_;
  const templates::Arg& arg_;
  const templates::Tolerance tolerance_;
  std::vector<std::byte> poison_;
  double error_squares_ = 0, want_squares_ = 0;
};

}  // namespace kiln
