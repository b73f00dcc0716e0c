// One store file: what is written is read back, kinds take precedence, and writes are all or
// nothing.
#include <cmath>
#include <thread>

#include "tests/cache/fixture.h"

namespace kiln::cache {
namespace {

TEST_F(StoreTest, C154EverythingOfAResultIsReadBackAfterReopening) {
  const TuningResult result = sample_result("a");
  EXPECT_TRUE(open()->put(result));

  auto store = open();
  EXPECT_TRUE(store->warnings().empty());
  const auto row = store->find_decision(sample_problem(), kA100);
  ASSERT_TRUE(row);
  expect_equal(row->decision, result.decision);
  EXPECT_EQ(row->verified, Verified::device);
  EXPECT_EQ(row->layer, path_);

  const auto plan = store->find_plan(result.plans[0].id);
  ASSERT_TRUE(plan);
  expect_equal(*plan, result.plans[0]);
  for (const jit::Binary& binary : result.binaries) {
    EXPECT_TRUE(store->has_binary(binary.key));
    const auto found = store->find_binary(binary.key);
    ASSERT_TRUE(found);
    expect_equal(*found, binary);
  }

  const auto verifications = store->verifications(sample_problem());
  ASSERT_EQ(verifications.size(), 1u);
  EXPECT_EQ(verifications[0].plan, result.plans[0].id);
  EXPECT_EQ(verifications[0].by, Verified::device);
  EXPECT_TRUE(verifications[0].passed);
  EXPECT_EQ(verifications[0].detail, "7 cases");
  EXPECT_EQ(verifications[0].tolerance, "bit-exact");
  EXPECT_EQ(verifications[0].worst_error, 0.25);
  EXPECT_EQ(verifications[0].card, "A100");
  EXPECT_EQ(verifications[0].driver, "580");
  EXPECT_GT(verifications[0].verified_at, 0);

  const auto timings = store->timings(sample_problem(), kA100);
  ASSERT_EQ(timings.size(), 1u);
  EXPECT_EQ(timings[0].plan, result.plans[0].id);
  EXPECT_EQ(timings[0].time_ns, 4321.125);
  EXPECT_EQ(timings[0].spread_ns, 12.5);
  EXPECT_EQ(timings[0].rounds, 9);
  EXPECT_EQ(timings[0].method, "graph replay, cold, interleaved");
  EXPECT_EQ(timings[0].limits, "");
  EXPECT_EQ(timings[0].device, "A100, driver 580");

  const auto rejections = store->rejections(sample_problem(), kA100);
  ASSERT_EQ(rejections.size(), 1u);
  EXPECT_EQ(rejections[0].config, R"({"threads":1024})");
  EXPECT_EQ(rejections[0].plan, hash_text("a plan of no store"));
  EXPECT_EQ(rejections[0].limits, "rtx-3090");
  EXPECT_EQ(rejections[0].stage, "verify");
  EXPECT_EQ(rejections[0].reason, "wrong");
  EXPECT_EQ(rejections[0].detail, "idx[3, 7] is 12, expected -1");

  EXPECT_EQ(store->problems(), std::vector<Problem>{sample_problem()});
  EXPECT_EQ(store->list_decisions().size(), 1u);
  EXPECT_EQ(store->check(), std::vector<std::string>{});
}

TEST_F(StoreTest, C84OtherProblemsAndClassesAreMisses) {
  auto store = open();
  ASSERT_TRUE(store->put(sample_result("a")));
  EXPECT_FALSE(store->find_decision(sample_problem(17), kA100));
  EXPECT_FALSE(store->find_decision(sample_problem(), kRtx3090));
  Problem other_version = sample_problem();
  other_version.op_version = 2;
  EXPECT_FALSE(store->find_decision(other_version, kA100));
  EXPECT_FALSE(store->find_plan(hash_text("nothing")));
  EXPECT_FALSE(store->find_binary(hash_text("nothing")));
  EXPECT_FALSE(store->has_binary(hash_text("nothing")));
  EXPECT_TRUE(store->timings(sample_problem(), kRtx3090).empty());
  EXPECT_TRUE(store->warnings().empty());
}

TEST_F(StoreTest, BinaryRowsNameOpResourcesAndSizes) {
  auto store = open();
  const TuningResult result = sample_result("a");
  ASSERT_TRUE(store->put(result));
  const auto rows = store->list_binaries();
  ASSERT_EQ(rows.size(), 2u);
  for (const BinaryRow& row : rows) {
    EXPECT_EQ(row.op, "sample_op");
    EXPECT_EQ(row.arch, "sm_80");
    EXPECT_EQ(row.entry, "sample_kernel");
    EXPECT_EQ(row.registers, 40);
    EXPECT_EQ(row.spill_bytes, 24);
    EXPECT_EQ(row.image_bytes, static_cast<int64_t>(result.binaries[0].image.size()) +
                                   (row.key == result.binaries[1].key ? 1 : 0));
    EXPECT_GT(row.stored_bytes, 0);
    EXPECT_LT(row.stored_bytes, row.image_bytes);
    EXPECT_EQ(row.layer, path_);
  }
}

TEST_F(StoreTest, EmptyAndIncompressibleImagesAreReadBack) {
  auto store = open();
  jit::Binary empty = sample_binary("empty");
  empty.image.clear();
  empty.log = std::string("a\0b", 3);
  ASSERT_TRUE(store->put_binary(empty));
  const auto found = store->find_binary(empty.key);
  ASSERT_TRUE(found);
  expect_equal(*found, empty);
}

TEST_F(StoreTest, C119cBetterKindIsReadWhateverTheOrderOfWriting) {
  for (const bool better_first : {true, false}) {
    const std::string name = better_first ? "first" : "second";
    path_ = folder_ + "/" + name + ".db";
    auto store = open();
    TuningResult measured = sample_result("measured", 16, DecisionKind::measured);
    TuningResult predicted = sample_result("predicted", 16, DecisionKind::predicted);
    predicted.decision.decided_at += 1000;
    ASSERT_TRUE(store->put(better_first ? measured : predicted));
    ASSERT_TRUE(store->put(better_first ? predicted : measured));
    const auto row = store->find_decision(sample_problem(), kA100);
    ASSERT_TRUE(row);
    EXPECT_EQ(row->decision.kind, DecisionKind::measured);
    EXPECT_EQ(row->decision.config, measured.decision.config);
    const auto rows = store->list_decisions();
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0].decision.kind, DecisionKind::measured);
  }
}

