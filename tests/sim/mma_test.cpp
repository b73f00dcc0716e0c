// mma.sync and movmatrix. Matrices are put into registers and read back by the formulas of the PTX
// ISA, written down shape by shape as they are documented, and multiplied here by three loops.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "jit/base/error.h"
#include "tests/sim/lone_warp.h"

namespace kiln::runtime::sim {
namespace {

struct Position {
  int row = 0, column = 0;
};
// Where element i of a lane is; g = lane / 4, t = lane % 4.
using Layout = Position (*)(int g, int t, int i);

struct Shape {
  std::string name;
  int rows = 16, depth = 16;
  int bits = 16;  // of an element of A and B
  Layout a, b;
};

Position accumulator(int g, int t, int i) { return {i < 2 ? g : g + 8, t * 2 + (i & 1)}; }

const std::vector<Shape> kShapes = {
    {"m16n8k8", 16, 8, 16,
     [](int g, int t, int i) {
       return Position{i < 2 ? g : g + 8, t * 2 + (i & 1)};
     },
     [](int g, int t, int i) {
       return Position{t * 2 + i, g};
     }},
    {"m16n8k16", 16, 16, 16,
     [](int g, int t, int i) {
       return Position{(0 <= i && i < 2) || (4 <= i && i < 6) ? g : g + 8,
                       i < 4 ? t * 2 + (i & 1) : t * 2 + (i & 1) + 8};
     },
     [](int g, int t, int i) {
       return Position{i < 2 ? t * 2 + (i & 1) : t * 2 + (i & 1) + 8, g};
     }},
    {"m16n8k4", 16, 4, 32,
     [](int g, int t, int i) {
       return Position{i == 0 ? g : g + 8, t};
     },
     [](int g, int t, int) {
       return Position{t, g};
     }},
    {"m16n8k8", 16, 8, 32,
     [](int g, int t, int i) {
       return Position{i == 0 || i == 2 ? g : g + 8, i == 0 || i == 1 ? t : t + 4};
     },
     [](int g, int t, int i) {
       return Position{i == 0 ? t : t + 4, g};
     }},
    {"m8n8k16", 8, 16, 8,
     [](int g, int t, int i) {
       return Position{g, t * 4 + i};
     },
     [](int g, int t, int i) {
       return Position{t * 4 + i, g};
     }},
    {"m16n8k16", 16, 16, 8,
     [](int g, int t, int i) {
       return Position{i < 4 ? g : g + 8, t * 4 + (i & 3)};
     },
     [](int g, int t, int i) {
       return Position{t * 4 + i, g};
     }},
    {"m16n8k32", 16, 32, 8,
     [](int g, int t, int i) {
       return Position{(0 <= i && i < 4) || (8 <= i && i < 12) ? g : g + 8,
                       i < 8 ? t * 4 + (i & 3) : t * 4 + (i & 3) + 16};
     },
     [](int g, int t, int i) {
       return Position{i < 4 ? t * 4 + (i & 3) : t * 4 + (i & 3) + 16, g};
     }},
    {"m8n8k32", 8, 32, 4,
     [](int g, int t, int i) {
       return Position{g, t * 8 + i};
     },
     [](int g, int t, int i) {
       return Position{t * 8 + i, g};
     }},
    {"m16n8k32", 16, 32, 4,
     [](int g, int t, int i) {
       return Position{i < 8 ? g : g + 8, t * 8 + (i & 7)};
     },
     [](int g, int t, int i) {
       return Position{t * 8 + i, g};
     }},
    {"m16n8k64", 16, 64, 4,
     [](int g, int t, int i) {
       return Position{(0 <= i && i < 8) || (16 <= i && i < 24) ? g : g + 8,
                       i < 16 ? t * 8 + (i & 7) : t * 8 + (i & 7) + 32};
     },
     [](int g, int t, int i) {
       return Position{i < 8 ? t * 8 + (i & 7) : t * 8 + (i & 7) + 32, g};
     }},
    {"m8n8k128", 8, 128, 1,
     [](int g, int t, int i) {
       return Position{g, t * 32 + i};
     },
     [](int g, int t, int i) {
       return Position{t * 32 + i, g};
     }},
    {"m16n8k128", 16, 128, 1,
     [](int g, int t, int i) {
       return Position{i < 32 ? g : g + 8, t * 32 + (i & 31)};
     },
     [](int g, int t, int i) {
       return Position{t * 32 + i, g};
     }},
    {"m16n8k256", 16, 256, 1,
     [](int g, int t, int i) {
       return Position{i < 32 || (64 <= i && i < 96) ? g : g + 8,
                       i < 64 ? t * 32 + (i & 31) : t * 32 + (i & 31) + 128};
     },
     [](int g, int t, int i) {
       return Position{i < 32 ? t * 32 + (i & 31) : t * 32 + (i & 31) + 128, g};
     }},
};

const Shape& shape_of(const std::string& name, int bits) {
  for (const Shape& shape : kShapes) {
    if (shape.name == name && shape.bits == bits) return shape;
  }
  throw std::out_of_range(name);
}

// Bits of elements, row by row.
using Matrix = std::vector<uint32_t>;

struct Types {
  std::string d, a, b, c;
};

constexpr size_t kFirstOfD = 0, kFirstOfA = 4, kFirstOfB = 8, kFirstOfC = 10;

int register_count(int rows, int columns, int bits) { return rows * columns * bits / 32 / kLanes; }

void each_element(int rows, int columns, int bits, Layout layout,
                  const std::function<void(Position, size_t reg, int lane, int shift)>& body) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < rows * columns / kLanes; ++i) {
      body(layout(lane / 4, lane % 4, i), static_cast<size_t>(i * bits / 32), lane, i * bits % 32);
    }
  }
}

