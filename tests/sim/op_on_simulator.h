// One op on a simulated GPU, in this process: its plans, also with a mistake planted in a source
// file, against its oracle.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "templates/kit.h"
#include "tuner/binaries.h"
#include "tuner/trial.h"

namespace kiln {

// A mistake: the first `right` in a file of the op or of templates/common/ becomes `wrong`.
struct Mutant {
  std::string name, file, right, wrong;
};

class OpOnSimulator : public testing::Test {
 protected:
  explicit OpOnSimulator(const char* op) : op_(templates::require_op(op)) {
    std::map<std::string, jit::Binary> tools;
    for (const auto& [entry, binary] : binaries_.tools(gpu().arch())) tools[entry] = *binary;
    tools_.emplace(*device_, tools, int64_t{1} << 30);
  }

  const templates::Op& op() const { return op_; }
  const templates::Kit& kit() const { return templates::require_kit(op_); }
  const Gpu& gpu() const { return device_->info().gpu; }

  // Config as it is: also one that the space would not offer for so small a shape.
  tuner::RunnablePlan plan(const templates::Sizes& fixed_sizes, const templates::Config& config,
                           const Mutant* mutant = nullptr) {
    const templates::LaunchPlan launches = op_.plan(fixed_sizes, config, gpu());
    tuner::RunnablePlan runnable;
    runnable.workspace_bytes = launches.workspace_bytes;
    bool is_changed = mutant == nullptr;
    for (const templates::KernelLaunch& launch : launches.kernels) {
      jit::KernelSource source = templates::kernel_source(op_, launch);
      if (mutant != nullptr) {
        is_changed |= change(source.main, *mutant);
        for (jit::SourceFile& header : source.headers) is_changed |= change(header, *mutant);
      }
      runnable.kernels.push_back(
          loaded(source, launch, fixed_sizes, templates::config_json(config).dump()));
    }
    EXPECT_TRUE(is_changed) << mutant->name << ": " << mutant->file << " has changed";
    return runnable;
  }

  // With the oracle's result, which has been compared with the truth.
  std::unique_ptr<tuner::PreparedCase> prepared(const templates::Case& c) {
    auto prepared_case = std::make_unique<tuner::PreparedCase>(
        *tools_, kit(), c, tuner::PreparedCase::Alignment::natural);
    const templates::KernelLaunch launch = kit().oracle(c.sizes);
    tuner::RunnablePlan oracle;
    oracle.kernels.push_back(
        loaded(templates::kernel_source(op_, launch), launch, c.sizes, "the oracle"));
    prepared_case->prove_oracle(oracle);
    return prepared_case;
  }

  templates::Case case_named(const std::string& name, const templates::Sizes& fixed_sizes) const {
    const templates::Sizes bucket = templates::all_buckets(op_).front();
    for (const templates::Case& c : kit().verify_cases(fixed_sizes, bucket)) {
      if (c.name == name) return c;
    }
    ADD_FAILURE() << "no case is named " << name;
    return {};
  }

  // The first elements of a dense output, as bits.
  template <class T>
  static std::vector<T> elements(const tuner::PreparedCase& c, const std::string& arg,
                                 int64_t count) {
    constexpr size_t kGuardBytes = 4096;  // before the first element
    const std::vector<std::byte> bytes = c.outputs().at(arg);
    std::vector<T> values(static_cast<size_t>(count));
    std::memcpy(values.data(), bytes.data() + kGuardBytes, values.size() * sizeof(T));
    return values;
  }

  // As it is, the config is right on the cases; with a mistake it is not.
  void expect_rejected(const std::vector<Mutant>& mutants, const std::vector<std::string>& cases,
                       const templates::Sizes& fixed_sizes, const templates::Config& config) {
    const tuner::RunVerdict right = verdict_on(cases, fixed_sizes, plan(fixed_sizes, config));
    EXPECT_EQ(right.outcome, tuner::Outcome::passed) << right.detail;
    for (const Mutant& mutant : mutants) {
      const tuner::RunVerdict verdict =
          verdict_on(cases, fixed_sizes, plan(fixed_sizes, config, &mutant));
      EXPECT_EQ(verdict.outcome, tuner::Outcome::wrong) << mutant.name << ": " << verdict.detail;
    }
  }

  // The checker's report; the device fails from then on.
  std::string report_on(const Mutant& mutant, const std::vector<std::string>& cases,
                        const templates::Sizes& fixed_sizes, const templates::Config& config) {
    const tuner::RunVerdict verdict =
        verdict_on(cases, fixed_sizes, plan(fixed_sizes, config, &mutant));
    EXPECT_EQ(verdict.outcome, tuner::Outcome::trap) << mutant.name;
    return verdict.detail;
  }

 private:
  tuner::RunVerdict verdict_on(const std::vector<std::string>& cases,
                               const templates::Sizes& fixed_sizes,
                               const tuner::RunnablePlan& candidate) {
    tuner::RunVerdict verdict;
    for (const std::string& name : cases) {
      verdict = prepared(case_named(name, fixed_sizes))->check(candidate);
      if (verdict.outcome != tuner::Outcome::passed) break;
    }
    return verdict;
  }

  tuner::RunnableKernel loaded(const jit::KernelSource& source,
                               const templates::KernelLaunch& launch,
                               const templates::Sizes& fixed_sizes, const std::string& what) {
    const tuner::BinaryPtr binary =
        binaries_.get(source, gpu().arch(), templates::compile_options(launch));
    const runtime::LoadedKernel kernel =
        device_->load(*binary, launch.threads, launch.dynamic_smem_bytes);
    device_->describe(kernel, {&op_, fixed_sizes, what});
    return {launch.entry, kernel, launch.grid_x, launch.grid_y, launch.grid_z};
  }

  bool change(jit::SourceFile& file, const Mutant& mutant) const {
    const bool is_meant = file.path == "templates/" + op_.name + "/" + mutant.file ||
                          file.path == "templates/common/" + mutant.file;
    if (!is_meant) return false;
    const size_t at = file.text.find(mutant.right);
    if (at == std::string::npos) return false;
    file.text.replace(at, mutant.right.size(), mutant.wrong);
    return true;
  }

  const templates::Op& op_;
  const std::unique_ptr<cache::Store> store_ = cache::Store::open({.path = ":memory:"});
  tuner::Binaries binaries_{*store_};
  const std::unique_ptr<runtime::Device> device_ = runtime::Device::open("sim:a100-sxm4-80gb");
  std::optional<tuner::DeviceTools> tools_;
};

}  // namespace kiln
