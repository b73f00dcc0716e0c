// Host cost of an op call, up to and with the entry of a driver that does nothing (the tests' fake
// one): for one thread, and for eight with a plan each and with one plan for all. The CPU column is
// what a call costs its thread, however many cores there are. Runs anywhere; needs NVRTC, or a
// store in KILN_DB that an earlier run has filled.
#include <benchmark/benchmark.h>

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "runtime/abi/kiln.h"

namespace {

// Never read: the driver launches nothing.
template <typename T>
T* device_pointer(uintptr_t number) {
  return reinterpret_cast<T*>(number << 20);
}

void require(kiln_status status) {
  if (status == KILN_OK) return;
  std::fprintf(stderr, "%s: %s\n", kiln_status_name(status), kiln_last_error());
  std::exit(1);
}

constexpr const char* kWorkload = R"({"ops": [
    {"op": "combine_topk_swa", "shape": {"ratio": 2, "top_k": 512}},
    {"op": "gather_dequant_kv", "shape": {"format": "f1"}},
    {"op": "sparse_mla_decode", "shape": {"num_heads": 32, "window_format": "f1",
     "compressed_format": "f2", "probability": "bf16", "inverse_rope": "none"}}]})";

kiln_session* sealed_session() {
  static kiln_session* session = [] {
    kiln_session* opened = nullptr;
    kiln_options options{};
    options.size = sizeof(options);
    if (std::getenv("KILN_DB") == nullptr) options.store = ":memory:";
    require(kiln_open(&options, &opened));
    require(kiln_prepare(opened, kWorkload, nullptr, nullptr));
    require(kiln_seal(opened));
    return opened;
  }();
  return session;
}

kiln_plan* make_plan(const char* op, const char* shape) {
  kiln_plan* plan = nullptr;
  require(kiln_plan_create(sealed_session(), op, shape, &plan));
  return plan;
}

// As in a serving process, where the device's context is current on every thread that calls.
void make_context_current() {
  static void* driver = dlopen(std::getenv("KILN_LIBCUDA"), RTLD_NOW);
  const auto retain =
      reinterpret_cast<int (*)(void**, int)>(dlsym(driver, "cuDevicePrimaryCtxRetain"));
  const auto set_current = reinterpret_cast<int (*)(void*)>(dlsym(driver, "cuCtxSetCurrent"));
  void* context = nullptr;
  if (retain(&context, 0) == 0 && set_current(context) == 0) return;
  std::fprintf(stderr, "the context of the fake driver cannot be made current\n");
  std::exit(1);
}

enum Plans { own, shared };  // of several threads

kiln_plan* plan_of(const benchmark::State& state, const char* op, const char* shape) {
  sealed_session();
  make_context_current();
  static std::mutex mutex;
  static std::map<std::string, kiln_plan*> for_all;
  if (state.range(0) == own) return make_plan(op, shape);
  const std::lock_guard lock(mutex);
  kiln_plan*& plan = for_all[op];
  if (plan == nullptr) plan = make_plan(op, shape);
  return plan;
}

void call_combine_topk_swa(benchmark::State& state) {
  kiln_plan* const plan = plan_of(state, "combine_topk_swa", R"({"ratio":2,"top_k":512})");
  kiln_combine_topk_swa_args args{};
  args.struct_bytes = sizeof(args);
  args.topk = device_pointer<const int32_t>(1);
  args.topk_stride = 512;
  args.query_start_loc = device_pointer<const int32_t>(2);
  args.seq_lens = device_pointer<const int32_t>(3);
  args.gather_lens = device_pointer<const int32_t>(4);
  args.idx = device_pointer<int32_t>(5);
  args.idx_stride = 640;
  args.len = device_pointer<int32_t>(6);
  args.num_requests = 4;
  args.idx_width = 640;
  args.rows_per_request = 5000;
  args.compressed_rows = 2000;
  for (auto _ : state) {
    args.num_tokens = 1 + args.num_tokens % 8192;
    require(kiln_combine_topk_swa(plan, &args, nullptr));
  }
}

void call_gather_dequant_kv(benchmark::State& state) {
  kiln_plan* const plan = plan_of(state, "gather_dequant_kv", R"({"format":"f1"})");
  kiln_gather_dequant_kv_args args{};
  args.struct_bytes = sizeof(args);
  args.cache = device_pointer<const uint8_t>(1);
  args.cache_stride = 64 * 528;
  args.lens = device_pointer<const int32_t>(2);
  args.block_table = device_pointer<const int32_t>(3);
  args.block_table_stride = 2048;
  args.out = device_pointer<uint16_t>(4);
  args.out_stride0 = 131072 * 512;
  args.out_stride1 = 512;
  args.num_requests = 1;
  args.max_rows = 16384;
  args.page_size = 64;
  args.num_pages = 4096;
  args.table_width = 2048;
  for (auto _ : state) require(kiln_gather_dequant_kv(plan, &args, nullptr));
}

// The op with the longest struct.
void call_sparse_mla_decode(benchmark::State& state) {
  kiln_plan* const plan =
      plan_of(state, "sparse_mla_decode",
              R"({"num_heads":32,"window_format":"f1","compressed_format":"f2",)"
              R"("probability":"bf16","inverse_rope":"none"})");
  kiln_sparse_mla_decode_args args{};
  args.struct_bytes = sizeof(args);
  args.q = device_pointer<const uint16_t>(1);
  args.q_stride0 = 32 * 512;
  args.q_stride1 = 512;
  args.window_cache = device_pointer<const uint8_t>(2);
  args.window_cache_stride = 64 * 528;
  args.window_slots = device_pointer<const int32_t>(3);
  args.window_slots_stride = 128;
  args.window_lens = device_pointer<const int32_t>(4);
  args.compressed_cache = device_pointer<const uint8_t>(5);
  args.compressed_cache_stride = 64 * 288;
  args.compressed_slots = device_pointer<const int32_t>(6);
  args.compressed_slots_stride = 512;
  args.compressed_lens = device_pointer<const int32_t>(7);
  args.sink = device_pointer<const float>(8);
  args.out = device_pointer<uint16_t>(9);
  args.out_stride0 = 32 * 512;
  args.out_stride1 = 512;
  args.lse = device_pointer<float>(10);
  args.lse_stride = 32;
  args.num_rows = 64;
  args.window_width = 128;
  args.compressed_width = 512;
  args.window_page_size = 64;
  args.num_window_pages = 4096;
  args.compressed_page_size = 64;
  args.num_compressed_pages = 4096;
  args.workspace = device_pointer<void>(16);
  require(kiln_sparse_mla_decode_workspace(plan, &args, &args.workspace_bytes));
  for (auto _ : state) require(kiln_sparse_mla_decode(plan, &args, nullptr));
}

void with_plans(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("shared_plan")->Arg(own)->Arg(shared)->Threads(1)->Threads(8);
}
BENCHMARK(call_combine_topk_swa)->Apply(with_plans);
BENCHMARK(call_gather_dequant_kv)->Apply(with_plans);
BENCHMARK(call_sparse_mla_decode)->Apply(with_plans);

}  // namespace

int main(int argc, char** argv) {
  setenv("KILN_LIBCUDA", KILN_FAKE_LIBCUDA, 0);
  setenv("KILN_FAKE_CUDA_DRIVER", "97000", 1);  // newer than any NVRTC, so that each may serve it
  setenv("KILN_FAKE_CUDA_RECORD", "0", 1);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
