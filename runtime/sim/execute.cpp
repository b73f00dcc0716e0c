#include "runtime/sim/execute.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/sim/checker.h"
#include "runtime/sim/numbers.h"

namespace kiln::runtime::sim {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kWarpSlice = 20'000;      // instructions before the next warp has its turn
constexpr uint64_t kGroupSlice = 2'000;      // before the other lanes of the warp have theirs
constexpr std::byte kUnwritten{0xcd};        // memory and registers before the first write
constexpr uint64_t kCtaSlice = 4'000'000;    // before other CTAs may be what it waits for
constexpr uint64_t kMostPatience = 1 << 17;  // idle polls before the same

// --- one warp

// Of lanes at one pc there is one ready group.
void add_ready(std::vector<Group>& groups, uint32_t pc, uint32_t mask) {
  if (mask == 0) return;
  for (Group& group : groups) {
    if (group.state == Group::State::ready && group.pc == pc) {
      group.mask |= mask;
      return;
    }
  }
  groups.push_back({.pc = pc, .mask = mask});
}

class WarpRunner {
 public:
  WarpRunner(Cta& cta, Warp& warp) : cta_(cta), warp_(warp), code_(cta.launch->program->code) {}

  // Until nothing can go on here or the slice is used up. Returns whether anything was executed.
  bool run(uint64_t slice);

 private:
  size_t pick() const;
  void run_group(size_t index);
  void branch(Group& group, uint32_t taken, uint32_t target);
  void branch_index(Group& group, const Instruction& i, uint32_t mask);
  void exit_lanes(Group& group, uint32_t mask);
  bool rendezvous(Group& group, const Instruction& i, uint32_t mask);
  void release_rendezvous();
  void arrive(Group& group, const Instruction& i, uint32_t mask);
  void enter_barrier(uint32_t id);
  void count_arrival(Barrier& barrier, uint32_t id, const Group& group);
  const uint32_t* members(const Instruction& i) const { return warp_.row<uint32_t>(i.rows[0]); }

