// What the kits of the ops over a batch of requests share: rows cut into requests, and draws of
// what an op has to refuse or to survive.
//
// Knobs of a case: padded_rows (rows after the last request), first_row (query_start_loc[0]),
// uneven (1: random request sizes, some 0), prefix_low, prefix_high (context before the step),
// query_<b>, prefix_<b> (of one request, given), zero_lengths (1: seq_lens are 0).
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <span>
#include <vector>

#include "templates/kit.h"

namespace kiln::templates {

constexpr uint64_t kBatchStreams = 2;  // streams of a kit that cuts batches begin here

constexpr int64_t kLargestInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kLeastInt32 = std::numeric_limits<int32_t>::min();

struct Batch {
  std::vector<int64_t> first_row;  // R + 1, without the base
  std::vector<int64_t> prefix;
  std::vector<int64_t> seq_len;

  int64_t query(int64_t b) const {
    return first_row[static_cast<size_t>(b) + 1] - first_row[static_cast<size_t>(b)];
  }
};
Batch cut_batch(int64_t rows, int64_t requests, const NamedInts& knobs, uint64_t seed);

// The last i of which sorted[i] is at most value; sorted[0] is.
int64_t last_at_most(const std::vector<int64_t>& sorted, int64_t value);

struct Token {
  int64_t request = -1;  // -1: padding
  int64_t position = 0;
};
Token token_at(const Batch& batch, int64_t t);

// Every element of a case asks for the same one. `make` is a function of the case alone.
template <class Made>
const Made& made_once(const Case& c, Made (*make)(const Case&)) {
  struct Last {
    Made (*make)(const Case&) = nullptr;
    Sizes sizes;
    NamedInts knobs;
    uint64_t seed = 0;
    Made made;
  };
  thread_local Last last;
  if (last.make != make || last.seed != c.seed || last.sizes != c.sizes || last.knobs != c.knobs)
    last = {make, c.sizes, c.knobs, c.seed, make(c)};
  return last.made;
}

// True for one index in so many as the knob says; 0: for none.
bool one_in(const Case& c, const char* knob, uint64_t stream, int64_t index);
int64_t any_of(const Case& c, uint64_t stream, int64_t index,
               std::initializer_list<int64_t> values);
// Numbers that are no page, no request, no entry of so many.
int64_t not_below(const Case& c, uint64_t stream, int64_t index, int64_t count);

// Of a u8 per row: 0 says that a row is padding, any other byte that it is not.
void fill_validity(std::span<std::byte> row, const std::function<bool(int64_t t)>& is_padding);

}  // namespace kiln::templates
