#include "runtime/sim/views.h"

#include <algorithm>
#include <cstring>

#include "jit/base/error.h"
#include "templates/abi.h"

namespace kiln::runtime::sim {
namespace {

using templates::Arg;
using templates::ArgKind;
using templates::Field;
using templates::FieldKind;
using templates::Sizes;

int64_t field_value(std::span<const std::byte> params, size_t index) {
  int64_t value = 0;
  std::memcpy(&value, params.data() + index * templates::kFieldBytes, sizeof value);
  return value;
}

View argument_view(const templates::Op& op, const Arg& arg, const Sizes& sizes, uint64_t begin) {
  View view{.name = arg.name,
            .begin = begin,
            .element_bytes = templates::dtype_bytes(arg.dtype),
            .may_read = arg.kind != ArgKind::output,
            .may_write = arg.kind != ArgKind::input};
  for (const std::string& dim : arg.dims) {
    const templates::Size* const size = op.find_size(dim);
    view.dims.push_back(sizes[size != nullptr ? size->symbol : dim]);
  }
  view.strides_bytes.assign(view.dims.size(), view.element_bytes);
  return view;
}

__extension__ typedef __int128 Wide;  // strides of a call may be anything

// From the first byte to behind the last one.
Wide span_bytes(const View& view, size_t first_dim) {
  Wide bytes = view.element_bytes;
  for (size_t d = first_dim; d < view.dims.size(); ++d)
    bytes += Wide{view.dims[d] - 1} * view.strides_bytes[d];
  return bytes;
}

// Whether a byte of [low, high) belongs to the dims of the view from `dim` on, which begin at
// `begin`. Dims go from the largest stride to the smallest.
bool touches(const View& view, size_t dim, Wide begin, Wide low, Wide high) {
  const Wide span = span_bytes(view, dim);
  if (high <= begin || low >= begin + span) return false;
  if (dim == view.dims.size()) return true;
  const Wide stride = view.strides_bytes[dim];
  if (stride <= 0) return touches(view, dim + 1, begin, low, high);
  const Wide inner = span_bytes(view, dim + 1);
  const Wide first = std::max<Wide>(low - begin - inner + stride, 0) / stride;
  const Wide last = std::min<Wide>((high - 1 - begin) / stride, view.dims[dim] - 1);
  for (Wide i = first; i <= last; ++i) {
    if (touches(view, dim + 1, begin + i * stride, low, high)) return true;
  }
  return false;
}

// Largest stride first, and without dims that only go on where the next one ends.
View in_order(View view) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, number
  for (size_t d = 0; d < view.dims.size(); ++d) {
    if (view.dims[d] > 1) dims.emplace_back(view.strides_bytes[d], view.dims[d]);
  }
  std::sort(dims.rbegin(), dims.rend());
  view.dims.clear();
  view.strides_bytes.clear();
  for (size_t d = dims.size(); d-- > 0;) {
    auto [stride, number] = dims[d];
    if (stride == view.element_bytes) {
      view.element_bytes *= number;
    } else {
      view.dims.insert(view.dims.begin(), number);
      view.strides_bytes.insert(view.strides_bytes.begin(), stride);
    }
  }
  return view;
}

bool share_memory(const View& one, const View& other) {
  const View rows = in_order(one);
  const View place = in_order(other);
  const Wide begin = rows.begin;
  const Wide there = place.begin;
  if (!touches(place, 0, there, begin, begin + span_bytes(rows, 0))) return false;
  // Row by row, up to a number that takes no time.
  constexpr int64_t kMostRows = 1 << 16;
  int64_t count = 1;
  for (const int64_t dim : rows.dims) count = std::min(count, kMostRows) * std::min(dim, kMostRows);
  for (int64_t row = 0; row < std::min(count, kMostRows); ++row) {
    Wide at = begin;
    int64_t rest = row;
    for (size_t d = rows.dims.size(); d-- > 0; rest /= rows.dims[d])
      at += Wide{rest % rows.dims[d]} * rows.strides_bytes[d];
    if (touches(place, 0, there, at, at + rows.element_bytes)) return true;
  }
  return false;
}

void refuse_shared_outputs(const Subject& subject) {
  for (const View& written : subject.views) {
    if (!written.may_write) continue;
    for (const View& other : subject.views) {
      if (&other == &written || !share_memory(written, other)) continue;
      fail(Status::invalid_argument,
           "{}: the output {} shares memory with {} {}: an output is no place of another argument",
           subject.op, written.name, other.may_write ? "the output" : "the input", other.name);
    }
  }
}

}  // namespace

Subject checker_subject(const KernelSubject& subject, std::string_view kernel,
                        std::span<const std::byte> params) {
  Subject result{.kernel = std::string(kernel), .config = subject.config};
  if (subject.op == nullptr) {
    result.bounds = Bounds::everything;
    return result;
  }
  const templates::Op& op = *subject.op;
  result.op = op.name;
  const std::vector<Field> fields = templates::abi_fields(op);
  const size_t struct_bytes = fields.size() * templates::kFieldBytes;
  if (params.size() != struct_bytes) {
    fail(Status::internal,
         "The kernel {} of {} came with {} bytes of arguments; its struct has {}, so that what it "
         "touches cannot be checked",
         kernel, op.name, params.size(), struct_bytes);
  }

  Sizes sizes = subject.fixed;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].kind != FieldKind::size) continue;
    sizes.set(op.sizes[static_cast<size_t>(fields[i].size)].symbol, field_value(params, i));
  }
  sizes = templates::with_derived(op, sizes);
  for (size_t i = 0; i < fields.size(); ++i) {
    const auto value = static_cast<uint64_t>(field_value(params, i));
    const Field& field = fields[i];
    switch (field.kind) {
      case FieldKind::pointer:
        result.views.push_back(
            argument_view(op, op.args[static_cast<size_t>(field.arg)], sizes, value));
        break;
      case FieldKind::stride: {  // follows its pointer
        View& view = result.views.back();
        view.strides_bytes[static_cast<size_t>(field.dim)] =
            static_cast<int64_t>(value) * view.element_bytes;
        break;
      }
      case FieldKind::workspace:
        result.views.push_back({.name = field.name,
                                .begin = value,
                                .dims = {field_value(params, i + 1)},
                                .strides_bytes = {1},
                                .may_read = false,
                                .may_write = true});
        break;
      case FieldKind::struct_bytes:
      case FieldKind::workspace_bytes:
      case FieldKind::size:
        break;
    }
  }
  // An optional argument that was left out, and what has no elements, is no place at all.
  std::erase_if(result.views, [](const View& view) {
    return view.begin == 0 ||
           std::any_of(view.dims.begin(), view.dims.end(), [](int64_t dim) { return dim <= 0; });
  });
  refuse_shared_outputs(result);
  return result;
}

}  // namespace kiln::runtime::sim
