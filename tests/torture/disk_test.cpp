// A disk that is full, fails or is of the wrong kind, at each of the calls that a store makes.
#include "tests/cache/fixture.h"

#include "jit/base/error.h"
#include "tests/torture/disk_shim.h"

namespace kiln::cache {
namespace {

using testing::disk_calls;
using testing::set_disk_faults;

class DiskTest : public StoreTest {
 protected:
  ~DiskTest() override { set_disk_faults("", ""); }

  void fail(const std::string& faults) { set_disk_faults(folder_, faults); }
  void mend() { set_disk_faults("", ""); }

  struct Outcome {
    bool is_put = false;
    bool in_memory = false;
    size_t warnings = 0;
  };
  // Opens the store, writes a result, packs it and closes.
  Outcome work(const TuningResult& result, const std::string& pack) {
    Outcome outcome;
    auto store = open();
    outcome.is_put = store->put(result);
    outcome.in_memory = store->info().path == ":memory:";
    outcome.warnings = store->warnings().size();
    try {
      store->make_pack(pack);
    } catch (const Error&) {
      // An explicit operation may fail.
    }
    return outcome;
  }

  // Lets every call that writes fail, one after the other, over a store that holds a result.
  void fail_at_every_write(const std::string& fault, const std::string& rest) {
    ASSERT_TRUE(open()->put(sample_result("kept")));
    const std::string before = read_file(path_);
    const TuningResult result = sample_result("new", 64);
    const std::string pack = folder_ + "/new.pack";
    const auto start_over = [&] {
      for (const char* suffix : {"-wal", "-shm", "-journal"}) {
        std::filesystem::remove(path_ + suffix);
      }
      std::filesystem::remove(pack);
      write_file(path_, before);
    };
    fail("");
    ASSERT_TRUE(work(result, pack).is_put);
    const int64_t calls = disk_calls().writes;
    ASSERT_GT(calls, 10);
    int kept = 0;
    for (int64_t call = 1; call <= calls; ++call) {
      start_over();
      const std::string here = fault + std::to_string(call) + rest;
      fail(here);
      const Outcome outcome = work(result, pack);
      mend();
      EXPECT_LE(outcome.warnings, 1u) << here;
      auto store = open();
      EXPECT_TRUE(store->warnings().empty()) << here << ": " << store->warnings().at(0);
      EXPECT_TRUE(store->find_decision(sample_problem(16), kA100)) << here;
      EXPECT_TRUE(store->find_binary(sample_result("kept").binaries[0].key)) << here;
      if (outcome.is_put && !outcome.in_memory) {
        ++kept;
        EXPECT_TRUE(store->find_decision(sample_problem(64), kA100)) << here;
        EXPECT_TRUE(store->find_binary(result.binaries[1].key)) << here;
      }
      EXPECT_TRUE(store->check().empty()) << here << ": " << store->check().at(0);
      EXPECT_EQ(count_files_with("draft"), 0u) << here << ": " << files_in_folder().front();
      EXPECT_EQ(count_files_with(".corrupt"), 0u) << here;
    }
    RecordProperty("calls", static_cast<int>(calls));
    RecordProperty("kept", kept);
    EXPECT_GT(kept, 0);
  }
};

TEST_F(DiskTest, EnospcAtEveryWrite) { fail_at_every_write("enospc:", ""); }
TEST_F(DiskTest, EioAtEveryWrite) { fail_at_every_write("eio:", ""); }
TEST_F(DiskTest, EioOnce) { fail_at_every_write("eio:", ":once"); }

TEST_F(DiskTest, C50SharedMemoryThatCannotBeMappedMeansNoLog) {
  fail("noshm");
  {
    auto store = open();
    EXPECT_EQ(store->info().path, path_);
    EXPECT_FALSE(store->info().wal);
    EXPECT_EQ(store->warnings().size(), 1u);
    EXPECT_TRUE(store->put(sample_result("a")));
    EXPECT_TRUE(store->check().empty());
  }
  mend();
  auto store = open();
  EXPECT_TRUE(store->info().wal);
  EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
}

TEST_F(DiskTest, C50NetworkFileSystemMeansNoLogAndOneWarning) {
  for (const char* magic : {"statfs:0x6969", "statfs:0x65735546"}) {
    fail(magic);
    auto store = open();
    EXPECT_FALSE(store->info().wal);
    ASSERT_EQ(store->warnings().size(), 1u);
    EXPECT_NE(store->warnings()[0].find("network file system"), std::string::npos);
    EXPECT_TRUE(store->put(sample_result("a")));
    EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
    EXPECT_EQ(count_files_with("-wal"), 0u);
  }
}

// What other programs get of the shim.
TEST_F(DiskTest, PreloadedShimFailsAnotherProgram) {
  const auto write_with = [&](const std::string& faults) {
    const std::string command = "LD_PRELOAD=" KILN_DISK_SHIM " KILN_DISK_ROOT=" + folder_ +
                                " KILN_DISK=" + faults + " sh -c 'echo x > " + folder_ +
                                "/file' 2> /dev/null";
    return std::system(command.c_str());
  };
  EXPECT_EQ(write_with("enospc:2"), 0);
  EXPECT_NE(write_with("enospc:1"), 0);
  EXPECT_NE(write_with("kill:1"), 0);
}

}  // namespace
}  // namespace kiln::cache
