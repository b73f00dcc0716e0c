// The functions that libkiln.so exports, for tests that hold a table against them.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>

namespace kiln::runtime {

inline std::set<std::string> library_functions() {
  std::set<std::string> functions;
  FILE* pipe = popen("nm -D --defined-only --format=posix " KILN_LIBRARY, "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << "nm cannot be started";
    return functions;
  }
  char line[512];
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    const std::string name = std::string(line).substr(0, std::string(line).find_first_of(" @"));
    if (name.rfind("kiln_", 0) == 0) functions.insert(name);
  }
  EXPECT_EQ(pclose(pipe), 0);
  return functions;
}

}  // namespace kiln::runtime
