// What proves and measures an op: its inputs, its truth, its oracle. One Kit per op, registered
// with libkiln_tune. Kits and oracles include nothing from templates/common/, so that they cannot
// share a mistake with the kernel.
//
// Inputs are counter-based: any element is a pure function of (case, argument, index), computable
// anywhere. Cache contents come from the writer's layout formula; truth comes from the source
// values, never from reading a cache back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "templates/op.h"

namespace kiln::templates {

// One call, whole: sizes, strides and what the inputs hold.
struct Case {
  std::string name;                 // "dense", "padded rows", "lengths zero to capacity"
  Sizes sizes;                      // fixed and dynamic, every symbol of the op
  Sizes strides;                    // by field name ("out_stride0"); those left out are dense
  NamedInts knobs;                  // what this op's generator varies: {"padded_rows", 3}
  std::vector<std::string> absent;  // optional arguments passed as NULL
  uint64_t seed = 1;

  bool has(std::string_view arg) const;
};

// Elements of an output that lie side by side.
struct ElementRange {
  std::vector<int64_t> outer;  // indices of the outer dimensions
  int64_t begin = 0;
  int64_t count = 0;
};

struct Kit {
  const Op* op = nullptr;

  // The call that is measured for this problem: dense, every length at capacity.
  Case (*measured_case)(const Sizes& fixed, const Sizes& bucket) = nullptr;
  // The calls that a candidate must get right before it is measured: edges and odd strides, plus
  // one near the measured size.
  std::vector<Case> (*verify_cases)(const Sizes& fixed, const Sizes& bucket) = nullptr;

  // Calls that one captured graph replays: equal sizes, strides and absent arguments, other
  // contents (lengths from zero to capacity, other tables, padded rows). The first is the one that
  // is captured.
  std::vector<Case> (*replay_cases)(const Sizes& fixed) = nullptr;
  // Calls beyond 16-bit grids and 32-bit offsets; up to 25 GB of tensors, for tests on a real GPU.
  std::vector<Case> (*large_cases)(const Sizes& fixed) = nullptr;
  // Fixed shapes that no model has and that are legal all the same.
  std::vector<Sizes> (*further_shapes)() = nullptr;

  // Writes one innermost row of an input (or of an inout's first value): `outer` are the indices of
  // the outer dimensions. Bytes between rows (gaps of strides) and around the tensor are poisoned
  // by the caller.
  void (*fill)(const Case& c, const Arg& arg, std::span<const int64_t> outer,
               std::span<std::byte> row) = nullptr;

  // Truth in float64 for one element of an output; nullopt: the op must leave it as it was.
  std::optional<double> (*expected)(const Case& c, const Arg& arg,
                                    std::span<const int64_t> index) = nullptr;

  // Where row t of the call ("T") is written in an output that has other rows, such as the pages of
  // a cache; empty: nowhere. Left out where the op has no such output. With it a test can draw some
  // of many rows, and look at no others.
  std::vector<ElementRange> (*written_by)(const Case& c, const Arg& arg, int64_t t) = nullptr;

  // A naive kernel of the same argument struct that computes the whole output. Constants as in the
  // kernel are not needed: only fixed sizes.
  KernelLaunch (*oracle)(const Sizes& fixed) = nullptr;
};

std::span<const Kit* const> kits();
const Kit& require_kit(const Op& op);    // fails with internal when an op has none
void register_test_kit(const Kit* kit);  // tests only, beside register_test_op

// Counter-based randomness: a pure function, the same on every machine. `stream` names what is
// drawn.
uint64_t counter_bits(uint64_t seed, uint64_t stream, uint64_t index);
int64_t counter_range(uint64_t seed, uint64_t stream, uint64_t index, int64_t low,
                      int64_t high);  // inclusive

// Shape of one argument in a case, with strides filled in.
struct TensorLayout {
  std::vector<int64_t> dims;
  std::vector<int64_t> strides;  // elements, one per dimension, the last is 1
  int64_t elements = 0;          // of the storage, gaps included; 0 when a dimension is 0
};
TensorLayout tensor_layout(const Op& op, const Arg& arg, const Case& c);

}  // namespace kiln::templates
