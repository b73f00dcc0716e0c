// Several packs under one store: the order in which they are read, and what one of them that cannot
// be used means for the others.
#include "cache/sqlite.h"
#include "tests/cache/fixture.h"

namespace kiln::cache {
namespace {

class PacksTest : public StoreTest {
 protected:
  static TuningResult dated(const std::string& name, int64_t seconds, int rows = 16) {
    TuningResult result = sample_result(name, rows);
    result.decision.decided_at += seconds;
    return result;
  }
};

TEST_F(PacksTest, SeveralAreReadInOrder) {
  const std::string upper = make_pack_of("upper.db", {sample_result("a", 16)});
  const std::string lower =
      make_pack_of("lower.db", {sample_result("a", 16), sample_result("b", 64)});
  pack_ = upper + ":" + lower;
  auto store = open();
  EXPECT_TRUE(store->warnings().empty());
  EXPECT_EQ(store->info().packs, (std::vector{upper, lower}));
  EXPECT_EQ(store->find_decision(sample_problem(16), kA100)->layer, upper);
  EXPECT_EQ(store->find_decision(sample_problem(64), kA100)->layer, lower);
  EXPECT_EQ(store->list_decisions().size(), 2u);
  EXPECT_EQ(store->list_binaries().size(), 4u);
  EXPECT_TRUE(store->find_binary(sample_result("b").binaries[0].key));
  EXPECT_TRUE(store->check().empty());
}

TEST_F(PacksTest, NewestDecisionOfAKindCountsWhicheverPackHasIt) {
  const std::string upper = make_pack_of("upper.db", {dated("older", 0)});
  const std::string lower = make_pack_of("lower.db", {dated("newer", 1)});
  pack_ = upper + ":" + lower;
  EXPECT_EQ(open()->find_decision(sample_problem(), kA100)->layer, lower);
}

TEST_F(PacksTest, FolderIsItsFilesInTheOrderOfTheirNames) {
  const std::string folder = folder_ + "/packs";
  std::filesystem::create_directory(folder);
  const std::string b = make_pack_of("packs/b.db", {sample_result("a", 16)});
  const std::string a = make_pack_of("packs/a.db", {sample_result("b", 64)});
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".db") std::filesystem::remove(entry.path());
  }
  write_file(folder + "/notes.txt", "not a pack");
  ScopedEnvironment named("KILN_PACK", folder.c_str());
  auto store = open();
  EXPECT_TRUE(store->warnings().empty());
  EXPECT_EQ(store->info().packs, (std::vector{a, b}));
  EXPECT_EQ(store->list_decisions().size(), 2u);
}

TEST_F(PacksTest, FolderWithoutAPackIsOneWarningThatNamesIt) {
  std::filesystem::create_directory(folder_ + "/packs");
  pack_ = folder_ + "/packs";
  auto store = open();
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find("there is no pack at " + pack_ + "/*.db"), std::string::npos)
      << store->warnings()[0];
  EXPECT_TRUE(store->info().packs.empty());
}

TEST_F(PacksTest, OneThatCannotBeReadDoesNotHideTheOthers) {
  const std::string sound = make_pack_of("sound.db", {sample_result("a")});
  write_file(folder_ + "/damaged.db", read_file(sound).substr(0, 6000));
  pack_ = folder_ + "/damaged.db:" + folder_ + "/absent.db:" + sound;
  auto store = open();
  EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
  ASSERT_EQ(store->warnings().size(), 2u);
  EXPECT_NE(store->warnings()[0].find("damaged.db"), std::string::npos);
  EXPECT_NE(store->warnings()[0].find("get a sound copy of this pack"), std::string::npos);
  EXPECT_NE(store->warnings()[1].find("absent.db"), std::string::npos);
}

TEST_F(PacksTest, SameFileTwiceAndTheStoreItselfAreNoPacks) {
  const std::string pack = make_pack_of("base.db", {sample_result("a")});
  ASSERT_TRUE(open()->put(sample_result("b", 64)));
  pack_ = pack + "::" + path_ + ":" + pack;
  auto store = open();
  EXPECT_EQ(store->info().packs, std::vector{pack});
  EXPECT_EQ(store->info().decisions, 2);
  EXPECT_TRUE(store->put(sample_result("c", 128)));
}

