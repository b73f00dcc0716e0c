// What leaves a store and what comes into one: the same bytes from stores that decide the same, the
// rules of a merge, and the checks of a text that comes from elsewhere.
#include "cache/transfer.h"

#include <cmath>
#include <random>
#include <set>

#include "cache/merge_rules.h"
#include "jit/base/error.h"
#include "tests/cache/fixture.h"

namespace kiln::cache {
namespace {

constexpr int64_t kNow = 1'800'000'000;

// Dated, so that nothing of it says when the test ran.
TuningResult dated_result(const std::string& name, int rows = 16, int64_t date = 1'700'000'000) {
  TuningResult result = sample_result(name, rows);
  result.decision.decided_at = date;
  for (Verification& one : result.verifications) one.verified_at = date;
  for (Timing& one : result.timings) one.timed_at = date;
  for (Rejection& one : result.rejections) one.rejected_at = date;
  return result;
}

class TransferTest : public StoreTest {
 protected:
  static constexpr MergeOptions kTrusting = {.trust = Trust::any};

  std::unique_ptr<Store> open_at(const std::string& name) {
    return Store::open({.path = folder_ + "/" + name, .pack = ":"});
  }
  static std::string text_of(Store& store, ExportParts parts = ExportParts::all) {
    return to_json(contents_of(store, {.images = Images::with}), parts);
  }
  static std::string decisions_of(Store& store) {
    return decisions_digest(contents_of(store, {})).hex();
  }
  // The sentence that a text is refused with, "" when it is taken.
  static std::string why_no_export(const std::string& text, const ImportLimits& limits = {}) {
    try {
      from_json(text, limits);
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::invalid_argument);
      return error.what();
    }
    return "";
  }
};

TEST_F(TransferTest, ExportOfAnImportIsTheSameBytes) {
  auto from = open();
  ASSERT_TRUE(from->put(dated_result("a")));
  TuningResult odd = dated_result("b", 64);
  odd.verifications[0].worst_error = std::nan("");
  odd.timings[0].time_ns = 0.001;
  odd.decision.reason = "\"quoted\", \xc3\xa4\xe2\x82\xac";
  ASSERT_TRUE(from->put(odd));
  const std::string text = text_of(*from);

  auto to = open_at("other.db");
  const MergeReport report = to->absorb(from_json(text), kTrusting);
  EXPECT_TRUE(report.written);
  EXPECT_EQ(report.decisions(MergeOutcome::taken), 2);
  EXPECT_EQ(report.refused(), 0);
  EXPECT_EQ(text_of(*to), text);
  EXPECT_EQ(to->check(), std::vector<std::string>{});
  expect_equal(*to->find_binary(odd.binaries[0].key), odd.binaries[0]);
  expect_equal(to->find_decision(odd.decision.problem, kA100)->decision, odd.decision);
  expect_equal(*to->find_plan(odd.plans[0].id), odd.plans[0]);
}

TEST_F(TransferTest, C102DecisionBytesAreStableAndTimesApart) {
  auto one = open();
  ASSERT_TRUE(one->put(dated_result("a")));
  ASSERT_TRUE(one->put(dated_result("b", 64)));
  auto other = open_at("other.db");
  TuningResult later = dated_result("b", 64, 1'700'000'500);
  later.decision.time_ns = 1;
  later.decision.reason = "another reason";
  later.timings.clear();
  ASSERT_TRUE(other->put(later));
  ASSERT_TRUE(other->put(dated_result("a")));
  EXPECT_EQ(decisions_of(*one), decisions_of(*other));
  EXPECT_EQ(text_of(*one, ExportParts::decisions), text_of(*other, ExportParts::decisions));
  EXPECT_NE(text_of(*one), text_of(*other));
  ASSERT_TRUE(other->put(dated_result("c", 128)));
  EXPECT_NE(decisions_of(*one), decisions_of(*other));
}

TEST_F(TransferTest, TextWithoutEvidenceMakesDecisionsOfToday) {
  auto from = open();
  ASSERT_TRUE(from->put(dated_result("a")));
  const StoreContents contents = from_json(text_of(*from, ExportParts::decisions));
  auto to = open_at("other.db");
  EXPECT_EQ(to->absorb(contents, {}).decisions(MergeOutcome::taken), 1);
  EXPECT_GT(to->find_decision(sample_problem(), kA100)->decision.decided_at, 1'700'000'000);
  EXPECT_TRUE(to->timings(sample_problem(), kA100).empty());
  EXPECT_EQ(to->check(), std::vector<std::string>{});
  EXPECT_EQ(to->absorb(contents, {}).decisions(MergeOutcome::kept), 1);
}

TEST_F(TransferTest, ImagesFromElsewhereWaitForAProofAndVerificationsStayOut) {
  auto from = open();
  const TuningResult result = dated_result("a");
  ASSERT_TRUE(from->put(result));
  auto to = open_at("other.db");
  const MergeReport report = to->absorb(from_json(text_of(*from)), {});
  EXPECT_EQ(report.images_untrusted, 2);
  EXPECT_EQ(report.verifications_left_out, 1);
  EXPECT_EQ(report.verifications.taken, 0);
  EXPECT_EQ(report.timings.taken, 1);
  EXPECT_EQ(report.rejections.taken, 1);
  const Hash128 key = result.binaries[0].key;
  EXPECT_FALSE(to->has_binary(key));
  EXPECT_FALSE(to->find_binary(key));
  ASSERT_TRUE(to->find_binary(key, Trust::any));
  expect_equal(*to->find_binary(key, Trust::any), result.binaries[0]);
  EXPECT_TRUE(to->verifications(sample_problem()).empty());
  EXPECT_EQ(to->check(), std::vector<std::string>{});
  // A proof writes it as one of this store.
  ASSERT_TRUE(to->put_binary(*to->find_binary(key, Trust::any)));
  EXPECT_TRUE(to->has_binary(key));
}

TEST_F(TransferTest, UntrustedImageNeverTakesThePlaceOfATrustedOne) {
  auto from = open();
  TuningResult result = dated_result("a");
  ASSERT_TRUE(from->put(result));
  auto to = open_at("other.db");
  TuningResult ours = result;
  for (jit::Binary& binary : ours.binaries) binary.image += "compiled here";
  ASSERT_TRUE(to->put(ours));
  for (const Trust trust : {Trust::needed, Trust::any}) {
    EXPECT_EQ(to->absorb(from_json(text_of(*from)), {.trust = trust}).images.taken, 0);
    EXPECT_EQ(to->find_binary(result.binaries[0].key)->image, ours.binaries[0].image);
  }
}

TEST_F(TransferTest, ImageWithoutADescriptionIsNoDefect) {
  auto from = open();
  const TuningResult result = dated_result("a");
  ASSERT_TRUE(from->put(result));
  StoreContents contents = contents_of(*from, {.images = Images::without});
  ASSERT_EQ(contents.binaries.size(), 2u);
  EXPECT_TRUE(contents.binaries[0].image.empty());
  auto to = open_at("other.db");
  EXPECT_EQ(to->absorb(contents, {}).refused(), 0);
  EXPECT_FALSE(to->find_binary(result.binaries[0].key, Trust::any));
  EXPECT_EQ(to->describe_binary(result.binaries[0].key)->resources.registers, 40);
  EXPECT_EQ(to->check(), std::vector<std::string>{});
}

TEST_F(TransferTest, WhatNamesNothingIsRefusedWithItsReason) {
  auto from = open();
  ASSERT_TRUE(from->put(dated_result("a")));
  StoreContents contents = contents_of(*from, {});
  contents.binaries.clear();
  auto to = open_at("other.db");
  const MergeReport report = to->absorb(contents, kTrusting);
  EXPECT_EQ(report.decisions(MergeOutcome::refused), 1);
  EXPECT_EQ(report.refused(), 4);  // the plan, the verification, the timing, the decision
  EXPECT_NE(report.rows[0].reason.find("it launches binary"), std::string::npos);
  EXPECT_TRUE(to->list_decisions().empty());
}

TEST_F(TransferTest, DecisionWhosePlanIsOfAnotherConfigIsRefused) {
  auto from = open();
  ASSERT_TRUE(from->put(dated_result("a")));
  StoreContents contents = contents_of(*from, {});
  contents.decisions[0].config = R"({"threads":1})";
  const MergeReport report = open_at("other.db")->absorb(contents, {});
  ASSERT_EQ(report.decisions(MergeOutcome::refused), 1);
  EXPECT_NE(report.rows.back().reason.find("is of another config"), std::string::npos);
}

TEST_F(TransferTest, DryRunSaysTheSameAndWritesNothing) {
  auto from = open();
  ASSERT_TRUE(from->put(dated_result("a")));
  const StoreContents contents = contents_of(*from, {});
  open_at("other.db")->put(dated_result("b", 64));
  auto to = Store::open(
      {.path = folder_ + "/other.db", .pack = ":", .mode = StoreOptions::Mode::read_only});
  const MergeReport report = to->absorb(contents, {.mode = MergeOptions::Mode::dry_run});
  EXPECT_EQ(report.decisions(MergeOutcome::taken), 1);
  EXPECT_EQ(to->list_decisions().size(), 1u);
  EXPECT_TRUE(to->warnings().empty());
}

TEST_F(TransferTest, RejectionThatIsNewerThanTheDecisionStays) {
  auto from = open();
  TuningResult result = dated_result("a");
  ASSERT_TRUE(from->put(result));
  auto to = open_at("other.db");
  Rejection rejection = result.rejections[0];
  rejection.config = result.decision.config;
  for (const int64_t later : {-100, 100}) {
    rejection.rejected_at = result.decision.decided_at + later;
    auto store = open_at("store" + std::to_string(later) + ".db");
    ASSERT_TRUE(store->put_rejections({rejection}));
    EXPECT_EQ(store->absorb(contents_of(*from, {}), {}).decisions(MergeOutcome::taken), 1);
    EXPECT_EQ(store->rejections(sample_problem(), kA100).size(), later > 0 ? 2u : 1u);
  }
}

// --- rules

MergeSide side(const std::string& config, int64_t date, int64_t evidence_at = 0) {
  MergeSide side{.decision = dated_result("a").decision, .evidence_at = evidence_at};
  side.decision.config = config;
  side.decision.decided_at = date;
  return side;
}

TEST(MergeRules, NewerWinsThenNewerEvidenceThenSmallerText) {
  const MergeSide a = side("a", 100, 5);
  EXPECT_EQ(judge_merge(nullptr, a, Pins::keep).outcome, MergeOutcome::taken);
  EXPECT_EQ(judge_merge(&a, a, Pins::keep).outcome, MergeOutcome::kept);
  struct Case {
    MergeSide better;
    MergeSide worse;
    const char* why;
  };
  for (const Case& one : {Case{side("b", 101, 0), a, "newer: 1970-01-01 00:01:41 against"},
                          Case{side("b", 100, 6), a, "its evidence is newer"},
                          Case{a, side("b", 100, 5), "the smaller text"}}) {
    const MergeVerdict takes = judge_merge(&one.worse, one.better, Pins::keep);
    EXPECT_EQ(takes.outcome, MergeOutcome::taken);
    EXPECT_NE(takes.reason.find(one.why), std::string::npos) << takes.reason;
    EXPECT_NE(takes.reason.find("replaces " + one.worse.decision.config), std::string::npos);
    EXPECT_EQ(judge_merge(&one.better, one.worse, Pins::keep).outcome, MergeOutcome::dropped);
  }
}

TEST(MergeRules, PinGivesWayOnlyWhenAsked) {
  MergeSide pin = side("mine", 100);
  MergeSide other = side("theirs", 200);
  pin.decision.kind = other.decision.kind = DecisionKind::pinned;
  EXPECT_EQ(judge_merge(&pin, other, Pins::keep).outcome, MergeOutcome::dropped);
  EXPECT_EQ(judge_merge(&pin, other, Pins::replace).outcome, MergeOutcome::taken);
  EXPECT_EQ(judge_merge(&other, pin, Pins::replace).outcome, MergeOutcome::dropped);
}

TEST(MergeRules, OfOneDateAFailureStays) {
  Verification passed = dated_result("a").verifications[0];
  Verification failed = passed;
  failed.passed = false;
  EXPECT_TRUE(supersedes(failed, passed));
  EXPECT_FALSE(supersedes(passed, failed));
  passed.verified_at += 1;
  EXPECT_TRUE(supersedes(passed, failed));
  failed = passed;
  failed.worst_error = std::nan("");
  EXPECT_NE(supersedes(failed, passed), supersedes(passed, failed));
  EXPECT_FALSE(supersedes(failed, failed));
}

// Stores of a few problems whose dates, times and kinds are drawn, so that keys often meet.
class MergeProperties : public TransferTest, public ::testing::WithParamInterface<int> {
 protected:
  void fill(Store& store) {
    for (int i = 0; i < 8; ++i) {
      const auto kind = static_cast<DecisionKind>(2 + draw(3));
      const std::string name(1, static_cast<char>('a' + draw(4)));
      TuningResult result = dated_result(name, 16 << draw(2), 1'700'000'000 + draw(3));
      result.decision.kind = kind;
      result.decision.time_ns = 1000 + draw(3);
      result.timings[0].timed_at += draw(3);
      result.timings[0].time_ns = 1000 + draw(3);
      result.verifications[0].verified_at += draw(3);
      result.verifications[0].passed = draw(2) == 0;
      store.put(result);  // an older decision is refused, which is fine here
    }
  }
  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  std::mt19937 random_{static_cast<unsigned>(GetParam())};
};

TEST_P(MergeProperties, OrderAndRepetitionDoNotMatterAndLossesArePrinted) {
  auto a = open_at("a.db");
  auto b = open_at("b.db");
  fill(*a);
  fill(*b);
  const StoreContents of_a = contents_of(*a, {});
  const StoreContents of_b = contents_of(*b, {});
  const MergeReport into_a = a->absorb(of_b, kTrusting);
  const MergeReport into_b = b->absorb(of_a, kTrusting);
  EXPECT_EQ(into_a.refused() + into_b.refused(), 0);
  const std::string merged = text_of(*a);
  EXPECT_EQ(decisions_of(*a), decisions_of(*b));
  EXPECT_EQ(to_json(contents_of(*b, {}), ExportParts::decisions),
            to_json(contents_of(*a, {}), ExportParts::decisions));
  // What was known before is there, or its loss was printed.
  std::set<std::string> configs_there;
  for (const Decision& one : contents_of(*a, {}).decisions) {
    configs_there.insert(one.problem.bucket + kind_name(one.kind) + one.config);
  }
  for (const StoreContents* before : {&of_a, &of_b}) {
    for (const Decision& one : before->decisions) {
      if (configs_there.contains(one.problem.bucket + kind_name(one.kind) + one.config)) continue;
      const bool is_printed =
          std::any_of(into_a.rows.begin(), into_a.rows.end(), [&](const MergeRow& row) {
            return row.problem == one.problem && row.kind == one.kind &&
                   (row.name == one.config || row.reason.find(one.config) != std::string::npos);
          });
      EXPECT_TRUE(is_printed) << one.config;
    }
  }
  for (const StoreContents* again : {&of_a, &of_b}) {
    const MergeReport report = a->absorb(*again, kTrusting);
    EXPECT_TRUE(report.took_nothing());
    EXPECT_EQ(text_of(*a), merged);
  }
  EXPECT_EQ(a->check(), std::vector<std::string>{});
}

INSTANTIATE_TEST_SUITE_P(Seeds, MergeProperties, ::testing::Range(1, 21));

// --- what comes from elsewhere

class ImportTextTest : public TransferTest {
 protected:
  ImportTextTest() {
    auto store = open_at("source.db");
    EXPECT_TRUE(store->put(dated_result("a")));
    whole_ = Json::parse(text_of(*store));
  }
  // Of the text with one value replaced; "" when it is taken.
  std::string why(const std::string& pointer, const Json& value) const {
    Json changed = whole_;
    changed[Json::json_pointer(pointer)] = value;
    return why_no_export(changed.dump());
  }

  Json whole_;
};

TEST_F(ImportTextTest, EachFieldIsNamedWithWhatWasExpectedAndWhatCame) {
  EXPECT_EQ(why_no_export(whole_.dump()), "");
  EXPECT_EQ(
      why("/decisions/0/kind", 7),
      "decisions[0].kind: one of pinned, measured, borrowed, predicted, default was expected, "
      "it is 7");
  EXPECT_EQ(why("/decisions/0/plan", "../../etc/passwd"),
            "decisions[0].plan: 32 hexadecimal digits was expected, it is \"../../etc/passwd\"");
  EXPECT_EQ(why("/format", "other"), "format: \"kiln-export\" was expected, it is \"other\"");
  EXPECT_EQ(why("/format_version", 2),
            "format_version: an integer from 1 to 1 was expected, it is 2");
  EXPECT_EQ(why_no_export("[]"),
            "the whole text: an object with \"format\": \"kiln-export\" was expected, it is an "
            "array of 0");
}

TEST_F(ImportTextTest, NoFieldTakesAnotherTypeAndNoneMayBeMissing) {
  const std::vector<Json> wrong = {Json(),
                                   Json(-1),
                                   Json(0.5),
                                   Json("\x01 text"),
                                   Json::array(),
                                   Json{{"a", Json::array()}},
                                   Json(std::string(70000, 'x')),
                                   Json(18446744073709551615ULL)};
  int tried = 0;
  const Json flat = whole_.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    // Members of shapes and configs may be of several types.
    if (pointer.find("/shape/") != pointer.npos || pointer.find("/bucket/") != pointer.npos ||
        pointer.find("/gpu_class/") != pointer.npos || pointer.find("/config/") != pointer.npos ||
        pointer.find("/tie_group/") != pointer.npos) {
      continue;
    }
    int refused = 0;
    for (const Json& other : wrong) {
      if (other.type() == value.type()) continue;
      if (value.is_number() && other.is_number()) continue;
      if (other.is_null() && pointer.ends_with("worst_error_millionths")) continue;
      EXPECT_NE(why(pointer, other), "") << pointer << " " << other.dump().substr(0, 80);
      ++refused;
    }
    EXPECT_GT(refused, 3) << pointer;
    Json without = whole_;
    const Json::json_pointer at(pointer);
    if (without[at.parent_pointer()].is_object()) {
      without[at.parent_pointer()].erase(at.back());
      EXPECT_NE(why_no_export(without.dump()), "") << pointer;
      Json more = whole_;
      more[at.parent_pointer()]["unknown_key"] = 1;
      EXPECT_NE(why_no_export(more.dump()).find("unknown_key"), std::string::npos) << pointer;
    }
    ++tried;
  }
  EXPECT_GT(tried, 80);
}

TEST_F(ImportTextTest, DeepNestingNulsAndDuplicateKeysAreRefused) {
  EXPECT_NE(why_no_export(std::string(100'000, '[')), "");
  EXPECT_NE(why_no_export(whole_.dump() + "x"), "");
  EXPECT_NE(why_no_export(""), "");
  EXPECT_NE(why_no_export(R"({"format":"kiln-export","format":"kiln-export"})"), "");
  EXPECT_NE(why("/decisions/0/config", Json{{"a", {{"b", 1}}}}), "");
  EXPECT_NE(why("/decisions/0/config", Json{{"a", 1.5}}), "");
  EXPECT_NE(why("/decisions/0/config", Json{{"a", std::string(5000, 'x')}}), "");
}

TEST_F(ImportTextTest, ImageMayNotUnpackToMoreThanItMay) {
  ImportLimits limits;
  limits.all_images_bytes = 4000;  // two images of 3 KB
  EXPECT_NE(why_no_export(whole_.dump(), limits).find("all images may unpack to 4000 bytes"),
            std::string::npos);
  limits.image_bytes = 1000;
  EXPECT_NE(why_no_export(whole_.dump(), limits).find("an integer from 1 to 1000"),
            std::string::npos);
  // A frame that says another size than the text does, and one that is none.
  EXPECT_NE(why("/binaries/0/image/raw_bytes", 60'000'000).find("a zstd frame of 60000000 bytes"),
            std::string::npos);
  EXPECT_NE(why("/binaries/0/image/zstd", "AAAA").find("a zstd frame"), std::string::npos);
  EXPECT_NE(why("/binaries/0/image/zstd", "AAA").find("base64"), std::string::npos);
  EXPECT_NE(why("/binaries/0/image/checksum", std::string(32, '0')), "");
  EXPECT_NE(why("/binaries/0/image/raw_bytes", -1), "");
}

TEST_F(TransferTest, ImagesOfAStoreMayNotUnpackToMoreThanTheyMay) {
  ASSERT_TRUE(open()->put(dated_result("a")));
  sql("UPDATE images SET raw_bytes = 100000000");
  auto store = open(StoreOptions::Mode::read_only);
  EXPECT_EQ(contents_of(*store, {}).binaries.size(), 2u);
  EXPECT_THROW(contents_of(*store, {.images = Images::with}), Error);
}

TEST_F(ImportTextTest, TextThatIsTooLargeIsRefusedBeforeItIsRead) {
  ImportLimits limits;
  limits.text_bytes = 100;
  EXPECT_NE(why_no_export(whole_.dump(), limits).find("at most 100 bytes were expected"),
            std::string::npos);
  limits = {};
  limits.values = 10;
  EXPECT_NE(why_no_export(whole_.dump(), limits).find("at most 10 values were expected"),
            std::string::npos);
}

TEST_F(ImportTextTest, ChangedTextIsTakenOrRefusedInOneSentence) {
  const std::string sound = whole_.dump();
  std::mt19937 random(5);
  int refused = 0;
  int taken = 0;
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(round);
    std::string text = sound;
    for (unsigned change = 0; change <= random() % 3; ++change) {
      const size_t at = random() % text.size();
      const size_t length = random() % 20;
      switch (random() % 8) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text[at] = "{}[],:\"0919eE-.ntf"[random() % 19];
          break;
        case 2:
          text.erase(at, length);
          break;
        case 3:
          text.insert(at, text.substr(random() % text.size(), length));
          break;
        case 4:
          text.resize(at + 1);
          break;
        default:  // another number or key, which may well be sound
          if (const size_t digit = text.find_first_of("0123456789", at); digit != text.npos) {
            text[digit] = static_cast<char>('0' + random() % 10);
          }
      }
    }
    StoreContents contents;
    try {
      contents = from_json(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::invalid_argument) << error.what();
      ++refused;
      continue;
    }
    ++taken;
    auto store = Store::open({.path = ":memory:", .pack = ":"});
    EXPECT_TRUE(store->absorb(contents, {}).written);
    EXPECT_EQ(store->check(), std::vector<std::string>{});
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(taken, 50);
}

TEST(WhyRefused, ValuesThatNoRecordOfThisStoreHas) {
  const TuningResult sound = dated_result("a");
  EXPECT_EQ(why_refused(sound.decision, kNow), "");
  EXPECT_EQ(why_refused(sound.plans[0]), "");
  EXPECT_EQ(why_refused(sound.binaries[0]), "");
  EXPECT_EQ(why_refused(sound.verifications[0], kNow), "");
  EXPECT_EQ(why_refused(sound.timings[0], kNow), "");
  EXPECT_EQ(why_refused(sound.rejections[0], kNow), "");

  Decision decision = sound.decision;
  decision.decided_at = kNow + 90'000;
  EXPECT_NE(why_refused(decision, kNow).find("its date is 1800090000"), std::string::npos);
  decision = sound.decision;
  decision.reason = "\x1b[2J";
  EXPECT_NE(why_refused(decision, kNow).find("control characters: \"\\u001b[2J\""),
            std::string::npos);
  decision.reason = std::string(70'000, 'x');
  EXPECT_NE(why_refused(decision, kNow).find("70000 bytes, of at most 65536"), std::string::npos);
  decision = sound.decision;
  decision.gpu_label = std::string(65, 'x');
  EXPECT_NE(why_refused(decision, kNow), "");

  PlanRecord plan = sound.plans[0];
  plan.arch = "sm_8x";
  EXPECT_NE(why_refused(plan).find("architecture"), std::string::npos);
  plan = sound.plans[0];
  plan.kernels[0].entry = "a b";
  EXPECT_NE(why_refused(plan).find("the name of a function"), std::string::npos);
  plan = sound.plans[0];
  plan.kernels[1].threads = 2048;
  EXPECT_NE(why_refused(plan).find("2048 threads"), std::string::npos);
  plan.kernels.clear();
  EXPECT_NE(why_refused(plan), "");

  jit::Binary binary = sound.binaries[0];
  binary.image = "MZ";
  EXPECT_NE(why_refused(binary).find("no ELF file"), std::string::npos);
  binary.kind = jit::BinaryKind::ptx;
  EXPECT_NE(why_refused(binary).find(".version"), std::string::npos);
  binary.image = "// by hand\n.version 8.0\n";
  EXPECT_EQ(why_refused(binary), "");

  Timing timing = sound.timings[0];
  timing.time_ns = std::nan("");
  EXPECT_NE(why_refused(timing, kNow), "");
}

}  // namespace
}  // namespace kiln::cache
