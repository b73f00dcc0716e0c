// Variables of the environment, as far as the library reads them.
#pragma once

#include <cstdlib>
#include <string>

namespace kiln {

// "" when it is not set: an empty variable means the same.
inline std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace kiln
