// A session: one device, one store, the shapes that are served. All of kiln.h but the op calls
// comes down to this class; its functions fail with an Error. No lock is held while a callback of
// the caller or a compile runs.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cache/store.h"
#include "jit/base/json.h"
#include "runtime/abi/kiln.h"
#include "runtime/background.h"
#include "runtime/device.h"
#include "runtime/limits.h"
#include "runtime/log.h"
#include "runtime/plan_record.h"
#include "runtime/served_shape.h"
#include "runtime/session_memory.h"
#include "runtime/workload.h"
#include "runtime/workshop.h"

namespace kiln::runtime {

struct SessionOptions {
  std::string device = "cuda:0";
  std::string store;  // "": as in cache::StoreOptions
  std::string pack;
  cache::StoreOptions::Mode store_mode = cache::StoreOptions::Mode::read_write;
  Compiles compiles = Compiles::allowed;
  Log log;
  RunTiming timing;  // of every prepare
};

struct Digests {
  Hash128 exact;
  Hash128 numerics;
};

class Session {
 public:
  explicit Session(const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void prepare(std::string_view workload, const Progress& progress);
  // Makes the defaults ready, and the rest on a thread of its own, which calls `progress`.
  void start_preparing(std::string_view workload, const Progress& progress);
  void wait_for_preparing(std::chrono::milliseconds timeout);  // not_prepared: it goes on
  void seal();
  // For closing: fails with bad_state while a prepare runs, but for one in the background, which it
  // ends.
  void end_preparing(std::string_view what);

  kiln_plan* create_plan(std::string_view op, std::string_view shape);
  void prepare_shape(ServedShape& shape);  // for the first call of an unprepared plan

  std::string why_supported(std::string_view op, const char* shape);  // fails with why not
  Json explain(std::string_view op, std::string_view shape, const char* sizes);
  kiln_stats stats() const;
  Digests digests() const;
  std::vector<WorkloadItem> used() const;  // the buckets whose calls reached the driver so far
  void note_use();                         // in the store, once, when the session closes

  Device& device() { return *device_; }
  SessionMemory& memory() { return *memory_; }

 private:
  enum class State { open, sealed };
  class PrepareScope;
  class Preparation;

  ServedShape& served_shape(const templates::Op& op, const templates::Sizes& fixed);
  void require_none_preparing(std::string_view what) const;   // under the mutex
  void require_outside_prepare(std::string_view what) const;  // likewise
  void require_arch(const templates::Op& op) const;
  void make_ready(const std::vector<WorkloadItem>& items, const Progress& progress);
  void prepare_rest(const std::vector<std::unique_ptr<Preparation>>& rest, Background& background,
                    const Progress& progress);
  void publish(ServedShape& shape);  // under the mutex
  ServedVariant describe_variant(const ServedShape& shape, const templates::Config& config,
                                 TodaysPlans& plans) const;
  std::optional<BrokenLimit> resources_known_broken(const ServedVariant& variant);
  Json explain_unprepared(ServedShape& shape, size_t bucket);
  Json explain_choice(const ServedShape& shape, const Choice& choice, const ServedVariant& variant);

  const Log log_;
  const RunTiming timing_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<SessionMemory> memory_;
  std::unique_ptr<cache::Store> store_;
  Counters counters_;
  std::unique_ptr<Workshop> workshop_;

  mutable std::mutex mutex_;
  State state_ = State::open;
  std::set<std::thread::id> preparing_;  // threads inside a prepare
  std::map<std::pair<int, templates::Sizes>, std::unique_ptr<ServedShape>> shapes_;
  std::set<std::string> reasons_logged_;
  std::shared_ptr<Background> background_;  // the newest; last, as its thread uses all of the above
};

}  // namespace kiln::runtime
