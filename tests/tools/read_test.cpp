// The commands that only read: ops, devices, ls, show, explain. None needs a device.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

#include "runtime/plan_record.h"
#include "tests/tools/cli.h"

namespace kiln::cli {
namespace {

std::set<std::string> keys_of(const Json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

class OpsCommand : public CliTest {};

TEST_F(OpsCommand, C02JsonIsTheCoverageOfEveryOp) {
  const Result result = run({"ops", "--json"});
  ASSERT_EQ(result.code, 0) << result;
  const Json list = result.json();
  ASSERT_EQ(list.size(), templates::ops().size());
  for (size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(list[i]["name"], templates::ops()[i]->name);
    EXPECT_EQ(list[i]["version"], templates::ops()[i]->version);
    const auto archs = list[i]["archs"].get<std::set<std::string>>();
    EXPECT_TRUE(archs.contains("sm_80") && archs.contains("sm_86")) << result;
    EXPECT_FALSE(archs.contains("sm_75")) << result;
  }
}

TEST_F(OpsCommand, TableHasARowPerOpAndAColumnPerArchitecture) {
  const Result result = run({"ops"});
  ASSERT_EQ(result.code, 0) << result;
  EXPECT_TRUE(contains(result.out, "sm_80")) << result;
  EXPECT_TRUE(contains(result.out, "sm_86")) << result;
  for (const templates::Op* op : templates::ops()) {
    EXPECT_TRUE(contains(result.out, op->name)) << result;
    EXPECT_TRUE(contains(result.out, op->summary)) << result;
  }
}

TEST_F(OpsCommand, ArchLeavesOneColumn) {
  const Result result = run({"ops", "--arch", "8.6"});
  ASSERT_EQ(result.code, 0) << result;
  EXPECT_TRUE(contains(result.out, "sm_86")) << result;
  EXPECT_FALSE(contains(result.out, "sm_80")) << result;
}

TEST_F(OpsCommand, WorksWithoutNvrtc) {
  environment["KILN_NVRTC"] = path("no-such-libnvrtc.so");
  const Result result = run({"ops", "--json"});
  EXPECT_EQ(result.code, 0) << result;
  EXPECT_EQ(result.json().size(), templates::ops().size());
}

class DevicesCommand : public CliTest {};

TEST_F(DevicesCommand, WithoutADriverItSaysWhyAndListsTheGpuTable) {
  const Result result = run({"devices", "--json"});
  ASSERT_EQ(result.code, 0) << result;
  const Json report = result.json();
  EXPECT_EQ(report["devices"], Json::array());
  EXPECT_TRUE(contains(report["problem"].get<std::string>(), "libcuda")) << result;
  EXPECT_EQ(report["gpus"].size(), gpu_table().size());
  EXPECT_TRUE(contains(run({"devices"}).out, "Devices of this machine: none.")) << result;
}

TEST_F(DevicesCommand, ListsTheDevicesOfTheDriverWithTheirRows) {
  environment["KILN_LIBCUDA"] = KILN_FAKE_LIBCUDA;
  const Result result = run({"devices", "--json"});
  ASSERT_EQ(result.code, 0) << result;
  const Json devices = result.json()["devices"];
  ASSERT_EQ(devices.size(), 2U) << result;
  EXPECT_EQ(devices[0]["id"], "cuda:0");
  EXPECT_EQ(devices[0]["gpu"], "a100-sxm4-80gb");
  EXPECT_EQ(devices[1]["gpu"], "rtx-3090");
  EXPECT_TRUE(result.json()["problem"].is_null());
}

class LsCommand : public CliTest {};

TEST_F(LsCommand, WithoutAStoreItIsEmptyAndSaysHowToMakeOne) {
  const Result result = run({"ls", "--json"});
  EXPECT_EQ(result.code, 0) << result;
  EXPECT_EQ(result.json(), Json::array());
  EXPECT_TRUE(contains(result.err, "kiln tune")) << result;
  EXPECT_FALSE(std::filesystem::exists(db()));
}

TEST_F(LsCommand, JsonHasTheDocumentedFields) {
  const Seed seed = make_seed("rtx-3090");
  store_seed(db(), seed);
  const Result result = run({"ls", "--json"});
  ASSERT_EQ(result.code, 0) << result;
  const Json list = result.json();
  ASSERT_EQ(list.size(), 1U) << result;
  EXPECT_EQ(keys_of(list[0]), (std::set<std::string>{"op", "problem", "gpu", "config", "kind",
                                                     "time_ns", "verified"}));
  EXPECT_EQ(list[0]["op"], seed.op->name);
  EXPECT_EQ(list[0]["gpu"], "rtx-3090");
  EXPECT_EQ(list[0]["kind"], "measured");
  EXPECT_EQ(list[0]["time_ns"], 2000);
  EXPECT_EQ(list[0]["verified"], "device");
  EXPECT_EQ(list[0]["config"], Json::parse(seed.result.decision.config));
  EXPECT_EQ(list[0]["problem"]["shape"], templates::shape_json(*seed.op, seed.fixed));
  EXPECT_EQ(list[0]["problem"]["bucket"], templates::dynamic_json(*seed.op, seed.bucket));
}

TEST_F(LsCommand, WhatIsNotKnownIsNull) {
  Seed seed = make_seed("rtx-3090");
  seed.result.decision.kind = cache::DecisionKind::predicted;
  seed.result.decision.time_ns = 0;
  seed.result.verifications.clear();
  store_seed(db(), seed);
  const Json list = run({"ls", "--json"}).json();
  ASSERT_EQ(list.size(), 1U);
  EXPECT_TRUE(list[0]["verified"].is_null());
  EXPECT_TRUE(list[0]["time_ns"].is_null());
}

TEST_F(LsCommand, FiltersByGpuAndItsAliases) {
  store_seed(db(), make_seed("rtx-3090"));
  store_seed(db(), make_seed("a100-sxm4-80gb"));
  EXPECT_EQ(run({"ls", "--json"}).json().size(), 2U);
  const Json list = run({"ls", "--json", "--gpu", "a800-sxm4-80gb"}).json();
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0]["gpu"], "a100-sxm4-80gb");
}

TEST_F(LsCommand, TableShowsTheGainOverTheDefault) {
  store_seed(db(), make_seed("rtx-3090"));
  const Result result = run({"ls"});
  EXPECT_EQ(result.code, 0) << result;
  EXPECT_TRUE(contains(result.out, "2.00 us")) << result;
  EXPECT_TRUE(contains(result.out, "1.50x")) << result;
}

TEST_F(LsCommand, PackIsReadUnderTheStore) {
  store_seed(path("pack.db"), make_seed("rtx-3090"));
  const Result result = run({"ls", "--json", "--pack", path("pack.db")});
  EXPECT_EQ(result.code, 0) << result;
  EXPECT_EQ(result.json().size(), 1U) << result;
}

TEST_F(LsCommand, DamagedFileIsAWarningAndStdoutStaysJson) {
  write_file("kiln.db", std::string(8192, 'x'));
  const Result result = run({"ls", "--json"});
  EXPECT_EQ(result.code, code(ExitCode::store)) << result;
  EXPECT_EQ(result.json(), Json::array());
  EXPECT_TRUE(contains(result.err, "kiln: warning: ")) << result;
}

class ShowCommand : public CliTest {
 protected:
  const std::string op_ = templates::ops().front()->name;
};

TEST_F(ShowCommand, JsonHoldsTheWholeEvidence) {
  const Seed seed = make_seed("rtx-3090");
  store_seed(db(), seed);
  const Result result = run({"show", op_, "--json"});
  ASSERT_EQ(result.code, 0) << result;
  const Json problems = result.json()["problems"];
  ASSERT_EQ(problems.size(), 1U) << result;
  const Json& problem = problems[0];
  EXPECT_EQ(problem["reason"], "50 % faster than the default");
  EXPECT_EQ(problem["tie_group"].size(), 1U);
  ASSERT_EQ(problem["timings"].size(), 2U);
  EXPECT_EQ(problem["timings"][0]["time_ns"], 2000);
  EXPECT_EQ(problem["timings"][1]["config"], Json::parse(seed.result.plans[1].config));
  EXPECT_EQ(problem["verifications"].size(), 2U);
  ASSERT_EQ(problem["rejections"].size(), 1U);
  EXPECT_EQ(problem["rejections"][0]["reason"], "trap");
  ASSERT_FALSE(problem["binaries"].empty());
  EXPECT_EQ(problem["binaries"][0]["registers"], 37);
  EXPECT_EQ(problem["binaries"][0]["key"], seed.result.binaries[0].key.hex());
}

TEST_F(ShowCommand, TextNamesRegistersSpillsAndRejections) {
  store_seed(db(), make_seed("rtx-3090"));
  const Result result = run({"show", op_});
  EXPECT_EQ(result.code, 0) << result;
  for (const char* part : {"24 B out, 28 B in", "verify: trap", "planted by the test", "7 cases",
                           "measured: 50 % faster than the default", "2023-11-14"}) {
    EXPECT_TRUE(contains(result.out, part)) << part << "\n" << result;
  }
}

TEST_F(ShowCommand, FilterPicksProblems) {
  const Seed seed = make_seed("rtx-3090");
  store_seed(db(), seed);
  const Json bucket = templates::dynamic_json(*seed.op, seed.bucket);
  const std::string field = bucket.begin().key();
  const auto count = [&](const std::string& filter) {
    return run({"show", op_, filter, "--json"}).json()["problems"].size();
  };
  EXPECT_EQ(count(field + "=" + bucket.begin().value().dump()), 1U);
  EXPECT_EQ(count(bucket.dump()), 1U);
  EXPECT_EQ(count(field + "=123456789"), 0U);
  const Result unknown = run({"show", op_, "no_such_field=1"});
  EXPECT_EQ(unknown.code, code(ExitCode::usage)) << unknown;
}

// A run that was stopped, or that found nothing right, leaves evidence and no decision.
TEST_F(ShowCommand, ProblemWithEvidenceAloneIsShown) {
  const Seed seed = make_seed("rtx-3090");
  const cache::Problem& problem = seed.result.decision.problem;
  {
    const auto store = cache::Store::open({.path = db()});
    ASSERT_TRUE(store->put_rejections(seed.result.rejections));
  }
  const Result result = run({"show", op_, "--json"});
  ASSERT_EQ(result.code, 0) << result;
  const Json problems = result.json()["problems"];
  ASSERT_EQ(problems.size(), 1U) << result;
  EXPECT_EQ(problems[0]["gpu"], "rtx-3090");
  EXPECT_EQ(problems[0]["problem"]["shape"], Json::parse(problem.shape));
  EXPECT_TRUE(problems[0]["config"].is_null());
  EXPECT_TRUE(problems[0]["kind"].is_null());
  EXPECT_EQ(problems[0]["rejections"].size(), 1U);
  EXPECT_EQ(run({"show", op_, "--gpu", "rtx-3090", "--json"}).json()["problems"].size(), 1U);
  EXPECT_EQ(run({"show", op_, "--gpu", "a40", "--json"}).json()["problems"].size(), 0U);

  const Result text = run({"show", op_});
  EXPECT_TRUE(contains(text.out, " on rtx-3090\n  decided   no")) << text;
  EXPECT_TRUE(contains(text.out, "planted by the test")) << text;

  // With the decision there is still one row of this problem and class.
  store_seed(db(), seed);
  EXPECT_EQ(run({"show", op_, "--json"}).json()["problems"].size(), 1U);
}

TEST_F(ShowCommand, SourceIsOneFileWithTheEntryAndTheConstants) {
  const templates::Op& op = *templates::ops().front();
  const templates::Sizes fixed = op.model_shapes(2).front();
  const Gpu& gpu = find_gpu("rtx-3090");
  const auto plan = op.plan(fixed, op.default_config(fixed), gpu);
  const Result result = run(
      {"show", op.name, "--source", "--gpu", "rtx-3090", "--kernel", plan.kernels.front().entry});
  ASSERT_EQ(result.code, 0) << result;
  EXPECT_EQ(result.out, jit::dump_source(templates::kernel_source(op, plan.kernels.front())));
  EXPECT_TRUE(contains(result.out, plan.kernels.front().entry)) << result;
}

TEST_F(ShowCommand, SourceFollowsTheConfig) {
  const templates::Op& op = *templates::ops().front();
  const templates::Sizes fixed = op.model_shapes(2).front();
  const Gpu& gpu = find_gpu("rtx-3090");
  const auto configs = templates::enumerate(op, fixed, gpu).configs;
  const auto source = [&](const templates::Config& config) {
    const Json report = run({"show", op.name, "--source", "--json", "--gpu", "rtx-3090", "--config",
                             templates::config_json(config).dump()})
                            .json();
    return report["kernels"];
  };
  EXPECT_EQ(source(configs.front()), source(op.default_config(fixed)));
  EXPECT_NE(source(configs.front()), source(configs.back()));
}

TEST_F(ShowCommand, ValueOutsideTheSpaceIsNamed) {
  const templates::Op& op = *templates::ops().front();
  const auto config = op.default_config(op.model_shapes(2).front());
  const std::string axis = (*config.begin()).first;
  const Result result =
      run({"show", op.name, "--source", "--config", "{\"" + axis + "\": 123457}"});
  EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
  EXPECT_TRUE(contains(result.err, axis)) << result;
}

TEST_F(ShowCommand, ConfigThatARuleForbidsIsAUsageErrorWithTheRule) {
  const templates::Op& op = *templates::ops().front();
  const templates::Sizes fixed = op.model_shapes(2).front();
  const Gpu& gpu = find_gpu("rtx-3090");
  const templates::Space space = op.space(fixed, gpu);
  // The first combination of axis values that a rule drops.
  std::optional<templates::Config> illegal;
  const std::function<void(size_t, templates::Config)> search = [&](size_t axis,
                                                                    templates::Config config) {
    if (illegal) return;
    if (axis == space.axes.size()) {
      for (const templates::Rule& rule : space.rules) {
        if (!rule.keeps(fixed, config, gpu)) illegal = config;
      }
      return;
    }
    for (const int64_t value : space.axes[axis].values) {
      config.set(space.axes[axis].name, value);
      search(axis + 1, config);
    }
  };
  search(0, {});
  if (!illegal) GTEST_SKIP() << op.name << " has no rule that drops anything";
  const Result result = run({"show", op.name, "--source", "--gpu", "rtx-3090", "--config",
                             templates::config_json(*illegal).dump()});
  EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
  EXPECT_TRUE(contains(result.err, "is not legal on rtx-3090: ")) << result;
  EXPECT_EQ(result.out, "") << result;

  const Result unknown = run({"show", op.name, "--source", "--config", R"({"no_such_axis": 1})"});
  EXPECT_EQ(unknown.code, code(ExitCode::usage)) << unknown;
  EXPECT_TRUE(contains(unknown.err, "no config axis \"no_such_axis\"")) << unknown;
}

class ExplainCommand : public CliTest {
 protected:
  const std::string op_ = templates::ops().front()->name;

