#include "tuner/decide.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "jit/base/error.h"

namespace kiln::tuner {
namespace {

// NVML clocksEventReasons that mean "slower than the card could": power cap, slowdown, thermal,
// power brake. Application clocks, sync boost and display clocks are settings, not events.
constexpr uint64_t kThrottleBits = 0x04 | 0x08 | 0x20 | 0x40 | 0x80;
constexpr size_t kFewestRounds = 3;

double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (place - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

// Ranks from 1; equal values share the mean of their ranks.
std::vector<double> ranks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t x, size_t y) { return values[x] < values[y]; });
  std::vector<double> result(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double mean = (static_cast<double>(begin + end) + 1) / 2;
    for (size_t i = begin; i < end; ++i) result[order[i]] = mean;
    begin = end;
  }
  return result;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) fail(Status::internal, "the median of no values was asked for");
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

double spread(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return (quantile(values, 0.9) - quantile(values, 0.1)) / 2;
}

double rank_correlation(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size() || a.size() < 2) return 0;
  const std::vector<double> x = ranks(a);
  const std::vector<double> y = ranks(b);
  const double mean = (static_cast<double>(a.size()) + 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

void Samples::append(const Samples& more) {
  rounds.insert(rounds.end(), more.rounds.begin(), more.rounds.end());
  if (times_ns.empty()) times_ns.resize(more.times_ns.size());
  for (size_t i = 0; i < times_ns.size(); ++i) {
    times_ns[i].insert(times_ns[i].end(), more.times_ns[i].begin(), more.times_ns[i].end());
  }
}

void Samples::drop(size_t candidate) {
  if (candidate < times_ns.size())
    times_ns.erase(times_ns.begin() + static_cast<std::ptrdiff_t>(candidate));
}

bool throttled(const Round& round) {
  return (round.throttle_reasons.value_or(0) & kThrottleBits) != 0;
}

Samples usable(const Samples& samples, std::string* note) {
  const size_t total = samples.rounds.size();
  const auto bad =
      static_cast<size_t>(std::count_if(samples.rounds.begin(), samples.rounds.end(), throttled));
  const auto unknown = static_cast<size_t>(
      std::count_if(samples.rounds.begin(), samples.rounds.end(),
                    [](const Round& round) { return !round.throttle_reasons.has_value(); }));
  const bool drops = bad > 0 && total - bad >= kFewestRounds;
  if (note != nullptr) {
    std::vector<std::string> parts;
    if (bad > 0)
      parts.push_back(fmt::format("{} of {} rounds throttled{}", bad, total,
                                  drops ? " and dropped" : ", all kept"));
    if (unknown > 0)
      parts.push_back(fmt::format("clocks unknown in {} of {} rounds", unknown, total));
    *note = fmt::format("{}", fmt::join(parts, "; "));
  }
  if (!drops) return samples;
  Samples result;
  result.times_ns.resize(samples.times_ns.size());
  for (size_t r = 0; r < total; ++r) {
    if (throttled(samples.rounds[r])) continue;
    result.rounds.push_back(samples.rounds[r]);
    for (size_t i = 0; i < samples.times_ns.size(); ++i)
      result.times_ns[i].push_back(samples.times_ns[i][r]);
  }
  return result;
}

std::vector<size_t> survivors(std::span<const std::vector<double>> times_ns,
                              std::optional<size_t> default_index, size_t at_least) {
  if (times_ns.empty()) return {};
  std::vector<double> median_ns;
  for (const std::vector<double>& times : times_ns) median_ns.push_back(median(times));
  std::vector<size_t> order(median_ns.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t x, size_t y) { return median_ns[x] < median_ns[y]; });
  const size_t keep = std::min(order.size(), std::max(at_least, (order.size() + 1) / 2));
  std::vector<size_t> kept(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(keep));
  // A few rounds do not tell who is behind by less than the noise.
  const size_t last = order[keep - 1];
  for (size_t n = keep; n < order.size(); ++n) {
    const size_t i = order[n];
    if (median_ns[i] - median_ns[last] <= noise_ns(times_ns[i], times_ns[last])) kept.push_back(i);
  }
  if (default_index && std::find(kept.begin(), kept.end(), *default_index) == kept.end()) {
    kept.push_back(*default_index);
  }
  return kept;
}

