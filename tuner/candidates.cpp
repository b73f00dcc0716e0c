#include "tuner/candidates.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "runtime/limits.h"

namespace kiln::tuner {
namespace {

using templates::Config;
using templates::KernelLaunch;
using templates::LaunchPlan;
using templates::Op;
using templates::Sizes;

constexpr int64_t kSmemUnitBytes = 128;

std::string extent_text(const templates::Extent& extent) {
  std::string text = fmt::format("{}+{}", extent.offset, extent.scale);
  for (const templates::Term& term : extent.terms)
    text += fmt::format("*{}/{}<{}", term.symbol, term.divisor, term.cap);
  return text;
}

// Two configs with the same text launch the same code in the same way.
std::string launch_identity(const Candidate& candidate) {
  std::string text = extent_text(candidate.run_plan.workspace_bytes);
  for (size_t i = 0; i < candidate.run_plan.kernels.size(); ++i) {
    const KernelLaunch& launch = candidate.run_plan.kernels[i];
    text += fmt::format("|{} {} {} {} {} {}", candidate.binaries[i]->key.hex(), launch.threads,
                        candidate.smem_bytes[i], extent_text(launch.grid_x),
                        extent_text(launch.grid_y), extent_text(launch.grid_z));
  }
  return text;
}

// The tuner's own rule: what spills is not worth a measurement.
std::optional<runtime::BrokenLimit> spilled(const Candidate& candidate) {
  for (size_t i = 0; i < candidate.gpu_binaries.size(); ++i) {
    const jit::Resources& resources = candidate.gpu_binaries[i]->resources;
    const int64_t bytes = resources.spill_load_bytes + resources.spill_store_bytes;
    if (bytes == 0) continue;
    return runtime::BrokenLimit{"spills", fmt::format("{} spills {} bytes to local memory",
                                                      candidate.plan.kernels[i].entry, bytes)};
  }
  return std::nullopt;
}

// Order of compiling: what the model thinks of the configs when all it knows is the launch.
std::vector<size_t> by_guess(const Op& op, const Sizes& sizes,
                             const std::vector<Candidate>& candidates, const Gpu& gpu) {
  std::vector<double> guess_ns;
  for (const Candidate& candidate : candidates) {
    guess_ns.push_back(model_time_ns({.op = &op,
                                      .sizes = sizes,
                                      .config = candidate.config,
                                      .plan = candidate.plan,
                                      .resources = {}},
                                     gpu));
  }
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (candidates[a].is_default() != candidates[b].is_default()) return candidates[a].is_default();
    return guess_ns[a] < guess_ns[b];
  });
  return order;
}

// The candidates that are worth a compile, in the order of compiling, and what kept the others out.
struct Field {
  CandidateSet set;  // without candidates
  std::vector<Candidate> planned;
  std::vector<size_t> order;  // positions in `planned`
};

Field planned_field(const Op& op, const Sizes& fixed, const Target& target,
                    const CandidateOptions& options) {
  const templates::Enumeration space = templates::enumerate(op, fixed, target.gpu);
  const Gpu runs_as = target.runs_as();
  Field field;
  field.set.space_size = space.total;
  field.set.rules = space.dropped;
  for (size_t i = 0; i < space.configs.size(); ++i) {
    Candidate candidate{.id = static_cast<int64_t>(i), .config = space.configs[i]};
    candidate.text = canonical_json(templates::config_json(candidate.config));
    candidate.plan = op.plan(fixed, candidate.config, target.gpu);
    candidate.run_plan =
        target.limits.empty() ? candidate.plan : op.plan(fixed, candidate.config, runs_as);
    // Of the two plans what counts is compared kernel by kernel.
    if (candidate.run_plan.kernels.size() != candidate.plan.kernels.size()) {
      field.set.dropped.push_back({candidate.text, "resources", "another plan here",
                                   "on this many SMs it is a plan of other kernels"});
      continue;
    }
    if (const auto broken = runtime::limit_broken(candidate.plan, target.gpu)) {
      field.set.dropped.push_back({candidate.text, "resources", broken->reason, broken->detail});
      continue;
    }
    field.planned.push_back(std::move(candidate));
  }

  field.order.resize(field.planned.size());
  std::iota(field.order.begin(), field.order.end(), size_t{0});
  if (options.sizes != nullptr)
    field.order = by_guess(op, *options.sizes, field.planned, target.gpu);
  const size_t shortlist = static_cast<size_t>(options.shortlist);
  if (options.shortlist > 0 && field.order.size() > shortlist) {
    field.set.rules["beyond the shortlist"] = static_cast<int64_t>(field.order.size() - shortlist);
    field.order.resize(shortlist);
  }
  return field;
}