  Cta& cta_;
  Warp& warp_;
  const std::vector<Instruction>& code_;
  bool rotates_ = false;  // lanes that spin have used up their slice
  uint32_t last_pc_ = 0;
};

void open_barrier(Cta& cta, uint32_t id);

// The ready group with the lowest pc; after a spin the next one above it.
size_t WarpRunner::pick() const {
  size_t best = SIZE_MAX;
  const auto key = [&](const Group& group) {
    const bool later = rotates_ && group.pc <= last_pc_;
    return std::pair(later, group.pc);
  };
  for (size_t g = 0; g < warp_.groups.size(); ++g) {
    const Group& group = warp_.groups[g];
    if (group.state != Group::State::ready) continue;
    if (best == SIZE_MAX || key(group) < key(warp_.groups[best])) best = g;
  }
  return best;
}

bool WarpRunner::run(uint64_t slice) {
  const uint64_t begin = warp_.instructions;
  size_t pauses = 0;  // of groups, one after the other
  while (warp_.instructions - begin < slice) {
    const size_t index = pick();
    if (index == SIZE_MAX) break;
    const size_t groups = warp_.groups.size();
    warp_.slice_end = groups == 1 ? begin + slice : warp_.instructions + kGroupSlice;
    run_group(index);
    rotates_ = groups != 1 && warp_.instructions >= warp_.slice_end;
    pauses = std::exchange(warp_.pauses, false) ? pauses + 1 : 0;
    if (pauses >= groups) break;
  }
  return warp_.instructions != begin;
}

// Runs one group until it comes apart, ends, waits, reaches the pc of another or used its slice.
void WarpRunner::run_group(size_t index) {
  Group group = warp_.groups[index];
  warp_.groups.erase(warp_.groups.begin() + static_cast<std::ptrdiff_t>(index));
  uint32_t meeting = UINT32_MAX;  // the next pc where others wait to be joined
  for (const Group& other : warp_.groups) {
    if (other.state == Group::State::ready && other.pc >= group.pc)
      meeting = std::min(meeting, other.pc);
  }
  last_pc_ = group.pc;
  while (true) {
    const Instruction& i = code_[group.pc];
    uint32_t mask = group.mask;
    if (i.has_guard) {
      const uint32_t guard = warp_.predicate(i.guard);
      mask &= i.guard_negated ? ~guard : guard;
    }
    warp_.current = &i;
    ++warp_.instructions;
    switch (i.flow) {
      case Flow::simple:
        if (mask != 0) i.handler(warp_, i, mask);
        ++group.pc;
        break;
      case Flow::branch:
        if (mask == group.mask) {
          group.pc = i.target;
        } else if (mask == 0) {
          ++group.pc;
        } else {
          branch(group, mask, i.target);
          return;
        }
        break;
      case Flow::branch_index:
        branch_index(group, i, mask);
        return;
      case Flow::exit:
        exit_lanes(group, mask);
        return;
      case Flow::rendezvous:
        if (mask == 0) {
          ++group.pc;
        } else if (!rendezvous(group, i, mask)) {
          return;
        }
        break;
      case Flow::barrier:
        if (mask == 0) {
          ++group.pc;
          break;
        }
        arrive(group, i, mask);
        return;
      case Flow::pause:
        ++group.pc;
        if (mask == 0) break;
        cta_.idle_polls += kIdlePollsOfSleep;
        warp_.pause();
        break;
    }
    if (group.pc >= meeting || warp_.instructions >= warp_.slice_end) {
      last_pc_ = group.pc;
      add_ready(warp_.groups, group.pc, group.mask);
      return;
    }
  }
}

void WarpRunner::branch(Group& group, uint32_t taken, uint32_t target) {
  add_ready(warp_.groups, target, taken);
  add_ready(warp_.groups, group.pc + 1, group.mask & ~taken);
}

void WarpRunner::branch_index(Group& group, const Instruction& i, uint32_t mask) {
  const std::vector<uint32_t>& table = cta_.launch->program->tables[i.target];
  const uint32_t* const index = warp_.row<uint32_t>(i.rows[0]);
  each_lane(mask, [&](int lane) {
    if (index[lane] >= table.size()) {
      throw Fault(fmt::format("an indexed branch takes entry {} of {}", index[lane], table.size()),
                  lane);
    }
    add_ready(warp_.groups, table[index[lane]], uint32_t{1} << lane);
  });
  add_ready(warp_.groups, group.pc + 1, group.mask & ~mask);
}

void WarpRunner::exit_lanes(Group& group, uint32_t mask) {
  warp_.live &= ~mask;
  cta_.live_threads -= static_cast<uint32_t>(std::popcount(mask));
  add_ready(warp_.groups, group.pc + 1, group.mask & ~mask);
  if (mask == 0) return;
  if (warp_.live == 0) --cta_.live_warps;
  release_rendezvous();
  for (uint32_t id = 0; id < cta_.barriers.size(); ++id) {
    enter_barrier(id);
    open_barrier(cta_, id);
  }
}

// Whether the group goes on at once. If not, its lanes wait for others, or some were let go.
bool WarpRunner::rendezvous(Group& group, const Instruction& i, uint32_t mask) {
  const uint32_t* const member = members(i);
  const uint32_t wanted = member[std::countr_zero(mask)];
  bool uniform = true;
  each_lane(mask, [&](int lane) {
    if ((member[lane] >> lane & 1) == 0) {
      throw Fault(fmt::format("a lane executes it with the member mask {:#010x}, which does not "
                              "name that lane",
                              member[lane]),
                  lane);
    }
    uniform = uniform && member[lane] == wanted;
  });
  if (mask == group.mask && uniform && (wanted & warp_.live & ~mask) == 0) {
    i.handler(warp_, i, mask);
    if (warp_.cta->checker != nullptr && i.synchronises) on_warp_sync(warp_, mask);
    ++group.pc;
    return true;
  }
  add_ready(warp_.groups, group.pc + 1, group.mask & ~mask);
  for (Group& other : warp_.groups) {
    if (other.state == Group::State::at_rendezvous && other.pc == group.pc) {
      other.mask |= mask;
      mask = 0;
      break;
    }
  }
  if (mask != 0)
    warp_.groups.push_back({.pc = group.pc, .mask = mask, .state = Group::State::at_rendezvous});
  release_rendezvous();
  return false;
}

// Lets go every set of waiting lanes whose member mask is complete. Lanes meet at one instruction;
// at bar.warp.sync, which moves no data, at any of its kind.
void WarpRunner::release_rendezvous() {
  for (bool again = true; again;) {
    again = false;
    for (size_t g = 0; g < warp_.groups.size() && !again; ++g) {
      const Group waiting = warp_.groups[g];
      if (waiting.state != Group::State::at_rendezvous) continue;
      const Instruction& i = code_[waiting.pc];
      each_lane(waiting.mask, [&](int first) {
        if (again) return;
        const uint32_t wanted = members(i)[first];
        const auto meets = [&](const Group& other) {
          return other.state == Group::State::at_rendezvous &&
                 (other.pc == waiting.pc || (i.synchronises && code_[other.pc].synchronises));
        };
        uint32_t here = 0;
        for (const Group& other : warp_.groups) {
          if (!meets(other)) continue;
          const uint32_t* const member = members(code_[other.pc]);
          each_lane(other.mask, [&](int lane) {
            if (member[lane] == wanted) here |= uint32_t{1} << lane;
          });
        }
        if ((wanted & warp_.live & ~here) != 0) return;
        again = true;
        warp_.current = &i;
        i.handler(warp_, i, here);
        if (warp_.cta->checker != nullptr && i.synchronises) on_warp_sync(warp_, here);
        std::vector<Group> freed;
        for (Group& other : warp_.groups) {
          if (!meets(other) || (other.mask & here) == 0) continue;
          freed.push_back({.pc = other.pc + 1, .mask = other.mask & here});
          other.mask &= ~here;
        }
        std::erase_if(warp_.groups, [](const Group& group) { return group.mask == 0; });
        for (const Group& group : freed) add_ready(warp_.groups, group.pc, group.mask);
      });
    }
  }
}

void WarpRunner::arrive(Group& group, const Instruction& i, uint32_t mask) {
  const int first = std::countr_zero(mask);
  const uint32_t id = warp_.row<uint32_t>(i.rows[0])[first];
  const uint32_t count = warp_.row<uint32_t>(i.rows[1])[first];
  if (id >= cta_.barriers.size())
    throw Fault(fmt::format("barrier {} does not exist, a CTA has 0 to 15", id), first);
  if (count % kLanes != 0 || count > cta_.warps.size() * kLanes) {
    throw Fault(fmt::format("a barrier of {} threads, expected a multiple of 32 and at most those "
                            "of the CTA",
                            count),
                first);
  }
  add_ready(warp_.groups, group.pc + 1, group.mask & ~mask);
  // Lanes that came apart long before come one after the other: at one pc they are one group.
  const auto same = [&](const Group& other) {
    return other.state == Group::State::entering && other.barrier == id && other.pc == group.pc;
  };
  const auto mates = std::find_if(warp_.groups.begin(), warp_.groups.end(), same);
  if (mates != warp_.groups.end()) {
    mates->mask |= mask;
  } else {
    warp_.groups.push_back({.pc = group.pc,
                            .mask = mask,
                            .state = Group::State::entering,
                            .barrier = static_cast<uint8_t>(id)});
  }
  enter_barrier(id);
  open_barrier(cta_, id);
}

// Counts the warp once all its live lanes have come. Those of bar.arrive then go on.
void WarpRunner::enter_barrier(uint32_t id) {
  const auto enters = [id](const Group& group) {
    return group.state == Group::State::entering && group.barrier == id;
  };
  uint32_t here = 0;
  for (const Group& group : warp_.groups) here |= enters(group) ? group.mask : 0;
  if (here == 0 || (warp_.live & ~here) != 0) return;
  Barrier& barrier = cta_.barriers[id];
  std::vector<Group> freed;
  for (Group& group : warp_.groups) {
    if (!enters(group)) continue;
    count_arrival(barrier, id, group);
    group.state = Group::State::at_barrier;
    if (static_cast<BarrierKind>(code_[group.pc].mode) == BarrierKind::arrive)
      freed.push_back(std::exchange(group, {}));
  }
  barrier.arrived += kLanes;
  if (freed.empty()) return;
  if (cta_.checker != nullptr) on_barrier_arrive(cta_, id, warp_);
  std::erase_if(warp_.groups, [](const Group& group) { return group.mask == 0; });
  for (const Group& group : freed) add_ready(warp_.groups, group.pc + 1, group.mask);
}

void WarpRunner::count_arrival(Barrier& barrier, uint32_t id, const Group& group) {
  const Instruction& i = code_[group.pc];
  const int first = std::countr_zero(group.mask);
  const uint32_t count = warp_.row<uint32_t>(i.rows[1])[first];
  const auto kind = static_cast<BarrierKind>(i.mode);
  if (barrier.lanes == 0) {
    barrier.expected = count;
    barrier.kind = kind;
  } else if (barrier.expected != count) {
    throw Fault(fmt::format("barrier {} is waited for with {} threads and with {}", id,
                            barrier.expected, count),
                first);
  }
  const bool reduces = kind >= BarrierKind::popc || barrier.kind >= BarrierKind::popc;
  if (reduces && kind != barrier.kind) {
    throw Fault(fmt::format("barrier {} is used by a reduction and by something else at the same "
                            "time, which PTX leaves undefined",
                            id),
                first);
  }
  barrier.lanes += static_cast<uint32_t>(std::popcount(group.mask));
  if (reduces)
    barrier.ones += static_cast<uint32_t>(std::popcount(group.mask & warp_.value(i.rows[3])));
}

// --- barriers

void write_reduction(Warp& warp, const Instruction& i, uint32_t mask, const Barrier& barrier) {
  switch (static_cast<BarrierKind>(i.mode)) {
    case BarrierKind::sync:
    case BarrierKind::arrive:
      return;
    case BarrierKind::popc:
      each_lane(mask, [&](int lane) { warp.row<uint32_t>(i.rows[2])[lane] = barrier.ones; });
      return;
    case BarrierKind::all:
    case BarrierKind::any: {
      const bool all = static_cast<BarrierKind>(i.mode) == BarrierKind::all;
      const bool holds = all ? barrier.ones == barrier.lanes : barrier.ones != 0;
      uint32_t& target = warp.predicate(i.rows[2]);
      target = holds ? target | mask : target & ~mask;
    }
  }
}

// Lets all go once enough have arrived.
void open_barrier(Cta& cta, uint32_t id) {
  Barrier& barrier = cta.barriers[id];
  if (barrier.arrived == 0) return;
  const uint32_t expected = barrier.expected != 0 ? barrier.expected : cta.live_warps * kLanes;
  if (barrier.arrived < expected) return;
  const auto waits = [id](const Group& group) {
    return group.state == Group::State::at_barrier && group.barrier == id;
  };
  std::vector<BarrierGroup> parties;
  for (Warp& warp : cta.warps) {
    for (const Group& group : warp.groups) {
      if (!waits(group)) continue;
      parties.push_back({.warp = &warp, .lanes = group.mask, .pc = group.pc});
    }
  }
  const std::vector<Instruction>& code = cta.launch->program->code;
  if (cta.checker != nullptr) on_barrier(cta, id, parties);
  for (const BarrierGroup& party : parties) {
    write_reduction(*party.warp, code[party.pc], party.lanes, barrier);
    add_ready(party.warp->groups, party.pc + 1, party.lanes);
  }
  for (Warp& warp : cta.warps) std::erase_if(warp.groups, waits);
  barrier = {};
}

// --- one CTA

// The memory of one CTA at work, handed from one to the next: fresh pages for each of thousands
// would cost more than running them.
struct Storage {
  std::vector<std::byte> registers, specials, local, shared;
};

// A CTA with all that its warps need; may be put aside and taken up again.
class CtaRun {
 public:
  CtaRun(Launch& launch, uint64_t flat_index, std::unique_ptr<Storage> storage);
  std::unique_ptr<Storage> take_storage();

