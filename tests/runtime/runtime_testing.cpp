#include "tests/runtime/runtime_testing.h"

#include <dlfcn.h>

#include <cuda.h>
#include <stdlib.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "jit/base/error.h"
#include "jit/base/gpu.h"
#include "runtime/call.h"
#include "runtime/plan_record.h"
#include "runtime/workload.h"
#include "tests/fake_cuda/fake_cubin.h"

namespace kiln::runtime {
namespace {

using templates::Arg;
using templates::ArgKind;
using templates::Config;
using templates::DType;
using templates::KernelLaunch;
using templates::LaunchPlan;
using templates::Op;
using templates::Presence;
using templates::Sizes;
using templates::Space;

constexpr int64_t kMostRows = 10'000'000;

Space staged_space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {{"rows_per_cta", {1, 2, 4, 8}, ""}, {"splits", {1, 2, 4, 16}, ""}};
  space.rules = {{"more than 8 splits do not fit",
                  [](const Sizes&, const Config& c, const Gpu&) { return c["splits"] <= 8; }}};
  return space;
}

LaunchPlan staged_plan(const Sizes& fixed, const Config& config, const Gpu&) {
  KernelLaunch first{.file = "kernel.cu", .entry = "stage_rows"};
  first.constants = {{"width", "int", std::to_string(fixed["C"])},
                     {"splits", "int", std::to_string(config["splits"])}};
  first.grid_x = {.scale = config["splits"],
                  .terms = {{.symbol = "T", .divisor = config["rows_per_cta"]}}};
  first.dynamic_smem_bytes = 1024 * config["rows_per_cta"];
  KernelLaunch second{.file = "kernel.cu", .entry = "merge_rows"};
  second.constants = first.constants;
  second.grid_y = {.terms = {{.symbol = "T", .divisor = 16}}};
  return {.kernels = {first, second},
          .reduction_signature = "splits=" + std::to_string(config["splits"]),
          .workspace_bytes = {.scale = 256 * (config["splits"] - 1), .terms = {{"T"}}}};
}

Op make_staged_rows() {
  Op op;
  op.name = "staged_rows";
  op.summary = "Test only.";
  op.sizes = {
      templates::fixed("format", "format", "layout", {{"plain", 0}, {"packed", 1}}),
      templates::fixed("C", "width", "columns", 1, 4096),
      templates::dynamic("T", "num_rows", "rows", 0, kMostRows),
      templates::dynamic("W", "width_out", "columns of out", 0),
      templates::derived("padded", "padded column", [](const Sizes& s) { return s["W"] + 8; })};
  Arg in = templates::in("in", DType::bf16, "T C", "rows");
  in.align_bytes = 16;
  in.stride_multiple = 8;
  Arg scale = templates::in("scale", DType::u8, "T C", "scales");
  scale.presence = Presence::optional;
  op.args = {in, scale, templates::out("out", DType::f32, "T C padded", "result")};
  op.requirements = {{.small = {.terms = {{"C"}}},
                      .big = {.terms = {{"W"}}},
                      .sentence = "width_out is at least width"}};
  op.buckets = {{"T", {1, 16, 256, 4096}}};
  op.has_workspace = true;
  op.model_shapes = [](int tensor_parallel) {
    return std::vector<Sizes>{{{"format", 0}, {"C", 128 / tensor_parallel}}};
  };
  op.space = staged_space;
  op.default_config = [](const Sizes&) { return Config{{"rows_per_cta", 4}, {"splits", 1}}; };
  op.plan = staged_plan;
  return op;
}

void* address(uint64_t value) { return reinterpret_cast<void*>(value); }

}  // namespace

const Op& staged_rows() {
  static const Op* op = [] {
    static const Op made = make_staged_rows();
    templates::register_test_op(&made);
    templates::register_test_source({"templates/staged_rows/kernel.cu",
                                     "#include \"kiln_args.h\"\n#include \"kiln_constants.h\"\n"
                                     "extern \"C\" __global__ void stage_rows(Args args) {\n"
                                     "  if (args.num_rows < 0) args.out[0] = width + splits;\n}\n"
                                     "extern \"C\" __global__ void merge_rows(Args args) {\n"
                                     "  if (args.num_rows < 0) args.out[1] = width;\n}\n"});
    return &made;
  }();
  return *op;
}

