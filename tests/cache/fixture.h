// What the store's suites share: a folder of its own for each test, sample records, and plain SQL
// on a store that is closed.
#pragma once

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "cache/store.h"
#include "jit/base/hash.h"

namespace kiln::cache {

inline const char* const kA100 = R"({"cc":80,"sm_count":108})";
inline const char* const kRtx3090 = R"({"cc":86,"sm_count":82})";

inline Problem sample_problem(int rows = 16) {
  return {"sample_op", 1, R"({"K":512,"ratio":4})", R"({"T":)" + std::to_string(rows) + "}"};
}

inline jit::Binary sample_binary(const std::string& name) {
  jit::Binary binary;
  binary.key = hash_text("key of " + name);
  binary.source_hash = hash_text("source of " + name);
  binary.arch = "sm_80";
  binary.options = "--fmad=false --gpu-architecture=sm_80";
  binary.entry = "sample_kernel";
  binary.kind = jit::BinaryKind::cubin;
  binary.image =
      "\x7f"
      "ELF " +
      name + std::string(3000, '\0') + "end";
  for (size_t i = 200; i < 2600; ++i) {
    binary.image[i] = static_cast<char>(hash_text(name + std::to_string(i / 16)).bytes[i % 16]);
  }
  binary.resources = {.registers = 40,
                      .spill_store_bytes = 8,
                      .spill_load_bytes = 16,
                      .stack_bytes = 24,
                      .static_smem_bytes = 1024};
  binary.log = "ptxas info: used 40 registers\n";
  binary.nvrtc_version = "13.0";
  binary.compile_ns = 123456789;
  return binary;
}

inline PlanRecord sample_plan(const std::string& name, const std::vector<jit::Binary>& binaries) {
  PlanRecord plan;
  plan.id = hash_text("plan " + name);
  plan.op = "sample_op";
  plan.op_version = 1;
  plan.shape = sample_problem().shape;
  plan.config = R"({"name":")" + name + R"(","threads":128})";
  plan.arch = "sm_80";
  plan.reduction_signature = "k64-split4";
  plan.packed_layout = "fp4-tile16-v1";
  for (const jit::Binary& binary : binaries) {
    plan.kernels.push_back({binary.key, binary.entry, 128, 32768});
  }
  return plan;
}

// A finished problem with a plan of two kernels and one of everything else.
inline TuningResult sample_result(const std::string& name, int rows = 16,
                                  DecisionKind kind = DecisionKind::measured) {
  TuningResult result;
  result.binaries = {sample_binary(name + "/first"), sample_binary(name + "/second")};
  result.plans = {sample_plan(name, result.binaries)};
  result.decision = {.problem = sample_problem(rows),
                     .gpu_class = kA100,
                     .gpu_label = "a100-sxm4-80gb",
                     .config = result.plans[0].config,
                     .plan = result.plans[0].id,
                     .kind = kind,
                     .reason = "12 % faster than the default",
                     .scope = Decision::Scope::part,
                     .limits = "rtx-3090",
                     .tie_group = {result.plans[0].config, R"({"threads":256})"},
                     .time_ns = 4321.125,
                     .default_time_ns = 4911.5,
                     .decided_at = 1'700'000'000};
  result.verifications = {{.plan = result.plans[0].id,
                           .problem = sample_problem(rows),
                           .by = Verified::device,
                           .passed = true,
                           .detail = "7 cases",
                           .tolerance = "bit-exact",
                           .worst_error = 0.25,
                           .card = "A100",
                           .driver = "580"}};
  result.timings = {{.plan = result.plans[0].id,
                     .problem = sample_problem(rows),
                     .gpu_class = kA100,
                     .time_ns = 4321.125,
                     .spread_ns = 12.5,
                     .rounds = 9,
                     .method = "graph replay, cold, interleaved",
                     .limits = "",
                     .device = "A100, driver 580"}};
  result.rejections = {{.problem = sample_problem(rows),
                        .gpu_class = kA100,
                        .config = R"({"threads":1024})",
                        .plan = hash_text("a plan of no store"),
                        .limits = "rtx-3090",
                        .stage = "verify",
                        .reason = "wrong",
                        .detail = "idx[3, 7] is 12, expected -1"}};
  return result;
}

inline void expect_equal(const jit::Binary& a, const jit::Binary& b) {
  EXPECT_EQ(a.key, b.key);
  EXPECT_EQ(a.source_hash, b.source_hash);
  EXPECT_EQ(a.arch, b.arch);
  EXPECT_EQ(a.options, b.options);
  EXPECT_EQ(a.entry, b.entry);
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.image, b.image);
  EXPECT_EQ(a.resources.registers, b.resources.registers);
  EXPECT_EQ(a.resources.spill_store_bytes, b.resources.spill_store_bytes);
  EXPECT_EQ(a.resources.spill_load_bytes, b.resources.spill_load_bytes);
  EXPECT_EQ(a.resources.stack_bytes, b.resources.stack_bytes);
  EXPECT_EQ(a.resources.static_smem_bytes, b.resources.static_smem_bytes);
  EXPECT_EQ(a.log, b.log);
  EXPECT_EQ(a.nvrtc_version, b.nvrtc_version);
  EXPECT_EQ(a.compile_ns, b.compile_ns);
}

inline void expect_equal(const PlanRecord& a, const PlanRecord& b) {
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.op, b.op);
  EXPECT_EQ(a.op_version, b.op_version);
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.config, b.config);
  EXPECT_EQ(a.arch, b.arch);
  EXPECT_EQ(a.reduction_signature, b.reduction_signature);
  EXPECT_EQ(a.packed_layout, b.packed_layout);
  ASSERT_EQ(a.kernels.size(), b.kernels.size());
  for (size_t i = 0; i < a.kernels.size(); ++i) {
    EXPECT_EQ(a.kernels[i].binary, b.kernels[i].binary);
    EXPECT_EQ(a.kernels[i].entry, b.kernels[i].entry);
    EXPECT_EQ(a.kernels[i].threads, b.kernels[i].threads);
    EXPECT_EQ(a.kernels[i].dynamic_smem_bytes, b.kernels[i].dynamic_smem_bytes);
  }
}

