#include "runtime/preloader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <string>

namespace kiln::runtime {
namespace {

// Loads by noting the entry; refuses those whose entry says so. Does nothing else.
class NotingDevice : public Device {
 public:
  const DeviceInfo& info() const override { return info_; }
  DeviceCondition condition() override { return {}; }
  std::string error_text(int) const override { return ""; }
  LoadedKernel load(const jit::Binary& binary, int threads, int64_t smem_bytes) override {
    while (is_held) std::this_thread::yield();
    if (binary.image.empty()) fail(Status::internal, "no image");
    if (binary.entry == "refused") fail(Status::driver_error, "refused");
    const std::lock_guard lock(mutex_);
    return {.function = const_cast<char*>(entries_.insert(binary.entry).first->data()),
            .threads = static_cast<uint32_t>(threads),
            .dynamic_smem_bytes = static_cast<uint32_t>(smem_bytes)};
  }
  LaunchResult launch(const LoadedKernel&, Dim3, const void*, Stream) noexcept override {
    return {};
  }
  CaptureState capture_state(Stream) noexcept override { return CaptureState::none; }
  DevicePtr allocate(int64_t) override { return 0; }
  void free(DevicePtr) noexcept override {}
  int64_t free_bytes() override { return 0; }
  void copy_to_device(DevicePtr, const void*, int64_t) override {}
  void copy_to_host(void*, DevicePtr, int64_t) override {}
  void copy_on_device(DevicePtr, DevicePtr, int64_t, Stream) override {}
  void fill(DevicePtr, uint8_t, int64_t, Stream) override {}
  Stream create_stream() override { return nullptr; }
  void destroy_stream(Stream) noexcept override {}
  void synchronize(Stream) override {}
  void begin_capture(Stream) override {}
  std::unique_ptr<Graph> end_capture(Stream) override { return nullptr; }
  void launch_graph(Graph&, Stream) override {}
  double time_graph_ns(Graph&, Stream) override { return 0; }

  std::atomic<bool> is_held = false;
  size_t loaded() {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  DeviceInfo info_;
  std::mutex mutex_;
  std::set<std::string> entries_;
};

class PreloaderTest : public ::testing::Test {
 protected:
  KernelKey put(const std::string& entry) {
    jit::Binary binary;
    binary.key = hash_text(entry);
    binary.arch = "sm_80";
    binary.entry = entry;
    binary.image = std::string(1000, 'x');
    EXPECT_TRUE(store_->put_binary(binary));
    return {.binary = binary.key, .threads = 128};
  }
  static KernelKey nowhere() { return {.binary = hash_text("nowhere"), .threads = 128}; }

  std::unique_ptr<cache::Store> store_ = cache::Store::open({.path = ":memory:"});
  NotingDevice device_;
  KernelCache kernels_;
};

TEST_F(PreloaderTest, GivesWhatWasWantedInAnyOrderOfAsking) {
  std::vector<KernelKey> keys;
  for (int i = 0; i < 100; ++i) keys.push_back(put(fmt::format("kernel_{}", i)));  // more than fit
  Preloader preloader(device_, *store_, kernels_);
  for (const KernelKey& key : keys) preloader.want(key, {});
  for (size_t i = keys.size(); i-- > 0;) {
    const std::optional<Preloaded> got = preloader.take(keys[i]);
    ASSERT_TRUE(got && got->binary) << i;
    EXPECT_EQ(got->binary->entry, fmt::format("kernel_{}", i));
    EXPECT_EQ(got->binary->entry, static_cast<const char*>(got->kernel.function));
    EXPECT_TRUE(got->binary->image.empty()) << "it is loaded";
    EXPECT_EQ(got->failure, nullptr);
  }
}

TEST_F(PreloaderTest, TellsWhatIsAbsentAndWhatTheDeviceRefuses) {
  const KernelKey refused = put("refused");
  Preloader preloader(device_, *store_, kernels_);
  preloader.want(nowhere(), {});
  preloader.want(refused, {});
  const std::optional<Preloaded> absent = preloader.take(nowhere());
  ASSERT_TRUE(absent);
  EXPECT_FALSE(absent->is_listed);
  EXPECT_FALSE(absent->binary);
  const std::optional<Preloaded> failed = preloader.take(refused);
  ASSERT_TRUE(failed && failed->binary);
  EXPECT_TRUE(failed->is_listed);
  EXPECT_THROW(std::rethrow_exception(failed->failure), Error);
  EXPECT_FALSE(preloader.take(put("not wanted")));
}

TEST_F(PreloaderTest, LeavesAloneWhatAnotherMakesOrHasMade) {
  const KernelKey busy = put("busy"), ready = put("ready");
  ASSERT_EQ(kernels_.claim(busy), KernelCache::Claim::mine);
  ASSERT_EQ(kernels_.claim(ready), KernelCache::Claim::mine);
  kernels_.hand_in(ready, {});
  Preloader preloader(device_, *store_, kernels_);
  preloader.want(busy, {});
  preloader.want(ready, {});
  EXPECT_FALSE(preloader.take(busy));
  EXPECT_FALSE(preloader.take(ready));
  Claims claims(kernels_);
  EXPECT_FALSE(preloader.give(busy, claims));
  EXPECT_EQ(device_.loaded(), 0u);
  kernels_.abandon(busy);
}

TEST_F(PreloaderTest, WhatNobodyTookIsThereForTheNext) {
  const KernelKey key = put("kernel"), given = put("given");
  {
    Preloader preloader(device_, *store_, kernels_);
    preloader.want(key, {});
    preloader.want(given, {});
    EXPECT_EQ(kernels_.claim(key), KernelCache::Claim::busy);
    Claims claims(kernels_);
    EXPECT_TRUE(preloader.give(given, claims));
    while (device_.loaded() < 2) std::this_thread::yield();
    EXPECT_TRUE(preloader.take(given));
  }
  EXPECT_NE(kernels_.find(key), nullptr);
  EXPECT_EQ(kernels_.find(given), nullptr) << "whoever took it hands it in";
  EXPECT_EQ(kernels_.claim(given), KernelCache::Claim::mine) << "the claim went with its holder";
}

TEST_F(PreloaderTest, EndsWithWorkInItsQueuesAndGivesTheClaimsBack) {
  std::vector<KernelKey> keys;
  for (int i = 0; i < 60; ++i) keys.push_back(put(fmt::format("kernel_{}", i)));
  device_.is_held = true;
  std::thread user;
  {
    Preloader preloader(device_, *store_, kernels_);
    for (const KernelKey& key : keys) preloader.want(key, {});
    user = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      device_.is_held = false;
    });
  }
  user.join();
  size_t ready = 0;
  for (const KernelKey& key : keys) {
    const KernelCache::Claim claim = kernels_.claim(key);
    EXPECT_NE(claim, KernelCache::Claim::busy);
    ready += claim == KernelCache::Claim::ready ? 1 : 0;
  }
  EXPECT_EQ(ready, device_.loaded());
  EXPECT_LT(ready, keys.size());
}

}  // namespace
}  // namespace kiln::runtime