void put_matrix(LoneWarp& lone, size_t first, const Matrix& matrix, int rows, int columns, int bits,
                Layout layout) {
  for (int r = 0; r < register_count(rows, columns, bits); ++r)
    std::fill_n(lone.r(first + static_cast<size_t>(r)), kLanes, 0u);
  each_element(rows, columns, bits, layout, [&](Position at, size_t reg, int lane, int shift) {
    lone.r(first + reg)[lane] |= matrix.at(static_cast<size_t>(at.row * columns + at.column))
                                 << shift;
  });
}

Matrix get_matrix(LoneWarp& lone, size_t first, int rows, int columns, int bits, Layout layout) {
  Matrix matrix(static_cast<size_t>(rows * columns));
  each_element(rows, columns, bits, layout, [&](Position at, size_t reg, int lane, int shift) {
    matrix.at(static_cast<size_t>(at.row * columns + at.column)) =
        lone.r(first + reg)[lane] >> shift & static_cast<uint32_t>((uint64_t{1} << bits) - 1);
  });
  return matrix;
}

std::string group(size_t first, int count) {
  std::string text = "{";
  for (int i = 0; i < count; ++i)
    text += fmt::format("{}%r{}", i == 0 ? "" : ", ", first + static_cast<size_t>(i));
  return text + "}";
}

int accumulator_bits(const std::string& type) { return type == "f16" ? 16 : 32; }

std::string instruction_text(const Shape& shape, const Types& types, const std::string& before,
                             const std::string& after) {
  return fmt::format("mma.sync.aligned.{}.row.col{}.{}.{}.{}.{}{} {}, {}, {}, {};", shape.name,
                     before, types.d, types.a, types.b, types.c, after,
                     group(kFirstOfD, register_count(shape.rows, 8, accumulator_bits(types.d))),
                     group(kFirstOfA, register_count(shape.rows, shape.depth, shape.bits)),
                     group(kFirstOfB, register_count(shape.depth, 8, shape.bits)),
                     group(kFirstOfC, register_count(shape.rows, 8, accumulator_bits(types.c))));
}

Matrix multiply(const Shape& shape, const Types& types, const Matrix& a, const Matrix& b,
                const Matrix& c, const std::string& before = "", const std::string& after = "") {
  LoneWarp lone;
  put_matrix(lone, kFirstOfA, a, shape.rows, shape.depth, shape.bits, shape.a);
  put_matrix(lone, kFirstOfB, b, shape.depth, 8, shape.bits, shape.b);
  put_matrix(lone, kFirstOfC, c, shape.rows, 8, accumulator_bits(types.c), accumulator);
  const Instruction bound = lone.run(instruction_text(shape, types, before, after));
  EXPECT_EQ(bound.flow, Flow::rendezvous);
  EXPECT_EQ(lone.warp().mmas, 1u);
  return get_matrix(lone, kFirstOfD, shape.rows, 8, accumulator_bits(types.d), accumulator);
}

