#include "cache/blob.h"

#include <zstd.h>

#include <span>

#include "jit/base/error.h"

namespace kiln::cache {
namespace {

constexpr int kCompressionLevel = 9;  // cubins are small and written once

Hash128 checksum_of(std::string_view bytes) {
  return hash_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

}  // namespace

PackedImage pack_image(std::string_view image) {
  if (static_cast<int64_t>(image.size()) > kMaxImageBytes) {
    fail(Status::invalid_argument, "a binary of {} bytes is larger than the store takes ({} bytes)",
         image.size(), kMaxImageBytes);
  }
  PackedImage packed;
  packed.raw_bytes = static_cast<int64_t>(image.size());
  packed.checksum = checksum_of(image);
  packed.data.resize(ZSTD_compressBound(image.size()));
  const size_t written = ZSTD_compress(packed.data.data(), packed.data.size(), image.data(),
                                       image.size(), kCompressionLevel);
  if (ZSTD_isError(written)) {
    fail(Status::internal, "zstd cannot compress a binary of {} bytes: {}", image.size(),
         ZSTD_getErrorName(written));
  }
  packed.data.resize(written);
  return packed;
}

std::optional<std::string> unpack_image(int64_t codec, int64_t raw_bytes, const Hash128& checksum,
                                        std::string_view data) {
  if (codec != static_cast<int64_t>(Codec::zstd)) return std::nullopt;
  if (raw_bytes < 0 || raw_bytes > kMaxImageBytes) return std::nullopt;
  if (ZSTD_getFrameContentSize(data.data(), data.size()) !=
      static_cast<unsigned long long>(raw_bytes)) {
    return std::nullopt;
  }
  std::string image(static_cast<size_t>(raw_bytes), '\0');
  const size_t read = ZSTD_decompress(image.data(), image.size(), data.data(), data.size());
  if (ZSTD_isError(read) || read != image.size() || checksum_of(image) != checksum) {
    return std::nullopt;
  }
  return image;
}

}  // namespace kiln::cache
