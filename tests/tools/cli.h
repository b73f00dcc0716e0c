// Runs the built `kiln` as a user would, in a folder of its own with an environment of its own: no
// driver, no store, whatever the machine has. Also makes stores with known contents, so that
// reading commands have something to read.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/store.h"
#include "jit/base/gpu.h"
#include "jit/base/json.h"
#include "templates/op.h"
#include "tools/kiln/exit_codes.h"

namespace kiln::cli {

struct Result {
  int code = -1;
  int signal = 0;  // that ended it, 0 when it exited
  std::string out;
  std::string err;

  Json json() const;  // of stdout, which must be JSON and nothing else
};

// Prints what a failing test needs.
std::ostream& operator<<(std::ostream& stream, const Result& result);

class CliTest : public testing::Test {
 protected:
  CliTest();
  ~CliTest() override;

  Result run(const std::vector<std::string>& arguments);
  // Starts it without waiting; finish() reaps it.
  pid_t start(const std::vector<std::string>& arguments);
  Result finish(pid_t pid);
  std::string err_so_far() const;

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string db() const { return path("kiln.db"); }
  void write_file(const std::string& name, const std::string& text) const;

  // True when it ended within that time; finish() still reaps it.
  static bool ends_within(pid_t pid, std::chrono::seconds time);

  std::map<std::string, std::string> environment;  // what the program gets, complete
  std::string standard_input = "/dev/null";
  int64_t most_file_bytes = -1;  // that it may write into one file (RLIMIT_FSIZE); -1: no limit

 private:
  std::filesystem::path folder_;
};

int code(ExitCode exit_code);
bool contains(const std::string& text, const std::string& part);
std::string read_file(const std::filesystem::path& path);

// One decided problem of the first op in the registry, as the tuner would store it: two candidates
// measured, one rejected.
struct Seed {
  const templates::Op* op = nullptr;
  templates::Sizes fixed;
  templates::Sizes bucket;
  Gpu gpu;
  cache::TuningResult result;
};
Seed make_seed(const std::string& gpu_slug);
void store_seed(const std::string& db, const Seed& seed);

}  // namespace kiln::cli