int staged_rows_index() {
  const auto all = templates::ops();
  return static_cast<int>(std::find(all.begin(), all.end(), &staged_rows()) - all.begin());
}

StagedRowsArgs staged_rows_args(int64_t num_rows) {
  StagedRowsArgs args;
  args.in = address(0x10000);
  args.in_stride = 64;
  args.out = address(0x20000);
  args.out_stride0 = 72 * 64;
  args.out_stride1 = 72;
  args.num_rows = num_rows;
  args.width_out = 64;
  args.workspace = address(0x30000);
  args.workspace_bytes = uint64_t{1} << 40;
  return args;
}

kiln_status call_staged_rows(kiln_plan* plan, const StagedRowsArgs& args, void* stream) {
  return call_op(plan, staged_rows_index(), &args, stream);
}

kiln_combine_topk_swa_args combine_args(int64_t num_tokens) {
  kiln_combine_topk_swa_args args{};
  args.struct_bytes = sizeof args;
  args.topk = static_cast<const int32_t*>(address(0x1000));
  args.topk_stride = 512;
  args.query_start_loc = static_cast<const int32_t*>(address(0x2000));
  args.seq_lens = static_cast<const int32_t*>(address(0x3000));
  args.gather_lens = static_cast<const int32_t*>(address(0x4000));
  args.idx = static_cast<int32_t*>(address(0x5000));
  args.idx_stride = 640;
  args.len = static_cast<int32_t*>(address(0x6000));
  args.num_tokens = num_tokens;
  args.num_requests = 2;
  args.idx_width = 640;
  args.rows_per_request = 231;
  args.compressed_rows = 101;
  return args;
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "kiln-runtime-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "mkdtemp failed for " << pattern;
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

void LogLines::receive(void* user, kiln_log_level level, const char* line) {
  auto* log = static_cast<LogLines*>(user);
  static const char* const names[] = {"error", "warning", "info", "debug"};
  const std::lock_guard lock(log->mutex);
  log->lines.push_back(std::string(names[level]) + ": " + line);
}

bool LogLines::has(std::string_view part) { return count(part) > 0; }

int LogLines::count(std::string_view part) {
  const std::lock_guard lock(mutex);
  return static_cast<int>(std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
    return line.find(part) != std::string::npos;
  }));
}

std::string LogLines::text() {
  const std::lock_guard lock(mutex);
  return fmt::format("{}", fmt::join(lines, "\n"));
}

void expect_contains(std::string_view text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string_view::npos) << "\"" << part << "\" is not in: " << text;
}

const Gpu& fake_gpu(int device) { return find_gpu(device == 0 ? "a100-sxm4-80gb" : "rtx-3090"); }

std::vector<jit::Binary> fake_binaries(const Op& op, const Sizes& fixed, const Config& config,
                                       const Gpu& gpu) {
  std::vector<jit::Binary> binaries;
  for (const KernelLaunch& launch : op.plan(fixed, config, gpu).kernels) {
    jit::Binary binary;
    binary.key = jit::binary_key(templates::kernel_source(op, launch), gpu.arch(),
                                 templates::compile_options(launch));
    binary.arch = gpu.arch();
    binary.entry = launch.entry;
    binary.nvrtc_version = "13.0";
    binary.resources.registers = 32;
    binary.image = fake::make_cubin(gpu.cc(), {{.name = launch.entry}});
    binaries.push_back(std::move(binary));
  }
  return binaries;
}

void seed_defaults(cache::Store& store, const Gpu& gpu) {
  staged_rows();
  std::vector<WorkloadItem> items = parse_workload("");
  items.push_back({&staged_rows(), {{"format", 0}, {"C", 64}}, {}});
  for (const WorkloadItem& item : items) {
    const Config config = item.op->default_config(item.fixed);
    for (const jit::Binary& binary : fake_binaries(*item.op, item.fixed, config, gpu)) {
      store.put_binary(binary);
    }
  }
}

