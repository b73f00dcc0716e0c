// Several files: packs under the writable file, tombstones, read-only stores, and where the file
// goes.
#include <sys/resource.h>

#include "cache/files.h"
#include "tests/cache/fixture.h"

namespace kiln::cache {
namespace {

TEST_F(StoreTest, ReadsFallThroughToThePack) {
  const TuningResult packed = sample_result("packed");
  pack_ = make_pack_of("base.pack", {packed});
  auto store = open();
  const auto row = store->find_decision(sample_problem(), kA100);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->layer, pack_);
  EXPECT_EQ(row->verified, Verified::device);
  expect_equal(row->decision, packed.decision);
  ASSERT_TRUE(store->find_plan(packed.plans[0].id));
  const auto binary = store->find_binary(packed.binaries[0].key);
  ASSERT_TRUE(binary);
  expect_equal(*binary, packed.binaries[0]);
  EXPECT_TRUE(store->has_binary(packed.binaries[1].key));
  EXPECT_EQ(store->list_binaries().size(), 2u);
  EXPECT_EQ(store->timings(sample_problem(), kA100).size(), 1u);
  EXPECT_EQ(store->rejections(sample_problem(), kA100).size(), 1u);
  EXPECT_EQ(store->problems().size(), 1u);
  EXPECT_EQ(store->info().packs, std::vector{pack_});
  EXPECT_TRUE(store->check().empty());
}

TEST_F(StoreTest, WritesGoToTheTopAndLeaveThePackAsItIs) {
  pack_ = make_pack_of("base.pack", {sample_result("packed")});
  const std::string before = read_file(pack_);
  {
    auto store = open();
    TuningResult better = sample_result("better");
    better.decision.decided_at += 10;
    ASSERT_TRUE(store->put(better));
    const auto row = store->find_decision(sample_problem(), kA100);
    EXPECT_EQ(row->layer, path_);
    EXPECT_EQ(row->decision.config, better.decision.config);
    EXPECT_EQ(store->list_decisions().size(), 1u);
    EXPECT_EQ(store->list_binaries().size(), 4u);
  }
  EXPECT_EQ(read_file(pack_), before);
  EXPECT_FALSE(std::filesystem::exists(pack_ + "-wal"));
  EXPECT_FALSE(std::filesystem::exists(pack_ + "-shm"));
  EXPECT_FALSE(std::filesystem::exists(pack_ + ".lock"));
}

TEST_F(StoreTest, BetterKindOfThePackBeatsANewerWorseOneOfTheTop) {
  pack_ = make_pack_of("base.pack", {sample_result("packed", 16, DecisionKind::measured)});
  auto store = open();
  TuningResult predicted = sample_result("predicted", 16, DecisionKind::predicted);
  predicted.decision.decided_at += 1000;
  ASSERT_TRUE(store->put(predicted));
  EXPECT_EQ(store->find_decision(sample_problem(), kA100)->layer, pack_);
  EXPECT_EQ(store->list_decisions().at(0).layer, pack_);
  ASSERT_TRUE(store->put(sample_result("pin", 16, DecisionKind::pinned)));
  EXPECT_EQ(store->find_decision(sample_problem(), kA100)->layer, path_);
}

TEST_F(StoreTest, NewestVerificationOfACardCountsWhicheverLayerHasIt) {
  for (const int64_t age : {-1, 1}) {  // of the top's against the pack's
    TuningResult packed = sample_result("packed");
    packed.verifications[0].passed = false;
    packed.verifications[0].verified_at = 1'700'000'000;
    pack_ = make_pack_of("base.pack" + std::to_string(age), {packed});
    path_ = folder_ + "/top" + std::to_string(age);
    auto store = open();
    Verification passed = packed.verifications[0];
    passed.driver = "590";
    passed.passed = true;
    passed.verified_at += age;
    ASSERT_TRUE(store->put_verification(passed));
    const auto row = store->find_decision(sample_problem(), kA100);
    EXPECT_EQ(row->verified, age > 0 ? Verified::device : Verified::none);
    EXPECT_EQ(row->failure.empty(), age > 0);
  }
}

TEST_F(StoreTest, NewestTimingAndRejectionCountWhicheverLayerHasThem) {
  TuningResult older = sample_result("a");
  older.timings[0].timed_at = older.rejections[0].rejected_at = 1'700'000'000;
  TuningResult newer = older;
  newer.timings[0].timed_at = newer.rejections[0].rejected_at = 1'700'000'001;
  newer.timings[0].time_ns = 1;
  newer.rejections[0].reason = "trap";
  const auto expect_newer = [&] {
    auto store = open();
    ASSERT_EQ(store->timings(sample_problem(), kA100).size(), 1u);
    EXPECT_EQ(store->timings(sample_problem(), kA100)[0].time_ns, 1);
    ASSERT_EQ(store->rejections(sample_problem(), kA100).size(), 1u);
    EXPECT_EQ(store->rejections(sample_problem(), kA100)[0].reason, "trap");
  };
  pack_ = make_pack_of("newer.pack", {newer});
  ASSERT_TRUE(open()->put(older));
  expect_newer();
  pack_ = make_pack_of("older.pack", {older});
  path_ = folder_ + "/newer.db";
  ASSERT_TRUE(open()->put(newer));
  expect_newer();
}

TEST_F(StoreTest, EvidenceAndDecisionsMayNameWhatThePackHolds) {
  const TuningResult packed = sample_result("packed");
  pack_ = make_pack_of("base.pack", {packed});
  auto store = open();
  TuningResult borrowed;
  borrowed.decision = packed.decision;
  borrowed.decision.gpu_class = kRtx3090;
  borrowed.decision.kind = DecisionKind::borrowed;
  EXPECT_TRUE(store->put(borrowed));
  EXPECT_TRUE(store->put_plan(sample_plan("again", packed.binaries)));
  Verification verification = packed.verifications[0];
  verification.by = Verified::simulator;
  EXPECT_TRUE(store->put_verification(verification));
  EXPECT_TRUE(store->check().empty());
  EXPECT_EQ(store->find_decision(sample_problem(), kRtx3090)->verified, Verified::device);

  store.reset();
  pack_.clear();
  EXPECT_EQ(open()->check().size(), 4u);  // the decision, the verification, two kernels of the plan
}

TEST_F(StoreTest, HiddenDecisionOfThePackIsAMissUntilOneIsPut) {
  pack_ = make_pack_of("base.pack", {sample_result("packed"), sample_result("kept", 32)});
  auto store = open();
  ASSERT_TRUE(store->hide(sample_problem(), kA100, "regressed with a new driver"));
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
  EXPECT_EQ(store->list_decisions().size(), 1u);
  store.reset();
  store = open();
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
  EXPECT_TRUE(store->find_decision(sample_problem(32), kA100));
  ASSERT_TRUE(store->put(sample_result("new", 16, DecisionKind::predicted)));
  EXPECT_EQ(store->find_decision(sample_problem(), kA100)->layer, path_);
  EXPECT_EQ(store->list_decisions().size(), 2u);
}

TEST_F(StoreTest, ForgetLetsThePacksDecisionShowAgain) {
  pack_ = make_pack_of("base.pack", {sample_result("packed")});
  auto store = open();
  ASSERT_TRUE(store->put(sample_result("pin", 16, DecisionKind::pinned)));
  ASSERT_TRUE(store->forget(sample_problem(), kA100));
  EXPECT_EQ(store->find_decision(sample_problem(), kA100)->layer, pack_);
}

TEST_F(StoreTest, BinaryTombstoneHidesThePacksBinary) {
  const TuningResult packed = sample_result("packed");
  pack_ = make_pack_of("base.pack", {packed});
  const Hash128 key = packed.binaries[0].key;
  ASSERT_TRUE(open()->put_binary(sample_binary("other")));
  sql("INSERT INTO binary_tombstones VALUES ('" + key.hex() + "', 'does not load', 0)");
  auto store = open();
  EXPECT_FALSE(store->has_binary(key));
  EXPECT_FALSE(store->find_binary(key));
  EXPECT_TRUE(store->has_binary(packed.binaries[1].key));
  ASSERT_TRUE(store->put_binary(packed.binaries[0]));
  EXPECT_TRUE(store->find_binary(key));
}

TEST_F(StoreTest, MissingPackIsOneWarningThatNamesIt) {
  pack_ = folder_ + "/nothing.pack";
  auto store = open();
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find(pack_), std::string::npos);
  EXPECT_TRUE(store->put(sample_result("a")));
  EXPECT_TRUE(store->info().packs.empty());
}