TEST_F(StoreTest, NewerDecisionOfTheSameKindReplacesTheOlder) {
  auto store = open();
  TuningResult old_result = sample_result("old");
  TuningResult new_result = sample_result("new");
  new_result.decision.decided_at += 1;
  ASSERT_TRUE(store->put(old_result));
  ASSERT_TRUE(store->put(new_result));
  EXPECT_EQ(store->find_decision(sample_problem(), kA100)->decision.config,
            new_result.decision.config);
  EXPECT_FALSE(store->put(old_result));
  EXPECT_EQ(store->find_decision(sample_problem(), kA100)->decision.config,
            new_result.decision.config);
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find("newer measured decision"), std::string::npos)
      << store->warnings()[0];
}

TEST_F(StoreTest, WhatIsDecidedNowIsTheNewestByAnyClock) {
  TuningResult ahead = sample_result("ahead");
  ahead.decision.decided_at = 4'000'000'000;  // by a clock that went wrong
  TuningResult now = sample_result("now");
  now.decision.decided_at = 0;
  const auto decided = [](Store& store) {
    return store.find_decision(sample_problem(), kA100)->decision;
  };
  {
    const auto store = open();
    ASSERT_TRUE(store->put(ahead));
    ASSERT_TRUE(store->put(now));
    EXPECT_EQ(decided(*store).config, now.decision.config);
    EXPECT_EQ(decided(*store).decided_at, ahead.decision.decided_at + 1);
  }
  pack_ = make_pack_of("pack.db", {ahead});
  path_ = folder_ + "/over_the_pack.db";
  const auto store = open();
  ASSERT_EQ(decided(*store).config, ahead.decision.config);
  ASSERT_TRUE(store->put(now));
  EXPECT_EQ(decided(*store).config, now.decision.config);
  now.decision.decided_at = 1'700'000'000;
  EXPECT_FALSE(store->put(now));
}

TEST_F(StoreTest, PinnedStaysUntilAnotherPin) {
  auto store = open();
  TuningResult pinned = sample_result("pinned", 16, DecisionKind::pinned);
  TuningResult measured = sample_result("measured");
  measured.decision.decided_at = pinned.decision.decided_at + 1000;
  ASSERT_TRUE(store->put(pinned));
  ASSERT_TRUE(store->put(measured));
  EXPECT_EQ(store->find_decision(sample_problem(), kA100)->decision.config, pinned.decision.config);
  TuningResult other = sample_result("other", 16, DecisionKind::pinned);
  other.decision.decided_at = pinned.decision.decided_at + 1;
  ASSERT_TRUE(store->put(other));
  EXPECT_EQ(store->find_decision(sample_problem(), kA100)->decision.config, other.decision.config);
}