uint32_t float_bits(double value) { return std::bit_cast<uint32_t>(static_cast<float>(value)); }

double half_value(uint32_t half) {
  const int exponent = static_cast<int>(half >> 10 & 31);
  const double fraction = half & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

uint32_t half_bits(double value) {
  if (std::isnan(value)) return 0x7fff;
  const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(value);
  if (magnitude >= 65520) return sign | 0x7c00;
  const int exponent = magnitude < 0x1p-14 ? -14 : std::ilogb(magnitude);
  const double steps = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
  return sign | static_cast<uint32_t>(steps + (exponent + 14) * 1024);
}

// An integer small enough to be exact, or the value itself of integer types.
uint32_t encode(const std::string& type, int value) {
  if (type == "f32") return float_bits(value);
  if (type == "tf32") return float_bits(value) | 0x1abc;  // bits that do not count
  if (type == "bf16") return float_bits(value) >> 16;
  if (type == "f16") return half_bits(value);
  if (type == "s4" || type == "u4") return static_cast<uint32_t>(value) & 15;
  if (type == "s8" || type == "u8") return static_cast<uint32_t>(value) & 255;
  return static_cast<uint32_t>(value);
}

double decode(const std::string& type, uint32_t bits) {
  if (type == "f32") return std::bit_cast<float>(bits);
  if (type == "tf32") return std::bit_cast<float>(bits & 0xffffe000);
  if (type == "bf16") return std::bit_cast<float>(bits << 16);
  if (type == "f16") return half_value(bits);
  if (type == "s32") return static_cast<int32_t>(bits);
  if (type == "s8") return static_cast<int8_t>(bits);
  if (type == "s4") return static_cast<int>(bits ^ 8) - 8;
  return bits;
}

const std::vector<std::pair<Shape, Types>>& all_forms() {
  static const std::vector<std::pair<Shape, Types>> forms = [] {
    std::vector<std::pair<Shape, Types>> result;
    for (const char* shape : {"m16n8k8", "m16n8k16"}) {
      result.push_back({shape_of(shape, 16), {"f32", "bf16", "bf16", "f32"}});
      for (const char* d : {"f16", "f32"}) {
        for (const char* c : {"f16", "f32"})
          result.push_back({shape_of(shape, 16), {d, "f16", "f16", c}});
      }
    }
    for (const char* shape : {"m16n8k4", "m16n8k8"})
      result.push_back({shape_of(shape, 32), {"f32", "tf32", "tf32", "f32"}});
    for (const int bits : {8, 4}) {
      for (const Shape& shape : kShapes) {
        if (shape.bits != bits) continue;
        for (const char sign_a : {'s', 'u'}) {
          for (const char sign_b : {'s', 'u'}) {
            result.push_back({shape,
                              {"s32", fmt::format("{}{}", sign_a, bits),
                               fmt::format("{}{}", sign_b, bits), "s32"}});
          }
        }
      }
    }
    return result;
  }();
  return forms;
}

std::string name_of(const Shape& shape, const Types& types) {
  return fmt::format("{}.{}.{}.{}.{}", shape.name, types.d, types.a, types.b, types.c);
}

// One digit of the place of an element: over all digits every element of the matrix is distinct.
int digit_of(size_t place, int digit, int base) {
  for (; digit > 0; --digit) place /= static_cast<size_t>(base);
  return static_cast<int>(place % static_cast<size_t>(base));
}

TEST(Mma, EveryElementOfAComesOutWhereItsColumnOfTheUnitMatrixIs) {
  for (const auto& [shape, types] : all_forms()) {
    const int base = shape.bits == 4 ? 8 : 128;
    for (int digit = 0; digit < (base == 8 ? 4 : 2); ++digit) {
      Matrix a(static_cast<size_t>(shape.rows * shape.depth));
      for (size_t i = 0; i < a.size(); ++i) a[i] = encode(types.a, digit_of(i, digit, base));
      for (int first = 0; first < shape.depth; first += 8) {
        Matrix b(static_cast<size_t>(shape.depth * 8), encode(types.b, 0));
        for (int n = 0; n < 8 && first + n < shape.depth; ++n)
          b[static_cast<size_t>((first + n) * 8 + n)] = encode(types.b, 1);
        const Matrix d =
            multiply(shape, types, a, b, Matrix(static_cast<size_t>(shape.rows * 8), 0));
        for (int row = 0; row < shape.rows; ++row) {
          for (int n = 0; n < 8 && first + n < shape.depth; ++n) {
            const size_t at = static_cast<size_t>(row * shape.depth + first + n);
            ASSERT_EQ(decode(types.d, d[static_cast<size_t>(row * 8 + n)]),
                      digit_of(at, digit, base))
                << name_of(shape, types) << " row " << row << " k " << first + n;
          }
        }
      }
    }
  }
}

TEST(Mma, EveryElementOfBComesOutWhereItsRowOfTheUnitMatrixIs) {
  for (const auto& [shape, types] : all_forms()) {
    const int base = shape.bits == 4 ? 8 : 128;
    for (int digit = 0; digit < (base == 8 ? 4 : 2); ++digit) {
      Matrix b(static_cast<size_t>(shape.depth * 8));
      for (size_t i = 0; i < b.size(); ++i) b[i] = encode(types.b, digit_of(i, digit, base));
      for (int first = 0; first < shape.depth; first += shape.rows) {
        Matrix a(static_cast<size_t>(shape.rows * shape.depth), encode(types.a, 0));
        for (int row = 0; row < shape.rows && first + row < shape.depth; ++row)
          a[static_cast<size_t>(row * shape.depth + first + row)] = encode(types.a, 1);
        const Matrix d =
            multiply(shape, types, a, b, Matrix(static_cast<size_t>(shape.rows * 8), 0));
        for (int row = 0; row < shape.rows && first + row < shape.depth; ++row) {
          for (int n = 0; n < 8; ++n) {
            const size_t at = static_cast<size_t>((first + row) * 8 + n);
            ASSERT_EQ(decode(types.d, d[static_cast<size_t>(row * 8 + n)]),
                      digit_of(at, digit, base))
                << name_of(shape, types) << " k " << first + row << " column " << n;
          }
        }
      }
    }
  }
}

TEST(Mma, EveryElementOfCComesOutInItsPlace) {
  for (const auto& [shape, types] : all_forms()) {
    Matrix c(static_cast<size_t>(shape.rows * 8));
    for (size_t i = 0; i < c.size(); ++i) c[i] = encode(types.c, static_cast<int>(i));
    const Matrix a(static_cast<size_t>(shape.rows * shape.depth), 0);
    const Matrix d = multiply(shape, types, a, Matrix(static_cast<size_t>(shape.depth * 8), 0), c);
    for (size_t i = 0; i < c.size(); ++i)
      ASSERT_EQ(decode(types.d, d[i]), static_cast<double>(i)) << name_of(shape, types);
  }
}

TEST(Mma, IntegersAreExactAtTheEndsOfTheirRange) {
  std::mt19937 random(5);
  for (const auto& [shape, types] : all_forms()) {
    if (types.d != "s32") continue;
    for (const bool ends : {false, true}) {
      const uint32_t all = (1u << shape.bits) - 1;
      const auto draw = [&](const std::string& type) -> uint32_t {
        if (!ends) return static_cast<uint32_t>(random()) & all;
        return type[0] == 'u' ? all : 1u << (shape.bits - 1);  // 255, -128, 15, -8
      };
      Matrix a(static_cast<size_t>(shape.rows * shape.depth));
      Matrix b(static_cast<size_t>(shape.depth * 8));
      Matrix c(static_cast<size_t>(shape.rows * 8));
      for (uint32_t& x : a) x = draw(types.a);
      for (uint32_t& x : b) x = draw(types.b);
      for (uint32_t& x : c) x = random();
      const Matrix wrapped = multiply(shape, types, a, b, c);
      const Matrix saturated = multiply(shape, types, a, b, c, ".satfinite");
      for (int row = 0; row < shape.rows; ++row) {
        for (int n = 0; n < 8; ++n) {
          const auto at = static_cast<size_t>(row * 8 + n);
          int64_t sum = static_cast<int32_t>(c[at]);
          for (int k = 0; k < shape.depth; ++k) {
            sum += static_cast<int64_t>(
                decode(types.a, a[static_cast<size_t>(row * shape.depth + k)]) *
                decode(types.b, b[static_cast<size_t>(k * 8 + n)]));
          }
          ASSERT_EQ(wrapped[at], static_cast<uint32_t>(sum)) << name_of(shape, types);
          ASSERT_EQ(static_cast<int32_t>(saturated[at]),
                    std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX))
              << name_of(shape, types);
        }
      }
    }
  }
}

