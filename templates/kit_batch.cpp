#include "templates/kit_batch.h"

#include <algorithm>

namespace kiln::templates {
namespace {

enum Stream : uint64_t { kCuts, kPrefix };
static_assert(kPrefix + 1 == kBatchStreams);

}  // namespace

Batch cut_batch(int64_t rows, int64_t requests, const NamedInts& knobs, uint64_t seed) {
  const int64_t real_rows = std::max<int64_t>(rows - knobs.get("padded_rows", 0), 0);
  Batch batch;
  batch.first_row.push_back(0);
  for (int64_t b = 1; b < requests; ++b) {
    const int64_t even = real_rows * b / requests;
    const int64_t random = counter_range(seed, kCuts, static_cast<uint64_t>(b), 0, real_rows);
    batch.first_row.push_back(knobs.get("uneven", 0) != 0 ? random : even);
  }
  std::sort(batch.first_row.begin(), batch.first_row.end());
  if (requests > 0) batch.first_row.push_back(real_rows);
  const bool zero = knobs.get("zero_lengths", 0) != 0;
  for (int64_t b = 0; b < requests; ++b) {
    const auto at = static_cast<size_t>(b);
    const std::string query = fmt::format("query_{}", b), prefix = fmt::format("prefix_{}", b);
    if (knobs.contains(query)) batch.first_row[at + 1] = batch.first_row[at] + knobs[query];
    const int64_t drawn = counter_range(seed, kPrefix, static_cast<uint64_t>(b),
                                        knobs.get("prefix_low", 0), knobs.get("prefix_high", 0));
    batch.prefix.push_back(knobs.get(prefix, drawn));
    batch.seq_len.push_back(zero ? 0 : batch.prefix.back() + batch.query(b));
  }
  return batch;
}

int64_t last_at_most(const std::vector<int64_t>& sorted, int64_t value) {
  return std::upper_bound(sorted.begin(), sorted.end(), value) - sorted.begin() - 1;
}

Token token_at(const Batch& batch, int64_t t) {
  if (t >= batch.first_row.back()) return {};
  const int64_t b = last_at_most(batch.first_row, t);
  const auto at = static_cast<size_t>(b);
  return {b, batch.seq_len[at] - batch.query(b) + (t - batch.first_row[at])};
}

bool one_in(const Case& c, const char* knob, uint64_t stream, int64_t index) {
  const int64_t many = c.knobs.get(knob, 0);
  return many > 0 && counter_range(c.seed, stream, static_cast<uint64_t>(index), 0, many - 1) == 0;
}

int64_t any_of(const Case& c, uint64_t stream, int64_t index,
               std::initializer_list<int64_t> values) {
  const auto last = static_cast<int64_t>(values.size()) - 1;
  return values.begin()[counter_range(c.seed, stream, static_cast<uint64_t>(index), 0, last)];
}

int64_t not_below(const Case& c, uint64_t stream, int64_t index, int64_t count) {
  return any_of(c, stream, index, {-1, count, kLargestInt32, kLeastInt32});
}

void fill_validity(std::span<std::byte> row, const std::function<bool(int64_t t)>& is_padding) {
  for (size_t t = 0; t < row.size(); ++t) {
    const bool padding = is_padding(static_cast<int64_t>(t));
    row[t] = std::byte{static_cast<unsigned char>(padding ? 0 : 1 + t % 255)};
  }
}

}  // namespace kiln::templates
