// The simulator as a Device: streams, captures, what a failed kernel leaves behind, which blocks
// run at the same time, and what may be loaded.
#include "runtime/sim/sim_device.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "jit/base/error.h"
#include "templates/abi.h"

namespace kiln::runtime::sim {
namespace {

constexpr const char* kHeader = ".version 7.8\n.target sm_80\n.address_size 64\n";

struct Args {
  DevicePtr memory = 0;
  uint64_t value = 0;
};

// %d0: the memory, %r0: the low word of the value.
jit::Binary kernel(const std::string& body, const std::string& bounds = "",
                   const std::string& before = "") {
  jit::Binary binary;
  binary.kind = jit::BinaryKind::ptx;
  binary.arch = "compute_80";
  binary.entry = "kernel";
  binary.image = std::string(kHeader) + before +
                 ".visible .entry kernel(.param .align 8 .b8 args[16])" + bounds +
                 "\n{\n.reg .pred %p<4>;\n.reg .b32 %r<16>;\n.reg .b64 %d<8>;\n"
                 "ld.param.u64 %d0, [args];\nld.param.u32 %r0, [args+8];\n" +
                 body + "\nret;\n}\n";
  return binary;
}

// *memory += value
jit::Binary adding() {
  return kernel(
      "mov.u32 %r1, %tid.x;\nsetp.ne.u32 %p0, %r1, 0;\n@%p0 ret;\n"
      "ld.global.u32 %r2, [%d0];\nadd.u32 %r2, %r2, %r0;\nst.global.u32 [%d0], %r2;");
}

// Each block waits for all the others.
jit::Binary grid_barrier(const std::string& bounds = "") {
  return kernel(
      "mov.u32 %r1, %tid.x;\nsetp.ne.u32 %p0, %r1, 0;\n@%p0 bra wait;\n"
      "mov.u32 %r2, %nctaid.x;\nred.global.add.u32 [%d0], 1;\n"
      "again:\nld.acquire.gpu.global.u32 %r3, [%d0];\nsetp.lt.u32 %p1, %r3, %r2;\n@%p1 bra again;\n"
      "wait:\nbar.sync 0;",
      bounds);
}

const templates::Op& op_of_two_fields() {
  static const templates::Op op = [] {
    templates::Op made;
    made.name = "two_fields";
    made.sizes = {templates::dynamic("N", "num_rows", "")};
    return made;
  }();
  return op;
}

class SimDeviceTest : public testing::Test {
 protected:
  SimDeviceTest() {
    gpu_.sm_count = 1;
    open();
  }
  void open() {
    const SimOptions options{.gpu = gpu_, .checking = Checking::off, .threads = 2, .limit_s = 1.5};
    device_.reset(kiln_sim_open(&options));
    memory_ = device_->allocate(256);
    device_->fill(memory_, 0, 256, nullptr);
  }

  uint32_t value() {
    uint32_t word = 0;
    device_->copy_to_host(&word, memory_, sizeof word);
    return word;
  }
  int launch(const LoadedKernel& loaded, uint64_t value = 1, Stream stream = nullptr,
             uint32_t grid = 1) {
    const Args args{memory_, value};
    return device_->launch(loaded, {grid}, &args, stream).driver_error;
  }
  // What the wait for the launch says; "" when all is well.
  std::string run(const jit::Binary& binary, int threads, int64_t smem_bytes, uint32_t grid) {
    launch(device_->load(binary, threads, smem_bytes), 1, nullptr, grid);
    return refusal([&] { device_->synchronize(nullptr); });
  }
  std::string refusal(const std::function<void()>& action, Status status = Status::driver_error) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), status) << error.what();
      return error.what();
    }
    return "";
  }
  void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
  }

  Gpu gpu_ = find_gpu("rtx-3090");
  std::unique_ptr<Device> device_;
  DevicePtr memory_ = 0;
};

// --- streams and captures

TEST_F(SimDeviceTest, AForeignStreamIsRefusedAndNothingElseHappens) {
  uint64_t foreign[64] = {};
  const LoadedKernel add = device_->load(adding(), 32, 0);
  const auto only_null = [&](const std::function<void()>& action) {
    expect_part(refusal(action, Status::invalid_argument), "only NULL");
  };
  only_null([&] { device_->synchronize(foreign); });
  only_null([&] { device_->fill(memory_, 1, 4, foreign); });
  only_null([&] { device_->copy_on_device(memory_, memory_, 4, foreign); });
  only_null([&] { device_->begin_capture(foreign); });
  const int error = launch(add, 1, foreign);
  EXPECT_EQ(error, 400);
  expect_part(device_->error_text(error), "NULL is the only one");
  EXPECT_EQ(device_->capture_state(foreign), CaptureState::none);
  device_->destroy_stream(foreign);
  const Stream own = device_->create_stream();
  device_->destroy_stream(own);
  EXPECT_EQ(launch(add, 1, own), 400);  // no longer one
  EXPECT_EQ(launch(add), 0);
  EXPECT_EQ(value(), 1u);
}

