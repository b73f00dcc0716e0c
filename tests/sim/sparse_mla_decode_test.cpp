// sparse_mla_decode on the simulator: planted mistakes are found by verification; what its bits may
// depend on and what not.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "runtime/device.h"
#include "templates/kit.h"
#include "tuner/binaries.h"
#include "tuner/trial.h"

namespace kiln {
namespace {

using templates::Case;
using templates::Config;
using templates::Sizes;

constexpr const char* kDevice = "sim:rtx-3090";

// A mistake: `right` of a file of the op becomes `wrong`.
struct Mutant {
  std::string name, file, right, wrong;
};

class SparseMlaDecodeOnSimulator : public testing::Test {
 protected:
  SparseMlaDecodeOnSimulator() : device_(runtime::Device::open(kDevice)) {
    std::map<std::string, jit::Binary> tools;
    for (const auto& [entry, binary] : binaries_.tools(gpu().arch())) tools[entry] = *binary;
    tools_.emplace(*device_, tools, int64_t{1} << 30);
  }

  const templates::Op& op() const { return templates::require_op("sparse_mla_decode"); }
  const templates::Kit& kit() const { return templates::require_kit(op()); }
  const Gpu& gpu() const { return device_->info().gpu; }

  Sizes shape(int64_t heads, int64_t window, int64_t compressed) const {
    return {{"H", heads},
            {"window_format", window},
            {"compressed_format", compressed},
            {"probability", 0},
            {"inverse_rope", 0}};
  }

  Config config(const Sizes& fixed_sizes, const Config& changes) const {
    const Config all = op().default_config(fixed_sizes).merged(changes);
    return templates::parse_config(op(), fixed_sizes, gpu(), templates::config_json(all));
  }

  tuner::RunnableKernel loaded(const jit::KernelSource& source,
                               const templates::KernelLaunch& launch, const Sizes& fixed_sizes,
                               const std::string& what) {
    const tuner::BinaryPtr binary =
        binaries_.get(source, gpu().arch(), templates::compile_options(launch));
    const runtime::LoadedKernel kernel =
        device_->load(*binary, launch.threads, launch.dynamic_smem_bytes);
    device_->describe(kernel, {&op(), fixed_sizes, what});
    return {launch.entry, kernel, launch.grid_x, launch.grid_y, launch.grid_z};
  }

  tuner::RunnablePlan plan(const Sizes& fixed_sizes, const Config& with,
                           const Mutant* mutant = nullptr) {
    const templates::LaunchPlan launches = op().plan(fixed_sizes, with, gpu());
    tuner::RunnablePlan runnable;
    runnable.workspace_bytes = launches.workspace_bytes;
    for (const templates::KernelLaunch& launch : launches.kernels) {
      jit::KernelSource source = templates::kernel_source(op(), launch);
      if (mutant != nullptr) {
        change(source.main, *mutant);
        for (jit::SourceFile& header : source.headers) change(header, *mutant);
      }
      runnable.kernels.push_back(
          loaded(source, launch, fixed_sizes, templates::config_json(with).dump()));
    }
    return runnable;
  }

  tuner::RunnablePlan oracle(const Sizes& fixed_sizes) {
    const templates::KernelLaunch launch = kit().oracle(fixed_sizes);
    tuner::RunnablePlan runnable;
    runnable.kernels.push_back(
        loaded(templates::kernel_source(op(), launch), launch, fixed_sizes, "the oracle"));
    return runnable;
  }

  std::unique_ptr<tuner::PreparedCase> prepared(const Case& c) {
    auto prepared_case = std::make_unique<tuner::PreparedCase>(
        *tools_, kit(), c, tuner::PreparedCase::Alignment::natural);
    prepared_case->prove_oracle(oracle(c.sizes));
    return prepared_case;
  }

  Case case_named(const std::string& name, const Sizes& fixed_sizes) const {
    for (const Case& c : kit().verify_cases(fixed_sizes, {{"T", 1}})) {
      if (c.name == name) return c;
    }
    ADD_FAILURE() << "no case is named " << name;
    return {};
  }

  // Elements of a dense output, as bits.
  template <class T>
  static std::vector<T> elements(const tuner::PreparedCase& c, const std::string& arg,
                                 int64_t count) {
    constexpr size_t kGuardBytes = 4096;  // before the first element
    const std::vector<std::byte> bytes = c.outputs().at(arg);
    std::vector<T> values(static_cast<size_t>(count));
    std::memcpy(values.data(), bytes.data() + kGuardBytes, values.size() * sizeof(T));
    return values;
  }

