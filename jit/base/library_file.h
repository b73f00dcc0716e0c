// What may be handed to dlopen: it opens whatever it is given, and a FIFO without a writer or a
// terminal would never let it go on.
#pragma once

#include <sys/stat.h>

#include <string>

namespace kiln {

// A bare name is looked up by the loader; what is not there is for dlopen to tell.
inline bool is_loadable(const std::string& name) {
  struct stat status;
  if (name.find('/') == std::string::npos || ::stat(name.c_str(), &status) != 0) return true;
  return S_ISREG(status.st_mode);
}

inline constexpr const char* kNotLoadable = "it is not a regular file";

}  // namespace kiln
