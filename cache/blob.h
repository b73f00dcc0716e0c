// Binary images as the store keeps them: zstd, with the size and an XXH3 checksum of the raw bytes.
// Unpacking trusts nothing: a wrong size, a damaged stream or a wrong checksum gives nothing at
// all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "jit/base/hash.h"

namespace kiln::cache {

// No image is larger: a damaged size cannot ask for more memory than this.
inline constexpr int64_t kMaxImageBytes = int64_t{256} << 20;

enum class Codec : int32_t { zstd = 1 };  // stored; never renumber

struct PackedImage {
  Codec codec = Codec::zstd;
  int64_t raw_bytes = 0;
  Hash128 checksum;  // of the raw bytes
  std::string data;
};

// Fails with invalid_argument when the image is larger than kMaxImageBytes.
PackedImage pack_image(std::string_view image);

std::optional<std::string> unpack_image(int64_t codec, int64_t raw_bytes, const Hash128& checksum,
                                        std::string_view data);

}  // namespace kiln::cache
