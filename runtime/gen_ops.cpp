// kiln_gen_ops DIRECTORY: writes kiln_ops.h and generated_ops.cpp, the C side of every op, from the
// descriptions in templates/. Both are checked in; a test compares.
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

#include "jit/base/error.h"
#include "templates/abi.h"

namespace {

using kiln::templates::c_signature;

// The functions that kiln_ops.h declares: one line each, by the op's position in the registry.
std::string generated_functions() {
  std::string text =
      "// The op functions of kiln_ops.h. Made from templates/<op>/op.cpp by kiln_gen_ops: do not\n"
      "// edit, a test compares.\n"
      "#include \"runtime/abi/kiln.h\"\n#include \"runtime/call.h\"\n\n"
      "using kiln::runtime::call_op;\nusing kiln::runtime::call_workspace;\n";
  int index = 0;
  for (const kiln::templates::Op* op : kiln::templates::ops()) {
    const size_t bytes = kiln::templates::abi_fields(*op).size() * kiln::templates::kFieldBytes;
    const std::string args = fmt::format("const kiln_{}_args* args", op->name);
    text += fmt::format(
        "\nstatic_assert(sizeof(kiln_{0}_args) == {2});\n"
        "{3} {{\n  return call_op(plan, {1}, args, stream);\n}}\n"
        "{4} {{\n  return call_workspace(plan, {1}, args, bytes);\n}}\n",
        op->name, index, bytes,
        c_signature(fmt::format("kiln_status kiln_{}", op->name),
                    {"kiln_plan* plan", args, "void* stream"}),
        c_signature(fmt::format("kiln_status kiln_{}_workspace", op->name),
                    {"kiln_plan* plan", args, "uint64_t* bytes"}));
    ++index;
  }
  return text;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) kiln::fail(kiln::Status::invalid_argument, "cannot write {}", path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: kiln_gen_ops DIRECTORY\n", stderr);
    return 2;
  }
  try {
    const std::string directory = argv[1];
    write_file(directory + "/kiln_ops.h", kiln::templates::c_ops_header(kiln::templates::ops()));
    write_file(directory + "/generated_ops.cpp", generated_functions());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kiln_gen_ops: %s\n", error.what());
    return 1;
  }
  return 0;
}
