// Runs prepared op calls of a libkiln.so, under call_path_shim and the fake driver: counts what
// they allocate, lock and ask of the environment, then runs them where the kernel ends a thread at
// its first system call. Exits with 0 when there was none of it, with 1 and a sentence when there
// was, with 77 when this kernel has no strict mode.
//   call_path_program LIBKILN
#include <dlfcn.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runtime/abi/kiln.h"

namespace {

[[noreturn]] void give_up(const char* what, const char* why) {
  std::fprintf(stderr, "%s: %s\n", what, why);
  std::exit(1);
}

void* library = nullptr;

template <typename Function>
Function* found(void* in, const char* name) {
  void* function = dlsym(in, name);
  if (function == nullptr) give_up(name, dlerror());
  return reinterpret_cast<Function*>(function);
}
#define KILN(name) found<decltype(name)>(library, #name)

void require(kiln_status status, const char* what) {
  if (status != KILN_OK) give_up(what, KILN(kiln_last_error)());
}

enum { kAllocations, kLocks, kEnvironment, kKinds };
constexpr const char* kKindNames[kKinds] = {"allocations and frees", "locks",
                                            "looks at the environment"};

using Watch = void(int on, int (*is_inside)());
using Count = int(int kind);
using IsInside = int();
Watch* watch = nullptr;
Count* count = nullptr;
IsInside* is_inside = nullptr;

template <typename T>
T* at(uintptr_t place) {
  return reinterpret_cast<T*>(place);
}

struct Calls {
  decltype(kiln_combine_topk_swa)* combine_topk_swa;
  decltype(kiln_gather_dequant_kv)* gather_dequant_kv;
  kiln_plan* combine = nullptr;
  kiln_plan* gather = nullptr;

  // Every bucket; false when one of the calls failed.
  bool run() const {
    bool good = true;
    for (const int64_t size : {0, 1, 17, 1500, 100'000}) {
      kiln_combine_topk_swa_args one{};
      one.struct_bytes = sizeof one;
      one.topk = at<const int32_t>(0x1000);
      one.topk_stride = 512;
      one.query_start_loc = at<const int32_t>(0x2000);
      one.seq_lens = at<const int32_t>(0x3000);
      one.gather_lens = at<const int32_t>(0x4000);
      one.idx = at<int32_t>(0x5000);
      one.idx_stride = 640;
      one.len = at<int32_t>(0x6000);
      one.num_tokens = size;
      one.num_requests = 2;
      one.idx_width = 640;
      one.rows_per_request = 231;
      one.compressed_rows = 101;
      kiln_gather_dequant_kv_args other{};
      other.struct_bytes = sizeof other;
      other.cache = at<const uint8_t>(0x10000);
      other.cache_stride = 64 * 528;
      other.lens = at<const int32_t>(0x20000);
      other.block_table = at<const int32_t>(0x30000);
      other.block_table_stride = 2048;
      other.out = at<uint16_t>(0x40000);
      other.out_stride0 = 512 * 131072;
      other.out_stride1 = 512;
      other.num_requests = 4;
      other.max_rows = size;
      other.page_size = 64;
      other.num_pages = 4096;
      other.table_width = 2048;
      good = good && combine_topk_swa(combine, &one, nullptr) == KILN_OK &&
             gather_dequant_kv(gather, &other, nullptr) == KILN_OK;
    }
    return good;
  }
};

// What one thread's calls count; its first calls bind what the loader left open.
struct Counted {
  const Calls* calls = nullptr;
  bool good = true;
  int seen[kKinds] = {};

  static void* run(void* argument) {
    auto& thread = *static_cast<Counted*>(argument);
    thread.good = thread.calls->run();
    is_inside();
    for (int kind = 0; kind < kKinds; ++kind) count(kind);
    watch(1, is_inside);
    for (int round = 0; round < 200; ++round) thread.good = thread.calls->run() && thread.good;
    watch(0, is_inside);
    for (int kind = 0; kind < kKinds; ++kind) thread.seen[kind] = count(kind);
    return nullptr;
  }
};

struct Strict {
  const Calls* calls = nullptr;
  bool is_strict = false;
  bool finished = false;

