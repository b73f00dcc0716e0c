// From a launch of a description to the self-contained source that the compiler takes.
#include <deque>

#include "templates/abi.h"
#include "templates/op.h"

namespace kiln::templates {
namespace {

// A deque: pointers to sources stay valid when a test adds one.
std::deque<jit::SourceFile>& all_sources() {
  static std::deque<jit::SourceFile> sources(builtin_sources().begin(), builtin_sources().end());
  return sources;
}

}  // namespace

const jit::SourceFile* find_source(std::string_view path) {
  for (const jit::SourceFile& source : all_sources()) {
    if (source.path == path) return &source;
  }
  return nullptr;
}

void register_test_source(jit::SourceFile source) { all_sources().push_back(std::move(source)); }

jit::KernelSource kernel_source(const Op& op, const KernelLaunch& launch) {
  const std::string path = "templates/" + op.name + "/" + launch.file;
  const jit::SourceFile* main = find_source(path);
  if (main == nullptr)
    fail(Status::internal, "{}: the source {} is not embedded in this library", op.name, path);

  jit::KernelSource source;
  source.main = *main;
  source.constants = launch.constants;
  source.entry = launch.entry;
  source.headers.push_back({"kiln_args.h", device_args_header(op)});
  const std::string own_folder = "templates/" + op.name + "/";
  for (const jit::SourceFile& file : all_sources()) {
    // Kernels include what is common, oracles what is naive: they share no line.
    const bool shared =
        file.path.starts_with("templates/common/") || file.path.starts_with("templates/naive/");
    const bool own = file.path.starts_with(own_folder) && file.path.ends_with(".cuh");
    if (shared || own) source.headers.push_back(file);
  }
  return source;
}

jit::CompileOptions compile_options(const KernelLaunch& launch) {
  return jit::CompileOptions{.max_registers = launch.max_registers, .extra = {}};
}

}  // namespace kiln::templates
