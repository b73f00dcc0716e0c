// Two versions of Kiln on one file at once: an older one that writes while and after a newer one
// migrates the file, and a newer one that migrates it under an open store.
#include <chrono>
#include <thread>

#include "cache/sqlite.h"
#include "tests/cache/fixture.h"

namespace kiln::cache {
namespace {

// The other version is another process: SQLite's locks are between processes.
class TwoVersionsTest : public StoreTest {
 protected:
  // A problem and an image as version 1 writes them.
  static std::string version_1_rows(int number) {
    const std::string n = std::to_string(number);
    const std::string key = hash_text("binary " + n).hex();
    return "INSERT INTO problems (op, op_version, shape, bucket) VALUES ('older', " + n +
           ", '{}', '{}');"
           "INSERT INTO binaries VALUES ('" +
           key + "', '" + key +
           "', 'sm_80', '', 'entry', 0, 1, 0, 0, 0, 0, '', '', 0, '', 0);"
           "INSERT INTO images (binary, codec, raw_bytes, checksum, used_at, data) VALUES ('" +
           key + "', 1, 0, '', 0, x'');";
  }

  void write_version_1() {
    sql(read_file(std::string(KILN_STORES) + "/v1.sql"));
    sql("PRAGMA journal_mode = WAL");
  }

  void stamp(int version) {
    const pid_t child = start_child([&] {
      Database database(path_, SQLITE_OPEN_READWRITE);
      database.execute("PRAGMA user_version = " + std::to_string(version));
      return 0;
    });
    ASSERT_EQ(wait_for(child), 0);
  }
};

TEST_F(TwoVersionsTest, WhatAnOlderOneWritesBeforeDuringAndAfterTheMigrationStays) {
  write_version_1();
  int ready[2];
  int migrated[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(migrated), 0);
  const pid_t older = start_child([&] {
    ::close(migrated[1]);
    Database database(path_, SQLITE_OPEN_READWRITE);
    database.execute(version_1_rows(101));
    {
      Transaction during(database);  // the migration waits for it
      database.execute(version_1_rows(102));
      ::close(ready[1]);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      during.commit();
    }
    char byte = 0;
    if (::read(migrated[0], &byte, 1) < 0) return 1;  // returns when the pipe is closed
    database.execute(version_1_rows(103));
    return 0;
  });
  ::close(ready[1]);
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 0);
  {
    auto store = open();
    EXPECT_TRUE(store->warnings().empty()) << store->warnings().at(0);
    EXPECT_TRUE(store->put(sample_result("a")));
    ::close(migrated[1]);
    EXPECT_EQ(wait_for(older), 0);
    EXPECT_TRUE(store->put(sample_result("b", 64)));
    EXPECT_EQ(store->info().binaries, 1 + 3 + 4);
  }
  EXPECT_EQ(sql("PRAGMA user_version"), std::vector{std::to_string(kSchemaVersion)});
  EXPECT_EQ(sql("SELECT op_version FROM problems WHERE op = 'older' ORDER BY 1"),
            (std::vector<std::string>{"101", "102", "103"}));
  EXPECT_EQ(sql("PRAGMA integrity_check"), std::vector<std::string>{"ok"});
  ::close(ready[0]);
  ::close(migrated[0]);
}

TEST_F(TwoVersionsTest, WriteUnderANewerVersionGoesToMemoryWithOneWarning) {
  auto store = open();
  ASSERT_TRUE(store->put(sample_result("a")));
  stamp(kSchemaVersion + 1);
  EXPECT_TRUE(store->put(sample_result("b", 64)));
  EXPECT_EQ(store->info().path, ":memory:");
  EXPECT_TRUE(store->find_decision(sample_problem(64), kA100));
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(
      store->warnings()[0].find("brought to schema version " + std::to_string(kSchemaVersion + 1)),
      std::string::npos)
      << store->warnings()[0];
  EXPECT_NE(store->trouble(), "");
  store.reset();
  EXPECT_EQ(sql("SELECT count(*) FROM decisions"), std::vector<std::string>{"1"});
}

TEST_F(TwoVersionsTest, ReadUnderANewerVersionIsAMissWithOneWarning) {
  pack_ = make_pack_of("base.pack", {sample_result("packed", 64)});
  auto store = open();
  ASSERT_TRUE(store->put(sample_result("a")));
  stamp(kSchemaVersion + 1);
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
  EXPECT_TRUE(store->find_decision(sample_problem(64), kA100));
  EXPECT_TRUE(store->put(sample_result("b")));
  EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
  EXPECT_TRUE(store->check().empty());
  EXPECT_EQ(store->warnings().size(), 1u);
}

TEST_F(TwoVersionsTest, ReadOnlyStoreUnderANewerVersionIsAMissWithOneWarning) {
  ASSERT_TRUE(open()->put(sample_result("a")));
  auto store = open(StoreOptions::Mode::read_only);
  ASSERT_TRUE(store->find_decision(sample_problem(), kA100));
  stamp(kSchemaVersion + 1);
  EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
  EXPECT_FALSE(store->find_plan(sample_result("a").plans[0].id));
  EXPECT_EQ(store->warnings().size(), 1u);
}

}  // namespace
}  // namespace kiln::cache
