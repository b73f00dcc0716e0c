// `kiln show OP`: what the op is, and of each problem all that the store knows: the decision and
// why, times, verifications, rejected candidates by reason, binaries with registers and spills. A
// problem without a decision is shown too when there is evidence of it.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "tools/kiln/commands.h"
#include "tools/kiln/decisions.h"
#include "tools/kiln/source.h"
#include "tools/kiln/table.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

constexpr size_t kShownRows = 10;  // of timings and rejections, unless --all

struct ShowArguments {
  std::string op;
  std::string filter;
  std::vector<std::string> gpus;
  bool all = false;
  bool source = false;
  SourceArguments source_arguments;
};

// "ratio=2 num_tokens=256" or {"ratio": 2}: each named field of the shape or the bucket has that
// value.
using Fields = std::vector<std::pair<std::string, std::string>>;

Fields parse_filter(const std::string& text) {
  Fields fields;
  if (text.find('{') == 0) {
    const Json object = object_argument(text, "problem filter");
    for (const auto& [key, value] : object.items()) {
      fields.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
    }
    return fields;
  }
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find_first_of(" ,", begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    if (word.empty()) continue;
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      throw Failure(
          ExitCode::usage,
          fmt::format("{} is no problem filter; expected FIELD=VALUE or JSON.", in_quotes(word)),
          "`kiln ls` shows the fields of each problem.");
    }
    fields.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return fields;
}

void require_fields(const templates::Op& op, const Fields& fields) {
  std::vector<std::string> known;
  for (const templates::Size& size : op.sizes) {
    if (size.kind != templates::SizeKind::derived) known.push_back(size.field);
  }
  for (const auto& [name, value] : fields) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw Failure(
        ExitCode::usage,
        fmt::format("{} has no field {}{}", op.name, in_quotes(name), did_you_mean(name, known)),
        fmt::format("Fields: {}.", joined(known)));
  }
}

bool matches(const cache::Problem& problem, const Fields& fields) {
  Json all = stored_json(problem.shape);
  all.update(stored_json(problem.bucket));
  return std::all_of(fields.begin(), fields.end(), [&](const auto& field) {
    if (!all.contains(field.first)) return false;
    const Json& value = all[field.first];
    return (value.is_string() ? value.get<std::string>() : value.dump()) == field.second;
  });
}

// A problem on a GPU class of which the store knows something.
struct Subject {
  cache::Problem problem;
  std::string gpu_class;  // "" when only proofs are known, which belong to no class
  std::string gpu;        // its label
  std::optional<cache::DecisionRow> decided;
};

// By the GPU table, else as a decision calls it, else by its limits.
std::string class_label(const std::string& gpu_class,
                        const std::vector<cache::DecisionRow>& decisions) {
  for (const Gpu& gpu : gpu_table()) {
    if (gpu_class_key(gpu) == gpu_class) return gpu.slug;
  }
  for (const cache::DecisionRow& row : decisions) {
    if (row.decision.gpu_class == gpu_class) return row.decision.gpu_label;
  }
  return gpu_class.empty() ? "no GPU class" : short_json(stored_json(gpu_class));
}

// Those with a decision first.
std::vector<Subject> find_subjects(cache::Store& store, const templates::Op& op,
                                   const std::vector<std::string>& gpus, const Fields& fields) {
  const DecisionFilter filter = decision_filter(store, {op.name}, gpus);
  std::vector<Subject> subjects;
  std::set<std::pair<cache::Problem, std::string>> decided;
  for (const cache::DecisionRow& row : find_decisions(store, filter)) {
    const cache::Decision& decision = row.decision;
    if (!matches(decision.problem, fields)) continue;
    decided.emplace(decision.problem, decision.gpu_class);
    subjects.push_back({decision.problem, decision.gpu_class, decision.gpu_label, row});
  }
  const std::vector<cache::DecisionRow> all = store.list_decisions();
  for (const cache::Problem& problem : store.problems()) {
    if (problem.op != op.name || !matches(problem, fields)) continue;
    std::vector<std::string> classes = store.gpu_classes(problem);
    if (classes.empty() && !store.verifications(problem).empty()) classes.emplace_back();
    for (const std::string& gpu_class : classes) {
      const std::string label = class_label(gpu_class, all);
      if (filter.lets_through(gpu_class, label) && !decided.contains({problem, gpu_class})) {
        subjects.push_back({problem, gpu_class, label, std::nullopt});
      }
    }
  }
  return subjects;
}

