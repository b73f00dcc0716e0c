// Workers from what the process may really use: affinity and cgroup quotas for cores, free memory
// and cgroup limits for memory. Both versions of cgroups are read, at every level from the
// process's own group up to the root of the mount.
#include "jit/pool_size.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

namespace kiln::jit {
namespace {

namespace fs = std::filesystem;

constexpr int kHardCap = 32;
constexpr int kMaxJobs = 256;
constexpr int64_t kBytesPerWorker = int64_t{1} << 30;
constexpr int64_t kHeadroomBytes = int64_t{1} << 30;

std::optional<int64_t> parse_number(std::string_view text) {
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{} || text.empty()) return std::nullopt;
  return value;
}

std::string first_word(const fs::path& file) {
  std::ifstream stream(file);
  std::string word;
  stream >> word;
  return word;
}

// The number after a key, in files of `key value` lines such as memory.stat and meminfo.
std::optional<int64_t> value_of(const fs::path& file, std::string_view key) {
  std::ifstream stream(file);
  std::string line;
  while (std::getline(stream, line)) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

struct CgroupMount {
  fs::path mount;    // on this machine: /sys/fs/cgroup/memory
  std::string root;  // the group that is mounted there
};

// "cgroup2" for version 2, else the controller of version 1.
std::optional<CgroupMount> find_mount(const fs::path& root, std::string_view controller) {
  std::ifstream stream(root / "proc/self/mountinfo");
  std::string line;
  while (std::getline(stream, line)) {
    // 35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream head(line.substr(0, dash));
    std::istringstream tail(line.substr(dash + 3));
    std::string skip, group, mount, type, device, options;
    head >> skip >> skip >> skip >> group >> mount;
    tail >> type >> device >> options;
    const bool wanted =
        controller == "cgroup2"
            ? type == "cgroup2"
            : type == "cgroup" &&
                  ("," + options + ",").find(fmt::format(",{},", controller)) != std::string::npos;
    if (wanted) return CgroupMount{root / fs::path(mount).relative_path(), group};
  }
  return std::nullopt;
}

std::string group_of_process(const fs::path& root, std::string_view controller) {
  std::ifstream stream(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(stream, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool wanted =
        controller == "cgroup2"
            ? controllers.empty()
            : ("," + controllers + ",").find(fmt::format(",{},", controller)) != std::string::npos;
    if (wanted) return line.substr(second + 1);
  }
  return "/";
}

// The folders of this process's group and of its parents, innermost first.
std::vector<fs::path> group_folders(const fs::path& root, std::string_view controller) {
  const std::optional<CgroupMount> mount = find_mount(root, controller);
  if (!mount) return {};
  std::string group = group_of_process(root, controller);
  // In a container the mount may show only the container's own group, whose full name the process
  // still sees.
  if (mount->root != "/" && group.starts_with(mount->root))
    group = group.substr(mount->root.size());
  std::vector<fs::path> folders;
  for (fs::path path = fs::path(group).relative_path(); !path.empty(); path = path.parent_path()) {
    std::error_code error;
    if (fs::is_directory(mount->mount / path, error)) folders.push_back(mount->mount / path);
  }
  folders.push_back(mount->mount);
  return folders;
}

struct Limit {
  double value = HUGE_VAL;
  bool from_cgroup = false;

  void lower_to(double other) {
    if (other < value) {
      value = other;
      from_cgroup = true;
    }
  }
};

Limit cores_of(const PoolMachine& machine) {
  Limit cores{.value = static_cast<double>(std::max(machine.affinity_cores, 1))};
  for (const fs::path& folder : group_folders(machine.root, "cgroup2")) {
    std::ifstream stream(folder / "cpu.max");
    std::string quota;
    double period_us = 0;
    if (!(stream >> quota >> period_us) || period_us <= 0) continue;
    if (const auto quota_us = parse_number(quota)) {
      cores.lower_to(static_cast<double>(*quota_us) / period_us);
    }
  }
  for (const fs::path& folder : group_folders(machine.root, "cpu")) {
    const auto quota_us = parse_number(first_word(folder / "cpu.cfs_quota_us"));
    const auto period_us = parse_number(first_word(folder / "cpu.cfs_period_us"));
    if (quota_us && period_us && *quota_us > 0 && *period_us > 0) {
      cores.lower_to(static_cast<double>(*quota_us) / static_cast<double>(*period_us));
    }
  }
  return cores;
}

// What a group may still take: its page cache that is not in use counts as free.
void lower_to_group(Limit& memory, const fs::path& folder, const char* limit_file,
                    const char* usage_file, std::string_view cache_key) {
  const auto limit = parse_number(first_word(folder / limit_file));
  const auto usage = parse_number(first_word(folder / usage_file));
  if (!limit || !usage) return;
  const int64_t cache = value_of(folder / "memory.stat", cache_key).value_or(0);
  const int64_t used = std::max<int64_t>(*usage - cache, 0);
  memory.lower_to(static_cast<double>(std::max<int64_t>(*limit - used, 0)));
}

Limit free_memory_of(const PoolMachine& machine) {
  Limit memory;
  if (const auto free_kib = value_of(machine.root / "proc/meminfo", "MemAvailable:")) {
    memory.value = static_cast<double>(*free_kib) * 1024;
  }
  for (const fs::path& folder : group_folders(machine.root, "cgroup2")) {
    lower_to_group(memory, folder, "memory.max", "memory.current", "inactive_file");
  }
  for (const fs::path& folder : group_folders(machine.root, "memory")) {
    lower_to_group(memory, folder, "memory.limit_in_bytes", "memory.usage_in_bytes",
                   "total_inactive_file");
  }
  return memory;
}

int affinity_cores() {
  // The kernel refuses a set smaller than its own, so the set grows until it fits.
  for (int capacity = 1024; capacity <= (1 << 20); capacity *= 4) {
    cpu_set_t* set = CPU_ALLOC(capacity);
    if (set == nullptr) return 1;
    const size_t size_bytes = CPU_ALLOC_SIZE(capacity);
    const int result = sched_getaffinity(0, size_bytes, set);
    const int cores = result == 0 ? CPU_COUNT_S(size_bytes, set) : 0;
    CPU_FREE(set);
    if (cores > 0) return cores;
  }
  return 1;
}

}  // namespace

PoolSize pool_size_of(const PoolMachine& machine) {
  std::string ignored;
  if (!machine.jobs.empty()) {
    const auto jobs = parse_number(machine.jobs);
    const bool digits = machine.jobs.find_first_not_of("0123456789") == std::string::npos;
    if (jobs && digits && *jobs >= 1 && *jobs <= kMaxJobs) {
      return {static_cast<int>(*jobs), fmt::format("KILN_JOBS={}", *jobs)};
    }
    ignored = fmt::format("; KILN_JOBS={} is not a number from 1 to {} and was ignored",
                          machine.jobs, kMaxJobs);
  }

  const Limit cores = cores_of(machine);
  const Limit memory = free_memory_of(machine);
  const double by_cores = std::max(std::floor(cores.value), 1.0);
  const double by_memory =
      std::max(std::floor((memory.value - kHeadroomBytes) / kBytesPerWorker), 1.0);
  const int workers =
      static_cast<int>(std::min({by_cores, by_memory, static_cast<double>(kHardCap)}));
  const std::string free_text = std::isinf(memory.value)
                                    ? "unknown free memory"
                                    : fmt::format("{:.1f} GiB free{}", memory.value / (1 << 30),
                                                  memory.from_cgroup ? " (cgroup)" : "");
  return {workers,
          fmt::format("{:g} cores{}, {}, 1 GiB each and 1 GiB kept free, at most {}{}", cores.value,
                      cores.from_cgroup ? " (cgroup)" : "", free_text, kHardCap, ignored)};
}

PoolSize pool_size() {
  const char* jobs = std::getenv("KILN_JOBS");
  return pool_size_of({.root = "/", .affinity_cores = affinity_cores(), .jobs = jobs ? jobs : ""});
}

}  // namespace kiln::jit
