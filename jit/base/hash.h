// 128-bit content hashes (XXH3) over length-prefixed, named fields, so that no two records share an
// encoding. Every key of the store is made here: hash inputs, never compiler output, paths, times
// or versions of libraries.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kiln {

struct Hash128 {
  std::array<uint8_t, 16> bytes{};  // canonical (big-endian) XXH3 order

  std::string hex() const;  // 32 lower-case digits
  auto operator<=>(const Hash128&) const = default;
};

std::optional<Hash128> parse_hash(std::string_view hex);  // what hex() gives, and nothing else

Hash128 hash_bytes(std::span<const std::byte> bytes);
Hash128 hash_text(std::string_view text);

// Builds the canonical record of a key: each field is <name length><name><value length><value>.
// What is added is hashed at once, not kept: sources are long.
class HashRecord {
 public:
  HashRecord();
  ~HashRecord();
  HashRecord& field(std::string_view name, std::string_view value);
  HashRecord& field(std::string_view name, int64_t value);
  Hash128 hash() const;

 private:
  void add(std::string_view text);

  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kiln
