// `kiln explain`: which config a call of these sizes takes on a GPU, and why: the same choice that
// a session makes, asked of the store without a device. Every key that was looked up is shown, and
// what came nearest when it missed.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/choice.h"
#include "runtime/plan_record.h"
#include "tools/kiln/commands.h"
#include "tools/kiln/decisions.h"
#include "tools/kiln/misses.h"
#include "tools/kiln/target.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

constexpr size_t kNearMisses = 2;

struct ExplainArguments {
  std::string op;
  std::string shape;
  std::string sizes;
  std::string gpu;
  std::string device;
};

struct BucketQuestion {
  templates::Sizes bucket;
  std::vector<std::string> how;  // "num_tokens 1500 lies between 1024 and 4096: 1024 is nearer"
};

std::string how_bucket_was_found(const templates::Op& op, const templates::Bucket& bucket,
                                 int64_t value, int64_t edge) {
  const std::string field = op.find_size(bucket.symbol)->field;
  const auto above = std::lower_bound(bucket.edges.begin(), bucket.edges.end(), value);
  if (value == edge) return fmt::format("{} {} is an edge itself", field, value);
  if (above == bucket.edges.begin()) {
    return fmt::format("{} {} lies below the first edge {}", field, value, edge);
  }
  if (above == bucket.edges.end()) {
    return fmt::format("{} {} lies above the last edge {}", field, value, edge);
  }
  return fmt::format("{} {} lies between {} and {}; {} is nearer by ratio", field, value,
                     *(above - 1), *above, edge);
}

std::vector<BucketQuestion> bucket_questions(const templates::Op& op, const std::string& sizes) {
  std::vector<BucketQuestion> questions;
  if (sizes.empty()) {
    for (const templates::Sizes& bucket : templates::all_buckets(op)) {
      questions.push_back({bucket, {}});
    }
    return questions;
  }
  const templates::Sizes dynamic = bucket_sizes(op, sizes);
  BucketQuestion question{templates::nearest_bucket(op, dynamic), {}};
  for (const templates::Bucket& bucket : op.buckets) {
    question.how.push_back(
        how_bucket_was_found(op, bucket, dynamic[bucket.symbol], question.bucket[bucket.symbol]));
  }
  questions.push_back(std::move(question));
  return questions;
}

Json binaries_json(cache::Store& store, const templates::Op& op, const templates::Sizes& fixed,
                   const runtime::Choice& choice, const Gpu& gpu) {
  Json list = Json::array();
  const templates::LaunchPlan plan = op.plan(fixed, choice.config, gpu);
  for (size_t i = 0; i < plan.kernels.size(); ++i) {
    const templates::KernelLaunch& launch = plan.kernels[i];
    const Hash128 key = jit::binary_key(templates::kernel_source(op, launch), gpu.arch(),
                                        templates::compile_options(launch));
    Json binary = {{"entry", launch.entry},
                   {"key", key.hex()},
                   {"arch", gpu.arch()},
                   {"in_store", store.has_binary(key)}};
    const bool recorded = choice.recorded && i < choice.recorded->kernels.size();
    binary["measured_key"] = recorded ? Json(choice.recorded->kernels[i].binary.hex()) : Json();
    list.push_back(binary);
  }
  return list;
}

Json misses_json(const std::vector<NearMiss>& misses) {
  Json list = Json::array();
  for (const NearMiss& miss : misses) {
    Json differs = Json::array();
    for (const Difference& difference : miss.differences) {
      differs.push_back({{"field", difference.field},
                         {"wanted", difference.wanted},
                         {"stored", difference.stored}});
    }
    list.push_back({{"gpu", miss.row.decision.gpu_label},
                    {"problem", problem_json(miss.row.decision.problem)},
                    {"config", stored_json(miss.row.decision.config)},
                    {"kind", cache::kind_name(miss.row.decision.kind)},
                    {"layer", miss.row.layer},
                    {"differs", differs}});
  }
  return list;
}

Json answer_json(cache::Store& store, const templates::Op& op, const templates::Sizes& fixed,
                 const BucketQuestion& question, runtime::TodaysPlans& plans) {
  const std::string gpu_class = gpu_class_key(plans.gpu());
  const cache::Problem problem = runtime::problem_of(op, fixed, question.bucket);
  const runtime::Choice choice = runtime::choose(store, op, fixed, question.bucket, plans);
  const bool knows_gain = choice.time_ns > 0 && choice.default_time_ns > 0;
  Json answer = {
      {"bucket", stored_json(problem.bucket)},
      {"bucket_from", question.how},
      {"config", templates::config_json(choice.config)},
      {"kind", cache::kind_name(choice.kind)},
      {"reason", choice.reason},
      {"verified", cache::verified_json(choice.verified)},
      {"time_ns", known_number(choice.time_ns)},
      {"default_time_ns", known_number(choice.default_time_ns)},
      {"gain_over_default", knows_gain ? Json(choice.default_time_ns / choice.time_ns) : Json()},
      {"found_in", choice.layer.empty() ? Json() : Json(choice.layer)},
      {"problem_key", problem_json(problem)},
      {"binaries", binaries_json(store, op, fixed, choice, plans.gpu())},
  };
  answer["problem_key"]["op"] = op.name;
  answer["problem_key"]["gpu_class"] = stored_json(gpu_class);
  answer["nearest"] =
      choice.has_decision
          ? Json::array()
          : misses_json(near_misses(store.list_decisions(), problem, gpu_class, kNearMisses));
  return answer;
}

