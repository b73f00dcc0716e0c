// Instructions that reach memory: ld, ldu, st, atom, red, cp.async, ldmatrix, fences, prefetches,
// and those on addresses: cvta, isspacep, createpolicy.
//
// Every access first finds where its lanes are on the host, which checks bounds and alignment and
// never lets the kernel touch anything else; then it tells the checker, if there is one; then it
// moves data. Lanes that lie side by side, or all at one address, are one range for all of that.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <type_traits>

#include "runtime/sim/arena.h"
#include "runtime/sim/binder.h"
#include "runtime/sim/checker.h"
#include "runtime/sim/numbers.h"
#include "runtime/sim/warp.h"

namespace kiln::runtime::sim {
namespace {

// Instruction::target of an access.
constexpr uint32_t kBeyondCta = 1;     // a strong access whose scope has other CTAs
constexpr uint32_t kReadOnlyPath = 2;  // .nc
constexpr uint32_t kHasResult = 4;     // of an atomic: the last row
constexpr uint32_t kOfCall = 8;  // .param of a call, which the device runtime may have written

// --- where lanes are

enum class Shape : uint8_t { scattered, contiguous, uniform };

// Lanes of one space. Unless scattered, the first lane stands for all.
struct Places {
  Space space = Space::global;
  Shape shape = Shape::scattered;
  int first = 0;
  std::array<std::byte*, kLanes> at;     // not initialised: written on every access
  std::array<uint64_t, kLanes> address;  // in `space`

