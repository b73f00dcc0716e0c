// What kits promise to tests that draw and look at some of many rows.
#include <gtest/gtest.h>

#include "templates/kit.h"

namespace kiln::templates {
namespace {

// Elements of an output with a truth: counted one by one, and by what the rows say they write.
struct Counts {
  int64_t with_truth = 0;
  int64_t written = 0;
  int64_t written_without_truth = 0;
};
Counts counts_of(const Kit& kit, const Case& c, const Arg& arg) {
  const TensorLayout layout = tensor_layout(*kit.op, arg, c);
  Counts counts;
  for (int64_t t = 0; t < c.sizes["T"]; ++t) {
    for (const ElementRange& range : kit.written_by(c, arg, t)) {
      for (int64_t i = 0; i < range.count; ++i) {
        std::vector<int64_t> index = range.outer;
        index.push_back(range.begin + i);
        ++counts.written;
        if (!kit.expected(c, arg, index)) ++counts.written_without_truth;
      }
    }
  }
  for (int64_t row = 0; row < layout.dims.front() && layout.dims.size() == 2; ++row) {
    for (int64_t column = 0; column < layout.dims.back(); ++column)
      counts.with_truth += kit.expected(c, arg, std::vector{row, column}) ? 1 : 0;
  }
  return counts;
}

TEST(Kits, RowsSayWhereTheyAreWritten) {
  int outputs = 0;
  for (const Kit* kit : kits()) {
    if (kit->written_by == nullptr) continue;
    for (const Sizes& shape : kit->op->model_shapes(2)) {
      for (const Case& c : kit->replay_cases(shape)) {
        for (const Arg& arg : kit->op->args) {
          if (arg.kind == ArgKind::input || arg.dims.front() == "T" || !c.has(arg.name)) continue;
          const Counts counts = counts_of(*kit, c, arg);
          const std::string which =
              kit->op->name + " " + shape_json(*kit->op, shape).dump() + ", " + c.name;
          EXPECT_EQ(counts.written_without_truth, 0) << which;
          if (arg.kind == ArgKind::output) {
            EXPECT_EQ(counts.written, counts.with_truth) << which;
          }
          outputs += counts.written > 0 ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GE(outputs, 12);
}

}  // namespace
}  // namespace kiln::templates
