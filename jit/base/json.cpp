// Canonical JSON for keys, and a parser for text from outside that refuses what a reader could
// misread: duplicate keys, trailing text, and nesting deep enough to exhaust the stack.
#include "jit/base/json.h"

#include <set>
#include <vector>

#include "jit/base/error.h"

namespace kiln {
namespace {

constexpr int kMaxDepth = 64;

void check_canonical(const Json& value) {
  if (value.is_number_float() || value.is_binary() || value.is_discarded()) {
    fail(Status::internal,
         "Canonical JSON holds integers, strings, booleans and null only, but the value {} is a "
         "{}. Write it as an "
         "integer in a smaller unit, or as text.",
         value.dump(-1, ' ', false, Json::error_handler_t::replace),
         value.is_number_float() ? "floating-point number" : "binary value");
  }
  if (value.is_structured()) {
    for (const Json& child : value) check_canonical(child);
  }
}

struct Position {
  size_t line = 1;
  size_t column = 1;
};

Position position_of(std::string_view text, size_t offset) {
  Position position;
  for (size_t i = 0; i < offset && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++position.line;
      position.column = 1;
    } else {
      ++position.column;
    }
  }
  return position;
}

// nlohmann begins with "[json.exception.parse_error.101] parse error at line 1, column 2: "; a
// reader has no use for the first part, and is told the place already.
std::string_view reason_of(const Json::exception& error) {
  std::string_view text = error.what();
  const size_t end = text.find("] ");
  if (end != std::string_view::npos) text.remove_prefix(end + 2);
  const size_t place_end = text.find(": ");
  if (text.starts_with("parse error at ") && place_end != std::string_view::npos) {
    text.remove_prefix(place_end + 2);
  }
  return text;
}

// The parser quotes what it read last, as it came.
std::string as_utf8(std::string_view text) {
  const std::string escaped = in_quotes(text);
  return Json::parse(escaped).get<std::string>();
}

}  // namespace

std::string canonical_json(const Json& value) {
  check_canonical(value);
  try {
    return value.dump(-1, ' ', false, Json::error_handler_t::strict);
  } catch (const Json::exception& error) {
    fail(Status::internal, "Canonical JSON must be valid UTF-8: {}.", reason_of(error));
  }
}

Json known_number(double value) { return value > 0 ? Json(value) : Json(nullptr); }

std::string in_quotes(std::string_view name) {
  return Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json parse_json(std::string_view text, std::string_view what) {
  std::vector<std::set<std::string>> keys_of_open_objects;
  auto refuse_duplicates = [&](int depth, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (depth >= kMaxDepth) {
          fail(Status::invalid_argument,
               "The {} is not usable JSON: it is nested more than {} levels deep.", what,
               kMaxDepth);
        }
        if (event == Json::parse_event_t::object_start) keys_of_open_objects.emplace_back();
        break;
      case Json::parse_event_t::object_end:
        keys_of_open_objects.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys_of_open_objects.back().insert(parsed.get<std::string>()).second) {
          fail(Status::invalid_argument,
               "The {} is not usable JSON: the key {} stands twice in one object. Keep one of "
               "them.",
               what, in_quotes(parsed.get<std::string>()));
        }
        break;
      default:
        break;
    }
    return true;
  };

  // The parser would take a NUL for the end and leave out what follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    const Position at = position_of(text, nul);
    fail(Status::invalid_argument,
         "The {} is not valid JSON at line {}, column {}: a NUL byte stands there, but JSON is "
         "text.",
         what, at.line, at.column);
  }
  try {
    return Json::parse(text.begin(), text.end(), refuse_duplicates);
  } catch (const Json::parse_error& error) {
    // The byte of a parse error counts from one and names the last byte read.
    const Position at = position_of(text, error.byte > 0 ? error.byte - 1 : 0);
    fail(Status::invalid_argument, "The {} is not valid JSON at line {}, column {}: {}.", what,
         at.line, at.column, as_utf8(reason_of(error)));
  } catch (const Json::exception& error) {
    fail(Status::invalid_argument, "The {} is not valid JSON: {}.", what, reason_of(error));
  }
}

}  // namespace kiln
