// Stores that go from one place to another: export, import, merge and diff, and what of it serves.
#include <regex>

#include "cache/transfer.h"
#include "tests/tools/cli.h"

namespace kiln::cli {
namespace {

// A seed whose images begin as cubins do, so that they may come from elsewhere.
Seed elf_seed(const std::string& gpu_slug) {
  Seed seed = make_seed(gpu_slug);
  for (jit::Binary& binary : seed.result.binaries)
    binary.image.insert(0,
                        "\x7f"
                        "ELF");
  return seed;
}

class TransferCommand : public CliTest {
 protected:
  std::string other() const { return path("other.db"); }
  Result run_at(const std::string& db, std::vector<std::string> words) {
    words.insert(words.end(), {"--db", db});
    return run(words);
  }
  static std::string digest(const Result& result) {
    std::smatch match;
    EXPECT_TRUE(std::regex_search(result.err, match, std::regex("digest ([0-9a-f]{32})")))
        << result;
    return match[1];
  }
  static std::unique_ptr<cache::Store> reader(const std::string& db) {
    return cache::Store::open(
        {.path = db, .pack = ":", .mode = cache::StoreOptions::Mode::read_only});
  }
  // The other store, its decision `later` seconds newer, for another config when asked.
  void store_other(const Seed& seed, int64_t later, bool other_config) {
    Seed changed = seed;
    cache::Decision& decision = changed.result.decision;
    decision.decided_at += later;
    if (other_config) {
      decision.config = changed.result.plans[1].config;
      decision.plan = changed.result.plans[1].id;
      changed.result.rejections.clear();
    }
    store_seed(other(), changed);
  }
};

TEST_F(TransferCommand, C119dRowsOfAnotherFileAreTaken) {
  const Seed seed = elf_seed("rtx-3090");
  store_seed(db(), seed);
  const Result exported = run({"export", "--binaries", "--out", path("all.json")});
  ASSERT_EQ(exported.code, 0) << exported;
  EXPECT_EQ(exported.out, "");
  const Result imported = run_at(other(), {"import", path("all.json")});
  ASSERT_EQ(imported.code, 0) << imported;
  EXPECT_TRUE(contains(imported.err, "merged: 1 taken, 0 kept, 0 dropped, 0 refused.")) << imported;
  EXPECT_TRUE(contains(imported.err,
                       "2 verifications are not taken over, and 2 kernels run "
                       "nowhere before they are proven"))
      << imported;
  EXPECT_TRUE(contains(imported.out, "TAKEN")) << imported;
  EXPECT_FALSE(reader(other())->has_binary(seed.result.binaries[0].key));
  EXPECT_EQ(run_at(other(), {"export", "--decisions"}).out, run({"export", "--decisions"}).out);
  const Json row = run_at(other(), {"ls", "--json"}).json()[0];
  EXPECT_EQ(row["verified"], Json());
  EXPECT_EQ(row["time_ns"], 2000);

  const Result trusted = run_at(other(), {"import", path("all.json"), "--trust"});
  ASSERT_EQ(trusted.code, 0) << trusted;
  EXPECT_TRUE(contains(trusted.err, "merged: 0 taken, 1 kept, 0 dropped, 0 refused.")) << trusted;
  EXPECT_TRUE(reader(other())->has_binary(seed.result.binaries[0].key));
  EXPECT_EQ(run_at(other(), {"ls", "--json"}).json()[0]["verified"], "device");
  EXPECT_EQ(run_at(other(), {"export", "--binaries"}).out, run({"export", "--binaries"}).out);
  EXPECT_TRUE(reader(other())->check().empty());
}

TEST_F(TransferCommand, C38C102StoresThatDecideTheSameHaveOneDigest) {
  const Seed seed = make_seed("rtx-3090");
  store_seed(db(), seed);
  store_other(seed, 500, false);
  const Result one = run({"export", "--decisions"});
  const Result two = run_at(other(), {"export", "--decisions"});
  EXPECT_EQ(one.out, two.out);
  EXPECT_EQ(digest(one), digest(two));
  EXPECT_EQ(digest(one), digest(run({"export"})));
  EXPECT_NE(run({"export"}).out, run_at(other(), {"export"}).out);
  EXPECT_EQ(one.json()["decisions"].size(), 1u);
  EXPECT_FALSE(one.json().contains("evidence"));
}

TEST_F(TransferCommand, ExportTakesOnlyWhatIsAskedForAndNeverReplacesAFile) {
  store_seed(db(), make_seed("rtx-3090"));
  store_seed(db(), make_seed("a100-sxm4-80gb"));
  EXPECT_EQ(run({"export"}).json()["decisions"].size(), 2u);
  const Json one = run({"export", "--gpu", "rtx-3090"}).json();
  EXPECT_EQ(one["decisions"].size(), 1u);
  EXPECT_EQ(one["plans"].size(), 2u);
  for (const Json& plan : one["plans"]) EXPECT_EQ(plan["arch"], "sm_86");
  const Result nothing = run({"export", "--gpu", "a40"});
  EXPECT_EQ(nothing.code, code(ExitCode::failed)) << nothing;
  EXPECT_TRUE(contains(nothing.err, "nothing matches in")) << nothing;
  write_file("mine.txt", "mine");
  for (const char* option : {"--out", "--as-pack"}) {
    const Result result = run({"export", option, path("mine.txt")});
    EXPECT_NE(result.code, 0) << result;
    EXPECT_TRUE(contains(result.err, "exists")) << result;
  }
  EXPECT_EQ(read_file(path("mine.txt")), "mine");
  EXPECT_EQ(run({"export", "--out", path("no/such/folder.json")}).code, code(ExitCode::failed));
}

TEST_F(TransferCommand, ExportAsPackServesUnderAnotherStore) {
  const Seed seed = make_seed("rtx-3090");
  store_seed(db(), seed);
  const Result made = run({"export", "--as-pack", path("a.pack")});
  ASSERT_EQ(made.code, 0) << made;
  EXPECT_EQ(run_at(other(), {"ls", "--json", "--pack", path("a.pack")}).json().size(), 1u);
  EXPECT_EQ(run({"export", "--as-pack", path("b.pack"), "--decisions"}).code,
            code(ExitCode::usage));
}

TEST_F(TransferCommand, TextThatIsNoExportIsNamedWithTheField) {
  write_file("notes.json", R"({"format": "kiln-export", "format_version": 1, "decisions": 3,
                               "plans": [], "binaries": []})");
  const Result result = run({"import", path("notes.json")});
  EXPECT_EQ(result.code, code(ExitCode::failed)) << result;
  EXPECT_TRUE(contains(result.err, "is no Kiln export: decisions: an array was expected, it is 3."))
      << result;
  for (const char* text : {"", "my notes", "[]", "{\"a\": 1}"}) {
    write_file("notes.json", text);
    EXPECT_NE(run({"import", path("notes.json")}).code, 0) << text;
  }
  EXPECT_EQ(run({"import", path("absent.json")}).code, code(ExitCode::usage));
  EXPECT_EQ(run({"import"}).code, code(ExitCode::usage));
}

TEST_F(TransferCommand, WhatMeansNothingHereIsRefusedAndTheRestTaken) {
  const Seed seed = make_seed("rtx-3090");
  store_seed(db(), seed);
  Json text = run({"export"}).json();
  Json good = text["decisions"][0];
  const auto add = [&](const char* key, const Json& value) {
    Json bad = good;
    bad[key] = value;
    text["decisions"].push_back(bad);
  };
  add("op", "no_such_op");
  add("op_version", 99);
  add("shape", Json::object({{"no_such_size", 1}}));
  add("bucket", Json::object({{"num_tokens", 3}}));
  add("gpu_class", Json::object({{"cc", 86}}));
  Json illegal = good;
  illegal["kind"] = "predicted";
  illegal["config"] = Json::object({{"no_such_axis", 1}});
  text["decisions"].push_back(illegal);
  Json plan = text["plans"][0];
  plan["arch"] = "sm_99";
  text["plans"].push_back(plan);
  write_file("mixed.json", text.dump());
  const Result result = run_at(other(), {"import", path("mixed.json"), "--json"});
  EXPECT_EQ(result.code, 0) << result;
  EXPECT_TRUE(contains(result.err, "merged: 1 taken, 0 kept, 0 dropped, 7 refused.")) << result;
  for (const char* why : {"no_such_op", "version 99", "no_such_size", "has no bucket",
                          "GPU class is none", "no_such_axis", "its id is"}) {
    EXPECT_TRUE(contains(result.out, why)) << why << result;
  }
  EXPECT_EQ(run_at(other(), {"ls", "--json"}).json().size(), 1u);

  text["decisions"].erase(0);
  text["plans"] = Json::array();
  text["evidence"] = {{"reasons", Json::array()},
                      {"verifications", Json::array()},
                      {"timings", Json::array()},
                      {"rejections", Json::array()}};
  text["binaries"] = Json::array();
  write_file("mixed.json", text.dump());
  const Result none = run_at(path("third.db"), {"import", path("mixed.json")});
  EXPECT_EQ(none.code, code(ExitCode::failed)) << none;
  EXPECT_TRUE(contains(none.err, "nothing could be taken over.")) << none;
}

TEST_F(TransferCommand, C85AsMakesBorrowedRows) {
  store_seed(db(), make_seed("a100-sxm4-80gb"));
  ASSERT_EQ(run({"export", "--out", path("a.json")}).code, 0);
  const Result result = run_at(other(), {"import", path("a.json"), "--as", "a100-sxm4-40gb"});
  ASSERT_EQ(result.code, 0) << result;
  const Json rows = run_at(other(), {"ls", "--json"}).json();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["kind"], "borrowed");
  EXPECT_EQ(rows[0]["gpu"], "a100-sxm4-40gb");
  EXPECT_EQ(rows[0]["time_ns"], Json());
  EXPECT_TRUE(contains(result.out, "borrowed")) << result;
  const Json text = run_at(other(), {"export"}).json();
  EXPECT_TRUE(contains(text["evidence"]["reasons"][0]["reason"],
                       "borrowed from a100-sxm4-80gb: measured, 50 % faster"))
      << text;