struct Evidence {
  Subject subject;
  std::vector<cache::Timing> timings;  // fastest first
  std::vector<cache::Verification> verifications;
  std::vector<cache::Rejection> rejections;
  std::map<Hash128, cache::PlanRecord> plans;
};

Evidence gather(cache::Store& store, const Subject& subject) {
  Evidence evidence{subject,
                    store.timings(subject.problem, subject.gpu_class),
                    store.verifications(subject.problem),
                    store.rejections(subject.problem, subject.gpu_class),
                    {}};
  std::stable_sort(
      evidence.timings.begin(), evidence.timings.end(),
      [](const cache::Timing& a, const cache::Timing& b) { return a.time_ns < b.time_ns; });
  std::set<Hash128> ids;
  if (subject.decided) ids.insert(subject.decided->decision.plan);
  for (const cache::Timing& timing : evidence.timings) ids.insert(timing.plan);
  for (const cache::Verification& verification : evidence.verifications) {
    ids.insert(verification.plan);
  }
  for (const Hash128& id : ids) {
    if (const auto plan = store.find_plan(id)) evidence.plans.emplace(id, *plan);
  }
  return evidence;
}

std::string config_of(const Evidence& evidence, const Hash128& plan) {
  const auto found = evidence.plans.find(plan);
  return found == evidence.plans.end() ? "" : found->second.config;
}

// The winner's plan first, then those of its tie group.
std::vector<const cache::PlanRecord*> leading_plans(const Evidence& evidence) {
  std::vector<const cache::PlanRecord*> plans;
  if (!evidence.subject.decided) return plans;
  const cache::Decision& decision = evidence.subject.decided->decision;
  const auto winner = evidence.plans.find(decision.plan);
  if (winner != evidence.plans.end()) plans.push_back(&winner->second);
  for (const auto& [id, plan] : evidence.plans) {
    const auto& ties = decision.tie_group;
    if (id != decision.plan && std::find(ties.begin(), ties.end(), plan.config) != ties.end()) {
      plans.push_back(&plan);
    }
  }
  return plans;
}

std::map<std::string, std::vector<const cache::Rejection*>> by_reason(const Evidence& evidence) {
  std::map<std::string, std::vector<const cache::Rejection*>> groups;
  for (const cache::Rejection& rejection : evidence.rejections) {
    groups[rejection.stage + ": " + rejection.reason].push_back(&rejection);
  }
  return groups;
}

Json binaries_json(cache::Store& store, const Evidence& evidence) {
  Json list = Json::array();
  for (const cache::PlanRecord* plan : leading_plans(evidence)) {
    for (const cache::PlanRecord::Kernel& kernel : plan->kernels) {
      Json row = {{"config", stored_json(plan->config)},
                  {"entry", kernel.entry},
                  {"key", kernel.binary.hex()},
                  {"threads", kernel.threads},
                  {"dynamic_smem_bytes", kernel.dynamic_smem_bytes},
                  {"in_store", false}};
      if (const auto binary = store.find_binary(kernel.binary)) {
        row["in_store"] = true;
        row["arch"] = binary->arch;
        row["registers"] = binary->resources.registers;
        row["spill_store_bytes"] = binary->resources.spill_store_bytes;
        row["spill_load_bytes"] = binary->resources.spill_load_bytes;
        row["stack_bytes"] = binary->resources.stack_bytes;
        row["static_smem_bytes"] = binary->resources.static_smem_bytes;
        row["image_bytes"] = binary->image.size();
        row["options"] = binary->options;
        row["nvrtc"] = binary->nvrtc_version;
      }
      list.push_back(row);
    }
  }
  return list;
}

