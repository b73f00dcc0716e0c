#include "runtime/call_checks.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "jit/base/error.h"
#include "jit/base/saturate.h"

namespace kiln::runtime {
namespace {

using templates::Arg;
using templates::Extent;
using templates::Field;
using templates::FieldKind;
using templates::kFieldBytes;
using templates::Op;
using templates::Presence;
using templates::Size;
using templates::SizeKind;
using templates::Sizes;
using templates::Term;
using Place = FieldResolver::Place;

constexpr size_t kMostStridesOfAnOutput = 2;  // see writes_apart()

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

inline int64_t divide_up(int64_t value, int64_t divisor) noexcept {
  if (divisor == 1 || value <= 0) return value;
  return (value - 1) / divisor + 1;
}

inline int64_t place_value(const Place& place, const int64_t* fields) noexcept {
  if (place.kind == Place::Kind::field) return fields[place.field];
  if (place.kind == Place::Kind::constant) return place.constant;
  if (place.kind == Place::Kind::extent) return place.extent.value(fields);
  int64_t value = place.constant;
  for (const Place::Summand& summand : place.summands) {
    value = saturating_add(value, saturating_multiply(fields[summand.field], summand.factor));
  }
  return value;
}

// A division costs more than all else that is done to a number.
int shift_of(int64_t divisor) {
  const auto bits = static_cast<uint64_t>(divisor);
  return divisor > 0 && std::has_single_bit(bits) ? std::countr_zero(bits) : -1;
}

uint64_t stated_bytes(const void* args) noexcept {
  uint64_t bytes = 0;
  std::memcpy(&bytes, args, sizeof bytes);
  return bytes;
}

bool may_be_zero(const Op& op, const Sizes& fixed, const Field& field) {
  switch (field.kind) {
    case FieldKind::struct_bytes:
    case FieldKind::size:
      return false;
    case FieldKind::pointer:
    case FieldKind::stride:
      return op.args[static_cast<size_t>(field.arg)].presence_in(fixed) != Presence::required;
    case FieldKind::workspace:
    case FieldKind::workspace_bytes:
      return true;
  }
  return false;
}

}  // namespace

int64_t FieldExtent::value(const int64_t* fields) const noexcept {
  int64_t product = scale_;
  for (const Factor& factor : factors_) {
    const int64_t value =
        saturating_add(saturating_multiply(fields[factor.field], factor.times), factor.plus);
    const int64_t divided = factor.shift >= 0 && value > 0 ? ((value - 1) >> factor.shift) + 1
                                                           : divide_up(value, factor.divisor);
    product = saturating_multiply(product, std::min(divided, factor.cap));
  }
  return saturating_add(product, offset_);
}

FieldResolver::FieldResolver(const Op& op, const Sizes& fixed)
    : op_(op), fixed_(fixed), fields_(templates::abi_fields(op)) {
  if (fields_.size() > kMaxFields) {
    fail(Status::internal, "{}: its struct has {} fields; the runtime holds {}", op.name,
         fields_.size(), kMaxFields);
  }
  for (const Size& size : op.sizes) {
    if (size.kind != SizeKind::derived) continue;
    try {
      fixed_.set(size.symbol, size.derived_value(fixed_));
    } catch (const Error&) {  // it needs a dynamic size, which only a call brings
    }
  }
}

Place FieldResolver::find(std::string_view symbol) const {
  if (fixed_.contains(symbol)) {
    return {.kind = Place::Kind::constant, .constant = fixed_[symbol]};
  }
  const Size* size = op_.find_size(symbol);
  if (size != nullptr && size->kind == SizeKind::derived) return find_derived(*size);
  const int field = templates::field_index(fields_, size != nullptr ? size->field : symbol);
  if (field < 0) {
    fail(Status::internal, "{}: the symbol '{}' is neither a size nor a stride field", op_.name,
         symbol);
  }
  return {.kind = Place::Kind::field, .field = field};
}

// A derived size is a C++ function of all sizes. Its slopes are read off around a base point, and
// the sum is believed when it also holds at points far from there.
Place FieldResolver::find_derived(const Size& derived) const {
  if (derived.derive_extent != nullptr) {
    return {.kind = Place::Kind::extent,
            .extent = compile(derived.derive_extent(fixed_), "extent of a derived size")};
  }
  std::vector<const Size*> dynamic;
  Sizes base = fixed_;
  for (const Size& size : op_.sizes) {
    if (size.kind != SizeKind::dynamic) continue;
    dynamic.push_back(&size);
    base.set(size.symbol, std::max<int64_t>(size.min, 1));
  }
  const auto value_at = [&](const Sizes& sizes) {
    return templates::with_derived(op_, sizes)[derived.symbol];
  };
  Place place{.kind = Place::Kind::sum, .constant = value_at(base)};
  for (const Size* size : dynamic) {
    Sizes next = base;
    next.set(size->symbol, base[size->symbol] + 1);
    const int64_t factor = value_at(next) - value_at(base);
    if (factor == 0) continue;
    const int field = templates::field_index(fields_, size->field);
    place.summands.push_back({.field = field, .factor = factor});
    place.constant -= factor * base[size->symbol];
  }
  std::vector<int64_t> probe(fields_.size(), 0);
  for (const int64_t distance : {2, 3, 17, 127, 1000, 4097, 30011}) {
    Sizes far = base;
    int64_t spread = distance;
    for (const Size* size : dynamic) {
      const int64_t value = std::min(base[size->symbol] + spread, size->max);
      far.set(size->symbol, value);
      probe[static_cast<size_t>(templates::field_index(fields_, size->field))] = value;
      spread = spread * 7 % 30013;
    }
    if (value_at(far) != place_value(place, probe.data())) return {.kind = Place::Kind::unknown};
  }
  return place;
}

FieldExtent FieldResolver::compile(const Extent& extent, std::string_view what) const {
  FieldExtent result;
  result.offset_ = extent.offset;
  result.scale_ = extent.scale;
  for (const Term& term : extent.terms) {
    const Place place = find(term.symbol);
    switch (place.kind) {
      case Place::Kind::constant:
        result.scale_ = saturating_multiply(
            result.scale_, std::min(divide_up(place.constant, term.divisor), term.cap));
        break;
      case Place::Kind::field:
        result.factors_.push_back({.field = place.field,
                                   .shift = shift_of(term.divisor),
                                   .divisor = term.divisor,
                                   .cap = term.cap});
        break;
      case Place::Kind::sum:
        if (place.summands.size() == 1) {
          result.factors_.push_back({.field = place.summands.front().field,
                                     .times = place.summands.front().factor,
                                     .plus = place.constant,
                                     .shift = shift_of(term.divisor),
                                     .divisor = term.divisor,
                                     .cap = term.cap});
          break;
        }
        [[fallthrough]];
      case Place::Kind::extent:
      case Place::Kind::unknown:
        fail(Status::internal,
             "{}: the {} uses the derived size '{}', which a call cannot compute cheaply; write it "
             "with the sizes it is derived from",
             op_.name, what, term.symbol);
    }
  }
  return result;
}

CallChecks::CallChecks(const Op& op, const Sizes& fixed) : op_(op), resolver_(op, fixed) {
  const std::vector<Field>& fields = resolver_.fields();
  for (size_t i = 0; i < fields.size(); ++i) {
    const Field& field = fields[i];
    const int index = static_cast<int>(i);
    if (!may_be_zero(op, fixed, field)) least_fields_ = index + 1;
    switch (field.kind) {
      case FieldKind::struct_bytes:
      case FieldKind::workspace_bytes:
        break;
      case FieldKind::workspace:
        workspace_field_ = index;
        break;
      case FieldKind::size: {
        const Size& size = op.sizes[static_cast<size_t>(field.size)];
        sizes_.push_back({.field = index, .min = size.min, .max = size.max});
        break;
      }
      case FieldKind::pointer: {
        const Arg& arg = op.args[static_cast<size_t>(field.arg)];
        PointerCheck check{.field = index,
                           .is_written = arg.kind != templates::ArgKind::input,
                           .presence = arg.presence_in(fixed),
                           .misaligned_bits = static_cast<uint64_t>(arg.align_bytes) - 1,
                           .element_bytes = templates::dtype_bytes(arg.dtype)};
        check.most_elements =
            (kLargest - 1) / check.element_bytes;  // a sum that overflowed is more
        for (const std::string& dim : arg.dims) {
          check.dims.push_back(resolver_.find(dim));
          if (check.dims.back().kind != Place::Kind::unknown) continue;
          fail(Status::internal,
               "{}: the derived size '{}' of {} is no sum of sizes, so that calls cannot check it; "
               "give it as an extent",
               op.name, dim, arg.name);
        }
        pointers_.push_back(std::move(check));
        break;
      }
      case FieldKind::stride: {  // follows the pointer of its argument
        PointerCheck& check = pointers_.back();
        const Arg& arg = op.args[static_cast<size_t>(field.arg)];
        check.strides.push_back({.field = index,
                                 .multiple = arg.stride_multiple,
                                 .steps = check.dims[static_cast<size_t>(field.dim)],
                                 .row = check.dims.back()});
        break;
      }
    }
  }
  for (const PointerCheck& pointer : pointers_) {
    if (!pointer.is_written || pointer.strides.size() <= kMostStridesOfAnOutput) continue;
    fail(Status::internal,
         "{}: the output {} has {} strides, but the check that its rows are apart holds for {} at "
         "most; give it fewer dimensions, or extend the check",
         op.name, field_name(pointer.field), pointer.strides.size(), kMostStridesOfAnOutput);
  }
  add_quick_checks();
  for (const templates::Requirement& requirement : op.requirements) {
    requirements_.push_back({.small = resolver_.compile(requirement.small, "requirement"),
                             .big = resolver_.compile(requirement.big, "requirement")});
  }
}

const int64_t* CallChecks::view(const void* args, int64_t* storage) const noexcept {
  const auto own_bytes = static_cast<uint64_t>(field_count()) * kFieldBytes;
  const uint64_t bytes = stated_bytes(args);
  if (bytes == own_bytes) [[likely]] {
    return static_cast<const int64_t*>(args);
  }
  if (bytes % kFieldBytes != 0) return nullptr;
  if (bytes < own_bytes) {
    if (bytes < static_cast<uint64_t>(least_fields_) * kFieldBytes) return nullptr;
    std::memcpy(storage, args, bytes);
    std::memset(reinterpret_cast<char*>(storage) + bytes, 0, own_bytes - bytes);
    return storage;
  }
  if (bytes > uint64_t{kMaxFields} * kFieldBytes) return nullptr;
  const auto* fields = static_cast<const int64_t*>(args);
  const bool tail_is_zero = std::all_of(fields + field_count(), fields + bytes / kFieldBytes,
                                        [](int64_t value) { return value == 0; });
  return tail_is_zero ? fields : nullptr;
}

bool CallChecks::sizes_hold(const int64_t* fields) const noexcept {
  for (const SizeCheck& size : sizes_) {
    const int64_t value = fields[size.field];
    if (value < size.min || value > size.max) return false;
  }
  return true;
}

bool CallChecks::is_empty(const PointerCheck& check, const int64_t* fields) noexcept {
  return std::any_of(check.dims.begin(), check.dims.end(),
                     [&](const Place& dim) { return place_value(dim, fields) <= 0; });
}

// A stride that is never walked may hold anything. One that is walked steps over a whole row at
// least, of inputs too: a smaller one is a mistake far more often than meant. Views with their
// dimensions in another order are legal.
bool CallChecks::stride_holds(const StrideCheck& check, const int64_t* fields) noexcept {
  if (place_value(check.steps, fields) <= 1) return true;
  const int64_t stride = fields[check.field];
  if (stride < place_value(check.row, fields)) return false;
  return check.multiple == 1 || stride % check.multiple == 0;
}

CallChecks::Nesting CallChecks::nesting(const PointerCheck& check, const int64_t* fields) noexcept {
  if (!check.is_written || check.strides.size() != 2) return {};
  const StrideCheck& first = check.strides[0];
  const StrideCheck& second = check.strides[1];
  const int64_t first_steps = place_value(first.steps, fields);
  const int64_t second_steps = place_value(second.steps, fields);
  if (first_steps <= 1 || second_steps <= 1) return {};
  const bool first_is_inner = fields[first.field] < fields[second.field];
  const StrideCheck& outer = first_is_inner ? second : first;
  const StrideCheck& inner = first_is_inner ? first : second;
  const int64_t inner_steps = first_is_inner ? first_steps : second_steps;
  return {.outer = &outer,
          .inner = &inner,
          .inner_steps = inner_steps,
          .reach = saturating_multiply(inner_steps - 1, fields[inner.field]),
          .row = place_value(first.row, fields)};
}

// No stride is smaller than a row (stride_holds); here one of two dimensions nests in the other.
// Strides that interleave without touching are refused as well: they cost more to tell than they
// are worth. Only outputs are looked at: two dimensions of an input may share rows.
bool CallChecks::writes_apart(const PointerCheck& check, const int64_t* fields) noexcept {
  const Nesting nest = nesting(check, fields);
  return nest.outer == nullptr || fields[nest.outer->field] - nest.row >= nest.reach;
}

bool CallChecks::is_addressable(const PointerCheck& check, const int64_t* fields) noexcept {
  int64_t elements = place_value(check.dims.back(), fields);
  for (const StrideCheck& stride : check.strides) {
    const int64_t last = std::max<int64_t>(place_value(stride.steps, fields) - 1, 0);
    elements = saturating_add(elements, saturating_multiply(last, fields[stride.field]));
  }
  return elements <= check.most_elements;
}

bool CallChecks::pointer_holds(const PointerCheck& check, const int64_t* fields) noexcept {
  const auto pointer = static_cast<uint64_t>(fields[check.field]);
  if (pointer == 0) {
    return check.presence != Presence::required || is_empty(check, fields);
  }
  if (check.presence == Presence::absent) return false;
  bool good = (pointer & check.misaligned_bits) == 0;
  for (const StrideCheck& stride : check.strides) good = good && stride_holds(stride, fields);
  return (good && is_addressable(check, fields) && writes_apart(check, fields)) ||
         is_empty(check, fields);
}

inline int64_t CallChecks::Number::value(const int64_t* fields) const noexcept {
  if (place != nullptr) [[unlikely]]
    return place_value(*place, fields);
  return *(field >= 0 ? fields + field : &constant);
}

CallChecks::Number CallChecks::number_of(const Place& place) {
  if (place.kind == Place::Kind::field) return {.field = place.field};
  if (place.kind == Place::Kind::constant) return {.constant = place.constant};
  return {.place = &place};
}

void CallChecks::add_quick_checks() {
  for (const PointerCheck& check : pointers_) {
    QuickPointer quick{
        .field = check.field,
        .bad_bits = check.presence == Presence::absent ? ~uint64_t{0} : check.misaligned_bits,
        .most_elements = check.most_elements,
        .row = number_of(check.dims.back())};
    for (const StrideCheck& stride : check.strides) {
      const bool is_power = shift_of(stride.multiple) >= 0;
      quick_strides_.push_back({.field = stride.field,
                                .bad_bits = is_power ? stride.multiple - 1 : int64_t{-1},
                                .steps = number_of(stride.steps)});
    }
    quick.strides_end = static_cast<int>(quick_strides_.size());
    quick.nests = check.is_written && check.strides.size() > 1;
    quick_pointers_.push_back(quick);
  }
}

// True only where pointer_holds() is: of the usual call, whose tensors are there and well laid out.
inline bool CallChecks::quickly_holds(const QuickPointer& check, const QuickStride* strides,
                                      const QuickStride* end, const int64_t* fields) noexcept {
  const auto pointer = static_cast<uint64_t>(fields[check.field]);
  if (pointer == 0 || (pointer & check.bad_bits) != 0) return false;
  const int64_t row = check.row.value(fields);
  int64_t elements = row;
  int64_t reach_of_last = 0;
  int64_t last_stride = 0;
  bool good = true;
  for (; strides != end; ++strides) {
    const int64_t steps = strides->steps.value(fields);
    if (steps <= 1) continue;
    const int64_t stride = fields[strides->field];
    int64_t reach = 0;
    good &= stride >= row && (stride & strides->bad_bits) == 0;
    good &= !__builtin_mul_overflow(steps - 1, stride, &reach);
    good &= !__builtin_add_overflow(elements, reach, &elements);
    if (check.nests && last_stride != 0) {
      const bool last_is_inner = last_stride < stride;
      good &=
          (last_is_inner ? stride : last_stride) - row >= (last_is_inner ? reach_of_last : reach);
    }
    last_stride = stride;
    reach_of_last = reach;
  }
  return good && elements <= check.most_elements;
}

bool CallChecks::holds(const int64_t* fields) const noexcept {
  if (!sizes_hold(fields)) return false;
  const QuickStride* strides = quick_strides_.data();
  for (size_t i = 0; i < quick_pointers_.size(); ++i) {
    const QuickStride* end = quick_strides_.data() + quick_pointers_[i].strides_end;
    if (!quickly_holds(quick_pointers_[i], strides, end, fields) &&
        !pointer_holds(pointers_[i], fields)) {
      return false;
    }
    strides = end;
  }
  for (const RequirementCheck& requirement : requirements_) {
    if (requirement.small.value(fields) > requirement.big.value(fields)) return false;
  }
  return true;
}

std::string CallChecks::explain_view(const void* args) const {
  const uint64_t bytes = stated_bytes(args);
  const int own_bytes = field_count() * kFieldBytes;
  if (bytes > static_cast<uint64_t>(own_bytes) && bytes % kFieldBytes == 0 &&
      bytes <= uint64_t{kMaxFields} * kFieldBytes) {
    return fmt::format(
        "{}: the struct is {} bytes, newer than this library's {}, and sets a field that this "
        "library does not know; update libkiln or leave the new fields zero",
        op_.name, bytes, own_bytes);
  }
  return fmt::format("{}: struct_bytes is {}; set it to sizeof(kiln_{}_args), which is {} here",
                     op_.name, bytes, op_.name, own_bytes);
}

std::string CallChecks::explain_pointer(const PointerCheck& check, const int64_t* fields) const {
  if (pointer_holds(check, fields)) return "";
  const std::string& name = field_name(check.field);
  const auto pointer = static_cast<uint64_t>(fields[check.field]);
  if (pointer == 0) {
    return fmt::format("{}: {} is NULL, but it is required and not empty ({})", op_.name, name,
                       sizes_text(fields));
  }
  if (check.presence == Presence::absent) {
    return fmt::format("{}: {} is {:#x}, but it must be NULL: it is used only {}", op_.name, name,
                       pointer, templates::condition_text(op_, op_.find_arg(name)->only_in));
  }
  if ((pointer & check.misaligned_bits) != 0) {
    return fmt::format("{}: {} is {:#x}, but it must be aligned to {} bytes", op_.name, name,
                       pointer, check.misaligned_bits + 1);
  }
  for (const StrideCheck& stride : check.strides) {
    if (stride_holds(stride, fields)) continue;
    const int64_t value = fields[stride.field];
    const int64_t least = place_value(stride.row, fields);
    if (value < least) {
      return fmt::format("{}: {} is {}, but a row of {} has {} elements: it must be at least that",
                         op_.name, field_name(stride.field), value, name, least);
    }
    return fmt::format("{}: {} is {}, but it must be a multiple of {} elements", op_.name,
                       field_name(stride.field), value, stride.multiple);
  }
  if (!is_addressable(check, fields)) {
    std::vector<std::string> strides;
    for (const StrideCheck& stride : check.strides) {
      strides.push_back(fmt::format("{} = {}", field_name(stride.field), fields[stride.field]));
    }
    return fmt::format("{}: {} would span more than 2^63 bytes ({}; {}); strides are in elements",
                       op_.name, name, fmt::join(strides, ", "), sizes_text(fields));
  }
  const Nesting nest = nesting(check, fields);
  const int64_t multiple = nest.outer->multiple;
  const int64_t least =
      saturating_multiply(divide_up(saturating_add(nest.reach, nest.row), multiple), multiple);
  return fmt::format(
      "{}: {} is {}, but it steps over {} rows of {} with {} elements each, {} apart ({}): it must "
      "be "
      "at least {}",
      op_.name, field_name(nest.outer->field), fields[nest.outer->field], nest.inner_steps, name,
      nest.row, fields[nest.inner->field], field_name(nest.inner->field), least);
}

std::string CallChecks::explain(const int64_t* fields) const {
  for (const SizeCheck& size : sizes_) {
    const int64_t value = fields[size.field];
    if (value < size.min || value > size.max) {
      const std::string legal = size.max == kLargest ? fmt::format("at least {}", size.min)
                                                     : fmt::format("{} to {}", size.min, size.max);
      return fmt::format("{}: {} is {}, but it must be {}", op_.name, field_name(size.field), value,
                         legal);
    }
  }
  for (const PointerCheck& pointer : pointers_) {
    std::string sentence = explain_pointer(pointer, fields);
    if (!sentence.empty()) return sentence;
  }
  for (size_t i = 0; i < requirements_.size(); ++i) {
    if (requirements_[i].small.value(fields) > requirements_[i].big.value(fields)) {
      return fmt::format("{}: {}; here {}", op_.name, op_.requirements[i].sentence,
                         numbers_of(op_.requirements[i], fields));
    }
  }
  return "";
}

// The values that a requirement compares, by the names that the caller knows.
std::string CallChecks::numbers_of(const templates::Requirement& requirement,
                                   const int64_t* fields) const {
  std::vector<std::string> words;
  for (const Extent* side : {&requirement.small, &requirement.big}) {
    for (const Term& term : side->terms) {
      const Size* size = op_.find_size(term.symbol);
      const std::string& name = size != nullptr ? size->field : term.symbol;
      const std::string word =
          fmt::format("{} = {}", name, place_value(resolver_.find(term.symbol), fields));
      if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
    }
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string CallChecks::explain_sizes(const Sizes& dynamic) const {
  // A call with dense tensors, none of which is NULL.
  std::vector<int64_t> values(static_cast<size_t>(field_count()), 0);
  constexpr int64_t kAligned = 1 << 20;
  for (size_t i = 0; i < values.size(); ++i) {
    const Field& field = resolver_.fields()[i];
    if (field.kind == FieldKind::size)
      values[i] = dynamic[op_.sizes[static_cast<size_t>(field.size)].symbol];
  }
  for (const PointerCheck& pointer : pointers_) {
    if (pointer.presence == Presence::absent) continue;
    values[static_cast<size_t>(pointer.field)] = kAligned;
    int64_t dense = place_value(pointer.dims.back(), values.data());
    for (size_t i = pointer.strides.size(); i-- > 0;) {
      const StrideCheck& stride = pointer.strides[i];
      dense = saturating_multiply(divide_up(dense, stride.multiple), stride.multiple);
      values[static_cast<size_t>(stride.field)] = dense;
      dense = saturating_multiply(dense, place_value(stride.steps, values.data()));
    }
  }
  return explain(values.data());
}

std::string CallChecks::sizes_text(const int64_t* fields) const {
  std::vector<std::string> words;
  for (const SizeCheck& size : sizes_) {
    words.push_back(fmt::format("{} = {}", field_name(size.field), fields[size.field]));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

void require_sizes(const Op& op, const Sizes& fixed, const Sizes& dynamic) {
  const std::string illegal = CallChecks(op, fixed).explain_sizes(dynamic);
  if (!illegal.empty()) throw Error(Status::invalid_argument, illegal);
}

}  // namespace kiln::runtime
