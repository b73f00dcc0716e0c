// Finds what a kernel does wrong although it runs: accesses outside of the tensors that it was
// given, reads of bytes that nobody wrote, races in shared memory (within a warp as well) and
// between CTAs in global memory, cp.async data that is touched before its wait, barriers that a
// part of a warp reaches. A finding is recorded and the launch goes on.
//
// One Checker serves one launch, one CtaChecker one CTA of it. Ordering is by clocks: every barrier
// orders the warps (and bar.warp.sync the lanes) that take part in it; shfl, vote, mma and ldmatrix
// order nothing. CTAs are ordered only by a release (a fence and then a strong write, or .release)
// which an acquire of the same address saw. A location has one entry for its last write and one or
// two for its last reads, so that a race can be missed; one that is reported is one. So it is when
// a CTA has acquired and released 2^18 times, after which it counts as ordered.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/sim/arena.h"
#include "runtime/sim/program.h"
#include "runtime/sim/warp.h"

namespace kiln::runtime::sim {

// A tensor that the launch may touch. Module variables need one each as well.
struct View {
  std::string name;
  uint64_t begin = 0;
  int64_t element_bytes = 1;
  std::vector<int64_t> dims;           // outermost first; none: one element
  std::vector<int64_t> strides_bytes;  // of each dim; gaps between rows are outside
  bool may_read = true;  // false: only what the call itself has written, as of outputs
  bool may_write = false;
};

// What a launch may touch.
enum class Bounds : uint8_t { views, everything };  // everything: every allocation, as it likes

// What is checked.
struct Subject {
  std::string op, kernel, config;  // for the text of reports
  Bounds bounds = Bounds::views;
  std::vector<View> views;
  uint8_t call_mark = kFirstCallMark;  // of what is written; the launches of one call share it
};

struct Report {
  enum class Kind : uint8_t {
    outside,         // of every view
    write_to_input,  // of a view that may not be written
    read_of_output,  // of a view that may not be read, what the call has not written
    uninitialised_global,
    uninitialised_shared,
    uninitialised_local,
    shared_race,
    global_race,
    async_pending,  // touches what a cp.async may still be writing
    stale_read,     // ld.global.nc of what the same launch writes
    divergent_barrier,
  };
  Kind kind = Kind::outside;
  std::string what;  // "reads 4 bytes outside of `topk`"
  std::string op, kernel, config;
  std::string file, caller_file;  // "" when not known
  int line = 0, caller_line = 0;
  int ptx_line = 0;
  std::string ptx;
  Size3 block, thread;
  Space space = Space::global;
  std::string argument;  // the view, or the nearest one; "" when there is none
  int64_t offset = 0;    // bytes from the begin of the argument
  int64_t element = 0;   // offset / element bytes, rounded down
  uint64_t address = 0;  // in `space`
  int64_t bytes = 0;
};
const char* kind_name(Report::Kind kind);  // "shared_race"

// A line of a source file, or "" when there is none.
using SourceLine = std::function<std::string(const std::string& file, int line)>;
std::string describe(const Report& report, const SourceLine& source_line = nullptr);

enum class AccessKind : uint8_t { read, write, atomic };
struct Access {
  AccessKind kind = AccessKind::read;
  bool strong = false;          // of a scope in which the others are, so that no race can be
  bool read_only_path = false;  // .nc
};
// Consecutive bytes which consecutive lanes access, `bytes` each.
struct Run {
  int first_lane = 0;
  int lanes = 1;
  int bytes = 0;
  uint64_t address = 0;
};
enum class FenceScope : uint8_t { cta, gpu };

class Checker {
 public:
  // The arena needs marks. Fails with invalid_argument without them or for a view that cannot be.
  Checker(Arena& arena, const Launch& launch, Subject subject);
  ~Checker();

  // After the launch. At most 20, one for each kind and statement; found() counts every one.
  std::vector<Report> reports() const;
  uint64_t found() const { return found_.load(); }
  bool clock_used_up() const { return clock_used_up_.load(); }         // some races were not seen
  std::string summary(const SourceLine& source_line = nullptr) const;  // "" when nothing was found

