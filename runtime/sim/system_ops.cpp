// What belongs to the device runtime rather than to a data path: clocks, traps, printf, assert.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>

#include "runtime/sim/arena.h"
#include "runtime/sim/binder.h"
#include "runtime/sim/decode.h"
#include "runtime/sim/warp.h"

namespace kiln::runtime::sim {
namespace {

// The time of day as of the first question, and a clock that never goes back from there.
uint64_t nanoseconds() {
  using std::chrono::steady_clock;
  using std::chrono::system_clock;
  static const auto epoch =
      system_clock::now().time_since_epoch() - steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   steady_clock::now().time_since_epoch() + epoch)
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

// Up to its zero, or to `most` characters.
std::string c_string(Warp& warp, int lane, uint64_t address, std::optional<int64_t> most = {}) {
  constexpr int64_t kLongest = 4096;
  const auto longest = static_cast<size_t>(std::min(most.value_or(kLongest), kLongest));
  std::string text;
  for (; text.size() < longest; ++address) {
    const auto c = static_cast<char>(*reachable(warp, lane, address, 1));
    if (c == '\0') break;
    text += c;
  }
  return text;
}

// --- printf: the buffer holds the arguments as C promotes them, each aligned to its size.

enum class Length : uint8_t { none, half, quarter, wide };  // h, hh; wide: l, ll, z, j, t, L

struct Conversion {
  std::string flags;
  std::optional<int64_t> width, precision;
  Length length = Length::none;
  char kind = 'd';
};

// What C promises at least for one conversion; a wider one is a mistake, not a text.
constexpr int64_t kWidestField = 4095;

// Reads the conversions of one format, one after another, with their arguments.
class Formatter {
 public:
  Formatter(Warp& warp, int lane, std::string format, uint64_t arguments)
      : warp_(warp), lane_(lane), format_(std::move(format)), argument_(arguments) {}

  std::string text() {
    std::string result;
    while (at_ < format_.size()) {
      if (format_[at_] != '%') {
        result += format_[at_++];
      } else if (format_.compare(at_, 2, "%%") == 0) {
        result += '%';
        at_ += 2;
      } else {
        begin_ = at_++;
        result += converted(conversion());
        ++count_;
      }
    }
    return result;
  }
  int32_t count() const { return count_; }

 private:
  [[noreturn]] void fail_at(std::string_view why) const {
    throw Fault(fmt::format("printf cannot take \"{}\" of its format \"{}\": {}",
                            format_.substr(begin_, at_ + 1 - begin_), format_, why),
                lane_);
  }

  bool accept(std::string_view text) {
    if (format_.compare(at_, text.size(), text) != 0) return false;
    at_ += text.size();
    return true;
  }

  template <class T>
  T take() {
    constexpr uint64_t kBytes = sizeof(T);
    argument_ = (argument_ + kBytes - 1) / kBytes * kBytes;
    T value{};
    std::memcpy(&value, reachable(warp_, lane_, argument_, kBytes), kBytes);
    argument_ += kBytes;
    return value;
  }

  // A width or a precision: digits, or an argument of its own.
  int64_t number() {
    int64_t value = 0;
    if (accept("*")) {
      value = take<int32_t>();
    } else {
      for (; at_ < format_.size() && format_[at_] >= '0' && format_[at_] <= '9'; ++at_)
        value = std::min(value * 10 + (format_[at_] - '0'), kWidestField + 1);
    }
    if (value > kWidestField || value < -kWidestField) {
      fail_at(fmt::format("a field has at most {} characters", kWidestField));
    }
    return value;
  }

  Conversion conversion() {
    Conversion result;
    while (at_ < format_.size() &&
           std::string_view("-+ #0").find(format_[at_]) != std::string::npos)
      result.flags += format_[at_++];
    if (const int64_t width = number(); width != 0) {
      if (width < 0) result.flags += '-';
      result.width = std::abs(width);
    }
    if (accept(".")) {
      const int64_t precision = number();
      if (precision >= 0) result.precision = precision;  // a negative one counts as left out
    }
    if (accept("hh")) {
      result.length = Length::quarter;
    } else if (accept("h")) {
      result.length = Length::half;
    } else if (accept("ll") || accept("l") || accept("z") || accept("j") || accept("t") ||
               accept("L")) {
      result.length = Length::wide;
    }
    if (at_ >= format_.size()) fail_at("it ends before it says what to print");
    result.kind = format_[at_];
    if (std::string_view("diouxXcspfFeEgGaA").find(result.kind) == std::string::npos)
      fail_at("there is no such conversion on a GPU");
    ++at_;
    return result;
  }

  std::string converted(const Conversion& conversion) {
    switch (conversion.kind) {
      case 'd':
      case 'i':
        return print_as(conversion, "ll", static_cast<long long>(take_signed(conversion.length)));
      case 'o':
      case 'u':
      case 'x':
      case 'X':
        return print_as(conversion, "ll",
                        static_cast<unsigned long long>(take_unsigned(conversion.length)));
      case 'c':
        return print_as(conversion, "", static_cast<int>(take<int32_t>()));
      case 's': {
        const std::string text = c_string(warp_, lane_, take<uint64_t>(), conversion.precision);
        return print_as(conversion, "", text.c_str());
      }
      case 'p':
        return print_as(conversion, "", reinterpret_cast<void*>(take<uint64_t>()));
      default:
        return print_as(conversion, "", take<double>());
    }
  }

