// The workload JSON of kiln_prepare and of the tuner: which ops, which fixed shapes, which buckets
// of the dynamic sizes. Every mistake in it is an Error that names the entry, what was expected and
// what came.
#pragma once

#include <string_view>
#include <vector>

#include "jit/base/json.h"
#include "templates/op.h"

namespace kiln::runtime {

struct WorkloadItem {
  const templates::Op* op = nullptr;
  templates::Sizes fixed;
  std::vector<templates::Sizes> buckets;  // of the dynamic sizes that the op distinguishes
};

inline constexpr int kDefaultTensorParallel = 2;

// What parse_workload() reads as these items: neighbouring buckets are one range.
Json workload_json(const std::vector<WorkloadItem>& items);

// text: "" for all ops with the model's shapes. Items are distinct in (op, fixed).
std::vector<WorkloadItem> parse_workload(std::string_view text);

}  // namespace kiln::runtime
