#include "tests/tools/cli.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "runtime/plan_record.h"

namespace kiln::cli {
namespace {

namespace fs = std::filesystem;

fs::path fresh_folder() {
  std::string name = (fs::temp_directory_path() / "kiln-cli-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder: " + name);
  return name;
}

// Of this process while it lives, for the child to inherit.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(int64_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    if (bytes >= 0) limit.rlim_cur = static_cast<rlim_t>(bytes);
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_ = {};
};

}  // namespace

Json Result::json() const {
  Json value = Json::parse(out, nullptr, false);
  EXPECT_FALSE(value.is_discarded()) << "stdout is not JSON:\n" << out;
  return value;
}

std::ostream& operator<<(std::ostream& stream, const Result& result) {
  return stream << "exit code " << result.code << "\nstdout:\n"
                << result.out << "\nstderr:\n"
                << result.err;
}

CliTest::CliTest() : folder_(fresh_folder()) {
  for (const char* name : {"PATH", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS",
                           "TSAN_OPTIONS", "KILN_NVRTC", "CUDA_HOME", "CUDA_PATH"}) {
    if (const char* value = std::getenv(name)) environment[name] = value;
  }
  environment["HOME"] = folder_.string();
  environment["KILN_DB"] = db();
  environment["KILN_LOCAL"] = "/dev/null";  // where no folder can be
  environment["KILN_LIBCUDA"] = path("no-such-libcuda.so.1");
}

CliTest::~CliTest() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void CliTest::write_file(const std::string& name, const std::string& text) const {
  std::ofstream(path(name), std::ios::binary) << text;
}

pid_t CliTest::start(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {KILN_CLI_PATH};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> envp;
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // For reading and writing, so that a FIFO opens without a peer.
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, standard_input.c_str(), O_RDWR, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, path("out").c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, path("err").c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t pid = -1;
  const FileSizeLimit limit(most_file_bytes);
  const int error = posix_spawn(&pid, KILN_CLI_PATH, &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " KILN_CLI_PATH);
  return pid;
}

Result CliTest::finish(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) throw std::runtime_error("waitpid failed");
  Result result;
  if (WIFEXITED(status)) result.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.out = read_file(path("out"));
  result.err = read_file(path("err"));
  return result;
}

bool CliTest::ends_within(pid_t pid, std::chrono::seconds time) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  siginfo_t info = {};
  while (std::chrono::steady_clock::now() < deadline) {
    if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == pid) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

Result CliTest::run(const std::vector<std::string>& arguments) { return finish(start(arguments)); }

std::string CliTest::err_so_far() const { return read_file(path("err")); }

int code(ExitCode exit_code) { return static_cast<int>(exit_code); }

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string read_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

namespace {

// A binary under the key that the program computes; its bytes are never loaded here.
jit::Binary seed_binary(const templates::Op& op, const templates::KernelLaunch& launch,
                        const Gpu& gpu) {
  const jit::KernelSource source = templates::kernel_source(op, launch);
  jit::Binary binary;
  binary.key = jit::binary_key(source, gpu.arch(), templates::compile_options(launch));
  binary.source_hash = hash_text(source.main.text);
  binary.arch = gpu.arch();
  binary.entry = launch.entry;
  binary.image = "image of " + launch.entry + std::string(4096, '.');
  binary.resources.registers = 37;
  binary.resources.spill_store_bytes = 24;
  binary.resources.spill_load_bytes = 28;
  binary.nvrtc_version = "13.0";
  return binary;
}

cache::PlanRecord add_plan(Seed& seed, const templates::Config& config) {
  const templates::LaunchPlan launches = seed.op->plan(seed.fixed, config, seed.gpu);
  std::vector<Hash128> keys;
  for (const templates::KernelLaunch& launch : launches.kernels) {
    seed.result.binaries.push_back(seed_binary(*seed.op, launch, seed.gpu));
    keys.push_back(seed.result.binaries.back().key);
  }
  seed.result.plans.push_back(
      runtime::plan_record(*seed.op, seed.fixed, config, seed.gpu.arch(), launches, keys));
  return seed.result.plans.back();
}

}  // namespace

Seed make_seed(const std::string& gpu_slug) {
  Seed seed;
  seed.op = templates::ops().front();
  seed.gpu = find_gpu(gpu_slug);
  seed.fixed = seed.op->model_shapes(2).front();
  seed.bucket = templates::all_buckets(*seed.op).back();
  const auto candidates = templates::enumerate(*seed.op, seed.fixed, seed.gpu).configs;
  const templates::Config& fallback = candidates.at(0);
  const templates::Config& winner = candidates.at(1);
  const cache::PlanRecord winner_plan = add_plan(seed, winner);
  const cache::PlanRecord default_plan = add_plan(seed, fallback);

  cache::TuningResult& result = seed.result;
  const cache::Problem problem = runtime::problem_of(*seed.op, seed.fixed, seed.bucket);
  const std::string gpu_class = gpu_class_key(seed.gpu);
  result.decision = {.problem = problem,
                     .gpu_class = gpu_class,
                     .gpu_label = seed.gpu.slug,
                     .config = winner_plan.config,
                     .plan = winner_plan.id,
                     .kind = cache::DecisionKind::measured,
                     .reason = "50 % faster than the default",
                     .tie_group = {winner_plan.config},
                     .time_ns = 2000,
                     .default_time_ns = 3000,
                     .decided_at = 1'700'000'000};
  for (const auto& [plan, time_ns] : {std::pair(winner_plan, 2000.0), {default_plan, 3000.0}}) {
    result.verifications.push_back({.plan = plan.id,
                                    .problem = problem,
                                    .by = cache::Verified::device,
                                    .passed = true,
                                    .detail = "7 cases",
                                    .tolerance = "bit-exact",
                                    .card = "Seed Card"});
    result.timings.push_back({.plan = plan.id,
                              .problem = problem,
                              .gpu_class = gpu_class,
                              .time_ns = time_ns,
                              .spread_ns = 10,
                              .rounds = 15,
                              .method = "seeded",
                              .device = "Seed Card"});
  }
  result.rejections.push_back({.problem = problem,
                               .gpu_class = gpu_class,
                               .config = default_plan.config,
                               .stage = "verify",
                               .reason = "trap",
                               .detail = "planted by the test"});
  return seed;
}

void store_seed(const std::string& db, const Seed& seed) {
  const std::unique_ptr<cache::Store> store = cache::Store::open({.path = db});
  ASSERT_TRUE(store->put(seed.result)) << (store->warnings().empty() ? "" : store->warnings()[0]);
}

}  // namespace kiln::cli