  int64_t take_signed(Length length) {
    if (length == Length::wide) return take<int64_t>();
    const auto value = take<int32_t>();
    if (length == Length::half) return static_cast<int16_t>(value);
    return length == Length::quarter ? static_cast<int8_t>(value) : value;
  }
  uint64_t take_unsigned(Length length) {
    if (length == Length::wide) return take<uint64_t>();
    const auto value = take<uint32_t>();
    if (length == Length::half) return static_cast<uint16_t>(value);
    return length == Length::quarter ? static_cast<uint8_t>(value) : value;
  }

  // By the C library, with a format that is made here and fits the value.
  template <class T>
  static std::string print_as(const Conversion& conversion, std::string_view length, T value) {
    std::string spec = "%" + conversion.flags;
    if (conversion.width) spec += std::to_string(*conversion.width);
    if (conversion.precision) spec += "." + std::to_string(*conversion.precision);
    spec += length;
    spec += conversion.kind;
    const int size = std::snprintf(nullptr, 0, spec.c_str(), value);
    if (size <= 0) return "";
    std::string text(static_cast<size_t>(size) + 1, '\0');
    std::snprintf(text.data(), text.size(), spec.c_str(), value);
    text.pop_back();
    return text;
  }

  Warp& warp_;
  const int lane_;
  const std::string format_;
  uint64_t argument_;
  size_t at_ = 0;
  size_t begin_ = 0;  // of the conversion
  int32_t count_ = 0;
};

// --- calls of the device runtime: rows are the places of the arguments, then of the results, in
// local memory

std::byte* call_param(Warp& warp, int lane, Row row, uint64_t bytes) {
  const auto size = static_cast<uint64_t>(warp.cta->launch->program->local_bytes);
  const uint64_t offset = *warp.row<uint64_t>(row);
  if (offset > size || bytes > size - offset) {
    throw Fault(fmt::format("an argument of the call does not have {} bytes of its own", bytes),
                lane);
  }
  return warp.local + static_cast<uint64_t>(lane) * size + offset;
}

uint64_t call_argument(Warp& warp, int lane, Row row) {
  uint64_t value = 0;
  std::memcpy(&value, call_param(warp, lane, row, sizeof value), sizeof value);
  return value;
}

// int vprintf(format, arguments)
void print(Warp& warp, const Instruction& i, uint32_t mask) {
  static std::mutex mutex;
  each_lane(mask, [&](int lane) {
    const uint64_t format = call_argument(warp, lane, i.rows[0]);
    const uint64_t arguments = call_argument(warp, lane, i.rows[1]);
    Formatter formatter(warp, lane, c_string(warp, lane, format), arguments);
    const std::string text = formatter.text();
    const int32_t count = formatter.count();
    std::memcpy(call_param(warp, lane, i.rows[2], sizeof count), &count, sizeof count);
    const std::lock_guard lock(mutex);
    std::fwrite(text.data(), 1, text.size(), stdout);
  });
}

// void __assertfail(message, file, line, function, bytes of a character)
void fail_assert(Warp& warp, const Instruction& i, uint32_t mask) {
  const int lane = std::countr_zero(mask);
  const uint64_t message = call_argument(warp, lane, i.rows[0]);
  throw Fault(fmt::format("the assertion \"{}\" failed", c_string(warp, lane, message)), lane);
}

struct RuntimeFunction {
  std::string_view name;
  size_t results;
  size_t arguments;
  Handler handler;
};
constexpr RuntimeFunction kRuntimeFunctions[] = {
    {"vprintf", 1, 2, print},
    {"__assertfail", 0, 5, fail_assert},
};

// (results), function, (arguments) with the lists optional
bool bind_call(Binder& binder) {
  const std::vector<Operand>& operands = binder.statement().operands;
  size_t at = 0;
  const auto list_length = [&] {
    if (at >= operands.size() || operands[at].kind != Operand::Kind::group) return size_t{0};
    return operands[at++].parts.size();
  };
  const size_t results = list_length();
  if (at >= operands.size()) return false;
  const std::string& name = operands[at++].name;
  const size_t arguments = list_length();
  for (const RuntimeFunction& function : kRuntimeFunctions) {
    if (function.name != name) continue;
    if (results != function.results || arguments != function.arguments) {
      binder.unsupported(fmt::format("{} takes {} arguments and gives {} results; {} and {} came",
                                     name, function.arguments, function.results, arguments,
                                     results));
    }
    binder.instruction().handler = function.handler;
    return true;
  }
  return false;
}

}  // namespace

bool bind_system(Binder& binder) {
  Instruction& instruction = binder.instruction();
  if (binder.op() == "call") return bind_call(binder);
  if (binder.op() == "trap" || binder.op() == "brkpt") {
    instruction.handler = trap;
    return true;
  }
  return bind_clock(binder);
}

}  // namespace kiln::runtime::sim
