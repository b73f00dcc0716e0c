// Wall time from kiln_open to the end of kiln_prepare for the model's whole workload, first from an
// empty store (every kernel compiled), then from the warm one, with the device's context alive as
// in a serving process. Usage: start_bench STORE_FILE [rounds]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runtime/abi/kiln.h"
#include "runtime/device.h"

namespace {

struct Start {
  double milliseconds = 0;
  kiln_stats stats{};
};

void require(kiln_status status) {
  if (status == KILN_OK) return;
  std::fprintf(stderr, "%s: %s\n", kiln_status_name(status), kiln_last_error());
  std::exit(1);
}

Start start(const char* store) {
  kiln_options options{};
  options.size = sizeof(options);
  options.store = store;
  const auto begin = std::chrono::steady_clock::now();
  kiln_session* session = nullptr;
  require(kiln_open(&options, &session));
  require(kiln_prepare(session, nullptr, nullptr, nullptr));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  Start result{.milliseconds = took.count()};
  result.stats.size = sizeof(result.stats);
  require(kiln_get_stats(session, &result.stats));
  require(kiln_close(session));
  return result;
}

void print(const char* what, const Start& s) {
  std::printf("%-6s %8.1f ms   %llu kernels loaded, %llu compiled, %llu decisions, %llu defaults\n",
              what, s.milliseconds, static_cast<unsigned long long>(s.stats.kernels_loaded),
              static_cast<unsigned long long>(s.stats.compiles),
              static_cast<unsigned long long>(s.stats.decision_hits),
              static_cast<unsigned long long>(s.stats.decision_defaults));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: start_bench STORE_FILE [rounds]\n");
    return 2;
  }
  const int rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 9;
  try {
    const auto context_holder = kiln::runtime::Device::open("cuda:0");
    print("first", start(argv[1]));
    std::vector<Start> warm;
    for (int round = 0; round < rounds; ++round) warm.push_back(start(argv[1]));
    std::sort(warm.begin(), warm.end(),
              [](const Start& a, const Start& b) { return a.milliseconds < b.milliseconds; });
    print("median", warm[warm.size() / 2]);
    print("worst", warm.back());
  } catch (const kiln::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
