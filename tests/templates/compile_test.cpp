// Every op compiles for the GPUs it is for: the defaults of the model's shapes and six seeded
// configs, without spills.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "jit/compiler.h"
#include "templates/kit.h"

namespace kiln::templates {
namespace {

constexpr uint64_t kSeed = 20260901;
constexpr int kSeededConfigs = 6;

std::vector<Config> default_and_seeded(const Op& op, const Sizes& shape, const Gpu& gpu) {
  const std::vector<Config> all = enumerate(op, shape, gpu).configs;
  std::set<size_t> chosen{0};
  for (uint64_t draw = 0; chosen.size() < std::min<size_t>(kSeededConfigs + 1, all.size());
       ++draw) {
    chosen.insert(counter_bits(kSeed, 0, draw) % all.size());
  }
  std::vector<Config> configs;
  for (const size_t index : chosen) configs.push_back(all[index]);
  return configs;
}

class CompileFor : public testing::TestWithParam<const char*> {};

TEST_P(CompileFor, C01C07SeededConfigsCompileAndDefaultsDoNotSpill) {
  const Gpu& gpu = find_gpu(GetParam());
  jit::CompilePool pool(jit::Compiler::load(), jit::pool_size().workers);
  struct Job {
    std::string what;
    bool is_default;
    std::shared_future<jit::Binary> binary;
  };
  std::vector<Job> jobs;
  for (const Op* op : ops()) {
    const std::vector<Sizes> shapes = op->model_shapes(2);
    for (size_t i = 0; i < shapes.size(); ++i) {
      // The default of every shape; the seeded configs go round the shapes.
      std::vector<Config> all = default_and_seeded(*op, shapes[i], gpu);
      std::vector<Config> configs{all.front()};
      for (size_t n = 1 + i; n < all.size(); n += shapes.size()) configs.push_back(all[n]);
      for (const Config& config : configs) {
        for (const KernelLaunch& kernel : op->plan(shapes[i], config, gpu).kernels) {
          jobs.push_back(
              {op->name + " " + config_json(config).dump(), config == configs.front(),
               pool.submit(kernel_source(*op, kernel), gpu.arch(), compile_options(kernel))});
        }
      }
    }
  }
  for (const Job& job : jobs) {
    const jit::Binary& binary = job.binary.get();
    EXPECT_GT(binary.resources.registers, 0) << job.what;
    if (!job.is_default) continue;
    EXPECT_EQ(binary.resources.spill_store_bytes, 0) << job.what << "\n" << binary.log;
    EXPECT_EQ(binary.resources.stack_bytes, 0) << job.what << "\n" << binary.log;
  }
}

TEST_P(CompileFor, Oracles) {
  const Gpu& gpu = find_gpu(GetParam());
  const auto compiler = jit::Compiler::load();
  for (const Kit* kit : kits()) {
    const KernelLaunch launch = kit->oracle(kit->op->model_shapes(2).front());
    EXPECT_GT(
        compiler->compile(kernel_source(*kit->op, launch), gpu.arch(), compile_options(launch))
            .image.size(),
        0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, CompileFor, testing::Values("a100-sxm4-80gb", "rtx-3090"),
                         [](const auto& gpu) {
                           std::string name = gpu.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

std::vector<std::string> includes_of(const std::string& text) {
  std::vector<std::string> includes;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#include \"")) includes.push_back(line.substr(10, line.rfind('"') - 10));
  }
  return includes;
}

// What is shared among oracles or among kits is not shared with kernels.
TEST(Sources, OraclesIncludeOnlyWhatIsGeneratedOrNaive) {
  for (const Op* op : ops()) {
    const jit::SourceFile* oracle = find_source("templates/" + op->name + "/oracle.cu");
    ASSERT_NE(oracle, nullptr) << op->name;
    std::vector<std::string> includes = includes_of(oracle->text);
    std::erase_if(includes, [](const auto& name) { return name.starts_with("templates/naive/"); });
    const std::vector<std::string> generated{"kiln_args.h", "kiln_constants.h"};
    EXPECT_EQ(includes, generated) << op->name;
  }
}

TEST(Sources, KernelsAndOraclesShareNoHeader) {
  for (const jit::SourceFile& file : builtin_sources()) {
    const bool is_naive = file.path.starts_with("templates/naive/");
    if (file.path.ends_with("/oracle.cu")) continue;
    for (const std::string& name : includes_of(file.text))
      EXPECT_EQ(name.starts_with("templates/naive/"), is_naive) << file.path << ": " << name;
  }
}

TEST(Sources, KitsIncludeOnlyTheKitInterface) {
  const std::string folder = std::string(KILN_SOURCE_DIR) + "/templates/";
  std::vector<std::string> kits;
  for (const char* part : {"bf16", "insert", "norm", "quantise", "rope"}) {
    for (const char* ending : {".cpp", ".h"}) kits.push_back(std::string("kit_") + part + ending);
  }
  for (const Op* op : ops()) kits.push_back(op->name + "/kit.cpp");
  for (const std::string& kit : kits) {
    std::ifstream file(folder + kit);
    ASSERT_TRUE(file) << kit;
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    for (const std::string& name : includes_of(text))
      EXPECT_TRUE(name.starts_with("templates/kit") && name.ends_with(".h")) << kit << ": " << name;
  }
}

}  // namespace
}  // namespace kiln::templates