TEST_F(StoreTest, DamagedPackIsNotUsedAndNotTouched) {
  pack_ = make_pack_of("base.pack", {sample_result("packed")});
  write_file(pack_, "this is no store at all, whatever its name says" + std::string(200, 'x'));
  const std::string before = read_file(pack_);
  auto store = open();
  EXPECT_EQ(store->warnings().size(), 1u);
  EXPECT_TRUE(store->put(sample_result("a")));
  EXPECT_EQ(read_file(pack_), before);
  EXPECT_EQ(count_files_with(".corrupt"), 0u);
}

TEST_F(StoreTest, WarningsAboutAPackNameItsOwnVariable) {
  const std::string pack = make_pack_of("base.pack", {sample_result("a")});
  const std::string sound = read_file(pack);
  std::string newer = sound;
  newer[63] = 99;  // user_version
  std::string foreign = sound;
  foreign[68] = 'X';  // application_id
  std::string damaged = sound;
  damaged.replace(0, 100, std::string(100, '\0'));
  std::string noise = sound;
  noise.replace(100, 3996, std::string(3996, '\xa5'));
  for (const std::string& bytes : {std::string("hello"), newer, foreign, damaged, noise}) {
    write_file(pack, bytes);
    pack_ = pack;
    auto store = open();
    ASSERT_EQ(store->warnings().size(), 1u);
    EXPECT_NE(store->warnings()[0].find("KILN_PACK or --pack"), std::string::npos)
        << store->warnings()[0];
    EXPECT_EQ(store->warnings()[0].find("KILN_DB"), std::string::npos) << store->warnings()[0];
    EXPECT_EQ(read_file(pack), bytes);
  }
}

