// Every page of a store's file and of the log that a killed writer left: flipped, zeroed,
// overwritten, cut off there. What a store then answers is what was written, or a miss; it warns at
// most once, and the next writer has a sound store.
#include <signal.h>

#include <random>

#include "cache/transfer.h"
#include "tests/cache/fixture.h"

namespace kiln::cache {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kLogHeaderBytes = 32;
constexpr size_t kFrameBytes = 24 + kPageBytes;

struct Piece {
  size_t offset = 0;
  size_t bytes = 0;
};
using Damage = std::function<void(std::string& file, Piece piece)>;

void flip(std::string& file, Piece piece) {
  for (size_t i = 0; i < piece.bytes; ++i) file[piece.offset + i] ^= '\xff';
}
void zero(std::string& file, Piece piece) {
  file.replace(piece.offset, piece.bytes, std::string(piece.bytes, '\0'));
}
void overwrite(std::string& file, Piece piece) {
  std::mt19937 random(static_cast<unsigned>(piece.offset));
  for (size_t i = 0; i < piece.bytes; ++i) file[piece.offset + i] = static_cast<char>(random());
}
void cut(std::string& file, Piece piece) { file.resize(piece.offset); }

class PageTest : public StoreTest {
 protected:
  static constexpr int kResults = 3;

  // A kernel of many pages goes with the first result.
  static TuningResult result_of(int rows) {
    TuningResult result = sample_result(std::to_string(rows), rows);
    if (rows != 1) return result;
    std::mt19937 random(7);
    for (int i = 0; i < 30'000; ++i)
      result.binaries[0].image.push_back(static_cast<char>(random()));
    return result;
  }

  struct Files {
    std::string store;
    std::string log;  // empty: there is none
  };
  void put_down(const Files& files) {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::filesystem::remove(entry.path());
    }
    write_file(path_, files.store);
    if (!files.log.empty()) write_file(path_ + "-wal", files.log);
  }

  struct Count {
    int rounds = 0;
    int answers = 0;
    int misses = 0;
    int warned = 0;
    int put_aside = 0;
    int found_by_check = 0;
  };

  static void expect_written(Store& store, int rows, Count& count) {
    const TuningResult written = result_of(rows);
    const auto tally = [&](bool answered) { ++(answered ? count.answers : count.misses); };
    const auto row = store.find_decision(sample_problem(rows), kA100);
    tally(row.has_value());
    if (row) {
      Decision expected = written.decision;
      expected.decided_at = row->decision.decided_at;
      expect_equal(row->decision, expected);
    }
    const auto plan = store.find_plan(written.plans[0].id);
    tally(plan.has_value());
    if (plan) expect_equal(*plan, written.plans[0]);
    for (const jit::Binary& binary : written.binaries) {
      const auto found = store.find_binary(binary.key);
      tally(found.has_value());
      if (found) expect_equal(*found, binary);
    }
    for (const Verification& verification : store.verifications(sample_problem(rows))) {
      EXPECT_EQ(verification.plan, written.plans[0].id);
      EXPECT_TRUE(verification.passed);
    }
    for (const Timing& timing : store.timings(sample_problem(rows), kA100)) {
      EXPECT_EQ(timing.time_ns, written.timings[0].time_ns);
    }
    for (const Rejection& rejection : store.rejections(sample_problem(rows), kA100)) {
      EXPECT_EQ(rejection.config, written.rejections[0].config);
    }
  }