TEST_F(SimDeviceTest, ACaptureIsReplayedOnWhatIsThereThen) {
  const LoadedKernel add = device_->load(adding(), 32, 0);
  const Stream stream = device_->create_stream();
  device_->begin_capture(stream);
  EXPECT_EQ(device_->capture_state(stream), CaptureState::active);
  EXPECT_EQ(launch(add, 5, stream), 0);
  device_->copy_on_device(memory_ + 4, memory_, 4, stream);
  EXPECT_EQ(launch(add, 7, stream), 0);
  const std::unique_ptr<Graph> graph = device_->end_capture(stream);
  EXPECT_EQ(device_->capture_state(stream), CaptureState::none);
  EXPECT_EQ(value(), 0u);

  for (const uint32_t begin : {100u, 1000u}) {
    device_->copy_to_device(memory_, &begin, sizeof begin);
    device_->launch_graph(*graph, stream);
    device_->synchronize(stream);
    uint32_t words[2] = {};
    device_->copy_to_host(words, memory_, sizeof words);
    EXPECT_EQ(words[0], begin + 12);
    EXPECT_EQ(words[1], begin + 5);
  }
}

TEST_F(SimDeviceTest, WaitingForACapturingStreamBreaksTheCapture) {
  const LoadedKernel add = device_->load(adding(), 32, 0);
  const Stream stream = device_->create_stream();
  device_->begin_capture(stream);
  EXPECT_EQ(launch(add, 1, stream), 0);
  device_->synchronize(nullptr);  // another stream
  EXPECT_EQ(device_->capture_state(stream), CaptureState::active);
  expect_part(refusal([&] { device_->synchronize(stream); }), "being captured");
  EXPECT_EQ(device_->capture_state(stream), CaptureState::invalidated);
  EXPECT_EQ(launch(add, 1, stream), 901);
  expect_part(refusal([&] { device_->end_capture(stream); }), "broken");
  EXPECT_EQ(device_->capture_state(stream), CaptureState::none);
  EXPECT_EQ(launch(add, 3, stream), 0);
  EXPECT_EQ(value(), 3u);
}

