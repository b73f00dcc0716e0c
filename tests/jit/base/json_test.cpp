#include "jit/base/json.h"

#include "tests/jit/jit_testing.h"

namespace kiln {
namespace {

using jit::Caught;
using jit::error_of;

TEST(CanonicalJson, SortsKeysAndLeavesOutWhiteSpace) {
  Json value;
  value["zeta"] = 1;
  value["alpha"] = {{"y", true}, {"x", nullptr}};
  value["list"] = {3, "two"};
  EXPECT_EQ(canonical_json(value), R"({"alpha":{"x":null,"y":true},"list":[3,"two"],"zeta":1})");
}

TEST(CanonicalJson, KeepsIntegersOf64Bits) {
  EXPECT_EQ(canonical_json(Json(INT64_MIN)), "-9223372036854775808");
  EXPECT_EQ(canonical_json(Json(UINT64_MAX)), "18446744073709551615");
}

TEST(CanonicalJson, RefusesAFloatAtAnyDepth) {
  const Caught caught = error_of([] { canonical_json({{"a", {1, {{"b", 0.5}}}}}); });
  EXPECT_EQ(caught.status, Status::internal);
  EXPECT_TRUE(caught.says("0.5")) << caught.text;
}

TEST(CanonicalJson, RefusesTextThatIsNotUtf8) {
  EXPECT_EQ(error_of([] { canonical_json(Json("\xff")); }).status, Status::internal);
}

TEST(ParseJson, ReadsWhatItIsGiven) {
  EXPECT_EQ(parse_json(R"({"T": 4, "names": ["a"]})", "shape"), (Json{{"T", 4}, {"names", {"a"}}}));
}

TEST(ParseJson, NamesTheTextThePlaceAndTheReason) {
  const Caught caught = error_of([] { parse_json("{\n  \"T\": 4,\n  \"K\" 5\n}", "workload"); });
  EXPECT_EQ(caught.status, Status::invalid_argument);
  EXPECT_TRUE(caught.says("The workload is not valid JSON at line 3, column 7")) << caught.text;
  EXPECT_TRUE(caught.says("expected ':'")) << caught.text;
  EXPECT_FALSE(caught.says("json.exception")) << caught.text;
}

TEST(ParseJson, TellsThePlaceOnce) {
  const Caught caught = error_of([] { parse_json("{", "shape"); });
  EXPECT_EQ(caught.text.find("line 1"), caught.text.rfind("line 1")) << caught.text;
  EXPECT_EQ(caught.text.find("parse error"), std::string::npos) << caught.text;
  EXPECT_TRUE(caught.says("unexpected end of input")) << caught.text;
}

TEST(ParseJson, RefusesTrailingText) {
  EXPECT_EQ(error_of([] { parse_json("{} {}", "shape"); }).status, Status::invalid_argument);
}

TEST(ParseJson, RefusesANulByteAndWhatFollows) {
  using namespace std::string_view_literals;
  const Caught caught = error_of([] { parse_json("{}\0 {}"sv, "workload"); });
  EXPECT_EQ(caught.status, Status::invalid_argument);
  EXPECT_TRUE(caught.says("line 1, column 3: a NUL byte")) << caught.text;
}

TEST(ParseJson, RefusesEmptyText) {
  EXPECT_EQ(error_of([] { parse_json("", "shape"); }).status, Status::invalid_argument);
}

TEST(ParseJson, RefusesAKeyThatStandsTwice) {
  const Caught caught = error_of([] { parse_json(R"({"T": 1, "x": {"T": 1}, "T": 2})", "shape"); });
  EXPECT_EQ(caught.status, Status::invalid_argument);
  EXPECT_TRUE(caught.says("\"T\" stands twice")) << caught.text;
}

TEST(ParseJson, AllowsOneKeyInTwoObjects) {
  EXPECT_EQ(parse_json(R"([{"T": 1}, {"T": 2}])", "list").size(), 2u);
}

TEST(ParseJson, RefusesNestingThatWouldExhaustTheStack) {
  const Caught caught = error_of([] { parse_json(std::string(100000, '['), "workload"); });
  EXPECT_EQ(caught.status, Status::invalid_argument);
  EXPECT_TRUE(caught.says("nested")) << caught.text;
}

TEST(ParseJson, RefusesANumberThatNoTypeHolds) {
  EXPECT_EQ(error_of([] { parse_json("[1e999]", "shape"); }).status, Status::invalid_argument);
}

TEST(InQuotes, EscapesWhatWouldCutOrDisturbASentence) {
  using namespace std::string_view_literals;
  EXPECT_EQ(in_quotes("num_tokens"), R"("num_tokens")");
  EXPECT_EQ(in_quotes("a\0b\n\x1b[2J\"\\"sv), R"("a\u0000b\n\u001b[2J\"\\")");
  EXPECT_EQ(in_quotes("\xff"), "\"\xef\xbf\xbd\"");
  EXPECT_EQ(in_quotes("\xc3\xa9"), "\"\xc3\xa9\"");
}

TEST(ParseJson, RepeatedNameIsEscapedAndBytesThatAreNoUtf8AreReplaced) {
  const Caught twice = error_of([] { parse_json(R"({"a\u0000b": 1, "a\u0000b": 2})", "shape"); });
  EXPECT_TRUE(twice.says(R"(the key "a\u0000b" stands twice)"));
  const Caught bytes = error_of([] { parse_json("{\"\xff\": 1}", "shape"); });
  EXPECT_EQ(bytes.status, Status::invalid_argument);
  EXPECT_FALSE(bytes.says("\xff"));
}

}  // namespace
}  // namespace kiln
