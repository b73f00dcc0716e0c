// Integer arithmetic, bit fields, logic and shifts.
//
// Sums and products are computed unsigned: they wrap, and the sign only matters where a type is
// widened, compared, divided or shifted right.
#include <algorithm>
#include <limits>
#include <string_view>

#include "runtime/sim/lanes.h"

namespace kiln::runtime::sim {
namespace {

__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;
template <class T>
using Unsigned = std::make_unsigned_t<T>;
// A type in which products of T do not overflow as signed integers after promotion.
template <class T>
using Working = std::conditional_t<(sizeof(T) < 4), uint32_t, Unsigned<T>>;
template <class T>
constexpr int kBits = static_cast<int>(sizeof(T)) * 8;

// --- sums and products

template <class T>
T high_product(T a, T b) {
  if constexpr (sizeof(T) == 8) {
    using Wide = std::conditional_t<std::is_signed_v<T>, Int128, Uint128>;
    return static_cast<T>((static_cast<Wide>(a) * static_cast<Wide>(b)) >> 64);
  } else {
    using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    return static_cast<T>((static_cast<Wide>(a) * static_cast<Wide>(b)) >> kBits<T>);
  }
}
template <class T>
T low_product(T a, T b) {
  return static_cast<T>(static_cast<Working<T>>(a) * static_cast<Working<T>>(b));
}
template <class T>
T sum(T a, T b) {
  return static_cast<T>(static_cast<Working<T>>(a) + static_cast<Working<T>>(b));
}

template <class T>
struct Doubled;
template <>
struct Doubled<uint16_t> {
  using type = uint32_t;
};
template <>
struct Doubled<int16_t> {
  using type = int32_t;
};
template <>
struct Doubled<uint32_t> {
  using type = uint64_t;
};
template <>
struct Doubled<int32_t> {
  using type = int64_t;
};

// 16 and 32 bits only: there is no mul.wide of 64.
template <class T>
auto wide_product(T a, T b) {
  using Wide = typename Doubled<T>::type;
  return static_cast<Wide>(static_cast<Unsigned<Wide>>(static_cast<Wide>(a)) *
                           static_cast<Unsigned<Wide>>(static_cast<Wide>(b)));
}

Type doubled(Type type) {
  switch (type) {
    case Type::u16:
      return Type::u32;
    case Type::s16:
      return Type::s32;
    case Type::u32:
      return Type::u64;
    default:
      return Type::s64;
  }
}

template <class Make>
Handler by_narrow_integer(Type type, Make make) {
  switch (type) {
    case Type::u16:
      return make.template operator()<uint16_t>();
    case Type::s16:
      return make.template operator()<int16_t>();
    case Type::u32:
      return make.template operator()<uint32_t>();
    case Type::s32:
      return make.template operator()<int32_t>();
    default:
      return nullptr;
  }
}

int32_t clamped(int64_t value) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX));
}

enum class Half64 : uint8_t { low, high };
enum class Extended : uint8_t { plain, subtract, low, high };

// .cc writes the carry flag, addc, subc and madc read it. A borrow is a carry of 1.
template <class T, Extended kind, bool reads, bool writes>
void extended(Warp& warp, const Instruction& instruction, uint32_t mask) {
  using U = Unsigned<T>;
  U* target = warp.row<U>(instruction.rows[0]);
  const U* a = warp.row<U>(instruction.rows[1]);
  const U* b = warp.row<U>(instruction.rows[2]);
  constexpr bool is_product = kind == Extended::low || kind == Extended::high;
  const U* c = is_product ? warp.row<U>(instruction.rows[3]) : nullptr;
  each_lane(mask, [&](int lane) {
    const U carry = reads ? static_cast<U>(warp.carry >> lane & 1) : U{0};
    U left = a[lane];
    U right = b[lane];
    if constexpr (kind == Extended::low) {
      left = low_product<U>(a[lane], b[lane]);
      right = c[lane];
    } else if constexpr (kind == Extended::high) {
      left = static_cast<U>(high_product<T>(static_cast<T>(a[lane]), static_cast<T>(b[lane])));
      right = c[lane];
    }
    U result;
    bool out;
    if constexpr (kind == Extended::subtract) {
      result = left - right - carry;
      out = left < right || (left == right && carry != 0);
    } else {
      result = left + right + carry;
      out = result < left || (result == left && carry != 0);
    }
    target[lane] = result;
    if constexpr (writes) {
      warp.carry = (warp.carry & ~(1U << lane)) | (static_cast<uint32_t>(out) << lane);
    }
  });
}