TEST(Mma, SaturationAndWrappingDifferPastTheEnd) {
  const Shape& shape = shape_of("m16n8k32", 8);
  const Types types{"s32", "s8", "u8", "s32"};
  const Matrix minus(16 * 32, encode("s8", -1)), plus(16 * 32, 1), one(32 * 8, 1);
  const Matrix least(16 * 8, 0x80000000), most(16 * 8, 0x7fffffff);
  EXPECT_EQ(multiply(shape, types, minus, one, least)[0], 0x7fffffe0u);
  EXPECT_EQ(multiply(shape, types, minus, one, least, ".satfinite")[0], 0x80000000u);
  EXPECT_EQ(multiply(shape, types, plus, one, most)[0], 0x8000001fu);
  EXPECT_EQ(multiply(shape, types, plus, one, most, ".satfinite")[0], 0x7fffffffu);
}

TEST(Mma, BitsAreCombinedAndCounted) {
  std::mt19937 random(9);
  for (const Shape& shape : kShapes) {
    if (shape.bits != 1) continue;
    Matrix a(static_cast<size_t>(shape.rows * shape.depth));
    Matrix b(static_cast<size_t>(shape.depth * 8));
    Matrix c(static_cast<size_t>(shape.rows * 8));
    for (uint32_t& x : a) x = random() & 1;
    for (uint32_t& x : b) x = random() & 1;
    for (uint32_t& x : c) x = random();
    const Types types{"s32", "b1", "b1", "s32"};
    const Matrix by_xor = multiply(shape, types, a, b, c, "", ".xor.popc");
    const Matrix by_and = multiply(shape, types, a, b, c, "", ".and.popc");
    for (int row = 0; row < shape.rows; ++row) {
      for (int n = 0; n < 8; ++n) {
        const auto at = static_cast<size_t>(row * 8 + n);
        uint32_t differ = c[at], both = c[at];
        for (int k = 0; k < shape.depth; ++k) {
          const uint32_t left = a[static_cast<size_t>(row * shape.depth + k)];
          const uint32_t right = b[static_cast<size_t>(k * 8 + n)];
          differ += left ^ right;
          both += left & right;
        }
        ASSERT_EQ(by_xor[at], differ) << shape.name;
        ASSERT_EQ(by_and[at], both) << shape.name;
      }
    }
  }
}

