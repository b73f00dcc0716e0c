// Whole programs on a disk that is full, fails, or has no inode left: a server serves all the same,
// and an export is a whole file or none.
#include "tests/torture/torture_testing.h"

namespace kiln::cli {
namespace {

namespace fs = std::filesystem;

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class DiskPrograms : public TortureTest {
 protected:
  void SetUp() override {
    TortureTest::SetUp();
    fs::create_directory(path("store"));
    environment["KILN_DB"] = path("store/kiln.db");
    environment["KILN_DISK_ROOT"] = path("store");
    environment["KILN_DISK_COUNT"] = path("calls");
  }

  // A server with this disk; it computes what it should, with at most one warning.
  Result serve(const std::string& faults) {
    environment["KILN_DISK"] = faults;
    const Result result = run({"serve", "sim:rtx-3090", "3"});
    EXPECT_EQ(result.code, 0) << faults << "\n" << result;
    EXPECT_LE(count_of(result.err, "warning: "), 1u) << faults << "\n" << result;
    return result;
  }
  void forget_store() {
    fs::remove_all(path("store"));
    fs::create_directory(path("store"));
  }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(path("store"))) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }
};

TEST_F(DiskPrograms, C43KernelsServeThoughTheyCannotBeKept) {
  EXPECT_TRUE(contains(serve("").out, "served, 1 compiled"));
  const int64_t calls = calls_of_run();
  ASSERT_GT(calls, 5);
  int warned = 0;
  int rounds = 0;
  // The first calls make the store, the last ones publish; a few of those between.
  for (int64_t call = 1; call <= calls; call += call < 6 || call > calls - 6 ? 1 : 5) {
    for (const char* fault : {"enospc:", "eio:"}) {
      forget_store();
      const Result result = serve(fault + std::to_string(call));
      EXPECT_TRUE(contains(result.out, "served, 1 compiled")) << result;
      warned += contains(result.err, "warning: ") ? 1 : 0;
      ++rounds;
    }
  }
  EXPECT_GT(warned, rounds / 2);
  std::printf("%d servers on a disk that fails from one of %lld calls on; %d of them warned\n",
              rounds, static_cast<long long>(calls), warned);
  environment["KILN_DISK"] = "";
  forget_store();
  EXPECT_TRUE(contains(serve("").out, "1 compiled"));
  EXPECT_TRUE(contains(serve("").out, "0 compiled, 1 found"));
}

TEST_F(DiskPrograms, C61NoInodeLeftIsAWarning) {
  const Result result = serve("edquot-create:1");
  EXPECT_TRUE(contains(result.out, "served, 1 compiled")) << result;
  EXPECT_EQ(count_of(result.err, "warning: "), 1u) << result;
  EXPECT_EQ(files(), std::set<std::string>{});
  // A store that is there already needs none but for its log.
  serve("");
  const Result warm = serve("edquot-create:1");
  EXPECT_TRUE(contains(warm.out, "0 compiled, 1 found")) << warm;
}

// What a shared file system has to bear from each process that starts.
TEST_F(DiskPrograms, C56WarmStartLeavesNoFileAndMakesFewCalls) {
  serve("");
  const std::set<std::string> before = files();
  const Result warm = serve("");
  EXPECT_TRUE(contains(warm.out, "0 compiled, 1 found")) << warm;
  EXPECT_EQ(files(), before);
  const int64_t calls = calls_of_run();
  std::printf("%lld disk calls of a warm start\n", static_cast<long long>(calls));
  EXPECT_LE(calls, 30);
}

TEST_F(DiskPrograms, ExportIsAWholeFileOrNone) {
  environment["KILN_DISK"] = "";
  environment["KILN_DB"] = db();
  add_samples(10);
  const std::string out = path("store/all.json");
  ASSERT_EQ(run({"export", "--binaries", "--out", out}).code, 0);
  const std::string whole = read_file(out);
  const int64_t calls = calls_of_run();
  ASSERT_GE(calls, 3);
  int failed = 0;
  for (const std::string fault : {"enospc:", "eio:", "edquot-create:"}) {
    for (int64_t call = 1; call <= calls; ++call) {
      forget_store();
      environment["KILN_DISK"] = fault + std::to_string(call);
      const Result result = run({"export", "--binaries", "--out", out});
      SCOPED_TRACE(environment["KILN_DISK"]);
      if (result.code == 0) {
        EXPECT_EQ(read_file(out), whole);
        continue;
      }
      ++failed;
      EXPECT_EQ(result.code, code(ExitCode::failed)) << result;
      EXPECT_TRUE(contains(result.err, "cannot be written")) << result;
      EXPECT_EQ(files(), std::set<std::string>{}) << result;
    }
  }
  EXPECT_GT(failed, 5);
}

}  // namespace
}  // namespace kiln::cli
