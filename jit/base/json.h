// JSON as Kiln uses it: nlohmann's type, a canonical text for keys, and a strict parser for input
// from outside.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace kiln {

using Json = nlohmann::json;

// Keys sorted, no white space, integers and strings only as leaves (bool and null too); a float is
// a defect of the caller.
std::string canonical_json(const Json& value);

// Parses text from outside. On a mistake fails with invalid_argument: what it was ("workload",
// "shape"), where, and why.
Json parse_json(std::string_view text, std::string_view what);

// null when it is 0: not known.
Json known_number(double value);

// A name from outside as a sentence may hold it: in double quotes and escaped as in JSON, so that
// no NUL, line break or terminal sequence gets through. What is not UTF-8 becomes U+FFFD.
std::string in_quotes(std::string_view name);

}  // namespace kiln
