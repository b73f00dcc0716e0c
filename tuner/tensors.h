// A call as memory: where its tensors lie, what they hold, and the argument struct that points at
// them. No op is named here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "templates/kit.h"

namespace kiln::tuner {

// Every argument of a case that is not absent, in the order of the op.
struct TensorPlan {
  const templates::Arg* arg = nullptr;
  templates::TensorLayout layout;
  int64_t bytes() const { return layout.elements * templates::dtype_bytes(arg->dtype); }
};
std::vector<TensorPlan> tensor_plans(const templates::Op& op, const templates::Case& c);

// Bytes of the storage of an input or of an inout's first value; gaps between rows are 0xFF. Rows
// are filled in parallel.
std::vector<std::byte> host_contents(const templates::Kit& kit, const templates::Case& c,
                                     const TensorPlan& tensor);

// The bits of an element, in the lowest bytes: a number rounded once to its type; and back.
uint64_t element_bits(templates::DType dtype, double value);
double element_value(templates::DType dtype, uint64_t bits);

// Runs body(begin, end) over pieces of [0, count) on the machine's cores. The first exception of a
// piece is rethrown.
void parallel_pieces(int64_t count, const std::function<void(int64_t begin, int64_t end)>& body);

struct Workspace {
  runtime::DevicePtr pointer = 0;
  int64_t bytes = 0;
};
// The op's struct, eight bytes a field.
std::vector<uint64_t> pack_arguments(const templates::Op& op, const templates::Case& c,
                                     std::span<const TensorPlan> tensors,
                                     const std::map<std::string, runtime::DevicePtr>& pointers,
                                     const Workspace& workspace);

// Sizes, derived sizes and stride fields: all that an extent may name.
templates::Sizes extent_symbols(const templates::Op& op, const templates::Case& c);

// Kernels of a plan, loaded, with the extents of their grids.
struct RunnableKernel {
  std::string entry;
  runtime::LoadedKernel kernel;
  templates::Extent grid_x, grid_y, grid_z;
};
struct RunnablePlan {
  std::vector<RunnableKernel> kernels;
  templates::Extent workspace_bytes{.scale = 0};
};
// Launches in stream order; kernels with an empty grid are skipped. Returns "" or why a launch
// failed.
std::string launch_plan(runtime::Device& device, const RunnablePlan& plan,
                        const templates::Sizes& symbols, const void* args, runtime::Stream stream);

Json case_json(const templates::Case& c);
templates::Case case_from_json(const Json& json);
Json ints_json(const templates::NamedInts& ints);
templates::NamedInts ints_from_json(const Json& json);

}  // namespace kiln::tuner