template <Extended kind, bool reads>
void bind_extended(Binder& binder, Type type) {
  const bool writes = binder.take("cc");
  if (type_bits(type) < 32) binder.unsupported("the carry flag needs 32 or 64 bits");
  constexpr bool is_product = kind == Extended::low || kind == Extended::high;
  if (is_product) {
    bind_rows(binder, type, {type, type, type});
  } else {
    bind_rows(binder, type, {type, type});
  }
  bind_handler(binder, by_integer(type, [&]<class T>() -> Handler {
                 if constexpr (sizeof(T) == 2)
                   return nullptr;
                 else
                   return writes ? extended<T, kind, reads, true> : extended<T, kind, reads, false>;
               }));
}

bool has_part(const Binder& binder, std::string_view part) {
  const std::vector<std::string_view>& name = binder.statement().name;
  return std::find(name.begin() + 1, name.end(), part) != name.end();
}

void bind_add(Binder& binder) {
  const Type type = binder.require_type();
  if (has_part(binder, "cc")) return bind_extended<Extended::plain, false>(binder, type);
  bind_rows(binder, type, {type, type});
  if (binder.take("sat")) {
    if (type != Type::s32) binder.unsupported("integer .sat needs .s32");
    return bind_handler(binder, map<[](int32_t a, int32_t b) { return clamped(int64_t{a} + b); },
                                    int32_t, int32_t, int32_t>);
  }
  bind_handler(binder, by_bits(type, []<class T>() -> Handler { return map<sum<T>, T, T, T>; }));
}

void bind_sub(Binder& binder) {
  const Type type = binder.require_type();
  if (has_part(binder, "cc")) return bind_extended<Extended::subtract, false>(binder, type);
  bind_rows(binder, type, {type, type});
  if (binder.take("sat")) {
    if (type != Type::s32) binder.unsupported("integer .sat needs .s32");
    return bind_handler(binder, map<[](int32_t a, int32_t b) { return clamped(int64_t{a} - b); },
                                    int32_t, int32_t, int32_t>);
  }
  bind_handler(binder, by_bits(type, []<class T>() -> Handler {
                 return map<[](T a, T b) { return static_cast<T>(a - b); }, T, T, T>;
               }));
}

void bind_addc(Binder& binder) {
  bind_extended<Extended::plain, true>(binder, binder.require_type());
}
void bind_subc(Binder& binder) {
  bind_extended<Extended::subtract, true>(binder, binder.require_type());
}

void bind_mul(Binder& binder) {
  const Type type = binder.require_type();
  if (binder.take("wide")) {
    bind_rows(binder, doubled(type), {type, type});
    return bind_handler(binder, by_narrow_integer(type, []<class T>() -> Handler {
                          return map<wide_product<T>, typename Doubled<T>::type, T, T>;
                        }));
  }
  bind_rows(binder, type, {type, type});
  if (binder.take("hi")) {
    return bind_handler(binder, by_integer(type, []<class T>() -> Handler {
                          return map<high_product<T>, T, T, T>;
                        }));
  }
  if (!binder.take("lo")) binder.unsupported("expected .lo, .hi or .wide");
  bind_handler(binder,
               by_bits(type, []<class T>() -> Handler { return map<low_product<T>, T, T, T>; }));
}

void bind_mad(Binder& binder) {
  const Type type = binder.require_type();
  if (binder.take("wide")) {
    const Type wide = doubled(type);
    bind_rows(binder, wide, {type, type, wide});
    return bind_handler(
        binder, by_narrow_integer(type, []<class T>() -> Handler {
          using Wide = typename Doubled<T>::type;
          return map<[](T a, T b, Wide c) { return sum<Wide>(wide_product(a, b), c); }, Wide, T, T,
                     Wide>;
        }));
  }
  const bool high = binder.take("hi");
  if (!high && !binder.take("lo")) binder.unsupported("expected .lo, .hi or .wide");
  if (has_part(binder, "cc")) {
    return high ? bind_extended<Extended::high, false>(binder, type)
                : bind_extended<Extended::low, false>(binder, type);
  }
  bind_rows(binder, type, {type, type, type});
  if (binder.take("sat")) {
    if (type != Type::s32 || !high) binder.unsupported("integer .sat needs .hi and .s32");
    return bind_handler(binder, map<[](int32_t a, int32_t b, int32_t c) {
                          return clamped(int64_t{high_product(a, b)} + c);
                        },
                                    int32_t, int32_t, int32_t, int32_t>);
  }
  if (high) {
    return bind_handler(
        binder, by_integer(type, []<class T>() -> Handler {
          return map<[](T a, T b, T c) { return sum<T>(high_product<T>(a, b), c); }, T, T, T, T>;
        }));
  }
  bind_handler(
      binder, by_bits(type, []<class T>() -> Handler {
        return map<[](T a, T b, T c) { return sum<T>(low_product<T>(a, b), c); }, T, T, T, T>;
      }));
}