Json evidence_json(cache::Store& store, const Evidence& evidence) {
  Json timings = Json::array();
  for (const cache::Timing& timing : evidence.timings) {
    timings.push_back({{"config", stored_json(config_of(evidence, timing.plan))},
                       {"time_ns", timing.time_ns},
                       {"spread_ns", timing.spread_ns},
                       {"rounds", timing.rounds},
                       {"method", timing.method},
                       {"limits", timing.limits.empty() ? Json() : Json(timing.limits)},
                       {"device", timing.device}});
  }
  Json verifications = Json::array();
  for (const cache::Verification& verification : evidence.verifications) {
    verifications.push_back({{"config", stored_json(config_of(evidence, verification.plan))},
                             {"by", cache::verified_json(verification.by)},
                             {"passed", verification.passed},
                             {"detail", verification.detail},
                             {"tolerance", verification.tolerance},
                             {"worst_error", verification.worst_error},
                             {"device", cache::device_text(verification)}});
  }
  Json rejections = Json::array();
  for (const cache::Rejection& rejection : evidence.rejections) {
    rejections.push_back({{"config", stored_json(rejection.config)},
                          {"stage", rejection.stage},
                          {"reason", rejection.reason},
                          {"detail", rejection.detail}});
  }
  const Subject& subject = evidence.subject;
  Json ties = Json::array();
  Json result = {{"problem", problem_json(subject.problem)},
                 {"gpu", subject.gpu},
                 {"gpu_class", stored_json(subject.gpu_class)},
                 {"timings", timings},
                 {"verifications", verifications},
                 {"rejections", rejections},
                 {"binaries", binaries_json(store, evidence)}};
  for (const char* field : {"config", "kind", "reason", "time_ns", "default_time_ns", "verified",
                            "decided_at", "layer"}) {
    result[field] = nullptr;  // of an undecided problem
  }
  if (subject.decided) {
    const cache::Decision& decision = subject.decided->decision;
    for (const std::string& config : decision.tie_group) ties.push_back(stored_json(config));
    result["config"] = stored_json(decision.config);
    result["kind"] = cache::kind_name(decision.kind);
    result["reason"] = decision.reason;
    result["time_ns"] = known_number(decision.time_ns);
    result["default_time_ns"] = known_number(decision.default_time_ns);
    result["verified"] = cache::verified_json(subject.decided->verified);
    result["decided_at"] = decision.decided_at;
    result["layer"] = subject.decided->layer;
  }
  result["tie_group"] = ties;
  return result;
}

void print_more(size_t total, size_t shown) {
  if (total > shown) print(fmt::format("    ... and {} more; --all shows them\n", total - shown));
}

void print_timings(const Evidence& evidence, size_t limit) {
  Table table({{"CONFIG"},
               {"TIME", Align::right},
               {"SPREAD", Align::right},
               {"ROUNDS", Align::right},
               {"METHOD"},
               {"LIMITS"},
               {"DEVICE"}});
  const size_t shown = std::min(limit, evidence.timings.size());
  for (size_t i = 0; i < shown; ++i) {
    const cache::Timing& timing = evidence.timings[i];
    table.add({short_json(stored_json(config_of(evidence, timing.plan))), time_text(timing.time_ns),
               time_text(timing.spread_ns), std::to_string(timing.rounds), timing.method,
               timing.limits.empty() ? "-" : timing.limits, timing.device});
  }
  print(table.empty() ? std::string("  timings: none\n") : "  timings\n" + table.text(4));
  print_more(evidence.timings.size(), shown);
}

void print_verifications(const Evidence& evidence, size_t limit) {
  Table table({{"CONFIG"}, {"BY"}, {"RESULT"}, {"TOLERANCE"}, {"DETAIL"}, {"DEVICE"}});
  const size_t shown = std::min(limit, evidence.verifications.size());
  for (size_t i = 0; i < shown; ++i) {
    const cache::Verification& each = evidence.verifications[i];
    table.add({short_json(stored_json(config_of(evidence, each.plan))),
               cache::verified_name(each.by), each.passed ? "passed" : "FAILED", each.tolerance,
               each.detail, cache::device_text(each)});
  }
  print(table.empty() ? std::string("  verifications: none\n")
                      : "  verifications\n" + table.text(4));
  print_more(evidence.verifications.size(), shown);
}

