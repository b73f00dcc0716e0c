// Fault injection: whatever happens to the file, a store answers with what was written or with a
// miss, and goes on.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>

#include <csignal>
#include <random>

#include "cache/blob.h"
#include "cache/files.h"
#include "cache/layer.h"
#include "cache/schema.h"
#include "jit/base/error.h"
#include "tests/cache/fixture.h"

namespace kiln::cache {
namespace {

class DamageTest : public StoreTest {
 protected:
  // A closed store file with one result and no side files.
  TuningResult write_sample() {
    const TuningResult result = sample_result("a");
    EXPECT_TRUE(open()->put(result));
    EXPECT_FALSE(std::filesystem::exists(path_ + "-wal"));
    return result;
  }

  // Bytes of the page that holds a table, which opening does not read, as noise.
  std::string damaged_decisions() { return damaged_table("decisions"); }
  std::string damaged_table(const std::string& table) {
    const std::string page =
        sql("SELECT rootpage FROM sqlite_schema WHERE name = '" + table + "'")[0];
    std::string bytes = read_file(path_);
    bytes.replace((std::stoul(page) - 1) * 4096, 4096, std::string(4096, '\xa5'));
    return bytes;
  }

  // The file was no store: it is as it was, and the one warning says what to do.
  void expect_left_alone(const std::string& bytes, const std::string& says) {
    auto store = open();
    ASSERT_EQ(store->warnings().size(), 1u);
    for (const std::string& part : {says, path_, std::string("KILN_DB"), std::string("--db")}) {
      EXPECT_NE(store->warnings()[0].find(part), std::string::npos) << store->warnings()[0];
    }
    EXPECT_EQ(store->info().path, ":memory:");
    EXPECT_TRUE(store->put(sample_result("a")));
    EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
    EXPECT_EQ(store->warnings().size(), 1u);
    EXPECT_EQ(open(StoreOptions::Mode::read_only)->warnings().size(), 1u);
    EXPECT_EQ(read_file(path_), bytes);
    EXPECT_EQ(files_in_folder(), std::vector<std::string>{"kiln.db"});
  }

  static void expect_no_sql(const std::vector<std::string>& sentences) {
    for (const std::string& sentence : sentences) {
      for (const char* word : {"SELECT", "INSERT", "PRAGMA", "BEGIN", "JOIN"}) {
        EXPECT_EQ(sentence.find(word), std::string::npos) << sentence;
      }
    }
  }