  enum class End { done, slice_used };
  End run(Clock::time_point deadline);
  Cta& cta() { return cta_; }
  uint64_t instructions() const;
  uint64_t mmas() const;
  std::string describe(const Fault& fault, const SourceLine& source_line) const;

 private:
  void fill_specials(Warp& warp, std::byte* specials);
  [[noreturn]] void fail_stuck();

  Cta cta_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<CtaChecker> checker_;
  Warp* running_ = nullptr;
};

std::unique_ptr<Storage> CtaRun::take_storage() {
  checker_.reset();
  storage_->shared = std::move(cta_.shared);
  return std::move(storage_);
}

CtaRun::CtaRun(Launch& launch, uint64_t flat_index, std::unique_ptr<Storage> storage)
    : storage_(std::move(storage)) {
  const Program& program = *launch.program;
  cta_.launch = &launch;
  cta_.flat_index = flat_index;
  cta_.index = {static_cast<uint32_t>(flat_index % launch.grid.x),
                static_cast<uint32_t>(flat_index / launch.grid.x % launch.grid.y),
                static_cast<uint32_t>(flat_index / launch.grid.x / launch.grid.y)};
  const auto threads = static_cast<uint32_t>(launch.block.count());
  const size_t warps = (threads + kLanes - 1) / kLanes;
  cta_.live_threads = threads;
  cta_.live_warps = static_cast<uint32_t>(warps);
  cta_.warps.resize(warps);
  cta_.shared = std::move(storage_->shared);
  // What is left of another CTA must not look like a result: every CTA finds the same.
  cta_.shared.assign(
      static_cast<size_t>(program.dynamic_shared_offset + launch.dynamic_shared_bytes), kUnwritten);
  storage_->registers.resize(warps * static_cast<size_t>(program.register_bytes));
  storage_->specials.resize(warps * kSpecialBytes);
  storage_->local.assign(warps * kLanes * static_cast<size_t>(program.local_bytes), kUnwritten);
  for (size_t w = 0; w < warps; ++w) {
    Warp& warp = cta_.warps[w];
    warp.cta = &cta_;
    warp.index = static_cast<int>(w);
    const uint32_t left = threads - static_cast<uint32_t>(w) * kLanes;
    warp.live = left >= kLanes ? kAllLanes : (uint32_t{1} << left) - 1;
    warp.groups.push_back({.mask = warp.live});
    warp.local = storage_->local.data() + w * kLanes * static_cast<size_t>(program.local_bytes);
    // The constants are never written: every target is a register or the sink.
    warp.banks = {storage_->registers.data() + w * static_cast<size_t>(program.register_bytes),
                  const_cast<std::byte*>(program.constants.data()),
                  storage_->specials.data() + w * kSpecialBytes};
    fill_specials(warp, warp.banks[2]);
    for (const Program::UnsetRegister& unset : program.unset)
      std::fill_n(warp.banks[0] + unset.offset, unset.bytes, kUnwritten);
  }
  if (launch.checker != nullptr) {
    checker_ = std::make_unique<CtaChecker>(*launch.checker, cta_);
    cta_.checker = checker_.get();
  }
}

void CtaRun::fill_specials(Warp& warp, std::byte* specials) {
  const Launch& launch = *cta_.launch;
  const auto row = [&](Special special) {
    return reinterpret_cast<uint32_t*>(specials + special_offset(special));
  };
  const auto fill = [&](Special special, uint32_t value) {
    std::fill_n(row(special), kLanes, value);
  };
  fill(Special::ntid_x, launch.block.x);
  fill(Special::ntid_y, launch.block.y);
  fill(Special::ntid_z, launch.block.z);
  fill(Special::ctaid_x, cta_.index.x);
  fill(Special::ctaid_y, cta_.index.y);
  fill(Special::ctaid_z, cta_.index.z);
  fill(Special::nctaid_x, launch.grid.x);
  fill(Special::nctaid_y, launch.grid.y);
  fill(Special::nctaid_z, launch.grid.z);
  fill(Special::warpid, static_cast<uint32_t>(warp.index));
  fill(Special::nwarpid, static_cast<uint32_t>(cta_.warps.size()));
  fill(Special::smid, static_cast<uint32_t>(cta_.flat_index % launch.sm_count));
  fill(Special::nsmid, launch.sm_count);
  fill(Special::dynamic_smem_size, static_cast<uint32_t>(launch.dynamic_shared_bytes));
  fill(Special::total_smem_size, static_cast<uint32_t>(cta_.shared.size()));
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t thread = static_cast<uint32_t>(warp.index) * kLanes + lane;
    row(Special::tid_x)[lane] = thread % launch.block.x;
    row(Special::tid_y)[lane] = thread / launch.block.x % launch.block.y;
    row(Special::tid_z)[lane] = thread / launch.block.x / launch.block.y;
    row(Special::laneid)[lane] = lane;
    const uint32_t bit = uint32_t{1} << lane;
    row(Special::lanemask_eq)[lane] = bit;
    row(Special::lanemask_lt)[lane] = bit - 1;
    row(Special::lanemask_le)[lane] = bit | (bit - 1);
    row(Special::lanemask_ge)[lane] = ~(bit - 1);
    row(Special::lanemask_gt)[lane] = ~(bit | (bit - 1));
  }
}

