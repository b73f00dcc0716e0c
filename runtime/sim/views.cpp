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

void refuse_shared_outputs(const Subject& subject) {
  for (const View& written : subject.views) {
    if (!written.may_write) continue;
    for (const View& other : subject.views) {
      if (&other == &written || !Checker::share_memory(written, other)) continue;
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
