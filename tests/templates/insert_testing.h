// Cases of the ops that write caches, byte by byte: what their tests by hand share.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "templates/kit.h"

namespace kiln::templates {

class InsertedBytes {
 public:
  InsertedBytes(const char* op, const Sizes& fixed, const std::string& name)
      : kit_(require_kit(require_op(op))) {
    for (const Case& c : kit_.verify_cases(fixed, {{"T", 1}})) {
      if (c.name == name) call = c;
    }
    EXPECT_EQ(call.name, name) << "no case has this name";
  }

  template <class T>
  std::vector<T> input(const char* arg, int64_t row) const {
    const Arg& tensor = *kit_.op->find_arg(arg);
    std::vector<T> values(static_cast<size_t>(tensor_layout(*kit_.op, tensor, call).dims.back()));
    const std::vector<int64_t> outer =
        tensor.dims.size() == 1 ? std::vector<int64_t>{} : std::vector<int64_t>{row};
    kit_.fill(call, tensor, outer, std::as_writable_bytes(std::span(values)));
    return values;
  }
  int64_t slot(int64_t row) const { return input<int64_t>("slots", 0)[static_cast<size_t>(row)]; }

  // -1: not written.
  int byte(int64_t page, int64_t at) const {
    const std::vector<int64_t> index{page, at};
    const std::optional<double> value = kit_.expected(call, *kit_.op->find_arg("cache"), index);
    return value ? static_cast<int>(*value) : -1;
  }
  // Of the entry of a row: its codes lie at r * code_bytes, its scales behind all codes.
  std::vector<int> codes(int64_t row, int64_t code_bytes, int64_t first, int64_t count) const {
    return bytes(row, slot(row) % page_size() * code_bytes + first, count);
  }
  std::vector<int> scales(int64_t row, int64_t code_bytes, int64_t scale_bytes, int64_t first,
                          int64_t count) const {
    return bytes(row, page_size() * code_bytes + slot(row) % page_size() * scale_bytes + first,
                 count);
  }
  int64_t page_size() const { return call.sizes["page_size"]; }

  Case call;

 private:
  std::vector<int> bytes(int64_t row, int64_t at, int64_t count) const {
    std::vector<int> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(byte(slot(row) / page_size(), at + i));
    return values;
  }

  const Kit& kit_;
};

}  // namespace kiln::templates
