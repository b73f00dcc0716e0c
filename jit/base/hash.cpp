// XXH3 128 over bytes, and over the length-prefixed records that keys are made of.
#include "jit/base/hash.h"

#include <xxhash.h>

#include <array>
#include <cstring>

namespace kiln {
namespace {

Hash128 canonical(XXH128_hash_t value) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, value);
  Hash128 hash;
  static_assert(sizeof(canonical.digest) == sizeof(hash.bytes));
  std::memcpy(hash.bytes.data(), canonical.digest, sizeof(canonical.digest));
  return hash;
}

Hash128 hash_memory(const void* data, size_t size_bytes) {
  return canonical(XXH3_128bits(data, size_bytes));
}

}  // namespace

std::string Hash128::hex() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

std::optional<Hash128> parse_hash(std::string_view hex) {
  Hash128 hash;
  if (hex.size() != 2 * hash.bytes.size()) return std::nullopt;
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  for (size_t i = 0; i < hash.bytes.size(); ++i) {
    const int high = digit(hex[2 * i]);
    const int low = digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    hash.bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return hash;
}

Hash128 hash_bytes(std::span<const std::byte> bytes) {
  return hash_memory(bytes.data(), bytes.size());
}

Hash128 hash_text(std::string_view text) { return hash_memory(text.data(), text.size()); }

struct HashRecord::State {
  XXH3_state_t xxh;
};

HashRecord::HashRecord() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }

HashRecord::~HashRecord() = default;

// Lengths are eight little-endian bytes whatever the machine, so that a key is the same everywhere.
void HashRecord::add(std::string_view text) {
  std::array<uint8_t, 8> length{};
  for (size_t byte = 0; byte < length.size(); ++byte)
    length[byte] = static_cast<uint8_t>(static_cast<uint64_t>(text.size()) >> (8 * byte));
  XXH3_128bits_update(&state_->xxh, length.data(), length.size());
  XXH3_128bits_update(&state_->xxh, text.data(), text.size());
}

HashRecord& HashRecord::field(std::string_view name, std::string_view value) {
  add(name);
  add(value);
  return *this;
}

HashRecord& HashRecord::field(std::string_view name, int64_t value) {
  return field(name, std::string_view(std::to_string(value)));
}

Hash128 HashRecord::hash() const { return canonical(XXH3_128bits_digest(&state_->xxh)); }

}  // namespace kiln