TEST_F(StoreTest, DecisionWithoutTimeIsDatedNow) {
  auto store = open();
  TuningResult result = sample_result("a");
  result.decision.decided_at = 0;
  const auto before = static_cast<int64_t>(std::time(nullptr));
  ASSERT_TRUE(store->put(result));
  EXPECT_GE(store->find_decision(sample_problem(), kA100)->decision.decided_at, before);
}

TEST_F(StoreTest, ForgetDropsTheDecisionAndKeepsTheEvidence) {
  auto store = open();
  const TuningResult result = sample_result("a");
  ASSERT_TRUE(store->put(result));
  EXPECT_TRUE(store->forget(sample_problem(), kA100));
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
  EXPECT_EQ(store->timings(sample_problem(), kA100).size(), 1u);
  EXPECT_TRUE(store->find_binary(result.binaries[0].key));
  EXPECT_EQ(store->check(), std::vector<std::string>{});
}

TEST_F(StoreTest, GpuClassesOfAProblemAreThoseOfAnyEvidence) {
  auto store = open();
  const TuningResult result = sample_result("a");
  EXPECT_TRUE(store->gpu_classes(sample_problem()).empty());
  Rejection rejection = result.rejections[0];
  rejection.gpu_class = R"({"cc":86})";
  ASSERT_TRUE(store->put_rejections({rejection}));
  EXPECT_EQ(store->gpu_classes(sample_problem()), std::vector<std::string>{rejection.gpu_class});
  ASSERT_TRUE(store->put(result));
  EXPECT_EQ(store->gpu_classes(sample_problem()).size(), 2u);
  ASSERT_TRUE(store->forget(sample_problem(), kA100));
  EXPECT_EQ(store->gpu_classes(sample_problem()).size(), 2u);
}

TEST_F(StoreTest, DecidedConfigIsNoLongerRejected) {
  auto store = open();
  TuningResult result = sample_result("a");
  Rejection rejection = result.rejections[0];
  rejection.config = result.decision.config;
  ASSERT_TRUE(store->put_rejections({rejection}));
  EXPECT_EQ(store->rejections(sample_problem(), kA100).size(), 1u);
  result.rejections.clear();
  ASSERT_TRUE(store->put(result));
  EXPECT_TRUE(store->rejections(sample_problem(), kA100).empty());
}

TEST_F(StoreTest, RepeatedEvidenceOfOneKindKeepsTheNewest) {
  auto store = open();
  const TuningResult result = sample_result("a");
  ASSERT_TRUE(store->put(result));
  Timing timing = result.timings[0];
  timing.time_ns = 4000;
  ASSERT_TRUE(store->put_timing(timing));
  ASSERT_EQ(store->timings(sample_problem(), kA100).size(), 1u);
  EXPECT_EQ(store->timings(sample_problem(), kA100)[0].time_ns, 4000);
  timing.limits = "rtx-3090";
  ASSERT_TRUE(store->put_timing(timing));
  EXPECT_EQ(store->timings(sample_problem(), kA100).size(), 2u);
}