TEST_F(SimDeviceTest, LaunchesOfSeveralThreadsRunOneAfterAnother) {
  const LoadedKernel add = device_->load(adding(), 32, 0);
  constexpr int kLaunches = 100;
  const auto work = [&] {
    for (int i = 0; i < kLaunches; ++i) EXPECT_EQ(launch(add), 0);
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(value(), 2u * kLaunches);
}

// --- after a failure

TEST_F(SimDeviceTest, AfterAFailureEverythingAnswersWithIt) {
  const LoadedKernel add = device_->load(adding(), 32, 0);
  const Stream stream = device_->create_stream();
  device_->begin_capture(stream);
  EXPECT_EQ(launch(add, 1, stream), 0);
  const std::unique_ptr<Graph> graph = device_->end_capture(stream);

  const int own_error = launch(device_->load(kernel("trap;"), 32, 0));
  EXPECT_NE(own_error, 0);
  EXPECT_FALSE(device_->is_of_earlier_kernel(own_error));
  uint32_t word = 0;
  const std::function<void()> actions[] = {
      [&] { device_->synchronize(nullptr); },
      [&] { device_->synchronize(stream); },
      [&] { device_->copy_to_host(&word, memory_, 4); },
      [&] { device_->copy_to_device(memory_, &word, 4); },
      [&] { device_->copy_on_device(memory_ + 4, memory_, 4, nullptr); },
      [&] { device_->fill(memory_, 1, 4, nullptr); },
      [&] { device_->launch_graph(*graph, stream); },
  };
  for (const auto& action : actions) expect_part(refusal(action), "executed trap");
  const int error = launch(add);
  EXPECT_TRUE(device_->is_of_earlier_kernel(error));
  expect_part(device_->error_text(error), "executed trap");
}

// --- which blocks run at the same time

TEST_F(SimDeviceTest, AGridBarrierOfBlocksThatAllFitEnds) {
  EXPECT_EQ(run(grid_barrier(), 512, 0, 3), "");  // 48 warps an SM
  device_->fill(memory_, 0, 4, nullptr);
  EXPECT_EQ(run(grid_barrier(), 64, 32 << 10, 3), "");
}

TEST_F(SimDeviceTest, AGridBarrierOfMoreThreadsThanAnSmHasHangs) {
  expect_part(run(grid_barrier(), 1024, 0, 2), "did not end in time");
}

TEST_F(SimDeviceTest, AGridBarrierOfMoreSharedMemoryThanAnSmHasHangs) {
  expect_part(run(grid_barrier(), 64, 64 << 10, 2), "did not end in time");
}

TEST_F(SimDeviceTest, AGridBarrierOfMoreRegistersThanAnSmHasHangs) {
  jit::Binary binary = grid_barrier();
  binary.resources.registers = 128;
  expect_part(run(binary, 512, 0, 2), "did not end in time");
  open();
  binary = grid_barrier(" .minnctapersm 2");
  binary.resources.registers = 128;
  EXPECT_EQ(run(binary, 512, 0, 2), "");
}

// --- loading

TEST_F(SimDeviceTest, ABlockThatTheKernelWasNotCompiledForIsRefused) {
  const auto why = [&](const char* bounds, int threads) {
    return refusal([&] { device_->load(kernel("", bounds), threads, 0); }, Status::unsupported);
  };
  EXPECT_EQ(why(" .maxntid 128, 1, 1", 128), "");
  EXPECT_EQ(why(" .maxntid 16, 8", 128), "");
  EXPECT_EQ(why(" .reqntid 64", 64), "");
  expect_part(why(" .maxntid 128, 1, 1", 160), "at most 128 threads; 160");
  expect_part(why(" .reqntid 64", 32), "exactly 64 x 1 x 1 threads; 32");
  expect_part(why(" .reqntid 8, 8", 64), "exactly 8 x 8 x 1");

  LoadedKernel loaded = device_->load(kernel("", " .maxntid 64"), 64, 0);
  loaded.threads = 96;
  EXPECT_EQ(launch(loaded), 1);
  loaded.threads = 32;
  EXPECT_EQ(launch(loaded), 0);
}

TEST_F(SimDeviceTest, WhatCannotBeLoadedLeavesNothingBehind) {
  const int64_t free_bytes = device_->free_bytes();
  const jit::Binary binary = kernel("", "", ".global .b8 a[4096];\n.global .u64 b = nowhere;\n");
  for (int i = 0; i < 2; ++i) {
    expect_part(refusal([&] { device_->load(binary, 32, 0); }, Status::unsupported),
                "the address of nowhere");
  }
  const jit::Binary unknown = kernel("frobnicate.u32 %r0;", "", ".global .b8 a[4096];\n");
  for (int i = 0; i < 2; ++i) {
    expect_part(refusal([&] { device_->load(unknown, 32, 0); }, Status::unsupported), "frobnicate");
  }
  EXPECT_EQ(device_->free_bytes(), free_bytes);
}

TEST_F(SimDeviceTest, EveryLoadHasItsOwnVariables) {
  const jit::Binary counting = kernel(
      "mov.u64 %d1, counter;\nld.global.u32 %r2, [%d1];\nadd.u32 %r2, %r2, %r0;\n"
      "st.global.u32 [%d1], %r2;\nst.global.u32 [%d0], %r2;",
      "", ".global .u32 counter = 10;\n");
  const LoadedKernel one = device_->load(counting, 1, 0);
  const LoadedKernel other = device_->load(counting, 1, 0);
  EXPECT_EQ(launch(one), 0);
  EXPECT_EQ(launch(one), 0);
  EXPECT_EQ(value(), 12u);
  EXPECT_EQ(launch(other), 0);
  EXPECT_EQ(value(), 11u);
}

TEST_F(SimDeviceTest, MoreLocalMemoryThanAThreadHasIsRefused) {
  expect_part(
      refusal([&] { device_->load(kernel(".local .b8 a[400000];\n.local .b8 b[400000];"), 32, 0); },
              Status::unsupported),
      "of local memory");
}

TEST_F(SimDeviceTest, AKernelThatDoesNotTakeTheStructIsRefused) {
  const LoadedKernel loaded = device_->load(adding(), 32, 0);
  const auto fields = static_cast<int64_t>(templates::abi_fields(op_of_two_fields()).size());
  ASSERT_EQ(fields * templates::kFieldBytes, static_cast<int64_t>(sizeof(Args)));
  device_->describe(loaded, {.op = &op_of_two_fields()});

  jit::Binary longer = adding();
  const size_t at = longer.image.find("args[16]");
  longer.image.replace(at, 8, "args[4096]");
  const LoadedKernel greedy = device_->load(longer, 32, 0);
  expect_part(refusal([&] { device_->describe(greedy, {.op = &op_of_two_fields()}); }),
              "takes 4096 bytes of arguments, the struct of two_fields has 16");
}

TEST_F(SimDeviceTest, ALaunchWithoutArgumentsIsRefused) {
  const LoadedKernel loaded = device_->load(adding(), 32, 0);
  EXPECT_EQ(device_->launch(loaded, {1}, nullptr, nullptr).driver_error, 1);
}

}  // namespace
}  // namespace kiln::runtime::sim