  const Result far = run_at(other(), {"import", path("a.json"), "--as", "rtx-3090"});
  EXPECT_EQ(far.code, code(ExitCode::usage)) << far;
  EXPECT_TRUE(contains(far.err, "of the same compute capability only")) << far;
}

TEST_F(TransferCommand, C52MergeKeepsTheNewerAndPrintsWhatWasDropped) {
  const Seed seed = elf_seed("rtx-3090");
  store_seed(db(), seed);
  store_other(seed, 500, true);
  const Result rehearsed = run({"merge", other(), "--dry-run"});
  EXPECT_EQ(rehearsed.code, 0) << rehearsed;
  EXPECT_TRUE(contains(rehearsed.err, "would be merged: 1 taken")) << rehearsed;
  EXPECT_EQ(run({"diff", other()}).code, code(ExitCode::different));

  const Result merged = run({"merge", other(), "--json"});
  ASSERT_EQ(merged.code, 0) << merged;
  const Json row = merged.json()[0];
  EXPECT_EQ(row["outcome"], "taken");
  EXPECT_EQ(row["kind"], "measured");
  EXPECT_TRUE(contains(row["reason"],
                       "newer: 2023-11-14 22:21:40 against 2023-11-14 22:13:20; "
                       "replaces " +
                           seed.result.decision.config))
      << row;
  EXPECT_EQ(run({"diff", other()}).code, 0);

  // The other way round it is the same store, and nothing is taken twice.
  store_seed(path("third.db"), seed);
  const Result back = run({"merge", path("third.db")});
  EXPECT_EQ(back.code, 0) << back;
  EXPECT_TRUE(contains(back.out, "DROPPED")) << back;
  EXPECT_TRUE(contains(back.out, "older: 2023-11-14 22:13:20 against")) << back;
  EXPECT_TRUE(contains(back.err, "merged: 0 taken, 0 kept, 1 dropped, 0 refused.")) << back;
  EXPECT_EQ(run({"diff", other()}).code, 0);
}

