// Several processes on one store: writers at once, creation at once, damage found by all at once,
// and death in the middle.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "cache/sqlite.h"
#include "tests/cache/fixture.h"

namespace kiln::cache {
namespace {

class ProcessesTest : public StoreTest {
 protected:
  // `count` children that start together.
  void run_together(int count, const std::function<int(int)>& body) {
    int gate[2];
    ASSERT_EQ(::pipe(gate), 0);
    std::vector<pid_t> children;
    for (int i = 0; i < count; ++i) {
      children.push_back(start_child([&] {
        ::close(gate[1]);
        char byte = 0;
        if (::read(gate[0], &byte, 1) < 0) return 100;  // returns when the gate is closed
        return body(i);
      }));
    }
    ::close(gate[0]);
    ::close(gate[1]);
    for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
  }
};

TEST_F(ProcessesTest, C31C62WritersAtOnceLoseNothing) {
  path_ = folder_ + "/made/by/whoever/is/first.db";
  constexpr int kProcesses = 4;
  constexpr int kResults = 25;
  run_together(kProcesses, [&](int process) {
    auto store = open();
    for (int i = 0; i < kResults; ++i) {
      const int rows = process * kResults + i;
      if (!store->put(sample_result(std::to_string(rows), rows))) return 1;
      if (!store->find_decision(sample_problem(rows), kA100)) return 2;
    }
    return store->warnings().empty() ? 0 : 3;
  });
  auto store = open();
  EXPECT_EQ(store->list_decisions().size(), static_cast<size_t>(kProcesses * kResults));
  EXPECT_EQ(store->check(), std::vector<std::string>{});
  EXPECT_TRUE(store->warnings().empty());
}

TEST_F(ProcessesTest, C40SameResultFromAllIsOneRow) {
  run_together(4, [&](int) { return open()->put(sample_result("same")) ? 0 : 1; });
  auto store = open();
  EXPECT_EQ(store->list_decisions().size(), 1u);
  EXPECT_EQ(store->list_binaries().size(), 2u);
  EXPECT_EQ(store->problems().size(), 1u);
}

TEST_F(ProcessesTest, UseIsNotNotedWhileAnotherWrites) {
  const TuningResult result = sample_result("a");
  ASSERT_TRUE(open()->put(result));
  sql("UPDATE images SET used_at = 0");
  int held[2];
  int release[2];
  ASSERT_EQ(::pipe(held), 0);
  ASSERT_EQ(::pipe(release), 0);
  const pid_t writer = start_child([&] {
    ::close(release[1]);
    Database database(path_, SQLITE_OPEN_READWRITE);
    Transaction transaction(database);
    ::close(held[1]);
    char byte = 0;
    return ::read(release[0], &byte, 1) == 0 ? 0 : 1;
  });
  ::close(held[1]);
  ::close(release[0]);
  char byte = 0;
  ASSERT_EQ(::read(held[0], &byte, 1), 0);
  ::close(held[0]);
  auto store = open();
  store->touch({result.binaries[0].key});
  EXPECT_TRUE(store->warnings().empty());
  ::close(release[1]);
  EXPECT_EQ(wait_for(writer), 0);
  store->touch({result.binaries[0].key});
  store.reset();
  EXPECT_EQ(sql("SELECT count(*) FROM images WHERE used_at = 0"), std::vector<std::string>{"1"});
}

TEST_F(ProcessesTest, DamagedFileIsPutAsideOnce) {
  write_damaged();
  run_together(4, [&](int process) {
    auto store = open();
    if (!store->put(sample_result(std::to_string(process), process))) return 1;
    // Kept in memory it would be lost with the process.
    if (store->info().path == path_) return 0;
    for (const std::string& warning : store->warnings()) ADD_FAILURE() << warning;
    return 2;
  });
  EXPECT_EQ(count_files_with(".corrupt-"), 1u);
  auto store = open();
  EXPECT_EQ(store->list_decisions().size(), 4u);
  EXPECT_TRUE(store->check().empty());
}

TEST_F(ProcessesTest, KilledWriterLeavesWholeResultsOnly) {
  std::mt19937 random(7);
  int next = 0;
  for (int round = 0; round < 20; ++round) {
    int reports[2];
    ASSERT_EQ(::pipe(reports), 0);
    const pid_t child = start_child([&] {
      auto store = open();
      for (int rows = next;; ++rows) {
        if (!store->put(sample_result(std::to_string(rows), rows))) return 1;
        if (::write(reports[1], &rows, sizeof rows) != sizeof rows) return 2;
      }
    });
    ::close(reports[1]);
    // Somewhere in the second to fifth result of this writer.
    int committed = next - 1;
    const int wanted = next + static_cast<int>(random() % 4);
    while (committed < wanted) {
      ASSERT_EQ(::read(reports[0], &committed, sizeof committed), ssize_t{sizeof committed});
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    ::kill(child, SIGKILL);
    const int status = wait_for(child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself: " << WEXITSTATUS(status);
    for (int rows = 0; ::read(reports[0], &rows, sizeof rows) == sizeof rows;) committed = rows;
    ::close(reports[0]);

    auto store = open();
    EXPECT_TRUE(store->warnings().empty());
    EXPECT_EQ(store->check(), std::vector<std::string>{});
    for (int rows = next; rows <= committed; ++rows) {
      const auto row = store->find_decision(sample_problem(rows), kA100);
      ASSERT_TRUE(row) << "result " << rows << " was reported as kept";
      const auto plan = store->find_plan(row->decision.plan);
      ASSERT_TRUE(plan);
      for (const auto& kernel : plan->kernels) EXPECT_TRUE(store->find_binary(kernel.binary));
    }
    // The one in flight is there as a whole or not at all.
    const int in_flight = committed + 1;
    const bool decided = store->find_decision(sample_problem(in_flight), kA100).has_value();
    const TuningResult result = sample_result(std::to_string(in_flight), in_flight);
    EXPECT_EQ(store->find_plan(result.plans[0].id).has_value(), decided);
    EXPECT_EQ(store->has_binary(result.binaries[0].key), decided);
    next = in_flight + 1;
  }
  EXPECT_EQ(count_files_with(".corrupt-"), 0u);
}

TEST_F(ProcessesTest, WhatAWriterThatWroteNothingLeftStandsInNoReadersWay) {
  ASSERT_TRUE(open()->put(sample_result("a")));
  write_file(path_ + "-wal", std::string(32, '\0'));
  write_file(path_ + "-shm", std::string(32768, '\0'));
  auto store = open(StoreOptions::Mode::read_only);
  EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
  EXPECT_TRUE(store->warnings().empty());
}

TEST_F(ProcessesTest, C30ReadersAreServedWhileAnotherProcessOpensAndClosesTheStore) {
  ASSERT_TRUE(open()->put(sample_result("a")));
  const pid_t child = start_child([&] {
    for (;;) open();
    return 0;
  });
  int unserved = 0;
  std::vector<std::string> warnings;
  for (int i = 0; i < 400; ++i) {
    auto store = open(StoreOptions::Mode::read_only);
    unserved += store->find_decision(sample_problem(), kA100) ? 0 : 1;
    for (const std::string& warning : store->warnings()) warnings.push_back(warning);
  }
  ::kill(child, SIGKILL);
  wait_for(child);
  EXPECT_EQ(unserved, 0);
  EXPECT_EQ(warnings, std::vector<std::string>{});
}

TEST_F(ProcessesTest, ReaderAfterAKilledWriterNeedsAWriterFirst) {
  const pid_t child = start_child([&] {
    auto store = open();
    store->put(sample_result("a"));
    ::kill(::getpid(), SIGKILL);
    return 0;
  });
  wait_for(child);
  ASSERT_TRUE(std::filesystem::exists(path_ + "-wal"));
  const auto files = files_in_folder();
  const std::string log = read_file(path_ + "-wal");
  {
    auto store = open(StoreOptions::Mode::read_only);  // reads with the shared memory that is there
    EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
  }
  EXPECT_EQ(files_in_folder(), files);
  EXPECT_EQ(read_file(path_ + "-wal"), log);

  std::filesystem::remove(path_ + "-shm");
  {
    auto store = open(StoreOptions::Mode::read_only);
    EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
    EXPECT_EQ(store->warnings().size(), 1u);
    EXPECT_FALSE(std::filesystem::exists(path_ + "-shm"));
  }
  EXPECT_TRUE(open()->find_decision(sample_problem(), kA100));
  EXPECT_TRUE(open(StoreOptions::Mode::read_only)->find_decision(sample_problem(), kA100));
}

// The index of the log is derived from it: one that another machine left, or nobody knows who, must
// not be believed.
TEST_F(ProcessesTest, C55ForeignIndexBesideASoundLogIsMadeAnew) {
  const pid_t child = start_child([&] {
    auto store = open();
    store->put(sample_result("a"));
    ::kill(::getpid(), SIGKILL);
    return 0;
  });
  wait_for(child);
  const std::string index = read_file(path_ + "-shm");
  ASSERT_FALSE(index.empty());
  for (const std::string& foreign :
       {std::string(index.size(), '\xa5'), std::string(index.size(), '\0'), std::string("index")}) {
    const pid_t reopened = start_child([&] {
      write_file(path_ + "-shm", foreign);
      auto store = open();
      const bool is_whole = store->find_decision(sample_problem(), kA100).has_value() &&
                            store->warnings().empty() && store->check().empty();
      const bool is_written = store->put(sample_result("b", 64));
      ::kill(::getpid(), is_whole && is_written ? SIGKILL : SIGTERM);  // the log stays
      return 0;
    });
    EXPECT_EQ(WTERMSIG(wait_for(reopened)), SIGKILL) << "index of " << foreign.size() << " bytes";
  }
  auto store = open();
  EXPECT_TRUE(store->find_decision(sample_problem(64), kA100));
  EXPECT_EQ(count_files_with(".corrupt-"), 0u);
}

TEST_F(ProcessesTest, StoreOfBeforeTheForkIsAMissInTheChild) {
  auto store = open();
  ASSERT_TRUE(store->put(sample_result("a")));
  const pid_t child = start_child([&] {
    if (store->find_decision(sample_problem(), kA100)) return 1;
    if (store->warnings().size() != 1) return 2;
    store.reset();  // must leave the parent's connection alone
    return 0;
  });
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
  EXPECT_TRUE(store->put(sample_result("c", 64)));
  EXPECT_TRUE(store->warnings().empty());
  EXPECT_TRUE(store->check().empty());
}

TEST_F(ProcessesTest, ChildNeverWritesTheFileThatItsParentHadOpen) {
  ASSERT_TRUE(open()->put(sample_result("a")));  // closed: it is in the file itself
  auto store = open();
  ASSERT_TRUE(store->put(sample_result("b", 32)));
  int to_child[2];
  int to_parent[2];
  ASSERT_EQ(::pipe(to_child), 0);
  ASSERT_EQ(::pipe(to_parent), 0);
  const pid_t child = start_child([&] {
    ::close(to_child[1]);
    const auto is_apart = [](Store& own) {
      constexpr const char* kToDo =
          "; close the store before the fork or name another file with KILN_DB or --db";
      return own.warnings().size() == 1 && own.warnings()[0].find("forked") != std::string::npos &&
             own.warnings()[0].find(kToDo) != std::string::npos && own.info().path == ":memory:";
    };
    auto own = open();
    auto again = open();
    if (!is_apart(*own) || !is_apart(*again)) return 1;
    if (!own->find_decision(sample_problem(), kA100)) return 2;
    if (!own->put(sample_result("child", 64))) return 3;
    if (!own->find_decision(sample_problem(64), kA100)) return 4;
    if (open(StoreOptions::Mode::read_only)->warnings().size() != 1) return 5;
    char byte = 0;
    if (::write(to_parent[1], "x", 1) != 1) return 6;
    if (::read(to_child[0], &byte, 1) != 0) return 7;  // the parent has closed its store
    if (!own->find_decision(sample_problem(32), kA100)) return 8;
    if (!own->put(sample_result("child again", 128))) return 9;
    const pid_t grandchild = start_child([&] { return is_apart(*open()) ? 0 : 1; });
    return wait_for(grandchild) == 0 ? 0 : 10;
  });
  ::close(to_child[0]);
  ::close(to_parent[1]);
  char byte = 0;
  EXPECT_EQ(::read(to_parent[0], &byte, 1), 1);
  EXPECT_TRUE(store->put(sample_result("c", 256)));
  store.reset();
  ::close(to_child[1]);
  EXPECT_EQ(wait_for(child), 0);
  ::close(to_parent[0]);

  store = open();
  for (const int rows : {16, 32, 256}) {
    EXPECT_TRUE(store->find_decision(sample_problem(rows), kA100)) << rows;
  }
  EXPECT_EQ(store->list_decisions().size(), 3u);
  EXPECT_TRUE(store->check().empty());
  EXPECT_TRUE(store->warnings().empty());
  EXPECT_EQ(count_files_with(".corrupt-"), 0u);
}

TEST_F(ProcessesTest, FileThatWasClosedBeforeTheForkIsWrittenByTheChild) {
  ASSERT_TRUE(open()->put(sample_result("a")));
  const pid_t child = start_child([&] {
    auto own = open();
    return own->put(sample_result("b", 32)) && own->warnings().empty() ? 0 : 1;
  });
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_TRUE(open()->find_decision(sample_problem(32), kA100));
}

TEST_F(ProcessesTest, ForkWhileAnotherThreadOpensAndWritesDoesNotHang) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitiser's allocator may be locked by the other thread at the fork";
#endif
  std::atomic<bool> stop = false;
  std::thread worker([&] {
    for (int i = 0; !stop; ++i) {
      Store::open({.path = folder_ + "/other.db"})->put(sample_result("w", i % 8));
      Store::open({.path = ":memory:"})->put(sample_result("m"));
    }
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = start_child([&] {
      ::alarm(60);  // a child that hangs ends as a failure
      return open()->put(sample_result(std::to_string(i), i)) ? 0 : 1;
    });
    EXPECT_EQ(wait_for(child), 0);
  }
  stop = true;
  worker.join();
  EXPECT_EQ(open()->list_decisions().size(), 20u);
}

}  // namespace
}  // namespace kiln::cache
