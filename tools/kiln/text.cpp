// Small text helpers without state.
#include "tools/kiln/text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "tools/kiln/exit_codes.h"

namespace kiln::cli {
namespace {

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// Edits (insert, drop, replace) that turn one name into the other, regardless of case.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

double unit_seconds(std::string_view unit) {
  if (unit == "ms") return 1e-3;
  if (unit == "s" || unit.empty()) return 1;
  if (unit == "m" || unit == "min") return 60;
  if (unit == "h") return 3600;
  if (unit == "d") return 24 * 3600;
  return 0;
}

}  // namespace

std::string time_text(double time_ns) {
  if (!(time_ns > 0)) return "-";
  if (time_ns < 1e3) return fmt::format("{:.0f} ns", time_ns);
  if (time_ns < 1e6) return fmt::format("{:.2f} us", time_ns / 1e3);
  if (time_ns < 1e9) return fmt::format("{:.2f} ms", time_ns / 1e6);
  return fmt::format("{:.2f} s", time_ns / 1e9);
}

std::string seconds_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "-";
  if (seconds < 10) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string ratio_text(double over, double by) {
  return over > 0 && by > 0 ? fmt::format("{:.2f}x", over / by) : "-";
}

std::string date_text(int64_t unix_seconds) {
  if (unix_seconds <= 0) return "-";
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(unix_seconds)));
}

std::string short_json(const Json& object) {
  if (!object.is_object()) {
    return object.is_string() ? object.get<std::string>() : object.dump();
  }
  std::string text;
  for (const auto& [key, value] : object.items()) {
    if (!text.empty()) text += " ";
    text += fmt::format("{}={}", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return text.empty() ? "-" : text;
}

Json stored_json(const std::string& text) {
  if (text.empty()) return Json::object();
  Json value = Json::parse(text, nullptr, false);
  return value.is_discarded() ? Json(text) : value;
}

double parse_duration_s(std::string_view text) {
  const Failure bad(ExitCode::usage,
                    fmt::format("{} is not a duration; expected a number with ms, s, m, h or d, "
                                "for example 30s, 5m or 1h30m.",
                                in_quotes(text)));
  double seconds = 0;
  std::string_view rest = text;
  if (rest.empty()) throw bad;
  while (!rest.empty()) {
    double number = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (error != std::errc() || !std::isfinite(number) || number < 0) throw bad;
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    size_t letters = 0;
    while (letters < rest.size() && std::isalpha(static_cast<unsigned char>(rest[letters]))) {
      ++letters;
    }
    const double unit = unit_seconds(rest.substr(0, letters));
    if (unit == 0) throw bad;
    seconds += number * unit;
    rest.remove_prefix(letters);
  }
  return seconds;
}

std::string nearest(std::string_view name, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    size_t distance = edit_distance(name, candidate);
    // A part of a name is the commonest short form: "rtx3090", "a100", "combine".
    const bool is_part = name.size() >= 3 && candidate.find(name) != std::string::npos;
    if (is_part) distance = std::min<size_t>(distance, 2);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  const std::string guess = nearest(name, known);
  return guess.empty() ? "." : fmt::format("; did you mean \"{}\"?", guess);
}

std::string joined(const std::vector<std::string>& items, std::string_view separator) {
  return fmt::format("{}", fmt::join(items, separator));
}

std::string printable(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    const bool is_control = (code < 0x20 && c != '\n' && c != '\t') || code == 0x7f;
    if (is_control) {
      result += fmt::format("\\x{:02x}", code);
    } else {
      result += c;
    }
  }
  return result;
}

void print_error(std::string_view text) {
  std::fflush(stdout);  // both may go to one file
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace kiln::cli
