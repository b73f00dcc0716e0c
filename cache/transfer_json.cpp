// The records of a store as canonical JSON, one record a line, and back. Reading trusts nothing:
// each field is there once, of its type and within its length, or the whole text is refused.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <set>
#include <tuple>

#include "cache/blob.h"
#include "cache/transfer.h"
#include "jit/base/error.h"

namespace kiln::cache {
namespace {

constexpr const char* kFormat = "kiln-export";
constexpr int64_t kFormatVersion = 1;

constexpr size_t kMostTextBytes = 4096;
constexpr size_t kMostLogBytes = 65536;
constexpr int64_t kMostExact = int64_t{1} << 52;  // integers that a double holds, and one more bit

// --- base64

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t group = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    for (size_t i = 0; i < 3; ++i) {
      group = group << 8 | (i < count ? static_cast<uint8_t>(bytes[at + i]) : 0U);
    }
    for (size_t i = 0; i < 4; ++i) {
      text += i <= count ? kDigits[group >> (18 - 6 * i) & 63U] : '=';
    }
  }
  return text;
}

// Nothing unless it is what to_base64() makes.
std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t at = 0; at < text.size(); at += 4) {
    const bool is_last = at + 4 == text.size();
    size_t count = 4;
    if (is_last) {
      while (count > 2 && text[at + count - 1] == '=') --count;
    }
    uint32_t group = 0;
    for (size_t i = 0; i < 4; ++i) {
      const size_t digit = i < count ? kDigits.find(text[at + i]) : 0;
      if (digit == std::string_view::npos) return std::nullopt;
      group = group << 6 | static_cast<uint32_t>(digit);
    }
    if ((group & (count == 2 ? 0xffffU : count == 3 ? 0xffU : 0U)) != 0) return std::nullopt;
    for (size_t i = 0; i + 1 < count; ++i) {
      bytes += static_cast<char>(group >> (16 - 8 * i) & 0xffU);
    }
  }
  return bytes;
}

// --- writing

// Text of the store that should be JSON stays readable when it is none; nobody takes it back then.
Json stored(const std::string& text) {
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? Json(text) : value;
}

int64_t picoseconds(double ns) {
  return std::isfinite(ns) && ns >= 0 && ns * 1000 < static_cast<double>(kMostExact)
             ? std::llround(ns * 1000)
             : 0;
}

Json millionths(double value) {
  const double scaled = value * 1e6;
  if (!std::isfinite(scaled) || std::abs(scaled) > static_cast<double>(kMostExact)) return nullptr;
  return std::llround(scaled);
}

Json problem_fields(const Problem& problem) {
  return {{"op", problem.op},
          {"op_version", problem.op_version},
          {"shape", stored(problem.shape)},
          {"bucket", stored(problem.bucket)}};
}

// What tells a decision from all others.
Json key_fields(const Decision& decision) {
  Json record = problem_fields(decision.problem);
  record["gpu_class"] = stored(decision.gpu_class);
  record["kind"] = kind_name(decision.kind);
  return record;
}

Json decision_json(const Decision& decision) {
  Json record = key_fields(decision);
  record["config"] = stored(decision.config);
  record["plan"] = decision.plan.hex();
  return record;
}

Json reason_json(const Decision& decision) {
  Json record = key_fields(decision);
  Json ties = Json::array();
  for (const std::string& config : decision.tie_group) ties.push_back(stored(config));
  record.update({{"gpu_label", decision.gpu_label},
                 {"reason", decision.reason},
                 {"partial", decision.scope == Decision::Scope::part},
                 {"limits", decision.limits},
                 {"tie_group", ties},
                 {"time_ps", picoseconds(decision.time_ns)},
                 {"default_time_ps", picoseconds(decision.default_time_ns)},
                 {"decided_at", decision.decided_at}});
  return record;
}

