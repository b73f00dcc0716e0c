#include "runtime/call.h"

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "jit/base/error.h"
#include "runtime/abi/boundary.h"
#include "runtime/dispatch.h"
#include "runtime/fork.h"
#include "runtime/handles.h"
#include "runtime/session.h"

namespace kiln::runtime {
namespace {

constexpr uint64_t kWorkspaceAlignBytes = 256;
constexpr uint64_t kMostWorkspaceBytes = std::numeric_limits<int64_t>::max();

// Everything below that is marked cold runs only when a call fails or was never prepared.

[[gnu::cold, gnu::noinline]] kiln_status refuse_handle(kiln_plan* plan, int op_index,
                                                       const void* args) noexcept {
  return guarded([&] {
    require_plan(plan);
    const char* called = templates::ops()[static_cast<size_t>(op_index)]->name.c_str();
    if (plan->op_index != op_index) {
      fail(Status::invalid_argument, "kiln_{} was called with a plan of {}", called, plan->op_name);
    }
    if (args == nullptr) fail(Status::invalid_argument, "{}: args is NULL", called);
    fail(Status::internal, "{}: the call was refused without a reason", called);
  });
}

[[gnu::cold, gnu::noinline]] kiln_status refuse_struct(const CallChecks& checks,
                                                       const void* args) noexcept {
  return guarded([&] { throw Error(Status::invalid_argument, checks.explain_view(args)); });
}

[[gnu::cold, gnu::noinline]] kiln_status refuse_fields(const CallChecks& checks,
                                                       const int64_t* fields) noexcept {
  return guarded([&] { throw Error(Status::invalid_argument, checks.explain(fields)); });
}

[[gnu::cold, gnu::noinline]] kiln_status refuse_workspace(const CallChecks& checks,
                                                          const int64_t* fields,
                                                          int64_t needed) noexcept {
  return guarded([&] {
    const auto pointer = static_cast<uint64_t>(fields[checks.workspace_field()]);
    const auto bytes = static_cast<uint64_t>(fields[checks.workspace_field() + 1]);
    const std::string& op = checks.op().name;
    if (bytes > kMostWorkspaceBytes) {
      fail(
          Status::invalid_argument,
          "{}: workspace_bytes is {}, which no memory has; it says how many bytes workspace points "
          "to",
          op, bytes);
    }
    if (needed > 0 && bytes < static_cast<uint64_t>(needed)) {
      fail(Status::invalid_argument,
           "{}: workspace_bytes is {}, but this call needs {} ({}); ask kiln_{}_workspace with the "
           "largest sizes that will be called",
           op, bytes, needed, checks.sizes_text(fields), op);
    }
    if (pointer == 0) {
      fail(Status::invalid_argument, "{}: workspace is NULL, but this call needs {} bytes", op,
           needed);
    }
    fail(Status::invalid_argument, "{}: workspace is {:#x}, but it must be aligned to {} bytes", op,
         pointer, kWorkspaceAlignBytes);
  });
}

struct Grid {
  int64_t x = 1, y = 1, z = 1;
  bool is_empty() const { return x <= 0 || y <= 0 || z <= 0; }
  bool is_legal() const { return x <= kMaxGridX && y <= kMaxGridYZ && z <= kMaxGridYZ; }
};

[[gnu::cold, gnu::noinline]] kiln_status refuse_grid(const CallChecks& checks,
                                                     const int64_t* fields, const KernelSlot& slot,
                                                     const Grid& grid) noexcept {
  return guarded([&] {
    std::vector<std::string> names;
    for (const FieldExtent* extent : {&slot.grid_x, &slot.grid_y, &slot.grid_z}) {
      for (const int field : extent->fields()) names.push_back(checks.field_name(field));
    }
    fail(
        Status::invalid_argument,
        "{}: these sizes ({}) need a grid of {} x {} x {} blocks; a launch holds at most {} x {} x "
        "{}: lower {}, for which the call may have to be split",
        checks.op().name, checks.sizes_text(fields), grid.x, grid.y, grid.z, kMaxGridX, kMaxGridYZ,
        kMaxGridYZ, fmt::join(names, " or "));
  });
}

[[gnu::cold, gnu::noinline]] kiln_status refuse_launch(const kiln_plan& plan,
                                                       const CallChecks& checks,
                                                       const int64_t* fields, const Grid& grid,
                                                       int driver_error) noexcept {
  return guarded([&] {
    const Device& device = plan.session->device();
    if (device.is_of_earlier_kernel(driver_error)) {
      fail(
          Status::driver_error,
          "{}: a kernel that was launched earlier, not necessarily one of this op or of Kiln, has "
          "failed on the device (under CUDA_LAUNCH_BLOCKING=1: that or this one), and nothing runs "
          "in this context any more: {}",
          checks.op().name, device.error_text(driver_error));
    }
    fail(Status::driver_error, "{}: the launch of {} x {} x {} blocks ({}) failed: {}",
         checks.op().name, grid.x, grid.y, grid.z, checks.sizes_text(fields),
         device.error_text(driver_error));
  });
}

// Makes an unprepared plan ready, unless that is not allowed now. nullptr: `status` says why.
[[gnu::cold, gnu::noinline]] const Dispatch* prepare_for_call(kiln_plan& plan, void* stream,
                                                              kiln_status& status) noexcept {
  status = guarded([&] {
    if (plan.session->device().capture_state(stream) != CaptureState::none) {
      fail(Status::not_prepared,
           "{}: its kernels are not ready, and nothing may be compiled or loaded while the stream "
           "is being captured; call kiln_prepare before the capture",
           plan.op_name);
    }
    plan.session->prepare_shape(*plan.shape);
  });
  return plan.shape->dispatch.load(std::memory_order_acquire);
}

bool workspace_holds(const int64_t* fields, int workspace_field, int64_t needed) noexcept {
  if (needed <= 0) return true;
  const auto pointer = static_cast<uint64_t>(fields[workspace_field]);
  const auto bytes = static_cast<uint64_t>(fields[workspace_field + 1]);
  return pointer != 0 && pointer % kWorkspaceAlignBytes == 0 &&
         bytes >= static_cast<uint64_t>(needed) && bytes <= kMostWorkspaceBytes;
}

bool is_usable(const kiln_plan* plan, int op_index) noexcept {
  return plan != nullptr && plan->open.load(std::memory_order_acquire) &&
         plan->fork_generation == fork_generation() && plan->op_index == op_index;
}

// All grids are known to be legal before the first kernel is launched, so that no call runs by
// halves.
kiln_status launch(kiln_plan& plan, const CallChecks& checks, const DispatchVariant& variant,
                   size_t bucket, const int64_t* fields, void* stream) noexcept {
  std::array<Grid, kMaxKernels> grids;
  const size_t count = variant.kernels.size();
  for (size_t i = 0; i < count; ++i) {
    const KernelSlot& slot = variant.kernels[i];
    grids[i] = {slot.grid_x.value(fields), slot.grid_y.value(fields), slot.grid_z.value(fields)};
    if (!grids[i].is_empty() && !grids[i].is_legal())
      return refuse_grid(checks, fields, slot, grids[i]);
  }
  bool reached_driver = false;
  for (size_t i = 0; i < count; ++i) {
    const Grid& grid = grids[i];
    if (grid.is_empty()) continue;
    const Dim3 blocks{static_cast<uint32_t>(grid.x), static_cast<uint32_t>(grid.y),
                      static_cast<uint32_t>(grid.z)};
    const LaunchResult result =
        plan.shape->device->launch(variant.kernels[i].kernel, blocks, fields, stream);
    if (result.driver_error != 0) [[unlikely]] {
      return refuse_launch(plan, checks, fields, grid, result.driver_error);
    }
    reached_driver = true;
  }
  if (reached_driver) {
    plan.shape->calls.add_one();
    plan.shape->used.note(bucket);
  }
  return KILN_OK;
}

}  // namespace

kiln_status call_op(kiln_plan* plan, int op_index, const void* args, void* stream) noexcept {
  if (!is_usable(plan, op_index) || args == nullptr) [[unlikely]] {
    return refuse_handle(plan, op_index, args);
  }
  const ErrnoKeeper keep_errno;
  const CallChecks& checks = plan->shape->checks;
  std::array<int64_t, kMaxFields> storage;
  const int64_t* fields = checks.view(args, storage.data());
  if (fields == nullptr) [[unlikely]] {
    return refuse_struct(checks, args);
  }
  if (!checks.holds(fields)) [[unlikely]] {
    return refuse_fields(checks, fields);
  }
  const Dispatch* dispatch = plan->shape->dispatch.load(std::memory_order_acquire);
  if (dispatch == nullptr) [[unlikely]] {
    kiln_status status = KILN_OK;
    dispatch = prepare_for_call(*plan, stream, status);
    if (dispatch == nullptr) return status;
  }
  const size_t bucket = dispatch->bucket(fields);
  const DispatchVariant& variant = dispatch->variant(bucket);
  if (checks.workspace_field() >= 0) {
    const int64_t needed = variant.workspace_bytes.value(fields);
    if (!workspace_holds(fields, checks.workspace_field(), needed)) [[unlikely]] {
      return refuse_workspace(checks, fields, needed);
    }
  }
  return launch(*plan, checks, variant, bucket, fields, stream);
}

kiln_status call_workspace(kiln_plan* plan, int op_index, const void* args,
                           uint64_t* bytes) noexcept {
  if (bytes != nullptr) *bytes = 0;
  if (!is_usable(plan, op_index) || args == nullptr) return refuse_handle(plan, op_index, args);
  return guarded([&] {
    if (bytes == nullptr) fail(Status::invalid_argument, "{}: bytes is NULL", plan->op_name);
    const CallChecks& checks = plan->shape->checks;
    std::array<int64_t, kMaxFields> storage;
    const int64_t* fields = checks.view(args, storage.data());
    if (fields == nullptr) throw Error(Status::invalid_argument, checks.explain_view(args));
    if (!checks.sizes_hold(fields)) {
      throw Error(Status::invalid_argument, checks.explain(fields));
    }
    if (checks.workspace_field() < 0) return;
    const Dispatch* dispatch = plan->shape->dispatch.load(std::memory_order_acquire);
    if (dispatch == nullptr) {
      fail(Status::not_prepared,
           "{}: how much workspace is needed depends on the kernels, which are not ready; call "
           "kiln_prepare first",
           plan->op_name);
    }
    *bytes = static_cast<uint64_t>(dispatch->workspace_bytes(fields, checks.field_count()));
  });
}

}  // namespace kiln::runtime
