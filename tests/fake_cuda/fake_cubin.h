// What the fake driver reads of an image: for which SM it is and which kernels it has. Also makes the smallest cubin that it accepts, so
// that tests need no compiler. Real cubins of NVRTC 12 and 13 are read the same way.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kiln::fake {

struct CubinKernel {
  std::string name;
  int64_t param_bytes = -1;  // -1: the image does not say
  int64_t static_smem_bytes = 0;
  int registers = 32;
  int max_threads = 1024;
};

enum class ImageKind { garbage, cubin, ptx };

struct Image {
  ImageKind kind = ImageKind::garbage;
  int sm = 0;                // 86; for PTX the oldest that it runs on
  int ptx_version_major = 0;  // of PTX only: 9 and 0 for ".version 9.0"
  int ptx_version_minor = 0;
  std::vector<CubinKernel> kernels;
};

// As for the driver, the image says itself how long it is.
Image read_image(const void* image);

std::string make_cubin(int sm, const std::vector<CubinKernel>& kernels);

}  // namespace kiln::fake