TEST_F(StoreTest, OlderEvidenceThatComesLateDoesNotReplaceNewer) {
  auto store = open();
  TuningResult result = sample_result("a");
  Timing& timing = result.timings[0];
  Rejection& rejection = result.rejections[0];
  timing.timed_at = rejection.rejected_at = 1'700'000'010;
  ASSERT_TRUE(store->put(result));

  timing.timed_at = rejection.rejected_at = 1'700'000'009;
  timing.time_ns = 1;
  rejection.reason = "trap";
  ASSERT_TRUE(store->put_timing(timing));
  ASSERT_TRUE(store->put_rejections({rejection}));
  EXPECT_EQ(store->timings(sample_problem(), kA100).at(0).time_ns, 4321.125);
  EXPECT_EQ(store->timings(sample_problem(), kA100).at(0).timed_at, 1'700'000'010);
  EXPECT_EQ(store->rejections(sample_problem(), kA100).at(0).reason, "wrong");
  EXPECT_EQ(store->rejections(sample_problem(), kA100).at(0).rejected_at, 1'700'000'010);
  EXPECT_TRUE(store->warnings().empty());

  timing.timed_at = rejection.rejected_at = 1'700'000'011;
  ASSERT_TRUE(store->put_timing(timing));
  ASSERT_TRUE(store->put_rejections({rejection}));
  EXPECT_EQ(store->timings(sample_problem(), kA100).at(0).time_ns, 1);
  EXPECT_EQ(store->rejections(sample_problem(), kA100).at(0).reason, "trap");
}

TEST_F(StoreTest, EvidenceOfNowIsTheNewestByAnyClock) {
  auto store = open();
  TuningResult result = sample_result("a");
  const int64_t ahead = 4'000'000'000;  // by a clock that went wrong
  result.timings[0].timed_at = ahead;
  result.rejections[0].rejected_at = ahead;
  result.verifications[0].verified_at = ahead;
  ASSERT_TRUE(store->put(result));
  Timing timing = result.timings[0];
  timing.timed_at = 0;
  timing.time_ns = 1;
  Rejection rejection = result.rejections[0];
  rejection.rejected_at = 0;
  rejection.reason = "trap";
  Verification verification = result.verifications[0];
  verification.verified_at = 0;
  verification.passed = false;
  ASSERT_TRUE(store->put_timing(timing));
  ASSERT_TRUE(store->put_rejections({rejection}));
  ASSERT_TRUE(store->put_verification(verification));
  EXPECT_EQ(store->timings(sample_problem(), kA100).at(0).time_ns, 1);
  EXPECT_EQ(store->timings(sample_problem(), kA100).at(0).timed_at, ahead);
  EXPECT_EQ(store->rejections(sample_problem(), kA100).at(0).reason, "trap");
  EXPECT_FALSE(store->verifications(sample_problem()).at(0).passed);
}

TEST_F(StoreTest, UseOfABinaryIsNotedByTheHour) {
  const TuningResult result = sample_result("a");
  const std::vector<Hash128> keys = {result.binaries[0].key, hash_text("nowhere")};
  ASSERT_TRUE(open()->put(result));
  const auto used_at = [&] { return sql("SELECT used_at FROM images ORDER BY id"); };
  const int64_t now = std::stoll(used_at()[0]);
  sql("UPDATE images SET used_at = " + std::to_string(now - 3000));
  open()->touch(keys);
  EXPECT_EQ(used_at(), std::vector<std::string>(2, std::to_string(now - 3000)));

  sql("UPDATE images SET used_at = " + std::to_string(now - 4000));
  auto store = open();
  store->touch(keys);
  EXPECT_TRUE(store->warnings().empty());
  store.reset();
  EXPECT_GE(std::stoll(used_at()[0]), now);
  EXPECT_EQ(used_at()[1], std::to_string(now - 4000));
}

TEST_F(StoreTest, UseIsNotNotedWhereNothingIsWritten) {
  const TuningResult result = sample_result("a");
  const std::vector<Hash128> keys = {result.binaries[0].key, result.binaries[1].key};
  pack_ = make_pack_of("base.pack", {result});
  ASSERT_TRUE(open()->put(sample_result("b")));
  sql(pack_, "UPDATE images SET used_at = 0");
  sql("UPDATE images SET used_at = 0");
  const std::string pack_before = read_file(pack_);
  const std::string before = read_file(path_);
  for (const auto mode : {StoreOptions::Mode::read_only, StoreOptions::Mode::read_write}) {
    auto store = open(mode);
    store->touch(keys);
    EXPECT_TRUE(store->warnings().empty());
  }
  EXPECT_EQ(read_file(pack_), pack_before);
  EXPECT_EQ(sql("SELECT DISTINCT used_at FROM images"), std::vector<std::string>{"0"});
}

TEST_F(StoreTest, FailureOnOneCardTakesTheVerifiedMarkAwayAndIsTold) {
  auto store = open();
  const TuningResult result = sample_result("a");
  ASSERT_TRUE(store->put(result));
  EXPECT_EQ(store->find_decision(sample_problem(), kA100)->failure, "");
  Verification failed = result.verifications[0];
  failed.card = "A30";
  failed.passed = false;
  failed.detail = "idx[0, 0] is 1, expected 2";
  failed.worst_error = std::nan("");
  ASSERT_TRUE(store->put_verification(failed));
  const auto row = store->find_decision(sample_problem(), kA100);
  EXPECT_EQ(row->verified, Verified::none);
  EXPECT_NE(row->failure.find("A30, driver 580: idx[0, 0] is 1"), std::string::npos)
      << row->failure;
  EXPECT_EQ(store->list_decisions().at(0).failure, row->failure);
  const auto all = store->verifications(sample_problem());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_TRUE(std::isnan(all[0].worst_error) || std::isnan(all[1].worst_error));
}

TEST_F(StoreTest, NewestVerificationOfACardCountsWhicheverItsDriver) {
  const TuningResult result = sample_result("a");
  Verification verification = result.verifications[0];
  {
    auto store = open();
    ASSERT_TRUE(store->put(result));
    verification.passed = false;
    verification.verified_at = 2'000'000'000;
    ASSERT_TRUE(store->put_verification(verification));
    EXPECT_NE(store->find_decision(sample_problem(), kA100)->failure, "");

    verification.driver = "590";  // which mends it
    verification.passed = true;
    verification.verified_at += 1;
    ASSERT_TRUE(store->put_verification(verification));
    EXPECT_EQ(store->find_decision(sample_problem(), kA100)->failure, "");
    EXPECT_EQ(store->find_decision(sample_problem(), kA100)->verified, Verified::device);

    verification.driver = "570";  // comes late, from another store
    verification.passed = false;
    verification.verified_at -= 2;
    ASSERT_TRUE(store->put_verification(verification));
    EXPECT_EQ(store->find_decision(sample_problem(), kA100)->verified, Verified::device);
    ASSERT_EQ(store->verifications(sample_problem()).size(), 1u);
    EXPECT_EQ(store->verifications(sample_problem())[0].driver, "590");
  }
  EXPECT_EQ(sql("SELECT verified FROM winners"), std::vector<std::string>{"device"});
}

TEST_F(StoreTest, BetterOfTwoLevelsCountsWhenBothPassed) {
  auto store = open();
  TuningResult result = sample_result("a");
  result.verifications.push_back(result.verifications[0]);
  result.verifications[1].by = Verified::simulator;
  result.verifications[1].card = "simulator";
  result.verifications[1].driver = "";
  ASSERT_TRUE(store->put(result));
  EXPECT_EQ(store->find_decision(sample_problem(), kA100)->verified, Verified::device);
}

TEST_F(StoreTest, DecisionOfOneKindIsFoundUnderABetterOne) {
  auto store = open();
  ASSERT_TRUE(store->put(sample_result("pin", 16, DecisionKind::pinned)));
  ASSERT_TRUE(store->put(sample_result("measured")));
  const auto row = store->find_decision(sample_problem(), kA100, DecisionKind::measured);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->decision.config, sample_result("measured").decision.config);
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100, DecisionKind::borrowed));
}

