// A disk that is full, fails or is of the wrong kind, at each of the calls that a store makes.
#include "cache/transfer.h"
#include "jit/base/error.h"
#include "tests/cache/fixture.h"
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
    bool is_done = false;  // as the store says
    bool in_memory = false;
    size_t warnings = 0;
  };
  // What is tried on a disk that fails, on a store that holds the result "kept", and what must then
  // be so: `check` is told whether the store had said that it is done and kept in its file.
  struct Verb {
    std::function<bool(Store&)> work;
    std::function<void(Store&, bool is_kept)> check;
    std::function<void()> prepare = [] {};  // adds to the store
    bool is_long =
        false;  // has so many calls that every fifth has to do unless KILN_TEST_FULL is set
  };

  Outcome attempt(const Verb& verb) {
    Outcome outcome;
    auto store = open();
    outcome.is_done = verb.work(*store);
    outcome.in_memory = store->info().path == ":memory:";
    outcome.warnings = store->warnings().size();
    return outcome;
  }

  // Lets every call that writes fail, one after the other.
  void fail_at_every_write(const Verb& verb, const std::string& fault, const std::string& rest) {
    ASSERT_TRUE(open()->put(sample_result("kept")));
    verb.prepare();
    const std::string before = read_file(path_);
    const std::vector<std::string> files = files_in_folder();
    const auto start_over = [&] {
      for (const std::string& file : files_in_folder()) {
        const bool is_new = std::find(files.begin(), files.end(), file) == files.end();
        if (is_new) std::filesystem::remove(folder_ + "/" + file);
      }
      write_file(path_, before);
    };
    fail("");
    ASSERT_TRUE(attempt(verb).is_done);
    const int64_t calls = disk_calls().writes;
    ASSERT_GT(calls, 4);
    int kept = 0;
    const int64_t step = verb.is_long && std::getenv("KILN_TEST_FULL") == nullptr ? 5 : 1;
    for (int64_t call = 1; call <= calls; call += step) {
      start_over();
      const std::string here = fault + std::to_string(call) + rest;
      SCOPED_TRACE(here);
      fail(here);
      const Outcome outcome = attempt(verb);
      mend();
      EXPECT_LE(outcome.warnings, 1u);
      auto store = open();
      EXPECT_EQ(store->warnings(), std::vector<std::string>{});
      EXPECT_TRUE(store->find_decision(sample_problem(16), kA100));
      const bool is_kept = outcome.is_done && !outcome.in_memory;
      kept += is_kept ? 1 : 0;
      verb.check(*store, is_kept);
      EXPECT_EQ(store->check(), std::vector<std::string>{});
      EXPECT_EQ(count_files_with("draft"), 0u) << files_in_folder().front();
      EXPECT_EQ(count_files_with(".corrupt"), 0u);
      // What failed works on the disk that was mended.
      EXPECT_TRUE(verb.work(*store));
      verb.check(*store, true);
    }
    RecordProperty("calls", static_cast<int>(calls));
    RecordProperty("kept", kept);
    EXPECT_GT(kept, 0);
    std::printf("%lld calls that write; with one failing the work was kept %d times\n",
                static_cast<long long>(calls), kept);
  }

  static void expect_all_or_nothing(Store& store, const TuningResult& result, bool is_kept) {
    EXPECT_TRUE(store.find_binary(sample_result("kept").binaries[0].key));
    const bool is_there = store.find_decision(result.decision.problem, kA100).has_value();
    EXPECT_TRUE(is_there || !is_kept);
    EXPECT_EQ(store.find_plan(result.plans[0].id).has_value(), is_there);
    EXPECT_EQ(store.find_binary(result.binaries[1].key).has_value(), is_there);
  }

  // A result and a pack of all of it.
  Verb put_and_pack() {
    const TuningResult result = sample_result("new", 64);
    const std::string pack = folder_ + "/new.pack";
    return {.work =
                [=](Store& store) {
                  const bool is_put = store.put(result);
                  try {
                    if (!std::filesystem::exists(pack)) store.make_pack(pack);
                  } catch (const Error&) {
                    // An explicit operation may fail.
                  }
                  return is_put;
                },
            .check = [=](Store& store,
                         bool is_kept) { expect_all_or_nothing(store, result, is_kept); }};
  }

  // A pack that is there is whole.
  Verb pack() {
    const std::string pack = folder_ + "/new.pack";
    return {.work =
                [=](Store& store) {
                  try {
                    if (!std::filesystem::exists(pack)) store.make_pack(pack);
                    return true;
                  } catch (const Error&) {
                    return false;
                  }
                },
            .check =
                [=](Store&, bool is_kept) {
                  if (!std::filesystem::exists(pack)) {
                    EXPECT_FALSE(is_kept);
                    return;
                  }
                  auto packed = Store::open({.path = ":memory:", .pack = pack});
                  EXPECT_EQ(packed->warnings(), std::vector<std::string>{});
                  EXPECT_EQ(packed->check(), std::vector<std::string>{});
                  EXPECT_TRUE(packed->find_decision(sample_problem(16), kA100));
                }};
  }

  Verb import() {
    const TuningResult result = sample_result("new", 64);
    const StoreContents contents{.decisions = {result.decision},
                                 .plans = result.plans,
                                 .binaries = result.binaries,
                                 .verifications = result.verifications,
                                 .timings = result.timings,
                                 .rejections = result.rejections};
    return {
        .work = [=](Store& store) { return store.absorb(contents, {.trust = Trust::any}).written; },
        .check = [=](Store& store,
                     bool is_kept) { expect_all_or_nothing(store, result, is_kept); }};
  }

  // Takes all images away, which are not worth keeping; what is known of them is.
  Verb gc() {
    constexpr int kSamples = 70;  // more than go in one step
    return {.work =
                [](Store& store) {
                  store.collect(1, GcMode::collect);
                  return store.list_binaries().empty();
                },
            .check =
                [](Store& store, bool is_kept) {
                  EXPECT_EQ(store.list_decisions().size(), size_t{kSamples + 1});
                  const size_t images = store.list_binaries().size();
                  EXPECT_TRUE(images == 0 || !is_kept) << images;
                  EXPECT_TRUE(store.describe_binary(sample_result("kept").binaries[0].key));
                },
            .prepare =
                [this] {
                  auto store = open();
                  for (int rows = 100; rows < 100 + kSamples; ++rows) {
                    ASSERT_TRUE(store->put(sample_result(std::to_string(rows), rows)));
                  }
                },
            .is_long = true};
  }
};

