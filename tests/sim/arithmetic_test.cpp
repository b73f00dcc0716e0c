// Integer and floating-point instructions, logic, moves and comparisons, against formulas in wide
// arithmetic and against known vectors.
#include <cmath>
#include <map>

#include "jit/base/error.h"
#include "tests/sim/lane_bench.h"
#include "tests/sim/reference_numbers.h"

namespace kiln::runtime::sim {
namespace {

__extension__ using I128 = __int128;
__extension__ using U128 = unsigned __int128;
using u32 = uint32_t;
using u64 = uint64_t;
using s32 = int32_t;
using s64 = int64_t;

const std::vector<u64> kEdges{0,
                              1,
                              2,
                              31,
                              32,
                              33,
                              63,
                              64,
                              255,
                              0x7fff,
                              0x8000,
                              0xffff,
                              0x7fffffff,
                              0x80000000,
                              0xffffffff,
                              0x100000000,
                              0x7fffffffffffffff,
                              0x8000000000000000,
                              0xffffffffffffffff};
const std::vector<u64> kFloatEdges{
    0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x3f7fffff, 0x3f800001, 0x40490fdb, 0x7f7fffff,
    0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x7f800001, 0x00000001, 0x80000001,
    0x007fffff, 0x00800000, 0x80800000, 0x00ffffff, 0x33800000, 0x4b800001, 0x7f000000, 0x7e800001};

void expect_integer(const std::string& text, std::function<u64(u64, u64, u64)> truth) {
  expect_all(text, tuples_of(kEdges, 4000), bind_arithmetic, truth);
}

// The value of a type of `bits` bits.
I128 number(u64 value, int bits, bool is_signed) {
  if (bits < 64) value &= (u64{1} << bits) - 1;
  const bool negative = is_signed && (value >> (bits - 1) & 1) != 0;
  return negative ? static_cast<I128>(value) - (static_cast<I128>(1) << bits)
                  : static_cast<I128>(value);
}
u64 cut(I128 value, int bits) {
  const auto low = static_cast<u64>(value);
  return bits < 64 ? low & ((u64{1} << bits) - 1) : low;
}

struct IntegerType {
  std::string name;
  int bits;
  bool is_signed;
};
const std::vector<IntegerType> kIntegers{{"u16", 16, false}, {"s16", 16, true},  {"u32", 32, false},
                                         {"s32", 32, true},  {"u64", 64, false}, {"s64", 64, true}};

std::string registers(int bits, int sources) {
  const std::string bank = bits == 64 ? "%d" : "%r";
  std::string text = " " + bank + "0";
  for (int i = 1; i <= sources; ++i) text += ", " + bank + std::to_string(i);
  return text + ";";
}

TEST(IntegerOps, SumsProductsAndOrderFollowWideArithmetic) {
  for (const auto& [name, bits, is_signed] : kIntegers) {
    const auto value = [&](u64 x) { return number(x, bits, is_signed); };
    const auto binary = [&](const std::string& op, auto function) {
      expect_integer(op + "." + name + registers(bits, 2),
                     [&](u64 a, u64 b, u64) { return cut(function(value(a), value(b)), bits); });
    };
    binary("add", [](I128 a, I128 b) { return a + b; });
    binary("sub", [](I128 a, I128 b) { return a - b; });
    binary("min", [](I128 a, I128 b) { return a < b ? a : b; });
    binary("max", [](I128 a, I128 b) { return a < b ? b : a; });
    binary("div", [](I128 a, I128 b) { return b == 0 ? -1 : a / b; });
    binary("rem", [](I128 a, I128 b) { return b == 0 ? -1 : a % b; });
    binary("mul.lo", [&](I128 a, I128 b) {
      return static_cast<I128>(static_cast<U128>(a) * static_cast<U128>(b));
    });
    if (is_signed || bits < 64) binary("mul.hi", [&](I128 a, I128 b) { return a * b >> bits; });
    expect_integer("mad.lo." + name + registers(bits, 3),
                   [&](u64 a, u64 b, u64 c) { return cut(static_cast<I128>(a * b + c), bits); });
    expect_integer("sad." + name + registers(bits, 3), [&](u64 a, u64 b, u64 c) {
      const I128 x = value(a);
      const I128 y = value(b);
      return cut(value(c) + (x < y ? y - x : x - y), bits);
    });
    if (!is_signed) continue;
    expect_integer("abs." + name + registers(bits, 1),
                   [&](u64 a, u64, u64) { return cut(value(a) < 0 ? -value(a) : value(a), bits); });
    expect_integer("neg." + name + registers(bits, 1),
                   [&](u64 a, u64, u64) { return cut(-value(a), bits); });
  }
}

TEST(IntegerOps, HighProductOfUnsigned64) {
  expect_integer("mul.hi.u64 %d0, %d1, %d2;", [](u64 a, u64 b, u64) {
    return static_cast<u64>(static_cast<U128>(a) * b >> 64);
  });
}

TEST(IntegerOps, WideProductsHaveTwiceTheBits) {
  expect_integer("mul.wide.u32 %d0, %r1, %r2;",
                 [](u64 a, u64 b, u64) { return u64{u32(a)} * u32(b); });
  expect_integer("mul.wide.s32 %d0, %r1, %r2;",
                 [](u64 a, u64 b, u64) { return u64(s64{s32(a)} * s32(b)); });
  expect_integer("mul.wide.u16 %r0, %r1, %r2;",
                 [](u64 a, u64 b, u64) { return u64{uint16_t(a)} * uint16_t(b); });
  expect_integer("mul.wide.s16 %r0, %r1, %r2;",
                 [](u64 a, u64 b, u64) { return u64{u32(s32{int16_t(a)} * int16_t(b))}; });
  expect_integer("mad.wide.s32 %d0, %r1, %r2, %d3;",
                 [](u64 a, u64 b, u64 c) { return u64(s64{s32(a)} * s32(b)) + c; });
}

TEST(IntegerOps, SaturationClampsToSigned32) {
  const auto clamp = [](I128 x) {
    return u64{u32(s32(x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : x))};
  };
  expect_integer("add.sat.s32 %r0, %r1, %r2;",
                 [&](u64 a, u64 b, u64) { return clamp(I128{s32(a)} + s32(b)); });
  expect_integer("sub.sat.s32 %r0, %r1, %r2;",
                 [&](u64 a, u64 b, u64) { return clamp(I128{s32(a)} - s32(b)); });
  expect_integer("mad.hi.sat.s32 %r0, %r1, %r2, %r3;", [&](u64 a, u64 b, u64 c) {
    return clamp((I128{s32(a)} * s32(b) >> 32) + s32(c));
  });
}

TEST(IntegerOps, Products24UseTheLow24Bits) {
  const auto u = [](u64 x) { return I128(x & 0xffffff); };
  const auto s = [](u64 x) { return number(x, 24, true); };
  expect_integer("mul24.lo.u32 %r0, %r1, %r2;",
                 [&](u64 a, u64 b, u64) { return cut(u(a) * u(b), 32); });
  expect_integer("mul24.hi.s32 %r0, %r1, %r2;",
                 [&](u64 a, u64 b, u64) { return cut(s(a) * s(b) >> 16, 32); });
  expect_integer("mad24.lo.s32 %r0, %r1, %r2, %r3;",
                 [&](u64 a, u64 b, u64 c) { return cut(s(a) * s(b) + I128(c), 32); });
}

// 128 bits by two words of 64: what the carry flag is for.
TEST(IntegerOps, CarryAndBorrowChainWords) {
  std::mt19937_64 random(3);
  LoneWarp lone;
  for (int round = 0; round < 200; ++round) {
    for (int lane = 0; lane < kLanes; ++lane) {
      for (size_t i = 1; i <= 4; ++i) {
        lone.d(i)[lane] = random() % 4 == 0 ? ~u64{0} : random() % 4 == 0 ? 0 : random();
      }
    }
    for (const bool subtracts : {false, true}) {
      const std::string op = subtracts ? "sub" : "add";
      lone.run(op + ".cc.u64 %d5, %d1, %d3;", kAllLanes, bind_arithmetic);
      lone.run(op + "c.u64 %d6, %d2, %d4;", kAllLanes, bind_arithmetic);
      for (int lane = 0; lane < kLanes; ++lane) {
        const U128 a = U128{lone.d(2)[lane]} << 64 | lone.d(1)[lane];
        const U128 b = U128{lone.d(4)[lane]} << 64 | lone.d(3)[lane];
        const U128 result = subtracts ? a - b : a + b;
        EXPECT_EQ(lone.d(5)[lane], static_cast<u64>(result));
        EXPECT_EQ(lone.d(6)[lane], static_cast<u64>(result >> 64));
      }
    }
  }
}

TEST(IntegerOps, CarryOfMadReachesTheNextWord) {
  LoneWarp lone;
  for (int lane = 0; lane < kLanes; ++lane) {
    lone.r(1)[lane] = 0xffffffff;
    lone.r(2)[lane] = 0xffffffff - static_cast<u32>(lane);
    lone.r(3)[lane] = 0xffffffff;
    lone.r(4)[lane] = static_cast<u32>(lane) * 77;
  }
  lone.run("mad.lo.cc.u32 %r5, %r1, %r2, %r3;", kAllLanes, bind_arithmetic);
  lone.run("madc.hi.u32 %r6, %r1, %r2, %r4;", kAllLanes, bind_arithmetic);
  for (int lane = 0; lane < kLanes; ++lane) {
    const u64 expected =
        u64{lone.r(1)[lane]} * lone.r(2)[lane] + (u64{lone.r(4)[lane]} << 32 | lone.r(3)[lane]);
    EXPECT_EQ(lone.r(5)[lane], u32(expected));
    EXPECT_EQ(lone.r(6)[lane], u32(expected >> 32));
  }
}

TEST(BitOps, CountsAndSearches) {
  const auto count = [](u64 a, int bits) {
    u64 ones = 0;
    for (int i = 0; i < bits; ++i) ones += a >> i & 1;
    return ones;
  };
  const auto top = [](u64 a, int bits) {
    for (int i = bits - 1; i >= 0; --i) {
      if ((a >> i & 1) != 0) return i;
    }
    return -1;
  };
  expect_integer("popc.b32 %r0, %r1;", [&](u64 a, u64, u64) { return count(a, 32); });
  expect_integer("popc.b64 %r0, %d1;", [&](u64 a, u64, u64) { return count(a, 64); });
  expect_integer("clz.b32 %r0, %r1;", [&](u64 a, u64, u64) { return u64(31 - top(a, 32)); });
  expect_integer("clz.b64 %r0, %d1;", [&](u64 a, u64, u64) { return u64(63 - top(a, 64)); });
  expect_integer("bfind.u32 %r0, %r1;", [&](u64 a, u64, u64) { return u64{u32(top(a, 32))}; });
  expect_integer("bfind.s64 %r0, %d1;",
                 [&](u64 a, u64, u64) { return u64{u32(top(s64(a) < 0 ? ~a : a, 64))}; });
  expect_integer("bfind.shiftamt.s32 %r0, %r1;", [&](u64 a, u64, u64) {
    const int at = top(s32(a) < 0 ? ~a : a, 32);
    return u64{u32(at < 0 ? -1 : 31 - at)};
  });
  expect_integer("brev.b32 %r0, %r1;", [](u64 a, u64, u64) {
    u64 result = 0;
    for (int i = 0; i < 32; ++i) result |= (a >> i & 1) << (31 - i);
    return result;
  });
  expect_integer("brev.b64 %d0, %d1;", [](u64 a, u64, u64) {
    u64 result = 0;
    for (int i = 0; i < 64; ++i) result |= (a >> i & 1) << (63 - i);
    return result;
  });
}

TEST(BitOps, NthSetBitIsFoundBothWays) {
  const std::vector<Tuple> tuples{
      {0b1011010, 1, 1},       {0b1011010, 1, 3}, {0b1011010, 2, 1}, {0b1011010, 6, u64(-2)},
      {0b1011010, 0, u64(-1)}, {0b1011010, 3, 0}, {0b1011010, 2, 0}, {0b1011010, 1, 5}};
  const std::vector<u64> expected{1, 4, 3, 4, 0xffffffff, 3, 0xffffffff, 0xffffffff};
  EXPECT_EQ(run_on("fns.b32 %r0, %r1, %r2, %r3;", tuples, bind_arithmetic), expected);
}

// The loops of the PTX ISA, bit by bit.
u64 bit_field(u64 a, u32 position, u32 length, int bits, bool is_signed) {
  // The low bytes of the operands count; of 64 bits the GPU takes them whole.
  position = bits == 64 ? std::min(position, 1000u) : position & 0xff;
  length = bits == 64 ? std::min(length, 1000u) : length & 0xff;
  const u32 last = static_cast<u32>(bits) - 1;
  const u64 sign = !is_signed || length == 0 ? 0 : a >> std::min(position + length - 1, last) & 1;
  u64 result = 0;
  for (u32 i = 0; i <= last; ++i) {
    result |= (i < length && position + i <= last ? a >> (position + i) & 1 : sign) << i;
  }
  return result;
}

TEST(BitOps, FieldsAreExtractedWithTheirSign) {
  for (const auto& [name, bits, is_signed] : kIntegers) {
    if (bits < 32) continue;
    const std::string bank = bits == 64 ? "%d" : "%r";
    expect_integer(
        "bfe." + name + " " + bank + "0, " + bank + "1, %r2, %r3;",
        [&](u64 a, u64 b, u64 c) { return bit_field(a, u32(b), u32(c), bits, is_signed); });
  }
  std::vector<Tuple> tuples;
  for (u64 position = 0; position < 70; ++position) {
    for (u64 length = 0; length < 70; ++length)
      tuples.push_back({0x9abcdef012345678, position, length});
  }
  expect_all("bfe.s32 %r0, %r1, %r2, %r3;", tuples, bind_arithmetic,
             [](u64 a, u64 b, u64 c) { return bit_field(u32(a), u32(b), u32(c), 32, true); });
  expect_all("bfe.s64 %d0, %d1, %r2, %r3;", tuples, bind_arithmetic,
             [](u64 a, u64 b, u64 c) { return bit_field(a, u32(b), u32(c), 64, true); });
  expect_all("bfi.b32 %r0, %r1, 0x0f0f55aa, %r2, %r3;", tuples, bind_arithmetic,
             [](u64 a, u64 position, u64 length) {
               u64 result = 0x0f0f55aa;
               for (u64 i = 0; i < length && position + i <= 31; ++i) {
                 result = (result & ~(u64{1} << (position + i))) | (a >> i & 1) << (position + i);
               }
               return result;
             });
}

TEST(BitOps, MasksAndExtensionsWrapOrClamp) {
  const std::vector<Tuple> tuples{{4, 8, 0},  {30, 4, 0}, {32, 4, 0},
                                  {4, 32, 0}, {0, 0, 0},  {36, 40, 0}};
  EXPECT_EQ(run_on("bmsk.clamp.b32 %r0, %r1, %r2;", tuples, bind_arithmetic),
            (std::vector<u64>{0xff0, 0xc0000000, 0, 0xfffffff0, 0, 0}));
  EXPECT_EQ(run_on("bmsk.wrap.b32 %r0, %r1, %r2;", tuples, bind_arithmetic),
            (std::vector<u64>{0xff0, 0xc0000000, 0xf, 0, 0, 0xff0}));
  const std::vector<Tuple> widths{{0x8765f8f1, 4, 0},
                                  {0x8765f8f1, 8, 0},
                                  {0x8765f8f1, 0, 0},
                                  {0x8765f8f1, 32, 0},
                                  {0x8765f8f1, 36, 0}};
  EXPECT_EQ(run_on("szext.clamp.s32 %r0, %r1, %r2;", widths, bind_arithmetic),
            (std::vector<u64>{1, 0xfffffff1, 0, 0x8765f8f1, 0x8765f8f1}));
  EXPECT_EQ(run_on("szext.wrap.u32 %r0, %r1, %r2;", widths, bind_arithmetic),
            (std::vector<u64>{1, 0xf1, 0, 0, 1}));
}

TEST(BitOps, ShiftsBeyondTheWidth) {
  for (const auto& [name, bits, is_signed] : kIntegers) {
    const std::string bank = bits == 64 ? "%d" : "%r";
    const std::string operands = " " + bank + "0, " + bank + "1, %r2;";
    expect_integer("shl.b" + std::to_string(bits) + operands, [&](u64 a, u64 b, u64) {
      return u32(b) >= u32(bits) ? 0 : cut(I128(a) << u32(b), bits);
    });
    expect_integer("shr." + name + operands, [&](u64 a, u64 b, u64) {
      const u32 amount = std::min<u32>(u32(b), 100);
      return cut(number(a, bits, is_signed) >> amount, bits);
    });
  }
}

TEST(BitOps, FunnelShifts) {
  for (const bool clamps : {false, true}) {
    const auto by = [&](u64 c) { return clamps ? std::min<u32>(u32(c), 32) : u32(c) & 31; };
    const auto both = [](u64 a, u64 b) { return static_cast<U128>(u32(b)) << 32 | u32(a); };
    const std::string mode = clamps ? "clamp" : "wrap";
    expect_integer("shf.l." + mode + ".b32 %r0, %r1, %r2, %r3;",
                   [&](u64 a, u64 b, u64 c) { return u64{u32(both(a, b) << by(c) >> 32)}; });
    expect_integer("shf.r." + mode + ".b32 %r0, %r1, %r2, %r3;",
                   [&](u64 a, u64 b, u64 c) { return u64{u32(both(a, b) >> by(c))}; });
  }
}

TEST(BitOps, Lop3IsAnyFunctionOfThreeBits) {
  const std::vector<Tuple> tuples{{0xf0f0f0f0, 0xcccccccc, 0xaaaaaaaa}};
  for (int table = 0; table < 256; ++table) {
    const std::string text = "lop3.b32 %r0, %r1, %r2, %r3, " + std::to_string(table) + ";";
    EXPECT_EQ(run_on(text, tuples, bind_arithmetic)[0], u64(table) * 0x01010101u) << text;
  }
}

TEST(BitOps, Lop3CanGiveAPredicateAsWell) {
  LoneWarp lone;
  for (int lane = 0; lane < kLanes; ++lane) lone.r(1)[lane] = lane % 3 == 0 ? 0 : 8;
  lone.p(2) = 0x0000ffff;
  lone.p(1) = 0xf0000000;
  lone.run("lop3.and.b32 %r0|%p1, %r1, %r1, %r1, 0xc0, %p2;", 0x0fffffff, bind_arithmetic);
  for (int lane = 0; lane < kLanes; ++lane) {
    const bool expected = lane >= 28 || (lane % 3 != 0 && lane < 16);
    EXPECT_EQ(lone.p(1) >> lane & 1, expected) << lane;
  }
}

TEST(BitOps, LogicOfWords) {
  expect_integer("and.b32 %r0, %r1, %r2;", [](u64 a, u64 b, u64) { return u64{u32(a & b)}; });
  expect_integer("or.b64 %d0, %d1, %d2;", [](u64 a, u64 b, u64) { return a | b; });
  expect_integer("xor.b16 %r0, %r1, %r2;", [](u64 a, u64 b, u64) { return (a ^ b) & 0xffff; });
  expect_integer("not.b32 %r0, %r1;", [](u64 a, u64, u64) { return u64{u32(~a)}; });
  expect_integer("not.b16 %r0, %r1;", [](u64 a, u64, u64) { return ~a & 0xffff; });
  expect_integer("cnot.b64 %d0, %d1;", [](u64 a, u64, u64) { return u64{a == 0}; });
}

TEST(BitOps, LogicOfPredicates) {
  LoneWarp lone;
  lone.p(1) = 0x0f0f3355;
  lone.p(2) = 0x00ff5533;
  const auto result = [&](const std::string& text) {
    lone.p(0) = 0xdead0000;
    lone.run(text, 0x00ffffff, bind_arithmetic);
    EXPECT_EQ(lone.p(0) >> 24, 0xdeu) << text;
    return lone.p(0) & 0x00ffffff;
  };
  EXPECT_EQ(result("and.pred %p0, %p1, %p2;"), 0x0f0f3355u & 0xff5533u);
  EXPECT_EQ(result("or.pred %p0, %p1, !%p2;"), (0x0f0f3355u | ~0x00ff5533u) & 0xffffffu);
  EXPECT_EQ(result("xor.pred %p0, %p1, %p2;"), (0x0f0f3355u ^ 0x00ff5533u) & 0xffffffu);
  EXPECT_EQ(result("not.pred %p0, %p1;"), ~0x0f0f3355u & 0xffffffu);
  EXPECT_EQ(result("mov.pred %p0, %p2;"), 0xff5533u);
}

TEST(BitOps, PrmtWithAnImmediateIsThatWithARegister) {
  const std::vector<Tuple> tuples = tuples_of({0x03020100, 0x87f6a5b4}, 60);
  for (const u32 selector : {0x5410u, 0x7632u, 0x3210u, 0x0123u, 0x7654u, 0x9999u, 0xffffu}) {
    std::vector<Tuple> with_selector = tuples;
    for (Tuple& tuple : with_selector) tuple[2] = selector;
    EXPECT_EQ(run_on("prmt.b32 %r0, %r1, %r2, " + std::to_string(selector) + ";", tuples,
                     bind_arithmetic),
              run_on("prmt.b32 %r0, %r1, %r2, %r3;", with_selector, bind_arithmetic));
  }
}

TEST(BitOps, PrmtPicksBytes) {
  expect_integer("prmt.b32 %r0, %r1, %r2, %r3;", [](u64 a, u64 b, u64 c) {
    u64 result = 0;
    for (int i = 0; i < 4; ++i) {
      const u64 nibble = c >> (4 * i) & 15;
      const u64 byte = (nibble & 4 ? b : a) >> (8 * (nibble & 3)) & 255;
      result |= (nibble & 8 ? (byte & 128 ? 255 : 0) : byte) << (8 * i);
    }
    return result;
  });
  // Bytes are named by their place, so the result shows the selection.
  const std::vector<Tuple> tuples{{0x03020100, 0x07060504, 0},
                                  {0x03020100, 0x07060504, 1},
                                  {0x03020100, 0x07060504, 2},
                                  {0x03020100, 0x07060504, 3}};
  const std::map<std::string, std::vector<u64>> modes{
      {"f4e", {0x03020100, 0x04030201, 0x05040302, 0x06050403}},
      {"b4e", {0x05060700, 0x06070001, 0x07000102, 0x00010203}},
      {"rc8", {0x00000000, 0x01010101, 0x02020202, 0x03030303}},
      {"ecl", {0x03020100, 0x03020101, 0x03020202, 0x03030303}},
      {"ecr", {0x00000000, 0x01010100, 0x02020100, 0x03020100}},
      {"rc16", {0x01000100, 0x03020302, 0x01000100, 0x03020302}}};
  for (const auto& [mode, expected] : modes) {
    EXPECT_EQ(run_on("prmt.b32." + mode + " %r0, %r1, %r2, %r3;", tuples, bind_arithmetic),
              expected)
        << mode;
  }
}

TEST(IntegerOps, DotProducts) {
  for (const bool a_signed : {false, true}) {
    for (const bool b_signed : {false, true}) {
      const std::string types =
          std::string(a_signed ? ".s32" : ".u32") + (b_signed ? ".s32" : ".u32");
      const std::string operands = types + " %r0, %r1, %r2, %r3;";
      expect_integer("dp4a" + operands, [&](u64 a, u64 b, u64 c) {
        I128 sum = c;
        for (int i = 0; i < 4; ++i)
          sum += number(a >> 8 * i, 8, a_signed) * number(b >> 8 * i, 8, b_signed);
        return cut(sum, 32);
      });
      for (const int first : {0, 2}) {
        expect_integer((first == 0 ? "dp2a.lo" : "dp2a.hi") + operands, [&](u64 a, u64 b, u64 c) {
          I128 sum = c;
          for (int i = 0; i < 2; ++i)
            sum += number(a >> 16 * i, 16, a_signed) * number(b >> 8 * (first + i), 8, b_signed);
          return cut(sum, 32);
        });
      }
    }
  }
}

// --- floating point

void expect_float(const std::string& text, std::function<u64(float, float, float)> truth) {
  expect_all(text, tuples_of(kFloatEdges, 20000), bind_arithmetic, [&](u64 a, u64 b, u64 c) {
    return truth(float_of(u32(a)), float_of(u32(b)), float_of(u32(c)));
  });
}

const std::map<std::string, int> kModes{{"rn", 0}, {"rz", 1}, {"rm", 2}, {"rp", 3}};

TEST(FloatOps, EveryRoundingOfF32) {
  for (const auto& [name, mode] : kModes) {
    const int way = mode;
    expect_float("add." + name + ".f32 %r0, %r1, %r2;",
                 [=](float a, float b, float) { return rounded_sum(a, b, way); });
    expect_float("sub." + name + ".f32 %r0, %r1, %r2;",
                 [=](float a, float b, float) { return rounded_sum(a, -b, way); });
    expect_float("mul." + name + ".f32 %r0, %r1, %r2;",
                 [=](float a, float b, float) { return rounded_float(Quad{a} * Quad{b}, way); });
    expect_float("div." + name + ".f32 %r0, %r1, %r2;",
                 [=](float a, float b, float) { return rounded_float(Quad{a} / Quad{b}, way); });
    expect_float("rcp." + name + ".f32 %r0, %r1;",
                 [=](float a, float, float) { return rounded_float(Quad{1} / Quad{a}, way); });
    expect_float("sqrt." + name + ".f32 %r0, %r1;",
                 [=](float a, float, float) { return rounded_root(a, way); });
    expect_float("fma." + name + ".f32 %r0, %r1, %r2, %r3;",
                 [=](float a, float b, float c) { return rounded_fma(a, b, c, way); });
  }
}

TEST(FloatOps, DefaultRoundingIsNearest) {
  expect_float("add.f32 %r0, %r1, %r2;",
               [](float a, float b, float) { return rounded_sum(a, b, 0); });
  expect_float("mul.f32 %r0, %r1, %r2;",
               [](float a, float b, float) { return rounded_float(Quad{a} * Quad{b}, 0); });
}

TEST(FloatOps, FlushingTakesSubnormalsAsZeroOnBothSides) {
  const std::vector<Tuple> tuples{{0x00000001, 0x3f800000, 0},   // subnormal + 1
                                  {0x80000001, 0x80000000, 0},   // -subnormal + -0
                                  {0x00800001, 0x80800000, 0}};  // a difference below the normals
  EXPECT_EQ(run_on("add.ftz.f32 %r0, %r1, %r2;", tuples, bind_arithmetic),
            (std::vector<u64>{0x3f800000, 0x80000000, 0}));
  EXPECT_EQ(run_on("add.f32 %r0, %r1, %r2;", tuples, bind_arithmetic),
            (std::vector<u64>{0x3f800000, 0x80000001, 1}));
  EXPECT_EQ(
      run_on("mul.ftz.f32 %r0, %r1, %r2;", {{{0x80800000, 0x3f000000, 0}}}, bind_arithmetic)[0],
      0x80000000u);
  EXPECT_EQ(
      run_on("min.ftz.f32 %r0, %r1, %r2;", {{{0x80000001, 0x3f000000, 0}}}, bind_arithmetic)[0],
      0x80000000u);
  EXPECT_EQ(run_on("abs.ftz.f32 %r0, %r1;", {{{0x80000001, 0, 0}}}, bind_arithmetic)[0], 0u);
}

TEST(FloatOps, FlushingEndsWithItsInstruction) {
  const std::vector<Tuple> subnormal{{0x00000003, 0x00000004, 0}};
  run_on("add.rz.ftz.f32 %r0, %r1, %r2;", subnormal, bind_arithmetic);
  EXPECT_EQ(run_on("add.f32 %r0, %r1, %r2;", subnormal, bind_arithmetic)[0], 7u);
}

TEST(FloatOps, SaturationIsIntoZeroToOne) {
  const std::vector<Tuple> tuples{{0x40000000, 0, 0},
                                  {0xbf800000, 0, 0},
                                  {0x7fc00000, 0, 0},
                                  {0x80000000, 0x80000000, 0},
                                  {0x3e800000, 0, 0}};
  EXPECT_EQ(run_on("add.sat.f32 %r0, %r1, %r2;", tuples, bind_arithmetic),
            (std::vector<u64>{0x3f800000, 0, 0, 0, 0x3e800000}));
}

TEST(FloatOps, SignsOfF32) {
  expect_float("neg.f32 %r0, %r1;", [](float a, float, float) {
    return std::isnan(a) ? 0x7fffffffu : bits_of(a) ^ 0x80000000;
  });
  expect_float("abs.f32 %r0, %r1;", [](float a, float, float) {
    return std::isnan(a) ? 0x7fffffffu : bits_of(a) & 0x7fffffff;
  });
  expect_float("copysign.f32 %r0, %r1, %r2;", [](float a, float b, float) {
    return (bits_of(a) & 0x80000000) | (bits_of(b) & 0x7fffffff);
  });
}

TEST(FloatOps, MinAndMaxOrderZerosAndSkipNan) {
  const auto pick = [](float a, float b, bool is_max, bool nan_wins) -> u64 {
    if (std::isnan(a) && std::isnan(b)) return 0x7fffffff;
    if (std::isnan(a) || std::isnan(b)) {
      return nan_wins ? 0x7fffffffu : bits_of(std::isnan(a) ? b : a);
    }
    const auto below = [](float x, float y) { return x < y || (x == y && std::signbit(x)); };
    return bits_of(below(a, b) != is_max ? a : b);
  };
  for (const bool is_max : {false, true}) {
    const std::string op = is_max ? "max" : "min";
    expect_float(op + ".f32 %r0, %r1, %r2;",
                 [&](float a, float b, float) { return pick(a, b, is_max, false); });
    expect_float(op + ".NaN.f32 %r0, %r1, %r2;",
                 [&](float a, float b, float) { return pick(a, b, is_max, true); });
    expect_float(op + ".xorsign.abs.f32 %r0, %r1, %r2;", [&](float a, float b, float) {
      const u64 result = pick(std::fabs(a), std::fabs(b), is_max, false);
      return result == 0x7fffffff ? result : result | ((bits_of(a) ^ bits_of(b)) & 0x80000000);
    });
  }
}

TEST(FloatOps, ApproximateFunctionsAreWithinTwoUnits) {
  struct Case {
    std::string text;
    double (*function)(double);
    float least, most;
  };
  const std::vector<Case> cases{
      {"rcp.approx.f32", [](double x) { return 1 / x; }, 1e-30F, 1e30F},
      {"sqrt.approx.f32", [](double x) { return std::sqrt(x); }, 0, 1e30F},
      {"rsqrt.approx.f32", [](double x) { return 1 / std::sqrt(x); }, 1e-40F, 1e30F},
      {"sin.approx.f32", [](double x) { return std::sin(x); }, -3, 3},
      {"cos.approx.f32", [](double x) { return std::cos(x); }, -3, 3},
      {"lg2.approx.f32", [](double x) { return std::log2(x); }, 1e-40F, 1e30F},
      {"ex2.approx.f32", [](double x) { return std::exp2(x); }, -140, 120},
      {"tanh.approx.f32", [](double x) { return std::tanh(x); }, -4, 4}};
  std::mt19937 random(11);
  for (const Case& example : cases) {
    std::uniform_real_distribution<float> in_range(example.least, example.most);
    std::vector<Tuple> tuples;
    for (int i = 0; i < 4096; ++i) tuples.push_back({bits_of(in_range(random)), 0, 0});
    const std::vector<u64> results = run_on(example.text + " %r0, %r1;", tuples, bind_arithmetic);
    for (size_t i = 0; i < tuples.size(); ++i) {
      const auto expected = static_cast<float>(example.function(float_of(u32(tuples[i][0]))));
      EXPECT_NEAR(float_of(u32(results[i])), expected,
                  2 * std::fabs(std::nextafter(expected, 1e38F) - expected))
          << example.text << float_of(u32(tuples[i][0]));
    }
  }
}

TEST(FloatOps, PowersOfTwoAreRoundedOnce) {
  std::mt19937 random(17);
  std::uniform_real_distribution<float> in_range(-151, 128);
  std::vector<Tuple> tuples;
  for (int i = -160; i <= 130; ++i) tuples.push_back({bits_of(static_cast<float>(i)), 0, 0});
  for (int i = 0; i < 20000; ++i) tuples.push_back({bits_of(in_range(random)), 0, 0});
  expect_all("ex2.approx.f32 %r0, %r1;", tuples, bind_arithmetic, [](u64 a, u64, u64) {
    return u64{bits_of(static_cast<float>(std::exp2(double{float_of(u32(a))})))};
  });
}

TEST(FloatOps, ApproximateFunctionsAtTheirEdges) {
  const auto at = [](const std::string& text, u64 a, u64 b = 0) {
    return run_on(text, {{{a, b, 0}}}, bind_arithmetic)[0];
  };
  constexpr u64 kInfinity = 0x7f800000;
  EXPECT_EQ(at("rcp.approx.f32 %r0, %r1;", 0x80000000), 0xff800000u);
  EXPECT_EQ(at("rsqrt.approx.f32 %r0, %r1;", 0xbf800000), 0x7fffffffu);
  EXPECT_EQ(at("lg2.approx.f32 %r0, %r1;", 0), 0xff800000u);
  EXPECT_EQ(at("lg2.approx.f32 %r0, %r1;", 0xbf800000), 0x7fffffffu);
  EXPECT_EQ(at("sin.approx.f32 %r0, %r1;", kInfinity), 0x7fffffffu);
  EXPECT_EQ(at("ex2.approx.ftz.f32 %r0, %r1;", 0xc3040000), 0u);  // 2^-132
  EXPECT_EQ(at("ex2.approx.f32 %r0, %r1;", 0xc3040000), 0x20000u);
  EXPECT_EQ(at("ex2.approx.f32 %r0, %r1;", kInfinity), kInfinity);
  EXPECT_EQ(at("ex2.approx.f32 %r0, %r1;", 0xff800000), 0u);
  EXPECT_EQ(at("ex2.approx.f32 %r0, %r1;", 0xffc00001), 0x7fffffffu);
  EXPECT_EQ(at("ex2.approx.f16 %r0, %r1;", 0x3c00), 0x4000u);
  EXPECT_EQ(at("tanh.approx.f16 %r0, %r1;", 0xfc00), 0xbc00u);
  EXPECT_EQ(at("div.approx.f32 %r0, %r1, %r2;", 0x3f800000, 0x7f000000), 0u);
  EXPECT_EQ(at("div.approx.f32 %r0, %r1, %r2;", kInfinity, 0x7f000000), 0x7fffffffu);
  EXPECT_EQ(at("div.full.f32 %r0, %r1, %r2;", 0x7f000000, 0x7f000000), 0x3f800000u);
}

TEST(FloatOps, DoublesKeepTheirNan) {
  const auto at = [](const std::string& text, u64 a, u64 b) {
    return run_on(text, {{{a, b, 0}}}, bind_arithmetic)[0];
  };
  EXPECT_EQ(at("add.f64 %d0, %d1, %d2;", 0x3ff0000000000000, 0x3ca0000000000000),
            0x3ff0000000000000u);
  EXPECT_EQ(at("add.rp.f64 %d0, %d1, %d2;", 0x3ff0000000000000, 0x3ca0000000000000),
            0x3ff0000000000001u);
  EXPECT_EQ(at("mul.f64 %d0, %d1, %d2;", 0x7ff0000000000000, 0), 0xfff8000000000000u);
  EXPECT_EQ(at("mul.f64 %d0, %d1, %d2;", 0x7ff0000000001234, 0), 0x7ff8000000001234u);
  EXPECT_EQ(at("max.f64 %d0, %d1, %d2;", 0x7ff8000000001234, 0x4000000000000000),
            0x4000000000000000u);
  EXPECT_EQ(at("rcp.approx.ftz.f64 %d0, %d1;", 0x4000000012345678, 0), 0x3fe0000000000000u);
  EXPECT_EQ(at("div.rn.f64 %d0, %d1, %d2;", 0x3ff0000000000000, 0x4008000000000000),
            0x3fd5555555555555u);
}

// --- f16 and bf16

// Triples of 16-bit values, among them all the special ones.
std::vector<Tuple> tuples16() {
  const std::vector<u64> edges{0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x3bff, 0x3c00,
                               0x3c01, 0xbc00, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x7c01,
                               0x3f80, 0x3f81, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x0080, 0x007f};
  std::vector<Tuple> tuples = tuples_of(edges, 60000);
  for (Tuple& tuple : tuples) {
    for (u64& value : tuple) value &= 0xffff;
  }
  return tuples;
}

TEST(HalfOps, ArithmeticIsRoundedOnce) {
  for (const bool is_brain : {false, true}) {
    const SmallFormat format(is_brain ? 8 : 5);
    const std::string type = is_brain ? ".bf16" : ".f16";
    const auto check = [&](const std::string& text, auto truth) {
      expect_all(text, tuples16(), bind_arithmetic, [&](u64 a, u64 b, u64 c) -> u64 {
        return truth(format.value(u32(a)), format.value(u32(b)), format.value(u32(c)));
      });
    };
    check("add.rn" + type + " %r0, %r1, %r2;",
          [&](Quad a, Quad b, Quad) { return format.nearest(a + b); });
    check("sub.rn" + type + " %r0, %r1, %r2;",
          [&](Quad a, Quad b, Quad) { return format.nearest(a - b); });
    check("mul.rn" + type + " %r0, %r1, %r2;",
          [&](Quad a, Quad b, Quad) { return format.nearest(a * b); });
    check("fma.rn" + type + " %r0, %r1, %r2, %r3;",
          [&](Quad a, Quad b, Quad c) { return format.nearest_sum(a * b, c); });
    check("fma.rn.relu" + type + " %r0, %r1, %r2, %r3;", [&](Quad a, Quad b, Quad c) {
      const u64 bits = format.nearest_sum(a * b, c);
      return (bits & 0x8000) != 0 ? 0 : bits;
    });
    check("neg" + type + " %r0, %r1;", [&](Quad a, Quad, Quad) { return format.nearest(-a); });
  }
}

TEST(HalfOps, PairsAreTwoOfOne) {
  std::vector<Tuple> pairs = tuples_of({0x3c00bc00, 0x7c00fc00, 0x00017e00, 0x3f80c000}, 2000);
  std::vector<Tuple> low = pairs;
  std::vector<Tuple> high = pairs;
  for (size_t i = 0; i < pairs.size(); ++i) {
    for (size_t j = 0; j < 3; ++j) {
      low[i][j] &= 0xffff;
      high[i][j] = high[i][j] >> 16 & 0xffff;
    }
  }
  for (const std::string op : {"fma.rn", "fma.rn.relu", "fma.rn.sat", "min", "max.NaN", "abs"}) {
    for (const std::string type : {".f16", ".bf16"}) {
      const std::string operands = op[0] == 'f'   ? " %r0, %r1, %r2, %r3;"
                                   : op[0] == 'a' ? " %r0, %r1;"
                                                  : " %r0, %r1, %r2;";
      const std::vector<u64> both = run_on(op + type + "x2" + operands, pairs, bind_arithmetic);
      const std::vector<u64> lows = run_on(op + type + operands, low, bind_arithmetic);
      const std::vector<u64> highs = run_on(op + type + operands, high, bind_arithmetic);
      for (size_t i = 0; i < pairs.size(); ++i)
        EXPECT_EQ(both[i], highs[i] << 16 | lows[i]) << op << type;
    }
  }
}

TEST(HalfOps, FlushingIsForSubnormalHalves) {
  EXPECT_EQ(run_on("add.ftz.f16 %r0, %r1, %r2;", {{{0x0001, 0x8000, 0}}}, bind_arithmetic)[0], 0u);
  EXPECT_EQ(run_on("mul.ftz.f16 %r0, %r1, %r2;", {{{0x8400, 0x3800, 0}}}, bind_arithmetic)[0],
            0x8000u);
  EXPECT_EQ(run_on("mul.f16 %r0, %r1, %r2;", {{{0x8400, 0x3800, 0}}}, bind_arithmetic)[0], 0x8200u);
}

// --- comparisons and choices

TEST(Compare, EveryComparisonOfFloats) {
  struct Case {
    std::string name;
    bool (*ordered)(double, double);
    bool unordered;
  };
  const std::vector<Case> cases{{"eq", [](double a, double b) { return a == b; }, false},
                                {"ne", [](double a, double b) { return a != b; }, false},
                                {"lt", [](double a, double b) { return a < b; }, false},
                                {"le", [](double a, double b) { return a <= b; }, false},
                                {"gt", [](double a, double b) { return a > b; }, false},
                                {"ge", [](double a, double b) { return a >= b; }, false},
                                {"equ", [](double a, double b) { return a == b; }, true},
                                {"neu", [](double a, double b) { return a != b; }, true},
                                {"ltu", [](double a, double b) { return a < b; }, true},
                                {"leu", [](double a, double b) { return a <= b; }, true},
                                {"gtu", [](double a, double b) { return a > b; }, true},
                                {"geu", [](double a, double b) { return a >= b; }, true},
                                {"num", [](double, double) { return true; }, false},
                                {"nan", [](double, double) { return false; }, true}};
  const double nan = std::nan("");
  const std::vector<double> values{0.0, -0.0, 1.0, -1.0, 2.5, HUGE_VAL, -HUGE_VAL, nan};
  const SmallFormat half(5);
  for (const Case& example : cases) {
    for (const double a : values) {
      for (const double b : values) {
        LoneWarp lone;
        const bool expected =
            std::isnan(a) || std::isnan(b) ? example.unordered : example.ordered(a, b);
        const u32 all = expected ? kAllLanes : 0;
        for (int lane = 0; lane < kLanes; ++lane) {
          lone.r(1)[lane] = bits_of(static_cast<float>(a));
          lone.r(2)[lane] = bits_of(static_cast<float>(b));
          lone.r(3)[lane] = half.nearest(Quad{a});
          lone.r(4)[lane] = half.nearest(Quad{b});
          lone.d(1)[lane] = std::bit_cast<u64>(a);
          lone.d(2)[lane] = std::bit_cast<u64>(b);
        }
        lone.p(0) = lone.p(2) = lone.p(4) = ~all;
        lone.run("setp." + example.name + ".f32 %p0|%p1, %r1, %r2;", kAllLanes, bind_arithmetic);
        lone.run("setp." + example.name + ".f64 %p2, %d1, %d2;", kAllLanes, bind_arithmetic);
        lone.run("setp." + example.name + ".f16 %p4, %r3, %r4;", kAllLanes, bind_arithmetic);
        EXPECT_EQ(lone.p(0), all) << example.name << " " << a << " " << b;
        EXPECT_EQ(lone.p(1), ~all);
        EXPECT_EQ(lone.p(2), all);
        EXPECT_EQ(lone.p(4), all);
      }
    }
  }
}

TEST(Compare, IntegersByTheirSign) {
  LoneWarp lone;
  for (int lane = 0; lane < kLanes; ++lane) {
    lone.r(1)[lane] = static_cast<u32>(lane) - 16;
    lone.d(1)[lane] = static_cast<u64>(lane) - 16;
    lone.d(2)[lane] = 3;
  }
  const auto result = [&](const std::string& text) {
    lone.p(0) = 0;
    lone.run(text, kAllLanes, bind_arithmetic);
    return lone.p(0);
  };
  EXPECT_EQ(result("setp.lt.s32 %p0, %r1, 3;"), 0x0007ffffu);
  EXPECT_EQ(result("setp.lt.u32 %p0, %r1, 3;"), 0x00070000u);
  EXPECT_EQ(result("setp.lo.u32 %p0, %r1, 3;"), 0x00070000u);
  EXPECT_EQ(result("setp.hs.u32 %p0, %r1, 3;"), 0xfff8ffffu);
  EXPECT_EQ(result("setp.ge.s64 %p0, %d1, %d2;"), 0xfff80000u);
  EXPECT_EQ(result("setp.gt.u64 %p0, %d1, %d2;"), 0xfff0ffffu);
  EXPECT_EQ(result("setp.eq.b16 %p0, %r1, 0xfff1;"), 0x00000002u);
  EXPECT_EQ(result("setp.le.s16 %p0, %r1, 0xfff1;"), 0x00000003u);
}

TEST(Compare, CombinesWithAPredicateInBothTargets) {
  LoneWarp lone;
  for (int lane = 0; lane < kLanes; ++lane) lone.r(1)[lane] = static_cast<u32>(lane);
  const u32 c = 0x0ff0f00f;
  const u32 less = 0x000fffff;
  for (const std::string op : {"and", "or", "xor"}) {
    for (const bool negated : {false, true}) {
      lone.p(2) = c;
      lone.p(0) = lone.p(1) = 0x80000001;
      lone.run("setp.lt." + op + ".s32 %p0|%p1, %r1, 20, " + (negated ? "!%p2;" : "%p2;"),
               0x7ffffffe, bind_arithmetic);
      const auto combine = [&](u32 bits) {
        const u32 with = negated ? ~c : c;
        const u32 result = op == "and" ? bits & with : op == "or" ? bits | with : bits ^ with;
        return (result & 0x7ffffffe) | 0x80000001;
      };
      EXPECT_EQ(lone.p(0), combine(less)) << op;
      EXPECT_EQ(lone.p(1), combine(~less)) << op;
    }
  }
}

TEST(Compare, ATargetMayBeItsOwnPredicate) {
  LoneWarp lone;
  for (int lane = 0; lane < kLanes; ++lane) lone.r(1)[lane] = static_cast<u32>(lane);
  lone.p(0) = 0x00ff00ff;
  lone.run("setp.lt.and.s32 %p0|%p1, %r1, 16, %p0;", kAllLanes, bind_arithmetic);
  EXPECT_EQ(lone.p(0), 0x000000ffu);
  EXPECT_EQ(lone.p(1), 0x00ff0000u);
}

TEST(Compare, PairsOfHalvesHaveAPredicateEach) {
  LoneWarp lone;
  for (int lane = 0; lane < kLanes; ++lane) {
    lone.r(1)[lane] = lane % 2 == 0 ? 0x3c004000 : 0x40003c00;
    lone.r(2)[lane] = 0x3e003e00;  // 1.5
  }
  lone.run("setp.gt.f16x2 %p0|%p1, %r1, %r2;", kAllLanes, bind_arithmetic);
  EXPECT_EQ(lone.p(0), 0x55555555u);
  EXPECT_EQ(lone.p(1), 0xaaaaaaaau);
}

TEST(Compare, FlushedSubnormalsAreEqual) {
  LoneWarp lone;
  for (int lane = 0; lane < kLanes; ++lane) {
    lone.r(1)[lane] = 1;
    lone.r(2)[lane] = 0x80000005;
  }
  lone.run("setp.eq.ftz.f32 %p0, %r1, %r2;", kAllLanes, bind_arithmetic);
  lone.run("setp.eq.f32 %p1, %r1, %r2;", kAllLanes, bind_arithmetic);
  EXPECT_EQ(lone.p(0), kAllLanes);
  EXPECT_EQ(lone.p(1), 0u);
}

TEST(Compare, SetWritesWhatItsTypeCallsTrue) {
  const std::vector<Tuple> tuples{{0x40000000, 0x3f800000, 0}, {0x3f800000, 0x40000000, 0}};
  EXPECT_EQ(run_on("set.gt.f32.f32 %r0, %r1, %r2;", tuples, bind_arithmetic),
            (std::vector<u64>{0x3f800000, 0}));
  EXPECT_EQ(run_on("set.gt.u32.f32 %r0, %r1, %r2;", tuples, bind_arithmetic),
            (std::vector<u64>{0xffffffff, 0}));
  EXPECT_EQ(run_on("set.lt.f16.f16 %r0, %r1, %r2;", {{{0x3c00, 0x4000, 0}}}, bind_arithmetic)[0],
            0x3c00u);
  EXPECT_EQ(run_on("set.lt.f16x2.f16x2 %r0, %r1, %r2;", {{{0x3c005000, 0x40004000, 0}}},
                   bind_arithmetic)[0],
            0x3c000000u);
}

TEST(Compare, SelectionsTakeOneOfTwo) {
  LoneWarp lone;
  for (int lane = 0; lane < kLanes; ++lane) {
    lone.r(1)[lane] = 100 + static_cast<u32>(lane);
    lone.d(1)[lane] = 1000 + static_cast<u64>(lane);
  }
  lone.p(0) = 0xf00f1234;
  lone.run("selp.b32 %r0, %r1, 7, !%p0;", kAllLanes, bind_arithmetic);
  lone.run("selp.f64 %d0, %d1, %d2, %p0;", kAllLanes, bind_arithmetic);
  for (int lane = 0; lane < kLanes; ++lane) {
    const bool set = (lone.p(0) >> lane & 1) != 0;
    EXPECT_EQ(lone.r(0)[lane], set ? 7 : 100 + static_cast<u32>(lane));
    EXPECT_EQ(lone.d(0)[lane], set ? 1000 + static_cast<u64>(lane) : 0);
  }
  const std::vector<Tuple> tuples{
      {5, 6, 0}, {5, 6, 0xffffffff}, {5, 6, 0x80000000}, {5, 6, 0x80000001}};
  EXPECT_EQ(run_on("slct.u32.s32 %r0, %r1, %r2, %r3;", tuples, bind_arithmetic),
            (std::vector<u64>{5, 6, 6, 6}));
  EXPECT_EQ(run_on("slct.u32.f32 %r0, %r1, %r2, %r3;", tuples, bind_arithmetic),
            (std::vector<u64>{5, 6, 5, 6}));
  EXPECT_EQ(run_on("slct.ftz.u32.f32 %r0, %r1, %r2, %r3;", tuples, bind_arithmetic),
            (std::vector<u64>{5, 6, 5, 5}));
}

TEST(Compare, Properties) {
  LoneWarp lone;
  const std::vector<u32> values{0, 0x3f800000, 1, 0x7f800000, 0x7fc00000};
  for (int lane = 0; lane < kLanes; ++lane) lone.r(1)[lane] = values[static_cast<size_t>(lane) % 5];
  const std::map<std::string, u32> expected{{"finite", 0b00111}, {"infinite", 0b01000},
                                            {"number", 0b01111}, {"notanumber", 0b10000},
                                            {"normal", 0b00011}, {"subnormal", 0b00100}};
  for (const auto& [name, bits] : expected) {
    lone.run("testp." + name + ".f32 %p0, %r1;", kAllLanes, bind_arithmetic);
    EXPECT_EQ(lone.p(0) & 31, bits) << name;
  }
}

// --- moves

TEST(Move, PacksAndUnpacksTheFirstPartLowest) {
  EXPECT_EQ(run_on("mov.b64 %d0, {%r1, %r2};", {{{0x11111111, 0x22222222, 0}}}, bind_arithmetic)[0],
            0x2222222211111111u);
  EXPECT_EQ(run_on("mov.b32 %r0, {%r1, %r2};", {{{0xff1111, 0xff2222, 0}}}, bind_arithmetic)[0],
            0x22221111u);
  EXPECT_EQ(run_on("mov.b64 %d0, {%r1, %r2, %r3, %r1};", {{{1, 2, 3}}}, bind_arithmetic)[0],
            0x0001000300020001u);
  EXPECT_EQ(run_on("mov.b64 {_, %r0}, %d1;", {{{0x1111111122222222, 0, 0}}}, bind_arithmetic)[0],
            0x11111111u);
  EXPECT_EQ(run_on("mov.b32 {%r0, %r4}, %r1;", {{{0x11112222, 0, 0}}}, bind_arithmetic)[0],
            0x2222u);
  EXPECT_EQ(run_on("mov.f64 %d0, %d1;", {{{0x1234567812345678, 0, 0}}}, bind_arithmetic)[0],
            0x1234567812345678u);
}

TEST(Move, AVectorOfAnotherSizeIsRefused) {
  LoneWarp lone;
  EXPECT_THROW(lone.run("mov.b64 %d0, {%r1, %r2, %r3};", kAllLanes, bind_arithmetic), Error);
}

TEST(Arithmetic, WhatIsNotKnownIsRefused) {
  LoneWarp lone;
  for (const std::string text :
       {"add.rn.frob.f32 %r0, %r1, %r2;", "mul.f16.rz %r0, %r1, %r2;",
        "div.full.f64 %d0, %d1, %d2;", "add.sat.u32 %r0, %r1, %r2;", "setp.num.s32 %p0, %r1, %r2;",
        "mul.s32 %r0, %r1, %r2;", "bfe.u16 %r0, %r1, %r2, %r3;", "add.s32 %r0, %r1;"}) {
    EXPECT_THROW(lone.run(text, kAllLanes, bind_arithmetic), Error) << text;
  }
}

}  // namespace
}  // namespace kiln::runtime::sim
