// A store that is kept within a budget of bytes: what goes, in which order, and what never does.
#include <signal.h>

#include <chrono>
#include <thread>

#include "jit/base/byte_size.h"
#include "tests/cache/fixture.h"

namespace kiln::cache {
namespace {

TEST(ByteSize, IsANumberWithAUnit) {
  EXPECT_EQ(parse_byte_size("1048576"), 1048576);
  EXPECT_EQ(parse_byte_size("500MB"), 500'000'000);
  EXPECT_EQ(parse_byte_size("2GiB"), int64_t{2} << 30);
  EXPECT_EQ(parse_byte_size("1.5 kib"), 1536);
  for (const char* text :
       {"", "0", "-1MB", "MB", "12QB", "5 MB x", "nan", "inf", "1e3", "9999999999TB"}) {
    EXPECT_FALSE(parse_byte_size(text)) << text;
  }
}

class GcTest : public StoreTest {
 protected:
  GcTest() : no_budget_("KILN_STORE_BYTES", nullptr) {}

  static std::string name(int i) { return "kernel " + std::to_string(i); }

  // Decided results whose images were used one after the other, long ago.
  void fill(int results) {
    {
      auto store = open();
      for (int i = 0; i < results; ++i) ASSERT_TRUE(store->put(sample_result(name(i), i)));
    }
    sql("UPDATE images SET used_at = id");
  }

  static bool has(Store& store, const std::string& name) {
    return store.has_binary(sample_binary(name + "/first").key);
  }

  std::unique_ptr<Store> open_with_budget(int64_t bytes) {
    return Store::open({.path = path_, .pack = pack_, .budget_bytes = bytes});
  }

  int64_t size_on_disk() const { return static_cast<int64_t>(std::filesystem::file_size(path_)); }

