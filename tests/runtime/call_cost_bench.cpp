// Host cost of Kiln against the fake driver: nanoseconds per op call up to the driver's entry, and
// milliseconds from kiln_open to the end of kiln_prepare from a warm store, with the caller's
// context current. Usage: call_cost_bench [rounds]
#include <cuda.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Time of this thread alone, so that a busy machine does not count.
double thread_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

constexpr int kCallsPerRound = 20000;

double elapsed_ns(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void require(kiln_status status) {
  if (status == KILN_OK) return;
  std::fprintf(stderr, "%s: %s\n", kiln_status_name(status), kiln_last_error());
  std::exit(1);
}

template <typename Call>
double time_call_ns(int rounds, Call call) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const double start = thread_ns();
    for (int i = 0; i < kCallsPerRound; ++i) call(i);
    times.push_back((thread_ns() - start) / kCallsPerRound);
  }
  return median(std::move(times));
}

kiln_session* open_and_prepare(const std::string& path) {
  kiln_options options{};
  options.size = sizeof options;
  options.store = path.c_str();
  kiln_session* session = nullptr;
  require(kiln_open(&options, &session));
  require(kiln_prepare(session, nullptr, nullptr, nullptr));
  return session;
}

int run(int rounds) {
  setenv("KILN_LIBCUDA", KILN_FAKE_LIBCUDA, 1);
  setenv("KILN_NVRTC", "/nonexistent", 1);
  const TemporaryFolder folder;
  const std::string path = folder.file("kiln.db");
  {
    const auto store = cache::Store::open({.path = path, .pack = ""});
    seed_defaults(*store, fake_gpu(0));
  }
  fake_cuda_set_recording(0);
  CUcontext context = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cuCtxPushCurrent(context) != CUDA_SUCCESS) {
    return 1;
  }

  std::vector<double> prepare_ms;
  kiln_session* session = nullptr;
  for (int round = 0; round < rounds; ++round) {
    if (session != nullptr) require(kiln_close(session));
    const Clock::time_point start = Clock::now();
    session = open_and_prepare(path);
    prepare_ms.push_back(elapsed_ns(start) / 1e6);
  }
  std::printf("open + prepare, warm store  %8.2f ms\n", median(prepare_ms));

  kiln_plan* combine = nullptr;
  require(kiln_plan_create(session, "combine_topk_swa", kCombineShape, &combine));
  kiln_combine_topk_swa_args args = combine_args(1);
  const double combine_ns = time_call_ns(rounds, [&](int i) {
    args.num_tokens = 1 + i % 8192;
    if (kiln_combine_topk_swa(combine, &args, nullptr) != KILN_OK) std::abort();
  });
  std::printf("kiln_combine_topk_swa       %8.1f ns per call\n", combine_ns);

  kiln_plan* gather = nullptr;
  require(kiln_plan_create(session, "gather_dequant_kv", "{\"format\": \"f1\"}", &gather));
  kiln_gather_dequant_kv_args gather_args{};
  gather_args.struct_bytes = sizeof gather_args;
  gather_args.cache = reinterpret_cast<const uint8_t*>(0x10000);
  gather_args.cache_stride = 64 * 528;
  gather_args.lens = reinterpret_cast<const int32_t*>(0x20000);
  gather_args.block_table = reinterpret_cast<const int32_t*>(0x30000);
  gather_args.block_table_stride = 2048;
  gather_args.out = reinterpret_cast<uint16_t*>(0x40000);
  gather_args.out_stride0 = 512 * 131072;
  gather_args.out_stride1 = 512;
  gather_args.num_requests = 4;
  gather_args.page_size = 64;
  gather_args.num_pages = 4096;
  gather_args.table_width = 2048;
  const double gather_ns = time_call_ns(rounds, [&](int i) {
    gather_args.max_rows = 1 + i;
    if (kiln_gather_dequant_kv(gather, &gather_args, nullptr) != KILN_OK) std::abort();
  });
  std::printf("kiln_gather_dequant_kv      %8.1f ns per call\n", gather_ns);

  kiln_combine_topk_swa_args bad = combine_args(-1);
  const double refused_ns = time_call_ns(rounds, [&](int) {
    if (kiln_combine_topk_swa(combine, &bad, nullptr) == KILN_OK) std::abort();
  });
  std::printf("a refused call              %8.1f ns per call\n", refused_ns);
  require(kiln_close(session));
  return 0;
}

}  // namespace
}  // namespace kiln::runtime

int main(int argc, char** argv) {
  return kiln::runtime::run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 15);
}
