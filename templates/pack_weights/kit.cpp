// Inputs, truth and oracle of pack_weights. Codes are any bytes: NaN codes are copied too.
//
// Knobs of a case: order (0: random bytes; 1: bytes count up along the rows, so that 256 rows show
// every code at every place of a word).
#include <algorithm>
#include <vector>

#include "templates/kit.h"

namespace kiln::templates {

extern const Op pack_weights;
extern const Kit pack_weights_kit;

namespace {

enum class Order : int64_t { random = 0, counted = 1 };

int code_at(const Case& c, int64_t row, int64_t column) {
  if (column >= c.sizes["K"]) return 0;
  if (static_cast<Order>(c.knobs.get("order", 0)) == Order::counted)
    return static_cast<int>((row + 64 * (column % 4) + 37 * (column / 4)) & 255);
  const auto place = static_cast<uint64_t>(row * c.sizes["K"] + column);
  return static_cast<int>(counter_bits(c.seed, 0, place / 8) >> (8 * (place % 8)) & 255);
}

// Where bits 0..7 of the codes a and b stand in a half word, by the drawing in the description.
constexpr int kPlaceOfA[] = {4, 5, 6, 7, 8, 9, 10, 15};
constexpr int kPlaceOfB[] = {0, 1, 2, 3, 12, 13, 14, 11};

std::optional<double> expected(const Case& c, const Arg&, std::span<const int64_t> index) {
  const int64_t block = index[1] / 512;
  const int64_t row = 8 * index[0] + index[1] % 512 / 64;
  const int64_t word = index[1] % 64 / 4;
  const int64_t byte = index[1] % 4;
  const int64_t column = 64 * block + 4 * word + byte / 2;
  const int a = code_at(c, row, column);
  const int b = code_at(c, row, column + 2);
  int half = 0;
  for (int bit = 0; bit < 8; ++bit)
    half |= (a >> bit & 1) << kPlaceOfA[bit] | (b >> bit & 1) << kPlaceOfB[bit];
  return half >> (8 * (byte % 2)) & 255;
}

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, int64_t columns,
               Order order = Order::random) {
  return Case{.name = std::move(name),
              .sizes = fixed_sizes.merged({{"R", rows}, {"K", columns}}),
              .knobs = {{"order", static_cast<int64_t>(order)}}};
}

Case measured_case(const Sizes& fixed_sizes, const Sizes&) {
  return make_case("measured", fixed_sizes, 5120, 4096);
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes&) {
  std::vector<Case> cases{
      make_case("every code at every place", fixed_sizes, 256, 64, Order::counted),
      make_case("no row", fixed_sizes, 0, 64),
      make_case("half a block", fixed_sizes, 32, 32),
      make_case("half a block at the end of a row", fixed_sizes, 288, 160),
      make_case("one more row of blocks", fixed_sizes, 1024, 1152),
  };
  Case padded = make_case("padded strides", fixed_sizes, 96, 288);
  padded.strides = {{"w_stride", 288 + 16}, {"packed_stride", 5 * 512 + 48}};
  cases.push_back(padded);
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  for (const uint64_t seed : {1, 2, 3}) {
    cases.push_back(make_case("other codes", fixed_sizes, 64, 96));
    cases.back().seed = seed;
  }
  return cases;
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  Case far = make_case("rows beyond 2^31 bytes", fixed_sizes, 32, 96);
  far.strides = {{"w_stride", int64_t{1} << 27}, {"packed_stride", (int64_t{1} << 30) + 512}};
  return {make_case("more than 65535 rows of blocks", fixed_sizes, 65536 * 8 + 32, 32), far};
}

void fill(const Case& c, const Arg&, std::span<const int64_t> outer, std::span<std::byte> row) {
  for (size_t column = 0; column < row.size(); ++column)
    row[column] = static_cast<std::byte>(code_at(c, outer[0], static_cast<int64_t>(column)));
}

KernelLaunch oracle(const Sizes&) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "pack_weights_oracle"};
  launch.grid_x = {.terms = {{.symbol = "R", .divisor = 8}}};
  launch.threads = 128;
  return launch;
}

}  // namespace

const Kit pack_weights_kit{
    .op = &pack_weights,
    .measured_case = measured_case,
    .verify_cases = verify_cases,
    .replay_cases = replay_cases,
    .large_cases = large_cases,
    .fill = fill,
    .expected = expected,
    .oracle = oracle,
};

}  // namespace kiln::templates
