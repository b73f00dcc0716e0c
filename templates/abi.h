// From a description to the argument struct: its fields, the device header, the public C header.
// Every field is eight bytes: struct_bytes, then for each argument its pointer and strides, then
// the dynamic sizes, then the workspace.
#pragma once

#include <string>
#include <vector>

#include "templates/op.h"

namespace kiln::templates {

enum class FieldKind { struct_bytes, pointer, stride, size, workspace, workspace_bytes };
struct Field {
  std::string name;  // "topk", "topk_stride", "out_stride0", "num_tokens"
  FieldKind kind = FieldKind::size;
  int arg = -1;   // index into Op::args for pointers and strides
  int dim = -1;   // stride of this dimension
  int size = -1;  // index into Op::sizes
};
inline constexpr int kFieldBytes = 8;

std::vector<Field> abi_fields(const Op& op);
int field_index(const std::vector<Field>& fields, std::string_view name);  // -1 when absent

// "with compressed_format f1, f2 or f3".
std::string condition_text(const Op& op, const ShapeCondition& condition);

// "head(parameters)" without what ends it, broken after commas to stay within 100 columns.
std::string c_signature(const std::string& head, const std::vector<std::string>& parameters);

std::string device_args_header(const Op& op);              // kiln_args.h: `struct Args { ... };`
std::string c_ops_header(std::span<const Op* const> ops);  // kiln_ops.h, whole

}  // namespace kiln::templates