void bind_madc(Binder& binder) {
  const Type type = binder.require_type();
  if (binder.take("hi")) return bind_extended<Extended::high, true>(binder, type);
  if (!binder.take("lo")) binder.unsupported("expected .lo or .hi");
  bind_extended<Extended::low, true>(binder, type);
}

// The product of the low 24 bits of each: bits 0 to 31, or 16 to 47.
template <class T>
int64_t product24(T a, T b) {
  const auto extend = [](T value) -> int64_t {
    const auto bits = static_cast<uint32_t>(value) << 8;
    if constexpr (std::is_signed_v<T>) return static_cast<int32_t>(bits) >> 8;
    return bits >> 8;
  };
  return extend(a) * extend(b);
}
template <class T, Half64 half>
T part24(T a, T b) {
  const int64_t product = product24(a, b);
  return static_cast<T>(half == Half64::low ? product : product >> 16);
}

void bind_mul24(Binder& binder) {
  const Type type = binder.require_type();
  if (type != Type::u32 && type != Type::s32) binder.unsupported("expected .u32 or .s32");
  const bool adds = binder.op() == "mad24";
  const bool high = binder.take("hi");
  if (!high && !binder.take("lo")) binder.unsupported("expected .lo or .hi");
  if (adds) {
    bind_rows(binder, type, {type, type, type});
  } else {
    bind_rows(binder, type, {type, type});
  }
  if (binder.take("sat")) {
    if (!adds || !high || type != Type::s32)
      binder.unsupported("integer .sat needs mad24.hi and .s32");
    return bind_handler(binder, map<[](int32_t a, int32_t b, int32_t c) {
                          return clamped(int64_t{part24<int32_t, Half64::high>(a, b)} + c);
                        },
                                    int32_t, int32_t, int32_t, int32_t>);
  }
  const auto make = [&]<class T>() -> Handler {
    constexpr auto add_low = [](T a, T b, T c) { return sum<T>(part24<T, Half64::low>(a, b), c); };
    constexpr auto add_high = [](T a, T b, T c) {
      return sum<T>(part24<T, Half64::high>(a, b), c);
    };
    if (adds) return high ? map<add_high, T, T, T, T> : map<add_low, T, T, T, T>;
    return high ? map<part24<T, Half64::high>, T, T, T> : map<part24<T, Half64::low>, T, T, T>;
  };
  bind_handler(binder, type == Type::s32 ? make.template operator()<int32_t>()
                                         : make.template operator()<uint32_t>());
}

void bind_sad(Binder& binder) {
  const Type type = binder.require_type();
  bind_rows(binder, type, {type, type, type});
  bind_handler(binder, by_integer(type, []<class T>() -> Handler {
                 return map<[](T a, T b, T c) {
                   using W = Working<T>;
                   const W difference = a < b ? static_cast<W>(b) - static_cast<W>(a)
                                              : static_cast<W>(a) - static_cast<W>(b);
                   return static_cast<T>(static_cast<W>(c) + difference);
                 },
                            T, T, T, T>;
               }));
}

// A division by zero gives all ones, the remainder too: what the code sequences of the GPU do.
template <class T>
T quotient(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return static_cast<T>(Working<T>{0} - static_cast<Working<T>>(a));
  }
  return static_cast<T>(a / b);
}
template <class T>
T remainder_of(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return 0;
  }
  return static_cast<T>(a % b);
}

void bind_div(Binder& binder) {
  const Type type = binder.require_type();
  bind_rows(binder, type, {type, type});
  const bool is_rem = binder.op() == "rem";
  bind_handler(binder, by_integer(type, [&]<class T>() -> Handler {
                 return is_rem ? map<remainder_of<T>, T, T, T> : map<quotient<T>, T, T, T>;
               }));
}

void bind_abs(Binder& binder) {
  const Type type = binder.require_type();
  bind_rows(binder, type, {type});
  bind_handler(binder, by_integer(type, []<class T>() -> Handler {
                 return map<[](T a) {
                   return a < 0 ? static_cast<T>(Working<T>{0} - static_cast<Working<T>>(a)) : a;
                 },
                            T, T>;
               }));
}

void bind_neg(Binder& binder) {
  const Type type = binder.require_type();
  bind_rows(binder, type, {type});
  bind_handler(binder, by_bits(type, []<class T>() -> Handler {
                 return map<[](T a) { return static_cast<T>(Working<T>{0} - a); }, T, T>;
               }));
}

void bind_min(Binder& binder) {
  const Type type = binder.require_type();
  bind_rows(binder, type, {type, type});
  const bool is_max = binder.op() == "max";
  bind_handler(binder, by_integer(type, [&]<class T>() -> Handler {
                 constexpr auto least = [](T a, T b) { return a < b ? a : b; };
                 constexpr auto most = [](T a, T b) { return a < b ? b : a; };
                 return is_max ? map<most, T, T, T> : map<least, T, T, T>;
               }));
}