  static std::string shape(const Seed& seed) {
    return templates::shape_json(*seed.op, seed.fixed).dump();
  }
  static std::string sizes(const Seed& seed, int64_t plus) {
    templates::Sizes dynamic = seed.bucket;
    const std::string symbol = (*seed.bucket.begin()).first;
    dynamic.set(symbol, seed.bucket[symbol] + plus);
    return templates::dynamic_json(*seed.op, dynamic).dump();
  }
};

TEST_F(ExplainCommand, C74HitNamesConfigKindLayerAndKeys) {
  const Seed seed = make_seed("rtx-3090");
  store_seed(db(), seed);
  const Result result = run({"explain", op_, "--shape", shape(seed), "--sizes", sizes(seed, 0),
                             "--gpu", "rtx-3090", "--json"});
  ASSERT_EQ(result.code, 0) << result;
  const Json report = result.json();
  ASSERT_EQ(report["buckets"].size(), 1U) << result;
  const Json& answer = report["buckets"][0];
  EXPECT_EQ(answer["kind"], "measured");
  EXPECT_EQ(answer["config"], Json::parse(seed.result.decision.config));
  EXPECT_EQ(answer["gain_over_default"], 1.5);
  EXPECT_EQ(answer["found_in"], db());
  EXPECT_EQ(answer["problem_key"]["gpu_class"], Json::parse(gpu_class_key(seed.gpu)));
  EXPECT_EQ(answer["binaries"][0]["key"], seed.result.binaries[0].key.hex());
  EXPECT_EQ(answer["binaries"][0]["in_store"], true);
  EXPECT_EQ(answer["nearest"], Json::array());
}

TEST_F(ExplainCommand, StaleMeasurementDoesNotHideACurrentPrediction) {
  Seed seed = make_seed("rtx-3090");
  cache::TuningResult predicted = seed.result;
  predicted.decision.kind = cache::DecisionKind::predicted;
  predicted.decision.reason = "by the model";
  // The measured one was made with kernels that this source does not make.
  cache::PlanRecord& plan = seed.result.plans.front();
  plan.id = hash_text("of another source");
  plan.kernels.front().binary = seed.result.plans.back().kernels.front().binary;
  seed.result.decision.plan = plan.id;
  seed.result.verifications.front().plan = plan.id;
  seed.result.timings.front().plan = plan.id;
  store_seed(db(), seed);
  seed.result = predicted;
  store_seed(db(), seed);
  const Result result = run({"explain", op_, "--shape", shape(seed), "--sizes", sizes(seed, 0),
                             "--gpu", "rtx-3090", "--json"});
  ASSERT_EQ(result.code, 0) << result;
  const Json answer = result.json()["buckets"][0];
  EXPECT_EQ(answer["kind"], "predicted") << result;
  EXPECT_TRUE(contains(answer["reason"].get<std::string>(), "the measured decision")) << result;
  EXPECT_TRUE(contains(answer["reason"].get<std::string>(), "stale")) << result;
}

TEST_F(ExplainCommand, SizeBesideAnEdgeTakesTheNearestBucketAndSaysSo) {
  const Seed seed = make_seed("rtx-3090");
  store_seed(db(), seed);
  const Result result = run({"explain", op_, "--shape", shape(seed), "--sizes", sizes(seed, 1),
                             "--gpu", "rtx-3090", "--json"});
  ASSERT_EQ(result.code, 0) << result;
  const Json answer = result.json()["buckets"][0];
  EXPECT_EQ(answer["bucket"], templates::dynamic_json(*seed.op, seed.bucket));
  EXPECT_TRUE(contains(answer["bucket_from"][0].get<std::string>(), "above the last edge"))
      << result;
}

TEST_F(ExplainCommand, C39C86MissNamesTheDifferingFieldOfTheGpuClass) {
  const Seed seed = make_seed("rtx-3090");
  store_seed(db(), seed);
  const std::vector<std::string> question = {
      "explain", op_, "--shape", shape(seed), "--sizes", sizes(seed, 0), "--gpu", "rtx-3090-ti"};
  std::vector<std::string> json_question = question;
  json_question.push_back("--json");
  const Json answer = run(json_question).json()["buckets"][0];
  EXPECT_EQ(answer["kind"], "default");
  ASSERT_EQ(answer["nearest"].size(), 1U);
  std::set<std::string> fields;
  for (const Json& differs : answer["nearest"][0]["differs"]) fields.insert(differs["field"]);
  EXPECT_EQ(fields, (std::set<std::string>{"GPU class.sm_count", "GPU class.bandwidth_gb_per_s"}));

  const Result text = run(question);
  EXPECT_EQ(text.code, 0) << text;
  EXPECT_TRUE(contains(text.out, "GPU class.sm_count is 84 here, 82 there")) << text;
}

TEST_F(ExplainCommand, OtherOpVersionIsNamed) {
  Seed seed = make_seed("rtx-3090");
  cache::TuningResult& result = seed.result;
  const int other = seed.op->version + 1;
  result.decision.problem.op_version = other;
  result.plans.clear();
  result.binaries.clear();
  result.verifications.clear();
  result.timings.clear();
  result.rejections.clear();
  cache::PlanRecord plan;
  plan.id = hash_text("plan of another version");
  plan.op = seed.op->name;
  plan.op_version = other;
  plan.shape = result.decision.problem.shape;
  plan.config = result.decision.config;
  plan.arch = seed.gpu.arch();
  result.plans.push_back(plan);
  result.decision.plan = plan.id;
  store_seed(db(), seed);
  const Json answer = run({"explain", op_, "--shape", shape(seed), "--sizes", sizes(seed, 0),
                           "--gpu", "rtx-3090", "--json"})
                          .json()["buckets"][0];
  EXPECT_EQ(answer["kind"], "default");
  ASSERT_EQ(answer["nearest"].size(), 1U);
  ASSERT_EQ(answer["nearest"][0]["differs"].size(), 1U);
  EXPECT_EQ(answer["nearest"][0]["differs"][0]["field"], "op version");
}

TEST_F(ExplainCommand, WithoutSizesEveryBucketIsAnswered) {
  const Seed seed = make_seed("rtx-3090");
  store_seed(db(), seed);
  const Json report =
      run({"explain", op_, "--shape", shape(seed), "--gpu", "rtx-3090", "--json"}).json();
  EXPECT_EQ(report["buckets"].size(), templates::all_buckets(*seed.op).size());
}

TEST_F(ExplainCommand, WithoutAGpuTheOneInTheStoreIsTaken) {
  store_seed(db(), make_seed("rtx-3090"));
  EXPECT_EQ(run({"explain", op_, "--json"}).json()["gpu"], "rtx-3090");
  store_seed(db(), make_seed("a100-sxm4-80gb"));
  const Result result = run({"explain", op_});
  EXPECT_EQ(result.code, code(ExitCode::no_device)) << result;
  EXPECT_TRUE(contains(result.err, "GPUs in the store: ")) << result;
}

TEST_F(ExplainCommand, DeviceHereIsTaken) {
  store_seed(db(), make_seed("rtx-3090"));
  environment["KILN_LIBCUDA"] = KILN_FAKE_LIBCUDA;
  EXPECT_EQ(run({"explain", op_, "--json"}).json()["gpu"], "a100-sxm4-80gb");
  EXPECT_EQ(run({"explain", op_, "--json", "--device", "cuda:1"}).json()["gpu"], "rtx-3090");
}

class WorkloadCommand : public CliTest {
 protected:
  // As sessions note it that are closed.
  void use(const std::string& gpu, const std::vector<cache::Problem>& problems) {
    const auto store = cache::Store::open({.path = db(), .pack = ""});
    ASSERT_TRUE(store->put_used_sizes(problems, gpu_class_key(find_gpu(gpu)), gpu));
  }
  static cache::Problem combine(int64_t num_tokens) {
    return {.op = "combine_topk_swa",
            .op_version = templates::require_op("combine_topk_swa").version,
            .shape = R"({"ratio":2,"top_k":512})",
            .bucket = "{\"num_tokens\":" + std::to_string(num_tokens) + "}"};
  }
};

TEST_F(WorkloadCommand, PrintsWhatSessionsCalled) {
  use("rtx-3090", {combine(16), combine(64)});
  use("a40", {combine(4096)});
  const Result all = run({"workload", "--db", db()});
  EXPECT_EQ(all.code, 0) << all;
  ASSERT_EQ(all.json()["ops"].size(), 2u) << all;
  EXPECT_EQ(all.json()["ops"][0],
            parse_json(R"({"op": "combine_topk_swa", "shape": {"ratio": 2, "top_k": 512},
                           "sizes": {"num_tokens": [16, 64]}})",
                       "expected"));
  EXPECT_TRUE(contains(all.err, "1 shapes, called on a40, rtx-3090; last on 2")) << all;

  const Result one = run({"workload", "--gpu", "a40", "--since", "1d", "--db", db()});
  EXPECT_EQ(one.code, 0) << one;
  ASSERT_EQ(one.json()["ops"].size(), 1u) << one;
  EXPECT_EQ(one.json()["ops"][0]["sizes"]["num_tokens"], Json({4096, 4096}));
}

