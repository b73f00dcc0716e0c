// The Device seam over the CUDA Driver API, against the fake driver (two GPUs: an A100 and an RTX
// 3090).
#include "runtime/device.h"

#include <cuda.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/fake_cuda/fake_cubin.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace kiln::runtime {
namespace {

constexpr int64_t kA100SmemLimitBytes = 166'912;

struct Arguments {
  uint64_t struct_bytes = sizeof(Arguments);
  uint64_t value = 0;
};

jit::Binary binary(int sm, fake::CubinKernel kernel = {.name = "kernel",
                                                       .param_bytes = sizeof(Arguments)}) {
  jit::Binary made;
  made.arch = fmt::format("sm_{}", sm);
  made.entry = kernel.name;
  made.kind = jit::BinaryKind::cubin;
  made.nvrtc_version = "13.0";
  made.image = fake::make_cubin(sm, {std::move(kernel)});
  return made;
}

// The status and sentence of what `work` fails with.
template <typename Work>
std::pair<Status, std::string> failure_of(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return {error.status(), error.what()};
  }
  return {Status::ok, "did not fail"};
}

void expect_contains(const std::string& text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("KILN_LIBCUDA", KILN_FAKE_LIBCUDA, 1);
    setenv("KILN_LIBNVML", KILN_FAKE_LIBCUDA, 1);
    fake_cuda_reset();
  }
};

class CaptureTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    device_ = Device::open("cuda:0");
    cuDevicePrimaryCtxRetain(&context_, 0);
  }
  void TearDown() override {
    device_.reset();
    cuDevicePrimaryCtxRelease(0);
  }
  // A stream of the caller's, captured in the mode that forbids most.
  CUstream begin_global_capture(unsigned flags) {
    CUstream stream = nullptr;
    cuCtxPushCurrent(context_);
    EXPECT_EQ(cuStreamCreate(&stream, flags), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    cuCtxPopCurrent(nullptr);
    return stream;
  }

  std::unique_ptr<Device> device_;
  CUcontext context_ = nullptr;
};

