#include "jit/base/library_file.h"

#include <sys/stat.h>

namespace kiln {
namespace {

// What is not there is for dlopen to tell.
bool is_loadable(const std::string& name) {
  struct stat status;
  if (name.find('/') == std::string::npos || ::stat(name.c_str(), &status) != 0) return true;
  return S_ISREG(status.st_mode);
}

}  // namespace

LibraryFile open_library_file(const std::string& name, int flags) {
  if (!is_loadable(name)) return {nullptr, "it is not a regular file"};
  if (void* handle = dlopen(name.c_str(), flags)) return {handle, ""};
  const char* text = dlerror();
  return {nullptr, text == nullptr ? "the loader gave no reason" : text};
}

}  // namespace kiln
