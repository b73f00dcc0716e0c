// The same kernels by several versions of NVRTC: the installed one, and those that tools/nvrtc12
// fetches (KILN_TEST_NVRTC, default build/nvrtc). Each runs in a process of its own. Tests that
// need a version that is not there skip themselves. KILN_TEST_FULL takes every shape and every GPU.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cache/store.h"
#include "jit/base/json.h"
#include "jit/nvrtc_library.h"
#include "tests/jit/jit_testing.h"

namespace kiln::jit {
namespace {

namespace fs = std::filesystem;

bool is_full() { return std::getenv("KILN_TEST_FULL") != nullptr; }

const fs::path& fetched_folder() {
  static const fs::path folder = [] {
    const char* named = std::getenv("KILN_TEST_NVRTC");
    return fs::path(named != nullptr && *named != '\0' ? named : KILN_TEST_NVRTC_DEFAULT);
  }();
  return folder;
}

// A toolkit of that version, "12.1" or "12.9".
std::string toolkit_of(const std::string& version) { return (fetched_folder() / version).string(); }

bool is_there(const std::string& version) {
  return fs::exists(fs::path(toolkit_of(version)) / "lib64");
}

using Environment = std::map<std::string, std::string>;

// The newest NVRTC of this machine, as a user without KILN_NVRTC gets it.
const Environment kInstalled;

// That NVRTC and no other.
Environment with(const std::string& version) {
  return {{"KILN_NVRTC", toolkit_of(version) + "/lib64"}};
}

Environment operator+(Environment one, const Environment& other) {
  one.insert(other.begin(), other.end());
  return one;
}

const Environment kFakeDriver = {{"KILN_LIBCUDA", KILN_FAKE_LIBCUDA}};

struct Answer {
  int status = -1;
  std::string text;  // of stdout and stderr
  Json json;         // of the last line
};

std::string quoted(const std::string& word) { return "'" + word + "'"; }

// The environment of the run knows nothing of this one's, but for where to find its libraries.
Answer run(const std::vector<std::string>& words, const Environment& environment) {
  std::string command = "env -i PATH=/usr/bin:/bin";
  for (const char* kept : {"KILN_TEST_FULL", "KILN_JOBS", "LD_LIBRARY_PATH", "HOME"}) {
    const char* value = std::getenv(kept);
    if (value != nullptr) command += " " + quoted(fmt::format("{}={}", kept, value));
  }
  for (const auto& [name, value] : environment) command += " " + quoted(name + "=" + value);
  command += " " + quoted(KILN_NVRTC_PROGRAM);
  for (const std::string& word : words) command += " " + quoted(word);
  Answer answer;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return answer;
  char part[4096];
  while (const size_t got = std::fread(part, 1, sizeof part, pipe)) answer.text.append(part, got);
  const int status = pclose(pipe);
  answer.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  answer.json = Json::parse(answer.text, nullptr, /*allow_exceptions=*/false);
  return answer;
}

#define ASSERT_RAN(answer)                        \
  ASSERT_EQ((answer).status, 0) << (answer).text; \
  ASSERT_TRUE((answer).json.is_object()) << (answer).text

class NvrtcVersions : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!is_there(GetParam())) {
      GTEST_SKIP() << "NVRTC " << GetParam() << " is not in " << fetched_folder()
                   << ": tools/nvrtc12 fetches it";
    }
    if (Compiler::load()->version() == GetParam()) {
      GTEST_SKIP() << "the installed NVRTC is " << GetParam() << " itself";
    }
  }
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }

  const TemporaryFolder folder_;
};

