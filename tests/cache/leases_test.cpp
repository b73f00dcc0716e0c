// Who makes what when several processes need the same binaries: shared out, never more at once than
// the machine has room for, and nobody waits for the dead.
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "cache/lease_rows.h"
#include "cache/leases.h"
#include "cache/rows.h"
#include "cache/sqlite.h"
#include "jit/base/error.h"
#include "tests/cache/fixture.h"

namespace kiln::cache {
namespace {

using State = Lease::State;

// What children share with their parent.
struct Shared {
  std::atomic<int> at_once{0};
  std::atomic<int> most_at_once{0};
  std::atomic<int> made{0};
  std::atomic<int> arrived{0};
};

class Leases : public StoreTest {
 protected:
  Leases() {
    void* memory =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (memory) Shared;
  }
  ~Leases() override { ::munmap(shared_, sizeof(Shared)); }

  static std::vector<jit::Binary> binaries(int count) {
    std::vector<jit::Binary> all;
    for (int i = 0; i < count; ++i) all.push_back(sample_binary("kernel " + std::to_string(i)));
    return all;
  }

  // A process that needs all of them and makes what is its own.
  int make_all(const std::vector<jit::Binary>& all, int processes, int most_on_host) {
    ::alarm(60);  // one that hangs ends as a failure
    auto store = open();
    for (++shared_->arrived; shared_->arrived < processes;) std::this_thread::yield();
    std::vector<jit::Binary> left = all;
    while (!left.empty()) {
      std::vector<Hash128> keys;
      for (const jit::Binary& binary : left) keys.push_back(binary.key);
      const std::vector<Lease> leases = take_leases(*store, LeaseOf::binary, keys, most_on_host);
      std::vector<jit::Binary> later;
      int mine = 0;
      for (const Lease& lease : leases) mine += lease.state == State::mine ? 1 : 0;
      const int now = shared_->at_once += mine;
      for (int most = shared_->most_at_once;
           now > most && !shared_->most_at_once.compare_exchange_weak(most, now);) {
      }
      if (mine > 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      shared_->at_once -= mine;
      for (size_t i = 0; i < leases.size(); ++i) {
        if (leases[i].state == State::mine) {
          if (!store->put_binary(left[i])) return 1;
          ++shared_->made;
        } else if (leases[i].state == State::made) {
          if (!store->find_binary(left[i].key)) return 2;
        } else {
          if (leases[i].state == State::taken && leases[i].holder.empty()) return 3;
          later.push_back(left[i]);
        }
      }
      if (mine == 0 && !later.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      left = later;
    }
    return store->warnings().empty() ? 0 : 4;
  }

  void run_together(int processes, int kernels, int most_on_host) {
    open();  // so that all that is measured is the leases
    const std::vector<jit::Binary> all = binaries(kernels);
    std::vector<pid_t> children;
    for (int i = 0; i < processes; ++i)
      children.push_back(start_child([&] { return make_all(all, processes, most_on_host); }));
    for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
  }

  // A living process that holds the lease of a key until it is told to end.
  class Holding {
   public:
    Holding(Leases& test, const Hash128& key) : Holding(test, LeaseOf::binary, key) {}
    Holding(Leases& test, LeaseOf of, const Hash128& key) {
      int ready[2];
      EXPECT_EQ(::pipe(ready), 0);
      pid_ = start_child([&] {
        auto store = test.open();
        const bool mine = take_leases(*store, of, {key}, 8)[0].state == State::mine;
        if (::write(ready[1], mine ? "y" : "n", 1) != 1) return 1;
        ::close(ready[1]);
        for (;;) ::pause();
        return 0;
      });
      ::close(ready[1]);
      char answer = 0;
      EXPECT_EQ(::read(ready[0], &answer, 1), 1);
      EXPECT_EQ(answer, 'y');
      ::close(ready[0]);
    }
    ~Holding() {
      if (is_reaped_) return;
      ::kill(pid_, SIGKILL);
      wait_for(pid_);
    }
    pid_t pid() const { return pid_; }
    void kill_unreaped() {
      ::kill(pid_, SIGKILL);
      siginfo_t info = {};
      ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
    }
    void reap() {
      wait_for(pid_);
      is_reaped_ = true;
    }

   private:
    pid_t pid_ = -1;
    bool is_reaped_ = false;
  };

  Lease ask(const Hash128& key, LeaseOf of = LeaseOf::binary, int most_on_host = 8) {
    return take_leases(*open(), of, {key}, most_on_host)[0];
  }
  int64_t lease_count() { return std::stoll(sql("SELECT count(*) FROM leases")[0]); }

  Shared* shared_;
  const Hash128 key_ = sample_binary("one").key;
  const Hash128 other_ = sample_binary("two").key;
};

TEST_F(Leases, C15EachBinaryIsMadeByOneOfManyProcesses) {
  run_together(8, 24, 64);
  EXPECT_EQ(shared_->made, 24);
  EXPECT_EQ(open()->list_binaries().size(), 24u);
  EXPECT_EQ(lease_count(), 0);
}

TEST_F(Leases, C17CompilesOfOneHostStayWithinThePool) {
  run_together(8, 24, 3);
  EXPECT_EQ(shared_->made, 24);
  EXPECT_LE(shared_->most_at_once, 3);
  EXPECT_GT(shared_->most_at_once, 0);
}

TEST_F(Leases, NoMoreAreGrantedThanThereIsRoomFor) {
  auto store = open();
  const auto all = take_leases(*store, LeaseOf::binary, {key_, other_}, 1);
  EXPECT_EQ(all[0].state, State::mine);
  EXPECT_EQ(all[1].state, State::full);
  EXPECT_EQ(take_leases(*store, LeaseOf::binary, {key_}, 1)[0].state, State::mine) << "again";
  release_leases(*store, LeaseOf::binary, {key_});
  EXPECT_EQ(take_leases(*store, LeaseOf::binary, {other_}, 1)[0].state, State::mine);
}

TEST_F(Leases, FullMachineNamesWhoMakesSomething) {
  Holding holding(*this, key_);
  const Lease lease = ask(other_, LeaseOf::binary, 1);
  EXPECT_EQ(lease.state, State::full);
  EXPECT_EQ(lease.holder.find("process " + std::to_string(holding.pid()) + " on "), 0u);
  EXPECT_EQ(ask(other_, LeaseOf::binary, 2).state, State::mine);
}

TEST_F(Leases, C32KilledHolderIsOvertaken) {
  Holding holding(*this, key_);
  EXPECT_EQ(ask(key_).state, State::taken);
  holding.kill_unreaped();
  EXPECT_EQ(ask(key_).state, State::mine) << "though its parent has not heard of it yet";
}

TEST_F(Leases, C32EndedHolderIsOvertaken) {
  Holding holding(*this, key_);
  holding.kill_unreaped();
  holding.reap();
  EXPECT_EQ(ask(key_).state, State::mine);
}

TEST_F(Leases, C33LiveHolderIsWaitedForAsLongAsItGivesSignsOfLife) {
  Holding holding(*this, key_);
  sql("UPDATE leases SET taken_at = taken_at - 500, heartbeat_at = heartbeat_at - 25, "
      "deadline_at = deadline_at - 500");
  const Lease lease = ask(key_);
  EXPECT_EQ(lease.state, State::taken);
  EXPECT_EQ(lease.holder.find("process " + std::to_string(holding.pid()) + " on "), 0u);
  EXPECT_EQ(lease.holder.find('/'), std::string::npos) << lease.holder;
  EXPECT_GE(lease.age_s, 500);
}

TEST_F(Leases, SignOfLifeMovesTheHeartbeatAndNotTheDeadline) {
  auto store = open();
  take_leases(*store, LeaseOf::binary, {key_}, 1);
  store.reset();
  sql("UPDATE leases SET heartbeat_at = heartbeat_at - 20, deadline_at = deadline_at - 100");
  const std::string deadline = sql("SELECT deadline_at FROM leases")[0];
  store = open();
  renew_leases(*store, LeaseOf::binary, {key_});
  store.reset();
  EXPECT_EQ(sql("SELECT heartbeat_at >= strftime('%s', 'now') - 5 FROM leases")[0], "1");
  EXPECT_EQ(sql("SELECT deadline_at FROM leases")[0], deadline);
}

TEST_F(Leases, C36SilentHolderIsOvertaken) {
  Holding holding(*this, key_);
  sql("UPDATE leases SET heartbeat_at = heartbeat_at - 35");
  EXPECT_EQ(ask(key_).state, State::mine);
}

TEST_F(Leases, C36NobodyWaitsBeyondTheDeadline) {
  Holding holding(*this, key_);
  sql("UPDATE leases SET taken_at = taken_at - 605, deadline_at = deadline_at - 605");
  EXPECT_EQ(ask(key_).state, State::mine);
}

TEST_F(Leases, C36ClockThatWasSetBackMakesNobodyWait) {
  Holding holding(*this, key_);
  sql("UPDATE leases SET taken_at = taken_at + 3600, heartbeat_at = heartbeat_at + 3600, "
      "deadline_at = deadline_at + 3600");
  EXPECT_EQ(ask(key_).state, State::mine);
}

TEST_F(Leases, ReusedPidIsNotTheHolder) {
  Holding holding(*this, key_);
  sql("UPDATE leases SET holder_started_at = holder_started_at - 1");
  EXPECT_EQ(ask(key_).state, State::mine);
}

TEST_F(Leases, PidOfAnotherBootOrNamespaceIsNotLookedUp) {
  for (const char* change :
       {"holder_boot_id = 'an earlier one'", "holder_host = 'node7/4026531836'"}) {
    {
      Holding holding(*this, key_);
      sql(std::string("UPDATE leases SET ") + change);
      holding.kill_unreaped();
      EXPECT_EQ(ask(key_).state, State::taken) << change;
      sql("UPDATE leases SET heartbeat_at = heartbeat_at - 35");
      EXPECT_EQ(ask(key_).state, State::mine) << change;
    }
    sql("DELETE FROM leases");
  }
}

TEST_F(Leases, AnotherMachineTakesNoRoomOfThisOne) {
  Holding holding(*this, key_);
  sql("UPDATE leases SET holder_boot_id = 'another', holder_host = 'node7/1'");
  EXPECT_EQ(ask(other_, LeaseOf::binary, 1).state, State::mine);
  EXPECT_EQ(ask(key_).holder, "process " + std::to_string(holding.pid()) + " on node7");
}

TEST_F(Leases, WhatIsPutIsNoLongerLeased) {
  auto store = open();
  take_leases(*store, LeaseOf::binary, {key_, other_}, 8);
  TuningResult wrong = sample_result("of nobody");
  wrong.binaries = {sample_binary("one")};
  EXPECT_FALSE(store->put(wrong));  // its plan names binaries that are nowhere
  store.reset();
  EXPECT_EQ(lease_count(), 2) << "with the transaction that was rolled back";
  store = open();
  ASSERT_TRUE(store->put_binary(sample_binary("one")));
  EXPECT_EQ(take_leases(*store, LeaseOf::binary, {key_}, 8)[0].state, State::made);
  store.reset();
  EXPECT_EQ(lease_count(), 1);
}

TEST_F(Leases, DamagedOrUntrustedImageIsNotMade) {
  ASSERT_TRUE(open()->put_kernels({sample_binary("one"), sample_binary("two")}, {}));
  sql("UPDATE images SET data = zeroblob(64) WHERE binary = '" + key_.hex() + "'");
  sql("UPDATE images SET trusted = 0 WHERE binary = '" + other_.hex() + "'");
  auto store = open();
  EXPECT_FALSE(store->find_binary(key_));
  const auto leases = take_leases(*store, LeaseOf::binary, {key_, other_}, 8);
  EXPECT_EQ(leases[0].state, State::mine);
  EXPECT_EQ(leases[1].state, State::mine);
}

TEST_F(Leases, LookingWritesNothing) {
  Holding holding(*this, key_);
  ASSERT_TRUE(open()->put_binary(sample_binary("two")));
  auto store = open();
  const auto log_bytes = [&] { return std::filesystem::file_size(path_ + "-wal"); };
  const auto before = log_bytes();
  const auto leases = take_leases(*store, LeaseOf::binary, {key_, other_}, 8);
  EXPECT_EQ(leases[0].state, State::taken);
  EXPECT_EQ(leases[1].state, State::made);
  release_leases(*store, LeaseOf::binary, {key_, other_});
  EXPECT_EQ(log_bytes(), before);
}

TEST_F(Leases, StoreThatIsNotSharedGivesAllToTheAsker) {
  const std::string file = path_;
  path_ = ":memory:";
  auto store = open();
  for (const Lease& lease : take_leases(*store, LeaseOf::binary, {key_, other_}, 1))
    EXPECT_EQ(lease.state, State::mine);
  path_ = file;
  Holding holding(*this, key_);
  store = open(StoreOptions::Mode::read_only);
  for (const Lease& lease : take_leases(*store, LeaseOf::binary, {key_, other_}, 1))
    EXPECT_EQ(lease.state, State::mine);
  renew_leases(*store, LeaseOf::binary, {key_});
  release_leases(*store, LeaseOf::binary, {key_});
  EXPECT_TRUE(store->warnings().empty());
}

TEST_F(Leases, StoreThatFailsGivesAllToTheAsker) {
  auto store = open();
  const pid_t newer = start_child([&] {
    Database(path_, SQLITE_OPEN_READWRITE).execute("PRAGMA user_version = 99");
    return 0;
  });
  ASSERT_EQ(wait_for(newer), 0);
  for (const Lease& lease : take_leases(*store, LeaseOf::binary, {key_, other_}, 1))
    EXPECT_EQ(lease.state, State::mine);
}

TEST_F(Leases, OthersAreNotGivenBack) {
  Holding holding(*this, key_);
  release_leases(*open(), LeaseOf::binary, {key_});
  renew_leases(*open(), LeaseOf::binary, {key_});
  EXPECT_EQ(ask(key_).state, State::taken);
}

TEST_F(Leases, SearchIsApartFromBinaries) {
  Holding holding(*this, LeaseOf::search, key_);
  EXPECT_EQ(ask(key_, LeaseOf::binary, 1).state, State::mine);
  EXPECT_EQ(ask(key_, LeaseOf::search).state, State::taken);
  // A step of it may take minutes.
  sql("UPDATE leases SET heartbeat_at = heartbeat_at - 500 WHERE key LIKE 'search %'");
  EXPECT_EQ(ask(key_, LeaseOf::search).state, State::taken);
  holding.kill_unreaped();
  EXPECT_EQ(ask(key_, LeaseOf::search).state, State::mine);
}

TEST_F(Leases, SearchMayTakeAsLongAsItGivesSignsOfLife) {
  take_leases(*open(), LeaseOf::search, {key_}, 1);
  sql("UPDATE leases SET deadline_at = deadline_at - 550");
  renew_leases(*open(), LeaseOf::search, {key_});
  EXPECT_EQ(sql("SELECT deadline_at >= strftime('%s', 'now') + 590 FROM leases")[0], "1");
}

TEST_F(Leases, StaleOnesGoWithTheNextGrant) {
  { Holding holding(*this, key_); }
  EXPECT_EQ(lease_count(), 1);
  take_leases(*open(), LeaseOf::binary, {other_}, 1);
  EXPECT_EQ(sql("SELECT key FROM leases"), std::vector<std::string>{other_.hex()});
}

TEST_F(Leases, ListHasThoseThatCount) {
  Holding holding(*this, key_);
  { Holding dead(*this, other_); }
  for (const auto mode : {StoreOptions::Mode::read_write, StoreOptions::Mode::read_only}) {
    const std::vector<LeaseRow> rows = list_leases(*open(mode));
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0].key, key_);
    EXPECT_EQ(rows[0].of, LeaseOf::binary);
    EXPECT_EQ(rows[0].holder.find("process " + std::to_string(holding.pid())), 0u);
  }
}

TEST_F(Leases, ThisProcessIsKnownByItsStart) {
  const Holder here = this_process();
  EXPECT_EQ(here.pid, ::getpid());
  EXPECT_GT(here.started_at, 0);
  EXPECT_FALSE(is_gone(here, here));
  Holder later = here;
  ++later.started_at;
  EXPECT_TRUE(is_gone(later, here));
  Holder unknown = here;
  unknown.started_at = 0;
  EXPECT_FALSE(is_gone(unknown, here));
}

}  // namespace
}  // namespace kiln::cache