 private:
  ScopedEnvironment no_budget_;
};

TEST_F(GcTest, C58FileIsWithinTheBudgetAndTheLongestUnusedWent) {
  fill(60);
  const int64_t budget = size_on_disk() - 100'000;
  {
    auto store = open();
    const GcReport report = store->collect(budget, GcMode::collect);
    EXPECT_EQ(report.problem, "");
    EXPECT_GT(report.before_bytes, budget);
    EXPECT_LE(report.after_bytes, budget);
    EXPECT_GT(report.after_bytes, budget - 100'000);
    EXPECT_EQ(report.images_in_use, report.images);
    EXPECT_FALSE(has(*store, name(0)));
    EXPECT_TRUE(has(*store, name(59)));
    EXPECT_EQ(store->list_decisions().size(), 60u);
    EXPECT_TRUE(store->find_plan(sample_result(name(0)).plans[0].id));
    EXPECT_TRUE(store->check().empty()) << store->check().at(0);
  }
  EXPECT_LE(size_on_disk(), budget);
  EXPECT_EQ(sql("SELECT count(*) FROM binaries"), std::vector<std::string>{"120"});
  EXPECT_EQ(sql("PRAGMA integrity_check"), std::vector<std::string>{"ok"});
}

TEST_F(GcTest, WinnersGoAfterTheOthersAndPinsLast) {
  {
    auto store = open();
    ASSERT_TRUE(store->put(sample_result("pinned", 1, DecisionKind::pinned)));
    ASSERT_TRUE(store->put(sample_result("winner", 2)));
    ASSERT_TRUE(store->put_kernels({sample_binary("other/first")}, {}));
  }
  sql("UPDATE images SET used_at = id");
  auto store = open();
  const int64_t all = store->collect(0, GcMode::look).before_bytes;
  EXPECT_EQ(store->collect(all - 1, GcMode::collect).images_in_use, 0);
  EXPECT_FALSE(has(*store, "other"));
  EXPECT_TRUE(has(*store, "winner"));
  const int64_t two = store->collect(0, GcMode::look).before_bytes;
  EXPECT_EQ(store->collect(two - 1, GcMode::collect).images_in_use, 1);
  EXPECT_FALSE(store->has_binary(sample_binary("winner/first").key));
  EXPECT_TRUE(has(*store, "pinned"));
}

TEST_F(GcTest, LookChangesNothing) {
  fill(20);
  const std::string before = read_file(path_);
  {
    auto store = open(StoreOptions::Mode::read_only);
    const GcReport report = store->collect(1, GcMode::look);
    EXPECT_EQ(report.images, 40);
    EXPECT_LT(report.after_bytes, report.before_bytes);
    EXPECT_NE(report.problem, "");
    EXPECT_NE(store->collect(1, GcMode::collect).problem.find("for reading only"),
              std::string::npos);
  }
  EXPECT_EQ(read_file(path_), before);
}

TEST_F(GcTest, BudgetThatTheRecordsAloneExceedIsSaid) {
  fill(3);
  auto store = open();
  const GcReport report = store->collect(1000, GcMode::collect);
  EXPECT_EQ(report.images, 6);
  EXPECT_NE(report.problem.find("without any image"), std::string::npos) << report.problem;
}

TEST_F(GcTest, PlansThatNobodyNamesAndDeadLeasesGo) {
  {
    auto store = open();
    ASSERT_TRUE(store->put(sample_result("decided", 1)));
    const jit::Binary binary = sample_binary("loose/first");
    ASSERT_TRUE(store->put_kernels({binary}, {sample_plan("loose", {binary})}));
  }
  sql("INSERT INTO leases VALUES ('dead', 'host', 'boot', 1, 1, 1, 1, 10), "
      "('alive', 'host', 'boot', 1, 1, 1, 1, 1 << 40)");
  auto store = open();
  GcReport report = store->collect(0, GcMode::collect);
  EXPECT_EQ(report.leases, 1);
  EXPECT_EQ(report.plans, 0);
  EXPECT_TRUE(store->find_plan(sample_plan("loose", {}).id));
  report = store->collect(1, GcMode::collect);
  EXPECT_EQ(report.plans, 1);
  EXPECT_FALSE(store->find_plan(sample_plan("loose", {}).id));
  EXPECT_TRUE(store->find_plan(sample_plan("decided", {}).id));
  store.reset();
  EXPECT_EQ(sql("SELECT key FROM leases"), std::vector<std::string>{"alive"});
}

TEST_F(GcTest, C151StoreIsBoundedByDefault) {
  EXPECT_EQ(open()->info().budget_bytes, kUsualBudgetBytes);
  const int64_t budget = size_on_disk() + 300'000;
  {
    auto store = open_with_budget(budget);
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(store->put(sample_result(name(i), i)));
    EXPECT_TRUE(has(*store, name(99)));
    EXPECT_FALSE(has(*store, name(0)));
    ASSERT_EQ(store->warnings().size(), 1u);
    EXPECT_NE(store->warnings()[0].find("KILN_STORE_BYTES"), std::string::npos);
    EXPECT_TRUE(store->check().empty());
  }
  EXPECT_LE(size_on_disk(), budget);
}

TEST_F(GcTest, WhatNobodyUsesGoesWithoutAWord) {
  {
    auto store = open();
    for (int i = 0; i < 60; ++i) ASSERT_TRUE(store->put_binary(sample_binary(name(i))));
  }
  sql("UPDATE images SET used_at = id");
  auto store = open_with_budget(size_on_disk());
  for (int i = 60; i < 65; ++i) ASSERT_TRUE(store->put_binary(sample_binary(name(i))));
  EXPECT_FALSE(store->has_binary(sample_binary(name(0)).key));
  EXPECT_TRUE(store->has_binary(sample_binary(name(60)).key));
  EXPECT_TRUE(store->warnings().empty()) << store->warnings()[0];
}

TEST_F(GcTest, BudgetComesFromTheEnvironmentAndNonsenseIsOneWarning) {
  {
    const ScopedEnvironment budget("KILN_STORE_BYTES", "300MB");
    EXPECT_EQ(open()->info().budget_bytes, 300'000'000);
    EXPECT_EQ(open_with_budget(5000)->info().budget_bytes, 5000);
  }
  const ScopedEnvironment budget("KILN_STORE_BYTES", "plenty");
  auto store = open();
  EXPECT_EQ(store->info().budget_bytes, kUsualBudgetBytes);
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find("'plenty'"), std::string::npos);
}

TEST_F(GcTest, C132OthersGoOnWhileTheirImagesAreDropped) {
  fill(4);
  auto session = open();
  const jit::Binary loaded = *session->find_binary(sample_binary(name(0) + "/first").key);
  session->collect(1, GcMode::collect);
  EXPECT_FALSE(session->has_binary(loaded.key));
  // A plan of one kernel that went and one that was just made.
  const jit::Binary made = sample_binary("made");
  EXPECT_TRUE(session->put_kernels({made}, {sample_plan("both", {loaded, made})}));
  EXPECT_TRUE(session->put_binary(loaded));
  EXPECT_TRUE(session->has_binary(loaded.key));
  EXPECT_TRUE(session->warnings().empty()) << session->warnings()[0];
  EXPECT_TRUE(session->check().empty());
}

TEST_F(GcTest, PacksAreNeverChanged) {
  pack_ = make_pack_of("base.db", {sample_result("packed", 1)});
  const std::string before = read_file(pack_);
  auto store = open();
  store->collect(1, GcMode::collect);
  EXPECT_TRUE(has(*store, "packed"));
  store.reset();
  EXPECT_EQ(read_file(pack_), before);
}

TEST_F(GcTest, KilledInTheMiddleLeavesAWholeStore) {
  fill(80);
  const std::string before = read_file(path_);
  for (int round = 0; round < 12; ++round) {
    for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(path_ + suffix);
    write_file(path_, before);
    const pid_t child = start_child([&] {
      auto store = open();
      for (int64_t budget = 900'000; budget > 100'000; budget -= 20'000) {
        store->collect(budget, GcMode::collect);
      }
      return 0;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(3 + 5 * round));
    ::kill(child, SIGKILL);
    wait_for(child);
    auto store = open();
    EXPECT_TRUE(store->warnings().empty()) << store->warnings()[0];
    EXPECT_EQ(store->list_decisions().size(), 80u);
    EXPECT_TRUE(store->check().empty()) << store->check().at(0);
    for (const BinaryRow& row : store->list_binaries()) EXPECT_TRUE(store->find_binary(row.key));
  }
}

}  // namespace
}  // namespace kiln::cache
