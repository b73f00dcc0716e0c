// Writes go to the top, each in one transaction: all of it or nothing.
#include <fmt/format.h>

#include "cache/batch.h"
#include "cache/blob.h"
#include "cache/layered_store.h"
#include "cache/rows.h"
#include "jit/base/error.h"

namespace kiln::cache {

bool LayeredStore::write(const Layer::Work& work) {
  if (!top_) {
    warn("read-only",
         fmt::format("the store {} was opened for reading only, so nothing is kept", path_));
    return false;
  }
  try {
    std::vector<std::string> happened;
    try {
      top_->write(work, happened);
    } catch (const Unusable& error) {
      if (top_->is_in_memory()) throw;
      give_up_top(error);
      top_->write(work, happened);
    }
    for (const std::string& sentence : happened) warn(sentence, sentence);
    return true;
  } catch (const SqliteError& error) {
    note_failure(*top_, error, "so a result was not kept");
  } catch (const Error& error) {
    warn(error.what(), fmt::format("a result was not kept: {}", error.what()));
  } catch (const Unusable& error) {
    warn("write", with_remedy(path_, error));
    trouble_ = error.what();
  }
  return false;
}

bool LayeredStore::write_quietly(const Layer::Work& work, Layer::Patience patience) {
  if (!top_) return false;
  bool written = false;
  std::vector<std::string> happened;
  try {
    top_->write(work, happened, patience);
    written = true;
  } catch (const SqliteError&) {
    // Busy, or it cannot be written: whoever writes something of value is told.
  } catch (const Unusable&) {
  }
  for (const std::string& sentence : happened) warn(sentence, sentence);
  return written;
}

bool LayeredStore::write(const Batch& batch) {
  std::vector<PackedImage> images;
  std::map<Hash128, std::string> binaries = batch.needed_binaries();
  std::map<Hash128, std::string> plans = batch.needed_plans();
  try {
    batch.require_records();
    for (const jit::Binary* binary : batch.binaries) images.push_back(pack_image(binary->image));
  } catch (const Error& error) {
    warn(error.what(), fmt::format("a result was not kept: {}", error.what()));
    return false;
  }
  for (const std::shared_ptr<Layer>& layer : layers_) {
    if (layer == top_) continue;
    read(*layer, [&](Database& database) {
      std::erase_if(binaries,
                    [&](const auto& needed) { return has_description(database, needed.first); });
      std::erase_if(plans, [&](const auto& needed) { return has_plan(database, needed.first); });
    });
  }
  int64_t newest_at = 0;
  if (const Decision* decision = batch.decision) {
    const auto newest = newest_decisions(decision->problem, decision->gpu_class);
    const auto found = newest.find(decision->kind);
    if (found != newest.end()) newest_at = found->second.decision.decided_at;
  }
  const bool written = write([&](Database& database) {
    for (const auto& [key, needed_by] : binaries) {
      if (!has_description(database, key)) {
        fail(Status::store_error, "{} launches binary {}, which is in no layer of the store",
             needed_by, key.hex());
      }
    }
    for (const auto& [id, needed_by] : plans) {
      if (!has_plan(database, id)) {
        fail(Status::store_error, "{} names plan {}, which is in no layer of the store", needed_by,
             id.hex());
      }
    }
    for (size_t i = 0; i < images.size(); ++i)
      write_binary(database, *batch.binaries[i], images[i]);
    for (const auto* plan : batch.plans) write_plan(database, *plan);
    for (const auto* verification : batch.verifications) {
      write_verification(database, *verification);
    }
    for (const auto* timing : batch.timings) write_timing(database, *timing);
    for (const auto* rejection : batch.rejections) write_rejection(database, *rejection);
    if (batch.decision != nullptr) write_decision(database, *batch.decision, newest_at);
  });
  if (written) {
    if (!batch.binaries.empty()) keep_within_budget();
    for (const auto* binary : batch.binaries) damaged_binaries_.erase({top_.get(), binary->key});
  }
  return written;
}

bool LayeredStore::put(const TuningResult& result) {
  const std::lock_guard lock(mutex_);
  return write(Batch{.binaries = pointers(result.binaries),
                     .plans = pointers(result.plans),
                     .verifications = pointers(result.verifications),
                     .timings = pointers(result.timings),
                     .rejections = pointers(result.rejections),
                     .decision = &result.decision});
}

bool LayeredStore::put_binary(const jit::Binary& binary) {
  const std::lock_guard lock(mutex_);
  return write(Batch{.binaries = {&binary}});
}

bool LayeredStore::put_plan(const PlanRecord& plan) {
  const std::lock_guard lock(mutex_);
  return write(Batch{.plans = {&plan}});
}

bool LayeredStore::put_kernels(const std::vector<jit::Binary>& binaries,
                               const std::vector<PlanRecord>& plans) {
  const std::lock_guard lock(mutex_);
  return write(Batch{.binaries = pointers(binaries), .plans = pointers(plans)});
}

bool LayeredStore::put_verification(const Verification& verification) {
  const std::lock_guard lock(mutex_);
  return write(Batch{.verifications = {&verification}});
}

bool LayeredStore::put_timing(const Timing& timing) {
  const std::lock_guard lock(mutex_);
  return write(Batch{.timings = {&timing}});
}

bool LayeredStore::put_rejections(const std::vector<Rejection>& rejections) {
  const std::lock_guard lock(mutex_);
  return write(Batch{.rejections = pointers(rejections)});
}

void LayeredStore::touch(const std::vector<Hash128>& binaries) {
  const std::lock_guard lock(mutex_);
  if (!top_ || top_->is_in_memory()) return;
  constexpr int64_t kHourSeconds = 3600;
  std::vector<Hash128> found;
  read(*top_, [&](Database& database) {
    found = images_used_before(database, binaries, now_seconds() - kHourSeconds);
  });
  if (found.empty()) return;
  write_quietly(
      [&](Database& database) {
        for (const Hash128& key : found) write_used_now(database, key);
      },
      Layer::Patience::none);
}

bool LayeredStore::forget(const Problem& problem, std::string_view gpu_class) {
  const std::lock_guard lock(mutex_);
  return write([&](Database& database) { delete_decisions(database, problem, gpu_class); });
}

bool LayeredStore::forget(const Problem& problem, std::string_view gpu_class, DecisionKind kind) {
  const std::lock_guard lock(mutex_);
  return write([&](Database& database) { delete_decision(database, problem, gpu_class, kind); });
}

bool LayeredStore::hide(const Problem& problem, std::string_view gpu_class,
                        std::string_view reason) {
  const std::lock_guard lock(mutex_);
  return write([&](Database& database) {
    require_problem(problem);
    delete_decisions(database, problem, gpu_class);
    write_decision_tombstone(database, problem, gpu_class, reason);
  });
}

}  // namespace kiln::cache
