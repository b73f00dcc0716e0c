// The workload JSON: what it selects, and a sentence for every mistake.
#include "runtime/workload.h"

#include <gtest/gtest.h>

#include "jit/base/error.h"
#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

struct Mistake {
  const char* text;
  Status status;
  const char* sentence;
};

class WorkloadMistake : public testing::TestWithParam<Mistake> {};

TEST_P(WorkloadMistake, IsNamed) {
  staged_rows();
  try {
    parse_workload(GetParam().text);
    FAIL() << "accepted: " << GetParam().text;
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), GetParam().status) << error.what();
    expect_contains(error.what(), GetParam().sentence);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, WorkloadMistake,
    testing::Values(
        Mistake{"{", Status::invalid_argument, "workload"},
        Mistake{"[]", Status::invalid_argument, "an object such as"},
        Mistake{"{\"oops\": 1}", Status::invalid_argument, "unknown key \"oops\""},
        Mistake{"{\"tensor_parallel\": 3}", Status::invalid_argument,
                "must be 1, 2, 4 or 8; it is 3"},
        Mistake{"{\"tensor_parallel\": \"2\"}", Status::invalid_argument, "must be 1, 2, 4 or 8"},
        Mistake{"{\"ops\": {}}", Status::invalid_argument, "\"ops\" must be an array"},
        Mistake{"{\"ops\": [7]}", Status::invalid_argument, "ops[0] must be an object"},
        Mistake{"{\"ops\": [{}]}", Status::invalid_argument, "ops[0] must name its op"},
        Mistake{"{\"ops\": [{\"op\": \"attention\"}]}", Status::not_found, "combine_topk_swa"},
        Mistake{"{\"ops\": [{\"op\": \"staged_rows\", \"size\": {}}]}", Status::invalid_argument,
                "unknown key \"size\"; known are op, shape, sizes"},
        Mistake{"{\"ops\": [{\"op\": \"staged_rows\", \"shape\": {\"format\": \"plain\"}}]}",
                Status::invalid_argument, "width"},
        Mistake{"{\"ops\": [{\"op\": \"staged_rows\", \"shape\": {\"format\": \"odd\", \"width\": "
                "1}}]}",
                Status::invalid_argument, "\"packed\""},
        Mistake{"{\"ops\": [{\"op\": \"staged_rows\", \"sizes\": []}]}", Status::invalid_argument,
                "\"sizes\" must be an object"},
        Mistake{"{\"ops\": [{\"op\": \"staged_rows\", \"sizes\": {\"T\": [1, 2]}}]}",
                Status::invalid_argument, "no dynamic size \"T\"; it has num_rows, width_out"},
        Mistake{"{\"ops\": [{\"op\": \"staged_rows\", \"sizes\": {\"num_rows\": 8}}]}",
                Status::invalid_argument, "must be [least, most]"},
        Mistake{"{\"ops\": [{\"op\": \"staged_rows\", \"sizes\": {\"num_rows\": [1, 2.5]}}]}",
                Status::invalid_argument, "must be [least, most]"},
        Mistake{"{\"ops\": [{\"op\": \"staged_rows\", \"sizes\": {\"num_rows\": [9, 8]}}]}",
                Status::invalid_argument, "the least must not be above the most"},
        Mistake{"{\"ops\": [{\"op\": \"staged_rows\", \"sizes\": {\"num_rows\": [1, 99999999]}}]}",
                Status::invalid_argument, "legal sizes are 0 to 10000000"},
        Mistake{"{\"ops\": [{\"op\": \"staged_rows\", \"sizes\": {\"num_rows\": [1, "
                "18446744073709551615]}}]}",
                Status::invalid_argument, "is [1, 18446744073709551615]; legal sizes are 0 to"},
        Mistake{"{\"ops\": [{\"op\": \"staged_rows\", \"sizes\": {\"num_rows\": "
                "[9223372036854775808, 9223372036854775807]}}]}",
                Status::invalid_argument, "is [9223372036854775808, 9223372036854775807]; legal"},
        Mistake{"{\"ops\": [{\"op\": \"staged_rows\"}, {\"op\": \"staged_rows\", \"shape\": {}}]}",
                Status::invalid_argument, "workload: ops[1]: staged_rows: the shape lacks"},
        Mistake{"{\"ops\": [{\"op\": \"staged_rows\"}, {\"op\": \"rms\"}]}", Status::not_found,
                "workload: ops[1]: there is no op \"rms\""}));

TEST(Workload, EmptyIsAllOpsWithTheModelsShapes) {
  const std::vector<WorkloadItem> items = parse_workload("");
  EXPECT_EQ(parse_workload("{}").size(), items.size());
  EXPECT_EQ(parse_workload("{\"tensor_parallel\": 2}").size(), items.size());
  size_t shapes = 0;
  for (const templates::Op* op : templates::ops()) shapes += op->model_shapes(2).size();
  EXPECT_EQ(items.size(), shapes);
  for (const WorkloadItem& item : items) {
    EXPECT_EQ(item.buckets.size(), templates::all_buckets(*item.op).size());
  }
}

TEST(Workload, C105TensorParallelChoosesTheShapes) {
  staged_rows();
  for (const int ranks : {1, 2, 4, 8}) {
    const auto items = parse_workload(
        fmt::format("{{\"tensor_parallel\": {}, \"ops\": [{{\"op\": \"staged_rows\"}}]}}", ranks));
    ASSERT_EQ(items.size(), 1u);
    EXPECT_EQ(items[0].fixed["C"], 128 / ranks);
  }
}

TEST(Workload, RangesReachTheNearestBucketsOfTheirEnds) {
  staged_rows();
  const auto edges = [](int64_t least, int64_t most) {
    const auto items = parse_workload(fmt::format(
        "{{\"ops\": [{{\"op\": \"staged_rows\", \"sizes\": {{\"num_rows\": [{}, {}]}}}}]}}", least,
        most));
    std::vector<int64_t> result;
    for (const templates::Sizes& bucket : items.at(0).buckets) result.push_back(bucket["T"]);
    return result;
  };
  EXPECT_EQ(edges(0, 0), (std::vector<int64_t>{1}));
  EXPECT_EQ(edges(5, 64), (std::vector<int64_t>{16}));
  EXPECT_EQ(edges(4, 65), (std::vector<int64_t>{1, 16, 256}));
  EXPECT_EQ(edges(2000, 10'000'000), (std::vector<int64_t>{4096}));
}

TEST(Workload, RepeatedShapesAreMerged) {
  staged_rows();
  const auto items = parse_workload(
      "{\"ops\": [{\"op\": \"staged_rows\", \"sizes\": {\"num_rows\": [1, 1]}},"
      "           {\"op\": \"staged_rows\", \"sizes\": {\"num_rows\": [16, 16]}},"
      "           {\"op\": \"staged_rows\", \"sizes\": {\"num_rows\": [1, 16]}}]}");
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(items[0].buckets.size(), 2u);
}

}  // namespace
}  // namespace kiln::runtime
