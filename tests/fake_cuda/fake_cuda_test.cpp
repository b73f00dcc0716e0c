// The fake driver against what the real one does: the rules that tests of Kiln lean on.
#include "tests/fake_cuda/fake_cuda.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>

#include "tests/fake_cuda/fake_cubin.h"

namespace kiln::fake {
namespace {

class FakeCuda : public testing::Test {
 protected:
  void SetUp() override {
    fake_cuda_reset();
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxPushCurrent(context_), CUDA_SUCCESS);
  }
  void TearDown() override { fake_cuda_reset(); }

  CUfunction load(const std::string& image, const char* entry) {
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    EXPECT_EQ(cuLibraryLoadData(&library, image.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryGetKernel(&kernel, library, entry), CUDA_SUCCESS);
    EXPECT_EQ(cuKernelGetFunction(&function, kernel), CUDA_SUCCESS);
    return function;
  }
  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream made = nullptr;
    EXPECT_EQ(cuStreamCreate(&made, flags), CUDA_SUCCESS);
    return made;
  }
  static CUstreamCaptureStatus capture_of(CUstream of) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuStreamIsCapturing(of, &status), CUDA_SUCCESS);
    return status;
  }

  CUcontext context_ = nullptr;
};

TEST_F(FakeCuda, CallsBeforeInitAreRefused) {
  fake_cuda_reset();
  int count = 0;
  EXPECT_EQ(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
}

TEST_F(FakeCuda, MadeCubinIsReadBack) {
  const Image image = read_image(
      make_cubin(86, {{"first", 40, 512, 64, 256}, {"second", 16, 0, 24, 1024}}).c_str());
  EXPECT_EQ(image.kind, ImageKind::cubin);
  EXPECT_EQ(image.sm, 86);
  ASSERT_EQ(image.kernels.size(), 2u);
  EXPECT_EQ(image.kernels[0].name, "first");
  EXPECT_EQ(image.kernels[0].param_bytes, 40);
  EXPECT_EQ(image.kernels[0].static_smem_bytes, 512);
  EXPECT_EQ(image.kernels[0].registers, 64);
  EXPECT_EQ(image.kernels[0].max_threads, 256);
  EXPECT_EQ(image.kernels[1].name, "second");
}

TEST_F(FakeCuda, PtxIsReadForTargetVersionAndKernels) {
  const Image image = read_image(
      "//\n.version 8.4\n.target sm_80\n.visible .entry scale(\n\t.param .align 8 .b8 "
      "scale_param_0[56]\n)\n{ ret; }\n");
  EXPECT_EQ(image.kind, ImageKind::ptx);
  EXPECT_EQ(image.sm, 80);
  EXPECT_EQ(image.ptx_version_major, 8);
  EXPECT_EQ(image.ptx_version_minor, 4);
  ASSERT_EQ(image.kernels.size(), 1u);
  EXPECT_EQ(image.kernels[0].name, "scale");
  EXPECT_EQ(image.kernels[0].param_bytes, 56);
}

TEST_F(FakeCuda, CopyPastTheEndOfAnAllocationIsInvalid) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(cuMemAlloc(&memory, 100), CUDA_SUCCESS);
  char host[101] = {};
  EXPECT_EQ(cuMemcpyHtoD(memory, host, 100), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoD(memory, host, 101), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD(memory + 1, host, 100), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoH(host, memory - 1, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCuda, AllocationInvalidatesGlobalCaptureOfAnotherThread) {
  const CUstream captured = stream();
  std::thread([&] {
    cuCtxPushCurrent(context_);
    cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL);
  }).join();
  CUdeviceptr memory = 0;
  EXPECT_EQ(cuMemAlloc(&memory, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(capture_of(captured), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

TEST_F(FakeCuda, AllocationLeavesThreadLocalCaptureOfAnotherThreadAlone) {
  const CUstream captured = stream();
  std::thread([&] {
    cuCtxPushCurrent(context_);
    cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  }).join();
  CUdeviceptr memory = 0;
  EXPECT_EQ(cuMemAlloc(&memory, 64), CUDA_SUCCESS);
  EXPECT_EQ(capture_of(captured), CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

TEST_F(FakeCuda, RelaxedThreadMayAllocateDuringItsOwnCapture) {
  const CUstream captured = stream();
  ASSERT_EQ(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUdeviceptr memory = 0;
  EXPECT_EQ(cuMemAlloc(&memory, 64), CUDA_SUCCESS);
  EXPECT_EQ(capture_of(captured), CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

TEST_F(FakeCuda, DeviceWideSynchronisationBreaksEvenARelaxedCapture) {
  const CUstream captured = stream();
  ASSERT_EQ(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(captured, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(graph, nullptr);
}

TEST_F(FakeCuda, LegacyStreamBreaksCaptureOfABlockingStreamOnly) {
  const CUfunction function = load(make_cubin(80, {{"k", 8}}), "k");
  uint64_t arguments = 8;
  void* parameters[] = {&arguments};
  const auto launch = [&] {
    return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
  };
  const CUstream non_blocking = stream(CU_STREAM_NON_BLOCKING);
  cuStreamBeginCapture(non_blocking, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  const CUstream blocking = stream(CU_STREAM_DEFAULT);
  cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CUstreamCaptureStatus status{};
  EXPECT_EQ(cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(capture_of(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(launch(), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(capture_of(blocking), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(capture_of(non_blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

TEST_F(FakeCuda, CaptureEndsOnlyInItsOwnThread) {
  const CUstream captured = stream();
  cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CUresult result = CUDA_SUCCESS;
  std::thread([&] {
    CUgraph graph = nullptr;
    result = cuStreamEndCapture(captured, &graph);
  }).join();
  EXPECT_EQ(result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
}

TEST_F(FakeCuda, CorruptingErrorSticksToItsContextAlone) {
  ASSERT_TRUE(fake_cuda_fail_times("cuMemAlloc", CUDA_ERROR_ILLEGAL_ADDRESS, 1, 1));
  CUdeviceptr memory = 0;
  EXPECT_EQ(cuMemAlloc(&memory, 64), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&memory, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuMemFree(memory), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUcontext other = nullptr;
  cuDevicePrimaryCtxRetain(&other, 1);
  cuCtxPushCurrent(other);
  EXPECT_EQ(cuMemAlloc(&memory, 64), CUDA_SUCCESS);
}

TEST_F(FakeCuda, OrdinaryErrorDoesNotStick) {
  ASSERT_TRUE(fake_cuda_fail_times("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 0, 1));
  CUdeviceptr memory = 0;
  EXPECT_EQ(cuMemAlloc(&memory, 64), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc(&memory, 64), CUDA_SUCCESS);
}

TEST_F(FakeCuda, UnknownFunctionCannotFail) { EXPECT_FALSE(fake_cuda_fail("cuMagic", 1, 0)); }

TEST_F(FakeCuda, ParameterIsCopiedAtItsRegisteredSize) {
  const CUfunction function = load(make_cubin(80, {{"k", 24}}), "k");
  const uint64_t arguments[4] = {11, 22, 33, 44};
  void* parameters[] = {const_cast<uint64_t*>(arguments)};
  ASSERT_EQ(cuLaunchKernel(function, 3, 2, 1, 64, 1, 1, 100, nullptr, parameters, nullptr),
            CUDA_SUCCESS);
  fake_cuda_launch launch{};
  ASSERT_TRUE(fake_cuda_last_launch(&launch));
  EXPECT_STREQ(launch.kernel, "k");
  EXPECT_EQ(launch.param_bytes, 24u);
  EXPECT_EQ(std::memcmp(launch.params, arguments, 24), 0);
  EXPECT_EQ(launch.params[24], 0);
  EXPECT_EQ(launch.grid[0], 3u);
  EXPECT_EQ(launch.grid[1], 2u);
  EXPECT_EQ(launch.dynamic_smem_bytes, 100u);
}

TEST_F(FakeCuda, UnsaidParameterSizeComesFromItsFirstField) {
  const CUfunction function = load(make_cubin(80, {{"k", -1}}), "k");
  const uint64_t arguments[2] = {16, 7};
  void* parameters[] = {const_cast<uint64_t*>(arguments)};
  cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
  fake_cuda_launch launch{};
  ASSERT_TRUE(fake_cuda_last_launch(&launch));
  EXPECT_EQ(launch.param_bytes, 16u);
  EXPECT_EQ(launch.params[8], 7);
}

TEST_F(FakeCuda, LaunchOutsideTheLimitsIsRefused) {
  const CUfunction function = load(make_cubin(80, {{"k", 8, 0, 32, 128}}), "k");
  uint64_t arguments = 8;
  void* parameters[] = {&arguments};
  const auto launch = [&](unsigned x, unsigned y, unsigned threads, unsigned smem_bytes) {
    return cuLaunchKernel(function, x, y, 1, threads, 1, 1, smem_bytes, nullptr, parameters,
                          nullptr);
  };
  EXPECT_EQ(launch(0, 1, 32, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(1, 65536, 32, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(1, 1, 256, 0), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  EXPECT_EQ(launch(1, 1, 128, 48 * 1024 + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(65536, 65535, 128, 48 * 1024), CUDA_SUCCESS);
}

TEST_F(FakeCuda, RecordingOffKeepsCountsButNoLaunches) {
  const CUfunction function = load(make_cubin(80, {{"k", 8}}), "k");
  uint64_t arguments = 8;
  void* parameters[] = {&arguments};
  fake_cuda_set_recording(0);
  EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr),
            CUDA_SUCCESS);
  fake_cuda_launch launch{};
  EXPECT_FALSE(fake_cuda_last_launch(&launch));
  EXPECT_EQ(fake_cuda_launches(), 1u);
  EXPECT_EQ(fake_cuda_calls("cuLaunchKernel"), 1u);
}

TEST_F(FakeCuda, LastReleaseOfTheContextTakesItsMemoryAndStreams) {
  CUdeviceptr memory = 0;
  cuMemAlloc(&memory, 64);
  stream();
  EXPECT_EQ(fake_cuda_live("allocations"), 1u);
  cuDevicePrimaryCtxRelease(0);
  EXPECT_EQ(fake_cuda_live("contexts"), 0u);
  EXPECT_EQ(fake_cuda_live("allocations"), 0u);
  EXPECT_EQ(fake_cuda_live("streams"), 0u);
  EXPECT_EQ(cuMemAlloc(&memory, 64), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

}  // namespace
}  // namespace kiln::fake