void print_rejections(const Evidence& evidence) {
  Table table({{"STAGE: REASON"}, {"CANDIDATES", Align::right}, {"FOR EXAMPLE"}});
  for (const auto& [reason, group] : by_reason(evidence)) {
    const cache::Rejection& first = *group.front();
    std::string example = short_json(stored_json(first.config));
    if (!first.detail.empty()) example += ": " + first.detail.substr(0, first.detail.find('\n'));
    table.add({reason, std::to_string(group.size()), example});
  }
  print(table.empty() ? std::string("  rejections: none\n") : "  rejections\n" + table.text(4));
}

void print_binaries(cache::Store& store, const Evidence& evidence) {
  Table table({{"CONFIG"},
               {"KERNEL"},
               {"BINARY"},
               {"ARCH"},
               {"REGISTERS", Align::right},
               {"SPILLS", Align::right},
               {"STACK", Align::right},
               {"STATIC SMEM", Align::right},
               {"DYNAMIC SMEM", Align::right},
               {"IMAGE", Align::right}});
  const auto bytes = [](int64_t value) { return bytes_text(static_cast<double>(value)); };
  for (const cache::PlanRecord* plan : leading_plans(evidence)) {
    for (const cache::PlanRecord::Kernel& kernel : plan->kernels) {
      std::vector<std::string> cells = {short_json(stored_json(plan->config)), kernel.entry,
                                        kernel.binary.hex()};
      if (const auto binary = store.find_binary(kernel.binary)) {
        const jit::Resources& resources = binary->resources;
        const std::string spills =
            resources.spill_store_bytes + resources.spill_load_bytes == 0
                ? "none"
                : fmt::format("{} B out, {} B in", resources.spill_store_bytes,
                              resources.spill_load_bytes);
        for (const std::string& cell :
             {binary->arch, std::to_string(resources.registers), spills,
              bytes(resources.stack_bytes), bytes(resources.static_smem_bytes),
              bytes(kernel.dynamic_smem_bytes),
              bytes(static_cast<int64_t>(binary->image.size()))}) {
          cells.push_back(cell);
        }
      } else {
        cells.push_back("not in the store");
      }
      table.add(cells);
    }
  }
  print(table.empty() ? std::string("  binaries: none\n") : "  binaries\n" + table.text(4));
}

void print_line(std::string_view label, std::string_view text) {
  print(fmt::format("  {:<9} {}\n", label, text));
}

void print_decision(const cache::DecisionRow& row) {
  const cache::Decision& decision = row.decision;
  print_line("config", short_json(stored_json(decision.config)));
  print_line("kind", fmt::format("{}: {}", cache::kind_name(decision.kind), decision.reason));
  print_line("time", fmt::format("{}, default {}, {} the default's speed",
                                 time_text(decision.time_ns), time_text(decision.default_time_ns),
                                 ratio_text(decision.default_time_ns, decision.time_ns)));
  print_line("verified", row.verified == cache::Verified::none
                             ? "no"
                             : fmt::format("by the {}", cache::verified_name(row.verified)));
  print_line("decided", fmt::format("{}, in {}", date_text(decision.decided_at), row.layer));
  if (decision.tie_group.size() > 1) {
    print_line("ties", fmt::format("{} configs are within the noise:", decision.tie_group.size()));
    for (const std::string& config : decision.tie_group) {
      print_line("", short_json(stored_json(config)));
    }
  }
}

void print_evidence(cache::Store& store, const Evidence& evidence, size_t limit) {
  const Subject& subject = evidence.subject;
  print(fmt::format("\n{} on {}\n", problem_text(subject.problem), subject.gpu));
  if (subject.decided) {
    print_decision(*subject.decided);
  } else {
    print_line("decided", "no: the default serves it; this is what was tried");
  }
  print_timings(evidence, limit);
  print_verifications(evidence, limit);
  print_rejections(evidence);
  if (subject.decided) print_binaries(store, evidence);
}

