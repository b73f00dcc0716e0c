#include "jit/base/byte_size.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string>

namespace kiln {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr Unit kUnits[] = {{"", 1},         {"b", 1},       {"kb", 1e3},     {"mb", 1e6},
                           {"gb", 1e9},     {"tb", 1e12},   {"kib", 0x1p10}, {"mib", 0x1p20},
                           {"gib", 0x1p30}, {"tib", 0x1p40}};

}  // namespace

std::optional<int64_t> parse_byte_size(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  std::string unit(end, text.data() + text.size());
  if (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto found = std::find_if(std::begin(kUnits), std::end(kUnits),
                                  [&](const Unit& known) { return known.name == unit; });
  if (found == std::end(kUnits)) return std::nullopt;
  const double bytes = std::floor(number * found->bytes);
  // Not a number compares false as well.
  if (!(bytes >= 1 && bytes < 0x1p62)) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

}  // namespace kiln