  // The store was put aside and a new one works.
  void expect_fresh_store_after_quarantine(const std::string& damaged_bytes) {
    {
      auto store = open();
      ASSERT_EQ(store->warnings().size(), 1u);
      EXPECT_NE(store->warnings()[0].find(".corrupt-"), std::string::npos);
      EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
      EXPECT_TRUE(store->put(sample_result("b", 32)));
      EXPECT_EQ(store->info().path, path_);
    }
    std::vector<std::string> aside;
    for (const std::string& name : files_in_folder()) {
      const bool is_log = name.ends_with("-wal") || name.ends_with("-shm");
      if (name.find(".corrupt-") != std::string::npos && !is_log) aside.push_back(name);
    }
    ASSERT_EQ(aside.size(), 1u);
    EXPECT_EQ(read_file(folder_ + "/" + aside[0]), damaged_bytes);
    auto store = open();
    EXPECT_TRUE(store->warnings().empty());
    EXPECT_TRUE(store->find_decision(sample_problem(32), kA100));
    EXPECT_TRUE(store->check().empty());
    EXPECT_TRUE(std::filesystem::exists(path_ + ".lock"));
  }
};

TEST_F(DamageTest, C51OverwrittenHeaderIsPutAside) {
  write_sample();
  std::string bytes = read_file(path_);
  bytes.replace(0, 100, std::string(100, 'x'));
  write_file(path_, bytes);
  expect_fresh_store_after_quarantine(bytes);
}

TEST_F(DamageTest, ZeroedFirstPageIsPutAside) {
  write_sample();
  std::string bytes = read_file(path_);
  bytes.replace(0, 4096, std::string(4096, '\0'));
  write_file(path_, bytes);
  expect_fresh_store_after_quarantine(bytes);
}

TEST_F(DamageTest, FlippedMagicIsPutAside) {
  write_sample();
  std::string bytes = read_file(path_);
  bytes[3] ^= 1;
  write_file(path_, bytes);
  expect_fresh_store_after_quarantine(bytes);
}

TEST_F(DamageTest, FileThatIsNoDatabaseIsLeftAlone) {
  for (const std::string& bytes :
       {std::string("hello"), std::string("SQLite forma"), std::string(schema_sql()),
        "\x89PNG\r\n\x1a\n" + std::string(3000, '\x07'), std::string(8192, '\0')}) {
    SCOPED_TRACE(bytes.substr(0, 12));
    write_file(path_, bytes);
    expect_left_alone(bytes, "not an SQLite file");
  }
}

TEST_F(DamageTest, DamagedDatabaseOfAnotherProgramIsLeftAlone) {
  sql("CREATE TABLE bookmarks (url TEXT); INSERT INTO bookmarks VALUES ('https://example.org')");
  const std::string whole = read_file(path_);
  write_file(path_, whole.substr(0, whole.size() - 100));
  expect_left_alone(whole.substr(0, whole.size() - 100), "another program");
  std::string bytes = whole;
  bytes.replace(100, 3996, std::string(3996, '\xa5'));
  write_file(path_, bytes);
  expect_left_alone(bytes, "nothing in it tells that it is a Kiln store");
}

TEST_F(DamageTest, TruncatedFileIsPutAside) {
  write_sample();
  const std::string bytes = read_file(path_);
  for (const size_t size : {size_t{50}, size_t{4096}, bytes.size() / 2, bytes.size() - 1}) {
    SCOPED_TRACE(size);
    write_file(path_, bytes.substr(0, size));
    expect_fresh_store_after_quarantine(bytes.substr(0, size));
    for (const auto& name : files_in_folder()) {
      if (name.find(".corrupt-") != std::string::npos)
        std::filesystem::remove(folder_ + "/" + name);
    }
  }
}

TEST_F(DamageTest, EmptyFileBecomesAStore) {
  write_file(path_, "");
  auto store = open();
  EXPECT_TRUE(store->put(sample_result("a")));
  EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
  EXPECT_TRUE(store->warnings().empty());
  EXPECT_EQ(count_files_with(".corrupt-"), 0u);
}

TEST_F(DamageTest, OverwrittenSchemaPageIsPutAside) {
  write_sample();
  std::string bytes = read_file(path_);
  bytes.replace(100, 3996, std::string(3996, '\xa5'));
  write_file(path_, bytes);
  expect_fresh_store_after_quarantine(bytes);
}

TEST_F(DamageTest, SideFilesAreMovedAlong) {
  write_damaged();
  write_file(path_ + "-wal", "log");
  write_file(path_ + "-shm", "index");
  EXPECT_TRUE(open()->put(sample_result("a")));
  std::string log;
  size_t indexes = 0;
  for (const std::string& name : files_in_folder()) {
    if (name.find(".corrupt-") == std::string::npos) continue;
    if (name.ends_with("-wal")) log = read_file(folder_ + "/" + name);
    indexes += name.ends_with("-shm") ? 1 : 0;
  }
  EXPECT_EQ(log, "log");
  EXPECT_EQ(indexes, 1u);
  EXPECT_TRUE(open()->find_decision(sample_problem(), kA100));
}

// Damage in a page that opening does not read: a miss and a warning now, put aside at the next
// opening.
TEST_F(DamageTest, DamageFoundWhileReadingIsPutAsideAtTheNextOpening) {
  write_sample();
  write_file(path_, damaged_decisions());
  {
    auto store = open();
    EXPECT_TRUE(store->warnings().empty());
    EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
    EXPECT_EQ(store->warnings().size(), 1u);
    EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
    EXPECT_EQ(store->warnings().size(), 1u);
    EXPECT_TRUE(store->find_binary(sample_binary("a/first").key));  // elsewhere in the file
    EXPECT_FALSE(store->check().empty());
    EXPECT_FALSE(store->put(sample_result("b")));
    EXPECT_EQ(store->warnings().size(), 1u);
  }
  expect_fresh_store_after_quarantine(read_file(path_));
}

TEST_F(DamageTest, PageThatTurnsBadAfterOpeningIsPutAsideAtTheNextOpening) {
  write_sample();
  const std::string bytes = damaged_decisions();
  {
    auto store = open();
    // By another process: closing the file here would cost SQLite its locks.
    EXPECT_EQ(wait_for(start_child([&] {
                const int file = ::open(path_.c_str(), O_WRONLY);
                const ssize_t put = ::pwrite(file, bytes.data(), bytes.size(), 0);
                return put == static_cast<ssize_t>(bytes.size()) ? 0 : 1;
              })),
              0);
    EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
    ASSERT_EQ(store->warnings().size(), 1u);
    EXPECT_NE(store->warnings()[0].find("`kiln tune`"), std::string::npos);
    expect_no_sql(store->warnings());
  }
  expect_fresh_store_after_quarantine(read_file(path_));
}

TEST_F(DamageTest, DamageThatAReaderMeetsIsPutAsideByTheNextWriter) {
  write_sample();
  const std::string bytes = damaged_decisions();
  write_file(path_, bytes);
  {
    auto store = open(StoreOptions::Mode::read_only);
    EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
    ASSERT_EQ(store->warnings().size(), 1u);
    EXPECT_NE(store->warnings()[0].find("`kiln tune`"), std::string::npos);
    expect_no_sql(store->warnings());
    EXPECT_EQ(read_file(path_), bytes);
  }
  expect_fresh_store_after_quarantine(bytes);
}

TEST_F(DamageTest, CheckTellsDamagedPagesAndTheNextStep) {
  write_sample();
  write_file(path_, damaged_decisions());
  auto store = open(StoreOptions::Mode::read_only);
  const std::vector<std::string> defects = store->check();
  EXPECT_FALSE(defects.empty());
  expect_no_sql(defects);
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find("`kiln tune`"), std::string::npos);
}

TEST_F(DamageTest, ReaderWithoutASideCarMakesNoneAndSaysToMoveTheFile) {
  write_sample();
  const std::string bytes = damaged_decisions();
  write_file(path_, bytes);
  std::filesystem::remove(path_ + ".lock");
  auto store = open(StoreOptions::Mode::read_only);
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find("`mv " + path_), std::string::npos) << store->warnings()[0];
  EXPECT_EQ(files_in_folder(), std::vector<std::string>{"kiln.db"});
}