// Bits of a float type with an exponent near that of 2^middle.
uint32_t random_element(const std::string& type, std::mt19937& random, int middle, int spread) {
  std::uniform_real_distribution<double> mantissa(1, 2);
  std::uniform_int_distribution<int> exponent(middle - spread, middle + spread);
  const double value =
      std::ldexp((random() & 1) != 0 ? mantissa(random) : -mantissa(random), exponent(random));
  if (type == "f16") return half_bits(value);
  return type == "bf16" ? float_bits(value) >> 16 : float_bits(value);
}

TEST(Mma, FloatsStayWithinTheBoundOfASum) {
  std::mt19937 random(13);
  for (const auto& [shape, types] : all_forms()) {
    if (types.d == "s32") continue;
    // bf16 and tf32 with products that a float cannot hold, and at the lower end of the range.
    const bool is_half = types.a == "f16";
    for (const int middle : {0, is_half ? -8 : -70, is_half ? 4 : 40}) {
      const int spread = is_half ? 3 : 8;
      Matrix a(static_cast<size_t>(shape.rows * shape.depth));
      Matrix b(static_cast<size_t>(shape.depth * 8));
      Matrix c(static_cast<size_t>(shape.rows * 8));
      for (uint32_t& x : a) x = random_element(types.a, random, middle, spread);
      for (uint32_t& x : b) x = random_element(types.b, random, middle, spread);
      for (uint32_t& x : c) x = random_element(types.c, random, is_half ? 0 : 2 * middle, spread);
      const Matrix d = multiply(shape, types, a, b, c);
      for (int row = 0; row < shape.rows; ++row) {
        for (int n = 0; n < 8; ++n) {
          const auto at = static_cast<size_t>(row * 8 + n);
          double sum = decode(types.c, c[at]), size = std::abs(sum);
          for (int k = 0; k < shape.depth; ++k) {
            const double product = decode(types.a, a[static_cast<size_t>(row * shape.depth + k)]) *
                                   decode(types.b, b[static_cast<size_t>(k * 8 + n)]);
            sum += product;
            size += std::abs(product);
          }
          const double got = decode(types.d, d[at]);
          double bound = (shape.depth + 2) * 0x1p-23 * size + 0x1p-149;
          if (types.d == "f16") {
            if (half_bits(sum) == d[at]) continue;
            bound += std::max(std::abs(sum) * 0x1p-11, 0x1p-25);
          }
          ASSERT_LE(std::abs(got - sum), bound)
              << name_of(shape, types) << " middle " << middle << " sum " << sum << " got " << got;
        }
      }
    }
  }
}

