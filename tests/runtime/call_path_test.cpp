// What a prepared op call does on its way to the driver: no allocation, no lock, no look at the
// environment, no system call. Functions of libc are replaced here by ones that count what the
// library calls while a thread is watched; what the fake driver does itself is not counted.
#include <cuda.h>
#include <dlfcn.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <string>

#include "tests/runtime/runtime_testing.h"

namespace {

struct Counts {
  int allocations = 0;  // and frees
  int locks = 0;
  int environment = 0;
};

thread_local Counts counts;
thread_local bool is_watched = false;

void count(int Counts::*what) {
  if (!is_watched) return;
  is_watched = false;  // asking the fake must not count
  if (fake_cuda_is_inside() == 0) ++(counts.*what);
  is_watched = true;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t number, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* pointer);

void* malloc(size_t bytes) noexcept {
  count(&Counts::allocations);
  return __libc_malloc(bytes);
}
void* calloc(size_t number, size_t bytes) noexcept {
  count(&Counts::allocations);
  return __libc_calloc(number, bytes);
}
void* realloc(void* old, size_t bytes) noexcept {
  count(&Counts::allocations);
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  count(&Counts::allocations);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** result, size_t alignment, size_t bytes) noexcept {
  count(&Counts::allocations);
  *result = __libc_memalign(alignment, bytes);
  return *result == nullptr ? ENOMEM : 0;
}
void free(void* pointer) noexcept {
  count(&Counts::allocations);
  __libc_free(pointer);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto real = next<int(pthread_mutex_t*)>("pthread_mutex_lock");
  count(&Counts::locks);
  return real(mutex);
}
int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  static const auto real = next<int(pthread_mutex_t*)>("pthread_mutex_trylock");
  count(&Counts::locks);
  return real(mutex);
}
int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  static const auto real = next<int(pthread_rwlock_t*)>("pthread_rwlock_rdlock");
  count(&Counts::locks);
  return real(lock);
}
int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  static const auto real = next<int(pthread_rwlock_t*)>("pthread_rwlock_wrlock");
  count(&Counts::locks);
  return real(lock);
}

char* getenv(const char* name) noexcept {
  static const auto real = next<char*(const char*)>("getenv");
  count(&Counts::environment);
  return real(name);
}
char* secure_getenv(const char* name) noexcept {
  static const auto real = next<char*(const char*)>("secure_getenv");
  count(&Counts::environment);
  return real(name);
}

}  // extern "C"

namespace kiln::runtime {
namespace {

template <typename Call>
Counts counts_of(Call call) {
  fake_cuda_is_inside();  // its thread-local variable is made by the first use
  counts = {};
  is_watched = true;
  call();
  is_watched = false;
  return counts;
}

void expect_nothing(const Counts& seen, const std::string& what) {
  EXPECT_EQ(seen.allocations, 0) << what;
  EXPECT_EQ(seen.locks, 0) << what;
  EXPECT_EQ(seen.environment, 0) << what;
}

const void* address(uint64_t value) { return reinterpret_cast<const void*>(value); }

kiln_gather_dequant_kv_args gather_args(int64_t max_rows) {
  kiln_gather_dequant_kv_args args{};
  args.struct_bytes = sizeof args;
  args.cache = static_cast<const uint8_t*>(address(0x10000));
  args.cache_stride = 64 * 528;
  args.lens = static_cast<const int32_t*>(address(0x20000));
  args.block_table = static_cast<const int32_t*>(address(0x30000));
  args.block_table_stride = 2048;
  args.out = static_cast<uint16_t*>(const_cast<void*>(address(0x40000)));
  args.out_stride0 = 512 * 131072;
  args.out_stride1 = 512;
  args.num_requests = 4;
  args.max_rows = max_rows;
  args.page_size = 64;
  args.num_pages = 4096;
  args.table_width = 2048;
  return args;
}

constexpr const char* kGatherShape = "{\"format\": \"f1\"}";

// A sealed session of one device with a plan of each op.
struct Served {
  kiln_session* session = nullptr;
  kiln_plan* combine = nullptr;
  kiln_plan* gather = nullptr;
  kiln_plan* staged = nullptr;