  // One damaged store through a reader, a writer and the next writer.
  void live_through(const Files& files, Count& count) {
    put_down(files);
    ++count.rounds;
    {
      auto reader = open(StoreOptions::Mode::read_only);
      for (int rows = 1; rows <= kResults; ++rows) expect_written(*reader, rows, count);
      contents_of(*reader, {.images = Images::with});
      EXPECT_LE(reader->warnings().size(), 1u) << reader->warnings()[1];
    }
    {
      auto store = open();
      for (int rows = 1; rows <= kResults; ++rows) expect_written(*store, rows, count);
      // What is in the file itself does not depend on its log.
      if (!files.log.empty()) {
        EXPECT_TRUE(store->find_decision(sample_problem(1), kA100));
        EXPECT_TRUE(store->find_binary(result_of(1).binaries[0].key));
      }
      store->list_decisions();
      store->list_binaries();
      store->put(sample_result("new", 64));
      EXPECT_LE(store->warnings().size(), 1u) << store->warnings()[0] << "\n"
                                              << store->warnings()[1];
      count.warned += store->warnings().empty() ? 0 : 1;
    }
    {
      auto next = open();  // puts aside what the one before found damaged
      EXPECT_LE(next->warnings().size(), 1u) << next->warnings()[1];
      EXPECT_EQ(next->info().path, path_);
      EXPECT_TRUE(next->put(sample_result("next", 128)));
      EXPECT_TRUE(next->find_decision(sample_problem(128), kA100));
      for (const jit::Binary& binary : result_of(1).binaries) next->put_binary(binary);
    }
    // A page that nobody reads is found damaged by who looks at all of them, and put aside then.
    if (!open()->check().empty()) {
      ++count.found_by_check;
      EXPECT_EQ(open()->warnings().size(), 1u);
      EXPECT_TRUE(open()->put(sample_result("next", 128)));
    }
    auto sound = open();
    EXPECT_EQ(sound->warnings(), std::vector<std::string>{});
    EXPECT_EQ(sound->check(), std::vector<std::string>{});
    EXPECT_TRUE(sound->find_decision(sample_problem(128), kA100));
    count.put_aside += count_files_with(".corrupt") > 0 ? 1 : 0;
  }

  void expect_all_lived_through(const Damage& damage, bool in_log) {
    const Files whole = in_log ? killed_writers_files() : closed_files();
    const std::string& target = in_log ? whole.log : whole.store;
    std::vector<Piece> pieces;
    if (in_log) pieces.push_back({0, kLogHeaderBytes});
    const size_t step = in_log ? kFrameBytes : kPageBytes;
    for (size_t at = in_log ? kLogHeaderBytes : 0; at + step <= target.size(); at += step) {
      pieces.push_back({at, step});
    }
    ASSERT_GT(pieces.size(), 20u);
    Count count;
    for (const Piece& piece : pieces) {
      SCOPED_TRACE("piece at " + std::to_string(piece.offset));
      Files damaged = whole;
      damage(in_log ? damaged.log : damaged.store, piece);
      live_through(damaged, count);
      if (HasFailure()) break;
    }
    EXPECT_GT(count.misses, 0);
    std::printf(
        "%d pieces, one after the other: %d answers as written, %d misses; %d writers warned, %d "
        "stores were put aside, %d of them after a check\n",
        count.rounds, count.answers, count.misses, count.warned, count.put_aside,
        count.found_by_check);
  }

 private:
  Files closed_files() {
    {
      auto store = open();
      for (int rows = 1; rows <= kResults; ++rows) EXPECT_TRUE(store->put(result_of(rows)));
    }
    EXPECT_EQ(count_files_with("-wal"), 0u);
    return {.store = read_file(path_), .log = ""};
  }

  // The first result is in the file, the others in the log alone.
  Files killed_writers_files() {
    EXPECT_TRUE(open()->put(result_of(1)));
    const std::string store = read_file(path_);
    const pid_t writer = start_child([&] {
      auto own = open();
      for (int rows = 2; rows <= kResults; ++rows) {
        if (!own->put(result_of(rows))) return 1;
      }
      ::kill(::getpid(), SIGKILL);
      return 2;
    });
    EXPECT_TRUE(WIFSIGNALED(wait_for(writer)));
    EXPECT_EQ(read_file(path_), store);
    return {.store = store, .log = read_file(path_ + "-wal")};
  }
};

TEST_F(PageTest, C155EveryPageFlipped) { expect_all_lived_through(flip, false); }
TEST_F(PageTest, C155EveryPageZeroed) { expect_all_lived_through(zero, false); }
TEST_F(PageTest, C155EveryPageOverwritten) { expect_all_lived_through(overwrite, false); }
TEST_F(PageTest, C155EveryPageTruncatedThere) { expect_all_lived_through(cut, false); }
TEST_F(PageTest, C155EveryFrameOfTheLogFlipped) { expect_all_lived_through(flip, true); }
TEST_F(PageTest, C155EveryFrameOfTheLogZeroed) { expect_all_lived_through(zero, true); }
TEST_F(PageTest, C155EveryFrameOfTheLogOverwritten) { expect_all_lived_through(overwrite, true); }
TEST_F(PageTest, C155EveryFrameOfTheLogTruncatedThere) { expect_all_lived_through(cut, true); }

}  // namespace
}  // namespace kiln::cache