std::string gain_text(const Json& answer) {
  if (answer["gain_over_default"].is_null()) {
    return answer["kind"] == "default"
               ? "none: it is the default, and nothing better was measured or modelled here"
               : "not known: the default has no time beside it";
  }
  return fmt::format("{:.2f}x ({} against {})", answer["gain_over_default"].get<double>(),
                     time_text(answer["time_ns"].get<double>()),
                     time_text(answer["default_time_ns"].get<double>()));
}

std::string binary_text(const Json& binary) {
  std::string text =
      fmt::format("{} {} {}: {}", binary["entry"].get<std::string>(),
                  binary["arch"].get<std::string>(), binary["key"].get<std::string>(),
                  binary["in_store"].get<bool>() ? "in the store"
                                                 : "not in the store, compiled when "
                                                   "prepared");
  if (!binary["measured_key"].is_null() && binary["measured_key"] != binary["key"]) {
    text += fmt::format("; the decision was made with {}: source or options have changed since",
                        binary["measured_key"].get<std::string>());
  }
  return text;
}

void print_answer(const Json& answer, const std::string& layers) {
  const auto line = [](std::string_view label, std::string_view text) {
    print(fmt::format("  {:<10} {}\n", label, text));
  };
  print(fmt::format("bucket {}\n", short_json(answer["bucket"])));
  for (const Json& how : answer["bucket_from"]) line("", how.get<std::string>());
  line("config", short_json(answer["config"]));
  line("kind", answer["kind"].get<std::string>());
  line("why", answer["reason"].get<std::string>());
  line("gain", gain_text(answer));
  line("verified",
       answer["verified"].is_null() ? "no" : "by the " + answer["verified"].get<std::string>());
  line("searched", layers);
  line("found in",
       answer["found_in"].is_null() ? "no layer" : answer["found_in"].get<std::string>());
  line("problem", answer["problem_key"].dump());
  for (const Json& binary : answer["binaries"]) line("binary", binary_text(binary));
  for (const Json& miss : answer["nearest"]) {
    std::vector<std::string> parts;
    for (const Json& differs : miss["differs"]) {
      parts.push_back(fmt::format("{} is {} here, {} there", differs["field"].get<std::string>(),
                                  differs["wanted"].get<std::string>(),
                                  differs["stored"].get<std::string>()));
    }
    line("nearest", fmt::format("{} on {} ({}): {}", short_json(miss["config"]),
                                miss["gpu"].get<std::string>(), miss["kind"].get<std::string>(),
                                joined(parts, "; ")));
  }
}

ExitCode run_explain(const ExplainArguments& arguments, const Common& common) {
  const templates::Op& op = resolve_op(arguments.op);
  if (!arguments.gpu.empty() && !arguments.device.empty()) {
    throw Failure(ExitCode::usage, "--gpu and --device both name the GPU; give one of them.");
  }
  const templates::Sizes fixed =
      arguments.shape.empty()
          ? usual_shape(op)
          : templates::parse_shape(op, object_argument(arguments.shape, "--shape"));
  const std::vector<BucketQuestion> questions = bucket_questions(op, arguments.sizes);
  OpenStore store(common, StoreUse::read);
  const Target target = choose_target(arguments.gpu, arguments.device, *store);
  if (target.gpu.cc() < op.min_cc) {
    throw Failure(ExitCode::failed,
                  fmt::format("{} needs compute capability {}.{} or more; {} has "
                              "{}.{}.",
                              op.name, op.min_cc / 10, op.min_cc % 10, target.label,
                              target.gpu.cc_major, target.gpu.cc_minor));
  }

  const cache::StoreInfo info = store->info();
  Json layers = Json::array({info.path});
  for (const std::string& pack : info.packs) layers.push_back(pack);
  Json answers = Json::array();
  runtime::TodaysPlans plans(target.gpu);
  for (const BucketQuestion& question : questions) {
    answers.push_back(answer_json(*store, op, fixed, question, plans));
  }
  const Json shape = templates::shape_json(op, fixed);
  if (common.form() == OutputForm::json) {
    print_json({{"op", op.name},
                {"version", op.version},
                {"shape", shape},
                {"gpu", target.label},
                {"layers", layers},
                {"buckets", answers}});
    return store.code_of_reading();
  }
  print(fmt::format("{} version {}, shape {}, on {}\n", op.name, op.version, short_json(shape),
                    target.label));
  for (const Json& answer : answers) {
    print("\n");
    print_answer(answer, joined(layers.get<std::vector<std::string>>(), ", then "));
  }
  return store.code_of_reading();
}

}  // namespace

void add_explain(CLI::App& app, Common& common, Chosen& chosen) {
  auto arguments = std::make_shared<ExplainArguments>();
  const ExampleCall call = example_call();
  CLI::App* command = add_command(
      app, common, chosen, "explain", "Say which config a call takes, and why",
      fmt::format("  kiln explain {0} --gpu rtx-3090\n"
                  "  kiln explain {0} --shape '{1}' --sizes '{2}' --gpu a100-sxm4-80gb\n",
                  call.op, call.shape, call.sizes),
      [arguments, &common] { return run_explain(*arguments, common); });
  command->add_option("op", arguments->op, "The op")->required()->type_name("OP");
  command->add_option("--shape", arguments->shape, "Fixed sizes (default: the model's first)")
      ->type_name("JSON");
  command
      ->add_option("--sizes", arguments->sizes, "Dynamic sizes of the call (default: all buckets)")
      ->type_name("JSON");
  command->add_option("--gpu", arguments->gpu, "A GPU by name; needs no device")->type_name("SLUG");
  command->add_option("--device", arguments->device, "A device here (default: cuda:0)")
      ->type_name("ID");
}

}  // namespace kiln::cli