  // Every bucket of each op; false when one of the calls failed.
  bool call_all(void* stream) const {
    bool good = true;
    for (const int64_t size : {0, 1, 17, 1500, 100'000}) {
      const kiln_combine_topk_swa_args combine_call = combine_args(size);
      const kiln_gather_dequant_kv_args gather_call = gather_args(size);
      good = good && kiln_combine_topk_swa(combine, &combine_call, stream) == KILN_OK &&
             kiln_gather_dequant_kv(gather, &gather_call, stream) == KILN_OK &&
             call_staged_rows(staged, staged_rows_args(size), stream) == KILN_OK;
    }
    return good;
  }
};

class CallPath : public RuntimeTest {
 protected:
  Served serve(const char* device) {
    Served served;
    served.session = open(device);
    EXPECT_OK(kiln_prepare(served.session, nullptr, nullptr, nullptr));
    served.combine = plan(served.session, "combine_topk_swa", kCombineShape);
    served.gather = plan(served.session, "gather_dequant_kv", kGatherShape);
    served.staged = plan(served.session, "staged_rows", kStagedShape);
    EXPECT_OK(kiln_seal(served.session));
    return served;
  }
};

// Without this the other tests could pass because nothing is counted.
TEST_F(CallPath, WhatTheLibraryDoesIsSeen) {
  const Served served = serve("cuda:0");
  const kiln_combine_topk_swa_args bad = combine_args(-1);
  EXPECT_GT(counts_of([&] { kiln_combine_topk_swa(served.combine, &bad, nullptr); }).allocations,
            0);
  kiln_stats stats{};
  stats.size = sizeof stats;
  EXPECT_GT(counts_of([&] { kiln_get_stats(served.session, &stats); }).locks, 0);
  kiln_session* session = nullptr;
  EXPECT_GT(counts_of([&] { kiln_open(nullptr, &session); }).environment, 0);
  EXPECT_OK(kiln_close(session));
}

TEST_F(CallPath, C29OneDevice) {
  const Served served = serve("cuda:0");
  bool good = false;
  expect_nothing(counts_of([&] { good = served.call_all(nullptr); }), "no context is current");
  EXPECT_TRUE(good) << kiln_last_error();

  const CurrentContext context;
  expect_nothing(counts_of([&] { good = served.call_all(nullptr); }), "its context is current");
  EXPECT_TRUE(good) << kiln_last_error();
}

TEST_F(CallPath, TwoDevicesInTurn) {
  const Served all[] = {serve("cuda:0"), serve("cuda:1")};
  bool good = true;
  for (int round = 0; round < 2; ++round) {
    for (const Served& served : all) {
      expect_nothing(counts_of([&] { good = good && served.call_all(nullptr); }), "two devices");
    }
  }
  EXPECT_TRUE(good) << kiln_last_error();
}

TEST_F(CallPath, UnderCapture) {
  const Served served = serve("cuda:0");
  const CurrentContext context;
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    CUstream stream = nullptr;
    ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamBeginCapture(stream, mode), CUDA_SUCCESS);
    const uint64_t launches = fake_cuda_launches();
    bool good = false;
    expect_nothing(counts_of([&] { good = served.call_all(stream); }), "captured");
    EXPECT_TRUE(good) << kiln_last_error();
    EXPECT_EQ(fake_cuda_launches(), launches);
    CUgraph graph = nullptr;
    ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    cuGraphDestroy(graph);
    cuStreamDestroy(stream);
  }
}

// The kernel ends a thread in strict mode at its first system call other than read, write and exit.
struct StrictThread {
  const Served* served = nullptr;
  bool is_strict = false;
  bool finished = false;

  static void* run(void* argument) {
    auto& thread = *static_cast<StrictThread*>(argument);
    thread.served->call_all(nullptr);  // the loader binds what is called
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) return nullptr;
    thread.is_strict = true;
    thread.finished = thread.served->call_all(nullptr);
    syscall(SYS_exit, 0);  // of the thread; returning would end the whole process
    return nullptr;
  }
};

TEST_F(CallPath, C29aMakesNoSystemCall) {
  fake_cuda_set_recording(0);  // then the fake makes none either
  const Served served = serve("cuda:0");
  StrictThread strict{.served = &served};
  pthread_t thread{};
  ASSERT_EQ(pthread_create(&thread, nullptr, StrictThread::run, &strict), 0);
  pthread_join(thread, nullptr);
  fake_cuda_set_recording(1);
  if (!strict.is_strict) GTEST_SKIP() << "this kernel or its container has no strict seccomp mode";
  EXPECT_TRUE(strict.finished);
}

}  // namespace
}  // namespace kiln::runtime
