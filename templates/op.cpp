// Values of a description: named integers, extents, short forms for the tables.
#include "templates/op.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "jit/base/saturate.h"

namespace kiln::templates {

int64_t NamedInts::operator[](std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    fail(Status::internal, "the size or axis '{}' has no value here", name);
  }
  return found->second;
}

int64_t NamedInts::get(std::string_view name, int64_t otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? otherwise : found->second;
}

NamedInts NamedInts::merged(const NamedInts& over) const {
  NamedInts result = *this;
  for (const auto& [name, value] : over) result.set(name, value);
  return result;
}

namespace {

struct DTypeRow {
  DType dtype;
  int64_t bytes;
  const char* name;
  const char* c_type;
};
constexpr DTypeRow kDTypes[] = {
    {DType::u8, 1, "u8", "uint8_t"},   {DType::i32, 4, "i32", "int32_t"},
    {DType::i64, 8, "i64", "int64_t"}, {DType::bf16, 2, "bf16", "uint16_t"},
    {DType::f32, 4, "f32", "float"},
};

const DTypeRow& dtype_row(DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row;
  }
  fail(Status::internal, "unknown dtype {}", static_cast<int>(dtype));
}

std::vector<std::string> split_dims(std::string_view dims) {
  std::istringstream words{std::string(dims)};
  std::vector<std::string> result;
  for (std::string word; words >> word;) result.push_back(word);
  return result;
}

}  // namespace

int64_t dtype_bytes(DType dtype) { return dtype_row(dtype).bytes; }
const char* dtype_name(DType dtype) { return dtype_row(dtype).name; }
const char* dtype_c_type(DType dtype) { return dtype_row(dtype).c_type; }

int64_t Extent::value(const Sizes& sizes) const {
  int64_t product = scale;
  for (const Term& term : terms) {
    const int64_t size = sizes[term.symbol];
    const int64_t divided = size <= 0 ? size : (size - 1) / term.divisor + 1;
    product = saturating_multiply(product, std::min(divided, term.cap));
  }
  return saturating_add(product, offset);
}

Extent grid_over_rows(std::string rows_symbol, int64_t of_row, int64_t of_cta) {
  const int64_t common = std::gcd(of_row, of_cta);
  return {.scale = of_row / common,
          .terms = {{.symbol = std::move(rows_symbol), .divisor = of_cta / common}}};
}

std::string Tolerance::text() const {
  switch (kind) {
    case Kind::bit_exact:
      return "bit-exact";
    case Kind::relative_rms:
      return fmt::format("rms error at most {:g} of the output's rms", bound);
  }
  fail(Status::internal, "unknown tolerance {}", static_cast<int>(kind));
}

const Size* Op::find_size(std::string_view symbol_or_field) const {
  for (const Size& size : sizes) {
    if (size.symbol == symbol_or_field || size.field == symbol_or_field) return &size;
  }
  return nullptr;
}

const Arg* Op::find_arg(std::string_view arg_name) const {
  for (const Arg& arg : args) {
    if (arg.name == arg_name) return &arg;
  }
  return nullptr;
}

Tolerance Op::tolerance_of(const Sizes& fixed) const {
  return tolerance_in != nullptr ? tolerance_in(fixed) : tolerance;
}

std::string Op::result_text() const {
  if (tolerance_in != nullptr) return "as the shape says, see above";
  std::vector<std::string> others;
  for (const Arg& arg : args) {
    if (arg.tolerance.has_value()) others.push_back(arg.name);
  }
  if (others.empty()) return tolerance.text();
  return fmt::format("{}, but for {}, see there", tolerance.text(), fmt::join(others, ", "));
}

Tolerance Op::tolerance_of(const Arg& arg, const Sizes& fixed) const {
  return arg.tolerance.has_value() ? *arg.tolerance : tolerance_of(fixed);
}

const std::string* Size::name_of(int64_t value_wanted) const {
  for (const SizeName& named : names) {
    if (named.value == value_wanted) return &named.name;
  }
  return nullptr;
}