  static double value(uint16_t bits) {
    const uint32_t wide = uint32_t{bits} << 16;
    float result = 0;
    std::memcpy(&result, &wide, sizeof(result));
    return result;
  }

 private:
  static void change(jit::SourceFile& file, const Mutant& mutant) {
    if (!file.path.ends_with("sparse_mla_decode/" + mutant.file)) return;
    const size_t at = file.text.find(mutant.right);
    ASSERT_NE(at, std::string::npos) << mutant.name << ": " << mutant.file << " has changed";
    file.text.replace(at, mutant.right.size(), mutant.wrong);
  }

  const std::unique_ptr<cache::Store> store_ = cache::Store::open({.path = ":memory:"});
  tuner::Binaries binaries_{*store_};
  const std::unique_ptr<runtime::Device> device_;
  std::optional<tuner::DeviceTools> tools_;
};

TEST_F(SparseMlaDecodeOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> mutants{
      {"the last slot of a list is dropped", "kernel.cu", "column < static_cast<u32>(list.len) ?",
       "column + 1 < static_cast<u32>(list.len) ?"},
      {"slots that do not exist count", "kernel.cu", "(mine >> (8 * v + e) & 1) != 0", "true"},
      {"the sink counts twice", "layout.cuh", "__fadd_rn(state.sum, exp2_approx(",
       "__fadd_rn(state.sum, 2.0f * exp2_approx("},
      {"the wrong page", "cache.cuh", "static_cast<i64>(page) * list.page_stride",
       "static_cast<i64>(page > 1 ? page - 2 : page) * list.page_stride"},
      {"the neighbour's FP4 scale", "cache.cuh", "return 4 * chunk + t;",
       "return 4 * chunk + (t ^ 1);"},
      {"the neighbour's FP8 scale", "cache.cuh", "2 * chunk + (t >> 1)",
       "2 * chunk + (t >> 1 ^ 1)"},
      {"values keep an older maximum", "kernel.cu", "if (__syncthreads_or(factor != 1.0f))",
       "if (__syncthreads_or(factor != 1.0f) && false)"},
      {"the combine weighs the wrong split", "combine.cu",
       "const float w0 = __shfl_sync(all_lanes, weights[0][s / 4], lane / 4 * 4 + s % 4)",
       "const float w0 = __shfl_sync(all_lanes, weights[0][s / 4], lane / 4 * 4 + (s ^ 1) % 4)"},
      {"the combine leaves a split out", "combine.cu", "for (int s = 0; s < splits; ++s)",
       "for (int s = 0; s < splits - 1; ++s)"},
  };
  const Sizes fixed_sizes = shape(16, 1, 2);
  const Config with = config(fixed_sizes, {{"splits", 2}});
  std::vector<std::unique_ptr<tuner::PreparedCase>> cases;
  for (const char* name :
       {"plain", "each slot in turn has nearly all the weight", "-1 anywhere", "scores to +-100"})
    cases.push_back(prepared(case_named(name, fixed_sizes)));
  const auto verdict_of = [&](const tuner::RunnablePlan& candidate) {
    tuner::RunVerdict verdict;
    for (const auto& c : cases) {
      verdict = c->check(candidate);
      if (verdict.outcome != tuner::Outcome::passed) break;
    }
    return verdict;
  };
  const tuner::RunVerdict right = verdict_of(plan(fixed_sizes, with));
  EXPECT_EQ(right.outcome, tuner::Outcome::passed) << right.detail;
  for (const Mutant& mutant : mutants) {
    const tuner::RunVerdict verdict = verdict_of(plan(fixed_sizes, with, &mutant));
    EXPECT_EQ(verdict.outcome, tuner::Outcome::wrong) << mutant.name << ": " << verdict.detail;
  }
}

TEST_F(SparseMlaDecodeOnSimulator, EveryNumberOfSplitsIsRight) {
  const Sizes fixed_sizes = shape(6, 1, 2);
  const auto many = prepared(case_named("many columns", fixed_sizes));
  const auto few = prepared(case_named("one column", fixed_sizes));
  const auto empty = prepared(case_named("rows without valid columns", fixed_sizes));
  for (const int64_t splits : {1, 2, 5, 40}) {
    const tuner::RunnablePlan candidate =
        plan(fixed_sizes, config(fixed_sizes, {{"splits", splits}}));
    for (tuner::PreparedCase* c : {many.get(), few.get(), empty.get()}) {
      const tuner::RunVerdict verdict = c->check(candidate);
      EXPECT_EQ(verdict.outcome, tuner::Outcome::passed)
          << splits << " splits, " << c->call().name << ": " << verdict.detail;
    }
  }
}

TEST_F(SparseMlaDecodeOnSimulator, ConfigsOfOneSignatureGiveTheSameBits) {
  const Sizes fixed_sizes = shape(40, 1, 2);
  const auto c = prepared(case_named("many columns", fixed_sizes));
  const Config one{{"splits", 4}, {"heads_per_cta", 32}, {"ctas_per_sm", 1}};
  const Config other{{"stages", 2}, {"query_quarters_in_registers", 1}, {"score_m_tiles", 2}};
  const std::vector<Config> configs{config(fixed_sizes, one),
                                    config(fixed_sizes, one.merged(other))};
  std::vector<std::map<std::string, std::vector<uint32_t>>> results;
  std::vector<std::string> signatures;
  for (const Config& each : configs) {
    const tuner::RunVerdict verdict = c->check(plan(fixed_sizes, each));
    ASSERT_EQ(verdict.outcome, tuner::Outcome::passed) << verdict.detail;
    results.push_back({{"out", elements<uint32_t>(*c, "out", 40 * 256)},
                       {"lse", elements<uint32_t>(*c, "lse", 40)}});
    signatures.push_back(op().plan(fixed_sizes, each, gpu()).reduction_signature);
  }
  EXPECT_EQ(signatures[0], signatures[1]);
  EXPECT_EQ(results[0], results[1]);
}

TEST_F(SparseMlaDecodeOnSimulator, ARowAloneEqualsTheRowInABatch) {
  const Sizes fixed_sizes = shape(8, 3, 3);
  const Case together = case_named("lengths below zero and beyond the width", fixed_sizes);
  for (const int64_t splits : {1, 4}) {
    const tuner::RunnablePlan candidate =
        plan(fixed_sizes, config(fixed_sizes, {{"splits", splits}}));
    const auto batch = prepared(together);
    ASSERT_EQ(batch->check(candidate).outcome, tuner::Outcome::passed);
    const std::vector<uint16_t> all = elements<uint16_t>(*batch, "out", 5 * 8 * 512);
    for (const int64_t row : {1, 4}) {
      Case alone = together;
      alone.sizes.set("T", 1);
      alone.knobs.set("slot_rows", 5);
      alone.knobs.set("first_row", row);
      const auto one = prepared(alone);
      ASSERT_EQ(one->check(candidate).outcome, tuner::Outcome::passed);
      const auto begin = all.begin() + row * 8 * 512;
      EXPECT_EQ(elements<uint16_t>(*one, "out", 8 * 512),
                std::vector<uint16_t>(begin, begin + 8 * 512))
          << "row " << row << ", " << splits << " splits";
    }
  }
}

TEST_F(SparseMlaDecodeOnSimulator, TheOrderOfSlotsChangesRoundingOnly) {
  const Sizes fixed_sizes = shape(8, 1, 2);
  const tuner::RunnablePlan candidate = plan(fixed_sizes, config(fixed_sizes, {}));
  Case c = case_named("many columns", fixed_sizes);
  const auto out_of = [&] {
    const auto prepared_case = prepared(c);
    EXPECT_EQ(prepared_case->check(candidate).outcome, tuner::Outcome::passed);
    return elements<uint16_t>(*prepared_case, "out", 8 * 512);
  };
  const std::vector<uint16_t> straight = out_of();
  c.knobs.set("rotation", 29);
  const std::vector<uint16_t> rotated = out_of();
  double error = 0, squares = 0;
  for (size_t i = 0; i < straight.size(); ++i) {
    error += std::pow(value(straight[i]) - value(rotated[i]), 2);
    squares += std::pow(value(straight[i]), 2);
  }
  EXPECT_NE(straight, rotated);  // the order did change
  EXPECT_LT(std::sqrt(error / squares), 1.0 / 256);
}

}  // namespace
}  // namespace kiln