TEST_P(NvrtcVersions, DefaultsCompileUnderTheSameKeysWithoutSpills) {
  // In short each version takes one of the two GPUs.
  std::vector<std::string> words = {"compile"};
  const bool is_oldest = GetParam() == std::string("12.1");
  if (is_full() || !is_oldest) words.push_back("rtx-3090");
  if (is_full() || is_oldest) words.push_back("a100-sxm4-80gb");
  const Answer other = run(words, with(GetParam()));
  ASSERT_RAN(other);
  EXPECT_EQ(other.json["version"], GetParam());
  ASSERT_GE(other.json["kernels"].size(), 6u);
  for (const auto& [what, kernel] : other.json["kernels"].items()) {
    EXPECT_EQ(kernel["spill_bytes"], 0) << what;
    EXPECT_EQ(kernel["stack_bytes"], 0) << what;
    EXPECT_GT(kernel["registers"], 0) << what;
  }
  const Answer installed = run(words, kInstalled);
  ASSERT_RAN(installed);
  EXPECT_NE(installed.json["version"], other.json["version"]);
  std::set<std::string> images;
  for (const auto& [what, kernel] : installed.json["kernels"].items()) {
    EXPECT_EQ(other.json["kernels"][what]["key"], kernel["key"]) << what;
    if (other.json["kernels"][what]["image"] != kernel["image"]) images.insert(what);
  }
  EXPECT_EQ(installed.json["kernels"].size(), other.json["kernels"].size());
  EXPECT_FALSE(images.empty()) << "two compilers made the same code of everything";
}

std::string workload() {
  return is_full() ? "" : R"({"ops": [{"op": "combine_topk_swa"}, {"op": "act_quant",
                        "sizes": {"num_rows": [1, 1]}}]})";
}

std::set<std::string> versions_in(const std::string& store_path) {
  const auto store = cache::Store::open({.path = store_path});
  std::set<std::string> versions;
  for (const cache::BinaryRow& row : store->list_binaries())
    versions.insert(store->describe_binary(row.key)->nvrtc_version);
  return versions;
}

// What one of them has made serves a machine that has only the other, and ranks of both agree.
TEST_P(NvrtcVersions, StoresOfEachServeTheOther) {
  const std::string version = GetParam();
  const auto serve = [&](const Environment& nvrtc, const std::string& store) {
    return run({"serve", "cuda:1", file(store), workload()},
               nvrtc + kFakeDriver + Environment{{"KILN_FAKE_CUDA_DRIVER", "99000"}});
  };
  const Answer made_installed = serve(kInstalled, "installed.db");
  const Answer made_other = serve(with(version), "other.db");
  ASSERT_RAN(made_installed);
  ASSERT_RAN(made_other);
  const uint64_t kernels = made_other.json["compiles"].get<uint64_t>();
  EXPECT_GT(kernels, 1u) << made_other.text;
  EXPECT_EQ(made_installed.json["compiles"], kernels);
  EXPECT_EQ(versions_in(file("other.db")), std::set<std::string>{version});
  EXPECT_EQ(versions_in(file("installed.db")).count(version), 0u);

  for (const Answer& served :
       {serve(with(version), "installed.db"), serve(kInstalled, "other.db")}) {
    ASSERT_RAN(served);
    EXPECT_EQ(served.json["status"], "KILN_OK") << served.text;
    EXPECT_EQ(served.json["compiles"], 0) << served.text;
    EXPECT_EQ(served.json["binary_hits"], kernels) << served.text;
    for (const char* digest : {"exact", "numerics"}) {
      EXPECT_EQ(served.json[digest], made_other.json[digest]) << digest;
      EXPECT_EQ(served.json[digest], made_installed.json[digest]) << digest;
    }
  }
}

// The source fixes every rounding, so no compiler may change a bit of a result.
TEST_P(NvrtcVersions, SimulatedResultsAreTheSameBits) {
  const Answer installed = run({"simulate", file("tools.db")}, kInstalled);
  ASSERT_RAN(installed);
  const Answer other = run({"simulate", file("tools.db")}, with(GetParam()));
  ASSERT_RAN(other);
  EXPECT_EQ(other.json["version"], GetParam());
  EXPECT_NE(installed.json["version"], other.json["version"]);
  // Each ran what it had compiled itself.
  EXPECT_GE(other.json["kernels"], 6);
  EXPECT_EQ(other.json["kernels"], installed.json["kernels"]);
  for (const auto& [op, result] : installed.json["ops"].items()) {
    ASSERT_TRUE(result.is_object()) << op << " has no call that is small enough";
    EXPECT_TRUE(result["passed"]) << op << ": " << result["detail"];
    EXPECT_FALSE(result["outputs"].empty()) << op;
    EXPECT_EQ(other.json["ops"][op], result) << op << " with NVRTC " << GetParam();
  }
}

