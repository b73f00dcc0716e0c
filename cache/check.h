// Looks for defects in one store file. Reads everything, so it is for explicit checks, not for
// opening.
#pragma once

#include <string>
#include <vector>

#include "cache/sqlite.h"
#include "jit/base/hash.h"

namespace kiln::cache {

struct FileCheck {
  std::vector<std::string> defects;  // one sentence for each, each naming the file
  bool is_whole = true;  // false: pages or indexes contradict each other, which no row can mend
};

// May throw SqliteError when the file is beyond checking.
FileCheck check_file(Database& database, const std::string& path);

// Plans and binaries that rows of this file name.
struct Reference {
  Hash128 target;
  std::string from;  // "plan 0123...", "the measured decision for ..."
};
std::vector<Reference> referenced_plans(Database& database);
std::vector<Reference> referenced_binaries(Database& database);

}  // namespace kiln::cache