// --- bits

Type require_wide_bits(Binder& binder) {
  const Type type = binder.require_type();
  if (type_bits(type) != 32 && type_bits(type) != 64) binder.unsupported("expected 32 or 64 bits");
  return type;
}

template <class Make>
Handler by_word(Type type, Make make) {
  return type_bits(type) == 64 ? make.template operator()<uint64_t>()
                               : make.template operator()<uint32_t>();
}

void bind_popc(Binder& binder) {
  const Type type = require_wide_bits(binder);
  bind_rows(binder, Type::u32, {type});
  bind_handler(
      binder, by_word(type, []<class T>() -> Handler {
        return map<[](T a) { return static_cast<uint32_t>(std::popcount(a)); }, uint32_t, T>;
      }));
}

void bind_clz(Binder& binder) {
  const Type type = require_wide_bits(binder);
  bind_rows(binder, Type::u32, {type});
  bind_handler(
      binder, by_word(type, []<class T>() -> Handler {
        return map<[](T a) { return static_cast<uint32_t>(std::countl_zero(a)); }, uint32_t, T>;
      }));
}

// The highest bit that differs from the sign (of an unsigned value: that is set), from the top when
// it is a shift amount.
template <class T, bool shift_amount>
uint32_t find_bit(T a) {
  auto bits = static_cast<Unsigned<T>>(a);
  if (std::is_signed_v<T> && a < 0) bits = static_cast<Unsigned<T>>(~bits);
  if (bits == 0) return 0xffffffff;
  const auto from_top = static_cast<uint32_t>(std::countl_zero(bits));
  return shift_amount ? from_top : kBits<T> - 1 - from_top;
}

void bind_bfind(Binder& binder) {
  const bool shift_amount = binder.take("shiftamt");
  const Type type = require_wide_bits(binder);
  bind_rows(binder, Type::u32, {type});
  bind_handler(binder, by_integer(type, [&]<class T>() -> Handler {
                 return shift_amount ? map<find_bit<T, true>, uint32_t, T>
                                     : map<find_bit<T, false>, uint32_t, T>;
               }));
}

// The n-th set bit of `mask` from `base` on, upward or downward.
uint32_t find_nth_set(uint32_t mask, uint32_t base, int32_t offset) {
  if (offset == std::numeric_limits<int32_t>::min()) return 0;  // it has no opposite
  if (base > 31) return 0xffffffff;
  if (offset == 0) return (mask >> base & 1) != 0 ? base : 0xffffffff;
  const int step = offset > 0 ? 1 : -1;
  int64_t left = offset > 0 ? int64_t{offset} : -int64_t{offset};
  for (int at = static_cast<int>(base); at >= 0 && at < 32; at += step) {
    if ((mask >> at & 1) != 0 && --left == 0) return static_cast<uint32_t>(at);
  }
  return 0xffffffff;
}

void bind_fns(Binder& binder) {
  if (binder.require_type() != Type::b32) binder.unsupported("expected .b32");
  bind_rows(binder, Type::b32, {Type::b32, Type::b32, Type::s32});
  bind_handler(binder, map<find_nth_set, uint32_t, uint32_t, uint32_t, int32_t>);
}

template <class T>
T reversed(T a) {
  if constexpr (sizeof(T) == 8) {
    return static_cast<T>(reversed(static_cast<uint32_t>(a))) << 32 |
           reversed(static_cast<uint32_t>(a >> 32));
  } else {
    a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
    a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
    a = (a >> 4 & 0x0f0f0f0f) | (a & 0x0f0f0f0f) << 4;
    a = (a >> 8 & 0x00ff00ff) | (a & 0x00ff00ff) << 8;
    return a >> 16 | a << 16;
  }
}

void bind_brev(Binder& binder) {
  const Type type = require_wide_bits(binder);
  bind_rows(binder, type, {type});
  bind_handler(binder, by_word(type, []<class T>() -> Handler { return map<reversed<T>, T, T>; }));
}

template <class U>
U low_ones(uint32_t count) {
  return count >= static_cast<uint32_t>(kBits<U>) ? ~U{0} : (U{1} << count) - 1;
}
template <class U>
U shifted_left(U a, uint32_t amount) {
  return amount < static_cast<uint32_t>(kBits<U>) ? static_cast<U>(a << amount) : U{0};
}
// Arithmetic for signed types.
template <class T>
T shifted_right(T a, uint32_t amount) {
  constexpr uint32_t kMost = kBits<T> - 1;
  if constexpr (std::is_signed_v<T>) return static_cast<T>(a >> (amount < kMost ? amount : kMost));
  return amount <= kMost ? static_cast<T>(a >> (amount & kMost)) : T{0};
}