// Beside a reader nobody takes in a log or an older schema, so the sentence names the file to
// write.
TEST_F(StoreTest, FileThatOnlyAWriterCanMendIsNamedWithItsOwnVariable) {
  const std::string pack = make_pack_of("base.pack", {sample_result("packed")});
  ASSERT_TRUE(open()->put(sample_result("a")));
  for (const std::string& path : {pack, path_}) {
    const auto expect_told = [&](const std::string& what, const std::string& remedy) {
      auto store = path == pack ? Store::open({.path = ":memory:", .pack = pack})
                                : open(StoreOptions::Mode::read_only);
      const std::string other = path == pack ? "name another pack with KILN_PACK or --pack"
                                             : "name another file with KILN_DB or --db";
      ASSERT_EQ(store->warnings().size(), 1u);
      const std::string told = store->warnings()[0];
      EXPECT_NE(told.find(what), std::string::npos) << told;
      EXPECT_NE(told.find(remedy + other), std::string::npos) << told;
    };
    write_file(path + "-wal", "a log that is longer than the header of one");
    expect_told("write-ahead log", "(`kiln build --db " + path + "`) or ");
    std::filesystem::remove(path + "-wal");
    sql(path, "PRAGMA user_version = 0");  // no step leads from there, whoever opens it
    expect_told("older schema", "so it is left as it is; ");
  }
}

TEST_F(StoreTest, WhatToDoIsNotReadOutOfAPathWithASemicolon) {
  path_ = folder_ + "/a;b.db";
  write_file(path_, "hello");
  auto store = open();
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find("; name another file with KILN_DB or --db"),
            std::string::npos)
      << store->warnings()[0];
}

TEST_F(StoreTest, PackIsTakenFromTheEnvironment) {
  const std::string pack = make_pack_of("base.pack", {sample_result("packed")});
  const ScopedEnvironment environment("KILN_PACK", pack.c_str());
  EXPECT_TRUE(open()->find_decision(sample_problem(), kA100));
}

