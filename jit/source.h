// What one compile reads: the headers that a source really reaches, the generated header of
// constants, and the hash of both. The rules that keep a dumped source equal to what NVRTC sees are
// enforced here: quoted includes only, by their full name, never inside a conditional, and a header
// that is reached twice says `#pragma once`.
#pragma once

#include <string>
#include <vector>

#include "jit/base/hash.h"
#include "jit/compiler.h"

namespace kiln::jit {

inline constexpr const char* kConstantsHeader = "kiln_constants.h";

// The text of kiln_constants.h.
std::string constants_header(const std::vector<Constant>& constants);

// The headers that the main file reaches, in the order of their first include, kiln_constants.h
// among them. Fails with compile_error: which file, which line, what it includes, and what is wrong
// with that.
std::vector<SourceFile> reached_headers(const KernelSource& source);

// Hash of the main file, the headers reached and the entry. The name of the main file is not part
// of it.
Hash128 closure_hash(const KernelSource& source, const std::vector<SourceFile>& headers);

}  // namespace kiln::jit
