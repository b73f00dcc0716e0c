// mma.sync of Ampere and movmatrix. The fragments of all lanes become two dense matrices of floats,
// which are multiplied as a whole.
//
// Fragments are made of words: 4 bytes with one to 32 elements of a row of A, or of a column of B.
// With g = lane / 4 and t = lane % 4, a lane has in register r
//   of A   word t + 4 * (r / halves) of row g + 8 * (r % halves), halves = rows / 8
//   of B   word t + 4 * r of column g
//   of C   columns 2t and 2t + 1 of row g, then of row g + 8 (two registers each, or one of two
//   f16)
// The dense matrices keep neither the order of k nor that of the columns. Element e of word w is at
// depth e * words + w, in both, so that words are taken apart as they are; and the even columns
// come before the odd ones, so that four lanes of a register of C are neighbours.
#include <array>
#include <bit>
#include <cmath>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <fmt/format.h>

#include "runtime/sim/binder.h"
#include "runtime/sim/host_vectors.h"
#include "runtime/sim/numbers.h"
#include "runtime/sim/warp.h"

namespace kiln::runtime::sim {
namespace {

using Float4 = float __attribute__((vector_size(16)));
using Word4 = uint32_t __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));

constexpr int kColumns = 8;

template <class Vector>
Vector load(const void* from) {
  Vector result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}
template <class Vector>
void store(void* to, Vector value) {
  std::memcpy(to, &value, sizeof(value));
}
Word4 same(uint32_t value) { return Word4{value, value, value, value}; }
Float4 same(float value) { return Float4{value, value, value, value}; }

// --- what a word holds: element<e> of four words, as floats
struct Tf32 {
  static constexpr int kPerWord = 1;
  static constexpr bool kCanLeaveRange = true;
  // The low 13 bits are not looked at.
  template <int e>
  static Float4 element(Word4 words) {
    return std::bit_cast<Float4>(words & 0xffffe000u);
  }
};

struct Bf16 {
  static constexpr int kPerWord = 2;
  static constexpr bool kCanLeaveRange = true;
  template <int e>
  static Float4 element(Word4 words) {
    return std::bit_cast<Float4>(e == 0 ? words << 16 : words & 0xffff0000u);
  }
};

Float4 half_to_float(Word4 halves) {
  const Word4 magnitude = (halves & 0x7fffu) << 13;
  // A subnormal is the fraction of 2^-14; the others need another bias, infinity and NaN twice.
  const Word4 fraction =
      std::bit_cast<Word4>(std::bit_cast<Float4>(magnitude + 0x38800000u) - same(0x1p-14f));
  const Word4 special = std::bit_cast<Word4>(magnitude >= 0x0f800000u) & 0x38000000u;
  const Word4 scaled = magnitude + 0x38000000u + special;
  const Word4 value = magnitude < 0x00800000u ? fraction : scaled;
  return std::bit_cast<Float4>(value | (halves & 0x8000u) << 16);
}

struct F16 {
  static constexpr int kPerWord = 2;
  static constexpr bool kCanLeaveRange = false;
  template <int e>
  static Float4 element(Word4 words) {
    return half_to_float(e == 0 ? words & 0xffffu : words >> 16);
  }
};

template <int bits, bool is_signed_type>
struct Integer {
  static constexpr int kPerWord = 32 / bits;
  static constexpr bool kCanLeaveRange = false;
  template <int e>
  static Float4 element(Word4 words) {
    const Word4 top = words << (32 - bits * (e + 1));
    if constexpr (is_signed_type) {
      return __builtin_convertvector(std::bit_cast<Int4>(top) >> (32 - bits), Float4);
    } else {
      return __builtin_convertvector(std::bit_cast<Int4>(top >> (32 - bits)), Float4);
    }
  }
};

