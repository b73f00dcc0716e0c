// What the stopwatch runs, on a device that is this host and knows what each call takes.
#include "tuner/stopwatch.h"

#include <gtest/gtest.h>

#include "tests/tuner/host_device.h"
#include "tests/tuner/toy_op.h"

namespace kiln::tuner {
namespace {

class StopwatchTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { testing::register_toy(); }

  std::vector<double> round(const std::vector<int64_t>& behaviours) {
    std::vector<std::string> keys;
    for (const int64_t behaviour : behaviours) {
      keys.push_back(std::to_string(behaviour));
      stopwatch_.glance(keys.back(), testing::toy_plan(device_, behaviour));
    }
    return stopwatch_.round(keys, 0, [&](size_t i) { begun_.push_back(i); });
  }

  testing::HostDevice device_;
  DeviceTools tools_{device_, testing::host_tools(), int64_t{256} << 20};
  Stopwatch stopwatch_{tools_, testing::toy_kit(),
                       testing::toy_kit().measured_case({{"scale", 3}}, {{"R", 64}})};
  std::vector<size_t> begun_;
};

TEST_F(StopwatchTest, C94TimesAreOfOneCall) {
  EXPECT_EQ(round({testing::kToyDefault, testing::kToyFast}), (std::vector<double>{2e6, 1e6}));
}

// 4 ms beside 0.5 ms.
TEST_F(StopwatchTest, WhoIsFarBehindRunsNoFurther) {
  const std::vector<int64_t> field = {testing::kToyForFewRows, testing::kToyForManyRows};
  EXPECT_EQ(round(field), (std::vector<double>{4e6, 5e5}));
  const int64_t glances = device_.launches(testing::kToyForFewRows);
  EXPECT_EQ(glances, 2);
  const int64_t before = device_.launches(testing::kToyForManyRows);
  EXPECT_EQ(round(field), (std::vector<double>{4e6, 5e5}));
  EXPECT_EQ(device_.launches(testing::kToyForFewRows), glances);
  EXPECT_GT(device_.launches(testing::kToyForManyRows), before);
}

TEST_F(StopwatchTest, LongCallsAreFewInAGraph) {
  round({testing::kToyDefault});
  EXPECT_GE(stopwatch_.shape().calls, 4);
  EXPECT_EQ(stopwatch_.shape().calls % stopwatch_.shape().copies, 0);
  EXPECT_LE(stopwatch_.shape().calls, 20);
}

TEST_F(StopwatchTest, EverythingThatRunsIsAnnounced) {
  round({testing::kToyDefault, testing::kToyFast});
  EXPECT_EQ(begun_, (std::vector<size_t>{1, 0, 1}));  // the fastest gives the shape
}

TEST_F(StopwatchTest, NothingToTimeIsNoTime) { EXPECT_TRUE(round({}).empty()); }

TEST_F(StopwatchTest, ArgumentThatIsOnTheHostIsMeasuredThere) {
  templates::Op op = testing::toy_op();
  op.args[0] = templates::pinned_in({.symbol = "scale", .values = {3}}, cold(op.args[0]));
  templates::Kit kit = testing::toy_kit();
  kit.op = &op;
  for (const int64_t scale : {2, 3}) {
    Stopwatch stopwatch(tools_, kit, kit.measured_case({{"scale", scale}}, {{"R", 64}}));
    stopwatch.glance("default", testing::toy_plan(device_, testing::kToyDefault));
    EXPECT_EQ(stopwatch.round({"default"}, 0, [](size_t) {}), std::vector<double>{2e6});
    const int64_t buffers = scale == 3 ? stopwatch.shape().copies + 1 : 0;
    EXPECT_EQ(device_.pinned_allocations(), buffers);
  }
  EXPECT_EQ(device_.pinned_allocations(), 0);
}

TEST_F(StopwatchTest, PinnedMemoryIsOfTheSameLimit) {
  const Arena::Buffer pinned = tools_.arena().allocate_pinned(tools_.arena().left_bytes());
  EXPECT_EQ(tools_.arena().left_bytes(), 0);
  EXPECT_THROW(tools_.arena().allocate_pinned(1), Error);
}

TEST_F(StopwatchTest, RateOfTheBusIsThatOfCopiesFromPinnedMemory) {
  int copies = 0;
  EXPECT_GT(bus_gb_per_s(tools_, [&] { ++copies; }), 0);
  EXPECT_GT(copies, 1);
  EXPECT_EQ(device_.pinned_allocations(), 0);
}

}  // namespace
}  // namespace kiln::tuner