template <class T>
uint32_t field_operand(uint32_t value) {
  return sizeof(T) == 8 ? std::min(value, uint32_t{256}) : value & 0xff;
}

// Of 32 bits, position and length are the low bytes of their operands; of 64 bits the whole
// operands count, as the GPU does it. Bits above the field are the sign: the
// field's last bit, or the last bit of the source where the field reaches beyond it.
template <class T>
T extract_field(T a, uint32_t position, uint32_t length) {
  using U = Unsigned<T>;
  position = field_operand<T>(position);
  length = field_operand<T>(length);
  const U field = static_cast<U>(shifted_right<T>(a, position)) & low_ones<U>(length);
  if constexpr (std::is_signed_v<T>) {
    if (length == 0) return 0;
    constexpr uint32_t kMost = kBits<T> - 1;
    const uint32_t last = position + length - 1;
    const bool sign = (static_cast<U>(a) >> (last < kMost ? last : kMost) & 1) != 0;
    const U inside = position > kMost ? U{0} : low_ones<U>(std::min(length, kBits<T> - position));
    return static_cast<T>((field & inside) | (sign ? static_cast<U>(~inside) : U{0}));
  }
  return static_cast<T>(field);
}

void bind_bfe(Binder& binder) {
  const Type type = require_wide_bits(binder);
  bind_rows(binder, type, {type, Type::u32, Type::u32});
  bind_handler(binder, by_integer(type, []<class T>() -> Handler {
                 return map<extract_field<T>, T, T, uint32_t, uint32_t>;
               }));
}

template <class U>
U insert_field(U a, U b, uint32_t position, uint32_t length) {
  position = field_operand<U>(position);
  const U field = shifted_left<U>(low_ones<U>(field_operand<U>(length)), position);
  return (b & ~field) | (shifted_left<U>(a, position) & field);
}

void bind_bfi(Binder& binder) {
  const Type type = require_wide_bits(binder);
  bind_rows(binder, type, {type, type, Type::u32, Type::u32});
  bind_handler(binder, by_word(type, []<class T>() -> Handler {
                 return map<insert_field<T>, T, T, T, uint32_t, uint32_t>;
               }));
}

// `width` ones from bit `position` on.
template <bool clamps>
uint32_t bit_mask(uint32_t position, uint32_t width) {
  if (clamps && position > 31) return 0;
  const uint32_t above_position = ~uint32_t{0} << (position & 31);
  const uint32_t end = (position & 31) + (width & 31);
  const bool reaches_top = end > 31 || (clamps && width > 31);
  return reaches_top ? above_position : above_position & low_ones<uint32_t>(end);
}

bool take_clamp(Binder& binder) {
  const bool clamps = binder.take("clamp");
  if (!clamps && !binder.take("wrap")) binder.unsupported("expected .wrap or .clamp");
  return clamps;
}

void bind_bmsk(Binder& binder) {
  const bool clamps = take_clamp(binder);
  if (binder.require_type() != Type::b32) binder.unsupported("expected .b32");
  bind_rows(binder, Type::b32, {Type::u32, Type::u32});
  bind_handler(binder, clamps ? map<bit_mask<true>, uint32_t, uint32_t, uint32_t>
                              : map<bit_mask<false>, uint32_t, uint32_t, uint32_t>);
}

// `a` cut to `width` bits and extended again.
template <class T, bool clamps>
T extended_from(T a, uint32_t width) {
  const auto bits = static_cast<uint32_t>(a);
  if (clamps && width > 31) return a;
  width &= 31;
  const uint32_t kept = bits & low_ones<uint32_t>(width);
  const bool sign = std::is_signed_v<T> && width != 0 && (bits >> (width - 1) & 1) != 0;
  return static_cast<T>(sign ? kept | ~low_ones<uint32_t>(width) : kept);
}

void bind_szext(Binder& binder) {
  const bool clamps = take_clamp(binder);
  const Type type = binder.require_type();
  if (type != Type::u32 && type != Type::s32) binder.unsupported("expected .u32 or .s32");
  bind_rows(binder, type, {type, Type::u32});
  const auto make = [&]<class T>() -> Handler {
    return clamps ? map<extended_from<T, true>, T, T, uint32_t>
                  : map<extended_from<T, false>, T, T, uint32_t>;
  };
  bind_handler(binder, type == Type::s32 ? make.template operator()<int32_t>()
                                         : make.template operator()<uint32_t>());
}

// --- dot products

