#include "tests/tuner/toy_op.h"

#include <cstring>

#include "tuner/device_tools.h"

namespace kiln::testing {
namespace {

using namespace templates;

std::vector<int64_t>& toy_space() {
  static std::vector<int64_t> behaviours{kToyDefault, kToyFast, kToyMiddling};
  return behaviours;
}

const char* kSource = R"(
#include "kiln_args.h"
#include "kiln_constants.h"  // scale, behaviour
extern "C" __global__ void toy(const __grid_constant__ Args args) {
  for (long long r = blockIdx.x; r < args.num_rows; r += gridDim.x) {
    for (long long c = threadIdx.x; c < args.num_columns && c < args.limit; c += blockDim.x) {
      args.y[r * args.y_stride + c] = args.x[r * args.x_stride + c] * scale;
    }
  }
}
)";

int threads_of(int64_t behaviour) {
  switch (behaviour) {
    case kToyDefault:
      return 32;
    case kToyFast:
      return 128;
    case kToyFastMoreRegisters:
      return 256;
    default:
      return 64;
  }
}

int32_t x_at(const Case& c, int64_t r, int64_t column) {
  return static_cast<int32_t>(
      counter_range(c.seed, 1, static_cast<uint64_t>(r * c.sizes["N"] + column), -1000, 1000));
}

Case toy_case(std::string name, const Sizes& fixed, int64_t rows, int64_t columns, int64_t limit,
              Sizes strides, uint64_t seed) {
  Case c{.name = std::move(name), .strides = std::move(strides), .seed = seed};
  c.sizes = fixed.merged({{"R", rows}, {"N", columns}, {"limit", limit}});
  return c;
}

void put_binary(cache::Store& store, const jit::KernelSource& source, const std::string& arch,
                const jit::CompileOptions& options, const Json& image) {
  jit::Binary binary;
  binary.key = jit::binary_key(source, arch, options);
  binary.source_hash = hash_text(source.main.text);
  binary.arch = arch;
  binary.entry = source.entry;
  binary.image = image.dump();
  binary.resources.registers = 32;
  binary.nvrtc_version = "0.0";
  store.put_binary(binary);
}

}  // namespace

const Op& toy_op() {
  static const Op op{
      .name = "toy",
      .version = 1,
      .summary = "A test.",
      .source = "this file",
      .sizes = {fixed("scale", "scale", "factor", 1, 100), dynamic("R", "num_rows", "rows", 0),
                dynamic("N", "num_columns", "columns", 0),
                dynamic("limit", "limit", "columns that are written", 0)},
      .args = {in("x", DType::i32, "R N", "input"), out("y", DType::i32, "R N", "output")},
      .buckets = {{"R", {4, 64}}},
      .model_shapes =
          [](int) {
            return std::vector<Sizes>{{{"scale", 3}}};
          },
      .cost =
          [](const Sizes& s) {
            const double bytes = 4.0 * static_cast<double>(s["R"]) *
                                 static_cast<double>(std::min(s["N"], s["limit"]));
            return Cost{.cold_read_bytes = bytes, .write_bytes = bytes};
          },
      .space =
          [](const Sizes&, const Gpu&) {
            Space space;
            space.axes = {{"behaviour", toy_space(), "what it does"}, {"twin", {0, 1}, "nothing"}};
            space.rules = {{"the twin of the default is not legal",
                            [](const Sizes&, const Config& c, const Gpu&) {
                              return c["twin"] == 0 || c["behaviour"] != kToyDefault;
                            }}};
            return space;
          },
      .default_config =
          [](const Sizes&) {
            return Config{{"behaviour", kToyDefault}, {"twin", 0}};
          },
      .plan =
          [](const Sizes& s, const Config& c, const Gpu&) {
            KernelLaunch launch{.file = "kernel.cu", .entry = "toy"};
            launch.constants = {{"scale", "int", std::to_string(s["scale"])},
                                {"behaviour", "int", std::to_string(c["behaviour"])}};
            launch.grid_x = {.terms = {{.symbol = "R"}}};
            launch.threads = threads_of(c["behaviour"]);
            return LaunchPlan{.kernels = {launch},
                              .reduction_signature = "order " + std::to_string(c["behaviour"])};
          },
      .model =
          [](const Sizes& s, const Config& c, const Gpu&) {
            return ModelHints{.instructions_per_thread =
                                  20 * static_cast<double>(s["N"]) / threads_of(c["behaviour"])};
          },
  };
  return op;
}

