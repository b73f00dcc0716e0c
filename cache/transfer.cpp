#include "cache/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "jit/base/error.h"

namespace kiln::cache {
namespace {

constexpr int64_t kDaySeconds = 86400;
constexpr double kMostNs = 4e12;  // more than an hour; keeps picoseconds exact in a double
constexpr size_t kMostTextBytes = 65536;
constexpr size_t kMostLabelBytes = 64;
constexpr int kMostThreads = 1024;
constexpr int64_t kMostSmemBytes = int64_t{1} << 20;

template <typename Record>
bool is_of(const std::vector<std::string>& ops, const Record& op) {
  return ops.empty() || std::find(ops.begin(), ops.end(), op) != ops.end();
}

// Steers a terminal or ends a line where none ends.
bool is_control(char c) { return (c >= 0 && c < ' ' && c != '\n' && c != '\t') || c == '\x7f'; }

std::string why_no_text(std::string_view name, const std::string& text) {
  if (text.size() > kMostTextBytes) {
    return fmt::format("its {} has {} bytes, of at most {}", name, text.size(), kMostTextBytes);
  }
  if (std::none_of(text.begin(), text.end(), is_control)) return "";
  return fmt::format("its {} holds control characters: {}", name, in_quotes(text.substr(0, 80)));
}

std::string why_no_label(std::string_view name, const std::string& label) {
  if (label.size() > kMostLabelBytes) {
    return fmt::format("its {} has {} bytes, of at most {}", name, label.size(), kMostLabelBytes);
  }
  return why_no_text(name, label);
}

std::string why_no_date(int64_t date, int64_t now) {
  if (date >= 0 && date <= now + kDaySeconds) return "";
  return fmt::format("its date is {} unix seconds, and it is {} now", date, now);
}

std::string why_no_time(std::string_view name, double time_ns) {
  if (std::isfinite(time_ns) && time_ns >= 0 && time_ns <= kMostNs) return "";
  return fmt::format("its {} must be 0 to {} ns, but it is {}", name, kMostNs, time_ns);
}

bool is_name(const std::string& name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !name.empty() && name.size() <= 256 && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

std::string why_no_entry(const std::string& entry) {
  if (is_name(entry)) return "";
  return fmt::format("its entry must be the name of a function, but it is {}", in_quotes(entry));
}

std::string why_no_arch(const std::string& arch) {
  for (const std::string prefix : {"sm_", "compute_"}) {
    if (!arch.starts_with(prefix)) continue;
    const std::string number = arch.substr(prefix.size());
    const bool is_number = number.find_first_not_of("0123456789") == std::string::npos;
    if (is_number && (number.size() == 2 || number.size() == 3)) return "";
  }
  return fmt::format("its architecture must be as sm_86 or compute_80, but it is {}",
                     in_quotes(arch));
}

std::string why_no_image(const jit::Binary& binary) {
  if (binary.image.empty()) return "";
  if (binary.kind == jit::BinaryKind::cubin) {
    return binary.image.starts_with(
               "\x7f"
               "ELF")
               ? ""
               : "its image is no ELF file, as a cubin is";
  }
  return binary.image.substr(0, 4096).find(".version") != std::string::npos
             ? ""
             : "its image does not begin as PTX does, with .version";
}

std::string first_of(std::initializer_list<std::string> reasons) {
  for (const std::string& reason : reasons) {
    if (!reason.empty()) return reason;
  }
  return "";
}

// What the images of a store say that they unpack to is known before the first one is.
void require_images_fit(Store& store, const std::set<Hash128>& keys) {
  const ImportLimits limits;
  int64_t all_bytes = 0;
  for (const BinaryRow& row : store.list_binaries()) {
    if (!keys.contains(row.key)) continue;
    all_bytes += row.image_bytes;
    if (row.image_bytes < 0 || row.image_bytes > limits.image_bytes ||
        all_bytes > limits.all_images_bytes) {
      fail(Status::unsupported,
           "kernel {} unpacks to {} bytes, and all up to it to {}; at most {} and {} go from one "
           "store to another",
           row.key.hex(), row.image_bytes, all_bytes, limits.image_bytes, limits.all_images_bytes);
    }
  }
}

}  // namespace

StoreContents contents_of(Store& store, const ContentsFilter& filter) {
  StoreContents contents;
  std::set<Hash128> plans;
  for (const Problem& problem : store.problems()) {
    if (!is_of(filter.ops, problem.op)) continue;
    std::set<Hash128> plans_here;
    for (const std::string& gpu_class : store.gpu_classes(problem)) {
      std::vector<DecisionRow> rows = store.decisions(problem, gpu_class);
      if (filter.gpu) {
        std::set<std::string> labels;
        for (const DecisionRow& row : rows) labels.insert(row.decision.gpu_label);
        if (labels.empty()) labels.insert("");
        if (std::none_of(labels.begin(), labels.end(),
                         [&](const auto& label) { return filter.gpu(gpu_class, label); })) {
          continue;
        }
      }
      for (DecisionRow& row : rows) {
        if (row.decision.plan != Hash128{}) plans_here.insert(row.decision.plan);
        contents.decisions.push_back(std::move(row.decision));
      }
      for (Timing& timing : store.timings(problem, gpu_class)) {
        plans_here.insert(timing.plan);
        contents.timings.push_back(std::move(timing));
      }
      for (Rejection& rejection : store.rejections(problem, gpu_class)) {
        contents.rejections.push_back(std::move(rejection));
      }
    }
    for (Verification& verification : store.verifications(problem)) {
      if (filter.gpu && !plans_here.contains(verification.plan)) continue;
      plans_here.insert(verification.plan);
      contents.verifications.push_back(std::move(verification));
    }
    plans.insert(plans_here.begin(), plans_here.end());
  }
  std::set<Hash128> binaries;
  for (const Hash128& id : plans) {
    std::optional<PlanRecord> plan = store.find_plan(id);
    if (!plan) continue;
    for (const PlanRecord::Kernel& kernel : plan->kernels) binaries.insert(kernel.binary);
    contents.plans.push_back(std::move(*plan));
  }
  if (filter.images == Images::with) require_images_fit(store, binaries);
  for (const Hash128& key : binaries) {
    std::optional<jit::Binary> binary;
    if (filter.images == Images::with) binary = store.find_binary(key);
    if (!binary) binary = store.describe_binary(key);
    if (binary) contents.binaries.push_back(std::move(*binary));
  }
  return contents;
}

std::string why_refused(const Decision& decision, int64_t now) {
  return first_of({why_no_label("GPU", decision.gpu_label), why_no_text("reason", decision.reason),
                   why_no_label("limits", decision.limits), why_no_date(decision.decided_at, now),
                   why_no_time("time", decision.time_ns),
                   why_no_time("default's time", decision.default_time_ns)});
}

std::string why_refused(const PlanRecord& plan) {
  std::string why =
      first_of({why_no_arch(plan.arch), why_no_text("signature", plan.reduction_signature),
                why_no_text("packed layout", plan.packed_layout)});
  if (!why.empty()) return why;
  if (plan.kernels.empty()) return "it launches no kernel";
  for (const PlanRecord::Kernel& kernel : plan.kernels) {
    if (why = why_no_entry(kernel.entry); !why.empty()) return why;
    if (kernel.threads < 1 || kernel.threads > kMostThreads) {
      return fmt::format("a kernel of it has {} threads, of 1 to {}", kernel.threads, kMostThreads);
    }
    if (kernel.dynamic_smem_bytes < 0 || kernel.dynamic_smem_bytes > kMostSmemBytes) {
      return fmt::format("a kernel of it has {} bytes of shared memory, of 0 to {}",
                         kernel.dynamic_smem_bytes, kMostSmemBytes);
    }
  }
  return "";
}

std::string why_refused(const jit::Binary& binary) {
  return first_of({why_no_arch(binary.arch), why_no_entry(binary.entry),
                   why_no_text("options", binary.options), why_no_text("log", binary.log),
                   why_no_label("NVRTC version", binary.nvrtc_version), why_no_image(binary)});
}

std::string why_refused(const Verification& verification, int64_t now) {
  return first_of(
      {why_no_text("card", verification.card), why_no_text("driver", verification.driver),
       why_no_text("tolerance", verification.tolerance), why_no_text("detail", verification.detail),
       why_no_date(verification.verified_at, now)});
}

std::string why_refused(const Timing& timing, int64_t now) {
  return first_of({why_no_text("method", timing.method), why_no_label("limits", timing.limits),
                   why_no_text("device", timing.device), why_no_date(timing.timed_at, now),
                   why_no_time("time", timing.time_ns), why_no_time("spread", timing.spread_ns)});
}

std::string why_refused(const Rejection& rejection, int64_t now) {
  return first_of({why_no_label("limits", rejection.limits), why_no_text("stage", rejection.stage),
                   why_no_text("reason", rejection.reason), why_no_text("detail", rejection.detail),
                   why_no_date(rejection.rejected_at, now)});
}

const char* outcome_name(MergeOutcome outcome) {
  switch (outcome) {
    case MergeOutcome::taken:
      return "taken";
    case MergeOutcome::kept:
      return "kept";
    case MergeOutcome::dropped:
      return "dropped";
    case MergeOutcome::refused:
      return "refused";
  }
  return "unknown";
}

const char* record_name(MergeRow::Record record) {
  switch (record) {
    case MergeRow::Record::decision:
      return "decision";
    case MergeRow::Record::plan:
      return "plan";
    case MergeRow::Record::binary:
      return "binary";
    case MergeRow::Record::verification:
      return "verification";
    case MergeRow::Record::timing:
      return "timing";
    case MergeRow::Record::rejection:
      return "rejection";
  }
  return "unknown";
}

MergeRow refusal(const Decision& decision, std::string reason) {
  return {.record = MergeRow::Record::decision,
          .problem = decision.problem,
          .gpu_class = decision.gpu_class,
          .gpu_label = decision.gpu_label,
          .name = decision.config,
          .kind = decision.kind,
          .outcome = MergeOutcome::refused,
          .reason = std::move(reason)};
}

MergeRow refusal(const PlanRecord& plan, std::string reason) {
  return {.record = MergeRow::Record::plan,
          .problem = {plan.op, plan.op_version, plan.shape, "{}"},
          .name = plan.id.hex(),
          .outcome = MergeOutcome::refused,
          .reason = std::move(reason)};
}

MergeRow refusal(const jit::Binary& binary, std::string reason) {
  return {.record = MergeRow::Record::binary,
          .name = binary.key.hex(),
          .outcome = MergeOutcome::refused,
          .reason = std::move(reason)};
}

MergeRow refusal(const Verification& verification, std::string reason) {
  return {.record = MergeRow::Record::verification,
          .problem = verification.problem,
          .name = verification.card,
          .outcome = MergeOutcome::refused,
          .reason = std::move(reason)};
}

MergeRow refusal(const Timing& timing, std::string reason) {
  return {.record = MergeRow::Record::timing,
          .problem = timing.problem,
          .gpu_class = timing.gpu_class,
          .name = timing.method,
          .outcome = MergeOutcome::refused,
          .reason = std::move(reason)};
}

MergeRow refusal(const Rejection& rejection, std::string reason) {
  return {.record = MergeRow::Record::rejection,
          .problem = rejection.problem,
          .gpu_class = rejection.gpu_class,
          .name = rejection.config,
          .outcome = MergeOutcome::refused,
          .reason = std::move(reason)};
}

int64_t MergeReport::decisions(MergeOutcome outcome) const {
  return std::count_if(rows.begin(), rows.end(), [&](const MergeRow& row) {
    return row.record == MergeRow::Record::decision && row.outcome == outcome;
  });
}

int64_t MergeReport::refused() const {
  return std::count_if(rows.begin(), rows.end(),
                       [](const MergeRow& row) { return row.outcome == MergeOutcome::refused; });
}

bool MergeReport::took_nothing() const {
  return decisions(MergeOutcome::taken) == 0 && plans.taken == 0 && images.taken == 0 &&
         verifications.taken == 0 && timings.taken == 0 && rejections.taken == 0;
}

}  // namespace kiln::cache
