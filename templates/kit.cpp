// What every kit shares: counter-based randomness and the layout of a tensor in memory.
#include "templates/kit.h"

#include <algorithm>

#include "templates/abi.h"

namespace kiln::templates {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
// generators", 2014).
uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

bool Case::has(std::string_view arg) const {
  return std::find(absent.begin(), absent.end(), arg) == absent.end();
}

uint64_t counter_bits(uint64_t seed, uint64_t stream, uint64_t index) {
  return mixed(mixed(mixed(seed) ^ stream) ^ index);
}

int64_t counter_range(uint64_t seed, uint64_t stream, uint64_t index, int64_t low, int64_t high) {
  const uint64_t width = static_cast<uint64_t>(high - low) + 1;
  return low + static_cast<int64_t>(counter_bits(seed, stream, index) % width);
}

TensorLayout tensor_layout(const Op& op, const Arg& arg, const Case& c) {
  const Sizes sizes = with_derived(op, c.sizes);
  TensorLayout layout;
  for (const std::string& dim : arg.dims) layout.dims.push_back(sizes[dim]);
  const size_t rank = layout.dims.size();
  layout.strides.assign(rank, 1);
  const std::vector<Field> fields = abi_fields(op);
  for (size_t dim = rank - 1; dim-- > 0;) {
    layout.strides[dim] = layout.strides[dim + 1] * layout.dims[dim + 1];
    for (const Field& field : fields) {
      const bool this_stride = field.kind == FieldKind::stride &&
                               op.args[static_cast<size_t>(field.arg)].name == arg.name &&
                               field.dim == static_cast<int>(dim);
      if (this_stride) layout.strides[dim] = c.strides.get(field.name, layout.strides[dim]);
    }
  }
  layout.elements = 1;
  for (size_t dim = 0; dim < rank; ++dim) {
    if (layout.dims[dim] == 0) {
      layout.elements = 0;
      break;
    }
    layout.elements += (layout.dims[dim] - 1) * layout.strides[dim];
  }
  return layout;
}

}  // namespace kiln::templates