// Element `index` of a word that holds elements of type E.
template <class E>
int64_t element(uint32_t word, int index) {
  return static_cast<E>(word >> (index * kBits<E>));
}
template <class A, class B>
uint32_t dot4(uint32_t a, uint32_t b, uint32_t c) {
  int64_t total = c;
  for (int i = 0; i < 4; ++i) total += element<A>(a, i) * element<B>(b, i);
  return static_cast<uint32_t>(total);
}
template <class A, class B, Half64 half>
uint32_t dot2(uint32_t a, uint32_t b, uint32_t c) {
  int64_t total = c;
  const int first = half == Half64::high ? 2 : 0;
  for (int i = 0; i < 2; ++i) total += element<A>(a, i) * element<B>(b, first + i);
  return static_cast<uint32_t>(total);
}

template <auto function>
constexpr Handler kThreeWords = map<function, uint32_t, uint32_t, uint32_t, uint32_t>;

// The handler for the signs of both operands: {uu, us, su, ss}.
void bind_dot(Binder& binder, const Handler (&handlers)[4]) {
  const Type a = binder.require_type();
  const Type b = binder.require_type();
  if (type_bits(a) != 32 || type_bits(b) != 32) binder.unsupported("expected .u32 or .s32");
  bind_rows(binder, Type::b32, {Type::b32, Type::b32, Type::b32});
  bind_handler(binder, handlers[(is_signed(a) ? 2 : 0) + (is_signed(b) ? 1 : 0)]);
}

void bind_dp4a(Binder& binder) {
  bind_dot(binder, {kThreeWords<dot4<uint8_t, uint8_t>>, kThreeWords<dot4<uint8_t, int8_t>>,
                    kThreeWords<dot4<int8_t, uint8_t>>, kThreeWords<dot4<int8_t, int8_t>>});
}

template <Half64 half>
void bind_dp2a_half(Binder& binder) {
  bind_dot(binder,
           {kThreeWords<dot2<uint16_t, uint8_t, half>>, kThreeWords<dot2<uint16_t, int8_t, half>>,
            kThreeWords<dot2<int16_t, uint8_t, half>>, kThreeWords<dot2<int16_t, int8_t, half>>});
}
void bind_dp2a(Binder& binder) {
  if (binder.take("hi")) return bind_dp2a_half<Half64::high>(binder);
  if (!binder.take("lo")) binder.unsupported("expected .lo or .hi");
  bind_dp2a_half<Half64::low>(binder);
}

// --- logic

enum class Logic : uint8_t { conjunction, disjunction, difference };
Logic logic_of(std::string_view op) {
  if (op == "and") return Logic::conjunction;
  return op == "or" ? Logic::disjunction : Logic::difference;
}

template <Logic logic, class T>
T combined(T a, T b) {
  if constexpr (logic == Logic::conjunction) return a & b;
  if constexpr (logic == Logic::disjunction) return a | b;
  return a ^ b;
}
template <Logic logic>
void combine_predicates(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const uint32_t a = warp.value(instruction.rows[1]);
  const uint32_t b = warp.value(instruction.rows[2]);
  put_predicate(warp, instruction.rows[0], combined<logic>(a, b), mask);
}
template <Logic logic>
Handler logic_handler(Type type) {
  if (type == Type::pred) return combine_predicates<logic>;
  return by_bits(type, []<class T>() -> Handler { return map<combined<logic, T>, T, T, T>; });
}

void bind_logic(Binder& binder) {
  const Type type = binder.require_type();
  bind_rows(binder, type, {type, type});
  switch (logic_of(binder.op())) {
    case Logic::conjunction:
      return bind_handler(binder, logic_handler<Logic::conjunction>(type));
    case Logic::disjunction:
      return bind_handler(binder, logic_handler<Logic::disjunction>(type));
    case Logic::difference:
      return bind_handler(binder, logic_handler<Logic::difference>(type));
  }
}

void negate_predicate(Warp& warp, const Instruction& instruction, uint32_t mask) {
  put_predicate(warp, instruction.rows[0], ~warp.value(instruction.rows[1]), mask);
}

void bind_not(Binder& binder) {
  const Type type = binder.require_type();
  bind_rows(binder, type, {type});
  if (type == Type::pred) return bind_handler(binder, negate_predicate);
  bind_handler(binder, by_bits(type, []<class T>() -> Handler {
                 return map<[](T a) { return static_cast<T>(~a); }, T, T>;
               }));
}

void bind_cnot(Binder& binder) {
  const Type type = binder.require_type();
  bind_rows(binder, type, {type});
  bind_handler(binder, by_bits(type, []<class T>() -> Handler {
                 return map<[](T a) { return static_cast<T>(a == 0 ? 1 : 0); }, T, T>;
               }));
}

