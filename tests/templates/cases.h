// What tests of kits ask them.
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "templates/kit.h"

namespace kiln::templates {

inline Case named(const std::vector<Case>& cases, const std::string& name) {
  for (const Case& c : cases) {
    if (c.name == name) return c;
  }
  ADD_FAILURE() << "no case is named " << name;
  return {};
}

// A row of an input, `outer` being all but its innermost index.
template <typename Element>
std::vector<Element> filled(const Kit& kit, const Case& c, const char* arg,
                            const std::vector<int64_t>& outer, int64_t count) {
  std::vector<Element> row(static_cast<size_t>(count));
  kit.fill(c, *kit.op->find_arg(arg), outer, std::as_writable_bytes(std::span(row)));
  return row;
}

inline double expected(const Kit& kit, const Case& c, const char* arg,
                       const std::vector<int64_t>& index) {
  return kit.expected(c, *kit.op->find_arg(arg), index).value();
}

}  // namespace kiln::templates