TEST_F(StoreTest, PlanOfAMissingBinaryRollsTheWholeResultBack) {
  auto store = open();
  TuningResult result = sample_result("a");
  result.plans[0].kernels.push_back({hash_text("nowhere"), "sample_kernel", 64, 0});
  EXPECT_FALSE(store->put(result));
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find(hash_text("nowhere").hex()), std::string::npos);
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
  EXPECT_FALSE(store->has_binary(result.binaries[0].key));
  EXPECT_TRUE(store->problems().empty());
  EXPECT_TRUE(store->timings(sample_problem(), kA100).empty());
}

TEST_F(StoreTest, DecisionOfAMissingPlanIsRefused) {
  auto store = open();
  TuningResult result = sample_result("a");
  result.decision.plan = hash_text("no such plan");
  EXPECT_FALSE(store->put(result));
  EXPECT_FALSE(store->has_binary(result.binaries[0].key));
  result.decision.plan = Hash128{};  // never compiled: legal
  EXPECT_TRUE(store->put(result));
}

// SQLite fails in the last statement of the transaction: nothing of the earlier ones stays.
TEST_F(StoreTest, C76FailureOfTheLastStatementLeavesNothing) {
  auto store = open();
  TuningResult result = sample_result("a");
  result.decision.kind = static_cast<DecisionKind>(77);  // violates the foreign key to the kinds
  EXPECT_FALSE(store->put(result));
  EXPECT_EQ(store->warnings().size(), 1u);
  EXPECT_TRUE(store->problems().empty());
  EXPECT_TRUE(store->list_binaries().empty());
  EXPECT_TRUE(store->put(sample_result("b")));
}

