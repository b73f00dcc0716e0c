// A candidate against its oracle, on a device that is this host: what is found out, and what is
// said about it.
#include "tuner/trial.h"

#include <gtest/gtest.h>

#include "tests/tuner/host_device.h"
#include "tests/tuner/toy_op.h"

namespace kiln::tuner {
namespace {

using testing::HostDevice;
using testing::ToyBehaviour;

class Trial : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { testing::register_toy(); }

  RunnablePlan plan(int64_t behaviour, int64_t scale = 3) {
    return testing::toy_plan(device_, behaviour, scale);
  }
  std::unique_ptr<PreparedCase> prepared(
      size_t number, PreparedCase::Alignment alignment = PreparedCase::Alignment::natural) {
    const templates::Kit& kit = testing::toy_kit();
    auto c = std::make_unique<PreparedCase>(
        tools_, kit, kit.verify_cases({{"scale", 3}}, {{"R", 4}})[number], alignment);
    c->prove_oracle(plan(testing::kToyDefault));
    return c;
  }
  RunVerdict check(int64_t behaviour) {
    const std::unique_ptr<PreparedCase> c = prepared(0);
    RunVerdict verdict = c->check(plan(behaviour));
    damaged_ = c->damaged();
    return verdict;
  }
  void expect_wrong(int64_t behaviour, const std::string& part) {
    const RunVerdict verdict = check(behaviour);
    EXPECT_EQ(verdict.outcome, Outcome::wrong);
    EXPECT_NE(verdict.detail.find(part), std::string::npos) << verdict.detail;
  }

  HostDevice device_;
  DeviceTools tools_{device_, testing::host_tools(), int64_t{256} << 20};
  bool damaged_ = false;
};

TEST_F(Trial, RightCandidatePassesAgainAndAgain) {
  for (const size_t number : {0, 1, 2}) {
    const std::unique_ptr<PreparedCase> c = prepared(number);
    for (int run = 0; run < 3; ++run)
      EXPECT_EQ(c->check(plan(testing::kToyFast)).outcome, Outcome::passed) << number;
  }
}

TEST_F(Trial, LeastAlignmentIsTheOpsOwn) {
  EXPECT_EQ(prepared(0, PreparedCase::Alignment::least)->check(plan(testing::kToyFast)).outcome,
            Outcome::passed);
}

TEST_F(Trial, WrongElementIsNamed) { expect_wrong(testing::kToyWrong, "y[0, 10] is "); }
TEST_F(Trial, C107ElementLeftOutIsWrong) { expect_wrong(testing::kToyLazy, "y[3, 19] is "); }
TEST_F(Trial, WriteBeforeTheTensorIsFound) {
  expect_wrong(testing::kToyBefore, "wrote 4 bytes before y");
}
TEST_F(Trial, WriteAfterTheTensorIsFound) {
  expect_wrong(testing::kToyAfter, "after the end of y");
}
TEST_F(Trial, WriteBetweenRowsIsFound) {
  expect_wrong(testing::kToyBetween, "between the rows of y");
}
TEST_F(Trial, WriteOfWhatMustStayIsFound) {
  expect_wrong(testing::kToyBeyondLimit, "y[0, 20], which must be left alone");
}

TEST_F(Trial, ChangedInputIsFoundAndDamagesTheCase) {
  expect_wrong(testing::kToyChangesInput, "changed an input");
  EXPECT_TRUE(damaged_);
}

TEST_F(Trial, TrapAndRefusedLaunchAreToldApart) {
  EXPECT_EQ(check(testing::kToyRefused).outcome, Outcome::launch);
  EXPECT_EQ(check(testing::kToyTrap).outcome, Outcome::trap);
}

TEST_F(Trial, OracleThatDisagreesWithTheReferenceIsRefused) {
  const templates::Kit& kit = testing::toy_kit();
  PreparedCase c(tools_, kit, kit.verify_cases({{"scale", 3}}, {{"R", 4}})[0],
                 PreparedCase::Alignment::natural);
  try {
    c.prove_oracle(plan(testing::kToyDefault, 4));
    FAIL() << "an oracle with another factor was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("disagrees with the reference: y[0, 0]"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(Trial, OracleThatLeavesOutAnElementIsRefused) {
  const templates::Kit& kit = testing::toy_kit();
  PreparedCase c(tools_, kit, kit.verify_cases({{"scale", 3}}, {{"R", 4}})[0],
                 PreparedCase::Alignment::natural);
  EXPECT_THROW(c.prove_oracle(plan(testing::kToyLazy)), Error);
}

TEST_F(Trial, MemoryBeyondTheArenaIsRefused) {
  DeviceTools small(device_, testing::host_tools(), 4096);
  const templates::Kit& kit = testing::toy_kit();
  try {
    PreparedCase(small, kit, kit.verify_cases({{"scale", 3}}, {{"R", 4}})[2],
                 PreparedCase::Alignment::natural);
    FAIL() << "more than the arena was given";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::out_of_memory);
  }
}

TEST_F(Trial, C26AllMemoryIsGivenBack) {
  const int64_t before = device_.allocations();
  prepared(2)->check(plan(testing::kToyFast));
  EXPECT_EQ(device_.allocations(), before);
}

TEST(Poison, IsNeverNanAndItsComplementDiffersInEveryByte) {
  for (const templates::DType dtype : {templates::DType::bf16, templates::DType::f32}) {
    const uint64_t mask = poison_mask(dtype);
    for (uint64_t i = 0; i < 1000; ++i) {
      const uint64_t plain = poison_word({.seed = 5}, mask, i);
      const uint64_t complement =
          poison_word({.seed = 5, .form = Poison::Form::complement}, mask, i);
      for (int byte = 0; byte < 8; ++byte)
        EXPECT_NE((plain >> (8 * byte)) & 0xFF, (complement >> (8 * byte)) & 0xFF);
      for (int half = 0; half < 4 && dtype == templates::DType::bf16; ++half) {
        EXPECT_NE((plain >> (16 * half)) & 0x7F80, 0x7F80u);
      }
      for (int word = 0; word < 2; ++word)
        EXPECT_NE((plain >> (32 * word)) & 0x7F800000, 0x7F800000u);
    }
  }
}

}  // namespace
}  // namespace kiln::tuner