TEST_F(StoreTest, PackHasNoLeasesNorUseAndIsReadableByOthers) {
  {
    auto store = open();
    ASSERT_TRUE(store->put(sample_result("a")));
  }
  sql("INSERT INTO leases VALUES ('k', 'host', 'boot', 1, 1, 1, 1, 1);"
      "INSERT INTO used_sizes VALUES (1, 1, 1, 1, 1)");
  const std::string pack = folder_ + "/a.pack";
  open()->make_pack(pack);
  EXPECT_EQ(sql(pack,
                "SELECT (SELECT count(*) FROM leases), (SELECT count(*) FROM used_sizes), "
                "(SELECT count(*) FROM decisions)"),
            std::vector<std::string>{"0|0|1"});
  struct stat status;
  ASSERT_EQ(::stat(pack.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0644u);
  const std::string head = read_file(pack).substr(0, 100);
  EXPECT_EQ(head[18], 1);  // no write-ahead log
  EXPECT_EQ(head[19], 1);
  EXPECT_EQ(count_files_with("draft"), 0u);
}

TEST_F(StoreTest, MakePackRefusesAnExistingFileAndAnEmptyStore) {
  auto store = open();
  EXPECT_THROW(store->make_pack(folder_ + "/a.pack"), Error);  // nothing to pack
  ASSERT_TRUE(store->put(sample_result("a")));
  write_file(folder_ + "/a.pack", "precious");
  EXPECT_THROW(store->make_pack(folder_ + "/a.pack"), Error);
  EXPECT_EQ(read_file(folder_ + "/a.pack"), "precious");
  EXPECT_THROW(store->make_pack(folder_ + "/no/such/folder/a.pack"), Error);
  store->make_pack(folder_ + "/b.pack");
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/b.pack"));
}

TEST_F(StoreTest, PackOfAStoreInMemoryIsAStore) {
  auto memory = Store::open({.path = ":memory:"});
  ASSERT_TRUE(memory->put(sample_result("a")));
  memory->make_pack(folder_ + "/a.pack");
  pack_ = folder_ + "/a.pack";
  EXPECT_TRUE(open()->find_decision(sample_problem(), kA100));
}

TEST_F(StoreTest, C127ReadOnlyStoreMakesAndChangesNothing) {
  ASSERT_TRUE(open()->put(sample_result("a")));
  std::filesystem::remove(path_ + ".lock");
  const std::string before = read_file(path_);
  {
    auto store = open(StoreOptions::Mode::read_only);
    EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
    EXPECT_TRUE(store->find_binary(sample_binary("a/first").key));
    EXPECT_TRUE(store->check().empty());
    EXPECT_FALSE(store->info().writable);
    EXPECT_EQ(files_in_folder(), std::vector<std::string>{"kiln.db"});
    EXPECT_TRUE(store->warnings().empty());
    EXPECT_FALSE(store->put(sample_result("b")));
    EXPECT_FALSE(store->put_binary(sample_binary("b")));
    EXPECT_FALSE(store->forget(sample_problem(), kA100));
    EXPECT_EQ(store->warnings().size(), 1u);
  }
  EXPECT_EQ(files_in_folder(), std::vector<std::string>{"kiln.db"});
  EXPECT_EQ(read_file(path_), before);
}

TEST_F(StoreTest, ReadOnlyStoreOfNoFileIsEmptyAndSaysSo) {
  auto store = open(StoreOptions::Mode::read_only);
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
  EXPECT_EQ(store->warnings().size(), 1u);
  EXPECT_TRUE(files_in_folder().empty());

  pack_ = make_pack_of("base.pack", {sample_result("packed")});
  store = open(StoreOptions::Mode::read_only);  // the pack alone is a supported way to run
  EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
  EXPECT_TRUE(store->warnings().empty());
}

TEST_F(StoreTest, ReadOnlyStoreSeesWhatALiveWriterCommits) {
  int to_child[2];
  int to_parent[2];
  ASSERT_EQ(::pipe(to_child), 0);
  ASSERT_EQ(::pipe(to_parent), 0);
  const pid_t child = start_child([&] {
    auto store = open();
    char byte = 0;
    for (int rows = 1; rows <= 2; ++rows) {
      if (!store->put(sample_result(std::to_string(rows), rows))) return 1;
      if (::write(to_parent[1], "x", 1) != 1 || ::read(to_child[0], &byte, 1) != 1) return 2;
    }
    return 0;
  });
  char byte = 0;
  ASSERT_EQ(::read(to_parent[0], &byte, 1), 1);
  auto store = open(StoreOptions::Mode::read_only);
  EXPECT_TRUE(store->find_decision(sample_problem(1), kA100));
  EXPECT_FALSE(store->find_decision(sample_problem(2), kA100));
  ASSERT_EQ(::write(to_child[1], "x", 1), 1);
  ASSERT_EQ(::read(to_parent[0], &byte, 1), 1);
  EXPECT_TRUE(store->find_decision(sample_problem(2), kA100));
  ASSERT_EQ(::write(to_child[1], "x", 1), 1);
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_TRUE(store->warnings().empty());
  for (const int end : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) ::close(end);
}

TEST_F(StoreTest, ReadOnlyStoreFollowsAFileThatIsChangedUnderIt) {
  ASSERT_TRUE(open()->put(sample_result("a")));
  auto reader = open(StoreOptions::Mode::read_only);
  EXPECT_FALSE(reader->find_decision(sample_problem(32), kA100));
  const pid_t child = start_child([&] { return open()->put(sample_result("b", 32)) ? 0 : 1; });
  ASSERT_EQ(wait_for(child), 0);
  EXPECT_TRUE(reader->find_decision(sample_problem(32), kA100));
}

// Root may write anywhere, so "no permission" is played by a folder that is a file.
TEST_F(StoreTest, PlaceThatCannotBeMadeIsMemoryWithOneWarning) {
  write_file(folder_ + "/file", "not a folder");
  path_ = folder_ + "/file/kiln/kiln.db";
  auto store = open();
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find("KILN_DB"), std::string::npos);
  EXPECT_NE(store->warnings()[0].find(path_), std::string::npos);
  EXPECT_EQ(store->info().path, ":memory:");
  EXPECT_TRUE(store->put(sample_result("a")));
  EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
  EXPECT_EQ(store->warnings().size(), 1u);
}