Json plan_json(const PlanRecord& plan) {
  Json kernels = Json::array();
  for (const PlanRecord::Kernel& kernel : plan.kernels) {
    kernels.push_back({{"binary", kernel.binary.hex()},
                       {"entry", kernel.entry},
                       {"threads", kernel.threads},
                       {"dynamic_smem_bytes", kernel.dynamic_smem_bytes}});
  }
  return {{"id", plan.id.hex()},
          {"op", plan.op},
          {"op_version", plan.op_version},
          {"shape", stored(plan.shape)},
          {"config", stored(plan.config)},
          {"arch", plan.arch},
          {"reduction_signature", plan.reduction_signature},
          {"packed_layout", plan.packed_layout},
          {"kernels", kernels}};
}

Json binary_json(const jit::Binary& binary) {
  Json record = {{"key", binary.key.hex()},
                 {"source_hash", binary.source_hash.hex()},
                 {"arch", binary.arch},
                 {"options", binary.options},
                 {"entry", binary.entry},
                 {"kind", binary.kind == jit::BinaryKind::cubin ? "cubin" : "ptx"},
                 {"registers", binary.resources.registers},
                 {"spill_store_bytes", binary.resources.spill_store_bytes},
                 {"spill_load_bytes", binary.resources.spill_load_bytes},
                 {"stack_bytes", binary.resources.stack_bytes},
                 {"static_smem_bytes", binary.resources.static_smem_bytes},
                 {"log", binary.log.substr(0, kMostLogBytes)},
                 {"nvrtc_version", binary.nvrtc_version},
                 {"compile_ns", binary.compile_ns}};
  if (!binary.image.empty()) {
    const PackedImage packed = pack_image(binary.image);
    record["image"] = {{"raw_bytes", packed.raw_bytes},
                       {"checksum", packed.checksum.hex()},
                       {"zstd", to_base64(packed.data)}};
  }
  return record;
}

Json verification_json(const Verification& verification) {
  Json record = problem_fields(verification.problem);
  record.update({{"plan", verification.plan.hex()},
                 {"by", verified_name(verification.by)},
                 {"passed", verification.passed},
                 {"detail", verification.detail},
                 {"tolerance", verification.tolerance},
                 {"worst_error_millionths", millionths(verification.worst_error)},
                 {"card", verification.card},
                 {"driver", verification.driver},
                 {"verified_at", verification.verified_at}});
  return record;
}

Json timing_json(const Timing& timing) {
  Json record = problem_fields(timing.problem);
  record.update({{"plan", timing.plan.hex()},
                 {"gpu_class", stored(timing.gpu_class)},
                 {"time_ps", picoseconds(timing.time_ns)},
                 {"spread_ps", picoseconds(timing.spread_ns)},
                 {"rounds", timing.rounds},
                 {"method", timing.method},
                 {"limits", timing.limits},
                 {"device", timing.device},
                 {"timed_at", timing.timed_at}});
  return record;
}

Json rejection_json(const Rejection& rejection) {
  Json record = problem_fields(rejection.problem);
  record.update({{"gpu_class", stored(rejection.gpu_class)},
                 {"config", stored(rejection.config)},
                 {"plan", rejection.plan.hex()},
                 {"limits", rejection.limits},
                 {"stage", rejection.stage},
                 {"reason", rejection.reason},
                 {"detail", rejection.detail},
                 {"rejected_at", rejection.rejected_at}});
  return record;
}

