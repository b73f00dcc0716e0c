#include "tests/sim/instructions.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <map>
#include <span>
#include <sstream>

#include "jit/base/hash.h"

namespace kiln::runtime::sim {
namespace {

constexpr int kThreads = 128;
constexpr size_t kMostCombinations = 8192;

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> result;
  for (std::string word; stream >> word;) result.push_back(word);
  return result;
}

std::vector<uint64_t> float_pool(int exponent_bits, int mantissa_bits, int random) {
  const uint64_t one = 1;
  const int bits = 1 + exponent_bits + mantissa_bits;
  const uint64_t sign = one << (bits - 1);
  const uint64_t infinity = ((one << exponent_bits) - 1) << mantissa_bits;
  const uint64_t bias = (one << (exponent_bits - 1)) - 1;
  const uint64_t mantissa = (one << mantissa_bits) - 1;
  std::vector<uint64_t> pool;
  const auto both = [&](uint64_t value) {
    pool.push_back(value);
    pool.push_back(value | sign);
  };
  both(0);
  both(1);                     // least subnormal
  both(mantissa);              // largest subnormal
  both(one << mantissa_bits);  // least normal
  both(infinity - 1);          // largest
  both(infinity);
  both(infinity | 1);           // signalling NaN
  both(infinity | mantissa);    // quiet NaN
  both(bias << mantissa_bits);  // 1
  both((bias << mantissa_bits) + 1);
  both((bias << mantissa_bits) - 1);
  both(((bias + 1) << mantissa_bits) | (mantissa / 3));
  both((bias - 1) << mantissa_bits);  // 0.5
  both(((bias - 1) << mantissa_bits) | (one << (mantissa_bits - 1)));
  both((bias + static_cast<uint64_t>(mantissa_bits)) << mantissa_bits);
  for (int i = 0; i < random; ++i) {
    const uint64_t draw =
        operand_draw(static_cast<uint64_t>(i) * 977 + static_cast<uint64_t>(bits));
    pool.push_back(draw & ((sign - 1) | sign));
    // Near one, where sums and products are interesting.
    const uint64_t exponent = bias - 4 + draw % 9;
    pool.push_back((draw >> 20 & (mantissa | sign) & ~infinity) | exponent << mantissa_bits);
  }
  return pool;
}

std::vector<uint64_t> integer_pool(int bits, int random) {
  const uint64_t all = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  std::vector<uint64_t> pool = {0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 255, 0x80, 0x7f};
  pool.push_back(all);
  pool.push_back(all - 1);
  pool.push_back(all >> 1);
  pool.push_back((all >> 1) + 1);
  pool.push_back((all >> 1) + 2);
  pool.push_back(0xffff & all);
  pool.push_back(0x8000 & all);
  for (int i = 0; i < random; ++i) {
    const uint64_t draw =
        operand_draw(static_cast<uint64_t>(i) + static_cast<uint64_t>(bits) * 131);
    pool.push_back(draw & all);
    pool.push_back((draw >> (draw % 61)) & all);
  }
  for (uint64_t& value : pool) value &= all;
  return pool;
}

// From -pi to pi, both included, and what is small.
std::vector<uint64_t> angle_pool(int random) {
  std::vector<uint64_t> pool;
  const auto both = [&](float value) {
    pool.push_back(std::bit_cast<uint32_t>(value));
    pool.push_back(std::bit_cast<uint32_t>(-value));
  };
  for (const float value : {0.0F, 0x1p-149F, 0x1p-126F, 0x1p-40F, 0x1p-12F, 0.5F, 1.0F, 2.0F, 3.0F})
    both(value);
  for (int quarter = 1; quarter <= 4; ++quarter)
    both(std::min(static_cast<float>(quarter) * 0.78539816F, 3.14159250F));
  for (int i = 0; i < random; ++i)
    both(static_cast<float>(operand_draw(static_cast<uint64_t>(i)) >> 40) * 0x1p-24F * 3.14159250F);
  return pool;
}

std::string register_name(const std::string& type, char letter) {
  return fmt::format("%{}{}", type == "pred" ? "p" : "x", letter);
}
std::string register_type(const std::string& type) {
  if (type == "pred") return "pred";
  return fmt::format("b{}", std::max(operand_bits(type), 16));
}

void add(std::vector<InstructionCase>& list, const std::string& text, const std::string& types) {
  list.push_back({.text = text, .types = types});
}
void add_near(std::vector<InstructionCase>& list, const std::string& text, const std::string& types,
              double ulps) {
  list.push_back({.text = text, .types = types, .is_exact = false, .ulps = ulps});
}

void add_integers(std::vector<InstructionCase>& list) {
  for (const char* type : {"u16", "s16", "u32", "s32", "u64", "s64"}) {
    const std::string t = type;
    const std::string b = "b" + t.substr(1);
    for (const char* op : {"add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max"})
      add(list, fmt::format("{}.{} D, A, B", op, t), fmt::format("{0} {0} {0}", t));
    add(list, fmt::format("mad.lo.{} D, A, B, C", t), fmt::format("{0} {0} {0} {0}", t));
    add(list, fmt::format("mad.hi.{} D, A, B, C", t), fmt::format("{0} {0} {0} {0}", t));
    add(list, fmt::format("sad.{} D, A, B, C", t), fmt::format("{0} {0} {0} {0}", t));
    add(list, fmt::format("shr.{} D, A, B", t), fmt::format("{0} {0} u32", t));
    if (t[0] == 's') {
      add(list, fmt::format("abs.{} D, A", t), fmt::format("{0} {0}", t));
      add(list, fmt::format("neg.{} D, A", t), fmt::format("{0} {0}", t));
    } else {
      add(list, fmt::format("shl.{} D, A, B", b), fmt::format("{0} {0} u32", b));
      add(list, fmt::format("not.{} D, A", b), fmt::format("{0} {0}", b));
      add(list, fmt::format("cnot.{} D, A", b), fmt::format("{0} {0}", b));
      for (const char* op : {"and", "or", "xor"})
        add(list, fmt::format("{}.{} D, A, B", op, b), fmt::format("{0} {0} {0}", b));
    }
    for (const char* compare : {"eq", "ne", "lt", "le", "gt", "ge"})
      add(list, fmt::format("setp.{}.{} D, A, B", compare, t), fmt::format("pred {0} {0}", t));
  }
  for (const char* type : {"u16", "s16", "u32", "s32"}) {
    const std::string t = type;
    const std::string wide = t == "u16" ? "u32" : t == "s16" ? "s32" : t == "u32" ? "u64" : "s64";
    add(list, fmt::format("mul.wide.{} D, A, B", t), fmt::format("{0} {1} {1}", wide, t));
    add(list, fmt::format("mad.wide.{} D, A, B, C", t), fmt::format("{0} {1} {1} {0}", wide, t));
  }
  for (const char* type : {"u32", "s32"}) {
    add(list, fmt::format("mul24.lo.{} D, A, B", type), fmt::format("{0} {0} {0}", type));
    add(list, fmt::format("mul24.hi.{} D, A, B", type), fmt::format("{0} {0} {0}", type));
    add(list, fmt::format("mad24.lo.{} D, A, B, C", type), fmt::format("{0} {0} {0} {0}", type));
    add(list, fmt::format("set.lt.u32.{} D, A, B", type), fmt::format("u32 {0} {0}", type));
    add(list, fmt::format("slct.u32.s32 D, A, B, C"), "u32 u32 u32 s32");
  }
  add(list, "add.sat.s32 D, A, B", "s32 s32 s32");
  add(list, "sub.sat.s32 D, A, B", "s32 s32 s32");
  for (const char* bits : {"b32", "b64"}) {
    add(list, fmt::format("popc.{} D, A", bits), fmt::format("u32 {}", bits));
    add(list, fmt::format("clz.{} D, A", bits), fmt::format("u32 {}", bits));
    add(list, fmt::format("brev.{} D, A", bits), fmt::format("{0} {0}", bits));
    add(list, fmt::format("bfi.{} D, A, B, C, 9", bits), fmt::format("{0} {0} {0} u32", bits));
    add(list, fmt::format("bfi.{} D, A, B, 5, C", bits), fmt::format("{0} {0} {0} u32", bits));
  }
  for (const char* type : {"u32", "s32", "u64", "s64"}) {
    add(list, fmt::format("bfind.{} D, A", type), fmt::format("u32 {}", type));
    add(list, fmt::format("bfind.shiftamt.{} D, A", type), fmt::format("u32 {}", type));
    add(list, fmt::format("bfe.{} D, A, B, C", type), fmt::format("{0} {0} u32 u32", type));
  }
  for (const char* mode : {"", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"})
    add(list, fmt::format("prmt.b32{} D, A, B, C", mode), "b32 b32 b32 b32");
  for (const char* table : {"0x96", "0xe8", "0x1b", "0x80"})
    add(list, fmt::format("lop3.b32 D, A, B, C, {}", table), "b32 b32 b32 b32");
  for (const char* kind : {"l.wrap", "l.clamp", "r.wrap", "r.clamp"})
    add(list, fmt::format("shf.{}.b32 D, A, B, C", kind), "b32 b32 b32 u32");
  for (const char* types : {"u32.u32", "s32.s32", "u32.s32", "s32.u32"}) {
    add(list, fmt::format("dp4a.{} D, A, B, C", types), "b32 b32 b32 b32");
    add(list, fmt::format("dp2a.lo.{} D, A, B, C", types), "b32 b32 b32 b32");
    add(list, fmt::format("dp2a.hi.{} D, A, B, C", types), "b32 b32 b32 b32");
  }
  add(list, "fns.b32 D, A, B, C", "b32 b32 u32 s32");
  add(list, "{ .reg .b32 t; add.cc.u32 t, A, B; addc.u32 D, C, 0; }", "u32 u32 u32 u32");
  add(list, "{ .reg .b32 t; sub.cc.u32 t, A, B; subc.u32 D, C, 0; }", "u32 u32 u32 u32");
  add(list, "{ .reg .b64 t; add.cc.u64 t, A, B; addc.u64 D, C, 0; }", "u64 u64 u64 u64");
  add(list, "{ .reg .b32 t; mad.lo.cc.u32 t, A, B, C; madc.hi.u32 D, A, B, 0; }",
      "u32 u32 u32 u32");
  add(list, "selp.b32 D, A, B, C", "b32 b32 b32 pred");
  add(list, "selp.b64 D, A, B, C", "b64 b64 b64 pred");
  add(list, "{ .reg .pred q; setp.lt.and.s32 q|D, A, B, C; }", "pred s32 s32 pred");
  add(list, "setp.ge.xor.u32 D, A, B, !C", "pred u32 u32 pred");
}

void add_floats(std::vector<InstructionCase>& list) {
  for (const char* type : {"f32", "f64"}) {
    const std::string t = type;
    for (const char* rounding : {".rn", ".rz", ".rm", ".rp"}) {
      for (const char* op : {"add", "sub", "mul", "div"})
        add(list, fmt::format("{}{}.{} D, A, B", op, rounding, t), fmt::format("{0} {0} {0}", t));
      add(list, fmt::format("fma{}.{} D, A, B, C", rounding, t), fmt::format("{0} {0} {0} {0}", t));
      add(list, fmt::format("sqrt{}.{} D, A", rounding, t), fmt::format("{0} {0}", t));
      add(list, fmt::format("rcp{}.{} D, A", rounding, t), fmt::format("{0} {0}", t));
    }
    add(list, fmt::format("min.{} D, A, B", t), fmt::format("{0} {0} {0}", t));
    add(list, fmt::format("max.{} D, A, B", t), fmt::format("{0} {0} {0}", t));
    add(list, fmt::format("abs.{} D, A", t), fmt::format("{0} {0}", t));
    add(list, fmt::format("neg.{} D, A", t), fmt::format("{0} {0}", t));
    add(list, fmt::format("copysign.{} D, A, B", t), fmt::format("{0} {0} {0}", t));
    for (const char* compare : {"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu",
                                "gtu", "geu", "num", "nan"})
      add(list, fmt::format("setp.{}.{} D, A, B", compare, t), fmt::format("pred {0} {0}", t));
    for (const char* kind : {"finite", "infinite", "number", "notanumber", "normal", "subnormal"})
      add(list, fmt::format("testp.{}.{} D, A", kind, t), fmt::format("pred {}", t));
    add(list, fmt::format("set.gt.f32.{} D, A, B", t), fmt::format("f32 {0} {0}", t));
  }
  for (const char* op : {"add", "sub", "mul"}) {
    add(list, fmt::format("{}.ftz.f32 D, A, B", op), "f32 f32 f32");
    add(list, fmt::format("{}.sat.f32 D, A, B", op), "f32 f32 f32");
    add(list, fmt::format("{}.rz.ftz.sat.f32 D, A, B", op), "f32 f32 f32");
  }
  add(list, "fma.rn.ftz.f32 D, A, B, C", "f32 f32 f32 f32");
  add(list, "fma.rn.sat.f32 D, A, B, C", "f32 f32 f32 f32");
  add(list, "min.NaN.f32 D, A, B", "f32 f32 f32");
  add(list, "max.NaN.f32 D, A, B", "f32 f32 f32");
  add(list, "min.ftz.f32 D, A, B", "f32 f32 f32");
  add(list, "abs.ftz.f32 D, A", "f32 f32");
  add(list, "setp.lt.ftz.f32 D, A, B", "pred f32 f32");
  add(list, "div.rn.ftz.f32 D, A, B", "f32 f32 f32");
  add(list, "sqrt.rn.ftz.f32 D, A", "f32 f32");
  for (const char* type : {"f16", "bf16", "f16x2", "bf16x2"}) {
    const std::string t = type;
    add(list, fmt::format("fma.rn.{} D, A, B, C", t), fmt::format("{0} {0} {0} {0}", t));
    add(list, fmt::format("fma.rn.relu.{} D, A, B, C", t), fmt::format("{0} {0} {0} {0}", t));
    for (const char* op : {"min", "max", "min.NaN", "max.NaN"})
      add(list, fmt::format("{}.{} D, A, B", op, t), fmt::format("{0} {0} {0}", t));
    add(list, fmt::format("abs.{} D, A", t), fmt::format("{0} {0}", t));
    add(list, fmt::format("neg.{} D, A", t), fmt::format("{0} {0}", t));
    if (t[0] == 'b') continue;  // sm_90
    for (const char* op : {"add", "sub", "mul", "add.rn.sat", "add.ftz", "mul.ftz.sat"})
      add(list, fmt::format("{}.{} D, A, B", op, t), fmt::format("{0} {0} {0}", t));
    add(list, fmt::format("fma.rn.ftz.sat.{} D, A, B, C", t), fmt::format("{0} {0} {0} {0}", t));
  }
  for (const char* compare : {"lt", "equ", "nan", "ge"}) {
    add(list, fmt::format("setp.{}.f16 D, A, B", compare), "pred f16 f16");
    add(list, fmt::format("{{ .reg .pred q; setp.{}.f16x2 D|q, A, B; }}", compare),
        "pred f16x2 f16x2");
  }
}

void add_approximate(std::vector<InstructionCase>& list) {
  for (const char* ftz : {"", ".ftz"}) {
    add_near(list, fmt::format("rcp.approx{}.f32 D, A", ftz), "f32 f32", 2);
    add_near(list, fmt::format("sqrt.approx{}.f32 D, A", ftz), "f32 f32", 4);
    add_near(list, fmt::format("rsqrt.approx{}.f32 D, A", ftz), "f32 f32", 4);
    add_near(list, fmt::format("ex2.approx{}.f32 D, A", ftz), "f32 f32", 4);
    add_near(list, fmt::format("div.approx{}.f32 D, A, B", ftz), "f32 f32 f32", 4);
    add_near(list, fmt::format("div.full{}.f32 D, A, B", ftz), "f32 f32 f32", 4);
  }
  add_near(list, "lg2.approx.f32 D, A", "f32 f32", 8);
  list.back().absolute = 0x1p-21;  // near 1
  add_near(list, "tanh.approx.f32 D, A", "f32 f32", 16384);
  for (const char* name : {"sin.approx", "cos.approx", "sin.approx.ftz", "cos.approx.ftz"}) {
    add_near(list, fmt::format("{}.f32 D, A", name), "f32 angle", 0);
    list.back().absolute = 0x1p-20;
  }
}

void add_conversions(std::vector<InstructionCase>& list) {
  const char* const integers[] = {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"};
  for (const char* to : integers) {
    for (const char* from : integers) {
      if (std::string(to) == from) continue;
      add(list, fmt::format("cvt.{}.{} D, A", to, from), fmt::format("{} {}", to, from));
      // Legal where a value may not fit.
      const bool fits = (operand_bits(to) > operand_bits(from)) && (from[0] == 'u' || to[0] == 's');
      if (!fits)
        add(list, fmt::format("cvt.sat.{}.{} D, A", to, from), fmt::format("{} {}", to, from));
    }
    for (const char* real : {"f16", "f32", "f64"}) {
      for (const char* rounding : {"rni", "rzi", "rmi", "rpi"})
        add(list, fmt::format("cvt.{}.{}.{} D, A", rounding, to, real),
            fmt::format("{} {}", to, real));
      add(list, fmt::format("cvt.rn.{}.{} D, A", real, to), fmt::format("{} {}", real, to));
    }
    for (const char* rounding : {"rz", "rm", "rp"})
      add(list, fmt::format("cvt.{}.f32.{} D, A", rounding, to), fmt::format("f32 {}", to));
  }
  add(list, "cvt.rzi.ftz.s32.f32 D, A", "s32 f32");
  for (const char* real : {"f16", "f32", "f64"}) {
    for (const char* rounding : {"rni", "rzi", "rmi", "rpi"})
      add(list, fmt::format("cvt.{}.{}.{} D, A", rounding, real, real),
          fmt::format("{0} {0}", real));
  }
  add(list, "cvt.f64.f32 D, A", "f64 f32");
  add(list, "cvt.f32.f16 D, A", "f32 f16");
  add(list, "cvt.f64.f16 D, A", "f64 f16");
  add(list, "cvt.f32.bf16 D, A", "f32 bf16");
  for (const char* rounding : {"rn", "rz", "rm", "rp"}) {
    add(list, fmt::format("cvt.{}.f32.f64 D, A", rounding), "f32 f64");
    add(list, fmt::format("cvt.{}.f16.f64 D, A", rounding), "f16 f64");
    add(list, fmt::format("cvt.{}.f16.f32 D, A", rounding), "f16 f32");
  }
  add(list, "cvt.sat.f32.f32 D, A", "f32 f32");
  add(list, "cvt.rn.ftz.f16.f32 D, A", "f16 f32");
  add(list, "cvt.rn.sat.f16.f32 D, A", "f16 f32");
  for (const char* rounding : {"rn", "rz", "rn.relu", "rz.relu"}) {
    add(list, fmt::format("cvt.{}.bf16.f32 D, A", rounding), "bf16 f32");
    add(list, fmt::format("cvt.{}.f16x2.f32 D, A, B", rounding), "b32 f32 f32");
    add(list, fmt::format("cvt.{}.bf16x2.f32 D, A, B", rounding), "b32 f32 f32");
  }
  add(list, "cvt.rna.tf32.f32 D, A", "b32 f32");
  add(list, "cvt.pack.sat.u8.s32.b32 D, A, B, C", "b32 s32 s32 b32");
  add(list, "cvt.pack.sat.s16.s32 D, A, B", "b32 s32 s32");
}

// Lanes of one warp exchange what they have; all of them are there.
void add_warp(std::vector<InstructionCase>& list) {
  for (const char* mode : {"up", "down", "bfly", "idx"}) {
    const std::string clamp = std::string(mode) == "up" ? "0" : "0x1f";
    add(list, fmt::format("shfl.sync.{}.b32 D, A, B, {}, 0xffffffff", mode, clamp), "b32 b32 u32");
    // Segments of 8 lanes; D says whether the source was in range.
    add(list,
        fmt::format("{{ .reg .b32 r; shfl.sync.{}.b32 r|D, A, B, {}, 0xffffffff; }}", mode,
                    std::string(mode) == "up" ? "0x1800" : "0x181f"),
        "pred b32 u32");
    add(list, fmt::format("shfl.sync.{}.b32 D, A, B, C, 0xffffffff", mode), "b32 b32 u32 u32");
  }
  add(list, "vote.sync.ballot.b32 D, A, 0xffffffff", "b32 pred");
  for (const char* mode : {"all", "any", "uni"})
    add(list, fmt::format("vote.sync.{}.pred D, A, 0xffffffff", mode), "pred pred");
  for (const char* type : {"b32", "b64"}) {
    add(list, fmt::format("match.any.sync.{} D, A, 0xffffffff", type), fmt::format("b32 {}", type));
    add(list, fmt::format("match.all.sync.{} D, A, 0xffffffff", type), fmt::format("b32 {}", type));
  }
  for (const char* op : {"add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32",
                         "and.b32", "or.b32", "xor.b32"})
    add(list, fmt::format("redux.sync.{} D, A, 0xffffffff", op), "b32 b32");
  add(list, "activemask.b32 D", "b32 b32");
}

}  // namespace

uint64_t operand_draw(uint64_t index) {  // splitmix64
  uint64_t value = index + 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

int operand_bits(const std::string& type) {
  if (type == "pred") return 1;
  if (type == "f16x2" || type == "bf16x2" || type == "angle") return 32;
  return std::stoi(type.substr(type.find_first_of("0123456789")));
}

std::vector<uint64_t> operand_pool(const std::string& type, int random) {
  if (type == "pred") return {0, 1};
  if (type == "angle") return angle_pool(random);
  if (type == "f32") return float_pool(8, 23, random);
  if (type == "f64") return float_pool(11, 52, random);
  if (type == "f16") return float_pool(5, 10, random);
  if (type == "bf16") return float_pool(8, 7, random);
  if (type == "f16x2" || type == "bf16x2") {
    const std::vector<uint64_t> halves =
        type == "f16x2" ? float_pool(5, 10, random) : float_pool(8, 7, random);
    std::vector<uint64_t> pool;
    for (size_t i = 0; i < halves.size(); ++i)
      pool.push_back(halves[i] | halves[(i * 7 + 3) % halves.size()] << 16);
    return pool;
  }
  return integer_pool(operand_bits(type), random);
}

std::vector<InstructionCase> instruction_cases() {
  std::vector<InstructionCase> list;
  add_warp(list);
  add_integers(list);
  add_floats(list);
  add_approximate(list);
  add_conversions(list);
  return list;
}

std::string instruction_ptx(const InstructionCase& one) {
  const std::vector<std::string> types = words(one.types);
  const std::string letters = "DABC";
  std::string declarations, loads, text = one.text;
  for (size_t i = 0; i < types.size(); ++i) {
    const char letter = letters[i];
    const std::string name = register_name(types[i], letter);
    declarations += fmt::format("  .reg .{} {};\n", register_type(types[i]), name);
    // Operand letters stand alone.
    for (size_t at = 0; at < text.size(); ++at) {
      const bool alone =
          text[at] == letter &&
          (at == 0 || text[at - 1] == ' ' || text[at - 1] == '!' || text[at - 1] == '|') &&
          (at + 1 == text.size() || text[at + 1] == ',' || text[at + 1] == ';' ||
           text[at + 1] == '|');
      if (!alone) continue;
      text.replace(at, 1, name);
      at += name.size() - 1;
    }
    if (i == 0) continue;
    loads += fmt::format("  ld.global.b64 %v, [%r{}];\n", letter);
    if (types[i] == "pred") {
      loads += fmt::format("  setp.ne.s64 {}, %v, 0;\n", name);
    } else if (operand_bits(types[i]) == 64) {
      loads += fmt::format("  mov.b64 {}, %v;\n", name);
    } else {
      loads += fmt::format("  cvt.u{}.u64 {}, %v;\n", std::max(operand_bits(types[i]), 16), name);
    }
  }
  const std::string result = register_name(types[0], 'D');
  std::string store;
  if (types[0] == "pred") {
    store = fmt::format("  selp.b64 %v, 1, 0, {};\n", result);
  } else if (operand_bits(types[0]) == 64) {
    store = fmt::format("  mov.b64 %v, {};\n", result);
  } else {
    store = fmt::format("  cvt.u64.u{} %v, {};\n", std::max(operand_bits(types[0]), 16), result);
  }
  std::string addresses;
  for (int i = 0; i < 4; ++i) {
    addresses += fmt::format("  ld.param.u64 %v, [p+{}];\n  add.s64 %r{}, %v, %offset;\n", 8 * i,
                             letters[static_cast<size_t>(i)]);
  }
  if (text.back() != '}') text += ";";
  return fmt::format(
      ".version 7.8\n.target sm_80\n.address_size 64\n"
      ".visible .entry one(.param .align 8 .b8 p[32])\n{{\n"
      "  .reg .b32 %thread, %block, %index;\n  .reg .b64 %v, %offset, %rD, %rA, %rB, %rC;\n{}"
      "  mov.u32 %thread, %tid.x;\n  mov.u32 %block, %ctaid.x;\n"
      "  mad.lo.u32 %index, %block, {}, %thread;\n  mul.wide.u32 %offset, %index, 8;\n{}{}  {}\n{}"
      "  st.global.b64 [%rD], %v;\n  ret;\n}}\n",
      declarations, kThreads, addresses, loads, text, store);
}

InstructionInputs instruction_inputs(const InstructionCase& one) {
  const std::vector<std::string> types = words(one.types);
  const size_t sources = types.size() - 1;
  const int random = sources == 1 ? 500 : sources == 2 ? 24 : 6;
  std::vector<std::vector<uint64_t>> pools;
  for (size_t i = 1; i < types.size(); ++i) pools.push_back(operand_pool(types[i], random));
  size_t combinations = 1;
  for (const std::vector<uint64_t>& pool : pools) combinations *= pool.size();
  const size_t count =
      (std::min(combinations, kMostCombinations) + kThreads - 1) / kThreads * kThreads;
  InstructionInputs inputs;
  std::vector<uint64_t>* const columns[] = {&inputs.a, &inputs.b, &inputs.c};
  for (size_t n = 0; n < count; ++n) {
    // All combinations where they are few enough, else a sample that takes every value.
    uint64_t pick = combinations <= kMostCombinations ? n % combinations : operand_draw(n);
    for (size_t i = 0; i < 3; ++i) {
      if (i >= pools.size()) {
        columns[i]->push_back(0);
        continue;
      }
      columns[i]->push_back(pools[i][pick % pools[i].size()]);
      pick /= pools[i].size();
    }
  }
  return inputs;
}

std::string instruction_name(const InstructionCase& one) {
  return fmt::format("{} [{}]", one.text, one.types);
}

std::string instruction_digest(const std::vector<uint64_t>& results) {
  return hash_bytes(std::as_bytes(std::span(results))).hex();
}

std::vector<uint64_t> run_instruction(Device& device, const InstructionCase& one,
                                      const InstructionInputs& inputs) {
  jit::Binary binary;
  binary.kind = jit::BinaryKind::ptx;
  binary.arch = "compute_80";
  binary.entry = "one";
  binary.image = instruction_ptx(one);
  const LoadedKernel kernel = device.load(binary, kThreads, 0);
  const auto bytes = static_cast<int64_t>(inputs.a.size() * sizeof(uint64_t));
  DeviceBuffer d(device, bytes), a(device, bytes), b(device, bytes), c(device, bytes);
  device.copy_to_device(a.get(), inputs.a.data(), bytes);
  device.copy_to_device(b.get(), inputs.b.data(), bytes);
  device.copy_to_device(c.get(), inputs.c.data(), bytes);
  const uint64_t args[] = {d.get(), a.get(), b.get(), c.get()};
  const Stream stream = device.create_stream();
  const LaunchResult launched =
      device.launch(kernel, {.x = static_cast<uint32_t>(inputs.a.size() / kThreads)}, args, stream);
  if (launched.driver_error != 0)
    fail(Status::driver_error, "{}: {}", one.text, device.error_text(launched.driver_error));
  device.synchronize(stream);
  std::vector<uint64_t> result(inputs.a.size());
  device.copy_to_host(result.data(), d.get(), bytes);
  device.destroy_stream(stream);
  return result;
}

}  // namespace kiln::runtime::sim
