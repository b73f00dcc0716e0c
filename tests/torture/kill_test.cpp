// kill -9 at any point of tune, prepare, import and gc: at the nth call that writes or makes a
// file, and after a random time. What a reader has seen as committed stays, the store is sound, the
// same command then runs to its end, and a call computes what it should.
//   KILN_TEST_FULL=1   300 kills instead of 40
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>
#include <thread>

#include "cache/transfer.h"
#include "tests/cache/fixture.h"
#include "tests/tools/cli.h"
#include "tests/torture/torture_testing.h"

namespace kiln::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

bool is_full() { return std::getenv("KILN_TEST_FULL") != nullptr; }

constexpr const char* kSimulated = "sim:rtx-3090";

// What is known of a store's contents, one line a record; of the images only that they are there.
using Ledger = std::set<std::string>;
enum class Of { records, records_and_images };

Ledger ledger_of(cache::Store& store, Of what) {
  const Json text =
      Json::parse(cache::to_json(cache::contents_of(store, {}), cache::ExportParts::all));
  Ledger ledger;
  const auto note = [&](const std::string& name, const Json& rows) {
    for (const Json& row : rows) ledger.insert(name + " " + row.dump());
  };
  for (const char* name : {"decisions", "plans", "binaries"}) note(name, text[name]);
  for (const auto& [name, rows] : text["evidence"].items()) note(name, rows);
  if (what == Of::records) return ledger;
  for (const cache::BinaryRow& row : store.list_binaries()) ledger.insert("image " + row.key.hex());
  return ledger;
}

struct Verb {
  std::vector<std::string> arguments;
  std::string report;  // who says this on stderr has kept all of it
  Of keeps = Of::records_and_images;
  int kills = 0;       // of a quick run
  int full_kills = 0;  // of a full one
};

class KillTest : public TortureTest {
 protected:
  // Lets the verb run whole on the store that `make_ground` makes, then kills it in each round.
  void kill_at_random(const Verb& verb, const std::function<void()>& make_ground,
                      const std::function<void()>& expect_done) {
    make_ground();
    environment["KILN_DISK_ROOT"] = path("");
    environment["KILN_DISK"] = "";
    environment["KILN_DISK_COUNT"] = path("calls");
    const auto start_time = Clock::now();
    const Result whole = run(verb.arguments);
    const auto whole_time = std::chrono::duration_cast<microseconds>(Clock::now() - start_time);
    environment.erase("KILN_DISK_COUNT");
    ASSERT_EQ(whole.code, 0) << whole;
    expect_done();
    const int64_t calls = calls_of_run();
    ASSERT_GT(calls, 5);

    const int kills = is_full() ? verb.full_kills : verb.kills;
    int killed_by_call = 0;
    int killed_by_time = 0;
    int ended_before = 0;
    int half_done = 0;
    int reported = 0;
    // A run that has ended before its time comes is lived through, but counts for nothing.
    for (int round = 0; killed_by_call + killed_by_time < kills; ++round) {
      ASSERT_LT(round, 4 * kills);
      std::mt19937 random(static_cast<unsigned>(round) * 7919 + 5);
      const bool by_call = round % 2 == 0;
      const int64_t call = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(calls));
      const microseconds delay(random() % static_cast<uint64_t>(whole_time.count() + 1));
      SCOPED_TRACE(by_call ? "killed at call " + std::to_string(call)
                           : "killed after " + std::to_string(delay.count()) + " us");
      clear();
      make_ground();
      Ledger before = look(verb.keeps);
      environment["KILN_DISK"] = by_call ? "kill:" + std::to_string(call) : "";
      const pid_t pid = start(verb.arguments);
      if (!by_call) {
        std::this_thread::sleep_for(delay);
        if (round % 4 == 1) before.merge(look(verb.keeps));  // what a reader sees, it relies on
        kill(pid, SIGKILL);
      }
      const Result killed = finish(pid);
      environment["KILN_DISK"] = "";
      const bool is_killed = killed.signal == SIGKILL;
      (is_killed ? by_call ? killed_by_call : killed_by_time : ended_before) += 1;
      if (!is_killed) {
        EXPECT_EQ(killed.code, 0) << killed;
      }

      if (is_killed && !verb.report.empty() && contains(killed.err, verb.report)) {
        ++reported;
        expect_done();
      }
      const Ledger after = sound_ledger(verb.keeps);
      expect_kept(before, after, "after the kill");
      half_done += is_killed && after.size() > before.size() ? 1 : 0;
      const pid_t next = start(verb.arguments);
      EXPECT_TRUE(ends_within(next, std::chrono::seconds(60))) << "the next run hangs";
      kill(next, SIGKILL);  // a zombie by now, unless it hangs
      const Result ended = finish(next);
      EXPECT_EQ(ended.code, 0) << ended << "\nbefore that:\n" << killed;
      expect_done();
      expect_kept(after, sound_ledger(verb.keeps), "after the next run");
      expect_served();
      if (HasFailure()) break;  // one round tells enough
    }
    EXPECT_GT(killed_by_call, 0);
    RecordProperty("killed_by_call", killed_by_call);
    RecordProperty("killed_by_time", killed_by_time);
    std::printf(
        "%d kills of `kiln %s` (%lld disk calls): %d killed at a call, %d at a time, %d had "
        "ended; %d left a part of the work, %d had reported all of it\n",
        kills, verb.arguments[0].c_str(), static_cast<long long>(calls), killed_by_call,
        killed_by_time, ended_before, half_done, reported);
  }

  // As another process that only reads.
  Ledger look(Of what) {
    const auto store =
        cache::Store::open({.path = db(), .mode = cache::StoreOptions::Mode::read_only});
    return ledger_of(*store, what);
  }

  Ledger sound_ledger(Of what) {
    const auto store = cache::Store::open({.path = db()});
    EXPECT_EQ(store->warnings(), std::vector<std::string>{});
    EXPECT_EQ(store->check(), std::vector<std::string>{});
    return ledger_of(*store, what);
  }

  static void expect_kept(const Ledger& before, const Ledger& after, const char* when) {
    for (const std::string& record : before) {
      EXPECT_TRUE(after.contains(record)) << "lost " << when << ": " << record;
    }
  }

  void expect_served() {
    const Result served = run({"serve", kSimulated, "3"});
    EXPECT_EQ(served.code, 0) << served;
    EXPECT_FALSE(contains(served.err, "warning")) << served;
  }

  size_t decisions() {
    return cache::Store::open({.path = db(), .mode = cache::StoreOptions::Mode::read_only})
        ->list_decisions()
        .size();
  }
};