TEST_F(WorkloadCommand, NothingIsAFailureThatSaysWhereUseIsRecorded) {
  const Result none = run({"workload", "--db", db()});
  EXPECT_EQ(none.code, code(ExitCode::failed)) << none;
  EXPECT_EQ(none.out, "");
  EXPECT_TRUE(contains(none.err, "no use is recorded in " + db() + " that matches.")) << none;
  use("rtx-3090", {combine(16)});
  EXPECT_EQ(run({"workload", "--op", "linear_fp8", "--db", db()}).code, code(ExitCode::failed));
  EXPECT_EQ(run({"workload", "--since", "soon", "--db", db()}).code, code(ExitCode::usage));
}

TEST_F(WorkloadCommand, SizesThatThisBuildDoesNotKnowAreLeftOut) {
  cache::Problem older = combine(16);
  older.op_version += 1000;
  cache::Problem other = combine(17);  // no bucket
  use("rtx-3090", {older, other, combine(64)});
  const Result result = run({"workload", "--db", db()});
  EXPECT_EQ(result.code, 0) << result;
  EXPECT_EQ(result.json()["ops"].size(), 1u);
  EXPECT_TRUE(contains(result.err, "2 used sizes are of ops or versions that this build"))
      << result;
}

}  // namespace
}  // namespace kiln::cli