TEST_F(DamageTest, FileThatWasMendedMeanwhileIsNotPutAside) {
  write_sample();
  const std::string sound = read_file(path_);
  write_file(path_, damaged_decisions());
  EXPECT_FALSE(open()->find_decision(sample_problem(), kA100));
  write_file(path_, sound);  // the same inode
  for (int i = 0; i < 2; ++i) {
    auto store = open();
    EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
    EXPECT_TRUE(store->warnings().empty());
  }
  EXPECT_EQ(count_files_with(".corrupt-"), 0u);
}

// What stands in the way of looking at a file says nothing about the file.
TEST_F(DamageTest, SoundFileWithANoteThatCannotBeReadNowIsNotPutAside) {
  write_sample();
  ASSERT_TRUE(SideLock(path_).remember_damaged(*file_id(path_)));
  std::filesystem::create_directory(path_ + "-wal");  // SQLite cannot open it as a log
  EXPECT_EQ(open()->warnings().size(), 1u);
  EXPECT_EQ(count_files_with(".corrupt-"), 0u);
  std::filesystem::remove(path_ + "-wal");
  auto store = open();
  EXPECT_TRUE(store->warnings().empty());
  EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
}

TEST_F(DamageTest, SoundFileOfAnOlderSchemaWithANoteIsNotPutAside) {
  write_sample();
  sql("PRAGMA user_version = 0");
  ASSERT_TRUE(SideLock(path_).remember_damaged(*file_id(path_)));
  {
    auto store = open();
    ASSERT_EQ(store->warnings().size(), 1u);
    EXPECT_NE(store->warnings()[0].find("older schema"), std::string::npos);
  }
  EXPECT_EQ(count_files_with(".corrupt-"), 0u);
  EXPECT_EQ(sql("SELECT count(*) FROM decisions"), std::vector<std::string>{"1"});
}

