// Which kernels a call launches: from the sizes to a bucket, from the bucket to a variant, from the
// variant to kernels and grids. A table is immutable; preparing more publishes a new one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/call_checks.h"
#include "runtime/device.h"
#include "templates/op.h"

namespace kiln::runtime {

inline constexpr int kMaxKernels = 8;

inline constexpr int64_t kMaxGridX = 2147483647;
inline constexpr int64_t kMaxGridYZ = 65535;

struct KernelSlot {
  LoadedKernel kernel;
  FieldExtent grid_x, grid_y, grid_z;
};

// One config with its kernels in stream order.
struct DispatchVariant {
  std::vector<KernelSlot> kernels;
  FieldExtent workspace_bytes;
};

// Maps a dynamic size to the index of its bucket: the nearest edge by ratio.
class BucketAxis {
 public:
  BucketAxis(int field, const std::vector<int64_t>& edges);
  int field() const { return field_; }
  size_t count() const { return last_of_.size() + 1; }
  size_t index(int64_t value) const noexcept {
    size_t i = 0;
    while (i < last_of_.size() && value > last_of_[i]) ++i;
    return i;
  }
  // The largest size that takes bucket i.
  int64_t last_of(size_t i) const;

 private:
  int field_ = 0;
  std::vector<int64_t> last_of_;
};

class Dispatch {
 public:
  // pick: for every bucket in the order of templates::all_buckets an index into variants;
  // variants[0] is the default. coming: the workspace of the config that a bucket will take soon,
  // where there is one; as many as buckets, or none at all.
  Dispatch(const CallChecks& checks, std::vector<DispatchVariant> variants,
           std::vector<uint32_t> pick, std::vector<std::optional<FieldExtent>> coming = {});

  // The index of a call's bucket, in the order of templates::all_buckets.
  size_t bucket(const int64_t* fields) const noexcept {
    size_t index = 0;
    for (const BucketAxis& axis : axes_) {
      index = index * axis.count() + axis.index(fields[axis.field()]);
    }
    return index;
  }
  const DispatchVariant& variant(size_t bucket) const noexcept { return variants_[pick_[bucket]]; }

  // Enough for every call whose sizes do not exceed these, now and with what is coming: a smaller
  // call may take a config that wants more.
  int64_t workspace_bytes(const int64_t* fields, int field_count) const;

 private:
  std::vector<BucketAxis> axes_;
  std::vector<uint32_t> pick_;
  std::vector<DispatchVariant> variants_;
  std::vector<std::optional<FieldExtent>> coming_;
};

}  // namespace kiln::runtime