  // Whether two views have a byte in common. Of more than 65536 rows the first ones are looked at.
  static bool share_memory(const View& one, const View& other);

  // "`topk`, 8 bytes behind its end (offset 4104, element 1026)", for the text of a Fault.
  std::string place_text(uint64_t address) const;

 private:
  friend class CtaChecker;

  // A view with its dims sorted and joined: rows of row_bytes, `dims` of them.
  struct Dim {
    uint64_t count = 1;
    uint64_t stride = 0;
    uint64_t inner_bytes = 0;  // from the first to the last byte of one step
  };
  struct Field {
    size_t view = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t row_bytes = 0;
    std::vector<Dim> dims;  // the largest stride first
    bool may_read = true;
    bool may_write = true;
    bool is_constant = false;  // and no other view writes what it has

    uint64_t distance(uint64_t address) const;  // 0 inside
  };
  // Bytes that one check covers; none by default.
  struct Extent {
    uint64_t begin = 1;
    uint64_t end = 0;
    bool is_constant = false;
    bool may_read = true;
  };
  using Clocks = std::unordered_map<uint32_t, uint32_t>;  // CTA, clock
  // What strong writes to an address released. As long as it is that of one fence, the snapshot is
  // shared with all addresses that the fence released.
  struct Released {
    std::shared_ptr<const Clocks> snapshot;
    std::unique_ptr<Clocks> own;
    uint64_t version = 0;

    const Clocks& clocks() const { return own != nullptr ? *own : *snapshot; }
    Clocks& merged();                                     // to be added to
    bool add(const std::shared_ptr<const Clocks>& more);  // whether it changed
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_map<uint64_t, Released> released;  // by address
  };
  struct SharedState;

  static bool reads_past_writes(const Program* program);
  static Field make_field(const View& view, size_t index);
  static std::optional<uint64_t> row_offset(const Field& field, size_t dim, uint64_t offset,
                                            uint64_t bytes);
  // The row of a view that has all these bytes and permits the access. Otherwise an empty extent,
  // and what is wrong.
  Extent find_extent(uint64_t address, uint64_t bytes, AccessKind kind, Report::Kind& wrong) const;
  const Field* nearest_field(uint64_t address) const;
  void locate(Report& report) const;                           // argument, offset, element
  bool is_new(Report::Kind kind, const Statement& statement);  // counts it
  void add(Report report, const Warp& warp, const Instruction& instruction, int lane);
  std::unique_ptr<SharedState> take_state();
  void give_back(std::unique_ptr<SharedState> state);
  Shard& shard(uint64_t address) { return shards_[address / 8 % shards_.size()]; }

  Arena& arena_;
  const Subject subject_;
  std::vector<Field> fields_;
  const bool has_many_ctas_;
  const bool uses_cells_;  // of races, which know the writes of a launch as well
  const uint64_t launch_;  // of race cells
  std::atomic<bool> any_release_ = false;
  std::atomic<bool> clock_used_up_ = false;
  std::array<Shard, 16> shards_;
  std::atomic<uint64_t> found_ = 0;

  mutable std::mutex mutex_;  // guards what follows
  std::vector<Report> reports_;
  std::set<std::pair<Report::Kind, const Statement*>> known_;
  std::vector<std::unique_ptr<SharedState>> free_states_;
};

class CtaChecker {
 public:
  CtaChecker(Checker& checker, Cta& cta);
  ~CtaChecker();
  CtaChecker(const CtaChecker&) = delete;
  CtaChecker& operator=(const CtaChecker&) = delete;

  // Before the access, which has passed the checks of bounds and alignment. `values` is what will
  // be written, lane after lane, or nullptr: a write of what is there already is no race between
  // writers.
  void global(const Warp& warp, const Instruction& instruction, const Run& run, Access access);
  void shared(const Warp& warp, const Instruction& instruction, const Run& run, Access access,
              const std::byte* values);
  void local(const Warp& warp, const Instruction& instruction, int lane, uint64_t address,
             int bytes, AccessKind kind);
  void forget(uint64_t address, uint64_t bytes);  // of global memory: no longer initialised