// What runs is not what is decided about: a card under other limits, or the simulator with PTX.
bool stands_in(const Target& target) {
  return target.device.arch() != target.gpu.arch() || !target.limits.empty();
}

void for_each_kernel(const Op& op, const LaunchPlan& plan, const auto& body) {
  for (const KernelLaunch& launch : plan.kernels)
    body(templates::kernel_source(op, launch), templates::compile_options(launch));
}

std::vector<BinaryPtr> compiled(const Op& op, const LaunchPlan& plan, const std::string& arch,
                                Binaries& binaries) {
  std::vector<BinaryPtr> all;
  for_each_kernel(op, plan,
                  [&](const jit::KernelSource& source, const jit::CompileOptions& options) {
                    all.push_back(binaries.get(source, arch, options));
                  });
  return all;
}

// How far compiling is ahead of whoever waits for it: a little, so that running out of time leaves
// little unfinished work behind.
size_t lead() { return static_cast<size_t>(4 * std::max(jit::pool_size().workers, 1)); }

// The one at this place of the order, where there is one.
void start_compiling(const Op& op, const Field& field, size_t place, const Target& target,
                     Binaries& binaries) {
  if (place >= field.order.size()) return;
  const Candidate& candidate = field.planned[field.order[place]];
  const auto start = [&](const LaunchPlan& plan, const std::string& arch) {
    for_each_kernel(op, plan,
                    [&](const jit::KernelSource& source, const jit::CompileOptions& options) {
                      binaries.ahead(source, arch, options);
                    });
  };
  start(candidate.run_plan, target.device.arch());
  if (stands_in(target)) start(candidate.plan, target.gpu.arch());
}

}  // namespace

Gpu stand_in(const Gpu& limits, const Gpu& device) {
  Gpu gpu = limits;
  gpu.sm_count = device.sm_count;
  gpu.dram_gb_per_s = device.dram_gb_per_s;
  gpu.l2_bytes = device.l2_bytes;
  return gpu;
}

int64_t Candidate::registers() const {
  int64_t most = 0;
  for (size_t i = 0; i < gpu_binaries.size(); ++i) {
    most = std::max<int64_t>(
        most, int64_t{gpu_binaries[i]->resources.registers} * plan.kernels[i].threads);
  }
  return most;
}

int64_t Candidate::shared_bytes() const {
  int64_t most = 0;
  for (size_t i = 0; i < gpu_binaries.size(); ++i) {
    most = std::max(
        most, gpu_binaries[i]->resources.static_smem_bytes + plan.kernels[i].dynamic_smem_bytes);
  }
  return most;
}

std::vector<jit::Resources> Candidate::resources() const {
  std::vector<jit::Resources> all;
  for (const BinaryPtr& binary : gpu_binaries) all.push_back(binary->resources);
  return all;
}

int64_t padded_smem_bytes(const Gpu& gpu, int threads, const jit::Resources& resources,
                          int64_t dynamic_smem_bytes, int ctas) {
  const int64_t fixed_bytes = resources.static_smem_bytes;
  if (ctas < 1 ||
      ctas_per_sm(gpu, threads, resources.registers, fixed_bytes + dynamic_smem_bytes) <= ctas)
    return dynamic_smem_bytes;
  // One more than `ctas` CTAs must not fit: each takes more than this share of the SM.
  const int64_t share =
      gpu.smem_per_sm_bytes / (ctas + 1) / kSmemUnitBytes * kSmemUnitBytes + kSmemUnitBytes;
  return std::max(dynamic_smem_bytes, share - gpu.smem_reserved_per_cta_bytes - fixed_bytes);
}

