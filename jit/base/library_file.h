// Shared libraries whose names come from outside. dlopen opens whatever it is given, and a FIFO
// without a writer or a terminal would never let it go on.
#pragma once

#include <dlfcn.h>

#include <string>

namespace kiln {

struct LibraryFile {
  void* handle = nullptr;
  std::string why;  // it was not opened; "" when it was
};

// A bare name is looked up by the loader. The file stays open for the life of the process.
LibraryFile open_library_file(const std::string& name, int flags = RTLD_NOW | RTLD_LOCAL);

}  // namespace kiln
