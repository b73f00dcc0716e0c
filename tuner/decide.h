// From samples to a decision, as pure functions: which rounds count, who goes on to the next stage,
// who wins and who is tied. Samples are paired: round r of every candidate ran in the same pass
// over all of them, so drift of the card cancels in differences.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kiln::tuner {

double median(std::vector<double> values);
double spread(std::vector<double> values);  // half of the 10 to 90 percentile range
double rank_correlation(std::span<const double> a,
                        std::span<const double> b);  // Spearman; 0 for fewer than two

// How the card was around one round.
struct Round {
  std::optional<uint64_t> throttle_reasons;  // NVML bits; nothing: they could not be read
  int sm_mhz = 0;
};

// Times of several candidates over the same rounds.
struct Samples {
  std::vector<Round> rounds;
  std::vector<std::vector<double>> times_ns;  // [candidate][round]

  void append(const Samples& more);  // further rounds of the same candidates
  void drop(size_t candidate);
};

bool throttled(const Round& round);  // known to be
// Without throttled rounds, unless fewer than three rounds would be left. `note` says what was
// dropped or kept in spite of it, and how many rounds nothing is known of; "" when all were clean.
Samples usable(const Samples& samples, std::string* note = nullptr);

// Of a stage of halving: the best half by their medians, at least `at_least` when there are so
// many; with them who is within the noise of the last of these, and the default. Best first.
std::vector<size_t> survivors(std::span<const std::vector<double>> times_ns,
                              std::optional<size_t> default_index, size_t at_least);

struct Contender {
  int64_t id = 0;          // position in the space
  int64_t registers = 0;   // of a CTA
  int64_t smem_bytes = 0;  // of a CTA
  std::vector<double> times_ns;
};

struct Verdict {
  size_t winner = 0;
  std::vector<size_t> tie_group;  // within the noise of the best, best first; the winner is in it
  double gain = 0;                // default / winner - 1; 0 without a default
  std::string reason;
};

// What two samples must differ by to be different: the spread of their paired differences, but at
// least this share of the faster.
inline constexpr double kNoiseFloor = 0.02;
// The model's own error: where it was compared with a card, its first choice was 9 % behind the
// best on average and 58 % at worst, a default 10 % at worst. A prediction has to promise more than
// that.
inline constexpr double kModelNoise = 0.25;
double noise_ns(std::span<const double> a, std::span<const double> b,
                double noise_floor = kNoiseFloor);

// The best is who has the smallest median. It wins against the default only by more than the noise;
// of those tied with it the one with the fewest resources, then the smallest id, is taken.
// Contenders must not be empty.
Verdict decide(std::span<const Contender> contenders, std::optional<size_t> default_index,
               double noise_floor = kNoiseFloor);

// Of one problem: the best time of each reduction signature that has a candidate.
using SignatureTimes = std::map<std::string, double>;
// The signature that serves all problems of a fixed shape with the least loss: its times over the
// best ones, as a geometric mean. The default's stays unless another promises more than the noise.
// Nothing when no signature has a candidate for each problem.
std::optional<std::string> common_signature(std::span<const SignatureTimes> problems,
                                            const std::string& default_signature,
                                            double noise_floor = kNoiseFloor);

}  // namespace kiln::tuner