TEST_F(DamageTest, RefusedPackNamesItsOwnReason) {
  write_sample();
  write_file(path_, damaged_table("binaries"));
  auto store = open();
  EXPECT_FALSE(store->find_binary(sample_binary("a/first").key));
  TuningResult no_json = sample_result("b");
  no_json.decision.config = "threads=1";
  EXPECT_FALSE(store->put(no_json));
  EXPECT_EQ(store->warnings().size(), 2u);
  try {
    store->make_pack(folder_ + "/a.pack");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("malformed"), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find("JSON"), std::string::npos) << error.what();
  }
  EXPECT_EQ(count_files_with("a.pack"), 0u);
}

TEST_F(DamageTest, ReadOnlyStoreLeavesADamagedFileWhereItIs) {
  const std::string bytes = write_damaged();
  auto store = open(StoreOptions::Mode::read_only);
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find("`kiln tune`"), std::string::npos);
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
  EXPECT_EQ(count_files_with(".corrupt-"), 0u);
  EXPECT_EQ(read_file(path_), bytes);
}

TEST_F(DamageTest, C45CorruptBlobIsAMissWithOneWarningAndHealedByTheNextWrite) {
  const TuningResult result = write_sample();
  const jit::Binary& binary = result.binaries[0];
  const std::string where = " WHERE binary = '" + binary.key.hex() + "'";
  sql("UPDATE images SET data = CAST(substr(data, 1, 40) || x'00' || substr(data, 42) AS BLOB)" +
      where);
  auto store = open();
  EXPECT_TRUE(store->has_binary(binary.key));
  EXPECT_FALSE(store->find_binary(binary.key));
  EXPECT_FALSE(store->find_binary(binary.key));
  EXPECT_FALSE(store->has_binary(binary.key));
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find(binary.key.hex()), std::string::npos);
  EXPECT_NE(store->warnings()[0].find(path_), std::string::npos);
  EXPECT_EQ(store->check().size(), 1u);
  EXPECT_TRUE(store->find_binary(result.binaries[1].key));
  EXPECT_TRUE(store->find_decision(sample_problem(), kA100));

  ASSERT_TRUE(store->put_binary(binary));
  EXPECT_TRUE(store->has_binary(binary.key));
  ASSERT_TRUE(store->find_binary(binary.key));
  expect_equal(*store->find_binary(binary.key), binary);
  EXPECT_TRUE(store->check().empty());
}

TEST_F(DamageTest, CorruptBlobOfTheTopFallsThroughToThePack) {
  const TuningResult result = write_sample();
  pack_ = make_pack_of("base.pack", {result});
  sql("UPDATE images SET checksum = '00000000000000000000000000000000'");
  auto store = open();
  EXPECT_TRUE(store->find_binary(result.binaries[0].key));
  EXPECT_EQ(store->warnings().size(), 1u);
}