inline void expect_equal(const Decision& a, const Decision& b) {
  EXPECT_EQ(a.problem, b.problem);
  EXPECT_EQ(a.gpu_class, b.gpu_class);
  EXPECT_EQ(a.gpu_label, b.gpu_label);
  EXPECT_EQ(a.config, b.config);
  EXPECT_EQ(a.plan, b.plan);
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.reason, b.reason);
  EXPECT_EQ(a.scope, b.scope);
  EXPECT_EQ(a.limits, b.limits);
  EXPECT_EQ(a.tie_group, b.tie_group);
  EXPECT_EQ(a.time_ns, b.time_ns);
  EXPECT_EQ(a.default_time_ns, b.default_time_ns);
  EXPECT_EQ(a.decided_at, b.decided_at);
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Sets or unsets an environment variable for the length of a scope.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) {
      had_ = true;
      old_ = old;
    }
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ~ScopedEnvironment() { had_ ? ::setenv(name_, old_.c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  bool had_ = false;
  std::string old_;
};

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() : no_pack_("KILN_PACK", nullptr) {
    std::string pattern = ::testing::TempDir() + "kiln_store_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/kiln.db";
  }
  ~StoreTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Store> open(StoreOptions::Mode mode = StoreOptions::Mode::read_write) {
    return Store::open({.path = path_, .pack = pack_, .mode = mode});
  }

  // A closed store file whose header is lost, which its contents still tell from any other file.
  std::string write_damaged() {
    EXPECT_TRUE(open()->put(sample_result("a")));
    std::string bytes = read_file(path_);
    bytes.replace(0, 100, std::string(100, '\0'));
    write_file(path_, bytes);
    return bytes;
  }

  // Every row as text, columns separated by '|'. Only while no store has the file open.
  std::vector<std::string> sql(const std::string& text) { return sql(path_, text); }
  static std::vector<std::string> sql(const std::string& path, const std::string& text) {
    sqlite3* database = nullptr;
    EXPECT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
    std::vector<std::string> rows;
    char* message = nullptr;
    const auto collect = [](void* to, int count, char** values, char**) {
      std::string row;
      for (int i = 0; i < count; ++i) {
        row += (i > 0 ? "|" : "") + std::string(values[i] ? values[i] : "NULL");
      }
      static_cast<std::vector<std::string>*>(to)->push_back(row);
      return 0;
    };
    EXPECT_EQ(sqlite3_exec(database, text.c_str(), collect, &rows, &message), SQLITE_OK)
        << (message ? message : "");
    sqlite3_free(message);
    sqlite3_close(database);
    return rows;
  }

  // The store's files by name.
  std::vector<std::string> files_in_folder() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      names.push_back(std::filesystem::relative(entry.path(), folder_).string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  size_t count_files_with(const std::string& part) const {
    size_t count = 0;
    for (const std::string& name : files_in_folder()) count += name.find(part) != std::string::npos;
    return count;
  }

  // A pack at <folder>/<name> that holds these results.
  std::string make_pack_of(const std::string& name, const std::vector<TuningResult>& results) {
    const std::string pack = folder_ + "/" + name;
    auto store = Store::open({.path = pack + ".source"});
    for (const TuningResult& result : results) EXPECT_TRUE(store->put(result));
    store->make_pack(pack);
    return pack;
  }

  std::string folder_;
  std::string path_;
  std::string pack_;

 private:
  ScopedEnvironment no_pack_;
};

// Runs `body` in a child process; its return value is the exit status.
inline pid_t start_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  return child;
}

inline int wait_for(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

}  // namespace kiln::cache
