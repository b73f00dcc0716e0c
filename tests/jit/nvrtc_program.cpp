// What nvrtc_versions_test.cpp runs with one NVRTC after the other: a process keeps the one that it
// has. Prints one JSON object.
//   compile SLUG...                the defaults of the model's shapes for these GPUs
//   simulate TOOLS                 one call of every op on a simulated GPU; TOOLS: a store that
//                                  keeps the kernels of the checks for the next process
//   serve DEVICE STORE WORKLOAD    what a session prepares, and how
//   exit DEVICE                    a thread prepares, main ends the process and closes nothing
// KILN_TEST_FULL: compile takes every shape and not the first of each op.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "jit/base/json.h"
#include "jit/compiler.h"
#include "runtime/abi/kiln.h"
#include "runtime/device.h"
#include "templates/kit.h"
#include "tuner/binaries.h"
#include "tuner/device_tools.h"
#include "tuner/tensors.h"
#include "tuner/trial.h"

namespace kiln {
namespace {

using templates::Case;
using templates::Config;
using templates::Kit;
using templates::Op;
using templates::Sizes;

bool is_full() { return std::getenv("KILN_TEST_FULL") != nullptr; }

std::string hash_of(std::string_view bytes) { return hash_text(bytes).hex(); }

Json compile(const std::vector<std::string>& slugs) {
  const std::shared_ptr<jit::Compiler> compiler = jit::Compiler::load();
  jit::CompilePool pool(compiler, jit::pool_size().workers);
  std::map<std::string, std::shared_future<jit::Binary>> jobs;
  for (const std::string& slug : slugs) {
    const Gpu& gpu = find_gpu(slug);
    for (const Op* op : templates::ops()) {
      std::vector<Sizes> shapes = op->model_shapes(2);
      if (!is_full()) shapes.resize(1);
      for (const Sizes& shape : shapes) {
        const Config config = op->default_config(shape);
        for (const templates::KernelLaunch& kernel : op->plan(shape, config, gpu).kernels) {
          const std::string what =
              fmt::format("{} {} {} {}", op->name, templates::shape_json(*op, shape).dump(),
                          kernel.entry, gpu.arch());
          jobs[what] = pool.submit(templates::kernel_source(*op, kernel), gpu.arch(),
                                   templates::compile_options(kernel));
        }
      }
    }
  }
  Json kernels = Json::object();
  for (const auto& [what, job] : jobs) {
    const jit::Binary& binary = job.get();
    kernels[what] = {
        {"key", binary.key.hex()},
        {"registers", binary.resources.registers},
        {"spill_bytes", binary.resources.spill_store_bytes + binary.resources.spill_load_bytes},
        {"stack_bytes", binary.resources.stack_bytes},
        {"image", hash_of(binary.image)}};
  }
  return {{"version", compiler->version()}, {"kernels", kernels}};
}

// The largest call that is worth a fraction of a second here and computes something.
struct SmallCall {
  Sizes shape;
  Case call;
};
std::optional<SmallCall> small_call(const Kit& kit) {
  constexpr int64_t kMostBytes = int64_t{1} << 20;
  constexpr double kMostMmaFma = 1 << 21;
  const Op& op = *kit.op;
  std::vector<Sizes> shapes = op.model_shapes(2);
  if (kit.further_shapes != nullptr) {
    for (const Sizes& shape : kit.further_shapes()) shapes.push_back(shape);
  }
  std::optional<SmallCall> best;
  int64_t best_bytes = 0;
  for (const Sizes& shape : shapes) {
    for (const Case& c : kit.verify_cases(shape, templates::all_buckets(op).front())) {
      int64_t bytes = 0;
      bool has_work = true;
      for (const tuner::TensorPlan& tensor : tuner::tensor_plans(op, c)) {
        bytes += tensor.bytes();
        has_work &= tensor.arg->kind == templates::ArgKind::input || tensor.bytes() > 0;
      }
      const double fma = op.cost(templates::with_derived(op, c.sizes)).mma_fma;
      if (!has_work || bytes > kMostBytes || fma > kMostMmaFma || bytes <= best_bytes) continue;
      best_bytes = bytes;
      best = {shape, c};
    }
  }
  return best;
}

class Simulation {
 public:
  explicit Simulation(const std::string& tools_path)
      : tools_store_(cache::Store::open({.path = tools_path})) {
    tuner::Binaries binaries(*tools_store_);
    std::map<std::string, jit::Binary> tools;
    for (const auto& [entry, binary] : binaries.tools(arch())) {
      tools[entry] = *binary;
      binaries.keep(binary);
    }
    tools_ = std::make_unique<tuner::DeviceTools>(*device_, tools, int64_t{1} << 28);
  }