TEST(Mma, EveryHalfIsReadAndWritten) {
  const Shape& shape = shape_of("m16n8k16", 16);
  Matrix b(16 * 8, 0);
  for (size_t n = 0; n < 8; ++n) b[n * 8 + n] = encode("f16", 1);
  for (uint32_t first = 0; first < 0x10000; first += 128) {
    // The other half of A is zero: 0 * infinity would be in the sum otherwise.
    for (const bool from_a : {true, false}) {
      Matrix a(16 * 16, 0), c(16 * 8, 0);
      for (uint32_t i = 0; i < 128; ++i) {
        const uint32_t half = first + i;
        const bool finite = (half & 0x7c00) != 0x7c00;
        if (from_a && finite) a[i / 8 * 16 + i % 8] = half;
        if (!from_a) c[i] = half;
      }
      const Matrix wide = multiply(shape, {"f32", "f16", "f16", "f16"}, a, b, c);
      const Matrix narrow = multiply(shape, {"f16", "f16", "f16", "f16"}, a, b, c);
      for (uint32_t i = 0; i < 128; ++i) {
        const double value = half_value(from_a ? a[i / 8 * 16 + i % 8] : c[i]);
        if (std::isnan(value)) {
          ASSERT_EQ(wide[i], 0x7fffffffu);
          ASSERT_EQ(narrow[i], 0x7fffu);
        } else {
          ASSERT_EQ(std::bit_cast<float>(wide[i]), value);
          ASSERT_EQ(half_value(narrow[i]), value);
        }
      }
    }
  }
}

TEST(Mma, HalfResultsAreRoundedToNearestEven) {
  const Shape& shape = shape_of("m16n8k8", 16);
  std::mt19937 random(17);
  Matrix c(16 * 8);
  for (int round = 0; round < 200; ++round) {
    for (uint32_t& x : c) {
      const uint32_t bits = random();
      // Half of them are ties or one unit beside.
      x = (bits & 0x80000000) | (0x32000000 + bits % 0x16000000);
      if (round % 2 == 1) x = (x & ~0x1fffu) + 0x1000 + bits / 7 % 3 - 1;
    }
    const Matrix d =
        multiply(shape, {"f16", "f16", "f16", "f32"}, Matrix(16 * 8, 0), Matrix(8 * 8, 0), c);
    for (size_t i = 0; i < c.size(); ++i)
      ASSERT_EQ(d[i], half_bits(std::bit_cast<float>(c[i]))) << std::hex << c[i];
  }
  const std::pair<double, uint32_t> edges[] = {
      {65519.996, 0x7bff}, {65520, 0x7c00}, {-1e30, 0xfc00},      {INFINITY, 0x7c00},  {0x1p-25, 0},
      {0x1.1p-25, 1},      {0x1.8p-24, 2},  {0x1.ff8p-15, 0x3ff}, {0x1.ffcp-15, 0x400}};
  for (const auto& [value, want] : edges) {
    const Matrix d = multiply(shape, {"f16", "f16", "f16", "f32"}, Matrix(16 * 8, 0),
                              Matrix(8 * 8, 0), Matrix(16 * 8, float_bits(value)));
    EXPECT_EQ(d[0], want) << value;
  }
}