TEST_P(NvrtcVersions, C123FirstUsedInAThreadThenExit) {
  const Answer ended = run({"exit", "sim:rtx-3090"}, with(GetParam()));
  ASSERT_RAN(ended);
  EXPECT_EQ(ended.json["status"], "KILN_OK") << ended.text;
}

INSTANTIATE_TEST_SUITE_P(Fetched, NvrtcVersions, testing::Values("12.1", "12.9"),
                         [](const auto& version) {
                           std::string name = version.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST(NvrtcExit, C123FirstUsedInAThreadThenExit) {
  const Answer ended = run({"exit", "sim:rtx-3090"}, kInstalled);
  ASSERT_RAN(ended);
  EXPECT_EQ(ended.json["status"], "KILN_OK") << ended.text;
}

// A driver of CUDA 12.2 on a machine with a newer toolkit.
class OldDriver : public testing::Test {
 protected:
  Answer serve(const std::string& store, const Environment& environment) {
    return run({"serve", "cuda:1", (folder_.path() / store).string(),
                R"({"ops": [{"op": "combine_topk_swa"}]})"},
               environment + kFakeDriver + Environment{{"KILN_FAKE_CUDA_DRIVER", "12020"}});
  }
  bool says(const Answer& answer, const std::string& part) {
    return answer.text.find(part) != std::string::npos;
  }

  const TemporaryFolder folder_;
};

TEST_F(OldDriver, TakesTheNewestOfItsOwnMajorVersion) {
  if (!is_there("12.1") || !is_there("12.9")) {
    GTEST_SKIP() << "NVRTC 12.1 and 12.9 are not in " << fetched_folder();
  }
  const Answer served =
      serve("kiln.db", {{"CUDA_PATH", toolkit_of("12.1")}, {"CUDA_HOME", toolkit_of("12.9")}});
  ASSERT_RAN(served);
  EXPECT_EQ(served.json["status"], "KILN_OK") << served.text;
  EXPECT_TRUE(says(served, "with NVRTC 12.9 (")) << served.text;
  EXPECT_EQ(versions_in((folder_.path() / "kiln.db").string()), std::set<std::string>{"12.9"});
}

TEST_F(OldDriver, IsToldTheWaysOutWhenEverythingIsNewer) {
  const Answer served = serve("kiln.db", kInstalled);
  ASSERT_RAN(served);
  if (served.json["status"] == "KILN_OK") GTEST_SKIP() << "this machine has an NVRTC 12 of its own";
  EXPECT_EQ(served.json["status"], "KILN_NO_COMPILER") << served.text;
  for (const char* part :
       {"No usable NVRTC whose output a driver of CUDA 12 can load was found",
        "and the driver, of CUDA 12, does not load what it makes", "Install the CUDA toolkit 12",
        "or a newer driver", "set KILN_NVRTC to a libnvrtc file or its folder",
        "`kiln build --gpu SLUG --pack FILE`"}) {
    EXPECT_TRUE(says(served, part)) << part << "\n" << served.text;
  }
}

TEST_F(OldDriver, NeedsNoCompilerWhereTheStoreIsWarm) {
  const Answer made = run({"serve", "cuda:1", (folder_.path() / "kiln.db").string(),
                           R"({"ops": [{"op": "combine_topk_swa"}]})"},
                          kFakeDriver + Environment{{"KILN_FAKE_CUDA_DRIVER", "99000"}});
  ASSERT_RAN(made);
  ASSERT_EQ(made.json["status"], "KILN_OK") << made.text;
  const Answer served = serve("kiln.db", {{"KILN_NVRTC", "/nonexistent"}});
  ASSERT_RAN(served);
  EXPECT_EQ(served.json["status"], "KILN_OK") << served.text;
  EXPECT_EQ(served.json["compiles"], 0);
  EXPECT_EQ(served.json["exact"], made.json["exact"]);
}

}  // namespace
}  // namespace kiln::jit
