// `kiln pin` and `kiln forget`: what is decided by hand, and what is decided no more.
#include "tests/tools/cli.h"

namespace kiln::cli {
namespace {

class Deciding : public CliTest {
 protected:
  const Seed seed_ = make_seed("rtx-3090");
  const std::string op_ = seed_.op->name;
  const std::string winner_ = seed_.result.decision.config;
  // The default, which the seed has measured too.
  const std::string other_ = seed_.result.plans.back().config;

  static std::string only(const Json& rows, const char* key) {
    EXPECT_EQ(rows.size(), 1U) << rows;
    return rows.empty() ? "" : rows[0][key].get<std::string>();
  }
  Json ls() { return run({"ls", "--json"}).json(); }
  std::string sizes() const { return templates::dynamic_json(*seed_.op, seed_.bucket).dump(); }
  std::vector<std::string> pin(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"pin", op_, "--gpu", "rtx-3090"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // A pack of the seed, and an empty store over it.
  void move_seed_to_pack() {
    store_seed(path("source.db"), seed_);
    cache::Store::open({.path = path("source.db")})->make_pack(path("base.pack"));
    environment["KILN_PACK"] = path("base.pack");
  }
};

class PinCommand : public Deciding {};
class ForgetCommand : public Deciding {};

TEST_F(PinCommand, GoesBeforeWhatWasMeasuredAndAwayAgain) {
  store_seed(db(), seed_);
  EXPECT_EQ(only(ls(), "kind"), "measured");
  const Result pinned = run(pin({"--config", other_, "--sizes", sizes(), "--json"}));
  EXPECT_EQ(pinned.code, 0) << pinned;
  EXPECT_EQ(pinned.json()[0]["config"], Json::parse(other_)) << pinned;
  EXPECT_EQ(pinned.json()[0]["verified"], "device") << pinned;  // the store knows that plan
  EXPECT_EQ(only(ls(), "kind"), "pinned");
  const Result explained = run({"explain", op_, "--gpu", "rtx-3090", "--sizes", sizes(), "--json"});
  EXPECT_TRUE(contains(explained.out, "pinned by hand")) << explained;
  EXPECT_EQ(run(pin({"--remove"})).code, 0);
  EXPECT_EQ(only(ls(), "kind"), "measured");
  const Result again = run(pin({"--remove"}));
  EXPECT_EQ(again.code, code(ExitCode::failed)) << again;
  EXPECT_TRUE(contains(again.err, "has no pin")) << again;
}

TEST_F(PinCommand, WithoutSizesEveryBucketIsPinnedUnproven) {
  const Result result = run(pin({"--config", winner_, "--reason", "ticket 12", "--json"}));
  EXPECT_EQ(result.code, 0) << result;
  EXPECT_EQ(result.json().size(), templates::all_buckets(*seed_.op).size());
  EXPECT_TRUE(result.json()[0]["verified"].is_null()) << result;
  EXPECT_EQ(result.json()[0]["reason"], "ticket 12") << result;
  EXPECT_TRUE(contains(result.err, "`kiln verify`")) << result;
  EXPECT_TRUE(cache::Store::open({.path = db()})->check().empty());
}

TEST_F(PinCommand, OfAPackCanBeReplacedButNotRemoved) {
  store_seed(path("source.db"), seed_);
  std::vector<std::string> words = pin({"--config", winner_, "--sizes", sizes()});
  words.insert(words.end(), {"--db", path("source.db")});
  ASSERT_EQ(run(words).code, 0);
  cache::Store::open({.path = path("source.db")})->make_pack(path("base.pack"));
  environment["KILN_PACK"] = path("base.pack");
  const Result removed = run(pin({"--remove"}));
  EXPECT_EQ(removed.code, code(ExitCode::failed)) << removed;
  EXPECT_TRUE(contains(removed.err, "is in the pack " + path("base.pack"))) << removed;
  EXPECT_EQ(run(pin({"--config", other_, "--sizes", sizes()})).code, 0);
  EXPECT_EQ(ls()[0]["config"], Json::parse(other_));
}

TEST_F(PinCommand, MistakesAreNamedBeforeAnythingIsWritten) {
  for (const auto& [words, part] :
       {std::pair<std::vector<std::string>, std::string>{pin({}), "--config is missing"},
        {pin({"--config", winner_, "--remove"}), "does not go with --config"},
        {pin({"--config", "{\"no_such\":1}"}), "no_such"},
        {pin({"--config", "[]"}), "--config"},
        {pin({"--config", winner_, "--device", "cuda:0"}), "both name the GPU"},
        {pin({"--config", winner_, "--sizes", "{}"}), "--sizes lacks"}}) {
    const Result result = run(words);
    EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
    EXPECT_TRUE(contains(result.err, part)) << part << "\n" << result;
  }
  EXPECT_TRUE(ls().empty());
}

TEST_F(ForgetCommand, DeletesInTheFile) {
  store_seed(db(), seed_);
  const Result looked = run({"forget", "--op", op_, "--dry-run", "--json"});
  EXPECT_EQ(only(looked.json(), "how"), "deleted") << looked;
  EXPECT_EQ(ls().size(), 1U);
  const Result result = run({"forget", "--op", op_, "--gpu", "rtx-3090"});
  EXPECT_EQ(result.code, 0) << result;
  EXPECT_TRUE(contains(result.err, "1 decisions forgotten")) << result;
  EXPECT_TRUE(ls().empty());
  const Result again = run({"forget", "--op", op_});
  EXPECT_EQ(again.code, code(ExitCode::failed)) << again;
  EXPECT_TRUE(contains(again.err, "no decision matches")) << again;
}

TEST_F(ForgetCommand, HidesInAPackAndLeavesItsBytes) {
  move_seed_to_pack();
  const std::string before = read_file(path("base.pack"));
  const Result result = run({"forget", "--op", op_, "--json"});
  EXPECT_EQ(only(result.json(), "how"), "hidden") << result;
  EXPECT_TRUE(ls().empty());
  EXPECT_EQ(read_file(path("base.pack")), before);
}

TEST_F(ForgetCommand, DecisionOfTheFileOverOneOfAPackTakesBothAway) {
  move_seed_to_pack();
  store_seed(db(), seed_);
  EXPECT_EQ(run({"forget", "--op", op_}).code, 0);
  EXPECT_TRUE(ls().empty());
}

TEST_F(ForgetCommand, OneKindGoesAndTheNextServes) {
  store_seed(db(), seed_);
  ASSERT_EQ(run(pin({"--config", other_, "--sizes", sizes()})).code, 0);
  EXPECT_EQ(run({"forget", "--kind", "pinned"}).code, 0);
  EXPECT_EQ(only(ls(), "kind"), "measured");
  const Result none = run({"forget", "--kind", "predicted"});
  EXPECT_EQ(none.code, code(ExitCode::failed)) << none;
}

TEST_F(ForgetCommand, OneKindOfAPackIsRefused) {
  move_seed_to_pack();
  const Result result = run({"forget", "--kind", "measured"});
  EXPECT_EQ(result.code, code(ExitCode::failed)) << result;
  EXPECT_TRUE(contains(result.err, "is in the pack")) << result;
  EXPECT_EQ(ls().size(), 1U);
}

TEST_F(ForgetCommand, WithoutANameNothingIsForgotten) {
  store_seed(db(), seed_);
  const Result result = run({"forget"});
  EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
  EXPECT_TRUE(contains(run({"forget", "--kind", "pined"}).err, "did you mean \"pinned\"?"));
  EXPECT_EQ(ls().size(), 1U);
}

}  // namespace
}  // namespace kiln::cli
