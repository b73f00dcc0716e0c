// The argument struct made from a description: one layout for C and for the device.
#include "templates/abi.h"

#include <gtest/gtest.h>

#include <sstream>

#include "templates/kit.h"

namespace kiln::templates {
namespace {

TEST(Abi, FieldsFollowTheDescription) {
  std::vector<std::string> names;
  for (const Field& field : abi_fields(require_op("gather_dequant_kv")))
    names.push_back(field.name);
  const std::vector<std::string> expected{
      "struct_bytes", "cache",       "cache_stride",       "lens",
      "gather_lens",  "block_table", "block_table_stride", "out",
      "out_stride0",  "out_stride1", "num_requests",       "max_rows",
      "offset",       "page_size",   "num_pages",          "table_width"};
  EXPECT_EQ(names, expected);
}

TEST(Abi, DeviceStructHasOneEightByteMemberPerField) {
  for (const Op* op : ops()) {
    const std::string header = device_args_header(*op);
    size_t members = 0;
    for (size_t at = 0; (at = header.find("\n  ", at)) != std::string::npos; ++at) ++members;
    EXPECT_EQ(members, abi_fields(*op).size()) << header;
    for (const Field& field : abi_fields(*op))
      EXPECT_NE(header.find(" " + field.name + ";"), std::string::npos) << field.name;
  }
}

TEST(Abi, EveryFieldIsDocumentedInTheCHeader) {
  const std::string header = c_ops_header(ops());
  for (const Op* op : ops()) {
    EXPECT_NE(header.find(fmt::format("typedef struct kiln_{}_args {{", op->name)),
              std::string::npos);
    for (const Arg& arg : op->args)
      EXPECT_NE(header.find(arg.doc.substr(0, 20)), std::string::npos) << arg.name;
  }
}

TEST(Abi, SizesAreCountsAndStridesStepOverOneItem) {
  Op op = require_op("gather_dequant_kv");
  const Op* listed[] = {&op};
  const std::string header = c_ops_header(listed);
  EXPECT_NE(header.find("/* pages of the cache; 0 to "), std::string::npos) << header;
  EXPECT_NE(header.find("from one page of the cache to the next"), std::string::npos) << header;
  for (Size& size : op.sizes) size.item.clear();
  EXPECT_THROW(c_ops_header(listed), Error);
}

TEST(Abi, ShapesThatAnArgumentBelongsToAreNamed) {
  Op op = *ops().front();
  op.sizes.push_back(fixed("layout", "layout", "of the rows", {{"a", 0}, {"b", 1}, {"c", 2}}));
  op.args.front().only_in = {.symbol = "layout", .values = {0, 2}};
  EXPECT_EQ(op.args.front().presence_in({{"layout", 1}}), Presence::absent);
  EXPECT_EQ(op.args.front().presence_in({{"layout", 2}}), Presence::required);
  const Op* const changed[] = {&op};
  EXPECT_NE(c_ops_header(changed).find("only with layout a or c"), std::string::npos);
}

TEST(Abi, CHeaderStaysWithin100Columns) {
  std::istringstream lines(c_ops_header(ops()));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

// The comment before the declaration of this function.
std::string comment_of(const std::string& header, const std::string& function) {
  const size_t declaration = header.find("KILN_API kiln_status " + function + "(");
  EXPECT_NE(declaration, std::string::npos) << function;
  const size_t comment = header.rfind("/*", declaration);
  return header.substr(comment, declaration - comment);
}

TEST(Abi, CHeaderNamesEveryStatus) {
  Op op = require_op("gather_dequant_kv");
  const Op* listed[] = {&op};
  const std::string call = comment_of(c_ops_header(listed), "kiln_gather_dequant_kv");
  for (const char* status :
       {"INVALID_ARGUMENT", "UNSUPPORTED", "NOT_PREPARED", "BAD_STATE", "CLOSED", "FORKED",
        "NO_COMPILER", "COMPILE_ERROR", "DRIVER_ERROR", "OUT_OF_MEMORY"}) {
    EXPECT_NE(call.find(status), std::string::npos) << status << "\n" << call;
  }
  const std::string none = comment_of(c_ops_header(listed), "kiln_gather_dequant_kv_workspace");
  EXPECT_NE(none.find("INVALID_ARGUMENT"), std::string::npos) << none;
  EXPECT_EQ(none.find("NOT_PREPARED"), std::string::npos) << none;
  op.has_workspace = true;
  const std::string some = comment_of(c_ops_header(listed), "kiln_gather_dequant_kv_workspace");
  EXPECT_NE(some.find("NOT_PREPARED"), std::string::npos) << some;
}

TEST(TensorLayout, DenseStridesAndGivenOnes) {
  const Op& op = require_op("gather_dequant_kv");
  Case c;
  c.sizes = {{"format", 1},    {"R", 2},         {"M", 3},          {"offset", 4},
             {"page_size", 5}, {"num_pages", 6}, {"table_width", 1}};
  const Arg& out = *op.find_arg("out");
  const TensorLayout dense = tensor_layout(op, out, c);
  EXPECT_EQ(dense.dims, (std::vector<int64_t>{2, 7, 512}));
  EXPECT_EQ(dense.strides, (std::vector<int64_t>{7 * 512, 512, 1}));
  EXPECT_EQ(dense.elements, 2 * 7 * 512);
  c.strides = {{"out_stride1", 520}};
  const TensorLayout padded = tensor_layout(op, out, c);
  EXPECT_EQ(padded.strides, (std::vector<int64_t>{7 * 520, 520, 1}));
  EXPECT_EQ(padded.elements, 1 + 7 * 520 + 6 * 520 + 511);
  c.sizes.set("R", 0);
  EXPECT_EQ(tensor_layout(op, out, c).elements, 0);
}

}  // namespace
}  // namespace kiln::templates
