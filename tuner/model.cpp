// The analytic model: one call is its launches in order; a launch is waves of CTAs; a wave is
// bounded by DRAM and L2 (scaled by how many bytes its threads keep in flight), by the rate at
// which the SMs issue, and by the longest chain of dependent loads. It only has to order the
// configs of one problem on one GPU; its regret is in every report.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tuner/tuner.h"

namespace kiln::tuner {
namespace {

using templates::Cost;
using templates::KernelLaunch;
using templates::ModelHints;
using templates::Sizes;

constexpr double kLaunchNs = 1200;  // of a kernel inside a graph
constexpr double kDramLatencyNs = 550;
constexpr double kL2BytesPerClkSm = 48;   // sustained
constexpr double kDramEfficiency = 0.92;  // what a copy reaches of the datasheet's bandwidth
constexpr double kIssuePerClkSm = 4;      // one warp instruction per sub-partition
constexpr double kClksPerDependentIssue = 5;
constexpr double kIntegerLanesPerClkSm = 64;
constexpr double kCtaStartNs = 10;  // of each CTA on an SM: what many tiny ones cost

double extent(const templates::Extent& e, const Sizes& sizes) {
  return static_cast<double>(std::max<int64_t>(e.value(sizes), 0));
}

struct Work {
  double dram_bytes = 0, l2_bytes = 0, instructions_per_warp = 0, integer_operations = 0,
         mma_fma = 0;  // of the whole launch
};

// Stride symbols of the extents are not part of the model's sizes; grids that use one count as one
// CTA in that dimension.
double grid_extent(const templates::Extent& e, const Sizes& sizes) {
  for (const templates::Term& term : e.terms) {
    if (!sizes.contains(term.symbol)) return 1;
  }
  return extent(e, sizes);
}

double launch_ns(const KernelLaunch& launch, const jit::Resources& resources, const Work& work,
                 const ModelHints& hints, const Sizes& sizes, const Gpu& gpu) {
  const double ctas = grid_extent(launch.grid_x, sizes) * grid_extent(launch.grid_y, sizes) *
                      grid_extent(launch.grid_z, sizes);
  if (ctas <= 0) return 0;
  const int resident = ctas_per_sm(gpu, launch.threads, resources.registers,
                                   resources.static_smem_bytes + launch.dynamic_smem_bytes);
  if (resident <= 0) return std::numeric_limits<double>::infinity();

  const double sms = gpu.sm_count;
  const double clk_per_ns = std::max(gpu.boost_mhz, 1000) / 1000.0;
  const double warps_per_cta = std::ceil(launch.threads / 32.0);
  const double slots = sms * resident;
  const double dram_bytes_per_ns = gpu.dram_gb_per_s * kDramEfficiency;
  const double l2_bytes_per_ns = kL2BytesPerClkSm * sms * clk_per_ns;
  const double spill_instructions =
      static_cast<double>(resources.spill_load_bytes + resources.spill_store_bytes) / 4;
  const double instructions = work.instructions_per_warp + spill_instructions;

  const auto wave_ns = [&](double n) {
    const double share = n / ctas;
    const double busy_sms = std::min(sms, n);
    const double in_flight_bytes =
        n * launch.threads * std::max(hints.bytes_in_flight_per_thread, 1.0);
    const double parallel_bytes_per_ns = in_flight_bytes / kDramLatencyNs;
    const double dram =
        share * work.dram_bytes / std::min(dram_bytes_per_ns, parallel_bytes_per_ns);
    const double l2 = share * (work.dram_bytes + work.l2_bytes) /
                      std::min(l2_bytes_per_ns, 2 * parallel_bytes_per_ns);
    const double warps_per_sm = std::ceil(n / busy_sms) * warps_per_cta;
    const double issue_per_clk = std::min(kIssuePerClkSm, warps_per_sm / kClksPerDependentIssue);
    const double issue = warps_per_sm * instructions / issue_per_clk / clk_per_ns;
    const double integer =
        share * work.integer_operations / (busy_sms * kIntegerLanesPerClkSm * clk_per_ns);
    const double mma =
        gpu.bf16_mma_fma_per_clk_sm > 0
            ? share * work.mma_fma / (busy_sms * gpu.bf16_mma_fma_per_clk_sm * clk_per_ns)
            : 0;
    const double chain = hints.dependent_loads * kDramLatencyNs;
    return std::max({dram, l2, issue, integer, mma, chain});
  };

  // CTAs of full waves start as others end, so only bandwidth and issue add up over them; the chain
  // of the last wave shows once.
  const double full_waves = std::floor(ctas / slots);
  const double rest = ctas - full_waves * slots;
  double time = kLaunchNs + std::ceil(ctas / sms) * kCtaStartNs;
  if (full_waves > 0) time += full_waves * wave_ns(slots);
  if (rest > 0) time += wave_ns(rest);
  return time;
}

}  // namespace

double model_time_ns(const ModelInput& input, const Gpu& gpu) {
  const templates::Op& op = *input.op;
  const Sizes sizes = templates::with_derived(op, input.sizes);
  const Cost cost = op.cost != nullptr ? op.cost(sizes) : Cost{};
  const ModelHints hints = op.model != nullptr ? op.model(sizes, input.config, gpu) : ModelHints{};
  const double kernels = static_cast<double>(std::max<size_t>(input.plan.kernels.size(), 1));
  double time = 0;
  for (size_t i = 0; i < input.plan.kernels.size(); ++i) {
    const KernelLaunch& kernel = input.plan.kernels[i];
    // The rate of the bus is not known; what differs between configs is the same.
    const Work work{
        .dram_bytes = (cost.cold_read_bytes + cost.bus_read_bytes + cost.write_bytes) / kernels,
        .l2_bytes = (cost.warm_read_bytes + cost.in_place_read_bytes) / kernels,
        .instructions_per_warp = kernel.instructions_per_thread > 0 ? kernel.instructions_per_thread
                                                                    : hints.instructions_per_thread,
        .integer_operations = cost.integer_operations / kernels,
        .mma_fma = cost.mma_fma / kernels};
    const jit::Resources resources =
        i < input.resources.size() ? input.resources[i] : jit::Resources{.registers = 40};
    time += launch_ns(kernel, resources, work, hints, sizes, gpu);
  }
  return time;
}

}  // namespace kiln::tuner