TEST_F(StoreTest, PlaceThatVanishesBeforeTheFirstWriteIsMemoryWithOneWarning) {
  path_ = folder_ + "/later/kiln.db";
  auto store = open();
  EXPECT_TRUE(store->warnings().empty());
  std::filesystem::remove_all(folder_ + "/later");
  write_file(folder_ + "/later", "in the way");
  EXPECT_TRUE(store->put(sample_result("a")));
  EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
  EXPECT_EQ(store->warnings().size(), 1u);
  EXPECT_EQ(store->info().path, ":memory:");
}

TEST_F(StoreTest, FolderOrPipeAtThePathIsMemoryWithOneWarning) {
  for (const bool folder : {true, false}) {
    path_ = folder_ + (folder ? "/folder.db" : "/pipe.db");
    ASSERT_EQ(folder ? ::mkdir(path_.c_str(), 0700) : ::mkfifo(path_.c_str(), 0600), 0);
    auto store = open();
    EXPECT_EQ(store->warnings().size(), 1u);
    EXPECT_TRUE(store->put(sample_result("a")));
    EXPECT_TRUE(std::filesystem::exists(path_));
  }
}

TEST_F(StoreTest, C129FileThatMayNotBeWrittenIsReadUnderAStoreInMemory) {
  ASSERT_TRUE(open()->put(sample_result("a")));
  std::filesystem::permissions(folder_, std::filesystem::perms(0555));
  std::filesystem::permissions(path_, std::filesystem::perms(0444));
  const pid_t child = start_child([&] {
    if (::geteuid() == 0 && ::seteuid(65534) != 0) return 0;  // nobody: permissions count again
    auto store = open();
    const bool good = store->find_decision(sample_problem(), kA100) &&
                      store->warnings().size() == 1 && store->info().path == ":memory:" &&
                      store->put(sample_result("b", 32)) &&
                      store->find_decision(sample_problem(32), kA100);
    return good ? 0 : 1;
  });
  EXPECT_EQ(wait_for(child), 0);
  std::filesystem::permissions(folder_, std::filesystem::perms(0700));
  EXPECT_EQ(open()->list_decisions().size(), 1u);
}

