#include "cache/lease_rows.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>

#include "cache/rows.h"

namespace kiln::cache {
namespace {

// Keys of searches are told from those of binaries by what stands before them.
constexpr std::string_view kSearchPrefix = "search ";

std::string key_text(LeaseOf of, const Hash128& key) {
  return of == LeaseOf::binary ? key.hex() : std::string(kSearchPrefix) + key.hex();
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "unknown host";
  return name;
}

// Containers of one host may have its name and pids of their own.
std::string pid_namespace() {
  struct stat status = {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? std::to_string(status.st_ino) : "";
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

struct ProcessStatus {
  char state = 0;
  int64_t started_at = 0;
};

// Nothing: /proc does not show it.
std::optional<ProcessStatus> status_of(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // pid (any name, with blanks and brackets) S ppid ...; the start is the 22nd field.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream words(text.substr(name_end + 1));
  ProcessStatus status;
  std::string skipped;
  words >> status.state;
  constexpr int kFirstAfterState = 4;
  constexpr int kStart = 22;
  for (int field = kFirstAfterState; field < kStart; ++field) words >> skipped;
  words >> status.started_at;
  if (!words) return std::nullopt;
  return status;
}

bool is_ended(char state) { return state == 'Z' || state == 'X' || state == 'x'; }

bool is_same_machine(const Holder& one, const Holder& other) {
  return one.boot_id.empty() ? one.host == other.host : one.boot_id == other.boot_id;
}

Lease lease_of_another(Lease::State state, const LeaseRecord& record, int64_t now) {
  return {.state = state,
          .holder = record.holder.text(),
          .age_s = std::max<int64_t>(now - record.taken_at, 0),
          .heartbeat_at = record.heartbeat_at};
}

}  // namespace

LeaseLimits lease_limits(LeaseOf of) {
  constexpr int64_t kTenMinutes = 600;
  // A compile is looked after by a loop that does little else; a step of a search may take minutes.
  return of == LeaseOf::binary ? LeaseLimits{.heartbeat_s = 30, .deadline_s = kTenMinutes}
                               : LeaseLimits{.heartbeat_s = kTenMinutes, .deadline_s = kTenMinutes};
}

std::string Holder::text() const {
  return fmt::format("process {} on {}", pid, host.substr(0, host.find('/')));
}

Holder this_process() {
  const int64_t pid = ::getpid();
  const std::optional<ProcessStatus> status = status_of(pid);
  return {.host = host_name() + "/" + pid_namespace(),
          .boot_id = boot_id(),
          .pid = pid,
          .started_at = status ? status->started_at : 0};
}

bool is_gone(const Holder& holder, const Holder& here) {
  const bool is_here =
      !here.boot_id.empty() && holder.boot_id == here.boot_id && holder.host == here.host;
  if (!is_here || holder.pid <= 0 || holder.pid > INT_MAX) return false;
  const std::optional<ProcessStatus> status = status_of(holder.pid);
  if (!status) return ::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH;
  if (is_ended(status->state)) return true;
  return holder.started_at != 0 && status->started_at != holder.started_at;
}

bool is_stale(const LeaseRecord& lease, const Holder& here, int64_t now) {
  // A sign of life from the time to come is none: clocks of two hosts, or one that was set back.
  const int64_t silent_s = std::abs(now - lease.heartbeat_at);
  return now > lease.deadline_at || silent_s > lease_limits(lease.of).heartbeat_s ||
         lease.deadline_at - now > lease_limits(lease.of).deadline_s || is_gone(lease.holder, here);
}

namespace {

// All of them. A row that no Kiln wrote is left to gc.
std::vector<LeaseRecord> read_leases(Database& database) {
  Statement rows = database.prepare(
      "SELECT key, holder_host, holder_boot_id, holder_pid, holder_started_at, taken_at, "
      "  heartbeat_at, deadline_at FROM leases ORDER BY taken_at, key");
  std::vector<LeaseRecord> leases;
  while (rows.step()) {
    std::string text = rows.text(0);
    LeaseRecord lease{.of = LeaseOf::binary,
                      .key = {},
                      .holder = {.host = rows.text(1),
                                 .boot_id = rows.text(2),
                                 .pid = rows.integer(3),
                                 .started_at = rows.integer(4)},
                      .taken_at = rows.integer(5),
                      .heartbeat_at = rows.integer(6),
                      .deadline_at = rows.integer(7)};
    if (text.starts_with(kSearchPrefix)) {
      lease.of = LeaseOf::search;
      text.erase(0, kSearchPrefix.size());
    }
    const std::optional<Hash128> key = parse_hash(text);
    if (!key) continue;
    lease.key = *key;
    leases.push_back(std::move(lease));
  }
  return leases;
}

constexpr std::string_view kOfHolder =
    "key = ? AND holder_host = ? AND holder_boot_id = ? AND holder_pid = ? AND "
    "holder_started_at = ?";

Statement& bind_holder(Statement& statement, const std::string& key, const Holder& holder) {
  return statement.bind(key, holder.host, holder.boot_id, holder.pid, holder.started_at);
}

}  // namespace

std::vector<LeaseRecord> read_live_leases(Database& database, const Holder& here) {
  std::vector<LeaseRecord> leases = read_leases(database);
  const int64_t now = now_seconds();
  std::erase_if(leases, [&](const LeaseRecord& lease) { return is_stale(lease, here, now); });
  return leases;
}

LeaseAnswer judge_leases(Database& database, const LeaseRequest& request, const Holder& here) {
  const int64_t now = now_seconds();
  const std::vector<LeaseRecord> live = read_live_leases(database, here);
  std::map<Hash128, const LeaseRecord*> by_key;
  const LeaseRecord* oldest_here = nullptr;  // of another process
  int64_t room = request.most_on_host;
  for (const LeaseRecord& lease : live) {
    if (lease.of != request.of) continue;
    by_key.emplace(lease.key, &lease);
    if (!is_same_machine(here, lease.holder)) continue;
    --room;
    if (oldest_here == nullptr && lease.holder != here) oldest_here = &lease;
  }
  LeaseAnswer answer;
  for (const Hash128& key : request.keys) {
    const auto found = by_key.find(key);
    if (request.is_made && request.is_made(key)) {
      answer.leases.push_back({.state = Lease::State::made});
    } else if (found != by_key.end()) {
      answer.leases.push_back(found->second->holder == here
                                  ? Lease{}
                                  : lease_of_another(Lease::State::taken, *found->second, now));
    } else if (room > 0) {
      --room;
      answer.granted.push_back(key);
      answer.leases.push_back({});
    } else {
      answer.leases.push_back(oldest_here != nullptr
                                  ? lease_of_another(Lease::State::full, *oldest_here, now)
                                  : Lease{.state = Lease::State::full});
    }
  }
  return answer;
}

void write_lease_rows(Database& database, LeaseOf of, const std::vector<Hash128>& keys,
                      const Holder& here) {
  const int64_t now = now_seconds();
  for (const LeaseRecord& lease : read_leases(database)) {
    if (!is_stale(lease, here, now)) continue;
    database.prepare("DELETE FROM leases WHERE key = ?").bind(key_text(lease.of, lease.key)).run();
  }
  for (const Hash128& key : keys) {
    database.prepare("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?)")
        .bind(key_text(of, key), here.host, here.boot_id, here.pid, here.started_at, now, now,
              now + lease_limits(of).deadline_s)
        .run();
  }
}

void renew_lease_rows(Database& database, LeaseOf of, const std::vector<Hash128>& keys,
                      const Holder& here) {
  const int64_t now = now_seconds();
  // The time that a binary may take does not grow.
  const int64_t deadline_at = of == LeaseOf::search ? now + lease_limits(of).deadline_s : 0;
  for (const Hash128& key : keys) {
    Statement update = database.prepare(
        fmt::format("UPDATE leases SET heartbeat_at = ?, deadline_at = max(deadline_at, ?) "
                    "WHERE {}",
                    kOfHolder));
    update.bind(now, deadline_at);
    bind_holder(update, key_text(of, key), here).run();
  }
}

bool holds_any_lease(Database& database, LeaseOf of, const std::vector<Hash128>& keys,
                     const Holder& here) {
  return std::any_of(keys.begin(), keys.end(), [&](const Hash128& key) {
    Statement row = database.prepare(fmt::format("SELECT 1 FROM leases WHERE {}", kOfHolder));
    return bind_holder(row, key_text(of, key), here).step();
  });
}

void delete_lease_rows(Database& database, LeaseOf of, const std::vector<Hash128>& keys,
                       const Holder& here) {
  for (const Hash128& key : keys) {
    Statement row = database.prepare(fmt::format("DELETE FROM leases WHERE {}", kOfHolder));
    bind_holder(row, key_text(of, key), here).run();
  }
}

void delete_lease_of_binary(Database& database, const Hash128& key) {
  database.prepare("DELETE FROM leases WHERE key = ?").bind(key_text(LeaseOf::binary, key)).run();
}

}  // namespace kiln::cache
