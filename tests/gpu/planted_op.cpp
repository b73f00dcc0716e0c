#include "tests/gpu/planted_op.h"

#include <cstring>

#include "templates/kit.h"

namespace kiln::testing {
namespace {

using namespace templates;

// Passes are the outer loop, so that the second one finds nothing of the first in the L2.
const char* kKernel = R"(
#include "kiln_args.h"
#include "kiln_constants.h"  // variant
enum { slow, fast, wrong, trap, spin };

__device__ unsigned long long nanoseconds() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

extern "C" __global__ void __launch_bounds__(256) planted(const __grid_constant__ Args args) {
  const long long first = blockIdx.x * 256ll + threadIdx.x;
  const long long step = gridDim.x * 256ll;
  if (variant == trap) asm volatile("trap;");
  if (variant == spin) {
    const unsigned long long start = nanoseconds();
    while (nanoseconds() - start < 30000000000ull) {}
  }
  for (int pass = 0; pass < (variant == slow ? 2 : 1); ++pass) {
    for (long long i = first; i < args.num_elements; i += step) {
      const int value = static_cast<const volatile int*>(args.in)[i];
      static_cast<volatile int*>(args.out)[i] = value + 1 + (variant == wrong && i == args.num_elements / 2);
    }
  }
}
)";

const char* kOracle = R"(
#include "kiln_args.h"
extern "C" __global__ void planted_oracle(const __grid_constant__ Args args) {
  const long long i = blockIdx.x * 128ll + threadIdx.x;
  if (i < args.num_elements) args.out[i] = args.in[i] + 1;
}
)";

constexpr int64_t kMeasuredElements = int64_t{32} << 20;

int32_t in_at(const Case& c, int64_t i) {
  return static_cast<int32_t>(
      counter_range(c.seed, 1, static_cast<uint64_t>(i), -1000000, 1000000));
}

Case planted_case(std::string name, int64_t elements) {
  Case c{.name = std::move(name)};
  c.sizes = {{"kind", 1}, {"N", elements}};
  return c;
}

const Op kPlanted{
    .name = "planted",
    .version = 1,
    .summary = "A test.",
    .source = "this file",
    .sizes = {fixed("kind", "kind", "nothing", 1, 1), dynamic("N", "num_elements", "elements", 0)},
    .args =
        {
            [] {
              Arg arg = in("in", DType::i32, "N", "input");
              arg.memory = Memory::cold;
              return arg;
            }(),
            out("out", DType::i32, "N", "output"),
        },
    .model_shapes =
        [](int) {
          return std::vector<Sizes>{{{"kind", 1}}};
        },
    .cost =
        [](const Sizes& s) {
          const double bytes = 4.0 * static_cast<double>(s["N"]);
          return Cost{.cold_read_bytes = bytes, .write_bytes = bytes};
        },
    .space =
        [](const Sizes&, const Gpu&) {
          Space space;
          space.axes = {{"variant",
                         {kPlantedSlow, kPlantedFast, kPlantedWrong, kPlantedTrap, kPlantedSpin},
                         "what it does"}};
          return space;
        },
    .default_config =
        [](const Sizes&) {
          return Config{{"variant", kPlantedSlow}};
        },
    .plan =
        [](const Sizes&, const Config& c, const Gpu&) {
          KernelLaunch launch{.file = "kernel.cu", .entry = "planted"};
          launch.constants = {{"variant", "int", std::to_string(c["variant"])}};
          launch.grid_x = {.terms = {{.symbol = "N", .divisor = 256, .cap = 2048}}};
          launch.threads = 256;
          return LaunchPlan{.kernels = {launch}};
        },
    .model = [](const Sizes&, const Config&, const Gpu&) { return ModelHints{}; },
};

const Kit kPlantedKit{
    .op = &kPlanted,
    .measured_case = [](const Sizes&,
                        const Sizes&) { return planted_case("measured", kMeasuredElements); },
    .verify_cases =
        [](const Sizes&, const Sizes&) {
          return std::vector<Case>{planted_case("odd", 1000003), planted_case("one", 1),
                                   planted_case("none", 0)};
        },
    .fill =
        [](const Case& c, const Arg&, std::span<const int64_t>, std::span<std::byte> row) {
          for (size_t i = 0; i * 4 < row.size(); ++i) {
            const int32_t value = in_at(c, static_cast<int64_t>(i));
            std::memcpy(row.data() + 4 * i, &value, 4);
          }
        },
    .expected = [](const Case& c, const Arg&, std::span<const int64_t> index)
        -> std::optional<double> { return static_cast<double>(in_at(c, index[0])) + 1; },
    .oracle =
        [](const Sizes&) {
          KernelLaunch launch{.file = "oracle.cu", .entry = "planted_oracle"};
          launch.grid_x = {.terms = {{.symbol = "N", .divisor = 128}}};
          return launch;
        },
};

}  // namespace

void register_planted() {
  if (find_op("planted") != nullptr) return;
  register_test_op(&kPlanted);
  register_test_kit(&kPlantedKit);
  register_test_source({"templates/planted/kernel.cu", kKernel});
  register_test_source({"templates/planted/oracle.cu", kOracle});
}

}  // namespace kiln::testing
