#include "runtime/plan_record.h"

#include <vector>

#include "jit/base/error.h"

namespace kiln::runtime {

cache::Problem problem_of(const templates::Op& op, const templates::Sizes& fixed,
                          const templates::Sizes& bucket) {
  return {.op = op.name,
          .op_version = op.version,
          .shape = canonical_json(templates::shape_json(op, fixed)),
          .bucket = templates::bucket_key(op, bucket)};
}

cache::PlanRecord plan_record(const templates::Op& op, const templates::Sizes& fixed,
                              const templates::Config& config, std::string_view arch,
                              const templates::LaunchPlan& launches,
                              std::span<const Hash128> binaries) {
  if (binaries.size() != launches.kernels.size()) {
    fail(Status::internal, "{}: a plan of {} kernels came with {} binaries", op.name,
         launches.kernels.size(), binaries.size());
  }
  cache::PlanRecord record;
  record.op = op.name;
  record.op_version = op.version;
  record.shape = canonical_json(templates::shape_json(op, fixed));
  record.config = canonical_json(templates::config_json(config));
  record.arch = arch;
  record.reduction_signature = launches.reduction_signature;

  for (size_t i = 0; i < binaries.size(); ++i) {
    const templates::KernelLaunch& launch = launches.kernels[i];
    record.kernels.push_back({.binary = binaries[i],
                              .entry = launch.entry,
                              .threads = launch.threads,
                              .dynamic_smem_bytes = launch.dynamic_smem_bytes});
  }
  record.id = plan_id(record);
  return record;
}

Hash128 plan_id(const cache::PlanRecord& record) {
  HashRecord id;
  id.field("op", record.op)
      .field("op_version", record.op_version)
      .field("shape", record.shape)
      .field("config", record.config)
      .field("arch", record.arch);
  for (const cache::PlanRecord::Kernel& kernel : record.kernels) {
    id.field("binary", kernel.binary.hex())
        .field("threads", kernel.threads)
        .field("dynamic_smem_bytes", kernel.dynamic_smem_bytes);
  }
  return id.hash();
}

const cache::PlanRecord& TodaysPlans::plan(const templates::Op& op, const templates::Sizes& fixed,
                                           const templates::Config& config,
                                           const std::string& arch) {
  const auto found = plans_.find({&op, fixed, config, arch});
  if (found != plans_.end()) return found->second;
  const templates::LaunchPlan launches = op.plan(fixed, config, gpu_);
  std::vector<Hash128> binaries;
  for (const templates::KernelLaunch& launch : launches.kernels) {
    binaries.push_back(jit::binary_key(templates::kernel_source(op, launch), arch,
                                       templates::compile_options(launch)));
  }
  return plans_
      .emplace(std::tuple(&op, fixed, config, arch),
               plan_record(op, fixed, config, arch, launches, binaries))
      .first->second;
}

bool TodaysPlans::has(const cache::PlanRecord& record, const templates::Op& op,
                      const templates::Sizes& fixed, const std::string& arch) {
  try {
    const cache::PlanRecord& today =
        plan(op, fixed,
             templates::parse_config(op, fixed, gpu_, parse_json(record.config, "config")), arch);
    return record.arch == arch && record.kernels == today.kernels;
  } catch (const Error&) {
    return false;  // the config is no longer in the space, or no longer legal
  }
}

}  // namespace kiln::runtime
