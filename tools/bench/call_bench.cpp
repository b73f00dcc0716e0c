// Host cost of an op call, up to and with the entry of a driver that does nothing (the tests' fake
// one), for one thread and for eight. Runs anywhere; needs NVRTC.
#include <benchmark/benchmark.h>

#include <cstdlib>

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

kiln_plan* sealed_plan(const char* op, const char* shape) {
  static kiln_session* session = [] {
    kiln_session* opened = nullptr;
    kiln_options options{};
    options.size = sizeof(options);
    options.store = ":memory:";
    require(kiln_open(&options, &opened));
    require(kiln_prepare(opened, nullptr, nullptr, nullptr));
    require(kiln_seal(opened));
    return opened;
  }();
  kiln_plan* plan = nullptr;
  require(kiln_plan_create(session, op, shape, &plan));
  return plan;
}

void call_combine_topk_swa(benchmark::State& state) {
  static kiln_plan* const plan = sealed_plan("combine_topk_swa", R"({"ratio":2,"top_k":512})");
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
BENCHMARK(call_combine_topk_swa)->Threads(1)->Threads(8);

void call_gather_dequant_kv(benchmark::State& state) {
  static kiln_plan* const plan = sealed_plan("gather_dequant_kv", R"({"format":"f1"})");
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
BENCHMARK(call_gather_dequant_kv)->Threads(1)->Threads(8);

}  // namespace

int main(int argc, char** argv) {
  setenv("KILN_LIBCUDA", KILN_FAKE_LIBCUDA, 1);
  setenv("KILN_FAKE_CUDA_DRIVER", "97000", 1);  // newer than any NVRTC, so that each may serve it
  setenv("KILN_FAKE_CUDA_RECORD", "0", 1);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