// Any function of three bits, from its table of truth: bit 4a + 2b + c of `table`.
class BitTable {
 public:
  explicit BitTable(uint8_t table) {
    for (int i = 0; i < 8; ++i) rows_[i] = (table >> i & 1) != 0 ? 0xffffffff : 0;
  }
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const {
    const uint32_t none = choose(c, rows_[1], rows_[0]);
    const uint32_t only_b = choose(c, rows_[3], rows_[2]);
    const uint32_t only_a = choose(c, rows_[5], rows_[4]);
    const uint32_t both = choose(c, rows_[7], rows_[6]);
    return choose(a, choose(b, both, only_a), choose(b, only_b, none));
  }

 private:
  static uint32_t choose(uint32_t which, uint32_t one, uint32_t zero) {
    return zero ^ ((zero ^ one) & which);
  }
  uint32_t rows_[8];
};

void look_up(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const BitTable table(instruction.mode);
  uint32_t* target = warp.row<uint32_t>(instruction.rows[0]);
  const uint32_t* a = warp.row<uint32_t>(instruction.rows[1]);
  const uint32_t* b = warp.row<uint32_t>(instruction.rows[2]);
  const uint32_t* c = warp.row<uint32_t>(instruction.rows[3]);
  fill(mask, target, [&](int lane) { return table(a[lane], b[lane], c[lane]); });
}

// rows: word, predicate, a, b, c, predicate. p = (word != 0) combined with q.
template <Logic logic>
void look_up_predicate(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const BitTable table(instruction.mode);
  uint32_t* target = warp.row<uint32_t>(instruction.rows[0]);
  const uint32_t* a = warp.row<uint32_t>(instruction.rows[2]);
  const uint32_t* b = warp.row<uint32_t>(instruction.rows[3]);
  const uint32_t* c = warp.row<uint32_t>(instruction.rows[4]);
  uint32_t nonzero = 0;
  each_lane(mask, [&](int lane) {
    target[lane] = table(a[lane], b[lane], c[lane]);
    nonzero |= static_cast<uint32_t>(target[lane] != 0) << lane;
  });
  put_predicate(warp, instruction.rows[1],
                combined<logic>(nonzero, warp.value(instruction.rows[5])), mask);
}

void bind_lop3(Binder& binder) {
  const bool conjunction = binder.take("and");
  const bool disjunction = binder.take("or");
  if (binder.require_type() != Type::b32) binder.unsupported("expected .b32");
  const bool combines = conjunction || disjunction;
  binder.require_operands(combines ? 6 : 5, combines ? 6 : 5);
  const Operand& target = binder.operand(0);
  if (combines) {
    if (target.kind != Operand::Kind::group || target.parts.size() != 2)
      binder.unsupported("expected two targets, d|p");
    binder.target(target.parts[0], Type::b32);
    binder.target(target.parts[1], Type::pred);
  } else {
    binder.target(target, Type::b32);
  }
  for (int i = 1; i <= 3; ++i) binder.source(binder.operand(i), Type::b32);
  if (binder.operand(4).kind != Operand::Kind::immediate)
    binder.unsupported("the table must be an immediate");
  binder.instruction().mode = static_cast<uint8_t>(binder.operand(4).bits);
  if (!combines) return bind_handler(binder, look_up);
  binder.source(binder.operand(5), Type::pred);
  bind_handler(binder, conjunction ? look_up_predicate<Logic::conjunction>
                                   : look_up_predicate<Logic::disjunction>);
}

// --- shifts

void bind_shl(Binder& binder) {
  const Type type = binder.require_type();
  bind_rows(binder, type, {type, Type::u32});
  bind_handler(binder, by_bits(type, []<class T>() -> Handler {
                 return map<shifted_left<T>, T, T, uint32_t>;
               }));
}

void bind_shr(Binder& binder) {
  const Type type = binder.require_type();
  bind_rows(binder, type, {type, Type::u32});
  bind_handler(binder, by_integer(type, []<class T>() -> Handler {
                 return map<shifted_right<T>, T, T, uint32_t>;
               }));
}

// The upper word of {b, a} shifted left, or the lower one of it shifted right.
template <bool left, bool clamps>
uint32_t funnel(uint32_t a, uint32_t b, uint32_t amount) {
  const uint64_t both = uint64_t{b} << 32 | a;
  const uint32_t by = clamps ? (amount < 32 ? amount : 32) : amount & 31;
  return static_cast<uint32_t>(left ? both << by >> 32 : both >> by);
}

void bind_shf(Binder& binder) {
  const bool left = binder.take("l");
  if (!left && !binder.take("r")) binder.unsupported("expected .l or .r");
  const bool clamps = take_clamp(binder);
  if (binder.require_type() != Type::b32) binder.unsupported("expected .b32");
  bind_rows(binder, Type::b32, {Type::b32, Type::b32, Type::u32});
  if (left) {
    return bind_handler(
        binder, clamps ? kThreeWords<funnel<true, true>> : kThreeWords<funnel<true, false>>);
  }
  bind_handler(binder,
               clamps ? kThreeWords<funnel<false, true>> : kThreeWords<funnel<false, false>>);
}