TEST_F(StoreTest, PlaceComesFromTheEnvironmentInOrder) {
  const ScopedEnvironment home("HOME", (folder_ + "/home").c_str());
  {
    const ScopedEnvironment db("KILN_DB", "/srv/kiln.db");
    const ScopedEnvironment xdg("XDG_CACHE_HOME", (folder_ + "/xdg").c_str());
    EXPECT_EQ(default_store_place().path, "/srv/kiln.db");
    EXPECT_EQ(default_store_place().why, "from KILN_DB");
  }
  const ScopedEnvironment db("KILN_DB", nullptr);
  {
    const ScopedEnvironment xdg("XDG_CACHE_HOME", (folder_ + "/xdg").c_str());
    EXPECT_EQ(default_store_place().path, folder_ + "/xdg/kiln/kiln.db");
  }
  const ScopedEnvironment relative("XDG_CACHE_HOME", "cache");
  EXPECT_EQ(default_store_place().path, folder_ + "/home/.cache/kiln/kiln.db");
}

TEST_F(StoreTest, WithoutHomeTheStoreIsInMemoryWithOneWarning) {
  const ScopedEnvironment db("KILN_DB", nullptr);
  const ScopedEnvironment xdg("XDG_CACHE_HOME", nullptr);
  const ScopedEnvironment home("HOME", nullptr);
  const ScopedEnvironment local("KILN_LOCAL", "/dev/null");
  auto store = Store::open({});
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find("HOME"), std::string::npos);
  EXPECT_NE(store->warnings()[0].find("KILN_DB or --db"), std::string::npos);
  EXPECT_TRUE(store->put(sample_result("a")));
  EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
  EXPECT_EQ(store->warnings().size(), 1u);
}

TEST_F(StoreTest, EnvironmentNamesTheStore) {
  const ScopedEnvironment db("KILN_DB", path_.c_str());
  ASSERT_TRUE(Store::open({})->put(sample_result("a")));
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST(NetworkFileSystem, NamesThoseWithoutSharedMemory) {
  EXPECT_EQ(network_file_system_name(0x6969), "nfs");
  EXPECT_EQ(network_file_system_name(0x65735546), "fuse");
  EXPECT_EQ(network_file_system_name(0x0bd00bd0), "lustre");
  EXPECT_EQ(network_file_system_name(0x47504653), "gpfs");
  EXPECT_EQ(network_file_system_name(static_cast<int32_t>(0xff534d42)), "cifs");
  EXPECT_EQ(network_file_system_name(0xef53), "");      // ext4
  EXPECT_EQ(network_file_system_name(0x58465342), "");  // xfs
  EXPECT_EQ(network_file_system_name(0x794c7630), "");  // overlay
  EXPECT_EQ(network_file_system_name(0x01021994), "");  // tmpfs
}

// A link that leads nowhere is what SQLite never makes its shared memory of.
TEST_F(StoreTest, C50StoreWithoutSharedMemoryIsWrittenWithoutALog) {
  std::filesystem::create_symlink("/nowhere/at/all", path_ + "-shm");
  {
    auto store = open();
    EXPECT_EQ(store->info().path, path_);
    EXPECT_FALSE(store->info().wal);
    ASSERT_EQ(store->warnings().size(), 1u);
    EXPECT_NE(store->warnings()[0].find("no shared memory"), std::string::npos)
        << store->warnings()[0];
    EXPECT_TRUE(store->put(sample_result("a")));
    EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
    EXPECT_TRUE(store->check().empty());
    EXPECT_EQ(store->warnings().size(), 1u);
  }
  EXPECT_TRUE(open()->find_decision(sample_problem(), kA100));
  EXPECT_EQ(count_files_with("-wal"), 0u);
}

TEST_F(StoreTest, C50StoreThatHadALogIsReadWhereThereIsNoSharedMemory) {
  ASSERT_TRUE(open()->put(sample_result("a")));
  std::filesystem::create_symlink("/nowhere/at/all", path_ + "-shm");
  {
    auto store = open();
    EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
    EXPECT_TRUE(store->put(sample_result("b", 64)));
    EXPECT_EQ(store->warnings().size(), 1u);
  }
  std::filesystem::remove(path_ + "-shm");
  auto store = open();
  EXPECT_TRUE(store->info().wal);
  EXPECT_TRUE(store->warnings().empty());
  EXPECT_EQ(store->list_decisions().size(), 2u);
}

TEST_F(StoreTest, LocalFileSystemGetsAWriteAheadLog) {
  auto store = open();
  ASSERT_TRUE(store->put(sample_result("a")));
  EXPECT_EQ(store->info().wal, network_file_system(path_).empty());
}

}  // namespace
}  // namespace kiln::cache
