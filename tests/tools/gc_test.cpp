// `kiln gc`: a store within its budget, and a tidy folder around it.
#include <chrono>

#include "tests/tools/cli.h"

namespace kiln::cli {
namespace {

namespace fs = std::filesystem;

class GcCommand : public CliTest {
 protected:
  GcCommand() { store_seed(db(), make_seed("a100-sxm4-80gb")); }

  size_t binaries() { return cache::Store::open({.path = db()})->list_binaries().size(); }
};

TEST_F(GcCommand, DropsKernelsToTheBudgetAndKeepsDecisions) {
  ASSERT_GT(binaries(), 0U);
  const Result result = run({"gc", "--budget", "1KB", "--json"});
  EXPECT_EQ(result.code, code(ExitCode::store)) << result;  // the records alone are larger
  EXPECT_TRUE(contains(result.err, "without any image")) << result;
  const Json report = result.json();
  EXPECT_EQ(report["budget_bytes"], 1000) << result;
  EXPECT_GT(report["images"], 0) << result;
  EXPECT_LE(report["after_bytes"], report["before_bytes"]) << result;
  EXPECT_EQ(binaries(), 0U);
  EXPECT_EQ(run({"ls", "--json"}).json().size(), 1U);
  EXPECT_EQ(run({"gc"}).code, 0);
}

TEST_F(GcCommand, DryRunChangesNothing) {
  const size_t before = binaries();
  write_file("kiln.db.corrupt-20260101T000000Z", "damaged");
  const Result result = run({"gc", "--budget", "1KB", "--dry-run"});
  EXPECT_TRUE(contains(result.out, "would be dropped")) << result;
  EXPECT_TRUE(contains(result.out, "kiln.db.corrupt-20260101T000000Z")) << result;
  EXPECT_TRUE(fs::exists(path("kiln.db.corrupt-20260101T000000Z")));
  EXPECT_EQ(binaries(), before);
}

TEST_F(GcCommand, RemovesDamagedStoresAndOldDraftsBesideIt) {
  write_file("kiln.db.corrupt-20260101T000000Z", "damaged");
  write_file("kiln.db.draft-oldold", "draft");
  write_file("kiln.db.draft-newnew", "draft");
  write_file("other.db.corrupt-20260101T000000Z", "another store's");
  fs::last_write_time(path("kiln.db.draft-oldold"),
                      fs::file_time_type::clock::now() - std::chrono::hours(2));
  const Result result = run({"gc", "--json"});
  EXPECT_EQ(result.code, 0) << result;
  EXPECT_EQ(result.json()["files"].size(), 2U) << result;
  EXPECT_FALSE(fs::exists(path("kiln.db.corrupt-20260101T000000Z")));
  EXPECT_FALSE(fs::exists(path("kiln.db.draft-oldold")));
  EXPECT_TRUE(fs::exists(path("kiln.db.draft-newnew")));
  EXPECT_TRUE(fs::exists(path("other.db.corrupt-20260101T000000Z")));
}

TEST_F(GcCommand, SizeThatIsNoneIsAMistake) {
  for (const char* size : {"plenty", "0", "-5MB", "12QB"}) {
    const Result result = run({"gc", std::string("--budget=") + size});
    EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
    EXPECT_TRUE(contains(result.err, "for example 500MB")) << result;
  }
}

TEST_F(GcCommand, WithoutAStoreNoneIsMade) {
  const Result result = run({"gc", "--db", path("absent.db")});
  EXPECT_EQ(result.code, code(ExitCode::failed)) << result;
  EXPECT_TRUE(contains(result.err, "there is no store at")) << result;
  EXPECT_FALSE(fs::exists(path("absent.db")));
}

}  // namespace
}  // namespace kiln::cli