// --- prmt

// Byte i of the result is byte (selector nibble i) of {b, a}; with bit 3, its sign eight times.
uint32_t permuted(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t nibble = selector >> (4 * i) & 0xf;
    const auto byte = static_cast<uint32_t>(bytes >> (8 * (nibble & 7)) & 0xff);
    const uint32_t sign = (byte & 0x80) != 0 ? 0xff : 0;
    result |= ((nibble & 8) != 0 ? sign : byte) << (8 * i);
  }
  return result;
}

// The same for a selector that is an immediate, without signs: what to shift by is known.
void permute(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const uint32_t selector = instruction.target;
  uint32_t* target = warp.row<uint32_t>(instruction.rows[0]);
  const uint32_t* sources[4];
  uint32_t shifts[4];
  for (int i = 0; i < 4; ++i) {
    const uint32_t byte = selector >> (4 * i) & 7;
    sources[i] = warp.row<uint32_t>(instruction.rows[byte < 4 ? 1 : 2]);
    shifts[i] = 8 * (byte & 3);
  }
  fill(mask, target, [&](int lane) {
    return (sources[0][lane] >> shifts[0] & 0xff) | (sources[1][lane] >> shifts[1] & 0xff) << 8 |
           (sources[2][lane] >> shifts[2] & 0xff) << 16 | (sources[3][lane] >> shifts[3]) << 24;
  });
}

// The modes that take their selector from the low two bits: which bytes of {b, a} for each.
constexpr std::string_view kPermuteModes[] = {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
constexpr uint16_t kPermutes[][4] = {
    {0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123},
    {0x0000, 0x1111, 0x2222, 0x3333}, {0x3210, 0x3211, 0x3222, 0x3333},
    {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232}};

template <int mode>
uint32_t permuted_by_mode(uint32_t a, uint32_t b, uint32_t selector) {
  return permuted(a, b, kPermutes[mode][selector & 3]);
}

void bind_prmt(Binder& binder) {
  constexpr Handler kHandlers[] = {
      kThreeWords<permuted_by_mode<0>>, kThreeWords<permuted_by_mode<1>>,
      kThreeWords<permuted_by_mode<2>>, kThreeWords<permuted_by_mode<3>>,
      kThreeWords<permuted_by_mode<4>>, kThreeWords<permuted_by_mode<5>>};
  if (binder.require_type() != Type::b32) binder.unsupported("expected .b32");
  bind_rows(binder, Type::b32, {Type::b32, Type::b32, Type::b32});
  for (size_t mode = 0; mode < std::size(kHandlers); ++mode) {
    if (binder.take(kPermuteModes[mode])) return bind_handler(binder, kHandlers[mode]);
  }
  const Operand& selector = binder.operand(3);
  constexpr uint32_t kSigns = 0x8888;
  if (selector.kind == Operand::Kind::immediate && (selector.bits & kSigns) == 0) {
    binder.instruction().target = static_cast<uint32_t>(selector.bits);
    return bind_handler(binder, permute);
  }
  bind_handler(binder, kThreeWords<permuted>);
}

constexpr OpEntry kEntries[] = {
    {"add", bind_add},     {"sub", bind_sub},   {"addc", bind_addc},   {"subc", bind_subc},
    {"mul", bind_mul},     {"mad", bind_mad},   {"madc", bind_madc},   {"mul24", bind_mul24},
    {"mad24", bind_mul24}, {"sad", bind_sad},   {"div", bind_div},     {"rem", bind_div},
    {"abs", bind_abs},     {"neg", bind_neg},   {"min", bind_min},     {"max", bind_min},
    {"popc", bind_popc},   {"clz", bind_clz},   {"bfind", bind_bfind}, {"fns", bind_fns},
    {"brev", bind_brev},   {"bfe", bind_bfe},   {"bfi", bind_bfi},     {"bmsk", bind_bmsk},
    {"szext", bind_szext}, {"dp4a", bind_dp4a}, {"dp2a", bind_dp2a},   {"and", bind_logic},
    {"or", bind_logic},    {"xor", bind_logic}, {"not", bind_not},     {"cnot", bind_cnot},
    {"lop3", bind_lop3},   {"shf", bind_shf},   {"shl", bind_shl},     {"shr", bind_shr},
    {"prmt", bind_prmt},
};

}  // namespace

bool bind_integer(Binder& binder) { return bind_one_of(kEntries, binder); }

}  // namespace kiln::runtime::sim