CtaRun::End CtaRun::run(Clock::time_point deadline) {
  const uint64_t begin = instructions();
  while (cta_.live_threads > 0) {
    bool progress = false;
    for (Warp& warp : cta_.warps) {
      if (warp.live == 0) continue;
      running_ = &warp;
      progress = WarpRunner(cta_, warp).run(kWarpSlice) || progress;
    }
    if (!progress && cta_.live_threads > 0) fail_stuck();
    if (cta_.launch->stop.load(std::memory_order_relaxed)) return End::done;
    if (Clock::now() > deadline) {
      throw Fault("the launch did not end in time; this thread was still running");
    }
    if (instructions() - begin > kCtaSlice) return End::slice_used;
    if (cta_.idle_polls >= cta_.patience) {
      // Longer each time, so that a wait for what another host thread runs is no ping-pong.
      cta_.patience = std::min(2 * cta_.patience, kMostPatience);
      cta_.idle_polls = 0;
      return End::slice_used;
    }
  }
  return End::done;
}

uint64_t CtaRun::instructions() const {
  uint64_t sum = 0;
  for (const Warp& warp : cta_.warps) sum += warp.instructions;
  return sum;
}
uint64_t CtaRun::mmas() const {
  uint64_t sum = 0;
  for (const Warp& warp : cta_.warps) sum += warp.mmas;
  return sum;
}

