// The decision as a pure function of samples.
#include "tuner/decide.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace kiln::tuner {
namespace {

// Samples around `ns`, every one off by a share of it, the same in every run of the test.
std::vector<double> around(double ns, double share, uint32_t seed, int rounds = 15) {
  std::mt19937 random(seed);
  std::vector<double> times_ns;
  for (int r = 0; r < rounds; ++r)
    times_ns.push_back(ns * (1 + share * (static_cast<double>(random() % 2001) / 1000 - 1)));
  return times_ns;
}

Contender contender(int64_t id, std::vector<double> times_ns, int64_t registers = 1024,
                    int64_t smem_bytes = 0) {
  return {
      .id = id, .registers = registers, .smem_bytes = smem_bytes, .times_ns = std::move(times_ns)};
}

TEST(Median, OfAnEvenCountIsTheMiddle) {
  EXPECT_DOUBLE_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_DOUBLE_EQ(median({7}), 7);
}

TEST(RankCorrelation, IsOneForTheSameOrderAndMinusOneForTheReverse) {
  const std::vector<double> a{1, 2, 3, 10};
  const std::vector<double> reverse{9, 5, 4, 1};
  EXPECT_DOUBLE_EQ(rank_correlation(a, std::vector<double>{2, 30, 31, 32}), 1);
  EXPECT_DOUBLE_EQ(rank_correlation(a, reverse), -1);
}

TEST(RankCorrelation, OfOneValueIsZero) {
  EXPECT_EQ(rank_correlation(std::vector<double>{1}, std::vector<double>{1}), 0);
  EXPECT_EQ(rank_correlation(std::vector<double>{1, 1}, std::vector<double>{1, 2}), 0);
}

TEST(Decide, DefaultPlantedTwiceAsSlowLoses) {
  const std::vector<Contender> field{contender(0, around(2000, 0.01, 1)),
                                     contender(1, around(1000, 0.01, 2))};
  const Verdict verdict = decide(field, 0);
  EXPECT_EQ(verdict.winner, 1u);
  EXPECT_NEAR(verdict.gain, 1.0, 0.05);
  EXPECT_EQ(verdict.tie_group, std::vector<size_t>{1});
}

TEST(Decide, C91DefaultWithinTheNoiseWins) {
  const std::vector<Contender> field{contender(0, around(1010, 0.01, 1)),
                                     contender(1, around(1000, 0.01, 2))};
  const Verdict verdict = decide(field, 0);
  EXPECT_EQ(verdict.winner, 0u);
  EXPECT_EQ(verdict.tie_group.size(), 2u);
  EXPECT_EQ(verdict.gain, 0);
}

TEST(Decide, NoisySamplesWidenTheTie) {
  const std::vector<Contender> steady{contender(0, around(1100, 0.01, 1)),
                                      contender(1, around(1000, 0.01, 2))};
  const std::vector<Contender> noisy{contender(0, around(1100, 0.3, 1)),
                                     contender(1, around(1000, 0.3, 2))};
  EXPECT_EQ(decide(steady, 0).winner, 1u);
  EXPECT_EQ(decide(noisy, 0).winner, 0u);
}

TEST(Decide, DriftOfTheCardCancelsInPairs) {
  // Both slow down together by half; one is always 5 % faster.
  std::vector<double> slow, fast;
  for (int r = 0; r < 15; ++r) {
    slow.push_back(1050 * (1 + r / 30.0));
    fast.push_back(1000 * (1 + r / 30.0));
  }
  EXPECT_EQ(decide(std::vector<Contender>{contender(0, slow), contender(1, fast)}, 0).winner, 1u);
}

TEST(Decide, C90TieTakesFewestRegistersThenSharedMemoryThenSmallestId) {
  const auto times_ns = around(1000, 0.005, 3);
  const std::vector<Contender> registers{contender(0, around(2000, 0.01, 1)),
                                         contender(1, times_ns, 4096),
                                         contender(2, times_ns, 2048)};
  EXPECT_EQ(decide(registers, 0).winner, 2u);
  const std::vector<Contender> smem{contender(0, around(2000, 0.01, 1)),
                                    contender(1, times_ns, 2048, 512),
                                    contender(2, times_ns, 2048, 0)};
  EXPECT_EQ(decide(smem, 0).winner, 2u);
  const std::vector<Contender> id{contender(0, around(2000, 0.01, 1)), contender(7, times_ns, 2048),
                                  contender(3, times_ns, 2048)};
  EXPECT_EQ(decide(id, 0).winner, 2u);
}

TEST(Decide, TieMemberThatDoesNotBeatTheDefaultIsNotTaken) {
  // The second is tied with the best, and with the default too: cheap, but no gain.
  const std::vector<Contender> field{contender(0, std::vector<double>(5, 1035)),
                                     contender(1, std::vector<double>(5, 1000), 4096),
                                     contender(2, std::vector<double>(5, 1018), 32)};
  const Verdict verdict = decide(field, 0);
  EXPECT_EQ(verdict.winner, 1u);
  EXPECT_EQ(verdict.tie_group.size(), 2u);
}

TEST(Decide, WithoutADefaultTheBestWins) {
  const std::vector<Contender> field{contender(4, around(1500, 0.01, 1)),
                                     contender(5, around(1000, 0.01, 2))};
  EXPECT_EQ(decide(field, std::nullopt).winner, 1u);
}

TEST(Decide, TwoRunsOfTheSameCardAgreeOrTie) {
  const auto run = [](uint32_t seed) {
    std::vector<Contender> field;
    const double true_ns[] = {2000, 1000, 1004, 1300, 998, 1700};
    for (uint32_t i = 0; i < 6; ++i)
      field.push_back(contender(i, around(true_ns[i], 0.01, seed + i), 1024 * (6 - i)));
    return decide(field, 0);
  };
  const Verdict first = run(100);
  const Verdict second = run(900);
  EXPECT_EQ(first.winner, second.winner);
  EXPECT_EQ(first.tie_group.size(), 3u);
}

TEST(Usable, C96ThrottledRoundsAreDropped) {
  Samples samples{.rounds = std::vector<Round>(6, Round{.throttle_reasons = 0}),
                  .times_ns = {{1, 1, 50, 1, 50, 1}}};
  samples.rounds[2].throttle_reasons = 0x8;   // hardware slowdown
  samples.rounds[4].throttle_reasons = 0x40;  // thermal
  std::string note;
  const Samples kept = usable(samples, &note);
  EXPECT_EQ(kept.times_ns[0], std::vector<double>(4, 1.0));
  EXPECT_EQ(kept.rounds.size(), 4u);
  EXPECT_EQ(note, "2 of 6 rounds throttled and dropped");
}

TEST(Usable, ClockSettingsAreNoThrottling) {
  EXPECT_FALSE(throttled({.throttle_reasons = 0x2}));
  EXPECT_TRUE(throttled({.throttle_reasons = 0x4}));
}

TEST(Usable, ACardThatAlwaysThrottlesIsMeasuredAllTheSame) {
  const Samples samples{.rounds = std::vector<Round>(5, Round{.throttle_reasons = 0x4}),
                        .times_ns = {{1, 2, 3, 4, 5}}};
  std::string note;
  EXPECT_EQ(usable(samples, &note).times_ns[0].size(), 5u);
  EXPECT_EQ(note, "5 of 5 rounds throttled, all kept");
}

TEST(Usable, RoundsOfWhichNothingIsKnownAreKeptAndNoted) {
  Samples samples{.rounds = std::vector<Round>(6), .times_ns = {{1, 1, 50, 1, 1, 1}}};
  samples.rounds[0].throttle_reasons = 0;
  samples.rounds[2].throttle_reasons = 0x8;
  std::string note;
  EXPECT_EQ(usable(samples, &note).rounds.size(), 5u);
  EXPECT_EQ(note, "1 of 6 rounds throttled and dropped; clocks unknown in 4 of 6 rounds");
}

TEST(Usable, CleanRoundsLeaveNoNote) {
  std::string note = "of an earlier stage";
  usable({.rounds = std::vector<Round>(5, Round{.throttle_reasons = 0}),
          .times_ns = {{1, 1, 1, 1, 1}}},
         &note);
  EXPECT_EQ(note, "");
}

std::vector<std::vector<double>> one_round(const std::vector<double>& times_ns) {
  std::vector<std::vector<double>> samples;
  for (const double time_ns : times_ns) samples.push_back({time_ns});
  return samples;
}

TEST(Survivors, AreTheBestHalfAndTheDefault) {
  const auto times_ns = one_round({90, 10, 20, 30, 40, 50, 60, 70});
  EXPECT_EQ(survivors(times_ns, 0, 2), (std::vector<size_t>{1, 2, 3, 4, 0}));
  EXPECT_EQ(survivors(times_ns, 1, 2), (std::vector<size_t>{1, 2, 3, 4}));
}

TEST(Survivors, AreAtLeastSoMany) {
  const auto times_ns = one_round({5, 4, 3, 2, 1});
  EXPECT_EQ(survivors(times_ns, std::nullopt, 4).size(), 4u);
  EXPECT_EQ(survivors(times_ns, std::nullopt, 40).size(), 5u);
}

TEST(Survivors, ShrinkToTheFinalistsInFewStages) {
  size_t field = 300;
  int stages = 0;
  while (field > 9 && stages < 20) {
    std::vector<double> times_ns(field);
    for (size_t i = 0; i < field; ++i) times_ns[i] = static_cast<double>(i);
    field = survivors(one_round(times_ns), field - 1, 8).size();
    ++stages;
  }
  EXPECT_LE(stages, 6);
  EXPECT_LE(field, 9u);
}

TEST(Survivors, OfNearEqualsAreTheSameWhateverTheNoise) {
  for (const uint32_t seed : {100u, 900u}) {
    std::vector<std::vector<double>> times_ns{around(2000, 0.01, seed, 3)};
    for (uint32_t i = 1; i < 25; ++i) times_ns.push_back(around(1000, 0.01, seed + i, 3));
    std::vector<size_t> kept = survivors(times_ns, std::nullopt, 8);
    std::sort(kept.begin(), kept.end());
    std::vector<size_t> near_equals(24);
    std::iota(near_equals.begin(), near_equals.end(), size_t{1});
    EXPECT_EQ(kept, near_equals) << "seed " << seed;
  }
}

TEST(CommonSignature, LosesLeastOverAllProblems) {
  const std::vector<SignatureTimes> problems{{{"a", 1}, {"b", 2}, {"c", 1.5}},
                                             {{"a", 8}, {"b", 2}, {"c", 2.5}}};
  EXPECT_EQ(common_signature(problems, "b"), "c");  // 1.875 against 2 and 4
}

TEST(CommonSignature, DefaultsStaysUnlessAnotherPromisesMoreThanTheNoise) {
  EXPECT_EQ(common_signature(std::vector<SignatureTimes>{{{"a", 1}, {"b", 1.01}}}, "b"), "b");
  EXPECT_EQ(common_signature(std::vector<SignatureTimes>{{{"a", 1}, {"b", 1.03}}}, "b"), "a");
}

TEST(CommonSignature, HasACandidateForEachProblem) {
  EXPECT_EQ(common_signature(std::vector<SignatureTimes>{{{"a", 1}, {"b", 9}}, {{"b", 1}}}, "a"),
            "b");
  EXPECT_EQ(common_signature(std::vector<SignatureTimes>{{{"a", 1}}, {{"b", 1}}}, "a"),
            std::nullopt);
}

}  // namespace
}  // namespace kiln::tuner