int64_t Size::derived_value(const Sizes& sizes) const {
  return derive_extent != nullptr ? derive_extent(sizes).value(sizes) : derive(sizes);
}

bool ShapeCondition::holds(const Sizes& fixed) const {
  return symbol.empty() || std::find(values.begin(), values.end(), fixed[symbol]) != values.end();
}

Presence Arg::presence_in(const Sizes& fixed) const {
  return only_in.holds(fixed) ? presence : Presence::absent;
}

bool Arg::is_pinned(const Sizes& fixed) const {
  return pinned_in.has_value() && pinned_in->holds(fixed);
}

Size fixed(std::string symbol, std::string field, std::string doc, int64_t min, int64_t max) {
  return Size{.symbol = std::move(symbol),
              .field = std::move(field),
              .kind = SizeKind::fixed,
              .doc = std::move(doc),
              .min = min,
              .max = max};
}

Size fixed(std::string symbol, std::string field, std::string doc, std::vector<SizeName> names) {
  Size size{.symbol = std::move(symbol),
            .field = std::move(field),
            .kind = SizeKind::fixed,
            .doc = std::move(doc)};
  const auto by_value = [](const SizeName& a, const SizeName& b) { return a.value < b.value; };
  size.min = std::min_element(names.begin(), names.end(), by_value)->value;
  size.max = std::max_element(names.begin(), names.end(), by_value)->value;
  size.names = std::move(names);
  return size;
}

Size dynamic(std::string symbol, std::string field, std::string doc, int64_t min, int64_t max) {
  return Size{.symbol = std::move(symbol),
              .field = std::move(field),
              .kind = SizeKind::dynamic,
              .doc = std::move(doc),
              .min = min,
              .max = max};
}

Size derived(std::string symbol, std::string item, int64_t (*derive)(const Sizes&)) {
  return Size{.symbol = symbol,
              .field = std::move(symbol),
              .kind = SizeKind::derived,
              .item = std::move(item),
              .derive = derive};
}

Size derived(std::string symbol, std::string item, Extent (*derive)(const Sizes&)) {
  return Size{.symbol = symbol,
              .field = std::move(symbol),
              .kind = SizeKind::derived,
              .item = std::move(item),
              .derive_extent = derive};
}

Size stepped(Size size, std::string item) {
  size.item = std::move(item);
  return size;
}

Arg in(std::string name, DType dtype, std::string_view dims, std::string doc) {
  return Arg{.name = std::move(name),
             .dtype = dtype,
             .kind = ArgKind::input,
             .dims = split_dims(dims),
             .doc = std::move(doc)};
}

Arg out(std::string name, DType dtype, std::string_view dims, std::string doc) {
  return Arg{.name = std::move(name),
             .dtype = dtype,
             .kind = ArgKind::output,
             .dims = split_dims(dims),
             .doc = std::move(doc)};
}

Arg pinned_in(const ShapeCondition& condition, Arg arg) {
  if (arg.kind != ArgKind::input) fail(Status::internal, "{}: only inputs are pinned", arg.name);
  arg.pinned_in = condition;
  return arg;
}

Arg only_in(const ShapeCondition& condition, Arg arg) {
  arg.only_in = condition;
  return arg;
}

Arg vectors(Arg arg, int64_t stride_multiple) {
  arg.align_bytes = 16;
  arg.stride_multiple = stride_multiple;
  return arg;
}

Arg inout(Arg arg) {
  arg.kind = ArgKind::inout;
  return arg;
}

Arg cold(Arg arg) {
  arg.memory = Memory::cold;
  return arg;
}

Arg optional(Arg arg) {
  arg.presence = Presence::optional;
  return arg;
}

Arg to_within(Arg arg, double relative_rms) {
  arg.tolerance = Tolerance{Tolerance::Kind::relative_rms, relative_rms};
  return arg;
}

jit::Constant constant(std::string name, int64_t value) {
  return {std::move(name), "int", std::to_string(value)};
}

}  // namespace kiln::templates