const Kit& toy_kit() {
  static const Kit kit{
      .op = &toy_op(),
      .measured_case =
          [](const Sizes& fixed, const Sizes& bucket) {
            return toy_case("measured", fixed, bucket["R"], 4096, 4096, {}, 1);
          },
      .verify_cases =
          [](const Sizes& fixed, const Sizes& bucket) {
            return std::vector<Case>{toy_case("part of the columns", fixed, bucket["R"], 33, 20,
                                              {{"y_stride", 40}, {"x_stride", 37}}, 2),
                                     toy_case("no rows", fixed, 0, 8, 8, {}, 3),
                                     toy_case("large", fixed, 70, 1000, 1000, {}, 4)};
          },
      .fill =
          [](const Case& c, const Arg&, std::span<const int64_t> outer, std::span<std::byte> row) {
            for (size_t i = 0; i * 4 < row.size(); ++i) {
              const int32_t value = x_at(c, outer[0], static_cast<int64_t>(i));
              std::memcpy(row.data() + 4 * i, &value, 4);
            }
          },
      .expected = [](const Case& c, const Arg&,
                     std::span<const int64_t> index) -> std::optional<double> {
        if (index[1] >= c.sizes["limit"]) return std::nullopt;
        return static_cast<double>(x_at(c, index[0], index[1])) *
               static_cast<double>(c.sizes["scale"]);
      },
      .oracle =
          [](const Sizes& fixed) {
            KernelLaunch launch{.file = "kernel.cu", .entry = "toy"};
            launch.constants = {{"scale", "int", std::to_string(fixed["scale"])}};
            launch.grid_x = {.terms = {{.symbol = "R"}}};
            return launch;
          },
  };
  return kit;
}

void register_toy() {
  if (find_op("toy") != nullptr) return;
  register_test_op(&toy_op());
  register_test_kit(&toy_kit());
  register_test_source({"templates/toy/kernel.cu", kSource});
}

void set_toy_space(std::vector<int64_t> behaviours) { toy_space() = std::move(behaviours); }

void store_tool_binaries(cache::Store& store, const std::string& arch) {
  for (const auto& [file, entry] : tuner::tool_kernels()) {
    put_binary(store, tuner::tool_source(file, entry), arch, {}, {{"kernel", entry}});
  }
}

void store_toy_binaries(cache::Store& store, const std::string& arch, int64_t scale) {
  store_tool_binaries(store, arch);
  const Sizes shape{{"scale", scale}};
  const Gpu& gpu = find_gpu("a100-sxm4-80gb");
  for (int64_t behaviour = 0; behaviour < kToyBehaviours; ++behaviour) {
    const KernelLaunch launch =
        toy_op().plan(shape, {{"behaviour", behaviour}, {"twin", 0}}, gpu).kernels[0];
    put_binary(store, kernel_source(toy_op(), launch), arch, compile_options(launch),
               {{"kernel", "toy"}, {"scale", scale}, {"behaviour", behaviour}});
  }
  const KernelLaunch oracle = toy_kit().oracle(shape);
  put_binary(
      store, kernel_source(toy_op(), oracle), arch, compile_options(oracle),
      {{"kernel", "toy"}, {"scale", scale}, {"behaviour", static_cast<int64_t>(kToyDefault)}});
}

}  // namespace kiln::testing
