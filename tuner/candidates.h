// From a search space to candidates that can be run: enumerated, pruned by the limits of a GPU
// before and after compiling, equal ones merged. One loop over the space in which every drop has a
// reason.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tuner/binaries.h"
#include "tuner/device_worker.h"
#include "tuner/tuner.h"

namespace kiln::tuner {

// For whom plans are made that `device` runs under the limits of another GPU: an SM is that one's,
// their number and the memory are the device's. A grid for fewer SMs would leave some idle, of a
// card that is then judged by all of its bandwidth.
Gpu stand_in(const Gpu& limits, const Gpu& device);

// For which GPU candidates are made, and where they run.
struct Target {
  Gpu gpu;  // whose limits decide and whom decisions are for
  std::string
      limits;  // slug of `gpu` when it stands for another than the device; "": the device itself
  Gpu device;  // that runs them; equal to `gpu` without `limits` and without a device

  Gpu runs_as() const { return limits.empty() ? gpu : stand_in(gpu, device); }
};

struct Candidate {
  int64_t id = 0;  // position in the space, the default is 0
  templates::Config config;
  std::string text;                 // canonical JSON
  templates::LaunchPlan plan;       // for `gpu`
  templates::LaunchPlan run_plan;   // for the device; the same without `limits`
  std::vector<BinaryPtr> binaries;  // for the device
  std::vector<BinaryPtr>
      gpu_binaries;                 // for `gpu`, whose resources count; the same without `limits`
  std::vector<int64_t> smem_bytes;  // dynamic; padded under `limits`

  bool is_default() const { return id == 0; }
  int64_t registers() const;  // of a CTA, the most of its kernels
  int64_t shared_bytes() const;
  std::vector<jit::Resources> resources() const;
};

struct Dropped {
  std::string config;
  std::string stage;  // "resources", "compile"
  std::string reason;
  std::string detail;
};

struct CandidateSet {
  int64_t space_size = 0;
  int64_t kept = 0;
  int64_t distinct_binaries = 0;
  int64_t uncompiled = 0;                // for want of time: these are not all candidates
  std::map<std::string, int64_t> rules;  // configs dropped by the op's own rules
  std::vector<Dropped> dropped;
  std::vector<Candidate>
      candidates;  // in the order of the space, the default first when it is usable
};

struct CandidateOptions {
  int shortlist = 0;  // compile only so many, best first by the model's guess; 0: all
  std::function<bool()> out_of_time;        // asked between compiles
  const templates::Sizes* sizes = nullptr;  // of a typical call, for the guess
};

CandidateSet make_candidates(const templates::Op& op, const templates::Sizes& fixed,
                             const Target& target, Binaries& binaries,
                             const CandidateOptions& options);

// Starts to compile what make_candidates() will ask for first, and waits for nothing.
void compile_ahead(const templates::Op& op, const templates::Sizes& fixed, const Target& target,
                   Binaries& binaries, const CandidateOptions& options);

// Dynamic shared memory with which no more than `ctas` CTAs of this kernel fit on one SM of `gpu`.
int64_t padded_smem_bytes(const Gpu& gpu, int threads, const jit::Resources& resources,
                          int64_t dynamic_smem_bytes, int ctas);

// Dynamic shared memory of a launch on the device: under `limits` padded so that no more CTAs share
// an SM of the device than would one of the GPU.
int64_t launched_smem_bytes(const Target& target, const templates::KernelLaunch& launch,
                            const jit::Resources& on_device, const jit::Resources& on_gpu);

PlanWork plan_work(const templates::Op& op, const templates::Sizes& fixed, const Target& target,
                   const Candidate& candidate);

}  // namespace kiln::tuner