TEST_F(DamageTest, SizesOutOfRangeAreDamageAndAskForNoMemory) {
  const TuningResult result = write_sample();
  for (const char* size : {"-1", "0", "9223372036854775807", "268435457", "100"}) {
    sql(std::string("UPDATE images SET raw_bytes = ") + size);
    auto store = open();
    EXPECT_FALSE(store->find_binary(result.binaries[0].key)) << size;
    EXPECT_EQ(store->warnings().size(), 1u);
  }
}

TEST_F(DamageTest, ChangedPlanOrDecisionIsAMiss) {
  const TuningResult result = write_sample();
  sql("UPDATE plan_kernels SET threads = 1024 WHERE ordinal = 1");
  {
    auto store = open();
    EXPECT_FALSE(store->find_plan(result.plans[0].id));
    EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
    EXPECT_EQ(store->check().size(), 1u);
    ASSERT_TRUE(store->put_plan(result.plans[0]));
    EXPECT_TRUE(store->find_plan(result.plans[0].id));
  }
  sql(R"(UPDATE decisions SET config = '{"threads":64}')");
  auto store = open();
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
  EXPECT_TRUE(store->list_decisions().empty());
  EXPECT_EQ(store->check().size(), 1u);
}

TEST_F(DamageTest, CheckNamesLinksThatLeadNowhereAndTextThatIsNotJson) {
  const TuningResult result = write_sample();
  const std::string key = result.binaries[1].key.hex();
  sql("DELETE FROM images WHERE binary = '" + key + "'");
  EXPECT_EQ(open()->check().size(), 0u);  // what it was is still known, so it is made again
  sql("DELETE FROM binaries WHERE key = '" + key + "'");
  EXPECT_EQ(open()->check().size(), 1u);
  sql("UPDATE rejections SET config = 'threads=1'");
  EXPECT_EQ(open()->check().size(), 2u);
  sql("UPDATE timings SET plan = '00000000000000000000000000000001'");
  EXPECT_EQ(open()->check().size(), 3u);
}

TEST_F(DamageTest, C150OnlyTheNewestThreeDamagedStoresStay) {
  write_file(path_ + ".corrupt-20200101T000000Z", "long ago");
  write_file(path_ + ".corrupt-20200101T000000Z-wal", "its log");
  write_file(folder_ + "/other.db.corrupt-20200101T000000Z", "another store's");
  for (int round = 0; round < 5; ++round) {
    write_damaged();
    auto store = open();
    ASSERT_EQ(store->warnings().size(), 1u);
    const std::string warning = store->warnings()[0];
    EXPECT_EQ(warning.find("the newest 3 are kept") != std::string::npos, round >= 2) << warning;
    const size_t from = warning.find(path_ + ".corrupt-");
    const std::string aside = warning.substr(from, warning.find(' ', from) - from);
    EXPECT_TRUE(std::filesystem::exists(aside)) << warning;
  }
  EXPECT_EQ(count_files_with("kiln.db.corrupt-"), 3u);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".corrupt-20200101T000000Z"));
  EXPECT_EQ(count_files_with("other.db.corrupt-"), 1u);
}

// Any flipped byte: no crash, no exception, and what is returned is what was written.
TEST_F(DamageTest, FlippedBytesNeverChangeWhatIsLaunched) {
  const TuningResult result = write_sample();
  const std::string bytes = read_file(path_);
  std::mt19937 random(20240601);
  int answered = 0;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    std::string damaged = bytes;
    const int flips = 1 << (round % 5);
    for (int i = 0; i < flips; ++i) {
      // Half of them where everything else depends on it: the header and the schema.
      const size_t range = random() % 2 == 0 ? damaged.size() : 8192;
      damaged[random() % range] ^= static_cast<char>(1 << random() % 8);
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::filesystem::remove(entry.path());
    }
    write_file(path_, damaged);
    auto store = open();
    if (const auto row = store->find_decision(sample_problem(), kA100)) {
      ++answered;
      EXPECT_EQ(row->decision.config, result.decision.config);
      EXPECT_EQ(row->decision.plan, result.decision.plan);
      EXPECT_EQ(row->decision.kind, result.decision.kind);
    }
    if (const auto plan = store->find_plan(result.plans[0].id))
      expect_equal(*plan, result.plans[0]);
    for (const jit::Binary& binary : result.binaries) {
      if (const auto found = store->find_binary(binary.key)) {
        EXPECT_EQ(found->image, binary.image);
        EXPECT_EQ(found->entry, binary.entry);
        EXPECT_EQ(found->arch, binary.arch);
      }
    }
    store->list_decisions();
    store->list_binaries();
    store->problems();
    store->verifications(sample_problem());
    store->timings(sample_problem(), kA100);
    store->rejections(sample_problem(), kA100);
    store->info();
    store->check();
    store->put(sample_result("b", 32));
  }
  EXPECT_GT(answered, 0);
  EXPECT_LT(answered, 60);
}

