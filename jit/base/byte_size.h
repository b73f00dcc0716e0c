// Sizes as people write them: "500MB", "2GiB", "1048576".
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kiln {

// A number above 0 with B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)
// in either case; bytes without a unit. Nothing for any other text, and for what is too large.
std::optional<int64_t> parse_byte_size(std::string_view text);

}  // namespace kiln