TEST_F(StoreTest, TextThatIsNotJsonAndTimesThatAreNoneAreRefused) {
  auto store = open();
  TuningResult result = sample_result("a");
  result.decision.config = "threads=128";
  EXPECT_FALSE(store->put(result));
  result = sample_result("a");
  result.timings[0].time_ns = std::nan("");
  EXPECT_FALSE(store->put(result));
  result = sample_result("a");
  result.rejections[0].problem.bucket = "";
  EXPECT_FALSE(store->put(result));
  EXPECT_EQ(store->warnings().size(), 3u);
  EXPECT_TRUE(store->problems().empty());
}

TEST_F(StoreTest, ViewsAnswerInPlainSql) {
  ASSERT_TRUE(open()->put(sample_result("a")));
  EXPECT_EQ(
      sql("SELECT op, problem, gpu, config, kind, time_us, verified, decided_at FROM winners"),
      std::vector<std::string>{
          R"(sample_op|{"K":512,"ratio":4,"T":16}|a100-sxm4-80gb|)"
          R"({"name":"a","threads":128}|measured|4.321|device|2023-11-14 22:13:20)"});
  EXPECT_EQ(sql("SELECT op, gpu, config, time_us, spread_us, rounds, verified FROM candidates"),
            std::vector<std::string>{R"(sample_op|a100-sxm4-80gb|)"
                                     R"({"name":"a","threads":128}|4.321|0.013|9|device)"});
  EXPECT_EQ(sql("SELECT op, gpu, config, stage, reason FROM rejects"),
            std::vector<std::string>{R"(sample_op|a100-sxm4-80gb|{"threads":1024}|verify|wrong)"});
  EXPECT_EQ(sql("SELECT op, arch, ordinal, entry, threads, registers, spill_bytes FROM kernels"),
            (std::vector<std::string>{"sample_op|sm_80|0|sample_kernel|128|40|24",
                                      "sample_op|sm_80|1|sample_kernel|128|40|24"}));
}

TEST_F(StoreTest, WinnersShowsTheBestKindOnly) {
  {
    auto store = open();
    ASSERT_TRUE(store->put(sample_result("m", 16, DecisionKind::measured)));
    ASSERT_TRUE(store->put(sample_result("p", 16, DecisionKind::predicted)));
    TuningResult fallback = sample_result("d", 32, DecisionKind::fallback);
    fallback.decision.time_ns = 0;
    fallback.verifications.clear();
    ASSERT_TRUE(store->put(fallback));
  }
  EXPECT_EQ(sql("SELECT kind, time_us, verified FROM winners"),
            (std::vector<std::string>{"measured|4.321|device", "default|NULL|NULL"}));
}

TEST_F(StoreTest, BestSoundKindGoesBeforeOneThatFailed) {
  const TuningResult measured = sample_result("m", 16, DecisionKind::measured);
  const TuningResult predicted = sample_result("p", 16, DecisionKind::predicted);
  const auto say = [&](Store& store, const TuningResult& result, const std::string& detail) {
    Verification verification = result.verifications[0];
    verification.passed = detail.empty();
    verification.detail = detail;
    ASSERT_TRUE(store.put_verification(verification));
  };
  const auto expect = [&](DecisionKind kind, const std::string& failure) {
    const auto store = open();
    const auto rows = store->list_decisions();
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0].decision.kind, kind);
    EXPECT_EQ(rows[0].failure.empty(), failure.empty()) << rows[0].failure;
    EXPECT_NE(rows[0].failure.find(failure), std::string::npos) << rows[0].failure;
    const auto row = store->find_decision(sample_problem(), kA100);
    EXPECT_EQ(row->decision.kind, kind);
    EXPECT_EQ(row->failure, rows[0].failure);
  };
  const std::string in_sql = "SELECT kind, verified, failure FROM winners";
  {
    const auto store = open();
    ASSERT_TRUE(store->put(measured));
    ASSERT_TRUE(store->put(predicted));
    say(*store, measured, "idx[0, 0] is 1");
  }
  expect(DecisionKind::predicted, "");
  EXPECT_EQ(sql(in_sql), std::vector<std::string>{"predicted|device|NULL"});

  say(*open(), predicted, "idx[2, 0] is 3");
  expect(DecisionKind::measured, "idx[0, 0] is 1");
  EXPECT_EQ(sql(in_sql), std::vector<std::string>{"measured|NULL|A100: idx[0, 0] is 1"});

  say(*open(), measured, "");
  expect(DecisionKind::measured, "");
  EXPECT_EQ(sql(in_sql), std::vector<std::string>{"measured|device|NULL"});
}

