#include "jit/pool_size.h"

#include "tests/jit/jit_testing.h"

namespace kiln::jit {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// A machine of files: /proc and the mounts of cgroups.
class Machine {
 public:
  Machine(int cores, int64_t free_gib) : cores_(cores) {
    files_.write("proc/meminfo", fmt::format("MemTotal: 999999999 kB\nMemAvailable: {} kB\n",
                                             free_gib * 1024 * 1024));
  }

  Machine& file(const std::string& name, const std::string& text) {
    files_.write(name, text);
    return *this;
  }
  Machine& cgroup2(const std::string& group) {
    return file("proc/self/mountinfo",
                "30 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n")
        .file("proc/self/cgroup", "0::" + group + "\n");
  }
  Machine& cgroup1(const std::string& group) {
    return file("proc/self/mountinfo",
                "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
        .file("proc/self/cgroup", "4:memory:" + group + "\n1:cpu,cpuacct:" + group + "\n");
  }

  PoolSize size(const std::string& jobs = "") const {
    return pool_size_of({.root = files_.path(), .affinity_cores = cores_, .jobs = jobs});
  }

 private:
  TemporaryFolder files_;
  int cores_;
};

TEST(PoolSize, OneWorkerPerCoreWhenMemoryAllows) {
  const PoolSize size = Machine(8, 64).size();
  EXPECT_EQ(size.workers, 8);
  EXPECT_NE(size.why.find("8 cores, 64.0 GiB free"), std::string::npos) << size.why;
}

TEST(PoolSize, C18OneGibibyteEachAndOneKeptFree) {
  EXPECT_EQ(Machine(16, 5).size().workers, 4);
  EXPECT_EQ(Machine(16, 1).size().workers, 1);
  EXPECT_EQ(Machine(16, 0).size().workers, 1);
}

TEST(PoolSize, HasAHardCap) { EXPECT_EQ(Machine(256, 2000).size().workers, 32); }

TEST(PoolSize, ReadsTheQuotaOfCgroup2AtEveryLevel) {
  Machine machine(64, 64);
  machine.cgroup2("/outer/inner").file("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  EXPECT_EQ(machine.size().workers, 32);
  machine.file("sys/fs/cgroup/outer/cpu.max", "350000 100000\n");
  EXPECT_EQ(machine.size().workers, 3);
  EXPECT_NE(machine.size().why.find("3.5 cores (cgroup)"), std::string::npos);
}

TEST(PoolSize, ReadsTheMemoryOfCgroup2WithItsCache) {
  Machine machine(16, 64);
  machine.cgroup2("/job")
      .file("sys/fs/cgroup/job/memory.max", std::to_string(8 * kGiB))
      .file("sys/fs/cgroup/job/memory.current", std::to_string(6 * kGiB));
  EXPECT_EQ(machine.size().workers, 1);
  machine.file("sys/fs/cgroup/job/memory.stat",
               fmt::format("anon 5\ninactive_file {}\n", 4 * kGiB));
  EXPECT_EQ(machine.size().workers, 5);
  EXPECT_NE(machine.size().why.find("6.0 GiB free (cgroup)"), std::string::npos)
      << machine.size().why;
}

TEST(PoolSize, ReadsTheLimitsOfCgroup1) {
  Machine machine(16, 64);
  machine.cgroup1("/job")
      .file("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "600000\n")
      .file("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(machine.size().workers, 6);
  machine.file("sys/fs/cgroup/memory/job/memory.limit_in_bytes", std::to_string(4 * kGiB))
      .file("sys/fs/cgroup/memory/job/memory.usage_in_bytes", std::to_string(1 * kGiB));
  EXPECT_EQ(machine.size().workers, 2);
}

TEST(PoolSize, UnlimitedCgroup1ChangesNothing) {
  Machine machine(16, 64);
  machine.cgroup1("/")
      .file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
      .file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
      .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
      .file("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
  EXPECT_EQ(machine.size().workers, 16);
}

TEST(PoolSize, ContainerThatSeesOnlyItsOwnMountStillHasItsLimit) {
  Machine machine(16, 64);
  machine.cgroup2("/not/visible/here").file("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(machine.size().workers, 2);
}

TEST(PoolSize, JobsOverride) {
  const PoolSize size = Machine(2, 2).size("48");
  EXPECT_EQ(size.workers, 48);
  EXPECT_EQ(size.why, "KILN_JOBS=48");
}

TEST(PoolSize, JobsThatMakeNoSenseAreIgnoredAndSaid) {
  for (const char* jobs : {"0", "-3", "many", "8 workers", "100000", "+2"}) {
    const PoolSize size = Machine(2, 16).size(jobs);
    EXPECT_EQ(size.workers, 2) << jobs;
    EXPECT_NE(size.why.find(fmt::format("KILN_JOBS={} is not", jobs)), std::string::npos);
  }
}

TEST(PoolSize, NothingReadableLeavesTheCores) {
  const TemporaryFolder empty;
  EXPECT_EQ(pool_size_of({.root = empty.path(), .affinity_cores = 3}).workers, 3);
}

TEST(PoolSize, OfThisMachineIsWithinItsBounds) {
  const PoolSize size = pool_size();
  EXPECT_GE(size.workers, 1);
  EXPECT_FALSE(size.why.empty());
}

}  // namespace
}  // namespace kiln::jit