  // Around an access that may carry order from one thread to another.
  void release(const Warp& warp, Space space, uint64_t address, CacheOrder order);  // before
  void acquire(const Warp& warp, Space space, uint64_t address, CacheOrder order);  // after
  void fence(const Warp& warp, FenceScope scope);

  void async_copy(const Warp& warp, const Instruction& instruction, uint32_t lanes,
                  const std::array<uint64_t, kLanes>& to, int bytes);
  void async_commit(const Warp& warp, uint32_t lanes);
  void async_wait(const Warp& warp, uint32_t lanes, uint32_t groups_left);

  void warp_sync(const Warp& warp, uint32_t lanes);
  void barrier(uint32_t id, const std::vector<BarrierGroup>& parties);
  void barrier_arrive(uint32_t id, const Warp& warp);

 private:
  using Extent = Checker::Extent;
  struct CachedExtent {
    int32_t statement = -1;
    Extent extent;
  };

  void report_unwritten(Report::Kind kind, const Warp& warp, const Instruction& instruction,
                        const Run& run, Access access);
  void global_races(const Warp& warp, const Instruction& instruction, const Run& run,
                    Access access);
  void stale_read(const Warp& warp, const Instruction& instruction, const Run& run);
  bool is_ordered(uint64_t cell) const;
  bool join_seen(const Checker::Clocks& clocks);
  void advance_clock();
  void race_between_ctas(const Warp& warp, const Instruction& instruction, const Run& run,
                         Access access, uint64_t granule, uint64_t other, AccessKind other_kind);

  void shared_lane(const Warp& warp, const Instruction& instruction, int lane, uint64_t offset,
                   int bytes, Access access, const std::byte* value);
  void shared_races(const Warp& warp, const Instruction& instruction, const Run& run, Access access,
                    const std::byte* values);
  bool conflicts(int32_t cell, int32_t mine) const;
  bool orders(int32_t cell, int32_t mine) const;
  void race_in_shared(const Warp& warp, const Instruction& instruction, int lane, uint64_t offset,
                      int bytes, Access access, int32_t other, AccessKind other_kind);
  int32_t cell_of(const Warp& warp, int lane, Access access, int32_t bytes_mask) const;
  void advance();
  void sync_lanes(const Warp& warp, uint32_t lanes);
  void check_convergence(const std::vector<BarrierGroup>& parties);
  std::string thread_text(uint32_t warp, uint32_t lane) const;

  template <class Text>
  void report(Report::Kind kind, const Warp& warp, const Instruction& instruction, int lane,
              Space space, uint64_t address, int64_t bytes, Text what);

  Checker& checker_;
  Cta& cta_;
  Arena& arena_;
  std::unique_ptr<Checker::SharedState> state_;
  std::array<CachedExtent, 64> extents_;
  std::vector<uint8_t> local_written_;  // a byte for each of all threads

  // Order between CTAs.
  const uint64_t own_cell_;  // launch and CTA
  uint32_t clock_ = 1;
  Checker::Clocks seen_;       // accesses of these CTAs up to these clocks came before
  uint64_t seen_version_ = 1;  // of seen_
  std::shared_ptr<const Checker::Clocks> released_;  // as of the last fence, with this CTA
  uint64_t fences_ = 0;
  Checker::Clocks acquired_;  // counts from the next fence on
  // What was given to an address and taken from it, so that it is not done again.
  struct Exchange {
    uint64_t given_fence = 0;
    uint64_t given_seen = 0;
    uint64_t seen_version = 0;
    uint64_t acquired_version = 0;
  };
  std::unordered_map<uint64_t, Exchange> exchanges_;
};

// For the executor; only with Cta::checker.
void on_warp_sync(Warp& warp, uint32_t lanes);
void on_barrier(Cta& cta, uint32_t id, const std::vector<BarrierGroup>& parties);
void on_barrier_arrive(Cta& cta, uint32_t id, Warp& warp);

}  // namespace kiln::runtime::sim
