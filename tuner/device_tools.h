// The child's hands on the device: memory from a bounded arena, and the tuner's own kernels as
// functions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device.h"
#include "templates/kit.h"

namespace kiln::tuner {

// All device memory of the tuner and what it pins of the host, at most `limit_bytes` of it at a
// time. Fails with out_of_memory beyond, as the driver does.
class Arena {
 public:
  Arena(runtime::Device& device, int64_t limit_bytes)
      : device_(device), limit_bytes_(limit_bytes) {}

  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept {
      if (this != &other) {
        reset();
        arena_ = std::exchange(other.arena_, nullptr);
        memory_ = std::move(other.memory_);
        pinned_ = std::move(other.pinned_);
      }
      return *this;
    }
    ~Buffer() { reset(); }
    void reset() {
      if (arena_ != nullptr) arena_->used_bytes_ -= bytes();
      arena_ = nullptr;
      memory_.reset();
      pinned_.reset();
    }
    runtime::DevicePtr get() const { return is_pinned() ? pinned_.on_device() : memory_.get(); }
    int64_t bytes() const { return memory_.bytes() + pinned_.bytes(); }
    bool is_pinned() const { return pinned_.get() != nullptr; }
    void* on_host() const { return pinned_.get(); }  // nullptr: it is device memory

   private:
    friend class Arena;
    Buffer(Arena& arena, runtime::DeviceBuffer memory)
        : arena_(&arena), memory_(std::move(memory)) {}
    Buffer(Arena& arena, runtime::PinnedBuffer pinned)
        : arena_(&arena), pinned_(std::move(pinned)) {}
    Arena* arena_ = nullptr;
    runtime::DeviceBuffer memory_;  // one of the two
    runtime::PinnedBuffer pinned_;
  };

  Buffer allocate(int64_t bytes);
  Buffer allocate_pinned(int64_t bytes);  // of the host, within the same limit
  int64_t limit_bytes() const { return limit_bytes_; }
  int64_t left_bytes() const { return limit_bytes_ - used_bytes_; }

 private:
  runtime::Device& device_;
  int64_t limit_bytes_;
  int64_t used_bytes_ = 0;

  void require_left(int64_t bytes) const;
};

class OwnStream {
 public:
  explicit OwnStream(runtime::Device& device) : device_(device), stream_(device.create_stream()) {}
  ~OwnStream() { device_.destroy_stream(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  runtime::Stream get() const { return stream_; }

 private:
  runtime::Device& device_;
  runtime::Stream stream_;
};

struct Poison {
  enum class Form { plain, complement };
  uint64_t seed = 0;
  Form form = Form::plain;
};
// Keeps poison of this dtype from being NaN or infinite.
uint64_t poison_mask(templates::DType dtype);
// The word at `index` of a poisoned buffer, as the device writes it.
uint64_t poison_word(const Poison& poison, uint64_t mask, uint64_t index);

struct Comparison {
  int64_t compared = 0;
  int64_t mismatches = 0;
  int64_t first_mismatch = -1;
  double error_squares = 0;
  double reference_squares = 0;
};

// Names of the kernels in tuner/kernels/, in the order that DeviceTools takes their binaries.
const std::vector<std::pair<std::string, std::string>>& tool_kernels();  // file, entry
jit::KernelSource tool_source(const std::string& file, const std::string& entry);

class DeviceTools {
 public:
  DeviceTools(runtime::Device& device, const std::map<std::string, jit::Binary>& tools_by_entry,
              int64_t arena_bytes);

  runtime::Device& device() { return device_; }
  runtime::Stream stream() const { return stream_.get(); }
  Arena& arena() { return arena_; }

  // Buffers are whole multiples of 8 bytes.
  void poison(runtime::DevicePtr at, int64_t bytes, const Poison& poison, uint64_t mask);
  void start_digest();
  void add_to_digest(runtime::DevicePtr at, int64_t bytes);
  uint64_t finish_digest();
  Comparison compare(runtime::DevicePtr candidate, runtime::DevicePtr first,
                     runtime::DevicePtr second, int64_t elements, templates::DType dtype,
                     const templates::Tolerance& tolerance, const Poison& poison);
  // Reads and writes in 16-byte vectors; `unroll` 1, 2, 4 or 8; 0 CTAs: one per chunk.
  void mix(runtime::DevicePtr source, int64_t read_bytes, runtime::DevicePtr target,
           int64_t write_bytes, int unroll, int64_t ctas);
  // Runs mma.sync (bf16, fp32 sums) from registers; returns the fma of all.
  int64_t multiply(int64_t steps, int64_t ctas);
  void empty();

 private:
  void launch(const std::string& entry, int64_t work_items, const void* args);
  void launch_grid(const std::string& entry, int64_t ctas, const void* args);

  runtime::Device& device_;
  OwnStream stream_;
  Arena arena_;
  Arena::Buffer result_;
  std::map<std::string, runtime::LoadedKernel> kernels_;
  uint64_t digest_salt_ = 0;
};

}  // namespace kiln::tuner