// A pack as version 1 made it, and what is beside it.
class OlderPackTest : public PacksTest {
 protected:
  void SetUp() override {
    PacksTest::SetUp();
    std::filesystem::create_directory(folder_ + "/packs");
    pack_ = folder_ + "/packs/v1.db";
    Database database(pack_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    database.execute(read_file(std::string(KILN_STORES) + "/v1.sql"));
  }
  size_t files_beside() const {
    using Entries = std::filesystem::directory_iterator;
    return static_cast<size_t>(std::distance(Entries(folder_ + "/packs"), Entries()));
  }
};

TEST_F(OlderPackTest, IsReadThroughACopyAndStaysAsItIs) {
  const std::string bytes = read_file(pack_);
  std::filesystem::permissions(pack_, std::filesystem::perms(0444));
  for (unsigned round = 0; round < 2; ++round) {
    auto store = open();
    ASSERT_EQ(store->warnings().size(), 1u);
    for (const char* part : {"packs/v1.db is of schema version 1, so it is read through a copy",
                             "get this pack anew"}) {
      EXPECT_NE(store->warnings()[0].find(part), std::string::npos) << store->warnings()[0];
    }
    const auto found = store->find_decision(sample_problem(), kA100);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->layer, pack_);
    EXPECT_EQ(found->decision.config, R"({"threads":128})");
    const auto plan = store->find_plan(found->decision.plan);
    ASSERT_TRUE(plan);
    EXPECT_TRUE(store->has_binary(plan->kernels[0].binary));
    // With what the rounds before wrote to the top.
    EXPECT_EQ(store->verifications(sample_problem()).size(), 1u + round);
    EXPECT_EQ(store->timings(sample_problem(), kA100).size(), 1u + round);
    // The top goes before it, as before any pack.
    TuningResult newer = sample_result("a");
    newer.decision.decided_at = 1'800'000'000;
    EXPECT_TRUE(store->put(newer));
    EXPECT_EQ(store->find_decision(sample_problem(), kA100)->layer, path_);
    EXPECT_TRUE(store->forget(sample_problem(), kA100));
    EXPECT_EQ(store->find_decision(sample_problem(), kA100)->layer, pack_);
    EXPECT_EQ(store->trouble(), "");
  }
  EXPECT_EQ(read_file(pack_), bytes);
  EXPECT_EQ(files_beside(), 1u);
}

TEST_F(OlderPackTest, NewOneInItsPlaceIsReadAsItIs) {
  auto store = open();
  ASSERT_TRUE(store->find_decision(sample_problem(), kA100));
  const std::string newer = make_pack_of("newer.db", {sample_result("b", 128)});
  std::filesystem::rename(newer, pack_);
  EXPECT_TRUE(store->find_decision(sample_problem(128), kA100));
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
}

TEST_F(OlderPackTest, OfAVersionThatNoStepLeavesIsRefusedWithoutAChange) {
  {
    Database database(pack_, SQLITE_OPEN_READWRITE);
    database.execute("PRAGMA user_version = 0");
  }
  const std::string bytes = read_file(pack_);
  auto store = open();
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find("is of an older schema and cannot be brought to version"),
            std::string::npos)
      << store->warnings()[0];
  EXPECT_EQ(read_file(pack_), bytes);
}

TEST_F(OlderPackTest, DamagedOneIsRefusedAsDamaged) {
  std::string bytes = read_file(pack_);
  std::fill(bytes.begin() + 4096, bytes.end(), '\xa5');  // all pages but the first
  write_file(pack_, bytes);
  auto store = open();
  EXPECT_FALSE(store->find_decision(sample_problem(64), kA100));
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find("damaged"), std::string::npos) << store->warnings()[0];
  EXPECT_EQ(read_file(pack_), bytes);
  EXPECT_EQ(files_beside(), 1u);
}

}  // namespace
}  // namespace kiln::cache
