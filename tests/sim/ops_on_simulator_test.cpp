// Every op on the simulator with its checker: candidates against the oracle on every case of the
// kit, through the same child process as on a GPU. An op may take 30 core-seconds, so the few large
// cases are for the first candidate alone, and four seeded candidates go round the shapes
// beside their defaults. KILN_TEST_FULL=1 takes every candidate on every case.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "runtime/device.h"
#include "templates/kit.h"
#include "tests/ops_testing.h"
#include "tuner/binaries.h"
#include "tuner/candidates.h"
#include "tuner/device_worker.h"
#include "tuner/tensors.h"

namespace kiln {
namespace {

using templates::Config;
using templates::Kit;
using templates::Sizes;

constexpr size_t kSeeded = 4;

bool is_full() { return std::getenv("KILN_TEST_FULL") != nullptr; }

std::vector<Config> chosen_configs(const templates::Op& op, const Sizes& shape, const Gpu& gpu,
                                   size_t seeded) {
  constexpr uint64_t kSeed = 20261129;
  const std::vector<Config> all = templates::enumerate(op, shape, gpu).configs;
  if (is_full()) return all;
  std::set<size_t> chosen{0};
  for (uint64_t draw = 0; chosen.size() < std::min(seeded + 1, all.size()); ++draw)
    chosen.insert(templates::counter_bits(kSeed, 0, draw) % all.size());
  std::vector<Config> configs;
  for (const size_t index : chosen) configs.push_back(all[index]);
  return configs;
}

// Calls whose tensors and whose products are worth less than a second of one core.
std::vector<templates::Case> small_cases(const Kit& kit, std::vector<templates::Case> cases) {
  constexpr int64_t kMostBytes = int64_t{8} << 20;
  constexpr double kMostMmaFma = 1 << 23;
  std::erase_if(cases, [&](const templates::Case& c) {
    int64_t bytes = 0;
    for (const tuner::TensorPlan& tensor : tuner::tensor_plans(*kit.op, c)) bytes += tensor.bytes();
    const double fma = kit.op->cost(templates::with_derived(*kit.op, c.sizes)).mma_fma;
    return bytes > kMostBytes || fma > kMostMmaFma;
  });
  return cases;
}

// Whether some call has anything to compute.
bool has_work(const Kit& kit, const std::vector<templates::Case>& cases) {
  return std::any_of(cases.begin(), cases.end(), [&](const templates::Case& c) {
    const std::vector<tuner::TensorPlan> tensors = tuner::tensor_plans(*kit.op, c);
    return std::all_of(tensors.begin(), tensors.end(), [](const tuner::TensorPlan& tensor) {
      return tensor.arg->kind == templates::ArgKind::input || tensor.bytes() > 0;
    });
  });
}

std::vector<Sizes> all_shapes(const Kit& kit) {
  std::vector<Sizes> shapes = kit.op->model_shapes(2);
  if (kit.further_shapes != nullptr) {
    for (const Sizes& shape : kit.further_shapes()) shapes.push_back(shape);
  }
  return shapes;
}

class OpsOnSimulator : public testing::TestWithParam<const Kit*> {};

TEST_P(OpsOnSimulator, CandidatesEqualTheOracleOnEveryCase) {
  const Kit& kit = *GetParam();
  const templates::Op& op = *kit.op;
  ProvingDevice device("sim:rtx-3090");
  const Gpu& gpu = device.gpu;
  ASSERT_EQ(gpu.arch(), "compute_80");
  const Sizes bucket = templates::all_buckets(op).front();
  // Shapes whose weights are too large for here are left to a GPU.
  std::vector<Sizes> shapes = all_shapes(kit);
  if (!is_full()) {
    std::erase_if(shapes, [&](const Sizes& shape) {
      return !has_work(kit, small_cases(kit, kit.verify_cases(shape, bucket)));
    });
  }
  ASSERT_FALSE(shapes.empty());
  bool is_first = true;
  for (size_t s = 0; s < shapes.size(); ++s) {
    const Sizes& shape = shapes[s];
    const size_t seeded = (kSeeded + shapes.size() - 1 - s) / shapes.size();
    for (const Config& config : chosen_configs(op, shape, gpu, seeded)) {
      std::vector<templates::Case> cases = kit.verify_cases(shape, bucket);
      if (!is_first && !is_full()) cases = small_cases(kit, std::move(cases));
      is_first = false;
      const tuner::RunVerdict verdict = device.verify(kit, shape, config, cases);
      EXPECT_EQ(verdict.outcome, tuner::Outcome::passed)
          << op.name << " " << templates::shape_json(op, shape).dump() << " "
          << templates::config_json(config).dump() << ": " << verdict.detail;
    }
  }
}

// The default config over the matrix of sizes, as far as a call takes little time here.
TEST_P(OpsOnSimulator, MatrixOfSmallSizes) {
  constexpr int64_t kMostRows = 64;
  const Kit& kit = *GetParam();
  const templates::Op& op = *kit.op;
  ProvingDevice device("sim:rtx-3090");
  int proven = 0;
  for (const MatrixCall& one : matrix_calls(kit, kMostRows)) {
    std::vector<templates::Case> calls{one.call};
    if (!is_full()) calls = small_cases(kit, std::move(calls));
    if (calls.empty()) continue;
    const tuner::RunVerdict verdict =
        device.verify(kit, one.shape, op.default_config(one.shape), calls);
    EXPECT_EQ(verdict.outcome, tuner::Outcome::passed)
        << op.name << " " << templates::shape_json(op, one.shape).dump() << " "
        << templates::dynamic_json(op, one.call.sizes).dump() << ": " << verdict.detail;
    ++proven;
  }
  if (proven == 0) GTEST_SKIP() << "no call of the model is small enough for here";
  std::printf("%s: %d calls\n", op.name.c_str(), proven);
}

INSTANTIATE_TEST_SUITE_P(All, OpsOnSimulator, testing::ValuesIn(templates::kits()),
                         [](const auto& kit) { return kit.param->op->name; });

}  // namespace
}  // namespace kiln
