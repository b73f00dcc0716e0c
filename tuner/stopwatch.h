// Times plans on one case: graphs of many calls, interleaved rounds, cold arguments and outputs
// rotated through more than twice the L2.
//
// Cold arguments and outputs have distinct copies, one call after the other takes the next, and a
// graph is a whole number of turns. When the copies of one graph do not add up to twice the L2
// (small tensors), the L2 is flushed by reads before a replay and one more call on a copy of its
// own makes the warm arguments warm again, both outside of the timed span.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "templates/kit.h"
#include "tuner/decide.h"
#include "tuner/device_tools.h"
#include "tuner/tensors.h"

namespace kiln::tuner {

class Stopwatch {
 public:
  struct Shape {  // of a graph
    int64_t calls = 0;
    int64_t copies = 0;
    bool flushed = false;
  };

  Stopwatch(DeviceTools& tools, const templates::Kit& kit, templates::Case c);

  // Runs a plan and times one call of it, once per key. Fails with the driver's words when it
  // cannot be launched or faults.
  void glance(const std::string& key, const RunnablePlan& plan);
  void forget_all_but(const std::vector<std::string>& keys);

  // One round over keys that were glanced at: time of a call each. `begin` is called before each,
  // with its position. Who took several times as long as the fastest of them keeps the time of
  // that one call: no round would change its rank, and a hundred slow calls take long. The first
  // round decides how many calls a graph has.
  std::vector<double> round(const std::vector<std::string>& keys, size_t first,
                            const std::function<void(size_t)>& begin);

  const Shape& shape() const { return shape_; }
  const templates::Case& call() const { return case_; }

 private:
  static constexpr int64_t kSpareCopy = 0;

  struct Prepared {
    RunnablePlan plan;
    Arena::Buffer workspace_memory;
    Workspace workspace;
    double glance_ns = 0;
    std::unique_ptr<runtime::Graph> warm_up;  // one call on the spare copy
    std::unique_ptr<runtime::Graph> graph;    // made when a round needs it
  };

  // Calls of a graph take the copies first_copy, first_copy + 1, ..., first_copy + copies - 1 in
  // turn.
  struct Turn {
    int64_t calls = 1;
    int64_t copies = 1;
    int64_t first_copy = kSpareCopy + 1;
  };

  bool rotates(const templates::Arg& arg) const;
  void allocate(int64_t copies);
  void choose_shape(const Prepared& fastest);
  std::vector<uint64_t> arguments(int64_t copy, const Workspace& workspace) const;
  std::unique_ptr<runtime::Graph> capture(const Prepared& prepared, const Turn& turn);
  double round_ns(Prepared& prepared);
  double replay_ns(Prepared& prepared);

  DeviceTools& tools_;
  const templates::Kit& kit_;
  const templates::Op& op_;
  templates::Case case_;
  templates::Sizes symbols_;
  std::vector<TensorPlan> plans_;
  std::map<std::string, std::vector<std::byte>> contents_;  // of inputs, on the host
  std::map<std::string, std::vector<Arena::Buffer>>
      memory_;  // one buffer, or a spare and one per copy
  Arena::Buffer flush_;
  Shape shape_;
  double call_ns_ = 0;  // of the fastest, roughly
  std::map<std::string, Prepared> prepared_;
};

// Time of an empty kernel by the same method.
double empty_launch_ns(DeviceTools& tools);
// Best rate of reading `read_share` and writing the rest of `bytes`, over several shapes of the
// kernel.
double mix_gb_per_s(DeviceTools& tools, double read_share, int64_t bytes,
                    const std::function<void()>& begin);
// Rate of a copy from pinned memory of the host to the device.
double bus_gb_per_s(DeviceTools& tools, const std::function<void()>& begin);
// Rate of mma.sync (bf16, fp32 sums) from registers, two operations an fma.
double mma_tflop_per_s(DeviceTools& tools);

}  // namespace kiln::tuner