double noise_ns(std::span<const double> a, std::span<const double> b, double noise_floor) {
  std::vector<double> differences;
  for (size_t r = 0; r < std::min(a.size(), b.size()); ++r) differences.push_back(a[r] - b[r]);
  const double faster = std::min(median({a.begin(), a.end()}), median({b.begin(), b.end()}));
  return std::max(noise_floor * faster, spread(std::move(differences)));
}

Verdict decide(std::span<const Contender> contenders, std::optional<size_t> default_index,
               double noise_floor) {
  if (contenders.empty()) fail(Status::internal, "a decision among no candidates was asked for");
  std::vector<double> medians;
  for (const Contender& contender : contenders) medians.push_back(median(contender.times_ns));
  const auto tied = [&](size_t x, size_t y) {
    return std::abs(medians[x] - medians[y]) <=
           noise_ns(contenders[x].times_ns, contenders[y].times_ns, noise_floor);
  };

  std::vector<size_t> order(contenders.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t x, size_t y) {
    return std::tie(medians[x], contenders[x].id) < std::tie(medians[y], contenders[y].id);
  });
  const size_t best = order.front();

  Verdict verdict;
  for (const size_t i : order) {
    if (tied(best, i)) verdict.tie_group.push_back(i);
  }
  if (default_index && (best == *default_index || tied(best, *default_index))) {
    verdict.winner = *default_index;
    verdict.reason = best == *default_index ? "the default is the fastest"
                                            : "nothing beats the default by more than the noise";
    return verdict;
  }

  const auto cost = [&](size_t i) {
    return std::tuple(contenders[i].registers, contenders[i].smem_bytes, contenders[i].id);
  };
  verdict.winner = best;
  for (const size_t i : verdict.tie_group) {
    const bool beats_default = !default_index || !tied(i, *default_index);
    if (beats_default && cost(i) < cost(verdict.winner)) verdict.winner = i;
  }
  if (default_index) {
    verdict.gain = medians[*default_index] / medians[verdict.winner] - 1;
    verdict.reason = fmt::format("{:.1f} % faster than the default", 100 * verdict.gain);
  } else {
    verdict.reason = "the default was rejected";
  }
  if (verdict.tie_group.size() > 1) {
    verdict.reason += fmt::format("; {} configs are tied, this one takes the fewest resources",
                                  verdict.tie_group.size());
  }
  return verdict;
}

std::optional<std::string> common_signature(std::span<const SignatureTimes> problems,
                                            const std::string& default_signature,
                                            double noise_floor) {
  std::map<std::string, double> losses;  // sum of logarithms over the problems seen so far
  bool is_first = true;
  for (const SignatureTimes& times : problems) {
    if (times.empty()) return std::nullopt;
    const auto faster = [](const auto& a, const auto& b) { return a.second < b.second; };
    const double best_ns = std::min_element(times.begin(), times.end(), faster)->second;
    std::map<std::string, double> in_all;
    for (const auto& [signature, time_ns] : times) {
      const auto before = losses.find(signature);
      if (!is_first && before == losses.end()) continue;
      in_all[signature] = (is_first ? 0 : before->second) + std::log(time_ns / best_ns);
    }
    losses = std::move(in_all);
    is_first = false;
  }
  if (losses.empty()) return std::nullopt;
  const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto best = std::min_element(losses.begin(), losses.end(), less);
  const auto standing = losses.find(default_signature);
  const double noise = std::log1p(noise_floor) * static_cast<double>(problems.size());
  const bool stays = standing != losses.end() && standing->second <= best->second + noise;
  return stays ? standing->first : best->first;
}

}  // namespace kiln::tuner