  // The outputs of a call by name, as hashes.
  Json outputs(const Kit& kit, const SmallCall& small) {
    const Op& op = *kit.op;
    const Config config = op.default_config(small.shape);
    const templates::LaunchPlan launches = op.plan(small.shape, config, device_->info().gpu);
    tuner::RunnablePlan plan;
    plan.workspace_bytes = launches.workspace_bytes;
    for (const templates::KernelLaunch& launch : launches.kernels) {
      plan.kernels.push_back(loaded(op, launch, small.shape, *store_));
    }
    tuner::PreparedCase prepared(*tools_, kit, small.call, tuner::PreparedCase::Alignment::natural);
    tuner::RunnablePlan oracle;
    oracle.kernels.push_back(
        loaded(op, kit.oracle(small.call.sizes), small.call.sizes, *tools_store_));
    prepared.prove_oracle(oracle);
    const tuner::RunVerdict verdict = prepared.check(plan);
    Json outputs = Json::object();
    for (const auto& [name, bytes] : prepared.outputs()) {
      outputs[name] = hash_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
    return {{"case", small.call.name},
            {"passed", verdict.outcome == tuner::Outcome::passed},
            {"detail", verdict.detail},
            {"outputs", outputs}};
  }

  int made_here() const { return made_here_; }

 private:
  std::string arch() const { return device_->info().gpu.arch(); }

  tuner::RunnableKernel loaded(const Op& op, const templates::KernelLaunch& launch,
                               const Sizes& fixed, cache::Store& store) {
    tuner::Binaries binaries(store);
    const tuner::BinaryPtr binary = binaries.get(templates::kernel_source(op, launch), arch(),
                                                 templates::compile_options(launch));
    binaries.keep(binary);
    const bool is_own = &store == store_.get();
    if (is_own && binary->nvrtc_version == jit::Compiler::load()->version()) ++made_here_;
    const runtime::LoadedKernel kernel =
        device_->load(*binary, launch.threads, launch.dynamic_smem_bytes);
    device_->describe(kernel, {&op, fixed, "its default"});
    return {launch.entry, kernel, launch.grid_x, launch.grid_y, launch.grid_z};
  }

  const std::unique_ptr<cache::Store> tools_store_;
  const std::unique_ptr<cache::Store> store_ = cache::Store::open({.path = ":memory:"});
  const std::unique_ptr<runtime::Device> device_ = runtime::Device::open("sim:a100-sxm4-80gb");
  std::unique_ptr<tuner::DeviceTools> tools_;
  int made_here_ = 0;
};

Json simulate(const std::string& tools_path) {
  Simulation simulation(tools_path);
  Json ops = Json::object();
  for (const Kit* kit : templates::kits()) {
    const std::optional<SmallCall> small = small_call(*kit);
    ops[kit->op->name] = small ? simulation.outputs(*kit, *small) : Json();
  }
  return {{"version", jit::Compiler::load()->version()},
          {"kernels", simulation.made_here()},
          {"ops", ops}};
}

kiln_status open_session(const char* device, const char* store, Json& log, kiln_session** session) {
  kiln_options options{};
  options.size = sizeof options;
  options.device = device;
  options.store = store;
  options.log_user = &log;
  options.log_level = KILN_LOG_INFO;
  options.log = [](void* user, kiln_log_level, const char* line) {
    static_cast<Json*>(user)->push_back(line);
  };
  return kiln_open(&options, session);
}

std::string hex(const uint8_t (&bytes)[16]) {
  Hash128 hash;
  std::copy(std::begin(bytes), std::end(bytes), hash.bytes.begin());
  return hash.hex();
}

Json serve(const char* device, const char* store, const char* workload) {
  Json log = Json::array();
  kiln_session* session = nullptr;
  kiln_status status = open_session(device, store, log, &session);
  if (status == KILN_OK) status = kiln_prepare(session, workload, nullptr, nullptr);
  const std::string error = status == KILN_OK ? "" : kiln_last_error();
  kiln_stats stats{};
  stats.size = sizeof stats;
  kiln_digests digests{};
  digests.size = sizeof digests;
  if (session != nullptr) {
    kiln_get_stats(session, &stats);
    kiln_get_digests(session, &digests);
    kiln_close(session);
  }
  return {{"status", kiln_status_name(status)},
          {"error", error},
          {"log", log},
          {"compiles", stats.compiles},
          {"binary_hits", stats.binary_hits},
          {"exact", hex(digests.exact)},
          {"numerics", hex(digests.numerics)}};
}

[[noreturn]] void prepare_in_a_thread_and_exit(const char* device) {
  std::thread([device] {
    Json log = Json::array();
    kiln_session* session = nullptr;
    const char* workload = R"({"ops": [{"op": "combine_topk_swa"}]})";
    kiln_status status = open_session(device, ":memory:", log, &session);
    if (status == KILN_OK) status = kiln_prepare(session, workload, nullptr, nullptr);
    const std::string error = status == KILN_OK ? "" : kiln_last_error();
    fmt::print("{}\n",
               Json{{"status", kiln_status_name(status)}, {"error", error}, {"log", log}}.dump());
    std::fflush(stdout);
  }).join();
  std::exit(0);
}

int run(const std::vector<std::string>& words) {
  const std::string mode = words.empty() ? "" : words[0];
  const std::vector<std::string> rest(words.begin() + !words.empty(), words.end());
  Json answer;
  if (mode == "compile" && !rest.empty()) {
    answer = compile(rest);
  } else if (mode == "simulate" && rest.size() == 1) {
    answer = simulate(rest[0]);
  } else if (mode == "serve" && rest.size() == 3) {
    answer = serve(rest[0].c_str(), rest[1].c_str(), rest[2].c_str());
  } else if (mode == "exit" && rest.size() == 1) {
    prepare_in_a_thread_and_exit(rest[0].c_str());
  } else {
    return 2;
  }
  fmt::print("{}\n", answer.dump());
  return 0;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) {
  try {
    return kiln::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
