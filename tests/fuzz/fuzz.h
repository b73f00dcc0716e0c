// What the fuzz targets share. A target is one function, LLVMFuzzerTestOneInput: libFuzzer calls it
// in the preset `fuzz`, replay_main.cpp elsewhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kiln::fuzz {

// A finding ends the process, as a sanitizer's does.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

// Takes numbers off the front of an input; zero when it is used up.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t bytes) : at_(data), end_(data + bytes) {}

  size_t left() const { return static_cast<size_t>(end_ - at_); }
  const uint8_t* data() const { return at_; }

  template <typename Number>
  Number take() {
    Number number = 0;
    const size_t bytes = left() < sizeof number ? left() : sizeof number;
    if (bytes > 0) std::memcpy(&number, at_, bytes);
    at_ += bytes;
    return number;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

}  // namespace kiln::fuzz