TEST_F(DamageTest, FileReplacedUnderAnOpenStoreGetsTheNextWrite) {
  auto store = open();
  ASSERT_TRUE(store->put(sample_result("a")));
  for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path_ + suffix);
  ASSERT_TRUE(store->put(sample_result("b", 32)));
  store.reset();
  store = open();
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
  EXPECT_TRUE(store->find_decision(sample_problem(32), kA100));
}

TEST_F(DamageTest, FullDiskIsOneWarningAndTheRestStays) {
  ASSERT_TRUE(open()->put(sample_result("a")));
  const pid_t child = start_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const auto limit = static_cast<rlim_t>(std::filesystem::file_size(path_)) + 8192;
    const rlimit file_size{limit, limit};
    ::setrlimit(RLIMIT_FSIZE, &file_size);
    auto store = open();
    int written = 0;
    for (int rows = 100; rows < 300; ++rows) {
      written += store->put(sample_result(std::to_string(rows), rows)) ? 1 : 0;
    }
    const bool good = written < 200 && store->warnings().size() == 1 &&
                      store->find_decision(sample_problem(), kA100).has_value();
    return good ? 0 : 1;
  });
  EXPECT_EQ(wait_for(child), 0);
  auto store = open();
  EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
  EXPECT_TRUE(store->check().empty());
  EXPECT_TRUE(store->warnings().empty());
}

// Nothing can be written from here on in this process; root may write anywhere, so permissions do
// not say so.
void fill_the_disk() {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit file_size{0, 0};
  ::setrlimit(RLIMIT_FSIZE, &file_size);
}

bool is_one_warning_that_says(Store& store, const std::string& part) {
  return store.warnings().size() == 1 && store.warnings()[0].find(part) != std::string::npos &&
         store.warnings()[0].find("KILN_DB") != std::string::npos &&
         store.info().path == ":memory:";
}

TEST_F(DamageTest, StoreThatCannotBeMadeIsKnownWhenItIsOpened) {
  EXPECT_EQ(wait_for(start_child([&] {
              fill_the_disk();
              auto store = open();
              return is_one_warning_that_says(*store, "cannot be created") &&
                             is_one_warning_that_says(*store, "; check the disk")
                         ? 0
                         : 1;
            })),
            0);
}

TEST(WhatHelps, FollowsTheCode) {
  EXPECT_EQ(what_helps(SqliteError(SQLITE_FULL, "")), "make room on the disk");
  EXPECT_EQ(what_helps(SqliteError(SQLITE_IOERR_WRITE, "")), "check the disk and its quota");
  EXPECT_EQ(what_helps(SqliteError(SQLITE_READONLY, "")), "make it and its folder writable");
  EXPECT_EQ(what_helps(SqliteError(SQLITE_CANTOPEN, "")), "make it and its folder writable");
}

