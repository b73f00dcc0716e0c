// Numbers with units, JSON as short text, durations, and the nearest name: what all commands print.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "jit/base/json.h"

namespace kiln::cli {

std::string time_text(double time_ns);     // "812 ns", "4.31 us", "1.20 ms"; "-" when not known
std::string seconds_text(double seconds);  // "8 s", "1m20s", "2h05m"
std::string bytes_text(double bytes);      // "512 B", "99.0 KiB", "40.0 MiB"
std::string ratio_text(double over, double by);  // "1.25x"; "-" when either is not known
std::string date_text(int64_t unix_seconds);     // "2025-03-01 12:00 UTC"

// {"ratio":2,"top_k":512} -> "ratio=2 top_k=512"; "-" for {}.
std::string short_json(const Json& object);
// Stored canonical JSON as a value. Text that is no JSON (a damaged row) stays readable as a
// string.
Json stored_json(const std::string& text);

// "30s", "5m", "1h", "1h30m", "500ms", "7d", or plain seconds. Fails with usage.
double parse_duration_s(std::string_view text);

// Writes to stderr. One that is full or closed is no reason to end, and fmt::print would throw.
void print_error(std::string_view text);

// Control characters but newline and tab as \\xNN: text from outside must not steer a terminal.
std::string printable(std::string_view text);

// The known name that a typing mistake is most likely to have meant; "" when none is near.
std::string nearest(std::string_view name, const std::vector<std::string>& known);
// The end of a sentence about that name: "; did you mean \"ls\"?", or "." when none is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);
std::string joined(const std::vector<std::string>& items, std::string_view separator = ", ");

}  // namespace kiln::cli