TEST(Mma, NanAndInfinityComeOutAsNvidiaWritesThem) {
  const Shape& shape = shape_of("m16n8k16", 16);
  for (const std::string type : {"bf16", "f16"}) {
    const uint32_t infinity = type == "f16" ? 0x7c00 : 0x7f80;
    const uint32_t sign = 0x8000;
    const Types types{"f32", type, type, "f32"};
    const Matrix ones(16 * 8, encode(type, 1)), zero(16 * 8, 0);
    Matrix a(16 * 16, 0);
    a[0 * 16 + 3] = infinity;
    a[1 * 16 + 3] = infinity | sign;
    a[2 * 16 + 3] = infinity | 1;
    a[3 * 16 + 3] = infinity;
    a[3 * 16 + 4] = infinity | sign;
    const Matrix d = multiply(shape, types, a, ones, zero);
    EXPECT_EQ(d[0], 0x7f800000u);
    EXPECT_EQ(d[8], 0xff800000u);
    EXPECT_EQ(d[16], 0x7fffffffu);
    EXPECT_EQ(d[24], 0x7fffffffu);
    EXPECT_EQ(d[32], 0u);
    EXPECT_EQ(multiply(shape, types, Matrix(16 * 16, 0), ones, Matrix(16 * 8, 0xffc12345))[5],
              0x7fffffffu);
  }
}

TEST(Mma, ProductsOutsideTheRangeOfAFloatAreNotLost) {
  const Shape& shape = shape_of("m16n8k8", 16);
  const Types types{"f32", "bf16", "bf16", "f32"};
  const auto bf16 = [](double value) { return float_bits(value) >> 16; };
  Matrix a(16 * 8, 0), b(8 * 8, 0);
  a[0] = bf16(0x1p65);
  a[1] = bf16(-0x1p65);
  a[8] = bf16(0x1p-100);
  for (size_t n = 0; n < 8; ++n) {
    b[n] = bf16(0x1p65);
    b[8 + n] = bf16(0x1.ep64);
  }
  // 2^130 - (2^130 - 2^126)
  EXPECT_EQ(multiply(shape, types, a, b, Matrix(16 * 8, 0))[0], float_bits(0x1p126));
  for (size_t n = 0; n < 8; ++n) b[n] = bf16(0x1.8p-47);
  EXPECT_EQ(multiply(shape, types, a, b, Matrix(16 * 8, 0))[8], 6u);  // 1.5 * 2^-147
}

TEST(Mma, RegistersMayServeTwice) {
  // D has the registers of C in another order, then those of A.
  const std::string name = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 ";
  LoneWarp lone;
  const auto value = [](size_t reg, int lane) {
    return float_bits(static_cast<double>(reg) * 100 + lane);
  };
  const auto fill = [&] {
    for (const size_t reg : {10, 11, 12, 13}) {
      for (int lane = 0; lane < kLanes; ++lane) lone.r(reg)[lane] = value(reg, lane);
    }
  };
  fill();
  lone.run(name +
           "{%r13, %r12, %r11, %r10}, {%r4, %r5, %r6, %r7}, {%r8, %r9}, "
           "{%r10, %r11, %r12, %r13};");
  for (int lane = 0; lane < kLanes; ++lane) {
    for (const size_t reg : {10, 11, 12, 13})
      ASSERT_EQ(lone.r(23 - reg)[lane], value(reg, lane)) << reg << " " << lane;
  }
  fill();
  lone.run(name +
           "{%r4, %r5, %r6, %r7}, {%r4, %r5, %r6, %r7}, {%r8, %r9}, "
           "{%r10, %r11, %r12, %r13};");
  for (int lane = 0; lane < kLanes; ++lane) {
    for (const size_t reg : {10, 11, 12, 13})
      ASSERT_EQ(lone.r(reg - 6)[lane], value(reg, lane)) << reg << " " << lane;
  }
}

TEST(Mma, ImmediateAccumulatorsAndSinksAreTaken) {
  LoneWarp lone;
  lone.run("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {_, %r1}, {%r4}, {%r8}, {7, 9};");
  EXPECT_EQ(lone.r(1)[31], 9u);
  lone.run("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r0, %r1}, %r4, %r8, {7, 9};");
  EXPECT_EQ(lone.r(0)[31], 7u);
}

