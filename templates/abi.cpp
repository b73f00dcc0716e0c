// Writes the argument struct of an op twice from its description: for device code and for C.
#include "templates/abi.h"

#include <algorithm>
#include <sstream>

namespace kiln::templates {
namespace {

constexpr size_t kColumns = 100;
constexpr size_t kCommentEnd = 3;  // " */" on the last line of a comment

const char* device_type(DType dtype) {
  switch (dtype) {
    case DType::u8:
      return "unsigned char";
    case DType::i32:
      return "int";
    case DType::i64:
      return "long long";
    case DType::bf16:
      return "unsigned short";
    case DType::f32:
      return "float";
  }
  fail(Status::internal, "unknown dtype {}", static_cast<int>(dtype));
}

// Breaks text into lines that end at kColumns; `indent` begins the continuation lines, and is as
// wide as what stands before the first one. `last` is what the caller puts behind the text.
std::string wrapped(const std::string& text, const std::string& indent, size_t last = 0) {
  const size_t width = kColumns - last;
  std::istringstream lines(text);
  std::string result;
  std::string line;
  for (bool first_line = true; std::getline(lines, line); first_line = false) {
    if (!first_line) result += "\n" + indent;
    if (line.starts_with("  ")) {  // a formula or table: keep it as it is
      result += line;
      continue;
    }
    std::istringstream words(line);
    size_t column = indent.size();
    bool first_word = true;
    for (std::string word; words >> word; first_word = false) {
      if (!first_word && column + 1 + word.size() > width) {
        result += "\n" + indent;
        column = indent.size();
      } else if (!first_word) {
        result += " ";
        ++column;
      }
      result += word;
      column += word.size();
    }
  }
  return result;
}

std::string dims_text(const Op& op, const Arg& arg) {
  std::vector<std::string> names;
  for (const std::string& dim : arg.dims) {
    const Size* size = op.find_size(dim);
    names.push_back(size == nullptr ? dim : size->field);
  }
  return fmt::format("[{}]", fmt::join(names, ", "));
}

std::string pointer_doc(const Op& op, const Arg& arg) {
  const char* kind = arg.kind == ArgKind::input    ? "in"
                     : arg.kind == ArgKind::output ? "out"
                                                   : "in and out";
  std::string text =
      fmt::format("{}, {} {}: {}", kind, dtype_name(arg.dtype), dims_text(op, arg), arg.doc);
  if (!arg.only_in.symbol.empty())
    text += fmt::format("; only {}, else NULL", condition_text(op, arg.only_in));
  if (arg.pinned_in.has_value())
    text += fmt::format("; {} pinned memory of the host (on the simulator memory of the device)",
                        condition_text(op, *arg.pinned_in));
  if (arg.presence == Presence::optional) text += "; NULL is legal";
  if (arg.align_bytes > dtype_bytes(arg.dtype))
    text += fmt::format("; {}-byte aligned", arg.align_bytes);
  if (arg.tolerance.has_value()) text += "; " + arg.tolerance->text();
  return text;
}

std::string stride_doc(const Op& op, const Arg& arg, int dim) {
  const std::string& symbol = arg.dims[static_cast<size_t>(dim)];
  const Size* size = op.find_size(symbol);
  if (size == nullptr || size->item.empty()) {
    fail(Status::internal, "{}: {} has a stride over {}, whose item is not named: see stepped()",
         op.name, arg.name, symbol);
  }
  std::string text = fmt::format("elements of {} from one {} to the next", arg.name, size->item);
  if (arg.stride_multiple > 1) text += fmt::format("; a multiple of {}", arg.stride_multiple);
  return text;
}

std::string size_doc(const Size& size) {
  constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
  if (size.max == kUnbounded) return fmt::format("{}; at least {}", size.doc, size.min);
  return fmt::format("{}; {} to {}", size.doc, size.min, size.max);
}

std::string c_field(const Op& op, const Field& field) {
  const auto declare = [](const std::string& type, const std::string& name,
                          const std::string& doc) {
    return fmt::format("  /* {} */\n  {}{};\n", wrapped(doc, "   * ", kCommentEnd), type, name);
  };
  switch (field.kind) {
    case FieldKind::struct_bytes:
      return declare("uint64_t ", field.name, "sizeof of this struct");
    case FieldKind::pointer: {
      const Arg& arg = op.args[static_cast<size_t>(field.arg)];
      const std::string constness = arg.kind == ArgKind::input ? "const " : "";
      return declare(fmt::format("{}{} *", constness, dtype_c_type(arg.dtype)), field.name,
                     pointer_doc(op, arg));
    }
    case FieldKind::stride:
      return declare("int64_t ", field.name,
                     stride_doc(op, op.args[static_cast<size_t>(field.arg)], field.dim));
    case FieldKind::size:
      return declare("int64_t ", field.name, size_doc(op.sizes[static_cast<size_t>(field.size)]));
    case FieldKind::workspace:
      return declare("void *", field.name,
                     "scratch of the call, 256-byte aligned; NULL when it needs none");
    case FieldKind::workspace_bytes:
      return declare("uint64_t ", field.name,
                     fmt::format("its size; at least what kiln_{}_workspace answers", op.name));
  }
  fail(Status::internal, "unknown field kind {}", static_cast<int>(field.kind));
}

std::string c_shape_doc(const Op& op) {
  std::string text;
  for (const Size& size : op.sizes) {
    if (size.kind != SizeKind::fixed) continue;
    std::string values = fmt::format("{} to {}", size.min, size.max);
    if (!size.names.empty()) {
      std::vector<std::string> names;
      for (const SizeName& name : size.names) names.push_back('"' + name.name + '"');
      values = fmt::format("{}", fmt::join(names, ", "));
    }
    text += " *   " +
            wrapped(fmt::format("\"{}\": {} ({})", size.field, size.doc, values), " *     ") + "\n";
  }
  return text;
}

std::string c_requirements(const Op& op) {
  std::string text;
  for (const Requirement& requirement : op.requirements) {
    text += fmt::format(" *   - {}\n", wrapped(requirement.sentence, " *     "));
  }
  return text;
}

constexpr const char* kCallDoc =
    "Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device "
    "shows at the caller's next synchronisation.\n"
    "KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.\n"
    "The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does: "
    "KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, "
    "KILN_OUT_OF_MEMORY, KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and "
    "after kiln_seal it returns KILN_NOT_PREPARED.";

constexpr const char* kWorkspaceDoc =
    "Bytes of workspace that a call with these sizes, or smaller ones, needs; pointers and strides "
    "in args are not looked at. Touches no device.\n"
    "KILN_INVALID_ARGUMENT, KILN_NOT_PREPARED (it depends on the kernels: prepare first), "
    "KILN_CLOSED, KILN_FORKED.";

constexpr const char* kNoWorkspaceDoc =
    "*bytes = 0: this op needs no workspace.\n"
    "KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED.";

std::string c_comment(const std::string& text) {
  return fmt::format("/* {} */\n", wrapped(text, " * ", kCommentEnd));
}

std::string c_op(const Op& op) {
  std::string text = fmt::format("/* ---- {} ---- */\n\n", op.name);
  text += fmt::format("/* {}\n *\n * {}\n *\n", wrapped(op.summary, " * "), wrapped(op.doc, " * "));
  const std::string source =
      fmt::format("Formula: {}. Version {}. Result: {}.", op.source, op.version, op.result_text());
  text += fmt::format(" * {}\n", wrapped(source, " * "));
  text += " * Shape (fixed, JSON for kiln_plan_create):\n" + c_shape_doc(op);
  if (!op.requirements.empty()) text += " * A legal call holds:\n" + c_requirements(op);
  text += " */\n";
  text += fmt::format("typedef struct kiln_{}_args {{\n", op.name);
  for (const Field& field : abi_fields(op)) text += c_field(op, field);
  text += fmt::format("}} kiln_{}_args;\n\n", op.name);
  const std::string args = fmt::format("const kiln_{}_args *args", op.name);
  text += c_comment(kCallDoc);
  text += c_signature(fmt::format("KILN_API kiln_status kiln_{}", op.name),
                      {"kiln_plan *plan", args, "void *stream"}) +
          ";\n\n";
  text += c_comment(op.has_workspace ? kWorkspaceDoc : kNoWorkspaceDoc);
  text += c_signature(fmt::format("KILN_API kiln_status kiln_{}_workspace", op.name),
                      {"kiln_plan *plan", args, "uint64_t *bytes"}) +
          ";\n\n";
  return text;
}

}  // namespace

std::vector<Field> abi_fields(const Op& op) {
  std::vector<Field> fields{{.name = "struct_bytes", .kind = FieldKind::struct_bytes}};
  for (int i = 0; i < static_cast<int>(op.args.size()); ++i) {
    const Arg& arg = op.args[static_cast<size_t>(i)];
    const int outer_dims = static_cast<int>(arg.dims.size()) - 1;
    fields.push_back({.name = arg.name, .kind = FieldKind::pointer, .arg = i});
    for (int dim = 0; dim < outer_dims; ++dim) {
      const std::string name =
          outer_dims == 1 ? arg.name + "_stride" : fmt::format("{}_stride{}", arg.name, dim);
      fields.push_back({.name = name, .kind = FieldKind::stride, .arg = i, .dim = dim});
    }
  }
  for (int i = 0; i < static_cast<int>(op.sizes.size()); ++i) {
    const Size& size = op.sizes[static_cast<size_t>(i)];
    if (size.kind == SizeKind::dynamic)
      fields.push_back({.name = size.field, .kind = FieldKind::size, .size = i});
  }
  if (op.has_workspace) {
    fields.push_back({.name = "workspace", .kind = FieldKind::workspace});
    fields.push_back({.name = "workspace_bytes", .kind = FieldKind::workspace_bytes});
  }
  return fields;
}

int field_index(const std::vector<Field>& fields, std::string_view name) {
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

std::string c_signature(const std::string& head, const std::vector<std::string>& parameters) {
  constexpr size_t kTail = 3;  // ");" of a declaration, ") {" of a definition
  size_t widest = 0;
  for (const std::string& parameter : parameters)
    widest = std::max(widest, parameter.size() + kTail);
  // Below the first parameter, or where a long name leaves no room there, by four.
  const bool hangs = head.size() + 1 + widest > kColumns;
  const std::string indent(hangs ? 4 : head.size() + 1, ' ');
  std::string text = head + "(" + (hangs ? "\n" + indent : "");
  size_t column = hangs ? indent.size() : text.size();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool is_last = i + 1 == parameters.size();
    const std::string word = parameters[i] + (is_last ? "" : ",");
    if (i > 0) {
      const bool fits = column + 1 + word.size() + (is_last ? kTail : 0) <= kColumns;
      text += fits ? " " : "\n" + indent;
      column = fits ? column + 1 : indent.size();
    }
    text += word;
    column += word.size();
  }
  return text + ")";
}

std::string condition_text(const Op& op, const ShapeCondition& condition) {
  const Size& size = *op.find_size(condition.symbol);
  std::vector<std::string> values;
  for (const int64_t value : condition.values) {
    const std::string* const name = size.name_of(value);
    values.push_back(name != nullptr ? *name : std::to_string(value));
  }
  const std::string last = values.back();
  values.pop_back();
  const std::string list =
      values.empty() ? last : fmt::format("{} or {}", fmt::join(values, ", "), last);
  return fmt::format("with {} {}", size.field, list);
}

std::string device_args_header(const Op& op) {
  std::string text = fmt::format(
      "// The argument struct of {}, as in kiln_ops.h; made from its description.\n#pragma "
      "once\n\n",
      op.name);
  text += "struct Args {\n";
  for (const Field& field : abi_fields(op)) {
    switch (field.kind) {
      case FieldKind::struct_bytes:
      case FieldKind::workspace_bytes:
        text += fmt::format("  unsigned long long {};\n", field.name);
        break;
      case FieldKind::pointer: {
        const Arg& arg = op.args[static_cast<size_t>(field.arg)];
        const char* constness = arg.kind == ArgKind::input ? "const " : "";
        text += fmt::format("  {}{}* {};\n", constness, device_type(arg.dtype), field.name);
        break;
      }
      case FieldKind::stride:
      case FieldKind::size:
        text += fmt::format("  long long {};\n", field.name);
        break;
      case FieldKind::workspace:
        text += fmt::format("  void* {};\n", field.name);
        break;
    }
  }
  return text + "};\n";
}

std::string c_ops_header(std::span<const Op* const> ops_of_library) {
  std::string text =
      "/* The ops of Kiln. Made from templates/<op>/op.cpp by kiln_gen_ops: do not edit, a test "
      "compares.\n"
      " * Included by kiln.h, which has the rules that hold for every op and every status. */\n"
      "#ifndef KILN_OPS_H_\n#define KILN_OPS_H_\n\n#include \"kiln.h\"\n\n#ifdef "
      "__cplusplus\nextern \"C\" {\n#endif\n\n";
  for (const Op* op : ops_of_library) text += c_op(*op);
  return text + "#ifdef __cplusplus\n}\n#endif\n\n#endif /* KILN_OPS_H_ */\n";
}

}  // namespace kiln::templates