TEST_F(TransferCommand, MergeRefusesWhatIsNoStore) {
  store_seed(db(), make_seed("rtx-3090"));
  write_file("notes.db", "my notes\n");
  const Result notes = run({"merge", path("notes.db")});
  EXPECT_EQ(notes.code, code(ExitCode::store)) << notes;
  EXPECT_TRUE(contains(notes.err, "not an SQLite file")) << notes;
  const Result absent = run({"merge", path("absent.db")});
  EXPECT_EQ(absent.code, code(ExitCode::usage)) << absent;
  EXPECT_FALSE(std::filesystem::exists(path("absent.db")));
  std::string damaged = read_file(db());
  for (size_t at = damaged.size() / 2; at < damaged.size(); ++at) damaged[at] = '\xa5';
  write_file("damaged.db", damaged);
  const Result broken = run_at(other(), {"merge", path("damaged.db")});
  EXPECT_EQ(broken.code, code(ExitCode::store)) << broken;
  EXPECT_FALSE(std::filesystem::exists(other()));
}

TEST_F(TransferCommand, DiffOfStoresAndTexts) {
  const Seed seed = make_seed("rtx-3090");
  store_seed(db(), seed);
  ASSERT_EQ(run({"export", "--out", path("before.json")}).code, 0);
  const Result same = run({"diff", path("before.json")});
  EXPECT_EQ(same.code, 0) << same;
  EXPECT_EQ(same.out, "");
  EXPECT_TRUE(contains(same.err, "decide the same: 1 decisions.")) << same;
  store_other(seed, 0, true);
  const Result differ = run({"diff", path("before.json"), other(), "--json"});
  EXPECT_EQ(differ.code, code(ExitCode::different)) << differ;
  ASSERT_EQ(differ.json().size(), 1u);
  const Json row = differ.json()[0];
  EXPECT_EQ(row["difference"], "other config");
  EXPECT_NE(row["a"]["config"], row["b"]["config"]);
  EXPECT_EQ(row["a"]["time_ns"], 2000);
  store_seed(db(), make_seed("a40"));
  const Result more = run({"diff", path("before.json")});
  EXPECT_EQ(more.code, code(ExitCode::different)) << more;
  EXPECT_TRUE(contains(more.out, "only in B")) << more;
  EXPECT_EQ(run({"diff", path("absent.json")}).code, code(ExitCode::usage));
}

}  // namespace
}  // namespace kiln::cli