TEST(Mma, DoublesAreFusedAndRoundedAsAsked) {
  std::mt19937_64 random(19);
  std::uniform_real_distribution<double> draw(-1, 1);
  double a[8][4], b[4][8], c[8][8];
  for (auto& row : a)
    for (double& x : row) x = draw(random);
  for (auto& row : b)
    for (double& x : row) x = draw(random);
  for (auto& row : c)
    for (double& x : row) x = draw(random);
  LoneWarp lone;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4, t = lane % 4;
    lone.d(2)[lane] = std::bit_cast<uint64_t>(a[g][t]);
    lone.d(3)[lane] = std::bit_cast<uint64_t>(b[t][g]);
    lone.d(4)[lane] = std::bit_cast<uint64_t>(c[g][t * 2]);
    lone.d(5)[lane] = std::bit_cast<uint64_t>(c[g][t * 2 + 1]);
  }
  const auto run = [&](const std::string& rounding) {
    lone.run("mma.sync.aligned.m8n8k4.row.col" + rounding +
             ".f64.f64.f64.f64 {%d0, %d1}, {%d2}, {%d3}, {%d4, %d5};");
    std::vector<double> result;
    for (int lane = 0; lane < kLanes; ++lane) {
      for (const size_t i : {0, 1}) result.push_back(std::bit_cast<double>(lone.d(i)[lane]));
    }
    return result;
  };
  const std::vector<double> nearest = run(""), down = run(".rm"), up = run(".rp");
  bool differs = false;
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 2; ++i) {
      const int row = lane / 4, column = lane % 4 * 2 + i;
      long double sum = c[row][column];
      for (int k = 0; k < 4; ++k)
        sum += static_cast<long double>(a[row][k]) * static_cast<long double>(b[k][column]);
      const auto at = static_cast<size_t>(lane * 2 + i);
      EXPECT_NEAR(nearest[at], static_cast<double>(sum), 0x1p-50);
      EXPECT_LE(down[at], nearest[at]);
      EXPECT_LE(nearest[at], up[at]);
      EXPECT_LE(static_cast<long double>(down[at]), sum);
      EXPECT_GE(static_cast<long double>(up[at]), sum);
      differs = differs || down[at] < up[at];
    }
  }
  EXPECT_TRUE(differs);
  EXPECT_EQ(run(""), nearest);  // the rounding of the host is what it was
}

TEST(Mma, MissingLanesAreNamed) {
  LoneWarp lone;
  for (const char* text :
       {"mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r0, %r1}, {%r4}, {%r8}, {%r2, %r3};",
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r0, %r1, %r2, %r3}, "
        "{%r4, %r5, %r6, %r7}, {%r8, %r9}, {%r0, %r1, %r2, %r3};",
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d0, %d1}, {%d2}, {%d3}, {%d4, %d5};",
        "movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1;"}) {
    try {
      lone.run(text, ~((1u << 3) | (1u << 17)));
      ADD_FAILURE() << text;
    } catch (const Fault& fault) {
      EXPECT_NE(fault.what_happened.find("lanes 3, 17"), std::string::npos) << fault.what_happened;
    }
  }
  EXPECT_EQ(lone.warp().mmas, 0u);
}

TEST(Mma, WhatIsNotKnownIsRefused) {
  LoneWarp lone;
  const std::string tail =
      " {%r0, %r1, %r2, %r3}, {%r4, %r5, %r6, %r7}, {%r8, %r9}, "
      "{%r10, %r11, %r12, %r13};";
  for (const char* name : {"mma.sync.aligned.m16n8k16.row.row.f32.bf16.bf16.f32",
                           "mma.sync.aligned.m16n8k16.row.col.f32.bf16.f16.f32",
                           "mma.sync.aligned.m16n8k16.row.col.satfinite.f32.bf16.bf16.f32",
                           "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32",
                           "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32",
                           "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32",
                           "mma.sp.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
                           "mma.m16n8k16.row.col.f32.bf16.bf16.f32",
                           "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32"}) {
    EXPECT_THROW(lone.run(name + tail), Error) << name;
  }
  EXPECT_THROW(lone.run("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r0, %r1}, "
                        "{%r4, %r5, %r6, %r7}, {%r8, %r9}, {%r10, %r11, %r12, %r13};"),
               Error);
}

TEST(MoveMatrix, RowsBecomeColumns) {
  LoneWarp lone;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t first = lane / 4 * 8 + lane % 4 * 2;  // row * 8 + column
    lone.r(1)[lane] = first | (first + 1) << 16;
  }
  lone.run("movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1;");
  lone.run("movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r1;");
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t row = lane / 4, column = lane % 4 * 2;
    EXPECT_EQ(lone.r(0)[lane], (column * 8 + row) | ((column + 1) * 8 + row) << 16) << lane;
    EXPECT_EQ(lone.r(1)[lane], lone.r(0)[lane]) << lane;
  }
}

}  // namespace
}  // namespace kiln::runtime::sim
