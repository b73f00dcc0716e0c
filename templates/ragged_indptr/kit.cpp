// Inputs, truth and oracle of ragged_indptr.
//
// Knobs of a case: len_low, len_high (lens[t]), padded_rows (at the end: length 0), wild (one in so
// many lengths is below 0 or beyond the width; 0: none).
#include <algorithm>
#include <vector>

#include "templates/kit_batch.h"

namespace kiln::templates {

extern const Op ragged_indptr;
extern const Kit ragged_indptr_kit;

namespace {

enum Stream : uint64_t { kLength, kWild, kWhich, kSlot };

int64_t stored_length(const Case& c, int64_t t) {
  if (t >= c.sizes["T"] - c.knobs.get("padded_rows", 0)) return 0;
  if (one_in(c, "wild", kWild, t))
    return any_of(c, kWhich, t, {-1, kLeastInt32, c.sizes["W"] + 1, kLargestInt32});
  return counter_range(c.seed, kLength, static_cast<uint64_t>(t), c.knobs["len_low"],
                       c.knobs["len_high"]);
}

int32_t slot_at(const Case& c, int64_t t, int64_t column) {
  const uint64_t bits =
      counter_bits(c.seed, kSlot, static_cast<uint64_t>(t * c.sizes["W"] + column));
  return bits % 16 == 0 ? -1 : static_cast<int32_t>(bits >> 33);
}

// Begin of each row and the end of all, whatever the capacity.
const std::vector<int64_t>& begins(const Case& c) {
  return made_once<std::vector<int64_t>>(c, [](const Case& of) {
    std::vector<int64_t> begins{0};
    for (int64_t t = 0; t < of.sizes["T"]; ++t) {
      const int64_t length = std::clamp<int64_t>(stored_length(of, t), 0, of.sizes["W"]);
      begins.push_back(begins.back() + length);
    }
    return begins;
  });
}

Case make_case(std::string name, int64_t rows, int64_t width, NamedInts knobs, uint64_t seed = 1) {
  Case c{.name = std::move(name), .knobs = std::move(knobs), .seed = seed};
  c.sizes = {{"T", rows}, {"W", width}, {"N", rows * width}};
  return c;
}

Case measured_case(const Sizes&, const Sizes& bucket) {
  return make_case("measured", bucket["T"], 512, {{"len_low", 512}, {"len_high", 512}});
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  cases.push_back(make_case("any lengths", 83, 512, {{"len_low", 0}, {"len_high", 512}}, 2));
  cases.push_back(make_case("lengths below zero and beyond the width", 77, 60,
                            {{"len_low", 0}, {"len_high", 60}, {"wild", 3}}, 3));
  cases.push_back(make_case("padded rows", 64, 130,
                            {{"len_low", 0}, {"len_high", 130}, {"padded_rows", 15}}, 4));
  cases.push_back(make_case("all lengths zero", 33, 128, {{"len_low", 0}, {"len_high", 0}}, 5));
  cases.push_back(make_case("many short rows", 2777, 3, {{"len_low", 0}, {"len_high", 3}}, 6));
  Case small =
      make_case("more than indices has room for", 40, 100, {{"len_low", 0}, {"len_high", 100}}, 7);
  small.sizes.set("N", 1111);
  cases.push_back(small);
  Case none = make_case("no room", 7, 20, {{"len_low", 1}, {"len_high", 20}}, 8);
  none.sizes.set("N", 0);
  cases.push_back(none);
  Case odd = make_case("odd strides, room to spare", 19, 37, {{"len_low", 0}, {"len_high", 37}}, 9);
  odd.sizes.set("N", odd.sizes["N"] + 100);
  odd.strides = {{"slots_stride", 41}};
  cases.push_back(odd);
  cases.push_back(make_case("no column", 9, 0, {{"len_low", 0}, {"len_high", 5}}, 10));
  cases.push_back(make_case("no row", 0, 512, {{"len_low", 1}, {"len_high", 9}}));
  cases.push_back(make_case("one row", 1, 700, {{"len_low", 699}, {"len_high", 699}}, 11));
  cases.push_back(measured_case(fixed_sizes, bucket));
  return cases;
}

std::vector<Case> replay_cases(const Sizes&) {
  const auto with = [](const char* name, NamedInts knobs, uint64_t seed) {
    return make_case(name, 90, 200, std::move(knobs), seed);
  };
  return {
      with("full", {{"len_low", 200}, {"len_high", 200}}, 1),
      with("padded", {{"len_low", 0}, {"len_high", 200}, {"padded_rows", 31}}, 2),
      with("all lengths zero", {{"len_low", 0}, {"len_high", 0}}, 3),
      with("all padding", {{"len_low", 5}, {"len_high", 9}, {"padded_rows", 90}}, 4),
      with("full again", {{"len_low", 0}, {"len_high", 200}, {"wild", 4}}, 5),
  };
}

std::vector<Case> large_cases(const Sizes&) {
  std::vector<Case> cases;
  for (const int64_t rows : {65535, 65536, 65537})
    cases.push_back(
        make_case(fmt::format("{} rows", rows), rows, 40, {{"len_low", 0}, {"len_high", 40}}));
  Case far = make_case("rows beyond 2^31 elements", 18, 600, {{"len_low", 100}, {"len_high", 600}});
  far.strides = {{"slots_stride", int64_t{1} << 27}};
  cases.push_back(far);
  return cases;
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  auto* values = reinterpret_cast<int32_t*>(row.data());
  const int64_t count = static_cast<int64_t>(row.size() / sizeof(int32_t));
  for (int64_t i = 0; i < count; ++i) {
    values[i] =
        arg.name == "slots" ? slot_at(c, outer[0], i) : static_cast<int32_t>(stored_length(c, i));
  }
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  const std::vector<int64_t>& all = begins(c);
  const int64_t at = index[0];
  if (arg.name == "indptr")
    return static_cast<double>(std::min(all[static_cast<size_t>(at)], c.sizes["N"]));
  if (at >= all.back()) return std::nullopt;
  const int64_t t = last_at_most(all, at);
  return slot_at(c, t, at - all[static_cast<size_t>(t)]);
}

KernelLaunch oracle(const Sizes&) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "ragged_indptr_oracle"};
  launch.grid_x = {.offset = 1, .terms = {{"T"}}};
  launch.threads = 32;
  return launch;
}

}  // namespace

const Kit ragged_indptr_kit{
    .op = &ragged_indptr,
    .measured_case = measured_case,
    .verify_cases = verify_cases,
    .replay_cases = replay_cases,
    .large_cases = large_cases,
    .fill = fill,
    .expected = expected,
    .oracle = oracle,
};

}  // namespace kiln::templates