  static void* run(void* argument) {
    auto& thread = *static_cast<Strict*>(argument);
    thread.calls->run();
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) return nullptr;
    thread.is_strict = true;
    thread.finished = thread.calls->run();
    syscall(SYS_exit, 0);  // of the thread; returning would end the whole process
    return nullptr;
  }
};

// Without this the counts could be zero because nothing is counted.
void require_that_the_shim_sees(kiln_session* session, const Calls& calls) {
  kiln_stats stats{};
  stats.size = sizeof stats;
  kiln_combine_topk_swa_args bad{};
  is_inside();
  watch(1, is_inside);
  KILN(kiln_get_stats)(session, &stats);
  calls.combine_topk_swa(calls.combine, &bad, nullptr);
  kiln_session* other = nullptr;
  KILN(kiln_open)(nullptr, &other);
  watch(0, is_inside);
  KILN(kiln_close)(other);
  for (int kind = 0; kind < kKinds; ++kind) {
    if (count(kind) == 0) give_up(kKindNames[kind], "the shim sees none where there are some");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) give_up("usage", "call_path_program LIBKILN");
  library = dlopen(argv[1], RTLD_NOW);
  if (library == nullptr) give_up(argv[1], dlerror());
  void* driver = dlopen(std::getenv("KILN_LIBCUDA"), RTLD_NOW);
  if (driver == nullptr) give_up("KILN_LIBCUDA", dlerror());
  is_inside = found<IsInside>(driver, "fake_cuda_is_inside");
  watch = found<Watch>(RTLD_DEFAULT, "call_path_watch");
  count = found<Count>(RTLD_DEFAULT, "call_path_count");

  kiln_session* session = nullptr;
  require(KILN(kiln_open)(nullptr, &session), "kiln_open");
  require(KILN(kiln_prepare)(session, R"({"ops": [{"op": "combine_topk_swa"},
                                                  {"op": "gather_dequant_kv"}]})",
                             nullptr, nullptr),
          "kiln_prepare");
  require(KILN(kiln_seal)(session), "kiln_seal");
  Calls calls{.combine_topk_swa = KILN(kiln_combine_topk_swa),
              .gather_dequant_kv = KILN(kiln_gather_dequant_kv)};
  require(KILN(kiln_plan_create)(session, "combine_topk_swa", R"({"ratio": 2, "top_k": 512})",
                                 &calls.combine),
          "kiln_plan_create");
  require(
      KILN(kiln_plan_create)(session, "gather_dequant_kv", R"({"format": "f1"})", &calls.gather),
      "kiln_plan_create");
  require_that_the_shim_sees(session, calls);

  std::vector<Counted> threads(8, Counted{.calls = &calls});
  std::vector<pthread_t> handles(threads.size());
  for (size_t i = 0; i < threads.size(); ++i) {
    if (pthread_create(&handles[i], nullptr, Counted::run, &threads[i]) != 0) {
      give_up("pthread_create", "no thread can be made");
    }
  }
  for (const pthread_t handle : handles) pthread_join(handle, nullptr);
  for (const Counted& thread : threads) {
    if (!thread.good) give_up("an op call failed", "its thread knows why");
    for (int kind = 0; kind < kKinds; ++kind) {
      if (thread.seen[kind] != 0) give_up(kKindNames[kind], "an op call made some");
    }
  }

  Strict strict{.calls = &calls};
  pthread_t handle{};
  if (pthread_create(&handle, nullptr, Strict::run, &strict) != 0) {
    give_up("pthread_create", "no thread can be made");
  }
  pthread_join(handle, nullptr);
  if (!strict.is_strict) return 77;
  if (!strict.finished) give_up("a system call", "an op call made one, or failed");
  require(KILN(kiln_close)(session), "kiln_close");
  std::printf(
      "16000 calls in 8 threads: no allocation, no lock, no look at the environment; and no "
      "system call\n");
  return 0;
}