TEST_F(DeviceTest, A100IsTheTablesRow) {
  const auto device = Device::open("cuda:0");
  const DeviceInfo& info = device->info();
  EXPECT_EQ(info.id, "cuda:0");
  EXPECT_EQ(info.name, "NVIDIA A100-SXM4-80GB");
  EXPECT_EQ(info.driver, "12.4");
  EXPECT_EQ(info.cuda_major, 12);
  EXPECT_EQ(info.match, "a100-sxm4-80gb");
  EXPECT_EQ(info.gpu.slug, "a100-sxm4-80gb");
  EXPECT_EQ(gpu_class_key(info.gpu), gpu_class_key(find_gpu("a100-sxm4-80gb")));
  EXPECT_EQ(info.gpu.dram_bytes, 84'987'740'160);
  EXPECT_EQ(info.gpu.bf16_mma_fma_per_clk_sm, 1024);
}

TEST_F(DeviceTest, Rtx3090IsTheTablesRow) {
  const auto device = Device::open("cuda:1");
  EXPECT_EQ(device->info().match, "rtx-3090");
  EXPECT_EQ(gpu_class_key(device->info().gpu), gpu_class_key(find_gpu("rtx-3090")));
}

TEST_F(DeviceTest, CudaAloneIsTheFirstDevice) {
  EXPECT_EQ(Device::open("cuda")->info().id, "cuda:0");
}

TEST_F(DeviceTest, C110C112NameDoesNotDecideTheClass) {
  fake_cuda_set_name(0, "NVIDIA PG509-210");
  EXPECT_EQ(Device::open("cuda:0")->info().match, "a100-sxm4-80gb");
}

TEST_F(DeviceTest, UnreportedMemoryClockIsTakenFromTheNamesRow) {
  fake_cuda_set_attribute(1, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 0);
  const auto device = Device::open("cuda:1");
  EXPECT_EQ(device->info().match, "rtx-3090");
  EXPECT_EQ(device->info().gpu.dram_gb_per_s, 936);
}

TEST_F(DeviceTest, C113CardOutsideTheTableIsDescribedByItsDriver) {
  fake_cuda_set_name(1, "NVIDIA GeForce RTX 3080");
  fake_cuda_set_attribute(1, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 68);
  fake_cuda_set_attribute(1, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 5 << 20);
  const auto device = Device::open("cuda:1");
  const Gpu& gpu = device->info().gpu;
  EXPECT_EQ(device->info().match, "");
  EXPECT_EQ(gpu.slug, "rtx-3080");
  EXPECT_EQ(gpu.sm_count, 68);
  EXPECT_EQ(gpu.l2_bytes, 5 << 20);
  EXPECT_EQ(gpu.max_warps_per_sm, 48);
  EXPECT_EQ(gpu.max_ctas_per_sm, 16);
  EXPECT_EQ(gpu.smem_per_cta_optin_bytes, 101'376);
  EXPECT_EQ(gpu.smem_reserved_per_cta_bytes, 1024);
  EXPECT_NEAR(gpu.dram_gb_per_s, 936, 1);
  EXPECT_EQ(gpu.boost_mhz, 1695);
  EXPECT_EQ(gpu.fp32_fma_per_clk_sm, 128);
}

TEST_F(DeviceTest, UnknownKindIsNotFoundAndNamesWhatIsAccepted) {
  for (const char* id : {"", "gpu", "sim", "cuda:", "cuda:x", "cuda:-1", "cuda:0x", "CUDA"}) {
    const auto [status, text] = failure_of([&] { Device::open(id); });
    EXPECT_EQ(status, Status::not_found) << id;
    expect_contains(text, "\"cuda:N\"");
  }
}

TEST_F(DeviceTest, UnknownGpuIsNotSimulated) {
  for (const char* id : {"sim:", "sim:rtx-3091"}) {
    const auto [status, text] = failure_of([&] { Device::open(id); });
    EXPECT_EQ(status, Status::not_found) << id;
    expect_contains(text, "rtx-3090");
  }
}

TEST_F(DeviceTest, OrdinalPastTheEndListsTheDevices) {
  const auto [status, text] = failure_of([] { Device::open("cuda:2"); });
  EXPECT_EQ(status, Status::not_found);
  expect_contains(text, "cuda:0 (NVIDIA A100-SXM4-80GB");
  expect_contains(text, "cuda:1 (NVIDIA GeForce RTX 3090");
}

TEST_F(DeviceTest, OldComputeCapabilityIsUnsupported) {
  fake_cuda_set_attribute(0, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 7);
  fake_cuda_set_attribute(0, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 5);
  const auto [status, text] = failure_of([] { Device::open("cuda:0"); });
  EXPECT_EQ(status, Status::unsupported);
  expect_contains(text, "compute capability 7.5");
  EXPECT_EQ(list_devices().devices.size(), 1u);
}

TEST_F(DeviceTest, MissingDriverNamesTheFileSearched) {
  setenv("KILN_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
  const auto [status, text] = failure_of([] { Device::open("cuda:0"); });
  EXPECT_EQ(status, Status::no_driver);
  expect_contains(text, "searched: /nonexistent/libcuda.so.1");
  EXPECT_EQ(list_devices().problem, text);
}

TEST_F(DeviceTest, FileThatIsNoDriverIsRefused) {
  setenv("KILN_LIBCUDA", "libm.so.6", 1);
  const auto [status, text] = failure_of([] { Device::open("cuda:0"); });
  EXPECT_EQ(status, Status::no_driver);
  expect_contains(text, "libm.so.6 is not a CUDA driver");
}

TEST_F(DeviceTest, FailingInitIsNoDriverWithItsReason) {
  fake_cuda_fail("cuInit", CUDA_ERROR_UNKNOWN, 0);
  const auto [status, text] = failure_of([] { Device::open("cuda:0"); });
  EXPECT_EQ(status, Status::no_driver);
  expect_contains(text, "CUDA_ERROR_UNKNOWN: unknown error");
}

TEST_F(DeviceTest, NoGpuIsNoDriverAndSaysSo) {
  fake_cuda_set_device_count(0);
  const auto [status, text] = failure_of([] { Device::open("cuda:0"); });
  EXPECT_EQ(status, Status::no_driver);
  expect_contains(text, "no NVIDIA GPU");
  const DeviceList list = list_devices();
  EXPECT_TRUE(list.devices.empty());
  EXPECT_EQ(list.problem, text);
}

TEST_F(DeviceTest, HalfDescribedCardIsADriverErrorNeverAnotherClass) {
  const std::string expected = gpu_class_key(Device::open("cuda:0")->info().gpu);
  const int attributes = static_cast<int>(fake_cuda_calls("cuDeviceGetAttribute")) / 2;
  ASSERT_GT(attributes, 8);
  int refused = 0;
  for (int failing = 0; failing < attributes; ++failing) {
    fake_cuda_reset();
    fake_cuda_fail_times("cuDeviceGetAttribute", CUDA_ERROR_UNKNOWN, failing, 1);
    const auto [status, text] = failure_of([&] {
      const auto device = Device::open("cuda:0");
      EXPECT_EQ(gpu_class_key(device->info().gpu), expected) << "attribute call " << failing;
    });
    if (status == Status::ok) continue;
    ++refused;
    EXPECT_EQ(status, Status::driver_error) << text;
    expect_contains(text, "CUDA_ERROR_UNKNOWN");
  }
  EXPECT_EQ(refused, attributes - 2);  // the two clocks may be missing
}

TEST_F(DeviceTest, CardThatFailsDoesNotHideTheOthers) {
  const auto count = static_cast<int>(fake_cuda_calls("cuDeviceGetName"));
  fake_cuda_fail_times("cuDeviceGetName", CUDA_ERROR_UNKNOWN, count, 1);
  const DeviceList list = list_devices();
  ASSERT_EQ(list.devices.size(), 1u);
  EXPECT_EQ(list.devices[0].id, "cuda:1");
  fake_cuda_reset();
  fake_cuda_fail_times("cuDeviceGetName", CUDA_ERROR_UNKNOWN, 0, 1);
  EXPECT_EQ(Device::open("cuda:1")->info().match, "rtx-3090");
}

TEST_F(DeviceTest, FailingContextIsADriverError) {
  fake_cuda_fail("cuDevicePrimaryCtxRetain", CUDA_ERROR_INVALID_DEVICE, 0);
  const auto [status, text] = failure_of([] { Device::open("cuda:1"); });
  EXPECT_EQ(status, Status::driver_error);
  expect_contains(text, "retain the primary context on cuda:1 (NVIDIA GeForce RTX 3090)");
  expect_contains(text, "CUDA_ERROR_INVALID_DEVICE");
}

TEST_F(DeviceTest, FailedOpenLeavesNothingBehind) {
  fake_cuda_fail("cuStreamCreate", CUDA_ERROR_OUT_OF_MEMORY, 0);
  EXPECT_EQ(failure_of([] { Device::open("cuda:0"); }).first, Status::out_of_memory);
  EXPECT_EQ(fake_cuda_live("contexts"), 0u);
  EXPECT_EQ(fake_cuda_context_depth(), 0);
}

TEST_F(DeviceTest, ListMakesNoContext) {
  const DeviceList list = list_devices();
  ASSERT_EQ(list.devices.size(), 2u);
  EXPECT_EQ(list.devices[0].match, "a100-sxm4-80gb");
  EXPECT_EQ(list.devices[1].match, "rtx-3090");
  EXPECT_EQ(list.problem, "");
  EXPECT_EQ(fake_cuda_calls("cuDevicePrimaryCtxRetain"), 0u);
}

TEST_F(DeviceTest, ClosingReleasesImagesStreamsAndContext) {
  {
    const auto device = Device::open("cuda:0");
    device->load(binary(80), 128, 0);
    EXPECT_EQ(fake_cuda_live("contexts"), 1u);
    EXPECT_EQ(fake_cuda_live("images"), 1u);
  }
  EXPECT_EQ(fake_cuda_live("contexts"), 0u);
  EXPECT_EQ(fake_cuda_live("images"), 0u);
  EXPECT_EQ(fake_cuda_live("streams"), 0u);
  EXPECT_EQ(fake_cuda_context_depth(), 0);
}

TEST_F(DeviceTest, ForkedChildDoesNotTouchTheDriver) {
  auto device = Device::open("cuda:0");
  device->load(binary(80), 128, 0);
  const size_t calls = fake_cuda_log_size();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    device.reset();
    _exit(fake_cuda_log_size() == calls ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(DeviceTest, C133LoadMakesTheKernelReadyToLaunch) {
  const auto device = Device::open("cuda:0");
  const LoadedKernel kernel = device->load(binary(80), 128, kA100SmemLimitBytes);
  EXPECT_NE(kernel.function, nullptr);
  EXPECT_EQ(kernel.threads, 128u);
  EXPECT_EQ(kernel.dynamic_smem_bytes, kA100SmemLimitBytes);
  EXPECT_EQ(fake_cuda_calls("cuFuncLoad"), 1u);
  const Arguments arguments;
  EXPECT_EQ(device->launch(kernel, {1, 1, 1}, &arguments, nullptr).driver_error, 0);
}

TEST_F(DeviceTest, CubinRunsOnLaterMinorVersionsOnly) {
  EXPECT_NE(Device::open("cuda:1")->load(binary(80), 32, 0).function, nullptr);
  const auto [status, text] = failure_of([] { Device::open("cuda:0")->load(binary(86), 32, 0); });
  EXPECT_EQ(status, Status::driver_error);
  expect_contains(text, "load kernel (a cubin for sm_86, made by NVRTC 13.0");
  expect_contains(text, "CUDA_ERROR_NO_BINARY_FOR_GPU");
}

TEST_F(DeviceTest, GarbageIsADriverError) {
  const auto device = Device::open("cuda:0");
  for (const char* image : {"", "\x7f",
                            "\x7f"
                            "EL",
                            "not a cubin"}) {
    jit::Binary garbage = binary(80);
    garbage.image = image;
    const auto [status, text] = failure_of([&] { device->load(garbage, 32, 0); });
    EXPECT_EQ(status, Status::driver_error);
    expect_contains(text, "CUDA_ERROR_INVALID_IMAGE");
  }
}

TEST_F(DeviceTest, C80TooNewPtxNamesBothVersions) {
  jit::Binary ptx = binary(80);
  ptx.kind = jit::BinaryKind::ptx;
  ptx.arch = "compute_80";
  ptx.image = ".version 9.0\n.target sm_80\n.visible .entry kernel(.param .b8 p[16]) { ret; }\n";
  const auto [status, text] = failure_of([&] { Device::open("cuda:0")->load(ptx, 32, 0); });
  EXPECT_EQ(status, Status::driver_error);
  expect_contains(text, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION");
  expect_contains(text, "made by NVRTC 13.0; the driver is for CUDA 12.4");
  fake_cuda_set_driver_version(13000);
  EXPECT_NE(Device::open("cuda:0")->load(ptx, 32, 0).function, nullptr);
}

TEST_F(DeviceTest, MissingEntryIsNamed) {
  jit::Binary other = binary(80);
  other.entry = "absent";
  const auto [status, text] = failure_of([&] { Device::open("cuda:0")->load(other, 32, 0); });
  EXPECT_EQ(status, Status::driver_error);
  expect_contains(text, "find kernel absent");
  expect_contains(text, "CUDA_ERROR_NOT_FOUND");
}

TEST_F(DeviceTest, C119SharedMemoryPastTheOptInLimitIsUnsupported) {
  const auto device = Device::open("cuda:0");
  const auto [status, text] =
      failure_of([&] { device->load(binary(80), 128, kA100SmemLimitBytes + 1); });
  EXPECT_EQ(status, Status::unsupported);
  expect_contains(text, "166913 bytes");
  expect_contains(text, "at most 166912");
  EXPECT_EQ(failure_of([&] { device->load(binary(80), 128, -1); }).first, Status::unsupported);
  EXPECT_EQ(fake_cuda_live("images"), 0u);
}

TEST_F(DeviceTest, StaticSharedMemoryCountsTowardsTheLimit) {
  const auto device = Device::open("cuda:0");
  const jit::Binary with_static = binary(80, {.name = "kernel", .static_smem_bytes = 1024});
  EXPECT_EQ(failure_of([&] { device->load(with_static, 128, kA100SmemLimitBytes - 1023); }).first,
            Status::unsupported);
  EXPECT_EQ(fake_cuda_live("images"), 0u);
  EXPECT_NE(device->load(with_static, 128, kA100SmemLimitBytes - 1024).function, nullptr);
}

TEST_F(DeviceTest, MoreThreadsThanTheBinaryAllowsIsUnsupported) {
  const auto device = Device::open("cuda:0");
  const jit::Binary small = binary(80, {.name = "kernel", .max_threads = 128});
  const auto [status, text] = failure_of([&] { device->load(small, 256, 0); });
  EXPECT_EQ(status, Status::unsupported);
  expect_contains(text, "256 threads");
  EXPECT_EQ(failure_of([&] { device->load(small, 0, 0); }).first, Status::unsupported);
  EXPECT_NE(device->load(small, 128, 0).function, nullptr);
}

TEST_F(DeviceTest, FailedLoadCanBeRetried) {
  const auto device = Device::open("cuda:0");
  fake_cuda_fail_times("cuLibraryLoadData", CUDA_ERROR_INVALID_IMAGE, 0, 1);
  EXPECT_EQ(failure_of([&] { device->load(binary(80), 32, 0); }).first, Status::driver_error);
  EXPECT_NE(device->load(binary(80), 32, 0).function, nullptr);
}

TEST_F(DeviceTest, DriverBeforeLibrariesLoadsModules) {
  fake_cuda_set_driver_version(11080);
  {
    const auto device = Device::open("cuda:0");
    EXPECT_EQ(device->info().driver, "11.8");
    const LoadedKernel kernel = device->load(binary(80), 64, 0);
    const Arguments arguments;
    EXPECT_EQ(device->launch(kernel, {2, 1, 1}, &arguments, nullptr).driver_error, 0);
    EXPECT_EQ(fake_cuda_calls("cuModuleLoadDataEx"), 1u);
    EXPECT_EQ(fake_cuda_calls("cuLibraryLoadData"), 0u);
  }
  EXPECT_EQ(fake_cuda_live("images"), 0u);
}

TEST_F(DeviceTest, LaunchPassesShapeStreamAndArguments) {
  const auto device = Device::open("cuda:1");
  const LoadedKernel kernel = device->load(binary(86), 96, 2048);
  const Stream stream = device->create_stream();
  const Arguments arguments{.value = 42};
  ASSERT_EQ(device->launch(kernel, {70000, 3, 2}, &arguments, stream).driver_error, 0);
  fake_cuda_launch launch{};
  ASSERT_TRUE(fake_cuda_last_launch(&launch));
  EXPECT_STREQ(launch.kernel, "kernel");
  EXPECT_EQ(launch.device, 1);
  EXPECT_EQ(launch.grid[0], 70000u);
  EXPECT_EQ(launch.grid[1], 3u);
  EXPECT_EQ(launch.grid[2], 2u);
  EXPECT_EQ(launch.block[0], 96u);
  EXPECT_EQ(launch.dynamic_smem_bytes, 2048u);
  EXPECT_EQ(launch.stream, stream);
  EXPECT_EQ(launch.param_bytes, sizeof(Arguments));
  EXPECT_EQ(std::memcmp(launch.params, &arguments, sizeof(arguments)), 0);
  device->destroy_stream(stream);
}

TEST_F(DeviceTest, LaunchLeavesNoContextWhereThereWasNone) {
  const auto device = Device::open("cuda:0");
  const LoadedKernel kernel = device->load(binary(80), 32, 0);
  const Arguments arguments;
  EXPECT_EQ(device->launch(kernel, {}, &arguments, nullptr).driver_error, 0);
  EXPECT_EQ(fake_cuda_context_depth(), 0);
}

TEST_F(DeviceTest, EveryCallRestoresAnotherCurrentContext) {
  CUcontext other = nullptr;
  const auto device = Device::open("cuda:0");
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPushCurrent(other), CUDA_SUCCESS);
  const auto expect_other = [](const char* after) {
    EXPECT_EQ(fake_cuda_current_device(), 1) << after;
    EXPECT_EQ(fake_cuda_context_depth(), 1) << after;
  };
  const LoadedKernel kernel = device->load(binary(80), 32, 0);
  expect_other("load");
  const Arguments arguments;
  EXPECT_EQ(device->launch(kernel, {}, &arguments, nullptr).driver_error, 0);
  expect_other("launch");
  fake_cuda_launch launch{};
  ASSERT_TRUE(fake_cuda_last_launch(&launch));
  EXPECT_EQ(launch.device, 0);
  EXPECT_EQ(device->launch(kernel, {0, 1, 1}, &arguments, nullptr).driver_error,
            CUDA_ERROR_INVALID_VALUE);
  expect_other("failed launch");
  EXPECT_EQ(device->capture_state(nullptr), CaptureState::none);
  expect_other("capture_state");
  {
    const DeviceBuffer buffer(*device, 16);
    char host[16] = {};
    device->copy_to_device(buffer.get(), host, 16);
    device->copy_to_host(host, buffer.get(), 16);
    device->free_bytes();
  }
  expect_other("memory");
  EXPECT_THROW(device->allocate(int64_t{1} << 50), Error);
  expect_other("failed allocation");
  cuCtxPopCurrent(nullptr);
  cuDevicePrimaryCtxRelease(1);
}

TEST_F(DeviceTest, LaunchWithItsContextCurrentAsksOnlyForIt) {
  const auto device = Device::open("cuda:0");
  const LoadedKernel kernel = device->load(binary(80), 32, 0);
  CUcontext context = nullptr;
  cuDevicePrimaryCtxRetain(&context, 0);
  cuCtxPushCurrent(context);
  const size_t before = fake_cuda_log_size();
  const Arguments arguments;
  device->launch(kernel, {}, &arguments, nullptr);
  ASSERT_EQ(fake_cuda_log_size(), before + 2);
  EXPECT_STREQ(fake_cuda_log_entry(before), "cuCtxGetCurrent");
  EXPECT_STREQ(fake_cuda_log_entry(before + 1), "cuLaunchKernel");
  cuCtxPopCurrent(nullptr);
  cuDevicePrimaryCtxRelease(0);
}

TEST_F(DeviceTest, LaunchErrorIsReturnedAndHasAText) {
  const auto device = Device::open("cuda:0");
  const LoadedKernel kernel = device->load(binary(80), 32, 0);
  const Arguments arguments;
  fake_cuda_fail_times("cuLaunchKernel", CUDA_ERROR_LAUNCH_FAILED, 1, 1);
  EXPECT_EQ(device->launch(kernel, {}, &arguments, nullptr).driver_error, 0);
  EXPECT_EQ(device->launch(kernel, {}, &arguments, nullptr).driver_error, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(device->error_text(CUDA_ERROR_LAUNCH_FAILED),
            "CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure");
  expect_contains(device->error_text(1001), "1001");
}

TEST_F(DeviceTest, CorruptedContextFailsWithItsErrorUntilTheEnd) {
  const auto device = Device::open("cuda:0");
  const LoadedKernel kernel = device->load(binary(80), 32, 0);
  fake_cuda_sticky_error(0, CUDA_ERROR_ILLEGAL_ADDRESS);
  const Arguments arguments;
  EXPECT_EQ(device->launch(kernel, {}, &arguments, nullptr).driver_error,
            CUDA_ERROR_ILLEGAL_ADDRESS);
  const auto [status, text] = failure_of([&] { device->synchronize(nullptr); });
  EXPECT_EQ(status, Status::driver_error);
  expect_contains(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
}

TEST_F(DeviceTest, EightThreadsLaunchOnTwoDevices) {
  constexpr int kThreads = 8;
  constexpr int kLaunches = 200;
  const std::array devices = {Device::open("cuda:0"), Device::open("cuda:1")};
  const std::array kernels = {devices[0]->load(binary(80), 32, 0),
                              devices[1]->load(binary(86), 32, 0)};
  std::array<std::atomic<int>, kThreads> errors{};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const Stream streams[] = {devices[0]->create_stream(), devices[1]->create_stream()};
      const Arguments arguments{.value = static_cast<uint64_t>(t)};
      for (int i = 0; i < kLaunches; ++i) {
        const int which = (t + i) % 2;
        if (devices[which]->capture_state(streams[which]) != CaptureState::none) ++errors[t];
        if (devices[which]->launch(kernels[which], {}, &arguments, streams[which]).driver_error !=
            0) {
          ++errors[t];
        }
        if (i % 50 == 0) devices[which]->load(binary(80), 32, 0);
      }
      devices[0]->destroy_stream(streams[0]);
      devices[1]->destroy_stream(streams[1]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::atomic<int>& count : errors) EXPECT_EQ(count, 0);
  EXPECT_EQ(fake_cuda_launches(), uint64_t{kThreads} * kLaunches);
}

TEST_F(DeviceTest, LaunchesWithoutRecordingAreCounted) {
  const auto device = Device::open("cuda:0");
  const LoadedKernel kernel = device->load(binary(80), 32, 0);
  fake_cuda_set_recording(0);
  const Arguments arguments;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) device->launch(kernel, {}, &arguments, nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake_cuda_launches(), 400u);
}

TEST_F(DeviceTest, BytesGoThereAndBack) {
  const auto device = Device::open("cuda:0");
  std::vector<uint8_t> sent(1000);
  std::iota(sent.begin(), sent.end(), uint8_t{0});
  const DeviceBuffer a(*device, 1000);
  const DeviceBuffer b(*device, 1000);
  const Stream stream = device->create_stream();
  device->copy_to_device(a.get(), sent.data(), 1000);
  device->copy_on_device(b.get(), a.get(), 1000, stream);
  device->fill(b.get() + 10, 0xEE, 5, stream);
  device->synchronize(stream);
  std::vector<uint8_t> received(1000);
  device->copy_to_host(received.data(), b.get(), 1000);
  std::fill_n(sent.begin() + 10, 5, uint8_t{0xEE});
  EXPECT_EQ(received, sent);
  device->destroy_stream(stream);
}

TEST_F(DeviceTest, NothingToDoIsLegal) {
  const auto device = Device::open("cuda:0");
  EXPECT_EQ(device->allocate(0), 0u);
  device->free(0);
  device->copy_to_device(0, nullptr, 0);
  device->copy_to_host(nullptr, 0, 0);
  device->copy_on_device(0, 0, 0, nullptr);
  device->fill(0, 1, 0, nullptr);
  device->destroy_stream(nullptr);
  EXPECT_EQ(failure_of([&] { device->allocate(-1); }).first, Status::invalid_argument);
}

TEST_F(DeviceTest, PinnedMemoryIsTheHostsAndFreedOnce) {
  const auto device = Device::open("cuda:0");
  {
    PinnedBuffer first(*device, 100);
    std::memset(first.get(), 7, 100);
    EXPECT_EQ(first.on_device(), reinterpret_cast<DevicePtr>(first.get()));
    const PinnedBuffer second = std::move(first);
    EXPECT_EQ(second.bytes(), 100);
    EXPECT_EQ(fake_cuda_live("pinned"), 1u);
  }
  EXPECT_EQ(fake_cuda_live("pinned"), 0u);
  EXPECT_EQ(device->allocate_pinned(0), nullptr);
  device->free_pinned(nullptr);
  EXPECT_EQ(failure_of([&] { device->allocate_pinned(-1); }).first, Status::invalid_argument);
  ASSERT_TRUE(fake_cuda_fail_times("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY, 0, 1));
  const auto [status, text] = failure_of([&] { device->allocate_pinned(100); });
  EXPECT_EQ(status, Status::out_of_memory);
  expect_contains(text, "pin 100 bytes of the host on cuda:0 (NVIDIA A100-SXM4-80GB)");
}

TEST_F(DeviceTest, OutOfMemoryHasItsOwnStatus) {
  fake_cuda_set_memory(0, 1000);
  const auto device = Device::open("cuda:0");
  const DeviceBuffer first(*device, 600);
  EXPECT_EQ(device->free_bytes(), 400);
  const auto [status, text] = failure_of([&] { device->allocate(401); });
  EXPECT_EQ(status, Status::out_of_memory);
  expect_contains(text, "allocate 401 bytes on cuda:0 (NVIDIA A100-SXM4-80GB)");
}

TEST_F(DeviceTest, CopyOutOfBoundsIsADriverError) {
  const auto device = Device::open("cuda:0");
  const DeviceBuffer buffer(*device, 8);
  char host[9] = {};
  EXPECT_EQ(failure_of([&] { device->copy_to_device(buffer.get(), host, 9); }).first,
            Status::driver_error);
}

TEST_F(CaptureTest, StateIsReadWithoutChangingIt) {
  const CUstream stream = begin_global_capture(CU_STREAM_NON_BLOCKING);
  EXPECT_EQ(device_->capture_state(stream), CaptureState::active);
  EXPECT_EQ(device_->capture_state(stream), CaptureState::active);
  fake_cuda_set_stream_capturing(stream, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(device_->capture_state(stream), CaptureState::invalidated);
  fake_cuda_set_stream_capturing(stream, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(device_->capture_state(stream), CaptureState::none);
}

TEST_F(CaptureTest, LegacyStreamCountsAsCapturingBesideABlockingCapture) {
  const CUstream stream = begin_global_capture(CU_STREAM_DEFAULT);
  EXPECT_EQ(device_->capture_state(nullptr), CaptureState::active);
  EXPECT_EQ(device_->capture_state(stream), CaptureState::active);
}

TEST_F(CaptureTest, LoadsAndMemoryKeepCapturesOfTheSameThreadValid) {
  for (const unsigned flags : {CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT}) {
    const CUstream captured = begin_global_capture(flags);
    const LoadedKernel kernel = device_->load(binary(80), 32, 0);
    {
      const DeviceBuffer buffer(*device_, 64);
      char host[64] = {};
      device_->copy_to_device(buffer.get(), host, 64);
      device_->copy_to_host(host, buffer.get(), 64);
      device_->free_bytes();
      const Stream own = device_->create_stream();
      device_->fill(buffer.get(), 0, 64, own);
      device_->synchronize(own);
      device_->destroy_stream(own);
    }
    const Arguments arguments;
    EXPECT_EQ(device_->launch(kernel, {}, &arguments, captured).driver_error, 0);
    EXPECT_EQ(device_->capture_state(captured), CaptureState::active);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(captured, &graph), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  }
}

TEST_F(CaptureTest, OpeningAndClosingKeepsCapturesValid) {
  const CUstream captured = begin_global_capture(CU_STREAM_DEFAULT);
  {
    const auto second = Device::open("cuda:0");
    second->load(binary(80), 32, 0);
  }
  EXPECT_EQ(device_->capture_state(captured), CaptureState::active);
}

TEST_F(CaptureTest, C134LoadKeepsCaptureOfAnotherThreadValid) {
  const CUstream captured = begin_global_capture(CU_STREAM_NON_BLOCKING);
  std::thread([&] { device_->load(binary(80), 32, 0); }).join();
  EXPECT_EQ(device_->capture_state(captured), CaptureState::active);
}

TEST_F(CaptureTest, ModeOfTheThreadIsPutBack) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  cuThreadExchangeStreamCaptureMode(&mode);
  device_->load(binary(80), 32, 0);
  EXPECT_THROW(device_->load(binary(90), 32, 0), Error);
  device_->free(device_->allocate(8));
  cuThreadExchangeStreamCaptureMode(&mode);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

TEST_F(CaptureTest, ModeOfTheThreadSurvivesEveryFault) {
  constexpr CUstreamCaptureMode kModes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL};
  for (const CUstreamCaptureMode expected : kModes) {
    for (const char* function :
         {"cuThreadExchangeStreamCaptureMode", "cuCtxGetCurrent", "cuCtxPushCurrent"}) {
      for (int after = 0; after < 4; ++after) {
        CUstreamCaptureMode mode = expected;
        cuThreadExchangeStreamCaptureMode(&mode);
        ASSERT_EQ(fake_cuda_fail_times(function, CUDA_ERROR_UNKNOWN, after, 1), 1);
        failure_of([&] { device_->free(device_->allocate(8)); });
        fake_cuda_fail(function, 0, 0);
        cuThreadExchangeStreamCaptureMode(&mode);
        EXPECT_EQ(mode, expected) << function << " call " << after;
        EXPECT_EQ(fake_cuda_context_depth(), 0) << function << " call " << after;
      }
    }
  }
}

TEST_F(CaptureTest, FaultAfterTheCaptureLeavesNoGraph) {
  for (const char* function :
       {"cuCtxGetCurrent", "cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode"}) {
    const Stream stream = device_->create_stream();
    device_->begin_capture(stream);
    const int before = std::string_view(function) == "cuThreadExchangeStreamCaptureMode" ? 0 : 1;
    fake_cuda_fail_times(function, CUDA_ERROR_UNKNOWN, before, 1);
    EXPECT_EQ(failure_of([&] { device_->end_capture(stream); }).first, Status::driver_error)
        << function;
    EXPECT_EQ(fake_cuda_live("graphs"), 0u) << function;
    EXPECT_EQ(fake_cuda_live("graph_execs"), 0u) << function;
    device_->destroy_stream(stream);
  }
}

TEST_F(CaptureTest, GraphReplaysItsLaunches) {
  const LoadedKernel kernel = device_->load(binary(80), 32, 0);
  const DeviceBuffer buffer(*device_, 4);
  const Stream stream = device_->create_stream();
  device_->begin_capture(stream);
  const Arguments arguments{.value = 9};
  device_->fill(buffer.get(), 7, 4, stream);
  EXPECT_EQ(device_->launch(kernel, {5, 1, 1}, &arguments, stream).driver_error, 0);
  EXPECT_EQ(device_->launch(kernel, {6, 1, 1}, &arguments, stream).driver_error, 0);
  EXPECT_EQ(fake_cuda_launches(), 0u);
  {
    const std::unique_ptr<Graph> graph = device_->end_capture(stream);
    device_->launch_graph(*graph, stream);
    device_->launch_graph(*graph, stream);
    device_->synchronize(stream);
    EXPECT_EQ(fake_cuda_launches(), 4u);
    fake_cuda_launch launch{};
    ASSERT_TRUE(fake_cuda_get_launch(2, &launch));
    EXPECT_EQ(launch.from_graph, 1);
    EXPECT_EQ(launch.grid[0], 5u);
    EXPECT_EQ(std::memcmp(launch.params, &arguments, sizeof(arguments)), 0);
    std::array<uint8_t, 4> bytes{};
    device_->copy_to_host(bytes.data(), buffer.get(), 4);
    EXPECT_EQ(bytes, (std::array<uint8_t, 4>{7, 7, 7, 7}));
    fake_cuda_set_kernel_ns(2500);
    EXPECT_DOUBLE_EQ(device_->time_graph_ns(*graph, stream), static_cast<double>(0.005f) * 1e6);
  }
  EXPECT_EQ(fake_cuda_live("graphs"), 0u);
  EXPECT_EQ(fake_cuda_live("graph_execs"), 0u);
  EXPECT_EQ(fake_cuda_live("events"), 0u);
  device_->destroy_stream(stream);
}

TEST_F(CaptureTest, BrokenCaptureFailsAtItsEnd) {
  const Stream stream = device_->create_stream();
  device_->begin_capture(stream);
  fake_cuda_set_stream_capturing(stream, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  const auto [status, text] = failure_of([&] { device_->end_capture(stream); });
  EXPECT_EQ(status, Status::driver_error);
  expect_contains(text, "end a capture");
  expect_contains(text, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED");
  device_->destroy_stream(stream);
}

TEST_F(DeviceTest, ConditionReadsClockAndThrottleReasons) {
  const auto device = Device::open("cuda:1");
  constexpr uint64_t kIdle = 0x1;
  constexpr uint64_t kPowerCap = 0x4;
  fake_cuda_set_clocks(1200, kIdle | kPowerCap);
  const DeviceCondition condition = device->condition();
  EXPECT_EQ(condition.reading, ClockReading::available);
  EXPECT_EQ(condition.sm_mhz, 1200);
  EXPECT_EQ(condition.throttle_reasons, kPowerCap);
}

TEST_F(DeviceTest, ConditionIsUnavailableWithoutNvml) {
  setenv("KILN_LIBNVML", "/nonexistent/libnvidia-ml.so.1", 1);
  const auto device = Device::open("cuda:0");
  EXPECT_EQ(device->condition().reading, ClockReading::unavailable);
  setenv("KILN_LIBNVML", "libm.so.6", 1);
  EXPECT_EQ(Device::open("cuda:0")->condition().reading, ClockReading::unavailable);
  const std::string fifo = ::testing::TempDir() + fmt::format("kiln-nvml-{}", getpid());
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  setenv("KILN_LIBNVML", fifo.c_str(), 1);  // opening it would wait for a writer
  EXPECT_EQ(Device::open("cuda:0")->condition().reading, ClockReading::unavailable);
  unlink(fifo.c_str());
}

}  // namespace
}  // namespace kiln::runtime