  std::byte* of(int lane, int bytes) const {
    if (shape == Shape::scattered) return at[static_cast<size_t>(lane)];
    return at[static_cast<size_t>(first)] + (shape == Shape::contiguous ? lane * bytes : 0);
  }
  std::byte* begin() const { return at[static_cast<size_t>(first)]; }
};

// An operand [row + offset].
struct AddressRow {
  Row row;
  bool narrow = false;
  int64_t offset = 0;
};
AddressRow address_row(const Instruction& i, size_t index = 0) {
  return {.row = i.rows[index], .narrow = i.narrow_address, .offset = i.offset};
}

template <class Body>
inline void for_lanes(uint32_t mask, Body body) {
  if (mask == kAllLanes) {
    for (int lane = 0; lane < kLanes; ++lane) body(lane);
  } else {
    each_lane(mask, body);
  }
}

// Whether every lane is `step` behind the one before it.
template <class Base>
bool has_step(const Base* base, Base step) {
  constexpr int kVectorised = 28;
  Base apart = 0;
  for (int l = 0; l < kVectorised; ++l) apart |= (base[l + 1] - base[l]) ^ step;
  for (int l = kVectorised; l < kLanes - 1; ++l) apart |= (base[l + 1] - base[l]) ^ step;
  return apart == 0;
}

template <class Base>
Shape shape_of(const Base* base, Base bytes) {
  const Base step = base[1] - base[0];
  if ((step != 0 && step != bytes) || base[kLanes - 1] - base[0] != step * (kLanes - 1) ||
      !has_step(base, step))
    return Shape::scattered;
  return step == 0 ? Shape::uniform : Shape::contiguous;
}

uint64_t window_of(uint64_t address) { return address & kWindowMask; }
Space space_of_window(uint64_t window) {
  switch (window) {
    case kSharedWindow:
      return Space::shared;
    case kLocalWindow:
      return Space::local;
    case kParamWindow:
      return Space::param;
    default:
      return Space::global;
  }
}

[[noreturn]] [[gnu::noinline]] void fail_alignment(const Warp& warp, Space space, int lane,
                                                   uint64_t address, int bytes) {
  const Checker* const checker = warp.cta->launch->checker;
  throw Fault(fmt::format("an access of {} bytes at the address {:#x}, which is not a multiple of "
                          "{}",
                          bytes, address, bytes),
              lane,
              space == Space::global && checker != nullptr ? checker->place_text(address) : "");
}

[[noreturn]] [[gnu::noinline]] void fail_bounds(const Warp& warp, Space space, int lane,
                                                uint64_t address, int bytes) {
  const Launch& launch = *warp.cta->launch;
  const auto small = [&](uint64_t size, const char* owner) {
    throw Fault(fmt::format("an access of {} bytes at {:#x} of {} memory, of which {} has {} bytes",
                            bytes, address, space_name(space), owner, size),
                lane);
  };
  if (space == Space::shared) small(warp.cta->shared.size(), "the block");
  if (space == Space::local) small(static_cast<uint64_t>(launch.program->local_bytes), "a thread");
  if (space == Space::param) small(launch.params.size(), "the kernel");
  std::string where = launch.checker != nullptr ? launch.checker->place_text(address) : "";
  const Allocation near = launch.arena->nearest(address);
  if (where.empty() && near.bytes != 0) {
    where = address < near.begin ? fmt::format("{} bytes before an allocation of {} bytes",
                                               near.begin - address, near.bytes)
                                 : fmt::format("offset {} of an allocation of {} bytes",
                                               address - near.begin, near.bytes);
  }
  throw Fault(fmt::format("an access of {} bytes at the address {:#x}, outside of every allocation",
                          bytes, address),
              lane, where);
}

// Where `count` bytes of a lane are, or nullptr.
std::byte* host_of(const Warp& warp, Space space, int lane, uint64_t address, uint64_t count) {
  const Launch& launch = *warp.cta->launch;
  std::byte* base = nullptr;
  uint64_t size = 0;
  switch (space) {
    case Space::shared:
      base = warp.cta->shared.data();
      size = warp.cta->shared.size();
      break;
    case Space::local:
      size = static_cast<uint64_t>(launch.program->local_bytes);
      base = warp.local + static_cast<uint64_t>(lane) * size;
      break;
    case Space::param:
      base = const_cast<std::byte*>(launch.params.data());
      size = launch.params.size();
      break;
    default: {
      const bool is_there = launch.arena->contains(address, count);
      return is_there ? reinterpret_cast<std::byte*>(address) : nullptr;
    }
  }
  return address <= size && count <= size - address ? base + address : nullptr;
}

std::byte* require_host(const Warp& warp, Space space, int lane, uint64_t address, int bytes) {
  if (address % static_cast<uint64_t>(bytes) != 0)
    fail_alignment(warp, space, lane, address, bytes);
  std::byte* const at = host_of(warp, space, lane, address, static_cast<uint64_t>(bytes));
  if (at == nullptr) fail_bounds(warp, space, lane, address, bytes);
  return at;
}

uint64_t lane_address(const Warp& warp, const AddressRow& operand, int lane) {
  if (operand.narrow)
    return warp.row<const uint32_t>(operand.row)[lane] + static_cast<uint32_t>(operand.offset);
  return warp.row<const uint64_t>(operand.row)[lane] + static_cast<uint64_t>(operand.offset);
}

// What lanes share: shared memory, the parameters, or one allocation.
struct Extent {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  uint64_t host = 0;  // where `begin` is; an integer, since offsets are checked later
};

Extent extent_of(const Warp& warp, Space space, uint64_t address) {
  const Launch& launch = *warp.cta->launch;
  const auto of_bytes = [](std::span<const std::byte> bytes) {
    return Extent{.bytes = bytes.size(), .host = reinterpret_cast<uint64_t>(bytes.data())};
  };
  if (space == Space::shared) return of_bytes(warp.cta->shared);
  if (space == Space::param) return of_bytes(launch.params);
  const Allocation found = launch.arena->find(address);
  return {.begin = found.begin, .bytes = found.bytes, .host = found.begin};
}

void locate_scattered(const Warp& warp, uint32_t mask, int bytes, Places& places) {
  if (places.space == Space::local) {
    each_lane(mask, [&](int lane) {
      const auto l = static_cast<size_t>(lane);
      places.at[l] = require_host(warp, places.space, lane, places.address[l], bytes);
    });
    return;
  }
  const auto count = static_cast<uint64_t>(bytes);
  const uint64_t first = places.address[static_cast<size_t>(places.first)];
  const Extent extent = extent_of(warp, places.space, first);
  const uint64_t last = extent.bytes - count;  // where the last one may begin
  uint64_t wrong = extent.bytes < count ? 1 : 0;
  for_lanes(mask, [&](int lane) {
    const auto l = static_cast<size_t>(lane);
    const uint64_t offset = places.address[l] - extent.begin;
    wrong |= (places.address[l] & (count - 1)) | static_cast<uint64_t>(offset > last);
    places.at[l] = reinterpret_cast<std::byte*>(extent.host + offset);
  });
  if (wrong == 0) return;
  each_lane(mask, [&](int lane) {  // in several allocations, or outside
    const auto l = static_cast<size_t>(lane);
    places.at[l] = require_host(warp, places.space, lane, places.address[l], bytes);
  });
}

void lane_addresses(const Warp& warp, const AddressRow& operand, uint32_t mask,
                    std::array<uint64_t, kLanes>& addresses) {
  if (operand.narrow) {
    const auto* const base = warp.row<const uint32_t>(operand.row);
    const auto offset = static_cast<uint32_t>(operand.offset);
    for_lanes(mask, [&](int l) { addresses[static_cast<size_t>(l)] = base[l] + offset; });
  } else {
    const auto* const base = warp.row<const uint64_t>(operand.row);
    const auto offset = static_cast<uint64_t>(operand.offset);
    for_lanes(mask, [&](int l) { addresses[static_cast<size_t>(l)] = base[l] + offset; });
  }
}

// Finds the lanes of `mask` whose address lies in the same space as that of the first one, and says
// which these are: with generic addresses there may be others. Throws Fault for what is outside or
// misaligned. Constants are in the arena, like everything global.
uint32_t locate(const Warp& warp, const AddressRow& operand, Space space, uint32_t mask, int bytes,
                Places& places) {
  const int first = std::countr_zero(mask);
  uint64_t begin = lane_address(warp, operand, first);
  uint64_t window = 0;
  places.first = first;
  places.space = space == Space::constant ? Space::global : space;
  if (space == Space::generic) {
    window = window_of(begin);
    places.space = space_of_window(window);
    begin -= places.space == Space::global ? 0 : window;
  }
  places.shape = Shape::scattered;
  const bool by_lane = places.space == Space::local;  // each has a memory of its own
  if (mask == kAllLanes && !by_lane) {
    places.shape =
        operand.narrow
            ? shape_of(warp.row<const uint32_t>(operand.row), static_cast<uint32_t>(bytes))
            : shape_of(warp.row<const uint64_t>(operand.row), static_cast<uint64_t>(bytes));
  }
  if (places.shape != Shape::scattered) {
    const auto total =
        static_cast<uint64_t>(bytes) * (places.shape == Shape::contiguous ? kLanes : 1);
    std::byte* const at = host_of(warp, places.space, first, begin, total);
    if (at != nullptr && begin % static_cast<uint64_t>(bytes) == 0) {
      places.at[static_cast<size_t>(first)] = at;
      places.address[static_cast<size_t>(first)] = begin;
      return mask;
    }
    places.shape = Shape::scattered;  // and find out who is outside
  }
  uint32_t here = mask;
  lane_addresses(warp, operand, mask, places.address);
  if (space == Space::generic) {
    each_lane(mask, [&](int lane) {
      uint64_t& address = places.address[static_cast<size_t>(lane)];
      if (space_of_window(window_of(address)) != places.space) here &= ~(uint32_t{1} << lane);
      if (places.space != Space::global) address &= ~kWindowMask;
    });
  }
  locate_scattered(warp, here, bytes, places);
  return here;
}

// --- what the checker is told

template <class Body>
void each_run(const Places& places, uint32_t mask, int bytes, Body body) {
  const auto address = [&](int lane) { return places.address[static_cast<size_t>(lane)]; };
  if (places.shape == Shape::contiguous) {
    body(Run{.lanes = kLanes, .bytes = bytes, .address = address(0)});
    return;
  }
  if (places.shape == Shape::uniform) {
    // Two readers are all that the checker keeps for a place in shared memory.
    for (int l = 0; l < (places.space == Space::shared ? 2 : 1); ++l)
      body(Run{.first_lane = places.first + l, .bytes = bytes, .address = address(places.first)});
    return;
  }
  while (mask != 0) {
    Run run{.first_lane = std::countr_zero(mask), .bytes = bytes};
    run.address = address(run.first_lane);
    mask &= mask - 1;
    for (int lane = run.first_lane + 1;
         lane < kLanes && (mask >> lane & 1) != 0 &&
         address(lane) == address(lane - 1) + static_cast<uint64_t>(bytes);
         ++lane) {
      ++run.lanes;
      mask &= mask - 1;
    }
    body(run);
  }
}

Access access_of(const Instruction& i, Space space, AccessKind kind) {
  const bool beyond = (i.target & kBeyondCta) != 0;
  return {.kind = kind,
          .strong = i.order != CacheOrder::weak && (space == Space::shared || beyond),
          .read_only_path = (i.target & kReadOnlyPath) != 0};
}

void check_reads(const Warp& warp, const Instruction& i, const Places& places, uint32_t mask,
                 int bytes) {
  CtaChecker& checker = *warp.cta->checker;
  const Access access = access_of(i, places.space, AccessKind::read);
  switch (places.space) {
    case Space::global:
      if (i.space == Space::constant) return;  // made and filled by the module
      each_run(places, mask, bytes, [&](const Run& run) { checker.global(warp, i, run, access); });
      return;
    case Space::shared:
      each_run(places, mask, bytes,
               [&](const Run& run) { checker.shared(warp, i, run, access, nullptr); });
      return;
    case Space::local:
      if ((i.target & kOfCall) != 0) return;
      each_lane(mask, [&](int lane) {
        checker.local(warp, i, lane, places.address[static_cast<size_t>(lane)], bytes,
                      AccessKind::read);
      });
      return;
    default:
      return;
  }
}

// One run of a write, or an atomic on the place of one lane.
void check_write(const Warp& warp, const Instruction& i, Space space, const Run& run,
                 AccessKind kind, const std::byte* values) {
  CtaChecker& checker = *warp.cta->checker;
  if (space == Space::global) {
    checker.global(warp, i, run, access_of(i, space, kind));
  } else if (space == Space::shared) {
    checker.shared(warp, i, run, access_of(i, space, kind), values);
  } else if (space == Space::local) {
    checker.local(warp, i, run.first_lane, run.address, run.bytes, kind);
  }
}

// Strong accesses carry order to other threads: what they release is known before, what they
// acquire after the access itself.
template <class Step>
void each_sync_address(const Warp& warp, const Instruction& i, const Places& places, uint32_t mask,
                       int bytes, Step step) {
  if (warp.cta->checker == nullptr || i.order == CacheOrder::weak) return;
  if (places.space != Space::shared &&
      (places.space != Space::global || (i.target & kBeyondCta) == 0)) {
    return;
  }
  if (places.shape == Shape::uniform) mask = uint32_t{1} << places.first;
  each_lane(mask, [&](int lane) {
    const uint64_t address =
        places.shape == Shape::contiguous
            ? places.address[0] + static_cast<uint64_t>(lane) * static_cast<uint64_t>(bytes)
            : places.address[static_cast<size_t>(lane)];
    step(*warp.cta->checker, address);
  });
}
void tell_release(const Warp& warp, const Instruction& i, const Places& places, uint32_t mask,
                  int bytes) {
  each_sync_address(warp, i, places, mask, bytes, [&](CtaChecker& checker, uint64_t address) {
    checker.release(warp, places.space, address, i.order);
  });
}
void tell_acquire(const Warp& warp, const Instruction& i, const Places& places, uint32_t mask,
                  int bytes) {
  each_sync_address(warp, i, places, mask, bytes, [&](CtaChecker& checker, uint64_t address) {
    checker.acquire(warp, places.space, address, i.order);
  });
}

// For what polls: addresses and values of lanes in one number.
uint64_t digest(uint64_t so_far, uint64_t value) { return so_far * 0x100000001b3 + value; }

// --- ld and st

enum class Strength : uint8_t { weak, strong };

// Strong accesses are acquires and releases on the host, so that its compiler and its race detector
// see the order that the kernel makes with fences.
template <class Memory, Strength strength>
Memory read_element(const std::byte* at) {
  if constexpr (strength == Strength::strong) {
    return __atomic_load_n(reinterpret_cast<const Memory*>(at), __ATOMIC_ACQUIRE);
  } else {
    Memory value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
}
template <class Memory, Strength strength>
void write_element(std::byte* at, Memory value) {
  if constexpr (strength == Strength::strong) {
    __atomic_store_n(reinterpret_cast<Memory*>(at), value, __ATOMIC_RELEASE);
  } else {
    std::memcpy(at, &value, sizeof value);
  }
}

template <class Words, int elements>
std::array<Words*, elements> data_rows(const Warp& warp, const Instruction& i) {
  std::array<Words*, elements> rows;
  for (size_t e = 0; e < elements; ++e) rows[e] = warp.row<Words>(i.rows[e + 1]);
  return rows;
}

// From elements of type Memory into registers as wide as Register; a signed Memory is extended.
template <class Memory, class Register, int elements, Strength strength>
void load(Warp& warp, const Instruction& i, uint32_t mask) {
  constexpr int kBytes = sizeof(Memory) * elements;
  using Words = Word<Register>;
  const auto rows = data_rows<Words, elements>(warp, i);
  const auto load_lane = [&](const std::byte* from, int lane) {
    for (size_t e = 0; e < elements; ++e) {
      const Memory value = read_element<Memory, strength>(from + e * sizeof(Memory));
      rows[e][lane] = static_cast<Register>(value);
    }
  };
  while (mask != 0) {
    Places places;
    const uint32_t here = locate(warp, address_row(i), i.space, mask, kBytes, places);
    mask &= ~here;
    if (warp.cta->checker != nullptr) check_reads(warp, i, places, here, kBytes);
    if (places.shape == Shape::contiguous) {
      const std::byte* const from = places.begin();
      for (int l = 0; l < kLanes; ++l) load_lane(from + l * kBytes, l);
    } else if (places.shape == Shape::uniform) {
      const std::byte* const from = places.begin();
      for (size_t e = 0; e < elements; ++e) {
        const Memory value = read_element<Memory, strength>(from + e * sizeof(Memory));
        std::fill_n(rows[e], kLanes, static_cast<Register>(value));
      }
    } else {
      for_lanes(here, [&](int l) { load_lane(places.at[static_cast<size_t>(l)], l); });
    }
    if constexpr (strength == Strength::strong) {
      tell_acquire(warp, i, places, here, kBytes);
      uint64_t found = places.address[static_cast<size_t>(places.first)];
      each_lane(here, [&](int lane) {
        for (const Words* const row : rows) found = digest(found, row[lane]);
      });
      note_poll(warp, i, here, places.space, found);
    }
  }
}

template <class Memory, class Register, int elements, Strength strength>
void store(Warp& warp, const Instruction& i, uint32_t mask) {
  constexpr int kBytes = sizeof(Memory) * elements;
  using Words = Word<Register>;
  const auto rows = data_rows<Words, elements>(warp, i);
  const auto store_lane = [&](std::byte* to, int lane) {
    for (size_t e = 0; e < elements; ++e)
      write_element<Memory, strength>(to + e * sizeof(Memory), static_cast<Memory>(rows[e][lane]));
  };
  while (mask != 0) {
    Places places;
    const uint32_t here = locate(warp, address_row(i), i.space, mask, kBytes, places);
    mask &= ~here;
    if (places.space == Space::param)
      throw Fault("the kernel writes its own parameters", places.first);
    if constexpr (strength == Strength::strong) tell_release(warp, i, places, here, kBytes);
    if (warp.cta->checker == nullptr) {
      if (places.shape == Shape::contiguous) {
        std::byte* const to = places.begin();
        for (int l = 0; l < kLanes; ++l) store_lane(to + l * kBytes, l);
      } else {
        for_lanes(here, [&](int l) { store_lane(places.of(l, kBytes), l); });
      }
      continue;
    }
    alignas(16) std::array<std::byte, size_t{kLanes} * kBytes> values;
    for_lanes(here, [&](int l) { store_lane(values.data() + l * kBytes, l); });
    // Run by run, so that the checker sees what an earlier lane wrote to the same place.
    const auto store_run = [&](const Run& run, int lane) {
      const std::byte* const from = values.data() + lane * kBytes;
      check_write(warp, i, places.space, run, AccessKind::write, from);
      for (int l = lane; l < lane + run.lanes; ++l) store_lane(places.of(l, kBytes), l);
    };
    if (places.shape == Shape::uniform) {
      each_lane(here, [&](int l) {
        const uint64_t address = places.address[static_cast<size_t>(places.first)];
        store_run({.first_lane = l, .bytes = kBytes, .address = address}, l);
      });
    } else if (places.space == Space::local) {
      each_lane(here, [&](int l) {
        const uint64_t address = places.address[static_cast<size_t>(l)];
        store_run({.first_lane = l, .bytes = kBytes, .address = address}, l);
      });
    } else {
      each_run(places, here, kBytes, [&](const Run& run) { store_run(run, run.first_lane); });
    }
  }
}

template <template <class, class, int, Strength> class Access_, class Memory, class Register,
          Strength strength>
Handler by_elements(int elements) {
  switch (elements) {
    case 1:
      return Access_<Memory, Register, 1, strength>::run;
    case 2:
      return Access_<Memory, Register, 2, strength>::run;
    case 4:
      return sizeof(Memory) <= 4 ? Access_<Memory, Register, 4, strength>::run : nullptr;
    default:
      return nullptr;
  }
}
template <class Memory, class Register, int elements, Strength strength>
struct Load {
  static void run(Warp& warp, const Instruction& i, uint32_t mask) {
    load<Memory, Register, elements, strength>(warp, i, mask);
  }
};
template <class Memory, class Register, int elements, Strength strength>
struct Store {
  static void run(Warp& warp, const Instruction& i, uint32_t mask) {
    store<Memory, Register, elements, strength>(warp, i, mask);
  }
};

template <template <class, class, int, Strength> class Access_, class Memory, class Register>
Handler by_strength(const Instruction& i) {
  return i.order == CacheOrder::weak
             ? by_elements<Access_, Memory, Register, Strength::weak>(i.elements)
             : by_elements<Access_, Memory, Register, Strength::strong>(i.elements);
}

template <template <class, class, int, Strength> class Access_>
Handler by_size(const Instruction& i) {
  switch (i.element_bytes) {
    case 1:
      return i.wide_rows ? by_strength<Access_, uint8_t, uint64_t>(i)
                         : by_strength<Access_, uint8_t, uint32_t>(i);
    case 2:
      return i.wide_rows ? by_strength<Access_, uint16_t, uint64_t>(i)
                         : by_strength<Access_, uint16_t, uint32_t>(i);
    case 4:
      return i.wide_rows ? by_strength<Access_, uint32_t, uint64_t>(i)
                         : by_strength<Access_, uint32_t, uint32_t>(i);
    case 8:
      return by_strength<Access_, uint64_t, uint64_t>(i);
    default:
      return nullptr;
  }
}

Handler signed_load(const Instruction& i, RegisterClass kind) {
  switch (i.element_bytes) {
    case 1:
      if (i.wide_rows) return by_strength<Load, int8_t, uint64_t>(i);
      return kind == RegisterClass::bits16 ? by_strength<Load, int8_t, uint16_t>(i)
                                           : by_strength<Load, int8_t, uint32_t>(i);
    case 2:
      if (i.wide_rows) return by_strength<Load, int16_t, uint64_t>(i);
      return kind == RegisterClass::bits16 ? by_strength<Load, uint16_t, uint32_t>(i)
                                           : by_strength<Load, int16_t, uint32_t>(i);
    case 4:
      return i.wide_rows ? by_strength<Load, int32_t, uint64_t>(i)
                         : by_strength<Load, uint32_t, uint32_t>(i);
    default:
      return by_strength<Load, uint64_t, uint64_t>(i);
  }
}

// --- parts of names

Space take_space(Binder& binder) {
  if (binder.take("global")) return Space::global;
  if (binder.take("shared") || binder.take("shared::cta")) return Space::shared;
  if (binder.take("local")) return Space::local;
  if (binder.take("const")) return Space::constant;
  if (binder.take("param") || binder.take("param::entry") || binder.take("param::func"))
    return Space::param;
  return Space::generic;
}

// .cta keeps an access from being strong for other CTAs. Without a scope: `without`.
void take_scope(Binder& binder, uint32_t without) {
  uint32_t beyond = without;
  if (binder.take("cta")) beyond = 0;
  if (binder.take("gpu") || binder.take("sys") || binder.take("gl")) beyond = kBeyondCta;
  binder.instruction().target |= beyond;
}

void take_order(Binder& binder, CacheOrder otherwise) {
  CacheOrder order = otherwise;
  if (binder.take("relaxed")) order = CacheOrder::relaxed;
  if (binder.take("acquire")) order = CacheOrder::acquire;
  if (binder.take("release")) order = CacheOrder::release;
  if (binder.take("acq_rel")) order = CacheOrder::acquire_release;
  binder.instruction().order = order;
}

// Hints to caches change no result. Returns whether a cache policy is the last operand.
bool take_cache_hints(Binder& binder) {
  for (const std::string_view hint :
       {"ca", "cg", "cs", "cv", "lu", "wb", "wt", "L1::evict_normal", "L1::evict_unchanged",
        "L1::evict_first", "L1::evict_last", "L1::no_allocate", "L2::evict_normal",
        "L2::evict_first", "L2::evict_last", "L2::64B", "L2::128B", "L2::256B"}) {
    binder.take(hint);
  }
  return binder.take("L2::cache_hint");
}

int take_vector(Binder& binder) {
  if (binder.take("v2")) return 2;
  if (binder.take("v4")) return 4;
  return 1;
}

bool bind_access(Binder& binder) {
  const bool is_load = binder.op() != "st";
  Instruction& i = binder.instruction();
  const bool is_volatile = binder.take("volatile");
  binder.take("weak");
  i.space = take_space(binder);
  take_order(binder, is_volatile ? CacheOrder::relaxed : CacheOrder::weak);
  take_scope(binder, is_volatile ? kBeyondCta : 0);
  if (i.space == Space::param) i.target |= kOfCall;
  if (binder.take("nc")) i.target |= kReadOnlyPath;
  const bool has_policy = take_cache_hints(binder);
  const int elements = take_vector(binder);
  const Type type = binder.require_type();
  if (type == Type::b128 || type == Type::pred)
    binder.unsupported("memory has no elements of this type");
  i.elements = static_cast<uint8_t>(elements);
  i.element_bytes = static_cast<uint8_t>(type_bits(type) / 8);
  i.sign_extends = is_load && is_signed(type);
  if (elements * i.element_bytes > 16) binder.unsupported("it moves more than 16 bytes a thread");
  binder.require_operands(has_policy ? 3 : 2, has_policy ? 3 : 2);

  const Operand& address = binder.operand(is_load ? 1 : 0);
  const Operand& data = binder.operand(is_load ? 0 : 1);
  binder.address(address, i.space);
  const bool is_group = data.kind == Operand::Kind::group;
  const size_t parts = is_group ? data.parts.size() : 1;
  if (parts != static_cast<size_t>(elements))
    binder.unsupported("the number of registers does not fit the vector");
  RegisterClass kind = RegisterClass::bits32;
  bool is_first = true;
  for (size_t e = 0; e < parts; ++e) {
    const Operand& part = is_group ? data.parts[e] : data;
    const bool is_wide = is_load ? binder.wide_target(part, type) : binder.wide_source(part, type);
    if (part.kind == Operand::Kind::sink) continue;
    if (!is_first && is_wide != i.wide_rows)
      binder.unsupported("the registers of a vector have different sizes");
    i.wide_rows = is_wide;
    is_first = false;
    if (part.kind == Operand::Kind::reg) kind = binder.register_class(part);
  }
  i.handler = !is_load         ? by_size<Store>(i)
              : i.sign_extends ? signed_load(i, kind)
                               : by_size<Load>(i);
  if (i.handler == nullptr) binder.unsupported("it has no form for this vector");
  return true;
}

// --- atom and red

// What an atomic makes of the old value and its operands.
struct Exchange {
  template <class T>
  static T apply(T, T b, T, Space) {
    return b;
  }
};
struct CompareAndSwap {
  template <class T>
  static T apply(T old, T b, T c, Space) {
    return old == b ? c : old;
  }
};
struct Add {
  template <class T>
  static T apply(T old, T b, T, Space space) {
    if constexpr (std::is_same_v<T, float>) {
      // In global memory the unit beside the L2 cache does it, which knows no subnormals.
      if (space != Space::global) return canonical(old + b);
      return canonical(flushed(flushed(old) + flushed(b)));
    } else if constexpr (std::is_same_v<T, double>) {
      // There a NaN goes through as it is; elsewhere it is quieted.
      if (space == Space::global && std::isnan(b)) return b;
      if (space == Space::global && std::isnan(old)) return old;
      return canonical(old + b, old, b);
    } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Brain>) {
      return narrow<T>(widen(old) + widen(b));
    } else if constexpr (std::is_same_v<T, Two<Half>> || std::is_same_v<T, Two<Brain>>) {
      return {apply(old.low, b.low, old.low, space), apply(old.high, b.high, old.high, space)};
    } else {
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Unsigned>(old) + static_cast<Unsigned>(b));
    }
  }
};
struct Increment {
  template <class T>
  static T apply(T old, T b, T, Space) {
    return old >= b ? 0 : old + 1;
  }
};
struct Decrement {
  template <class T>
  static T apply(T old, T b, T, Space) {
    return old == 0 || old > b ? b : old - 1;
  }
};
struct Min {
  template <class T>
  static T apply(T old, T b, T, Space) {
    return std::min(old, b);
  }
};
struct Max {
  template <class T>
  static T apply(T old, T b, T, Space) {
    return std::max(old, b);
  }
};
struct And {
  template <class T>
  static T apply(T old, T b, T, Space) {
    return old & b;
  }
};
struct Or {
  template <class T>
  static T apply(T old, T b, T, Space) {
    return old | b;
  }
};
struct Xor {
  template <class T>
  static T apply(T old, T b, T, Space) {
    return old ^ b;
  }
};

template <size_t bytes>
using BitsOf =
    std::conditional_t<bytes == 8, uint64_t, std::conditional_t<bytes == 4, uint32_t, uint16_t>>;

template <class T>
struct Updated {
  T old;
  bool changed;
};
template <class Operation, class T>
Updated<T> update(std::byte* at, T b, T c, Space space) {
  using Bits = BitsOf<sizeof(T)>;
  auto* const place = reinterpret_cast<Bits*>(at);
  Bits old = __atomic_load_n(place, __ATOMIC_RELAXED);
  Bits next;
  while (true) {
    next = std::bit_cast<Bits>(Operation::apply(std::bit_cast<T>(old), b, c, space));
    if (space == Space::shared) {  // which only this host thread touches
      *place = next;
      break;
    }
    if (__atomic_compare_exchange_n(place, &old, next, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
      break;
  }
  return {std::bit_cast<T>(old), next != old};
}

// Rows: address, b, c if there is one, result if there is one.
template <class Operation, class T>
void atomic(Warp& warp, const Instruction& i, uint32_t mask) {
  constexpr int kBytes = sizeof(T);
  constexpr bool kHasThird = std::is_same_v<Operation, CompareAndSwap>;
  const auto* const b = warp.row<const Word<T>>(i.rows[1]);
  const auto* const c = warp.row<const Word<T>>(i.rows[kHasThird ? 2 : 1]);
  auto* const result =
      (i.target & kHasResult) != 0 ? warp.row<Word<T>>(i.rows[kHasThird ? 3 : 2]) : nullptr;
  while (mask != 0) {
    Places places;
    const uint32_t here = locate(warp, address_row(i), i.space, mask, kBytes, places);
    mask &= ~here;
    if (places.space != Space::global && places.space != Space::shared) {
      throw Fault(fmt::format("an atomic access to {} memory", space_name(places.space)),
                  places.first);
    }
    tell_release(warp, i, places, here, kBytes);
    bool changed = false;
    uint64_t found = places.address[static_cast<size_t>(places.first)];
    each_lane(here, [&](int lane) {
      std::byte* const at = places.of(lane, kBytes);
      if (warp.cta->checker != nullptr) {
        const std::byte* const begin =
            places.space == Space::shared ? warp.cta->shared.data() : nullptr;
        const uint64_t address = reinterpret_cast<uint64_t>(at) - reinterpret_cast<uint64_t>(begin);
        check_write(warp, i, places.space,
                    {.first_lane = lane, .bytes = kBytes, .address = address}, AccessKind::atomic,
                    nullptr);
      }
      const auto updated = update<Operation, T>(at, get<T>(b, lane), get<T>(c, lane), places.space);
      changed = changed || updated.changed;
      found = digest(found, std::bit_cast<BitsOf<sizeof(T)>>(updated.old));
      if (result != nullptr) put<T>(result, lane, updated.old);
    });
    tell_acquire(warp, i, places, here, kBytes);
    if (changed) {
      note_progress(warp, places.space);
    } else {
      note_poll(warp, i, here, places.space, found);
    }
  }
}

template <class Operation>
Handler atomic_integer(Type type) {
  switch (type) {
    case Type::u32:
      return atomic<Operation, uint32_t>;
    case Type::s32:
      return atomic<Operation, int32_t>;
    case Type::u64:
      return atomic<Operation, uint64_t>;
    case Type::s64:
      return atomic<Operation, int64_t>;
    default:
      return nullptr;
  }
}
template <class Operation>
Handler atomic_bits(Type type) {
  switch (type_bits(type)) {
    case 32:
      return atomic<Operation, uint32_t>;
    case 64:
      return atomic<Operation, uint64_t>;
    default:
      return nullptr;
  }
}

Handler atomic_add(Type type) {
  switch (type) {
    case Type::f32:
      return atomic<Add, float>;
    case Type::f64:
      return atomic<Add, double>;
    case Type::f16:
      return atomic<Add, Half>;
    case Type::bf16:
      return atomic<Add, Brain>;
    case Type::f16x2:
      return atomic<Add, Two<Half>>;
    case Type::bf16x2:
      return atomic<Add, Two<Brain>>;
    default:
      return atomic_integer<Add>(type);
  }
}

Handler take_atomic(Binder& binder, Type type) {
  const bool is_bits = type == Type::b32 || type == Type::b64;
  if (binder.take("add")) return atomic_add(type);
  if (binder.take("inc")) return type == Type::u32 ? atomic<Increment, uint32_t> : nullptr;
  if (binder.take("dec")) return type == Type::u32 ? atomic<Decrement, uint32_t> : nullptr;
  if (binder.take("min")) return atomic_integer<Min>(type);
  if (binder.take("max")) return atomic_integer<Max>(type);
  if (binder.take("and")) return is_bits ? atomic_bits<And>(type) : nullptr;
  if (binder.take("or")) return is_bits ? atomic_bits<Or>(type) : nullptr;
  if (binder.take("xor")) return is_bits ? atomic_bits<Xor>(type) : nullptr;
  if (binder.take("exch")) return atomic_bits<Exchange>(type);
  if (binder.take("cas")) {
    if (type == Type::b16) return atomic<CompareAndSwap, uint16_t>;
    return atomic_bits<CompareAndSwap>(type);
  }
  binder.unsupported("the atomic operation is not known");
}

bool bind_atomic(Binder& binder) {
  Instruction& i = binder.instruction();
  const bool has_result = binder.op() == "atom";
  take_order(binder, CacheOrder::relaxed);
  take_scope(binder, kBeyondCta);
  i.space = take_space(binder);
  const bool has_policy = take_cache_hints(binder);
  binder.take("noftz");
  const bool is_swap = std::find(binder.statement().name.begin(), binder.statement().name.end(),
                                 "cas") != binder.statement().name.end();
  const Type type = binder.require_type();
  i.element_bytes = static_cast<uint8_t>(type_bits(type) / 8);
  i.handler = take_atomic(binder, type);
  if (i.handler == nullptr || (is_swap && !has_result))
    binder.unsupported("it has no form for this type");
  const int first = has_result ? 1 : 0;
  const int count = first + (is_swap ? 3 : 2) + (has_policy ? 1 : 0);
  binder.require_operands(count, count);
  binder.address(binder.operand(first), i.space);
  binder.source(binder.operand(first + 1), type);
  if (is_swap) binder.source(binder.operand(first + 2), type);
  if (has_result) {
    binder.target(binder.operand(0), type);
    i.target |= kHasResult;
  }
  return true;
}

// --- cp.async

// Instruction::mode of a copy. Its `offset` and `narrow_address` are those of the source; the
// offset of the destination is in `target`.
constexpr uint8_t kNarrowDestination = 1;
constexpr uint8_t kHasSize = 2;    // rows[2]: bytes to read, the rest is zero
constexpr uint8_t kHasIgnore = 4;  // rows[2]: a predicate, read nothing

void copy_part(const Warp& warp, const Instruction& i, int lane, const AddressRow& source,
               std::byte* to, uint32_t count) {
  const auto bytes = static_cast<int>(i.element_bytes);
  std::memset(to, 0, static_cast<size_t>(bytes));
  if (count == 0) return;
  const uint64_t address = lane_address(warp, source, lane);
  if (address % static_cast<uint64_t>(bytes) != 0)
    fail_alignment(warp, Space::global, lane, address, bytes);
  const std::byte* const from = host_of(warp, Space::global, lane, address, count);
  if (from == nullptr) fail_bounds(warp, Space::global, lane, address, static_cast<int>(count));
  if (warp.cta->checker != nullptr) {
    warp.cta->checker->global(
        warp, i, {.first_lane = lane, .bytes = static_cast<int>(count), .address = address}, {});
  }
  std::memcpy(to, from, count);
}

// The bytes are there at once, which a copy may do; the checker knows when they may be used.
template <int bytes>
void copy_async(Warp& warp, const Instruction& i, uint32_t mask) {
  const AddressRow source{.row = i.rows[1], .narrow = i.narrow_address, .offset = i.offset};
  Places to;
  locate(warp,
         {.row = i.rows[0],
          .narrow = (i.mode & kNarrowDestination) != 0,
          .offset = static_cast<int32_t>(i.target)},
         Space::shared, mask, bytes, to);
  if (warp.cta->checker != nullptr) {
    std::array<uint64_t, kLanes> addresses{};
    each_lane(mask, [&](int lane) {
      addresses[static_cast<size_t>(lane)] =
          static_cast<uint64_t>(to.of(lane, bytes) - warp.cta->shared.data());
    });
    warp.cta->checker->async_copy(warp, i, mask, addresses, bytes);
  }
  uint32_t whole = mask;
  if ((i.mode & kHasIgnore) != 0) whole &= ~warp.value(i.rows[2]);
  if ((i.mode & kHasSize) != 0) {
    const auto* const size = warp.row<const uint32_t>(i.rows[2]);
    each_lane(mask, [&](int lane) {
      if (size[lane] != bytes) whole &= ~(uint32_t{1} << lane);
    });
  }
  if (whole != 0) {
    Places from;
    locate(warp, source, Space::global, whole, bytes, from);
    if (warp.cta->checker != nullptr) {
      each_run(from, whole, bytes,
               [&](const Run& run) { warp.cta->checker->global(warp, i, run, {}); });
    }
    each_lane(whole,
              [&](int lane) { std::memcpy(to.of(lane, bytes), from.of(lane, bytes), bytes); });
  }
  each_lane(mask & ~whole, [&](int lane) {
    uint32_t count = 0;
    if ((i.mode & kHasSize) != 0) count = warp.row<const uint32_t>(i.rows[2])[lane];
    if (count > bytes) {
      throw Fault(fmt::format("cp.async of {} bytes reads {}, which is not defined", bytes, count),
                  lane);
    }
    copy_part(warp, i, lane, source, to.of(lane, bytes), count);
  });
}

void commit_group(Warp& warp, const Instruction&, uint32_t mask) {
  if (warp.cta->checker != nullptr) warp.cta->checker->async_commit(warp, mask);
}
void wait_group(Warp& warp, const Instruction& i, uint32_t mask) {
  if (warp.cta->checker != nullptr) warp.cta->checker->async_wait(warp, mask, i.target);
}
void wait_all(Warp& warp, const Instruction&, uint32_t mask) {
  if (warp.cta->checker == nullptr) return;
  warp.cta->checker->async_commit(warp, mask);
  warp.cta->checker->async_wait(warp, mask, 0);
}

uint32_t constant_of(Binder& binder, int index) {
  const Operand& operand = binder.operand(index);
  if (operand.kind != Operand::Kind::immediate)
    binder.unsupported(fmt::format("operand {} has to be a number", index + 1));
  return static_cast<uint32_t>(operand.bits);
}

bool bind_copy(Binder& binder) {
  Instruction& i = binder.instruction();
  if (!binder.take("async")) binder.unsupported("expected cp.async");
  if (binder.take("commit_group")) {
    i.handler = commit_group;
    return true;
  }
  if (binder.take("wait_group")) {
    i.target = constant_of(binder, 0);
    i.handler = wait_group;
    return true;
  }
  if (binder.take("wait_all")) {
    i.handler = wait_all;
    return true;
  }
  const bool is_cg = binder.take("cg");
  if (!is_cg && !binder.take("ca")) binder.unsupported("expected .ca or .cg");
  if (!binder.take("shared") && !binder.take("shared::cta"))
    binder.unsupported("it copies to shared memory only");
  if (!binder.take("global")) binder.unsupported("it copies from global memory only");
  const bool has_policy = take_cache_hints(binder);
  const int last = binder.operand_count() - (has_policy ? 1 : 0);
  binder.require_operands(3, 5);
  if (last < 3 || last > 4) binder.unsupported("it has too few or too many operands");
  i.space = Space::global;
  i.element_bytes = static_cast<uint8_t>(constant_of(binder, 2));
  binder.address(binder.operand(0), Space::shared);
  if (i.narrow_address) i.mode |= kNarrowDestination;
  i.target = static_cast<uint32_t>(i.offset);
  i.narrow_address = false;
  binder.address(binder.operand(1), Space::global);
  if (last == 4) {
    const Operand& extra = binder.operand(3);
    const bool is_predicate = extra.kind == Operand::Kind::reg &&
                              binder.register_class(extra) == RegisterClass::predicate;
    i.mode |= is_predicate ? kHasIgnore : kHasSize;
    binder.source(extra, is_predicate ? Type::pred : Type::u32);
  }
  switch (i.element_bytes) {
    case 4:
      i.handler = copy_async<4>;
      break;
    case 8:
      i.handler = copy_async<8>;
      break;
    case 16:
      i.handler = copy_async<16>;
      break;
    default:
      binder.unsupported("it copies 4, 8 or 16 bytes");
  }
  if (is_cg && i.element_bytes != 16) binder.unsupported("with .cg it copies 16 bytes");
  return true;
}

// --- ldmatrix

// Lane 8 m + r has the address of row r of matrix m. Lane l gets the elements 2 (l % 4) and
// 2 (l % 4) + 1 of row l / 4; of column l / 4 with .trans. Rows: members, address, targets.
template <int matrices, bool transposed>
void load_matrix(Warp& warp, const Instruction& i, uint32_t mask) {
  constexpr int kRowBytes = 16;
  if (mask != kAllLanes) {
    throw Fault(
        fmt::format("ldmatrix is executed by the lanes {:#010x}; all of the warp have to", mask),
        std::countr_zero(mask));
  }
  constexpr uint32_t kAddressed = matrices == 4 ? kAllLanes : (uint32_t{1} << (8 * matrices)) - 1;
  Places places;
  const uint32_t here = locate(warp, address_row(i, 1), i.space, kAddressed, kRowBytes, places);
  if (places.space != Space::shared || here != kAddressed)
    throw Fault("ldmatrix reads an address that is not in shared memory", places.first);
  if (warp.cta->checker != nullptr) check_reads(warp, i, places, kAddressed, kRowBytes);
  for (int m = 0; m < matrices; ++m) {
    const auto element = [&](int row, int column) {
      uint16_t value;
      std::memcpy(&value, places.of(8 * m + row, kRowBytes) + 2 * column, sizeof value);
      return value;
    };
    auto* const target = warp.row<uint32_t>(i.rows[m + 2]);
    for (int l = 0; l < kLanes; ++l) {
      const int major = l / 4;
      const int minor = l % 4 * 2;
      const uint32_t low = transposed ? element(minor, major) : element(major, minor);
      const uint32_t high = transposed ? element(minor + 1, major) : element(major, minor + 1);
      target[l] = high << 16 | low;
    }
  }
}

bool bind_load_matrix(Binder& binder) {
  Instruction& i = binder.instruction();
  bind_whole_warp(binder);
  if (!binder.take("m8n8") || !binder.take("b16"))
    binder.unsupported("expected ldmatrix.sync.aligned.m8n8 of .b16");
  const int matrices = binder.take("x1") ? 1 : binder.take("x2") ? 2 : binder.take("x4") ? 4 : 0;
  if (matrices == 0) binder.unsupported("expected .x1, .x2 or .x4");
  const bool transposed = binder.take("trans");
  i.space = take_space(binder);
  if (i.space != Space::shared && i.space != Space::generic)
    binder.unsupported("it reads shared memory only");
  binder.require_operands(2, 2);
  const Operand& targets = binder.operand(0);
  if (targets.kind != Operand::Kind::group || targets.parts.size() != static_cast<size_t>(matrices))
    binder.unsupported("the number of registers does not fit");
  binder.address(binder.operand(1), i.space);
  for (const Operand& target : targets.parts) binder.target(target, Type::b32);
  switch (matrices) {
    case 1:
      i.handler = transposed ? load_matrix<1, true> : load_matrix<1, false>;
      break;
    case 2:
      i.handler = transposed ? load_matrix<2, true> : load_matrix<2, false>;
      break;
    default:
      i.handler = transposed ? load_matrix<4, true> : load_matrix<4, false>;
  }
  return true;
}

// --- fences

void fence(Warp& warp, const Instruction& i, uint32_t) {
  // A full barrier of the host. Strong accesses are acquires and releases already.
  __sync_synchronize();
  if (warp.cta->checker == nullptr) return;
  const bool beyond = (i.target & kBeyondCta) != 0;
  warp.cta->checker->fence(warp, beyond ? FenceScope::gpu : FenceScope::cta);
}

bool bind_fence(Binder& binder) {
  if (binder.op() == "fence") {
    for (const std::string_view meaning : {"sc", "acq_rel", "acquire", "release"})
      binder.take(meaning);
  }
  take_scope(binder, 0);
  binder.require_operands(0, 0);
  binder.instruction().handler = fence;
  return true;
}

// --- hints

void do_nothing(Warp&, const Instruction&, uint32_t) {}

// What was there is lost: to be read again it has to be written again.
void discard(Warp& warp, const Instruction& i, uint32_t mask) {
  constexpr int kLineBytes = 128;
  each_lane(mask, [&](int lane) {
    const uint64_t address = lane_address(warp, address_row(i), lane);
    require_host(warp, Space::global, lane, address, kLineBytes);
    if (warp.cta->checker == nullptr) return;
    warp.cta->checker->global(warp, i,
                              {.first_lane = lane, .bytes = kLineBytes, .address = address},
                              {.kind = AccessKind::write});
    warp.cta->checker->forget(address, kLineBytes);
  });
}

bool bind_hint(Binder& binder) {
  Instruction& i = binder.instruction();
  i.space = take_space(binder);
  for (const std::string_view level : {"L1", "L2", "L2::evict_last", "L2::evict_normal"})
    binder.take(level);
  const bool has_size = binder.op() == "discard" || binder.op() == "applypriority";
  binder.require_operands(has_size ? 2 : 1, has_size ? 2 : 1);
  if (has_size && constant_of(binder, 1) != 128) binder.unsupported("the size has to be 128");
  binder.address(binder.operand(0), i.space);
  i.handler = binder.op() == "discard" ? discard : do_nothing;
  return true;
}

// --- addresses

uint64_t window_of_space(Space space) {
  switch (space) {
    case Space::shared:
      return kSharedWindow;
    case Space::local:
      return kLocalWindow;
    case Space::param:
      return kParamWindow;
    default:
      return 0;
  }
}

void shift_address(Warp& warp, const Instruction& i, uint32_t mask) {
  const auto* const from = warp.row<const uint64_t>(i.rows[0]);
  auto* const to = warp.row<uint64_t>(i.rows[1]);
  const auto shift = static_cast<uint64_t>(i.offset);
  if (mask == kAllLanes) {
#pragma GCC ivdep
    for (int l = 0; l < kLanes; ++l) to[l] = from[l] + shift;
  } else {
    each_lane(mask, [&](int l) { to[l] = from[l] + shift; });
  }
}

bool bind_convert_address(Binder& binder) {
  Instruction& i = binder.instruction();
  const bool to_space = binder.take("to");
  i.space = take_space(binder);
  if (i.space == Space::generic) binder.unsupported("expected a state space");
  if (binder.require_type() != Type::u64) binder.unsupported("addresses have 64 bits here");
  binder.require_operands(2, 2);
  const uint64_t window = window_of_space(i.space);
  i.offset = static_cast<int64_t>(to_space ? 0 - window : window);
  binder.source(binder.operand(1), Type::u64);
  binder.target(binder.operand(0), Type::u64);
  i.handler = shift_address;
  return true;
}

void is_in_space(Warp& warp, const Instruction& i, uint32_t mask) {
  const auto* const address = warp.row<const uint64_t>(i.rows[0]);
  uint32_t bits = 0;
  for (int l = 0; l < kLanes; ++l)
    bits |= static_cast<uint32_t>(space_of_window(window_of(address[l])) == i.space) << l;
  uint32_t& target = warp.predicate(i.rows[1]);
  target = (target & ~mask) | (bits & mask);
}

bool bind_is_space(Binder& binder) {
  Instruction& i = binder.instruction();
  i.space = take_space(binder);
  if (i.space == Space::generic || i.space == Space::constant)
    binder.unsupported("expected .global, .shared, .local or .param");
  binder.require_operands(2, 2);
  binder.source(binder.operand(1), Type::u64);
  binder.target(binder.operand(0), Type::pred);
  i.handler = is_in_space;
  return true;
}

void make_policy(Warp& warp, const Instruction& i, uint32_t mask) {
  auto* const target = warp.row<uint64_t>(i.rows[0]);
  each_lane(mask, [&](int lane) { target[lane] = 0; });
}

// A policy says what caches should keep; its value means nothing here.
bool bind_policy(Binder& binder) {
  for (const std::string_view part :
       {"fractional", "range", "cvt", "global", "L2", "L2::evict_last", "L2::evict_normal",
        "L2::evict_first", "L2::evict_unchanged"}) {
    while (binder.take(part)) {
    }
  }
  if (binder.require_type() != Type::b64) binder.unsupported("a policy has 64 bits");
  binder.target(binder.operand(0), Type::b64);
  binder.instruction().handler = make_policy;
  return true;
}

}  // namespace

bool bind_memory(Binder& binder) {
  const std::string_view op = binder.op();
  if (op == "ld" || op == "ldu" || op == "st") return bind_access(binder);
  if (op == "atom" || op == "red") return bind_atomic(binder);
  if (op == "cp") return bind_copy(binder);
  if (op == "ldmatrix") return bind_load_matrix(binder);
  if (op == "membar" || op == "fence") return bind_fence(binder);
  if (op == "prefetch" || op == "prefetchu" || op == "discard" || op == "applypriority")
    return bind_hint(binder);
  if (op == "cvta") return bind_convert_address(binder);
  if (op == "isspacep") return bind_is_space(binder);
  if (op == "createpolicy") return bind_policy(binder);
  return false;
}

}  // namespace kiln::runtime::sim