int64_t launched_smem_bytes(const Target& target, const KernelLaunch& launch,
                            const jit::Resources& on_device, const jit::Resources& on_gpu) {
  if (target.limits.empty()) return launch.dynamic_smem_bytes;
  const int ctas = ctas_per_sm(target.gpu, launch.threads, on_gpu.registers,
                               on_gpu.static_smem_bytes + launch.dynamic_smem_bytes);
  return padded_smem_bytes(target.device, launch.threads, on_device, launch.dynamic_smem_bytes,
                           ctas);
}

PlanWork plan_work(const Op& op, const Sizes& fixed, const Target& target,
                   const Candidate& candidate) {
  return {.op = &op,
          .fixed = fixed,
          .config = candidate.config,
          .limits = target.limits,
          .binaries = candidate.binaries,
          .smem_bytes = candidate.smem_bytes};
}

void compile_ahead(const Op& op, const Sizes& fixed, const Target& target, Binaries& binaries,
                   const CandidateOptions& options) {
  const Field field = planned_field(op, fixed, target, options);
  for (size_t i = 0; i < lead(); ++i) start_compiling(op, field, i, target, binaries);
}

CandidateSet make_candidates(const Op& op, const Sizes& fixed, const Target& target,
                             Binaries& binaries, const CandidateOptions& options) {
  Field field = planned_field(op, fixed, target, options);
  CandidateSet set = std::move(field.set);
  const auto drop = [&](const std::string& config, const char* stage, const std::string& reason,
                        const std::string& detail) {
    set.dropped.push_back({config, stage, reason, detail});
  };
  const size_t ahead = lead();
  for (size_t i = 0; i < ahead; ++i) start_compiling(op, field, i, target, binaries);

  std::set<std::string> identities;
  std::set<Hash128> keys;
  for (size_t n = 0; n < field.order.size(); ++n) {
    Candidate& candidate = field.planned[field.order[n]];
    if (n > 0 && options.out_of_time && options.out_of_time()) {
      set.uncompiled = static_cast<int64_t>(field.order.size() - n);
      break;
    }
    start_compiling(op, field, n + ahead, target, binaries);
    try {
      candidate.binaries = compiled(op, candidate.run_plan, target.device.arch(), binaries);
      candidate.gpu_binaries = stands_in(target)
                                   ? compiled(op, candidate.plan, target.gpu.arch(), binaries)
                                   : candidate.binaries;
    } catch (const Error& error) {
      if (error.status() != Status::compile_error) throw;
      drop(candidate.text, "compile", "compile error", error.what());
      continue;
    }

    for (size_t i = 0; i < candidate.run_plan.kernels.size(); ++i) {
      const KernelLaunch& launch = candidate.run_plan.kernels[i];
      const jit::Resources& resources = candidate.gpu_binaries[i]->resources;
      candidate.smem_bytes.push_back(
          launched_smem_bytes(target, launch, candidate.binaries[i]->resources, resources));
      keys.insert(candidate.binaries[i]->key);
    }
    std::optional<runtime::BrokenLimit> broken =
        runtime::resources_broken(candidate.plan, candidate.resources(), target.gpu);
    // The default serves every call, so it stays in the field even when it spills.
    if (!broken && !candidate.is_default()) broken = spilled(candidate);
    if (broken) {
      drop(candidate.text, "resources", broken->reason, broken->detail);
      continue;
    }
    ++set.kept;
    if (!identities.insert(launch_identity(candidate)).second) continue;
    set.candidates.push_back(std::move(candidate));
  }
  set.distinct_binaries = static_cast<int64_t>(keys.size());
  std::sort(set.candidates.begin(), set.candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  return set;
}

}  // namespace kiln::tuner
