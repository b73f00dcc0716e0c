// `kiln show OP --source`: the specialised source of one kernel, as NVRTC gets it, in one file.
#pragma once

#include "tools/kiln/common.h"

namespace kiln::cli {

struct SourceArguments {
  std::string arch;
  std::string shape;
  std::string config;
  std::string kernel;
};

// `source`: the flag without which these options mean nothing.
void add_source_options(CLI::App& command, CLI::Option* source, SourceArguments& arguments);
ExitCode show_source(const templates::Op& op, const SourceArguments& arguments,
                     const std::string& gpu_slug, const Common& common);

}  // namespace kiln::cli
