#include "runtime/limits.h"

#include <fmt/format.h>

#include <algorithm>

namespace kiln::runtime {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kThreadsPerWarp = 32;

std::optional<BrokenLimit> smem_broken(const templates::KernelLaunch& launch, int64_t smem_bytes,
                                       const Gpu& gpu) {
  if (smem_bytes <= gpu.smem_per_cta_optin_bytes) return std::nullopt;
  return BrokenLimit{"shared memory",
                     fmt::format("{} wants {} bytes of shared memory; {} gives a block at most {}",
                                 launch.entry, smem_bytes, gpu.name, gpu.smem_per_cta_optin_bytes)};
}

}  // namespace

std::optional<BrokenLimit> limit_broken(const templates::LaunchPlan& launches, const Gpu& gpu) {
  const int most_threads = std::min(kMostThreads, kThreadsPerWarp * gpu.max_warps_per_sm);
  for (const templates::KernelLaunch& launch : launches.kernels) {
    if (launch.threads < 1 || launch.threads > most_threads) {
      return BrokenLimit{
          "threads", fmt::format("{} wants {} threads; a block on {} holds 1 to {}", launch.entry,
                                 launch.threads, gpu.name, most_threads)};
    }
    if (auto broken = smem_broken(launch, launch.dynamic_smem_bytes, gpu)) return broken;
  }
  return std::nullopt;
}

std::optional<BrokenLimit> resources_broken(const templates::LaunchPlan& launches,
                                            const std::vector<jit::Resources>& resources,
                                            const Gpu& gpu) {
  for (size_t i = 0; i < resources.size(); ++i) {
    const templates::KernelLaunch& launch = launches.kernels[i];
    const int registers = resources[i].registers;
    const int64_t smem_bytes = launch.dynamic_smem_bytes + resources[i].static_smem_bytes;
    if (auto broken = smem_broken(launch, smem_bytes, gpu)) return broken;
    if (ctas_per_sm(gpu, launch.threads, registers, smem_bytes) < 1) {
      return BrokenLimit{
          "registers",
          fmt::format("{} wants {} threads of {} registers and {} bytes of shared memory, more "
                      "than an SM of {} holds",
                      launch.entry, launch.threads, registers, smem_bytes, gpu.name)};
    }
  }
  return std::nullopt;
}

}  // namespace kiln::runtime
