// Runs an instruction on many operand tuples, 32 at a time: operand i of a tuple is in %r<i+1> and
// %d<i+1>, the result in %r0 or %d0.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/sim/lone_warp.h"

namespace kiln::runtime::sim {

using Tuple = std::array<uint64_t, 3>;

// All triples of `edges`, and random ones.
inline std::vector<Tuple> tuples_of(const std::vector<uint64_t>& edges, size_t random_count) {
  std::vector<Tuple> tuples;
  for (const uint64_t a : edges) {
    for (const uint64_t b : edges) {
      for (const uint64_t c : edges) tuples.push_back({a, b, c});
    }
  }
  std::mt19937_64 random(7);
  for (size_t i = 0; i < random_count; ++i) tuples.push_back({random(), random(), random()});
  return tuples;
}

// Results of all lanes at once; a second run of some lanes must agree and leave the others alone.
inline std::vector<uint64_t> run_on(const std::string& text, const std::vector<Tuple>& tuples,
                                    bool (*bind)(Binder&)) {
  const bool wide = text.find(" %d0") != std::string::npos;
  constexpr uint32_t kSome = 0x0ff1248e;
  constexpr uint32_t kMark = 0x5a5a5a5a;
  LoneWarp lone;
  const auto result = [&](int lane) { return wide ? lone.d(0)[lane] : lone.r(0)[lane]; };
  std::vector<uint64_t> results;
  for (size_t first = 0; first < tuples.size(); first += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const Tuple& tuple = tuples[std::min(first + static_cast<size_t>(lane), tuples.size() - 1)];
      for (size_t i = 0; i < tuple.size(); ++i) {
        lone.r(i + 1)[lane] = static_cast<uint32_t>(tuple[i]);
        lone.d(i + 1)[lane] = tuple[i];
      }
    }
    lone.run(text, kAllLanes, bind);
    std::array<uint64_t, kLanes> all{};
    for (int lane = 0; lane < kLanes; ++lane) {
      all[static_cast<size_t>(lane)] = result(lane);
      lone.r(0)[lane] = kMark;
      lone.d(0)[lane] = kMark;
    }
    lone.run(text, kSome, bind);
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint64_t expected =
          (kSome >> lane & 1) != 0 ? all[static_cast<size_t>(lane)] : uint64_t{kMark};
      EXPECT_EQ(result(lane), expected) << text << " lane " << lane;
    }
    results.insert(results.end(), all.begin(), all.end());
  }
  results.resize(tuples.size());
  return results;
}

// Compares with `truth`; says which operands differ.
inline void expect_all(const std::string& text, const std::vector<Tuple>& tuples,
                       bool (*bind)(Binder&),
                       const std::function<uint64_t(uint64_t, uint64_t, uint64_t)>& truth) {
  const std::vector<uint64_t> results = run_on(text, tuples, bind);
  int failures = 0;
  for (size_t i = 0; i < tuples.size() && failures < 5; ++i) {
    const auto [a, b, c] = tuples[i];
    const uint64_t expected = truth(a, b, c);
    if (results[i] == expected) continue;
    ++failures;
    ADD_FAILURE() << text << std::hex << " a 0x" << a << " b 0x" << b << " c 0x" << c << ": 0x"
                  << results[i] << ", expected 0x" << expected;
  }
}

}  // namespace kiln::runtime::sim
