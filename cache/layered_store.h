// What the layers mean together: reads fall through from the writable file to the packs, writes go
// to the top, and whatever goes wrong with a file becomes a miss and one warning. Each concern is a
// file of its own: store_open.cpp opens the layers and says what is wrong with them, store_read.cpp
// and store_write.cpp are the records, store_usage.cpp is what was called, store_leases.cpp is who
// makes what, store_transfer.cpp takes over the records of another store, store_pack.cpp makes
// packs, store_gc.cpp keeps the file within its budget, store_check.cpp looks for defects.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/batch.h"
#include "cache/layer.h"
#include "cache/leases.h"
#include "cache/store.h"
#include "cache/transfer.h"

namespace kiln::cache {

class LayeredStore : public Store {
 public:
  explicit LayeredStore(const StoreOptions& options);

  StoreInfo info() override;
  std::string trouble() override;
  std::vector<std::string> warnings() override;

  std::optional<DecisionRow> find_decision(const Problem& problem,
                                           std::string_view gpu_class) override;
  std::optional<DecisionRow> find_decision(const Problem& problem, std::string_view gpu_class,
                                           DecisionKind kind) override;
  std::vector<DecisionRow> decisions(const Problem& problem, std::string_view gpu_class) override;
  std::vector<DecisionRow> list_decisions() override;
  std::vector<Problem> problems() override;
  std::vector<std::string> gpu_classes(const Problem& problem) override;

  std::optional<PlanRecord> find_plan(const Hash128& id) override;
  std::optional<jit::Binary> find_binary(const Hash128& key, Trust trust) override;
  bool has_binary(const Hash128& key) override;
  std::optional<jit::Binary> describe_binary(const Hash128& key) override;
  std::vector<BinaryRow> list_binaries() override;

  std::vector<Verification> verifications(const Problem& problem) override;
  std::vector<Timing> timings(const Problem& problem, std::string_view gpu_class) override;
  std::vector<Rejection> rejections(const Problem& problem, std::string_view gpu_class) override;
  std::vector<UsedSize> used_sizes() override;

  bool put(const TuningResult& result) override;
  bool put_binary(const jit::Binary& binary) override;
  bool put_plan(const PlanRecord& plan) override;
  bool put_kernels(const std::vector<jit::Binary>& binaries,
                   const std::vector<PlanRecord>& plans) override;
  bool put_verification(const Verification& verification) override;
  bool put_timing(const Timing& timing) override;
  bool put_rejections(const std::vector<Rejection>& rejections) override;
  bool put_used_sizes(const std::vector<Problem>& problems, std::string_view gpu_class,
                      std::string_view gpu_label) override;
  void touch(const std::vector<Hash128>& binaries) override;
  bool forget(const Problem& problem, std::string_view gpu_class) override;
  bool forget(const Problem& problem, std::string_view gpu_class, DecisionKind kind) override;
  bool hide(const Problem& problem, std::string_view gpu_class, std::string_view reason) override;

  MergeReport absorb(const StoreContents& contents, const MergeOptions& options) override;
  GcReport collect(int64_t budget_bytes, GcMode mode) override;
  void make_pack(const std::string& path) override;
  std::vector<std::string> check() override;

  // leases.h
  std::vector<Lease> take_leases(LeaseOf of, const std::vector<Hash128>& keys, int most_on_host);
  void renew_leases(LeaseOf of, const std::vector<Hash128>& keys);
  void release_leases(LeaseOf of, const std::vector<Hash128>& keys);
  std::vector<LeaseRow> list_leases();

 private:
  friend class Merge;  // store_transfer.cpp

  // All private functions expect the mutex.
  void open_top(const std::string& path);
  void open_read_only(const std::string& path);
  void open_packs();
  void add_read_layer(const std::string& path, std::string_view consequence);
  void use_memory(std::string_view why);
  void give_up_top(const Unusable& error);

  bool is_pack(const std::string& path) const;
  void warn(const std::string& key, const std::string& sentence);
  // What to type when the file at this path cannot serve, or is damaged.
  std::string other_file(const std::string& path) const;
  std::string replacement(const std::string& path) const;
  std::string with_remedy(const std::string& path, const Unusable& error) const;
  void note_damage(Layer& layer, std::string_view how, std::string_view consequence);
  void note_failure(Layer& layer, const SqliteError& error, std::string_view consequence);
  // Runs `work` on a layer; false, with a warning, when the layer could not answer. A top that
  // cannot serve any more makes way for one in memory.
  bool read(Layer& layer, const Layer::Work& work);
  // Runs `work` on each layer from the top until it says that it is done.
  template <typename Work>
  void read_down(Work work) {
    const std::vector<std::shared_ptr<Layer>> layers = layers_;  // read() may put another one there
    for (const std::shared_ptr<Layer>& layer : layers) {
      bool done = false;
      read(*layer, [&](Database& database) { done = work(database, *layer); });
      if (done) return;
    }
  }
  bool write(const Layer::Work& work);
  bool write(const Batch& batch);
  // For what is of no value to who reads the store: false without a warning when it was not
  // written.
  bool write_quietly(const Layer::Work& work, Layer::Patience patience);
  // Makes the top hold no more than `goal_bytes`, for as long as nobody is in the way.
  void collect_top(int64_t goal_bytes, Layer::Patience patience, GcReport& report);
  void read_budget(int64_t given_bytes);
  void keep_within_budget();

  // The newest of each kind, best kind first: not judged, and judged.
  std::map<DecisionKind, DecisionRow> newest_decisions(const Problem& problem,
                                                       std::string_view gpu_class);
  std::vector<DecisionRow> judged_decisions(const Problem& problem, std::string_view gpu_class);
  void judge(DecisionRow& row, const std::vector<Verification>& newest) const;
  std::vector<Verification> newest_verifications(const Problem& problem);
  std::vector<Timing> newest_timings(const Problem& problem, std::string_view gpu_class);
  std::vector<Rejection> newest_rejections(const Problem& problem, std::string_view gpu_class);
  void warn_damaged(Layer& layer, std::string_view what, const std::string& name,
                    std::string_view remedy);

  std::mutex mutex_;
  std::vector<std::shared_ptr<Layer>> layers_;  // in the order in which they are read
  std::shared_ptr<Layer> top_;                  // the writable one, null in a read-only store
  std::string path_;  // the file asked for, also when it could not be used
  std::vector<std::string> packs_;
  int64_t budget_bytes_ = kUsualBudgetBytes;
  std::string trouble_;  // as trouble() says it, but for a file that is gone
  std::vector<std::string> warnings_;
  std::set<std::string> warned_;
  std::set<std::pair<Layer*, Hash128>> damaged_binaries_;
};

}  // namespace kiln::cache