TEST_F(StoreTest, ViewsOfAnOlderBuildAreReplacedByAWriterAndTheUsersOwnStay) {
  ASSERT_TRUE(open()->put(sample_result("a")));
  const std::string in_sql =
      "SELECT name, sql FROM sqlite_schema WHERE type = 'view' ORDER BY name";
  sql("CREATE VIEW mine AS SELECT op FROM winners");
  const std::vector<std::string> before = sql(in_sql);
  sql("DROP VIEW winners; CREATE VIEW winners AS SELECT 1 AS op; DROP VIEW rejects");
  const std::vector<std::string> older = sql(in_sql);

  EXPECT_TRUE(open(StoreOptions::Mode::read_only)->find_decision(sample_problem(), kA100));
  EXPECT_EQ(sql(in_sql), older);
  {
    const auto store = open();
    EXPECT_TRUE(store->warnings().empty());
    EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
  }
  EXPECT_EQ(sql(in_sql), before);
  EXPECT_EQ(sql("SELECT op FROM mine"), std::vector<std::string>{sample_problem().op});
}

TEST_F(StoreTest, OpeningForWritingMakesAPrivateFile) {
  path_ = folder_ + "/not/yet/kiln.db";
  auto store = open();
  struct stat status;
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
  for (const char* folder : {"/not", "/not/yet"}) {
    ASSERT_EQ(::stat((folder_ + folder).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777u, 0700u);
  }
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
  EXPECT_TRUE(store->check().empty());
  EXPECT_TRUE(store->info().writable);
  EXPECT_TRUE(store->warnings().empty());
  EXPECT_TRUE(store->put(sample_result("a")));
}

TEST_F(StoreTest, InfoCountsWhatIsThere) {
  auto store = open();
  ASSERT_TRUE(store->put(sample_result("a")));
  ASSERT_TRUE(store->put(sample_result("b", 32)));
  const StoreInfo info = store->info();
  EXPECT_EQ(info.path, path_);
  EXPECT_TRUE(info.packs.empty());
  EXPECT_TRUE(info.writable);
  EXPECT_EQ(info.schema_version, kSchemaVersion);
  EXPECT_GT(info.file_bytes, 0);
  EXPECT_EQ(info.decisions, 2);
  EXPECT_EQ(info.binaries, 4);
  EXPECT_EQ(info.timings, 2);
}

TEST_F(StoreTest, MemoryIsALegalPathAndLeavesNoFile) {
  path_ = ":memory:";
  auto store = open();
  EXPECT_TRUE(store->put(sample_result("a")));
  EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
  EXPECT_TRUE(store->warnings().empty());
  EXPECT_EQ(store->info().path, ":memory:");
  EXPECT_FALSE(open()->find_decision(sample_problem(), kA100));  // each has its own
}

TEST_F(StoreTest, PathWithCharactersOfAUriIsTakenLiterally) {
  path_ = folder_ + "/a b?c#d%20.db";
  ASSERT_TRUE(open()->put(sample_result("a")));
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_TRUE(
      open(StoreOptions::Mode::read_only)->find_decision(sample_problem(), kA100).has_value());
}

TEST_F(StoreTest, RelativePathIsFixedWhenTheStoreIsOpened) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  path_ = "relative.db";
  auto store = open();
  std::filesystem::current_path(before);
  ASSERT_TRUE(store->put(sample_result("a")));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/relative.db"));
}

TEST_F(StoreTest, TwoStoresOfOnePathSeeEachOthersWrites) {
  auto one = open();
  auto other = open();
  ASSERT_TRUE(one->put(sample_result("a")));
  EXPECT_TRUE(other->find_decision(sample_problem(), kA100));
  ASSERT_TRUE(other->put(sample_result("b", 32)));
  one.reset();
  EXPECT_TRUE(other->find_decision(sample_problem(32), kA100));
  // The same file by another name.
  std::filesystem::create_symlink(path_, folder_ + "/link.db");
  std::filesystem::create_hard_link(path_, folder_ + "/hard.db");
  for (const char* name : {"/link.db", "/hard.db"}) {
    auto third = Store::open({.path = folder_ + name});
    EXPECT_TRUE(third->put(sample_result(name, 64)));
    EXPECT_TRUE(other->find_decision(sample_problem(64), kA100));
    EXPECT_TRUE(third->forget(sample_problem(64), kA100));
  }
  EXPECT_TRUE(other->warnings().empty());
}