// With the log and its index there, a transaction begins without a write.
TEST_F(DamageTest, StoreInUseThatCannotBeWrittenIsKnownWhenItIsOpened) {
  int to_child[2];
  int to_parent[2];
  ASSERT_EQ(::pipe(to_child), 0);
  ASSERT_EQ(::pipe(to_parent), 0);
  const pid_t user = start_child([&] {
    ::close(to_child[1]);
    auto store = open();
    char byte = 0;
    if (!store->put(sample_result("a")) || ::write(to_parent[1], "x", 1) != 1) return 1;
    return ::read(to_child[0], &byte, 1) == 0 ? 0 : 2;
  });
  char byte = 0;
  ASSERT_EQ(::read(to_parent[0], &byte, 1), 1);
  EXPECT_EQ(wait_for(start_child([&] {
              fill_the_disk();
              auto store = open();
              return is_one_warning_that_says(*store, "cannot be written") &&
                             store->find_decision(sample_problem(), kA100)
                         ? 0
                         : 1;
            })),
            0);
  for (const int end : {to_child[1], to_child[0], to_parent[0], to_parent[1]}) ::close(end);
  EXPECT_EQ(wait_for(user), 0);
}

TEST_F(DamageTest, ReplacedFileThatCannotBeWrittenIsToldWithItsOwnReason) {
  write_sample();
  std::filesystem::copy_file(path_, folder_ + "/other.db");
  EXPECT_EQ(wait_for(start_child([&] {
              auto store = open();
              std::filesystem::rename(folder_ + "/other.db", path_);
              for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(path_ + suffix);
              fill_the_disk();
              const bool kept = store->put(sample_result("b", 32));
              return kept && is_one_warning_that_says(*store, "; check the disk") ? 0 : 1;
            })),
            0);
}

TEST_F(DamageTest, StoreThatCannotBeWrittenIsKnownWhenItIsOpenedAndIsStillRead) {
  write_sample();
  EXPECT_EQ(wait_for(start_child([&] {
              fill_the_disk();
              auto store = open();
              return is_one_warning_that_says(*store, "cannot be written") &&
                             is_one_warning_that_says(*store, "; check the disk") &&
                             store->find_decision(sample_problem(), kA100)
                         ? 0
                         : 1;
            })),
            0);
  EXPECT_TRUE(open()->find_decision(sample_problem(), kA100));
}

TEST_F(DamageTest, LockHeldByAnotherProcessForEverIsAWarningNotAWait) {
  const std::string bytes = write_damaged();
  const int lock = ::open((path_ + ".lock").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  auto store = open();
  EXPECT_EQ(store->warnings().size(), 1u);
  EXPECT_EQ(store->info().path, ":memory:");
  EXPECT_TRUE(store->put(sample_result("a")));
  EXPECT_EQ(read_file(path_), bytes);
  ::close(lock);
}

TEST(Blob, IsReadBack) {
  for (const std::string& image : {std::string(), std::string("a"), std::string(100000, 'x')}) {
    const PackedImage packed = pack_image(image);
    EXPECT_EQ(unpack_image(1, packed.raw_bytes, packed.checksum, packed.data), image);
  }
}

TEST(Blob, AnyChangeIsRefused) {
  const std::string image = sample_binary("x").image;
  const PackedImage packed = pack_image(image);
  for (size_t i = 0; i < packed.data.size(); ++i) {
    std::string damaged = packed.data;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    const auto unpacked = unpack_image(1, packed.raw_bytes, packed.checksum, damaged);
    EXPECT_TRUE(!unpacked || *unpacked == image) << i;
  }
  EXPECT_FALSE(unpack_image(2, packed.raw_bytes, packed.checksum, packed.data));
  EXPECT_FALSE(unpack_image(1, packed.raw_bytes + 1, packed.checksum, packed.data));
  EXPECT_FALSE(unpack_image(1, packed.raw_bytes, hash_text("other"), packed.data));
  EXPECT_FALSE(unpack_image(1, packed.raw_bytes, packed.checksum,
                            std::string_view(packed.data).substr(0, packed.data.size() - 1)));
  EXPECT_FALSE(unpack_image(1, 0, packed.checksum, ""));
}

}  // namespace
}  // namespace kiln::cache
