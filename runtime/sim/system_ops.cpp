// What belongs to the device runtime rather than to a data path: clocks, traps, printf, assert.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <mutex>

#include "runtime/sim/arena.h"
#include "runtime/sim/binder.h"
#include "runtime/sim/decode.h"
#include "runtime/sim/warp.h"

namespace kiln::runtime::sim {
namespace {

uint64_t nanoseconds() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

// There is no time model: the clock counts the instructions of the warp.
enum class Clock : uint8_t { instructions, instructions_high, time, time_high };

template <class T>
void read_clock(Warp& warp, const Instruction& i, uint32_t mask) {
  uint64_t value = 0;
  switch (static_cast<Clock>(i.mode)) {
    case Clock::instructions:
      value = warp.instructions;
      break;
    case Clock::instructions_high:
      value = warp.instructions >> 32;
      break;
    case Clock::time:
      value = nanoseconds();
      break;
    case Clock::time_high:
      value = nanoseconds() >> 32;
      break;
  }
  T* const result = warp.row<T>(i.rows[0]);
  each_lane(mask, [&](int lane) { result[lane] = static_cast<T>(value); });
}

bool bind_clock(Binder& binder) {
  if (binder.op() != "mov" || binder.operand_count() != 2 ||
      binder.operand(1).kind != Operand::Kind::special)
    return false;
  const std::string& name = binder.operand(1).name;
  Clock clock;
  if (name == "%clock" || name == "%clock64") {
    clock = Clock::instructions;
  } else if (name == "%clock_hi") {
    clock = Clock::instructions_high;
  } else if (name == "%globaltimer" || name == "%globaltimer_lo") {
    clock = Clock::time;
  } else if (name == "%globaltimer_hi") {
    clock = Clock::time_high;
  } else {
    return false;
  }
  const Type type = binder.require_type();
  binder.target(binder.operand(0), type);
  binder.instruction().mode = static_cast<uint8_t>(clock);
  binder.instruction().handler =
      type_bits(type) == 64 ? read_clock<uint64_t> : read_clock<uint32_t>;
  return true;
}

void trap(Warp&, const Instruction&, uint32_t mask) {
  throw Fault("the kernel executed trap", std::countr_zero(mask));
}

// A byte of a generic address that the device runtime reads for itself.
std::byte* reachable(Warp& warp, int lane, uint64_t address, uint64_t bytes) {
  const Launch& launch = *warp.cta->launch;
  if ((address & kWindowMask) == kLocalWindow) {
    const uint64_t offset = address & ~kWindowMask;
    const auto size = static_cast<uint64_t>(launch.program->local_bytes);
    if (offset + bytes <= size) return warp.local + static_cast<uint64_t>(lane) * size + offset;
  } else if ((address & kWindowMask) == 0 && launch.arena->contains(address, bytes)) {
    return reinterpret_cast<std::byte*>(address);
  }
  throw Fault(fmt::format("printf reads the address {:#x}, which does not exist", address), lane);
}

std::string c_string(Warp& warp, int lane, uint64_t address) {
  std::string text;
  for (constexpr size_t kLongest = 4096; text.size() < kLongest; ++address) {
    const auto c = static_cast<char>(*reachable(warp, lane, address, 1));
    if (c == '\0') break;
    text += c;
  }
  return text;
}

// One conversion of a printf format with its argument, by the C library.
std::string converted(Warp& warp, int lane, const std::string& spec, uint64_t& at) {
  const char kind = spec.back();
  const bool is_real = std::string_view("fFeEgGaA").find(kind) != std::string_view::npos;
  const bool is_wide = is_real || kind == 's' || kind == 'p' || spec.find('l') != std::string::npos;
  const uint64_t bytes = is_wide ? 8 : 4;
  at = (at + bytes - 1) / bytes * bytes;
  uint64_t bits = 0;
  std::memcpy(&bits, reachable(warp, lane, at, bytes), bytes);
  at += bytes;
  char buffer[512];
  int written = 0;
  if (kind == 's') {
    return c_string(warp, lane, bits);
  } else if (is_real) {
    written = std::snprintf(buffer, sizeof buffer, spec.c_str(), std::bit_cast<double>(bits));
  } else if (is_wide) {
    written = std::snprintf(buffer, sizeof buffer, spec.c_str(), bits);
  } else {
    written = std::snprintf(buffer, sizeof buffer, spec.c_str(), static_cast<uint32_t>(bits));
  }
  return std::string(buffer, static_cast<size_t>(std::clamp(written, 0, 511)));
}

void print(Warp& warp, const Instruction& i, uint32_t mask) {
  static std::mutex mutex;
  const auto size = static_cast<uint64_t>(warp.cta->launch->program->local_bytes);
  each_lane(mask, [&](int lane) {
    std::byte* const local = warp.local + static_cast<uint64_t>(lane) * size;
    const auto argument = [&](int index) {
      uint64_t value = 0;
      std::memcpy(&value, local + *warp.row<uint64_t>(i.rows[index]), sizeof value);
      return value;
    };
    const std::string format = c_string(warp, lane, argument(0));
    uint64_t at = argument(1);
    std::string text;
    int32_t count = 0;
    for (size_t c = 0; c < format.size(); ++c) {
      if (format[c] != '%') {
        text += format[c];
        continue;
      }
      const size_t end = format.find_first_of("diouxXfFeEgGaAcsp%", c + 1);
      if (end == std::string::npos) break;
      if (format[end] == '%') {
        text += '%';
      } else {
        text += converted(warp, lane, format.substr(c, end - c + 1), at);
        ++count;
      }
      c = end;
    }
    std::memcpy(local + *warp.row<uint64_t>(i.rows[2]), &count, sizeof count);
    const std::lock_guard lock(mutex);
    std::fwrite(text.data(), 1, text.size(), stdout);
  });
}

void fail_assert(Warp& warp, const Instruction& i, uint32_t mask) {
  const int lane = std::countr_zero(mask);
  const auto size = static_cast<uint64_t>(warp.cta->launch->program->local_bytes);
  uint64_t message = 0;
  std::memcpy(&message,
              warp.local + static_cast<uint64_t>(lane) * size + *warp.row<uint64_t>(i.rows[0]),
              sizeof message);
  throw Fault(fmt::format("the assertion \"{}\" failed", c_string(warp, lane, message)), lane);
}

}  // namespace

bool bind_system(Binder& binder) {
  Instruction& instruction = binder.instruction();
  if (binder.op() == "call") {
    for (const Operand& operand : binder.statement().operands) {
      if (operand.name == "vprintf") instruction.handler = print;
      if (operand.name == "__assertfail") instruction.handler = fail_assert;
    }
    return instruction.handler != nullptr;
  }
  if (binder.op() == "trap" || binder.op() == "brkpt") {
    instruction.handler = trap;
    return true;
  }
  return bind_clock(binder);
}

}  // namespace kiln::runtime::sim