std::string legal_values(const templates::Size& size) {
  if (size.kind == templates::SizeKind::derived) return "";
  if (!size.names.empty()) {
    std::vector<std::string> names;
    for (const templates::SizeName& name : size.names) names.push_back(name.name);
    return joined(names);
  }
  const bool open = size.max == std::numeric_limits<int64_t>::max();
  return open ? fmt::format("{} or more", size.min) : fmt::format("{} to {}", size.min, size.max);
}

void print_op(const templates::Op& op) {
  print(fmt::format("{} version {}: {}\n", op.name, op.version, op.summary));
  if (!op.doc.empty()) print("\n" + op.doc + (op.doc.back() == '\n' ? "" : "\n"));
  print(fmt::format("\nFormula: {}. Result: {}. Needs compute capability {}.{}.\n", op.source,
                    op.result_text(), op.min_cc / 10, op.min_cc % 10));

  Table sizes({{"SIZE"}, {"KIND"}, {"LEGAL"}, {"WHAT"}});
  for (const templates::Size& size : op.sizes) {
    if (size.kind == templates::SizeKind::derived) continue;
    sizes.add({size.field, size.kind == templates::SizeKind::fixed ? "shape" : "size of a call",
               legal_values(size), size.doc});
  }
  print("\n" + sizes.text());
  for (const templates::Bucket& bucket : op.buckets) {
    print(fmt::format("\nBuckets of {}: {}\n", op.find_size(bucket.symbol)->field,
                      fmt::join(bucket.edges, ", ")));
  }
}

ExitCode run_show(const ShowArguments& arguments, const Common& common) {
  const templates::Op& op = resolve_op(arguments.op);
  if (arguments.source) {
    if (arguments.gpus.size() > 1 || !arguments.filter.empty()) {
      throw Failure(ExitCode::usage, "--source takes one --gpu and no problem filter.",
                    "Name the problem with --shape JSON.");
    }
    return show_source(op, arguments.source_arguments,
                       arguments.gpus.empty() ? "" : arguments.gpus.front(), common);
  }

  const Fields fields = parse_filter(arguments.filter);
  require_fields(op, fields);
  OpenStore store(common, StoreUse::read);
  const std::vector<Subject> subjects = find_subjects(*store, op, arguments.gpus, fields);

  if (common.form() == OutputForm::json) {
    Json problems = Json::array();
    for (const Subject& subject : subjects) {
      problems.push_back(evidence_json(*store, gather(*store, subject)));
    }
    print_json({{"op", op.name},
                {"version", op.version},
                {"summary", op.summary},
                {"problems", problems}});
    return store.code_of_reading();
  }
  print_op(op);
  if (subjects.empty()) {
    note("nothing of this op matches in the store; `kiln tune` or `kiln build` fills it.");
  }
  for (const Subject& subject : subjects) {
    print_evidence(*store, gather(*store, subject), arguments.all ? SIZE_MAX : kShownRows);
  }
  return store.code_of_reading();
}

}  // namespace

void add_show(CLI::App& app, Common& common, Chosen& chosen) {
  auto arguments = std::make_shared<ShowArguments>();
  const ExampleCall call = example_call();
  CLI::App* command = add_command(
      app, common, chosen, "show", "Show an op, its decisions with their evidence, or its source",
      fmt::format(
          "  kiln show {0}\n"
          "  kiln show {0} '{1}' --gpu rtx-3090\n"
          "  kiln show {0} --source --arch sm_86 > kernel.cu && nvcc --fmad=false -arch=sm_86 "
          "-cubin kernel.cu\n",
          call.op, call.shape),
      [arguments, &common] { return run_show(*arguments, common); });
  command->add_option("op", arguments->op, "The op")->required()->type_name("OP");
  command->add_option("problem", arguments->filter, "Only these problems: FIELD=VALUE or JSON")
      ->type_name("PROBLEM");
  command->add_option("--gpu", arguments->gpus, "Only this GPU; may be repeated")
      ->type_name("SLUG");
  command->add_flag("--all", arguments->all, "Every timing and verification, not the first ten");
  CLI::Option* source = command->add_flag(
      "--source", arguments->source, "Print the specialised source, which nvcc compiles alone");
  add_source_options(*command, source, arguments->source_arguments);
}

}  // namespace kiln::cli