// Nobody can go on: says who waits where.
void CtaRun::fail_stuck() {
  std::string who;
  const Program& program = *cta_.launch->program;
  for (Warp& warp : cta_.warps) {
    for (const Group& group : warp.groups) {
      const Instruction& i = program.code[group.pc];
      const Statement& statement = *program.statements[static_cast<size_t>(i.statement)];
      who += fmt::format("\n  warp {} lanes {:#010x} at {}: {}", warp.index, group.mask,
                         location_text(*program.module, statement), statement.text);
      running_ = &warp;
      warp.current = &i;
      if (who.size() > 2000) break;
    }
  }
  throw Fault("all threads of the block wait for others, which will never come:" + who);
}

std::string CtaRun::describe(const Fault& fault, const SourceLine& source_line) const {
  const Launch& launch = *cta_.launch;
  const Program& program = *launch.program;
  std::string text = fmt::format("{}: {}", program.entry, fault.what_happened);
  if (!fault.where.empty()) text += fmt::format(" ({})", fault.where);
  if (running_ == nullptr || running_->current == nullptr) return text;
  const Statement& statement =
      *program.statements[static_cast<size_t>(running_->current->statement)];
  text += "\n  at " + location_text(*program.module, statement);
  const auto file = program.module->files.find(statement.where.file);
  if (source_line && file != program.module->files.end()) {
    const std::string code = source_line(file->second, statement.where.line);
    const size_t begin = code.find_first_not_of(" \t");
    if (begin != std::string::npos) text += "\n    " + code.substr(begin);
  }
  text += fmt::format("\n  PTX line {}: {}", statement.line, statement.text);
  text += fmt::format("\n  block ({}, {}, {})", cta_.index.x, cta_.index.y, cta_.index.z);
  if (fault.lane >= 0) {
    const uint32_t thread =
        static_cast<uint32_t>(running_->index) * kLanes + static_cast<uint32_t>(fault.lane);
    text += fmt::format(", thread ({}, {}, {})", thread % launch.block.x,
                        thread / launch.block.x % launch.block.y,
                        thread / launch.block.x / launch.block.y);
  } else {
    text += fmt::format(", warp {}", running_->index);
  }
  return text;
}

