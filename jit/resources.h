// What a kernel needs of an SM, read from the log of the assembler and from the cubin itself.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jit/compiler.h"

namespace kiln::jit {

// From the `--ptxas-options=-v` lines about this entry; nothing when the log lacks them.
std::optional<Resources> resources_from_log(std::string_view log, std::string_view entry);

// From the ELF sections of a cubin; nothing when the image is not such a file or lacks the entry.
// Spills are not recorded there: they are part of stack_bytes.
std::optional<Resources> resources_from_cubin(std::string_view image, std::string_view entry);

// Names of the kernels that an image holds.
std::vector<std::string> entries_of_cubin(std::string_view image);
std::vector<std::string> entries_of_ptx(std::string_view ptx);

}  // namespace kiln::jit
