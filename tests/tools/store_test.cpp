// What a store that cannot serve means to the commands: who only reads says what is wrong and what
// to type, who writes ends before any work.
#include "tests/tools/cli.h"

namespace kiln::cli {
namespace {

class StoreFile : public CliTest {
 protected:
  std::string bytes() const { return read_file(db()); }

  int files_put_aside() const {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path(""))) {
      count += entry.path().string().find(".corrupt-") != std::string::npos ? 1 : 0;
    }
    return count;
  }
};

TEST_F(StoreFile, DoctorNamesTheDamageAndTheNextStepAndLeavesTheFile) {
  store_seed(db(), make_seed("a100-sxm4-80gb"));
  std::string damaged = bytes();
  for (size_t at = damaged.size() / 2; at < damaged.size(); ++at) damaged[at] = '\xa5';
  write_file("kiln.db", damaged);
  const Result result = run({"doctor"});
  EXPECT_EQ(result.code, code(ExitCode::store)) << result;
  EXPECT_NE(result.out.find(db() + " is damaged"), std::string::npos) << result;
  EXPECT_NE(result.out.find("`kiln tune` and `kiln build` put it aside"), std::string::npos)
      << result;
  for (const char* word : {"SELECT", "PRAGMA", "JOIN"}) {
    EXPECT_EQ(result.out.find(word), std::string::npos) << result;
  }
  EXPECT_EQ(bytes(), damaged);
  EXPECT_EQ(files_put_aside(), 0);
}

TEST_F(StoreFile, WhatNeverWasAStoreIsLeftAloneByWritersToo) {
  write_file("kiln.db", "my notes\n");
  for (const char* command : {"build", "ls", "doctor"}) {
    const Result result = run({command});
    EXPECT_NE((result.out + result.err).find("not an SQLite file"), std::string::npos) << result;
    EXPECT_EQ(result.code, code(ExitCode::store)) << result;
    EXPECT_EQ(bytes(), "my notes\n");
  }
  EXPECT_EQ(files_put_aside(), 0);
}

TEST_F(StoreFile, WhatCannotBeReadIsNotAnEmptyAnswer) {
  write_file("kiln.db", "my notes\n");
  const std::string op = templates::ops().front()->name;
  for (const std::vector<std::string>& command : {std::vector<std::string>{"ls", "--json"},
                                                  {"show", op, "--json"},
                                                  {"explain", op, "--gpu", "rtx-3090", "--json"}}) {
    const Result result = run(command);
    EXPECT_EQ(result.code, code(ExitCode::store)) << result;
    EXPECT_NE(result.err.find("not an SQLite file"), std::string::npos) << result;
    EXPECT_NO_THROW(result.json());
  }
}

TEST_F(StoreFile, ReaderWithoutAPlaceForTheStoreIsTold) {
  environment.erase("KILN_DB");
  environment.erase("HOME");
  environment.erase("XDG_CACHE_HOME");
  const Result result = run({"ls", "--json"});
  EXPECT_EQ(result.code, 0) << result;
  EXPECT_NE(result.err.find("there is no place for the store"), std::string::npos) << result;
}

TEST_F(StoreFile, DoctorSaysThatALinkInACircleCannotBeMade) {
  std::filesystem::create_symlink(db(), db());
  const Result result = run({"doctor"});
  EXPECT_EQ(result.code, code(ExitCode::store)) << result;
  EXPECT_NE(result.out.find("CANNOT BE WRITTEN"), std::string::npos) << result;
}

}  // namespace
}  // namespace kiln::cli