void seed_decision(cache::Store& store, const Gpu& gpu, const Decided& decided) {
  const Op& op = *decided.op;
  cache::TuningResult result;
  result.binaries = fake_binaries(op, decided.fixed, decided.config, gpu);
  std::vector<Hash128> keys;
  for (const jit::Binary& binary : result.binaries) keys.push_back(binary.key);
  result.plans = {plan_record(op, decided.fixed, decided.config, gpu.arch(),
                              op.plan(decided.fixed, decided.config, gpu), keys)};

  result.decision.problem = problem_of(op, decided.fixed, decided.bucket);
  result.decision.gpu_class = gpu_class_key(gpu);
  result.decision.gpu_label = gpu.slug;
  result.decision.config = canonical_json(templates::config_json(decided.config));
  result.decision.plan = result.plans.front().id;
  result.decision.kind = decided.kind;
  result.decision.reason = "seeded by a test";
  result.decision.time_ns = 1500;
  result.decision.default_time_ns = 3000;
  result.decision.decided_at = 1;
  if (decided.proof != Proof::none) {
    cache::Verification verification;
    verification.plan = result.decision.plan;
    verification.problem = result.decision.problem;
    verification.by = cache::Verified::device;
    verification.card = "Seed Card";
    verification.driver = "older";
    verification.passed = decided.proof == Proof::passed;
    verification.detail = verification.passed ? "3 cases" : "idx[0, 0] is 1, expected 2";
    result.verifications = {verification};
  }
  ASSERT_TRUE(store.put(result));
}

CurrentContext::CurrentContext() {
  CUcontext context = nullptr;
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxPushCurrent(context), CUDA_SUCCESS);
}

CurrentContext::~CurrentContext() {
  cuCtxPopCurrent(nullptr);
  cuDevicePrimaryCtxRelease(0);
}

namespace {

constexpr uint64_t kAnyArgs[64] = {};

// Of the program itself, whose symbols are exported for this (ENABLE_EXPORTS).
template <typename Function>
Function* exported(const std::string& name) {
  void* const function = dlsym(RTLD_DEFAULT, name.c_str());
  if (function == nullptr) fail(Status::not_found, "no function {} is exported", name);
  return reinterpret_cast<Function*>(function);
}

}  // namespace

std::vector<const templates::Op*> other_ops() {
  const templates::Op* const of_tests = &staged_rows();
  std::vector<const templates::Op*> others;
  for (const templates::Op* op : templates::ops()) {
    if (op != of_tests && op->name != "combine_topk_swa") others.push_back(op);
  }
  return others;
}

kiln_status call_exported(const templates::Op& op, kiln_plan* plan) {
  using Call = kiln_status(kiln_plan*, const void*, void*);
  return exported<Call>("kiln_" + op.name)(plan, kAnyArgs, nullptr);
}

kiln_status call_exported_workspace(const templates::Op& op, kiln_plan* plan) {
  using Call = kiln_status(kiln_plan*, const void*, uint64_t*);
  uint64_t bytes = 0;
  return exported<Call>("kiln_" + op.name + "_workspace")(plan, kAnyArgs, &bytes);
}

void RuntimeTest::SetUp() {
  setenv("KILN_LIBCUDA", KILN_FAKE_LIBCUDA, 1);
  setenv("KILN_LIBNVML", KILN_FAKE_LIBCUDA, 1);
  setenv("KILN_NVRTC", "/nonexistent", 1);
  unsetenv("KILN_DB");
  unsetenv("KILN_PACK");
  fake_cuda_reset();
  with_store([](cache::Store& store) {
    seed_defaults(store, fake_gpu(0));
    seed_defaults(store, fake_gpu(1));
  });
}

void RuntimeTest::TearDown() {
  for (kiln_session* session : opened_) kiln_close(session);
}

void RuntimeTest::with_store(const std::function<void(cache::Store&)>& change) {
  const auto store = cache::Store::open({.path = store_path_, .pack = ""});
  change(*store);
}

kiln_session* RuntimeTest::open(const char* device) {
  kiln_options options{};
  options.size = sizeof options;
  options.device = device;
  options.store = store_path_.c_str();
  options.log = LogLines::receive;
  options.log_user = &log_;
  options.log_level = KILN_LOG_DEBUG;
  kiln_session* session = nullptr;
  EXPECT_OK(kiln_open(&options, &session));
  if (session != nullptr) opened_.push_back(session);
  return session;
}

kiln_plan* RuntimeTest::plan(kiln_session* session, const char* op, const char* shape) {
  kiln_plan* plan = nullptr;
  EXPECT_OK(kiln_plan_create(session, op, shape, &plan));
  return plan;
}

kiln_stats RuntimeTest::stats(kiln_session* session) {
  kiln_stats stats{};
  stats.size = sizeof stats;
  EXPECT_OK(kiln_get_stats(session, &stats));
  return stats;
}

}  // namespace kiln::runtime