TEST_F(DiskTest, EnospcAtEveryWrite) { fail_at_every_write(put_and_pack(), "enospc:", ""); }
TEST_F(DiskTest, EioAtEveryWrite) { fail_at_every_write(put_and_pack(), "eio:", ""); }
TEST_F(DiskTest, EioOnce) { fail_at_every_write(put_and_pack(), "eio:", ":once"); }
TEST_F(DiskTest, EnospcAtEveryWriteOfAPack) { fail_at_every_write(pack(), "enospc:", ""); }
TEST_F(DiskTest, EioAtEveryWriteOfAPack) { fail_at_every_write(pack(), "eio:", ""); }
TEST_F(DiskTest, EioOnceInAPack) { fail_at_every_write(pack(), "eio:", ":once"); }
TEST_F(DiskTest, EnospcAtEveryWriteOfAnImport) { fail_at_every_write(import(), "enospc:", ""); }
TEST_F(DiskTest, EioAtEveryWriteOfAnImport) { fail_at_every_write(import(), "eio:", ""); }
TEST_F(DiskTest, EioOnceInAnImport) { fail_at_every_write(import(), "eio:", ":once"); }
TEST_F(DiskTest, EnospcAtEveryWriteOfAGc) { fail_at_every_write(gc(), "enospc:", ""); }
TEST_F(DiskTest, EioAtEveryWriteOfAGc) { fail_at_every_write(gc(), "eio:", ""); }
TEST_F(DiskTest, EioOnceInAGc) { fail_at_every_write(gc(), "eio:", ":once"); }

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