// --- the grid

class GridRun {
 public:
  GridRun(Launch& launch, const ExecuteOptions& options)
      : launch_(launch), options_(options), deadline_(Clock::now() + options.limit) {}

  ExecuteResult run() {
    const uint64_t ctas = launch_.grid.count();
    unsigned threads = options_.threads > 0 ? static_cast<unsigned>(options_.threads)
                                            : std::max(1u, std::thread::hardware_concurrency());
    // A thread is worth its start only with a few CTAs to run.
    threads = static_cast<unsigned>(std::min<uint64_t>(threads, (ctas + 3) / 4));
    {
      std::vector<std::jthread> helpers;
      helpers.reserve(threads);
      try {
        for (unsigned t = 1; t < threads; ++t) helpers.emplace_back([this] { work(); });
      } catch (const std::system_error&) {
        // The host has no more threads: those that did start do the work.
      }
      work();
    }
    return std::move(result_);
  }

 private:
  // A CTA that was never begun, while there may be one more; else one that was put aside.
  std::unique_ptr<CtaRun> take() {
    std::unique_lock lock(mutex_);
    while (!launch_.stop.load()) {
      if (next_ < launch_.grid.count() && under_way_ < options_.resident_ctas) {
        ++under_way_;
        const uint64_t index = next_++;
        std::unique_ptr<Storage> storage;
        if (free_.empty()) {
          storage = std::make_unique<Storage>();
        } else {
          storage = std::move(free_.back());
          free_.pop_back();
        }
        lock.unlock();
        return std::make_unique<CtaRun>(launch_, index, std::move(storage));
      }
      if (!aside_.empty()) {
        std::unique_ptr<CtaRun> cta = std::move(aside_.front());
        aside_.pop_front();
        return cta;
      }
      if (under_way_ == 0) return nullptr;
      changed_.wait(lock);
    }
    return nullptr;
  }

