// cvt between every two types that PTX allows, in every rounding, against rounding by search.
#include <map>

#include "jit/base/error.h"
#include "tests/sim/lane_bench.h"
#include "tests/sim/reference_numbers.h"

namespace kiln::runtime::sim {
namespace {

using u32 = uint32_t;
using u64 = uint64_t;
__extension__ using I128 = __int128;

struct NumberType {
  std::string name;
  int bits;
  bool is_signed;
  bool is_float;
};
const std::vector<NumberType> kIntegers{{"u8", 8, false, false},   {"s8", 8, true, false},
                                        {"u16", 16, false, false}, {"s16", 16, true, false},
                                        {"u32", 32, false, false}, {"s32", 32, true, false},
                                        {"u64", 64, false, false}, {"s64", 64, true, false}};
const std::vector<NumberType> kFloats{
    {"f16", 16, true, true}, {"f32", 32, true, true}, {"f64", 64, true, true}};

const SmallFormat kHalf(5);
const SmallFormat kBrain(8);
const std::vector<std::string> kRoundings{"rn", "rz", "rm", "rp"};
const std::vector<std::string> kIntegerRoundings{"rni", "rzi", "rmi", "rpi"};

// Bits of every type at its edges, padded by others: what is above a type's bits must not matter.
std::vector<Tuple> sources_of(const NumberType& type) {
  std::vector<u64> values{0,
                          1,
                          2,
                          0x7f,
                          0x80,
                          0xff,
                          0x7fff,
                          0x8000,
                          0xffff,
                          0x7fffffff,
                          0x80000000,
                          0xffffffff,
                          0xffffff81,
                          0x01000001,
                          0x01000003,
                          0x7fffffffffffffff,
                          0x8000000000000000,
                          0xffffffffffffffff,
                          0xfffffffffffffc00,
                          0x7ffffffffffffdff,
                          0x0020000000000001,
                          0x8000008000000000,
                          0x8000008000000001};
  const auto add = [&](double value) {
    if (type.name == "f64") values.push_back(std::bit_cast<u64>(value));
    if (type.name == "f32") values.push_back(bits_of(static_cast<float>(value)));
    if (type.name == "f16") values.push_back(kHalf.nearest(Quad{value}));
  };
  if (type.is_float) {
    for (const double value : {0.5,
                               1.5,
                               2.5,
                               0.49999997,
                               255.5,
                               256.0,
                               65504.0,
                               65519.99,
                               65520.0,
                               1e-8,
                               5.97e-8,
                               2.98e-8,
                               6.1e-5,
                               1e-40,
                               3.4028235e38,
                               3.4028236e38,
                               1e39,
                               2147483647.0,
                               2147483648.0,
                               4294967295.0,
                               4294967296.0,
                               9223372036854775807.0,
                               18446744073709551616.0,
                               HUGE_VAL,
                               std::nan("")}) {
      add(value);
      add(-value);
    }
  }
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> small(-300, 300);
  std::uniform_real_distribution<double> large(-5e9, 5e9);
  for (int i = 0; i < 2000; ++i) {
    values.push_back(random());
    if (!type.is_float) values.push_back(random() >> (random() % 64));
    add(small(random));
    add(large(random));
  }
  std::vector<Tuple> tuples;
  for (const u64 value : values) tuples.push_back({value, 0, 0});
  return tuples;
}

u64 low(u64 value, int bits) { return bits == 64 ? value : value & ((u64{1} << bits) - 1); }

Quad value_of(const NumberType& type, u64 word) {
  const u64 bits = low(word, type.bits);
  if (type.name == "f16") return kHalf.value(u32(bits));
  if (type.name == "f32") return Quad{float_of(u32(bits))};
  if (type.name == "f64") return Quad{std::bit_cast<double>(bits)};
  if (type.is_signed && (bits >> (type.bits - 1)) != 0) {
    return Quad(static_cast<I128>(bits) - (static_cast<I128>(1) << type.bits));
  }
  return Quad(bits);
}

// Of a number that is within 70 bits.
I128 whole(Quad value, int mode) {
  const auto cut = static_cast<I128>(value);
  const Quad rest = value - Quad(cut);
  if (rest == 0 || mode == 1) return cut;
  if (mode == 2) return rest < 0 ? cut - 1 : cut;
  if (mode == 3) return rest > 0 ? cut + 1 : cut;
  const Quad size = size_of(rest);
  const bool away = size > Quad{0.5} || (size == Quad{0.5} && cut % 2 != 0);
  return away ? cut + (rest < 0 ? -1 : 1) : cut;
}

// In a register of 32 bits, or 64 for 64-bit types: signed values are extended.
u64 integer_word(const NumberType& type, I128 value) {
  const u64 bits = low(static_cast<u64>(value), type.bits);
  if (type.bits == 64) return bits;
  const bool negative = type.is_signed && (bits >> (type.bits - 1)) != 0;
  return low(negative ? bits | ~low(~u64{0}, type.bits) : bits, 32);
}
I128 clamped(const NumberType& type, I128 value) {
  const I128 least = type.is_signed ? -(static_cast<I128>(1) << (type.bits - 1)) : 0;
  const I128 most = (static_cast<I128>(1) << (type.bits - (type.is_signed ? 1 : 0))) - 1;
  return value < least ? least : value > most ? most : value;
}

u64 float_word(const NumberType& type, Quad value, int mode) {
  if (type.name == "f16") return kHalf.rounded(value, mode);
  if (type.name == "bf16") return kBrain.rounded(value, mode);
  if (type.name == "f32") return rounded_float(value, mode);
  return std::bit_cast<u64>(rounded_number<double>(value, mode));
}

std::string reg(const NumberType& type, int index) {
  return (type.bits == 64 ? "%d" : "%r") + std::to_string(index);
}
void expect_conversion(const std::string& modifiers, const NumberType& target,
                       const NumberType& source, const std::function<u64(Quad)>& truth) {
  const std::string text = "cvt" + modifiers + "." + target.name + "." + source.name + " " +
                           reg(target, 0) + ", " + reg(source, 1) + ";";
  std::vector<Tuple> tuples = sources_of(source);
  if (target.name == "f64" || source.name == "f64") {  // NaNs have a test of their own
    std::erase_if(tuples, [&](const Tuple& tuple) {
      const Quad value = value_of(source, tuple[0]);
      return value != value;
    });
  }
  expect_all(text, tuples, bind_convert,
             [&](u64 word, u64, u64) { return truth(value_of(source, word)); });
}

TEST(Convert, IntegersWrapOrSaturate) {
  for (const NumberType& target : kIntegers) {
    for (const NumberType& source : kIntegers) {
      expect_conversion("", target, source,
                        [&](Quad value) { return integer_word(target, static_cast<I128>(value)); });
      expect_conversion(".sat", target, source, [&](Quad value) {
        return integer_word(target, clamped(target, static_cast<I128>(value)));
      });
    }
  }
}

TEST(Convert, FloatsToIntegersInEveryRounding) {
  for (const NumberType& target : kIntegers) {
    for (const NumberType& source : kFloats) {
      for (size_t mode = 0; mode < 4; ++mode) {
        expect_conversion("." + kIntegerRoundings[mode], target, source, [&](Quad value) -> u64 {
          if (value != value) {
            const bool zero = source.bits != 64 && target.bits != 64;
            return zero ? 0 : integer_word(target, static_cast<I128>(1) << (target.bits - 1));
          }
          const Quad bound{1e21};
          const Quad inside = value < -bound ? -bound : value > bound ? bound : value;
          return integer_word(target, clamped(target, whole(inside, static_cast<int>(mode))));
        });
      }
    }
  }
}

TEST(Convert, IntegersToFloatsInEveryRounding) {
  for (const NumberType& target : kFloats) {
    for (const NumberType& source : kIntegers) {
      for (size_t mode = 0; mode < 4; ++mode) {
        expect_conversion("." + kRoundings[mode], target, source, [&](Quad value) {
          return float_word(target, value, static_cast<int>(mode));
        });
      }
    }
  }
}

TEST(Convert, FloatsToNarrowerFloatsInEveryRounding) {
  const NumberType brain{"bf16", 16, true, true};
  for (size_t mode = 0; mode < 4; ++mode) {
    const auto check = [&](const NumberType& target, const NumberType& source) {
      expect_conversion("." + kRoundings[mode], target, source, [&](Quad value) {
        return float_word(target, value, static_cast<int>(mode));
      });
    };
    check(kFloats[0], kFloats[1]);
    check(kFloats[0], kFloats[2]);
    check(kFloats[1], kFloats[2]);
    if (mode < 2) check(brain, kFloats[1]);
  }
}

TEST(Convert, FloatsToWiderFloatsAreExact) {
  for (const auto& [target, source] : {std::pair{1, 0}, {2, 0}, {2, 1}}) {
    const NumberType& wide = kFloats[static_cast<size_t>(target)];
    expect_conversion("", wide, kFloats[static_cast<size_t>(source)],
                      [&](Quad value) { return float_word(wide, value, 0); });
  }
}

TEST(Convert, FloatsRoundToIntegersOfTheirOwnType) {
  for (const NumberType& type : kFloats) {
    for (size_t mode = 0; mode < 4; ++mode) {
      expect_conversion("." + kIntegerRoundings[mode], type, type, [&](Quad value) {
        if (value != value || size_of(value) > Quad{1e20}) return float_word(type, value, 0);
        const I128 rounded = whole(value, static_cast<int>(mode));
        const bool negative_zero = rounded == 0 && is_negative(value);
        return float_word(type, negative_zero ? -Quad{0} : Quad(rounded), 0);
      });
    }
  }
}

u64 one(const std::string& text, u64 a, u64 b = 0, u64 c = 0) {
  return run_on(text, {{{a, b, c}}}, bind_convert)[0];
}

TEST(Convert, NansBecomeCanonicalOrKeepTheirPayload) {
  EXPECT_EQ(one("cvt.rn.f32.f64 %r0, %d1;", 0xfff8000000001234), 0xffc00000u);
  EXPECT_EQ(one("cvt.rz.f32.f64 %r0, %d1;", 0x7ff4444440000000), 0x7fe22222u);
  EXPECT_EQ(one("cvt.rn.f16.f64 %r0, %d1;", 0xffffffffffffffff), 0xffffu);
  EXPECT_EQ(one("cvt.rzi.s32.f64 %r0, %d1;", 0x7ff8000000000000), 0x80000000u);
  EXPECT_EQ(one("cvt.rzi.s64.f64 %d0, %d1;", 0x7ff8000000000000), 0x8000000000000000u);
  EXPECT_EQ(one("cvt.f32.bf16 %r0, %r1;", 0x7f81), 0x7f810000u);
  EXPECT_EQ(one("cvt.rn.f16.f32 %r0, %r1;", 0xff800001), 0x7fffu);
  EXPECT_EQ(one("cvt.rn.bf16.f32 %r0, %r1;", 0x7f800001), 0x7fffu);
  EXPECT_EQ(one("cvt.f32.f16 %r0, %r1;", 0xfc01), 0x7fffffffu);
  EXPECT_EQ(one("cvt.f64.f32 %d0, %r1;", 0x7fffffff), 0x7fffffffe0000000u);
  EXPECT_EQ(one("cvt.f32.f32 %r0, %r1;", 0x7f800001), 0x7f800001u);
}

TEST(Convert, SaturationOfFloats) {
  EXPECT_EQ(one("cvt.sat.f32.f32 %r0, %r1;", 0x7fc00000), 0u);
  EXPECT_EQ(one("cvt.sat.f32.f32 %r0, %r1;", 0xbf800000), 0u);
  EXPECT_EQ(one("cvt.sat.f32.f32 %r0, %r1;", 0x80000000), 0u);
  EXPECT_EQ(one("cvt.sat.f32.f32 %r0, %r1;", 0x40000000), 0x3f800000u);
  EXPECT_EQ(one("cvt.rn.sat.f16.f32 %r0, %r1;", 0x7f800000), 0x3c00u);
  EXPECT_EQ(one("cvt.rn.sat.f32.s32 %r0, %r1;", 7), 0x3f800000u);
  EXPECT_EQ(one("cvt.sat.f64.f64 %d0, %d1;", 0x3fe0000000000000), 0x3fe0000000000000u);
}

TEST(Convert, FlushingOfF32) {
  EXPECT_EQ(one("cvt.ftz.f32.f32 %r0, %r1;", 0x80000001), 0x80000000u);
  EXPECT_EQ(one("cvt.rpi.ftz.s32.f32 %r0, %r1;", 1), 0u);
  EXPECT_EQ(one("cvt.rpi.s32.f32 %r0, %r1;", 1), 1u);
  EXPECT_EQ(one("cvt.rn.ftz.f32.f64 %r0, %d1;", 0xb7f0000000000000), 0x80000000u);
  EXPECT_EQ(one("cvt.rn.f32.f64 %r0, %d1;", 0xb7f0000000000000), 0x80200000u);
  EXPECT_EQ(one("cvt.ftz.f64.f32 %d0, %r1;", 1), 0u);
}

TEST(Convert, AZeroRoundedDownStaysPositive) {
  for (const std::string source : {"u32", "s32", "u16"}) {
    EXPECT_EQ(one("cvt.rm.f32." + source + " %r0, %r1;", 0), 0u) << source;
    EXPECT_EQ(one("cvt.rm.f64." + source + " %d0, %r1;", 0), 0u) << source;
  }
  EXPECT_EQ(one("cvt.rm.f32.u64 %r0, %d1;", 0), 0u);
}

TEST(Convert, ARegisterWiderThanItsTypeIsFilled) {
  EXPECT_EQ(one("cvt.s8.s32 %d0, %r1;", 0x1ff), 0xffffffffffffffffu);
  EXPECT_EQ(one("cvt.u8.u32 %d0, %r1;", 0x1ff), 0xffu);
  EXPECT_EQ(one("cvt.u16.s8 %r0, %r1;", 0x80), 0xff80u);
  EXPECT_EQ(one("cvt.u16.s8 %d0, %r1;", 0x80), 0xff80u);
  EXPECT_EQ(one("cvt.u32.s8 %d0, %d1;", 0x180), 0xffffff80u);
  EXPECT_EQ(one("cvt.s16.s8 %d0, %d1;", 0x180), 0xffffffffffffff80u);
  EXPECT_EQ(one("cvt.rn.f16.f32 %r0, %r1;", 0x3f800000), 0x3c00u);
}

TEST(Convert, PairsPutTheFirstOperandHigh) {
  EXPECT_EQ(one("cvt.rn.f16x2.f32 %r0, %r1, %r2;", 0x3f800000, 0x40000000), 0x3c004000u);
  EXPECT_EQ(one("cvt.rn.bf16x2.f32 %r0, %r1, %r2;", 0x3f808000, 0xc0018000), 0x3f80c002u);
  EXPECT_EQ(one("cvt.rz.bf16x2.f32 %r0, %r1, %r2;", 0x3f81ffff, 0xc0018000), 0x3f81c001u);
  EXPECT_EQ(one("cvt.rn.relu.f16x2.f32 %r0, %r1, %r2;", 0xbf800000, 0xffc00000), 0x00007fffu);
  EXPECT_EQ(one("cvt.rn.relu.bf16.f32 %r0, %r1;", 0xbf800000), 0u);
}

TEST(Convert, Tf32RoundsTiesAway) {
  EXPECT_EQ(one("cvt.rna.tf32.f32 %r0, %r1;", 0x3f801000), 0x3f802000u);
  EXPECT_EQ(one("cvt.rna.tf32.f32 %r0, %r1;", 0xbf800fff), 0xbf800000u);
  EXPECT_EQ(one("cvt.rna.tf32.f32 %r0, %r1;", 0x7f7fffff), 0x7f800000u);
  EXPECT_EQ(one("cvt.rna.tf32.f32 %r0, %r1;", 0xff800000), 0xff800000u);
}

TEST(Convert, PackSaturatesAndShiftsTheThirdOperand) {
  EXPECT_EQ(one("cvt.pack.sat.u16.s32 %r0, %r1, %r2;", u32(-5), 70000), 0x0000ffffu);
  EXPECT_EQ(one("cvt.pack.sat.s16.s32 %r0, %r1, %r2;", u32(-40000), 300), 0x8000012cu);
  EXPECT_EQ(one("cvt.pack.sat.u8.s32.b32 %r0, %r1, %r2, %r3;", 300, 17, 0xaabbccdd), 0xccddff11u);
  EXPECT_EQ(one("cvt.pack.sat.s8.s32.b32 %r0, %r1, %r2, %r3;", u32(-300), 1, 0x1234), 0x12348001u);
  EXPECT_EQ(one("cvt.pack.sat.s4.s32.b32 %r0, %r1, %r2, %r3;", u32(-9), 9, 0xaabbccdd),
            0xbbccdd87u);
  EXPECT_EQ(one("cvt.pack.sat.u2.s32.b32 %r0, %r1, %r2, %r3;", 2, 9, 0xaabbccdd), 0xabbccddbu);
}

TEST(Convert, WhatIsNotKnownIsRefused) {
  LoneWarp lone;
  for (const std::string text : {"cvt.rn.satfinite.e4m3x2.f32 %r0, %r1, %r2;",
                                 "cvt.u32.b32 %r0, %r1;", "cvt.rn.tf32.f32 %r0, %r1;",
                                 "cvt.pack.sat.u8.s32 %r0, %r1, %r2;", "cvt.u64.u64 %r0, %d1;"}) {
    EXPECT_ANY_THROW(lone.run(text, kAllLanes, bind_convert)) << text;
  }
}

}  // namespace
}  // namespace kiln::runtime::sim