// A second descriptor in the process would drop the locks; another process would then write into an
// open transaction.
TEST_F(StoreTest, SecondOpenInTheProcessKeepsTheLocksOfTheFirst) {
  auto store = open();
  ASSERT_TRUE(store->put(sample_result("a")));
  for (int i = 0; i < 3; ++i) {
    open();
    open(StoreOptions::Mode::read_only);
    Store::open({.path = ":memory:", .pack = path_});
  }
  // In WAL mode an open connection holds a shared lock, so nobody else can take an exclusive one.
  const pid_t child = start_child([&] {
    sqlite3* database = nullptr;
    sqlite3_open(path_.c_str(), &database);
    const int code =
        sqlite3_exec(database, "PRAGMA journal_mode = DELETE", nullptr, nullptr, nullptr);
    return code == SQLITE_BUSY ? 0 : 1;
  });
  const int status = wait_for(child);
  if (store->info().wal) {
    EXPECT_EQ(status, 0);
  }
}

TEST_F(StoreTest, PackIsMadeOfAReadOnlyStoreWhileAnotherProcessHasItOpen) {
  int wrote[2], packed[2];
  ASSERT_EQ(pipe(wrote), 0);
  ASSERT_EQ(pipe(packed), 0);
  const pid_t writer = start_child([&] {
    const auto store = open();
    char byte = store->put(sample_result("a")) ? 1 : 0;
    const bool told = write(wrote[1], &byte, 1) == 1;
    return told && read(packed[0], &byte, 1) == 1 ? 0 : 1;
  });
  char byte = 0;
  ASSERT_EQ(read(wrote[0], &byte, 1), 1);
  EXPECT_EQ(byte, 1);
  const std::string pack = folder_ + "/of_reader.pack";
  open(StoreOptions::Mode::read_only)->make_pack(pack);
  ASSERT_EQ(write(packed[1], &byte, 1), 1);
  EXPECT_EQ(wait_for(writer), 0);
  EXPECT_TRUE(
      Store::open({.path = ":memory:", .pack = pack})->find_decision(sample_problem(), kA100));
}

TEST_F(StoreTest, ReaderOfTheSameFileIsUpgradedWhenAWriterComes) {
  ASSERT_TRUE(open()->put(sample_result("a")));
  auto reader = open(StoreOptions::Mode::read_only);
  auto writer = open();
  ASSERT_TRUE(writer->put(sample_result("b", 32)));
  EXPECT_TRUE(reader->find_decision(sample_problem(32), kA100));
  EXPECT_FALSE(reader->put(sample_result("c", 64)));
  EXPECT_EQ(reader->warnings().size(), 1u);
}

TEST_F(StoreTest, ThreadsShareOneStore) {
  auto store = open();
  auto second = open();
  std::vector<std::thread> threads;
  constexpr int kRounds = 12;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      Store& mine = thread % 2 == 0 ? *store : *second;
      for (int i = 0; i < kRounds; ++i) {
        const int rows = thread * kRounds + i;
        EXPECT_TRUE(mine.put(sample_result(std::to_string(rows), rows)));
        EXPECT_TRUE(mine.find_decision(sample_problem(rows), kA100));
        mine.info();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store->list_decisions().size(), 4u * kRounds);
  EXPECT_EQ(store->check(), std::vector<std::string>{});
}

TEST_F(StoreTest, ThreadsThatOpenAndCloseOnePathDoNotDisturbEachOther) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 8; ++i) {
        const int rows = thread * 8 + i;
        EXPECT_TRUE(open()->put(sample_result(std::to_string(rows), rows)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  auto store = open();
  EXPECT_EQ(store->list_decisions().size(), 32u);
  EXPECT_EQ(store->check(), std::vector<std::string>{});
}

// Of SQLite's own count, which no sanitizer sees into.
TEST_F(StoreTest, C60ClosedStoresGiveBackAllMemory) {
  pack_ = make_pack_of("base.db", {sample_result("p", 64)});
  const int64_t before = sqlite3_memory_used();
  for (int round = 0; round < 3; ++round) {
    auto store = open();
    EXPECT_TRUE(store->put(sample_result("a" + std::to_string(round))));
    TuningResult refused = sample_result("b", 128);
    refused.decision.problem.shape = "no JSON";
    EXPECT_FALSE(store->put(refused));
    EXPECT_TRUE(store->find_decision(sample_problem(64), kA100));
    EXPECT_TRUE(store->check().empty());
    EXPECT_GT(sqlite3_memory_used(), before);
    store.reset();
    EXPECT_EQ(sqlite3_memory_used(), before) << "round " << round;
  }
}

}  // namespace
}  // namespace kiln::cache
