// Runs torture_kiln.cpp as a user would, in a folder whose disk calls can be counted and made to
// fail (disk_shim.h).
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/cache/fixture.h"
#include "tests/tools/cli.h"

namespace kiln::cli {

class TortureTest : public CliTest {
 protected:
  void SetUp() override {
    try {
      jit::Compiler::load();
    } catch (const Error&) {
      GTEST_SKIP() << "no NVRTC on this machine";
    }
  }

  // Its kernels compute nothing; any NVRTC suits it.
  void use_fake_driver() {
    environment["KILN_LIBCUDA"] = KILN_FAKE_LIBCUDA;
    environment["KILN_FAKE_CUDA_DRIVER"] = "97000";
  }

  static std::string toy_workload(const std::vector<int>& scales) {
    Json ops = Json::array();
    for (const int scale : scales) {
      ops.push_back(
          {{"op", "toy"}, {"shape", {{"scale", scale}}}, {"sizes", {{"num_rows", {1, 4}}}}});
    }
    return Json{{"ops", ops}}.dump();
  }

  // Results of an op that nobody knows, each with two kernels.
  void add_samples(int count) {
    const auto store = cache::Store::open({.path = db()});
    for (int i = 1; i <= count; ++i) {
      ASSERT_TRUE(store->put(cache::sample_result("sample " + std::to_string(i), i)));
    }
  }

  // The store and what lies beside it.
  void clear() {
    for (const auto& entry : std::filesystem::directory_iterator(path(""))) {
      if (entry.path().filename().string().starts_with("kiln.db")) {
        std::filesystem::remove(entry.path());
      }
    }
  }
  void keep_as(const std::string& name) { std::filesystem::copy_file(db(), path(name)); }
  void take_back(const std::string& name) {
    std::filesystem::copy_file(path(name), db(), std::filesystem::copy_options::overwrite_existing);
  }

  // Of the last run that ended by itself and had KILN_DISK_COUNT=<folder>/calls.
  int64_t calls_of_run() const {
    int64_t writes = 0;
    int64_t makes = 0;
    std::ifstream(path("calls")) >> writes >> makes;
    return writes + makes;
  }
};

}  // namespace kiln::cli