  void finish(CtaRun& cta, std::string fault) {
    std::unique_ptr<Storage> storage = cta.take_storage();
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(storage));
    --under_way_;
    result_.instructions += cta.instructions();
    result_.mmas += cta.mmas();
    if (!fault.empty()) {
      if (result_.fault.empty()) result_.fault = std::move(fault);
      launch_.stop.store(true);
    }
    changed_.notify_all();
  }

  // Nothing may leave it: it is all that a host thread does. The host's own rounding and flushing
  // would change results.
  void work() noexcept {
    const FloatMode mode({});
    try {
      while (std::unique_ptr<CtaRun> cta = take()) run_one(std::move(cta));
    } catch (const std::exception& error) {
      stop(error.what());
    } catch (...) {
      stop("an unknown exception");
    }
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  void run_one(std::unique_ptr<CtaRun> cta) {
    std::string fault;
    try {
      if (cta->run(deadline_) == CtaRun::End::slice_used) {
        const std::lock_guard lock(mutex_);
        aside_.push_back(std::move(cta));
        changed_.notify_all();
        return;
      }
    } catch (const Fault& what) {
      fault = cta->describe(what, options_.source_line);
    } catch (const std::exception& error) {
      fault = cta->describe(Fault(fmt::format("the simulator failed: {}", error.what())),
                            options_.source_line);
    }
    finish(*cta, std::move(fault));
  }

  // After what is no fault of the kernel, such as memory that the host does not have.
  void stop(const char* why) noexcept {
    launch_.stop.store(true);
    const std::lock_guard lock(mutex_);
    if (!result_.fault.empty()) return;
    try {
      result_.fault =
          fmt::format("{}: the simulator could not run it: {}", launch_.program->entry, why);
    } catch (...) {
      result_.fault = "out of memory";  // short enough to need none
    }
  }

  Launch& launch_;
  const ExecuteOptions& options_;
  const Clock::time_point deadline_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0;
  uint64_t under_way_ = 0;
  std::deque<std::unique_ptr<CtaRun>> aside_;
  std::vector<std::unique_ptr<Storage>> free_;
  ExecuteResult result_;
};

}  // namespace

ExecuteResult execute(Launch& launch, const ExecuteOptions& options) {
  if (launch.grid.count() == 0) return {};
  return GridRun(launch, options).run();
}

void note_progress(Warp& warp, Space space) {
  warp.idle_polls = 0;
  if (space == Space::shared) return;
  warp.cta->idle_polls = 0;
  warp.cta->patience = kIdlePollsOfTurn;
}

void note_poll(Warp& warp, const Instruction& instruction, uint32_t mask, Space space,
               uint64_t found) {
  const uint64_t key = static_cast<uint64_t>(instruction.statement) << 32 | mask;
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  Warp::Poll& poll = warp.polls[key * kGolden >> 61];
  if (poll.key != key) {
    poll = {.key = key, .found = found};
  } else if (poll.found != found) {
    poll.found = found;
    note_progress(warp, space);
  } else {
    if (space != Space::shared) ++warp.cta->idle_polls;
    if (++warp.idle_polls % kIdlePollsOfTurn == 0) warp.pause();
  }
}

std::string location_text(const Module& module, const Statement& statement) {
  const SourceLocation& where = statement.where;
  if (where.file == 0) return "an unknown source line";
  const auto file_name = [&](int file) {
    const auto found = module.files.find(file);
    return found != module.files.end() ? found->second : std::string("?");
  };
  std::string text = fmt::format("{}:{}", file_name(where.file), where.line);
  if (where.caller_file != 0) {
    text += fmt::format(", inlined into {}:{}", file_name(where.caller_file), where.caller_line);
  }
  return text;
}

}  // namespace kiln::runtime::sim