// --- the dense matrices
// Every other column of a register of B, turned by 90 degrees: word t of all four in a vector.
struct FourColumns {
  explicit FourColumns(const uint32_t* from) {
    const auto c0 = load<Word4>(from), c1 = load<Word4>(from + 8);
    const auto c2 = load<Word4>(from + 16), c3 = load<Word4>(from + 24);
    const Word4 low01 = __builtin_shufflevector(c0, c1, 0, 4, 1, 5);
    const Word4 high01 = __builtin_shufflevector(c0, c1, 2, 6, 3, 7);
    const Word4 low23 = __builtin_shufflevector(c2, c3, 0, 4, 1, 5);
    const Word4 high23 = __builtin_shufflevector(c2, c3, 2, 6, 3, 7);
    words[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    words[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    words[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    words[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
  }
  Word4 words[4];
};

template <class A, class B, int rows, int words>
struct Tile {
  static constexpr int kRows = rows;
  static constexpr int kHalves = rows / 8;
  static constexpr int kWords = words;
  static constexpr int kPerWord = A::kPerWord;
  static constexpr int kDepth = words * kPerWord;
  static constexpr bool kCanLeaveRange = A::kCanLeaveRange;
  static constexpr int kRegistersOfA = kHalves * words / 4;
  static constexpr int kRegistersOfB = words / 4;
  static_assert(A::kPerWord == B::kPerWord && words % 4 == 0);

  using Elements = std::make_index_sequence<kPerWord>;

  void load_a(const Warp& warp, const Row* registers) {
    for (int r = 0; r < kRegistersOfA; ++r) {
      const uint32_t* row = warp.row<uint32_t>(registers[r]);
      for (int g = 0; g < 8; ++g)
        put_a(g + 8 * (r % kHalves), 4 * (r / kHalves), load<Word4>(row + 4 * g), Elements{});
    }
  }

  void load_b(const Warp& warp, const Row* registers) {
    for (int r = 0; r < kRegistersOfB; ++r) {
      const uint32_t* row = warp.row<uint32_t>(registers[r]);
      for (int odd = 0; odd < 2; ++odd) put_b(row + 4 * odd, 4 * r, 4 * odd, Elements{});
    }
  }

  alignas(32) float a[rows][kDepth];
  alignas(32) float b[kDepth][kColumns];

 private:
  template <size_t... e>
  void put_a(int row, int word, Word4 value, std::index_sequence<e...>) {
    (store(&a[row][static_cast<int>(e) * words + word], A::template element<e>(value)), ...);
  }

  template <size_t... e>
  void put_b(const uint32_t* from, int word, int column, std::index_sequence<e...>) {
    const FourColumns columns(from);
    for (int t = 0; t < 4; ++t) {
      (store(&b[static_cast<int>(e) * words + word + t][column],
             B::template element<e>(columns.words[t])),
       ...);
    }
  }
};

using Sums = float (*)[kColumns];

// A row of eight columns, and how many rows of accumulators fit the registers of the host.
struct Eight {
  Float4 low, high;
};
constexpr int kRowsAtOnce = 4;

template <class Tile, size_t... i>
void multiply_rows(const Tile& tile, int row, Sums sums, std::index_sequence<i...>) {
  Eight sum[sizeof...(i)] = {};
  const float* a[] = {tile.a[row + static_cast<int>(i)]...};
  for (int k = 0; k < Tile::kDepth; ++k) {
    const Eight b{load<Float4>(tile.b[k]), load<Float4>(tile.b[k] + 4)};
    ((sum[i] = {sum[i].low + same(a[i][k]) * b.low, sum[i].high + same(a[i][k]) * b.high}), ...);
  }
  ((store(sums[row + static_cast<int>(i)], sum[i].low),
    store(sums[row + static_cast<int>(i)] + 4, sum[i].high)),
   ...);
}

#if defined(__x86_64__)
constexpr int kRowsAtOnceAvx2 = 8;

// Not fused: a product that leaves the range of f32 would make other bits than on other hosts.
template <class Tile, size_t... i>
[[gnu::target("avx2")]] void multiply_rows_avx2(const Tile& tile, int row, Sums sums,
                                                std::index_sequence<i...>) {
  __m256 sum[sizeof...(i)] = {};
  const float* a[] = {tile.a[row + static_cast<int>(i)]...};
  for (int k = 0; k < Tile::kDepth; ++k) {
    const __m256 b = _mm256_loadu_ps(tile.b[k]);
    ((sum[i] = _mm256_add_ps(sum[i], _mm256_mul_ps(_mm256_broadcast_ss(a[i] + k), b))), ...);
  }
  (_mm256_storeu_ps(sums[row + static_cast<int>(i)], sum[i]), ...);
}
#endif

template <class Tile>
void multiply(const Tile& tile, Sums sums) {
#if defined(__x86_64__)
  if (host_vectors() == HostVectors::avx2) {
    for (int row = 0; row < Tile::kRows; row += kRowsAtOnceAvx2)
      multiply_rows_avx2(tile, row, sums, std::make_index_sequence<kRowsAtOnceAvx2>{});
    return;
  }
#endif
  for (int row = 0; row < Tile::kRows; row += kRowsAtOnce)
    multiply_rows(tile, row, sums, std::make_index_sequence<kRowsAtOnce>{});
}

// --- accumulators. Half 0 of a row is its even columns, half 1 its odd ones.
struct F32Accumulator {
  static constexpr int kRegistersPerHalf = 2;  // of the rows
  static Float4 read(const uint32_t* const* registers, int row, int odd) {
    return load<Float4>(registers[2 * (row / 8) + odd] + 4 * (row % 8));
  }
  static void write(uint32_t* const* registers, int row, Float4 even, Float4 odd) {
    store(registers[2 * (row / 8)] + 4 * (row % 8), canonical(even));
    store(registers[2 * (row / 8) + 1] + 4 * (row % 8), canonical(odd));
  }
  static Word4 canonical(Float4 value) {
    return value != value ? same(kNan32) : std::bit_cast<Word4>(value);
  }
};

Word4 float_to_half(Float4 value) {
  const Word4 bits = std::bit_cast<Word4>(value);
  const Word4 magnitude = bits & 0x7fffffffu;
  // Adding 0.5 leaves the subnormal, rounded, in the low bits.
  const Word4 small =
      std::bit_cast<Word4>(std::bit_cast<Float4>(magnitude) + same(0.5f)) - 0x3f000000u;
  const Word4 rounded = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  Word4 half = magnitude < 0x38800000u ? small : rounded;
  half = magnitude >= 0x47800000u ? same(0x7c00u) : half;
  half |= bits >> 16 & 0x8000u;
  return magnitude > 0x7f800000u ? same(kNan16) : half;
}

struct F16Accumulator {
  static constexpr int kRegistersPerHalf = 1;
  static Float4 read(const uint32_t* const* registers, int row, int odd) {
    const auto pair = load<Word4>(registers[row / 8] + 4 * (row % 8));
    return half_to_float(odd == 0 ? pair & 0xffffu : pair >> 16);
  }
  static void write(uint32_t* const* registers, int row, Float4 even, Float4 odd) {
    store(registers[row / 8] + 4 * (row % 8), float_to_half(even) | float_to_half(odd) << 16);
  }
};

// --- handlers. Rows: members (all lanes), D, A, B, C.
constexpr int kFirstOfD = 1;

std::string lane_list(uint32_t lanes) {
  std::string text;
  each_lane(lanes, [&](int lane) { text += fmt::format("{}{}", text.empty() ? "" : ", ", lane); });
  return text;
}

void require_whole_warp(uint32_t mask) {
  if (mask == kAllLanes) return;
  throw Fault(fmt::format("an instruction for whole warps (.aligned) is executed without lanes {}",
                          lane_list(~mask)),
              std::countr_zero(mask));
}

template <class Pointer, int count>
struct Registers {
  Registers(const Warp& warp, const Row* rows) {
    for (int i = 0; i < count; ++i) pointers[i] = warp.row<uint32_t>(rows[i]);
  }
  Pointer pointers[count];
};

// Marks sums that may have lost something: not finite, or so small that products may have been
// rounded to multiples of 2^-149.
Word4 outside_range(Float4 sum) {
  constexpr uint32_t kSmall = (127 - 100) * 2 << 23;  // of the bits without the sign
  const Word4 magnitude = std::bit_cast<Word4>(sum) << 1;
  const auto small = std::bit_cast<Word4>(magnitude - 1u < kSmall);  // zero is none
  return small | std::bit_cast<Word4>(magnitude >= 0xff000000u);
}

bool any(Word4 marks) {
  const auto halves = std::bit_cast<std::array<uint64_t, 2>>(marks);
  return (halves[0] | halves[1]) != 0;
}

// `sums` is C before and D after.
template <class Tile>
[[gnu::noinline]] void add_exactly(const Tile& tile, Sums sums) {
  for (int row = 0; row < Tile::kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      double sum = 0;
      for (int k = 0; k < Tile::kDepth; ++k)
        sum += static_cast<double>(tile.a[row][k]) * static_cast<double>(tile.b[k][column]);
      sums[row][column] = static_cast<float>(sum + static_cast<double>(sums[row][column]));
    }
  }
}

template <class A, class B, class D, class C, int rows, int words>
void multiply_floats(Warp& warp, const Instruction& instruction, uint32_t mask) {
  require_whole_warp(mask);
  ++warp.mmas;
  using Operands = Tile<A, B, rows, words>;
  constexpr int kRegistersOfD = D::kRegistersPerHalf * Operands::kHalves;
  constexpr int kRegistersOfC = C::kRegistersPerHalf * Operands::kHalves;
  const Row* const row_of_a = instruction.rows + kFirstOfD + kRegistersOfD;
  const Row* const row_of_b = row_of_a + Operands::kRegistersOfA;
  const Row* const row_of_c = row_of_b + Operands::kRegistersOfB;
  Operands tile;
  tile.load_a(warp, row_of_a);
  tile.load_b(warp, row_of_b);
  alignas(32) float sums[rows][kColumns];
  multiply(tile, sums);

  // All of C is read before D is written: their registers may be the same ones in another order.
  const Registers<const uint32_t*, kRegistersOfC> c(warp, row_of_c);
  Word4 outside{};
  alignas(32) float addends[rows][kColumns];
  for (int row = 0; row < rows; ++row) {
    for (int odd = 0; odd < 2; ++odd) {
      const Float4 addend = C::read(c.pointers, row, odd);
      const Float4 sum = load<Float4>(sums[row] + 4 * odd) + addend;
      store(sums[row] + 4 * odd, sum);
      if constexpr (Operands::kCanLeaveRange) {
        store(addends[row] + 4 * odd, addend);
        outside |= outside_range(sum);
      }
    }
  }
  if (Operands::kCanLeaveRange && any(outside)) {
    std::memcpy(sums, addends, sizeof(sums));
    add_exactly(tile, sums);
  }
  const Registers<uint32_t*, kRegistersOfD> d(warp, instruction.rows + kFirstOfD);
  for (int row = 0; row < rows; ++row)
    D::write(d.pointers, row, load<Float4>(sums[row]), load<Float4>(sums[row] + 4));
}

// The sum is past an end where both addends have the sign that it has not.
Int4 add_saturating(Int4 a, Int4 b) {
  const Int4 sum = std::bit_cast<Int4>(std::bit_cast<Word4>(a) + std::bit_cast<Word4>(b));
  const Int4 end = std::bit_cast<Int4>(std::bit_cast<Word4>(a >> 31) ^ 0x7fffffffu);
  return ((sum ^ a) & (sum ^ b)) < 0 ? end : sum;
}

// D = sums + C for integers, with the columns of `sums` in the order of the tile.
template <int rows>
void finish_integers(Warp& warp, const Instruction& instruction, const Row* row_of_c,
                     Int4 (&sums)[rows][2]) {
  constexpr int kCount = rows / 4;
  const Registers<const uint32_t*, kCount> c(warp, row_of_c);
  for (int row = 0; row < rows; ++row) {
    for (int odd = 0; odd < 2; ++odd) {
      const auto addend = load<Word4>(c.pointers[2 * (row / 8) + odd] + 4 * (row % 8));
      Int4& sum = sums[row][odd];
      sum = instruction.saturates ? add_saturating(sum, std::bit_cast<Int4>(addend))
                                  : std::bit_cast<Int4>(std::bit_cast<Word4>(sum) + addend);
    }
  }
  const Registers<uint32_t*, kCount> d(warp, instruction.rows + kFirstOfD);
  for (int row = 0; row < rows; ++row) {
    for (int odd = 0; odd < 2; ++odd)
      store(d.pointers[2 * (row / 8) + odd] + 4 * (row % 8), sums[row][odd]);
  }
}

// Floats hold these integers: 64 products of 4 bits, or 32 of 8 bits, stay below 2^24.
template <class A, class B, int rows, int words>
void multiply_integers(Warp& warp, const Instruction& instruction, uint32_t mask) {
  require_whole_warp(mask);
  ++warp.mmas;
  using Operands = Tile<A, B, rows, words>;
  const Row* const row_of_a = instruction.rows + kFirstOfD + rows / 4;
  const Row* const row_of_b = row_of_a + Operands::kRegistersOfA;
  Operands tile;
  tile.load_a(warp, row_of_a);
  tile.load_b(warp, row_of_b);
  alignas(32) float sums[rows][kColumns];
  multiply(tile, sums);
  Int4 integers[rows][2];
  for (int row = 0; row < rows; ++row) {
    for (int odd = 0; odd < 2; ++odd) {
      integers[row][odd] = __builtin_convertvector(load<Float4>(sums[row] + 4 * odd), Int4);
    }
  }
  finish_integers<rows>(warp, instruction, row_of_b + Operands::kRegistersOfB, integers);
}

enum class BitOperation : uint8_t { exclusive_or, conjunction };

Word4 count_ones(Word4 words) {
  words -= words >> 1 & 0x55555555u;
  words = (words & 0x33333333u) + (words >> 2 & 0x33333333u);
  words = (words + (words >> 4)) & 0x0f0f0f0fu;
  words += words >> 8;
  return (words + (words >> 16)) & 0x3fu;
}

template <BitOperation operation, int rows, int words>
void multiply_bits(Warp& warp, const Instruction& instruction, uint32_t mask) {
  require_whole_warp(mask);
  ++warp.mmas;
  constexpr int kHalves = rows / 8;
  constexpr int kRegistersOfA = kHalves * words / 4;
  const Row* const row_of_a = instruction.rows + kFirstOfD + rows / 4;
  const Row* const row_of_b = row_of_a + kRegistersOfA;
  const Registers<const uint32_t*, kRegistersOfA> a(warp, row_of_a);
  Int4 sums[rows][2] = {};
  for (int r = 0; r < words / 4; ++r) {
    const uint32_t* const b = warp.row<uint32_t>(row_of_b[r]);
    for (int odd = 0; odd < 2; ++odd) {
      const FourColumns columns(b + 4 * odd);
      for (int row = 0; row < rows; ++row) {
        const uint32_t* const row_words = a.pointers[r * kHalves + row / 8] + 4 * (row % 8);
        for (int t = 0; t < 4; ++t) {
          const Word4 from_a = same(row_words[t]);
          sums[row][odd] += std::bit_cast<Int4>(count_ones(operation == BitOperation::exclusive_or
                                                               ? from_a ^ columns.words[t]
                                                               : from_a & columns.words[t]));
        }
      }
    }
  }
  finish_integers<rows>(warp, instruction, row_of_b + words / 4, sums);
}

// m8n8k4: A has element (g, t) and B element (t, g) of a lane.
void multiply_doubles(Warp& warp, const Instruction& instruction, uint32_t mask) {
  require_whole_warp(mask);
  ++warp.mmas;
  const FloatMode mode({.rounding = instruction.rounding, .flushes = instruction.flushes});
  const Row* rows = instruction.rows + kFirstOfD;
  const double* a = warp.row<double>(rows[2]);
  const double* b = warp.row<double>(rows[3]);
  double sums[2][kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 2; ++i) {
      const double* row_of_a = a + 4 * (lane / 4);
      const double* column_of_b = b + 4 * (lane % 4 * 2 + i);
      double sum = warp.row<double>(rows[4 + i])[lane];
      for (int k = 0; k < 4; ++k) sum = std::fma(row_of_a[k], column_of_b[k], sum);
      sums[i][lane] = sum;
    }
  }
  for (int i = 0; i < 2; ++i) std::memcpy(warp.row<double>(rows[i]), sums[i], sizeof(sums[i]));
}

// Lane 4 * row + t has columns 2t and 2t + 1 of a row. Rows: members, d, a.
void transpose_matrix(Warp& warp, const Instruction& instruction, uint32_t mask) {
  require_whole_warp(mask);
  uint16_t matrix[8][8];
  std::memcpy(matrix, warp.row<uint32_t>(instruction.rows[2]), sizeof(matrix));
  uint16_t transposed[8][8];
  for (int row = 0; row < 8; ++row) {
    for (int column = 0; column < 8; ++column) transposed[column][row] = matrix[row][column];
  }
  std::memcpy(warp.row<uint32_t>(instruction.rows[1]), transposed, sizeof(transposed));
}

// --- binding
struct Form {
  std::string_view shape;
  std::string_view d, a, b, c;
  Handler handler;
  // Registers of each operand.
  int of_d, of_a, of_b, of_c;
};

template <class A, class D, class C, int words>
constexpr Form floats(std::string_view shape, std::string_view d, std::string_view ab,
                      std::string_view c) {
  using Operands = Tile<A, A, 16, words>;
  return {shape,
          d,
          ab,
          ab,
          c,
          multiply_floats<A, A, D, C, 16, words>,
          2 * D::kRegistersPerHalf,
          Operands::kRegistersOfA,
          Operands::kRegistersOfB,
          2 * C::kRegistersPerHalf};
}

template <class A, class B, int rows, int words>
constexpr Form integers(std::string_view shape, std::string_view a, std::string_view b) {
  using Operands = Tile<A, B, rows, words>;
  return {shape,
          "s32",
          a,
          b,
          "s32",
          multiply_integers<A, B, rows, words>,
          rows / 4,
          Operands::kRegistersOfA,
          Operands::kRegistersOfB,
          rows / 4};
}

template <int rows, int words>
constexpr Form bits(std::string_view shape, BitOperation operation) {
  return {shape,
          "s32",
          "b1",
          "b1",
          "s32",
          operation == BitOperation::exclusive_or
              ? multiply_bits<BitOperation::exclusive_or, rows, words>
              : multiply_bits<BitOperation::conjunction, rows, words>,
          rows / 4,
          rows / 8 * words / 4,
          words / 4,
          rows / 4};
}

using S8 = Integer<8, true>;
using U8 = Integer<8, false>;
using S4 = Integer<4, true>;
using U4 = Integer<4, false>;

constexpr Form kForms[] = {
    floats<Bf16, F32Accumulator, F32Accumulator, 4>("m16n8k8", "f32", "bf16", "f32"),
    floats<Bf16, F32Accumulator, F32Accumulator, 8>("m16n8k16", "f32", "bf16", "f32"),
    floats<F16, F32Accumulator, F32Accumulator, 4>("m16n8k8", "f32", "f16", "f32"),
    floats<F16, F32Accumulator, F16Accumulator, 4>("m16n8k8", "f32", "f16", "f16"),
    floats<F16, F16Accumulator, F32Accumulator, 4>("m16n8k8", "f16", "f16", "f32"),
    floats<F16, F16Accumulator, F16Accumulator, 4>("m16n8k8", "f16", "f16", "f16"),
    floats<F16, F32Accumulator, F32Accumulator, 8>("m16n8k16", "f32", "f16", "f32"),
    floats<F16, F32Accumulator, F16Accumulator, 8>("m16n8k16", "f32", "f16", "f16"),
    floats<F16, F16Accumulator, F32Accumulator, 8>("m16n8k16", "f16", "f16", "f32"),
    floats<F16, F16Accumulator, F16Accumulator, 8>("m16n8k16", "f16", "f16", "f16"),
    floats<Tf32, F32Accumulator, F32Accumulator, 4>("m16n8k4", "f32", "tf32", "f32"),
    floats<Tf32, F32Accumulator, F32Accumulator, 8>("m16n8k8", "f32", "tf32", "f32"),
    integers<S8, S8, 8, 4>("m8n8k16", "s8", "s8"),
    integers<S8, U8, 8, 4>("m8n8k16", "s8", "u8"),
    integers<U8, S8, 8, 4>("m8n8k16", "u8", "s8"),
    integers<U8, U8, 8, 4>("m8n8k16", "u8", "u8"),
    integers<S8, S8, 16, 4>("m16n8k16", "s8", "s8"),
    integers<S8, U8, 16, 4>("m16n8k16", "s8", "u8"),
    integers<U8, S8, 16, 4>("m16n8k16", "u8", "s8"),
    integers<U8, U8, 16, 4>("m16n8k16", "u8", "u8"),
    integers<S8, S8, 16, 8>("m16n8k32", "s8", "s8"),
    integers<S8, U8, 16, 8>("m16n8k32", "s8", "u8"),
    integers<U8, S8, 16, 8>("m16n8k32", "u8", "s8"),
    integers<U8, U8, 16, 8>("m16n8k32", "u8", "u8"),
    integers<S4, S4, 8, 4>("m8n8k32", "s4", "s4"),
    integers<S4, U4, 8, 4>("m8n8k32", "s4", "u4"),
    integers<U4, S4, 8, 4>("m8n8k32", "u4", "s4"),
    integers<U4, U4, 8, 4>("m8n8k32", "u4", "u4"),
    integers<S4, S4, 16, 4>("m16n8k32", "s4", "s4"),
    integers<S4, U4, 16, 4>("m16n8k32", "s4", "u4"),
    integers<U4, S4, 16, 4>("m16n8k32", "u4", "s4"),
    integers<U4, U4, 16, 4>("m16n8k32", "u4", "u4"),
    integers<S4, S4, 16, 8>("m16n8k64", "s4", "s4"),
    integers<S4, U4, 16, 8>("m16n8k64", "s4", "u4"),
    integers<U4, S4, 16, 8>("m16n8k64", "u4", "s4"),
    integers<U4, U4, 16, 8>("m16n8k64", "u4", "u4"),
    {"m8n8k4", "f64", "f64", "f64", "f64", multiply_doubles, 2, 1, 1, 2},
};

constexpr Form kBitForms[][2] = {
    {bits<8, 4>("m8n8k128", BitOperation::exclusive_or),
     bits<8, 4>("m8n8k128", BitOperation::conjunction)},
    {bits<16, 4>("m16n8k128", BitOperation::exclusive_or),
     bits<16, 4>("m16n8k128", BitOperation::conjunction)},
    {bits<16, 8>("m16n8k256", BitOperation::exclusive_or),
     bits<16, 8>("m16n8k256", BitOperation::conjunction)},
};

// Types of one element, in the order of the name: d, a, b, c.
bool is_element(std::string_view part) {
  for (const std::string_view known :
       {"f16", "bf16", "tf32", "f32", "f64", "s8", "u8", "s4", "u4", "b1", "s32"}) {
    if (part == known) return true;
  }
  return false;
}

std::vector<std::string_view> take_elements(Binder& binder) {
  std::vector<std::string_view> elements;
  for (const std::string_view part : binder.statement().name) {
    if (is_element(part) && binder.take(part)) elements.push_back(part);
  }
  return elements;
}

std::string_view take_shape(Binder& binder) {
  for (const std::string_view part : binder.statement().name) {
    if (part.starts_with('m') && part.find('k') != part.npos && binder.take(part)) return part;
  }
  return "";
}

const Form* find_form(Binder& binder, std::string_view shape,
                      const std::vector<std::string_view>& elements) {
  if (elements.size() != 4) return nullptr;
  const auto fits = [&](const Form& form) {
    return form.shape == shape && form.d == elements[0] && form.a == elements[1] &&
           form.b == elements[2] && form.c == elements[3];
  };
  for (const Form& form : kForms) {
    if (fits(form)) return &form;
  }
  for (const Form(&forms)[2] : kBitForms) {
    if (!fits(forms[0])) continue;
    const bool is_and = binder.take("and");
    if (!is_and && !binder.take("xor")) return nullptr;
    return binder.take("popc") ? &forms[is_and ? 1 : 0] : nullptr;
  }
  return nullptr;
}

Type register_type(std::string_view element) {
  if (element == "f64") return Type::f64;
  return element == "f32" ? Type::f32 : Type::b32;
}

enum class Access : uint8_t { read, write };

// One register may stand without braces.
void bind_fragment(Binder& binder, int index, int count, std::string_view element, Access access) {
  const Operand& operand = binder.operand(index);
  const bool is_group = operand.kind == Operand::Kind::group;
  const size_t found = is_group ? operand.parts.size() : 1;
  if (found != static_cast<size_t>(count)) {
    binder.unsupported(
        fmt::format("operand {} has {} registers, expected {}", index + 1, found, count));
  }
  for (size_t i = 0; i < found; ++i) {
    const Operand& part = is_group ? operand.parts[i] : operand;
    if (access == Access::write) {
      binder.target(part, register_type(element));
    } else {
      binder.source(part, register_type(element));
    }
  }
}

void bind_multiply(Binder& binder) {
  if (binder.take("sp") || binder.take("sp::ordered_metadata"))
    binder.unsupported("mma of sparse matrices is not simulated");
  bind_whole_warp(binder);
  const std::string_view shape = take_shape(binder);
  const std::vector<std::string_view> elements = take_elements(binder);
  if (shape == "m8n8k4" && !elements.empty() && elements[0] != "f64") {
    binder.unsupported("the Volta shape m8n8k4 of f16 is not simulated; m16n8k8 and m16n8k16 are");
  }
  const Form* form = find_form(binder, shape, elements);
  if (form == nullptr)
    binder.unsupported("sm_80 has no such combination of shape and types, or it is not simulated");
  if (!binder.take("row") || !binder.take("col"))
    binder.unsupported("the layouts are .row for A and .col for B");
  Instruction& instruction = binder.instruction();
  if (form->d == "s32" && form->a != "b1") instruction.saturates = binder.take("satfinite");
  if (form->d == "f64") instruction.rounding = binder.take_rounding();
  binder.require_operands(4, 4);
  bind_fragment(binder, 0, form->of_d, form->d, Access::write);
  bind_fragment(binder, 1, form->of_a, form->a, Access::read);
  bind_fragment(binder, 2, form->of_b, form->b, Access::read);
  bind_fragment(binder, 3, form->of_c, form->c, Access::read);
  instruction.handler = form->handler;
}

void bind_transpose(Binder& binder) {
  bind_whole_warp(binder);
  for (const std::string_view part : {"m8n8", "trans", "b16"}) {
    if (!binder.take(part)) binder.unsupported("expected .m8n8.trans.b16");
  }
  binder.require_operands(2, 2);
  binder.target(binder.operand(0), Type::b32);
  binder.source(binder.operand(1), Type::b32);
  binder.instruction().handler = transpose_matrix;
}

}  // namespace

bool bind_mma(Binder& binder) {
  const std::string_view op = binder.op();
  if (op == "mma") {
    bind_multiply(binder);
  } else if (op == "movmatrix") {
    bind_transpose(binder);
  } else if (op == "wmma") {
    binder.unsupported("wmma is not simulated; mma.sync with ldmatrix does the same");
  } else if (op == "wgmma" || op == "tcgen05") {
    binder.unsupported("the instruction needs sm_90 or later; the simulator executes sm_80");
  } else {
    return false;
  }
  return true;
}

}  // namespace kiln::runtime::sim