// An array with a record a line, sorted by their text.
template <typename Record>
std::string lines(const std::vector<Record>& records, Json (*json)(const Record&)) {
  std::set<std::string> texts;
  for (const Record& record : records) {
    texts.insert(json(record).dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  if (texts.empty()) return "[]";
  return fmt::format("[\n{}\n]", fmt::join(texts, ",\n"));
}

// --- reading

// One value and how it is reached from the top of the text.
class Field {
 public:
  explicit Field(const Json& value) : value_(value) {}
  Field(const Json& value, const Field& parent, std::string_view key)
      : value_(value), parent_(&parent), key_(key) {}
  Field(const Json& value, const Field& parent, size_t index)
      : value_(value), parent_(&parent), index_(index) {}

  std::string path() const {
    if (parent_ == nullptr) return "";
    const std::string above = parent_->path();
    if (key_.empty()) return fmt::format("{}[{}]", above, index_);
    return above.empty() ? std::string(key_) : fmt::format("{}.{}", above, key_);
  }

  [[noreturn]] void refuse(std::string_view expected) const {
    constexpr size_t kMostShown = 80;
    std::string what = value_.is_structured()
                           ? fmt::format("an {} of {}", value_.type_name(), value_.size())
                           : value_.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (what.size() > kMostShown) what = what.substr(0, kMostShown) + "...";
    const std::string place = path();
    fail(Status::invalid_argument, "{}: {} was expected, it is {}",
         place.empty() ? "the whole text" : place, expected, what);
  }

  bool has(std::string_view key) const { return value_.contains(key); }
  // Of an object that has just the keys that are asked for.
  Field operator[](std::string_view key) const { return {value_.find(key).value(), *this, key}; }

  const Field& object(std::initializer_list<std::string_view> keys,
                      std::initializer_list<std::string_view> optional = {}) const {
    if (!value_.is_object()) refuse(fmt::format("an object of {}", fmt::join(keys, ", ")));
    for (const std::string_view key : keys) {
      if (!value_.contains(key)) refuse(fmt::format("an object with the key {}", key));
    }
    for (const auto& [key, ignored] : value_.items()) {
      const auto is = [&key = key](std::string_view known) { return known == key; };
      if (std::none_of(keys.begin(), keys.end(), is) &&
          std::none_of(optional.begin(), optional.end(), is)) {
        fail(Status::invalid_argument, "{}: the key {} is not known here; known are {}",
             parent_ == nullptr ? "the whole text" : path(), in_quotes(key.substr(0, 80)),
             fmt::join(keys, ", "));
      }
    }
    return *this;
  }

  template <typename Read>
  auto array(Read read) const {
    if (!value_.is_array()) refuse("an array");
    std::vector<decltype(read(*this))> records;
    records.reserve(value_.size());
    for (size_t i = 0; i < value_.size(); ++i) records.push_back(read(Field(value_[i], *this, i)));
    return records;
  }

  const std::string& text(size_t most_bytes = kMostTextBytes) const {
    if (!value_.is_string() || value_.get_ref<const std::string&>().size() > most_bytes) {
      refuse(fmt::format("a text of at most {} bytes", most_bytes));
    }
    return value_.get_ref<const std::string&>();
  }

  int64_t integer(int64_t least, int64_t most) const {
    const bool fits =
        value_.is_number_integer() &&
        !(value_.is_number_unsigned() && value_.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
    if (!fits || value_.get<int64_t>() < least || value_.get<int64_t>() > most) {
      refuse(fmt::format("an integer from {} to {}", least, most));
    }
    return value_.get<int64_t>();
  }
  int small_integer() const { return static_cast<int>(integer(0, 1'000'000'000)); }
  int64_t bytes() const { return integer(0, int64_t{1} << 40); }
  int64_t date() const { return integer(0, int64_t{1} << 40); }
  double nanoseconds() const { return static_cast<double>(integer(0, kMostExact)) / 1000.0; }
  double millionths() const {
    if (value_.is_null()) return std::nan("");
    return static_cast<double>(integer(-kMostExact, kMostExact)) / 1e6;
  }

  bool boolean() const {
    if (!value_.is_boolean()) refuse("true or false");
    return value_.get<bool>();
  }

  Hash128 hash() const {
    const std::optional<Hash128> hash =
        value_.is_string() ? parse_hash(value_.get_ref<const std::string&>()) : std::nullopt;
    if (!hash) refuse("32 hexadecimal digits");
    return *hash;
  }

  // As the store keeps it.
  std::string object_text() const {
    if (!value_.is_object()) refuse("an object");
    for (const auto& [key, member] : value_.items()) {
      // No shape, bucket, class or config is deeper.
      if (member.is_structured() || member.is_number_float()) {
        Field(member, *this, key).refuse("an integer, a text or a boolean");
      }
    }
    std::string text = canonical_json(value_);
    if (text.size() > kMostTextBytes) {
      refuse(fmt::format("an object of at most {} bytes", kMostTextBytes));
    }
    return text;
  }

  template <typename Value>
  Value one_of(std::initializer_list<std::pair<const char*, Value>> names) const {
    std::string known;
    for (const auto& [name, value] : names) {
      if (value_ == name) return value;
      known += (known.empty() ? "" : ", ") + std::string(name);
    }
    refuse("one of " + known);
  }

 private:
  const Json& value_;
  const Field* parent_ = nullptr;
  std::string_view key_;
  size_t index_ = 0;
};

Problem read_problem(const Field& field) {
  return {field["op"].text(), field["op_version"].small_integer(), field["shape"].object_text(),
          field["bucket"].object_text()};
}

DecisionKind read_kind(const Field& field) {
  return field.one_of<DecisionKind>({{"pinned", DecisionKind::pinned},
                                     {"measured", DecisionKind::measured},
                                     {"borrowed", DecisionKind::borrowed},
                                     {"predicted", DecisionKind::predicted},
                                     {"default", DecisionKind::fallback}});
}

Decision read_decision(const Field& field) {
  field.object({"op", "op_version", "shape", "bucket", "gpu_class", "kind", "config", "plan"});
  Decision decision;
  decision.problem = read_problem(field);
  decision.gpu_class = field["gpu_class"].object_text();
  decision.kind = read_kind(field["kind"]);
  decision.config = field["config"].object_text();
  decision.plan = field["plan"].hash();
  return decision;
}

using DecisionKey = std::tuple<Problem, std::string, DecisionKind>;

DecisionKey key_of(const Decision& decision) {
  return {decision.problem, decision.gpu_class, decision.kind};
}

void read_reason(const Field& field, std::map<DecisionKey, Decision*>& decisions) {
  field.object({"op", "op_version", "shape", "bucket", "gpu_class", "kind", "gpu_label", "reason",
                "partial", "limits", "tie_group", "time_ps", "default_time_ps", "decided_at"});
  const auto found = decisions.find(
      {read_problem(field), field["gpu_class"].object_text(), read_kind(field["kind"])});
  if (found == decisions.end()) field.refuse("the reason of one of the decisions");
  Decision& decision = *found->second;
  decision.gpu_label = field["gpu_label"].text();
  decision.reason = field["reason"].text();
  decision.scope = field["partial"].boolean() ? Decision::Scope::part : Decision::Scope::all;
  decision.limits = field["limits"].text();
  decision.tie_group =
      field["tie_group"].array([](const Field& config) { return config.object_text(); });
  decision.time_ns = field["time_ps"].nanoseconds();
  decision.default_time_ns = field["default_time_ps"].nanoseconds();
  decision.decided_at = field["decided_at"].date();
}

PlanRecord read_plan(const Field& field) {
  field.object({"id", "op", "op_version", "shape", "config", "arch", "reduction_signature",
                "packed_layout", "kernels"});
  PlanRecord plan;
  plan.id = field["id"].hash();
  plan.op = field["op"].text();
  plan.op_version = field["op_version"].small_integer();
  plan.shape = field["shape"].object_text();
  plan.config = field["config"].object_text();
  plan.arch = field["arch"].text();
  plan.reduction_signature = field["reduction_signature"].text();
  plan.packed_layout = field["packed_layout"].text();
  plan.kernels = field["kernels"].array([](const Field& kernel) {
    kernel.object({"binary", "entry", "threads", "dynamic_smem_bytes"});
    return PlanRecord::Kernel{.binary = kernel["binary"].hash(),
                              .entry = kernel["entry"].text(),
                              .threads = kernel["threads"].small_integer(),
                              .dynamic_smem_bytes = kernel["dynamic_smem_bytes"].bytes()};
  });
  return plan;
}

// left_bytes: what images may unpack to from here on.
std::string read_image(const Field& field, const ImportLimits& limits, int64_t& left_bytes) {
  field.object({"raw_bytes", "checksum", "zstd"});
  const int64_t raw_bytes =
      field["raw_bytes"].integer(1, std::min(limits.image_bytes, kMaxImageBytes));
  if (raw_bytes > left_bytes) {
    fail(Status::invalid_argument, "{}: all images may unpack to {} bytes, and this one exceeds it",
         field.path(), limits.all_images_bytes);
  }
  left_bytes -= raw_bytes;
  const std::optional<std::string> packed =
      from_base64(field["zstd"].text(static_cast<size_t>(limits.text_bytes)));
  if (!packed) field["zstd"].refuse("base64");
  // Nothing is unpacked that does not say the same size itself.
  std::optional<std::string> image =
      unpack_image(static_cast<int64_t>(Codec::zstd), raw_bytes, field["checksum"].hash(), *packed);
  if (!image) {
    fail(Status::invalid_argument,
         "{}: a zstd frame of {} bytes with that checksum was expected, it is another",
         field["zstd"].path(), raw_bytes);
  }
  return std::move(*image);
}

jit::Binary read_binary(const Field& field, const ImportLimits& limits, int64_t& left_bytes) {
  field.object({"key", "source_hash", "arch", "options", "entry", "kind", "registers",
                "spill_store_bytes", "spill_load_bytes", "stack_bytes", "static_smem_bytes", "log",
                "nvrtc_version", "compile_ns"},
               {"image"});
  jit::Binary binary;
  binary.key = field["key"].hash();
  binary.source_hash = field["source_hash"].hash();
  binary.arch = field["arch"].text();
  binary.options = field["options"].text();
  binary.entry = field["entry"].text();
  binary.kind = field["kind"].one_of<jit::BinaryKind>(
      {{"cubin", jit::BinaryKind::cubin}, {"ptx", jit::BinaryKind::ptx}});
  binary.resources = {.registers = field["registers"].small_integer(),
                      .spill_store_bytes = field["spill_store_bytes"].bytes(),
                      .spill_load_bytes = field["spill_load_bytes"].bytes(),
                      .stack_bytes = field["stack_bytes"].bytes(),
                      .static_smem_bytes = field["static_smem_bytes"].bytes()};
  binary.log = field["log"].text(kMostLogBytes);
  binary.nvrtc_version = field["nvrtc_version"].text();
  binary.compile_ns = field["compile_ns"].integer(0, kMostExact);
  if (field.has("image")) binary.image = read_image(field["image"], limits, left_bytes);
  return binary;
}

Verification read_verification(const Field& field) {
  field.object({"op", "op_version", "shape", "bucket", "plan", "by", "passed", "detail",
                "tolerance", "worst_error_millionths", "card", "driver", "verified_at"});
  return {.plan = field["plan"].hash(),
          .problem = read_problem(field),
          .by = field["by"].one_of<Verified>(
              {{"simulator", Verified::simulator}, {"device", Verified::device}}),
          .passed = field["passed"].boolean(),
          .detail = field["detail"].text(kMostLogBytes),
          .tolerance = field["tolerance"].text(),
          .worst_error = field["worst_error_millionths"].millionths(),
          .card = field["card"].text(),
          .driver = field["driver"].text(),
          .verified_at = field["verified_at"].date()};
}

Timing read_timing(const Field& field) {
  field.object({"op", "op_version", "shape", "bucket", "plan", "gpu_class", "time_ps", "spread_ps",
                "rounds", "method", "limits", "device", "timed_at"});
  return {.plan = field["plan"].hash(),
          .problem = read_problem(field),
          .gpu_class = field["gpu_class"].object_text(),
          .time_ns = field["time_ps"].nanoseconds(),
          .spread_ns = field["spread_ps"].nanoseconds(),
          .rounds = field["rounds"].small_integer(),
          .method = field["method"].text(),
          .limits = field["limits"].text(),
          .device = field["device"].text(),
          .timed_at = field["timed_at"].date()};
}

Rejection read_rejection(const Field& field) {
  field.object({"op", "op_version", "shape", "bucket", "gpu_class", "config", "plan", "limits",
                "stage", "reason", "detail", "rejected_at"});
  return {.problem = read_problem(field),
          .gpu_class = field["gpu_class"].object_text(),
          .config = field["config"].object_text(),
          .plan = field["plan"].hash(),
          .limits = field["limits"].text(),
          .stage = field["stage"].text(),
          .reason = field["reason"].text(),
          .detail = field["detail"].text(kMostLogBytes),
          .rejected_at = field["rejected_at"].date()};
}

// A text of many small values takes many times its own size.
void require_sizes(std::string_view text, const ImportLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.text_bytes) {
    fail(Status::invalid_argument, "the whole text: at most {} bytes were expected, it has {}",
         limits.text_bytes, text.size());
  }
  const int64_t commas = std::count(text.begin(), text.end(), ',');
  if (commas > limits.values) {
    fail(Status::invalid_argument, "the whole text: at most {} values were expected, it has {}",
         limits.values, commas);
  }
}

}  // namespace

std::string to_json(const StoreContents& contents, ExportParts parts) {
  std::string text = "{\n";
  text += "\"binaries\":" + lines(contents.binaries, binary_json) + ",\n";
  text += "\"decisions\":" + lines(contents.decisions, decision_json) + ",\n";
  if (parts == ExportParts::all) {
    text += "\"evidence\":{\n";
    text += "\"reasons\":" + lines(contents.decisions, reason_json) + ",\n";
    text += "\"rejections\":" + lines(contents.rejections, rejection_json) + ",\n";
    text += "\"timings\":" + lines(contents.timings, timing_json) + ",\n";
    text += "\"verifications\":" + lines(contents.verifications, verification_json) + "\n},\n";
  }
  text += fmt::format("\"format\":\"{}\",\n\"format_version\":{},\n", kFormat, kFormatVersion);
  text += "\"plans\":" + lines(contents.plans, plan_json) + "\n}\n";
  return text;
}

Hash128 decisions_digest(const StoreContents& contents) {
  return hash_text(lines(contents.decisions, decision_json));
}

StoreContents from_json(std::string_view text, const ImportLimits& limits) {
  require_sizes(text, limits);
  const Json whole = parse_json(text, "text");
  const Field top(whole);
  // What it is comes first: another program's file has none of the keys.
  if (!whole.is_object() || !whole.contains("format")) {
    top.refuse(fmt::format("an object with \"format\": \"{}\"", kFormat));
  }
  if (whole["format"] != kFormat) top["format"].refuse(fmt::format("\"{}\"", kFormat));
  if (!whole.contains("format_version")) top.refuse("an object with the key format_version");
  top["format_version"].integer(kFormatVersion, kFormatVersion);
  top.object({"format", "format_version", "decisions", "plans", "binaries"}, {"evidence"});

  StoreContents contents;
  contents.decisions = top["decisions"].array(read_decision);
  contents.plans = top["plans"].array(read_plan);
  int64_t left_bytes = limits.all_images_bytes;
  contents.binaries = top["binaries"].array(
      [&](const Field& field) { return read_binary(field, limits, left_bytes); });
  if (top.has("evidence")) {
    const Field evidence = top["evidence"];
    evidence.object({"reasons", "verifications", "timings", "rejections"});
    std::map<DecisionKey, Decision*> decisions;
    for (Decision& decision : contents.decisions) decisions.emplace(key_of(decision), &decision);
    evidence["reasons"].array([&](const Field& field) {
      read_reason(field, decisions);
      return 0;
    });
    contents.verifications = evidence["verifications"].array(read_verification);
    contents.timings = evidence["timings"].array(read_timing);
    contents.rejections = evidence["rejections"].array(read_rejection);
  }
  return contents;
}

}  // namespace kiln::cache