TEST_F(KillTest, C34TuneGoesOn) {
  write_file("workload.json", toy_workload({3, 5}));
  const Verb tune{
      .arguments = {"tune", "--device", kSimulated, "--workload", path("workload.json")},
      .report = "2 decided now",
      .kills = 4,
      .full_kills = 40};
  kill_at_random(
      tune, [] {}, [&] { EXPECT_EQ(decisions(), 2u); });
}

TEST_F(KillTest, C34PrepareGoesOn) {
  use_fake_driver();
  const Verb prepare{.arguments = {"serve", "cuda:0", "3", "5", "7"},
                     .report = "prepared 3 kernels",
                     .kills = 8,
                     .full_kills = 60};
  kill_at_random(
      prepare, [] {},
      [&] {
        const Result warm = run(prepare.arguments);
        EXPECT_TRUE(contains(warm.out, "served, 0 compiled, 3 found")) << warm;
      });
}

TEST_F(KillTest, C34ImportGoesOn) {
  write_file("workload.json", toy_workload({3, 5}));
  ASSERT_EQ(run({"build", "--gpu", "rtx-3090", "--workload", path("workload.json")}).code, 0);
  ASSERT_EQ(run({"export", "--binaries", "--out", path("all.json")}).code, 0);
  clear();
  expect_served();
  add_samples(5);
  keep_as("ground");
  const Verb import{.arguments = {"import", path("all.json")},
                    .report = "merged: 2 taken",
                    .kills = 14,
                    .full_kills = 100};
  kill_at_random(
      import, [&] { take_back("ground"); }, [&] { EXPECT_EQ(decisions(), 7u); });
}

TEST_F(KillTest, C34GcGoesOn) {
  expect_served();
  add_samples(100);
  keep_as("ground");
  const int64_t whole_bytes = static_cast<int64_t>(std::filesystem::file_size(db()));
  const Verb gc{.arguments = {"gc", "--budget", std::to_string(whole_bytes / 2) + "B"},
                .keeps = Of::records,
                .kills = 14,
                .full_kills = 100};
  kill_at_random(
      gc, [&] { take_back("ground"); },
      [&] {
        EXPECT_EQ(decisions(), 100u);
        EXPECT_LT(cache::Store::open({.path = db()})->list_binaries().size(), 150u);
      });
}

}  // namespace
}  // namespace kiln::cli
