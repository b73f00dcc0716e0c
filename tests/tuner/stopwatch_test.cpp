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

}  // namespace
}  // namespace kiln::tuner
