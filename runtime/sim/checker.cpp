#include "runtime/sim/checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "jit/base/error.h"

namespace kiln::runtime::sim {
namespace {

constexpr size_t kMostReports = 20;
constexpr int kWarps = 32;  // of a CTA

// Cells of shared memory, one word for each 4 bytes: stamp, warp, lane, atomic, bytes. The stamp is
// the CTA's count of synchronisations at the time; it is on top, so that "before the last barrier"
// is one comparison. A cell of 0 says nothing.
constexpr int kStampShift = 15;
constexpr int kWarpShift = 10;
constexpr int kLaneShift = 5;
constexpr int32_t kAtomicBit = 1 << 4;
constexpr int32_t kAllBytes = 0xf;
constexpr int32_t kLastStamp = 0xffff;
constexpr int32_t kThreadBits = 0x3ff << kLaneShift;  // warp and lane
constexpr int32_t kWarpBits = 0x1f << kWarpShift;

int32_t stamp_of(int32_t cell) { return cell >> kStampShift; }
uint32_t warp_of(int32_t cell) { return static_cast<uint32_t>(cell) >> kWarpShift & 31; }
uint32_t lane_of(int32_t cell) { return static_cast<uint32_t>(cell) >> kLaneShift & 31; }

// Cells of global memory: launch (16 bits), CTA (21), clock (18), strong, and a bit for each byte:
// what a weak read of another CTA had that nothing orders, and what this one accessed. CTAs beyond
// 2^21 share a number, which can only hide races.
constexpr int kLaunchShift = 48;
constexpr int kCtaShift = 27;
constexpr int kClockShift = 9;
constexpr uint32_t kCtaBits = 0x1fffff;
constexpr uint32_t kLastClock = 0x3ffff;
constexpr uint64_t kStrong = 1 << 8;
constexpr int kOthersShift = 4;
constexpr uint64_t kOtherBytes = uint64_t{kAllBytes} << kOthersShift;

uint32_t cta_of(uint64_t cell) { return static_cast<uint32_t>(cell >> kCtaShift) & kCtaBits; }
uint32_t clock_of(uint64_t cell) { return static_cast<uint32_t>(cell >> kClockShift) & kLastClock; }

// Accesses of one CTA at one clock count together. Of weak and strong ones only the weak ones are
// kept: one bit cannot tell which bytes were which.
uint64_t merged_cell(uint64_t old, uint64_t mine) {
  const uint64_t others = old & kOtherBytes;
  if (((old ^ mine) & kStrong) == 0) return mine | (old & kAllBytes) | others;
  return ((old & kStrong) == 0 ? old : mine) | others;
}

// Which bytes of a granule lie in [begin, end).
uint64_t bytes_within(uint64_t granule, uint64_t begin, uint64_t end) {
  uint64_t bytes = kAllBytes;
  if (granule < begin) bytes &= kAllBytes << (begin - granule);
  if (granule + 4 > end) bytes &= kAllBytes >> (granule + 4 - end);
  return bytes;
}

// --- many cells at once

using Quad __attribute__((vector_size(16))) = int32_t;

Quad load_quad(const int32_t* from) {
  Quad quad;
  std::memcpy(&quad, from, sizeof quad);
  return quad;
}
void store_quad(int32_t* to, Quad quad) { std::memcpy(to, &quad, sizeof quad); }
bool any_of(Quad truth) {
  uint64_t halves[2];
  std::memcpy(halves, &truth, sizeof halves);
  return (halves[0] | halves[1]) != 0;
}

// What a lane adds to a cell, for runs of 4, 8 and 16 bytes a lane.
struct LanePatterns {
  std::array<std::array<int32_t, kLanes * 4>, 3> of{};
  constexpr LanePatterns() {
    for (size_t shift = 0; shift < of.size(); ++shift) {
      for (size_t i = 0; i < of[shift].size(); ++i)
        of[shift][i] = static_cast<int32_t>(i >> shift << kLaneShift);
    }
  }
};
constexpr LanePatterns kPatterns;

// Whether no cell is of another thread since the last barrier of the block (`floor`), or of this
// warp since the last one of the warp.
bool all_harmless(const int32_t* cells, int count, int32_t base, const int32_t* pattern,
                  int32_t floor, int32_t warp_floor) {
  const auto harmful = [&](auto cell, auto mine) {
    const auto difference = (cell ^ mine) & kThreadBits;
    const auto is_own = (difference == 0) | (((difference & kWarpBits) == 0) & (cell < warp_floor));
    return (cell >= floor) & (is_own == 0);
  };
  Quad found{};
  int i = 0;
  for (; i + 4 <= count; i += 4)
    found |= harmful(load_quad(cells + i), load_quad(pattern + i) + base);
  bool any = any_of(found);
  for (; i < count; ++i) any = any || harmful(cells[i], base + pattern[i]) != 0;
  return !any;
}

void put_cells(int32_t* cells, int count, int32_t base, const int32_t* pattern) {
  int i = 0;
  for (; i + 4 <= count; i += 4) store_quad(cells + i, load_quad(pattern + i) + base);
  for (; i < count; ++i) cells[i] = base + pattern[i];
}

// Two readers are kept: the first since the last synchronisation, and another one, of another warp
// if there is one. So a later writer meets a reader that is not itself.
template <class Cells>
void add_reader(Cells& first, Cells& second, Cells reader, int32_t floor) {
  const auto quiet_or_same = [&](Cells old) {
    return (old < floor) | (((old ^ reader) & kThreadBits) == 0);
  };
  const auto to_first = quiet_or_same(first);
  const auto to_second = quiet_or_same(second) | (((reader ^ first) & kWarpBits) != 0);
  const Cells old_first = first;
  first = to_first ? reader : old_first;
  second = to_first ? second : (to_second ? reader : second);
}

void add_readers(int32_t* first, int32_t* second, int count, int32_t base, const int32_t* pattern,
                 int32_t floor) {
  int i = 0;
  for (; i + 4 <= count; i += 4) {
    Quad one = load_quad(first + i);
    Quad other = load_quad(second + i);
    add_reader<Quad>(one, other, load_quad(pattern + i) + base, floor);
    store_quad(first + i, one);
    store_quad(second + i, other);
  }
  for (; i < count; ++i) add_reader<int32_t>(first[i], second[i], base + pattern[i], floor);
}

// Marks are 0 or odd.
bool all_written(const uint8_t* marks, uint64_t count) {
  constexpr uint64_t kOdd = 0x0101010101010101;
  uint64_t common = kOdd;
  uint64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, marks + i, sizeof eight);
    common &= eight;
  }
  uint8_t rest = 1;
  for (; i < count; ++i) rest &= marks[i];
  return common == kOdd && rest == 1;
}

bool all_equal(const uint8_t* bytes, uint64_t count, uint8_t value) {
  const uint64_t wanted = 0x0101010101010101 * value;
  uint64_t wrong = 0;
  uint64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, bytes + i, sizeof eight);
    wrong |= eight ^ wanted;
  }
  if (i + 4 <= count) {
    uint32_t four;
    std::memcpy(&four, bytes + i, sizeof four);
    wrong |= four ^ static_cast<uint32_t>(wanted);
    i += 4;
  }
  for (; i < count; ++i) wrong |= static_cast<uint64_t>(bytes[i] ^ value);
  return wrong == 0;
}

// Marks of bytes that several CTAs, on several host threads, may touch at the same time.
bool all_written_atomically(const uint8_t* written, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    if (__atomic_load_n(written + i, __ATOMIC_RELAXED) == 0) return false;
  }
  return true;
}
bool all_equal_atomically(const uint8_t* written, uint64_t count, uint8_t value) {
  for (uint64_t i = 0; i < count; ++i) {
    if (__atomic_load_n(written + i, __ATOMIC_RELAXED) != value) return false;
  }
  return true;
}
void mark_atomically(uint8_t* written, uint64_t count, uint8_t value) {
  for (uint64_t i = 0; i < count; ++i) __atomic_store_n(written + i, value, __ATOMIC_RELAXED);
}

// Returns whether `into` changed.
template <class Map>
bool join(Map& into, const Map& from) {
  bool changed = false;
  for (const auto& [cta, clock] : from) {
    uint32_t& known = into[cta];
    changed = changed || known < clock;
    known = std::max(known, clock);
  }
  return changed;
}

const char* verb(AccessKind kind) {
  switch (kind) {
    case AccessKind::read:
      return "reads";
    case AccessKind::write:
      return "writes";
    case AccessKind::atomic:
      return "updates";
  }
  return "?";
}
const char* past(AccessKind kind) { return kind == AccessKind::read ? "read" : "wrote"; }

std::string name_of(const Module& module, int file) {
  const auto found = module.files.find(file);
  return found != module.files.end() ? found->second : std::string();
}

}  // namespace

const char* kind_name(Report::Kind kind) {
  switch (kind) {
    case Report::Kind::outside:
      return "outside";
    case Report::Kind::write_to_input:
      return "write_to_input";
    case Report::Kind::read_of_output:
      return "read_of_output";
    case Report::Kind::uninitialised_global:
      return "uninitialised_global";
    case Report::Kind::uninitialised_shared:
      return "uninitialised_shared";
    case Report::Kind::uninitialised_local:
      return "uninitialised_local";
    case Report::Kind::shared_race:
      return "shared_race";
    case Report::Kind::global_race:
      return "global_race";
    case Report::Kind::async_pending:
      return "async_pending";
    case Report::Kind::stale_read:
      return "stale_read";
    case Report::Kind::divergent_barrier:
      return "divergent_barrier";
  }
  return "?";
}

std::string describe(const Report& report, const SourceLine& source_line) {
  std::string text = report.what;
  const auto line = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) text += fmt::format("\n  {:<9} {}", name, value);
  };
  line("op", report.op);
  line("kernel", report.kernel);
  line("config", report.config);
  const auto source = [&](std::string_view name, const std::string& file, int number) {
    if (number == 0) return;
    line(name, fmt::format("{}:{}", file, number));
    const std::string code = source_line ? source_line(file, number) : std::string();
    const size_t begin = code.find_first_not_of(" \t");
    if (begin != std::string::npos) line("", "  " + code.substr(begin));
  };
  source("at", report.file, report.line);
  source("called at", report.caller_file, report.caller_line);
  line("PTX", fmt::format("line {}: {}", report.ptx_line, report.ptx));
  line("block", fmt::format("({}, {}, {}), thread ({}, {}, {})", report.block.x, report.block.y,
                            report.block.z, report.thread.x, report.thread.y, report.thread.z));
  if (report.bytes == 0) return text;
  line("address", fmt::format("{:#x} of {} memory, {} bytes", report.address,
                              space_name(report.space), report.bytes));
  if (!report.argument.empty()) {
    line("argument", fmt::format("{}, byte offset {}, element {}", report.argument, report.offset,
                                 report.element));
  }
  return text;
}

// --- what belongs to the shared memory of a CTA; goes from one CTA to the next

struct Checker::SharedState {
  using Stamps = std::array<uint16_t, kWarps>;
  using LaneStamps = std::array<std::array<uint16_t, kLanes>, kLanes>;
  struct AsyncCopy {
    uint32_t lanes = 0;
    int bytes = 0;
    std::array<uint64_t, kLanes> to{};
    std::array<uint32_t, kLanes> group{};
  };

  void begin(size_t bytes, size_t warp_count);
  void renumber();
  static void join(Stamps& into, const Stamps& from) {
    for (size_t w = 0; w < into.size(); ++w) into[w] = std::max(into[w], from[w]);
  }

  std::vector<int32_t> writes, reads, other_reads;
  std::vector<uint8_t> written;   // a bit for each byte of a granule
  std::vector<uint16_t> pending;  // 1 + the thread whose cp.async writes it
  uint64_t pending_count = 0;

  int32_t now = 1;
  int32_t floor = 1;  // what has an earlier stamp is before everything from now on
  std::array<uint16_t, kWarps> warp_floors{};  // the same for the lanes of one warp
  std::array<Stamps, kWarps> warps{};          // [w][v]: what of v is before w
  std::array<std::unique_ptr<LaneStamps>, kWarps> lanes;

  std::array<std::optional<Stamps>, kWarps> fenced;  // as of the last fence of the warp
  std::array<Stamps, kWarps> acquired{};
  std::unordered_map<uint64_t, Stamps> released;  // by address
  std::array<std::optional<Stamps>, 16> arrivals;

  std::array<std::vector<AsyncCopy>, kWarps> copies;
  std::vector<uint32_t> committed;  // groups of each thread
};

void Checker::SharedState::begin(size_t bytes, size_t warp_count) {
  const size_t granules = (bytes + 3) / 4;
  if (writes.size() < granules) {
    writes.resize(granules);
    reads.resize(granules);
    other_reads.resize(granules);
  }
  written.assign(granules, 0);
  pending.assign(granules, 0);
  pending_count = 0;
  for (auto& list : copies) list.clear();
  committed.assign(warp_count * kLanes, 0);
  fenced = {};
  acquired = {};
  released.clear();
  arrivals = {};
  // Cells and stamps of the last CTA are all below the new floor.
  if (now > kLastStamp / 2) renumber();
  floor = ++now;
}

// The counter is used up: forgets everything, which can only hide races.
void Checker::SharedState::renumber() {
  std::fill(writes.begin(), writes.end(), 0);
  std::fill(reads.begin(), reads.end(), 0);
  std::fill(other_reads.begin(), other_reads.end(), 0);
  now = 1;
  floor = 1;
  warp_floors = {};
  warps = {};
  lanes = {};
  fenced = {};
  acquired = {};
  released.clear();
  arrivals = {};
}

// --- views

Checker::Field Checker::make_field(const View& view, size_t index) {
  if (view.dims.size() != view.strides_bytes.size() || view.element_bytes < 1) {
    fail(Status::invalid_argument,
         "The view of {} has {} dims, {} strides and elements of {} bytes: expected as many "
         "strides as dims and at least one byte.",
         view.name, view.dims.size(), view.strides_bytes.size(), view.element_bytes);
  }
  Field field{.view = index,
              .begin = view.begin,
              .row_bytes = static_cast<uint64_t>(view.element_bytes),
              .may_read = view.may_read,
              .may_write = view.may_write};
  bool is_empty = false;
  for (size_t d = 0; d < view.dims.size(); ++d) {
    is_empty = is_empty || view.dims[d] <= 0;
    if (view.dims[d] <= 1 || view.strides_bytes[d] == 0) continue;
    const auto count = static_cast<uint64_t>(view.dims[d]);
    const int64_t stride = view.strides_bytes[d];
    if (stride < 0) field.begin += (count - 1) * static_cast<uint64_t>(stride);
    field.dims.push_back({.count = count, .stride = static_cast<uint64_t>(std::abs(stride))});
  }
  std::stable_sort(field.dims.begin(), field.dims.end(),
                   [](const Dim& a, const Dim& b) { return a.stride > b.stride; });
  while (!field.dims.empty() && field.dims.back().stride == field.row_bytes) {
    field.row_bytes *= field.dims.back().count;
    field.dims.pop_back();
  }
  uint64_t bytes = field.row_bytes;
  for (size_t d = field.dims.size(); d-- > 0;) {
    field.dims[d].inner_bytes = bytes;
    bytes += (field.dims[d].count - 1) * field.dims[d].stride;
  }
  field.end = field.begin + (is_empty ? 0 : bytes);
  return field;
}

bool Checker::share_memory(const View& one, const View& other) {
  __extension__ typedef __int128 Wide;  // strides of a call may be anything
  const Field rows = make_field(one, 0);
  const Field place = make_field(other, 0);
  const auto span_bytes = [](const Field& field, size_t dim) {
    Wide bytes = field.row_bytes;
    for (; dim < field.dims.size(); ++dim)
      bytes += Wide{field.dims[dim].count - 1} * field.dims[dim].stride;
    return bytes;
  };
  // Whether a byte of [low, high) belongs to the dims of `place` from `dim` on, which begin there.
  const auto touches = [&](const auto& self, size_t dim, Wide begin, Wide low, Wide high) -> bool {
    if (high <= begin || low >= begin + span_bytes(place, dim)) return false;
    if (dim == place.dims.size()) return true;
    const Wide stride = place.dims[dim].stride;
    const Wide inner = span_bytes(place, dim + 1);
    const Wide first = std::max<Wide>(low - begin - inner + stride, 0) / stride;
    const Wide last = std::min<Wide>((high - 1 - begin) / stride, place.dims[dim].count - 1);
    for (Wide i = first; i <= last; ++i) {
      if (self(self, dim + 1, begin + i * stride, low, high)) return true;
    }
    return false;
  };
  if (!touches(touches, 0, place.begin, rows.begin, rows.begin + span_bytes(rows, 0))) return false;
  // Row by row, up to a number that takes no time.
  constexpr uint64_t kMostRows = 1 << 16;
  uint64_t count = 1;
  for (const Dim& dim : rows.dims)
    count = std::min(count * std::min(dim.count, kMostRows), kMostRows);
  for (uint64_t row = 0; row < count; ++row) {
    Wide at = rows.begin;
    uint64_t rest = row;
    for (size_t d = rows.dims.size(); d-- > 0; rest /= rows.dims[d].count)
      at += Wide{rest % rows.dims[d].count} * rows.dims[d].stride;
    if (touches(touches, 0, place.begin, at, at + rows.row_bytes)) return true;
  }
  return false;
}

// Whether a program has loads that may miss what its own launch writes.
bool Checker::reads_past_writes(const Program* program) {
  if (program == nullptr) return false;
  const auto is_one = [](const Statement* statement) {
    const auto& name = statement->name;
    return std::find(name.begin(), name.end(), "nc") != name.end();
  };
  return std::any_of(program->statements.begin(), program->statements.end(), is_one);
}

Checker::Checker(Arena& arena, const Launch& launch, Subject subject)
    : arena_(arena),
      subject_(std::move(subject)),
      has_many_ctas_(launch.grid.count() > 1),
      uses_cells_(has_many_ctas_ || reads_past_writes(launch.program)),
      launch_(arena.next_launch()) {
  if (arena.marks() == Marks::off) {
    fail(Status::invalid_argument,
         "The checker needs a simulated GPU whose memory has marks; this one was made without.");
  }
  for (size_t i = 0; i < subject_.views.size(); ++i)
    fields_.push_back(make_field(subject_.views[i], i));
  for (Field& field : fields_) {
    const auto writes_it = [&](const Field& other) {
      return other.may_write && other.begin < field.end && field.begin < other.end;
    };
    field.is_constant = std::none_of(fields_.begin(), fields_.end(), writes_it);
  }
}

Checker::~Checker() = default;

// Where in its row an offset lies, if `bytes` from there on lie in that row. Rows may overlap.
std::optional<uint64_t> Checker::row_offset(const Field& field, size_t dim, uint64_t offset,
                                            uint64_t bytes) {
  if (dim == field.dims.size()) {
    if (offset >= field.row_bytes || bytes > field.row_bytes - offset) return std::nullopt;
    return offset;
  }
  const Dim& here = field.dims[dim];
  const uint64_t last = std::min(here.count - 1, offset / here.stride);
  const uint64_t first =
      offset < here.inner_bytes ? 0 : (offset - here.inner_bytes) / here.stride + 1;
  for (uint64_t i = last + 1; i-- > first;) {
    if (const auto found = row_offset(field, dim + 1, offset - i * here.stride, bytes))
      return found;
  }
  return std::nullopt;
}

Checker::Extent Checker::find_extent(uint64_t address, uint64_t bytes, AccessKind kind,
                                     Report::Kind& wrong) const {
  wrong = Report::Kind::outside;
  if (subject_.bounds == Bounds::everything) {
    const Allocation allocation = arena_.find(address);
    return {.begin = allocation.begin, .end = allocation.begin + allocation.bytes};
  }
  Extent output;
  for (const Field& field : fields_) {
    if (address < field.begin || address >= field.end) continue;
    const auto offset = row_offset(field, 0, address - field.begin, bytes);
    if (!offset) continue;
    if (kind != AccessKind::read && !field.may_write) {
      wrong = Report::Kind::write_to_input;
      continue;
    }
    const uint64_t begin = address - *offset;
    const Extent extent{.begin = begin,
                        .end = begin + field.row_bytes,
                        .is_constant = field.is_constant,
                        .may_read = field.may_read};
    if (kind == AccessKind::write || field.may_read) return extent;
    output = extent;  // unless another view permits more
  }
  return output;
}

uint64_t Checker::Field::distance(uint64_t address) const {
  if (address < begin) return begin - address;
  return address < end ? 0 : address - end + 1;
}

const Checker::Field* Checker::nearest_field(uint64_t address) const {
  const auto nearest = std::min_element(
      fields_.begin(), fields_.end(),
      [&](const Field& a, const Field& b) { return a.distance(address) < b.distance(address); });
  return nearest != fields_.end() ? &*nearest : nullptr;
}

void Checker::locate(Report& report) const {
  const Field* const field = nearest_field(report.address);
  if (report.space != Space::global || field == nullptr) return;
  const View& view = subject_.views[field->view];
  report.argument = view.name;
  report.offset = static_cast<int64_t>(report.address - field->begin);
  report.element = report.offset / view.element_bytes - (report.offset % view.element_bytes < 0);
}

std::string Checker::place_text(uint64_t address) const {
  const Field* const field = nearest_field(address);
  if (field == nullptr) return "";
  Report report{.space = Space::global, .address = address};
  locate(report);
  constexpr uint64_t kFar = uint64_t{1} << 42;
  if (field->distance(address) > kFar) return "near no argument";
  std::string text = fmt::format("nearest argument: {}, byte offset {}, element {}",
                                 report.argument, report.offset, report.element);
  if (address >= field->end) text += fmt::format(", {} bytes behind its end", address - field->end);
  return text;
}

// --- reports

std::vector<Report> Checker::reports() const {
  const std::lock_guard lock(mutex_);
  return reports_;
}

std::string Checker::summary(const SourceLine& source_line) const {
  if (found() == 0) return "";
  const std::vector<Report> list = reports();
  std::string text =
      fmt::format("the checker found {} faults; these are the first of {}{} places:", found(),
                  list.size(), list.size() == kMostReports ? " or more" : "");
  for (const Report& report : list) text += "\n" + describe(report, source_line);
  if (clock_used_up()) {
    text +=
        "\na block synchronised so often with others that its clock was used up: races with what "
        "it "
        "did after that are not seen";
  }
  return text;
}

bool Checker::is_new(Report::Kind kind, const Statement& statement) {
  found_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  return reports_.size() < kMostReports && known_.insert({kind, &statement}).second;
}

void Checker::add(Report report, const Warp& warp, const Instruction& instruction, int lane) {
  const Cta& cta = *warp.cta;
  const Program& program = *cta.launch->program;
  const Statement& statement = *program.statements[static_cast<size_t>(instruction.statement)];
  report.op = subject_.op;
  report.kernel = subject_.kernel.empty() ? program.entry : subject_.kernel;
  report.config = subject_.config;
  if (program.module != nullptr) {
    report.file = name_of(*program.module, statement.where.file);
    report.caller_file = name_of(*program.module, statement.where.caller_file);
  }
  report.line = statement.where.line;
  report.caller_line = statement.where.caller_line;
  report.ptx_line = statement.line;
  report.ptx = std::string(statement.text);
  report.block = cta.index;
  const Size3& block = cta.launch->block;
  const auto thread = static_cast<uint32_t>(warp.index * kLanes + lane);
  report.thread = {thread % block.x, thread / block.x % block.y, thread / block.x / block.y};
  locate(report);
  const std::lock_guard lock(mutex_);
  if (reports_.size() < kMostReports) reports_.push_back(std::move(report));
}

template <class Text>
void CtaChecker::report(Report::Kind kind, const Warp& warp, const Instruction& instruction,
                        int lane, Space space, uint64_t address, int64_t bytes, Text what) {
  const Program& program = *cta_.launch->program;
  const Statement& statement = *program.statements[static_cast<size_t>(instruction.statement)];
  if (!checker_.is_new(kind, statement)) return;
  checker_.add({.kind = kind, .what = what(), .space = space, .address = address, .bytes = bytes},
               warp, instruction, lane);
}

// --- a CTA

Checker::Clocks& Checker::Released::merged() {
  if (own == nullptr) {
    own = snapshot != nullptr ? std::make_unique<Clocks>(*snapshot) : std::make_unique<Clocks>();
    snapshot.reset();
  }
  return *own;
}

bool Checker::Released::add(const std::shared_ptr<const Clocks>& more) {
  if (own != nullptr || snapshot != nullptr) return join(merged(), *more);
  snapshot = more;
  return true;
}

std::unique_ptr<Checker::SharedState> Checker::take_state() {
  const std::lock_guard lock(mutex_);
  if (free_states_.empty()) return std::make_unique<SharedState>();
  std::unique_ptr<SharedState> state = std::move(free_states_.back());
  free_states_.pop_back();
  return state;
}

void Checker::give_back(std::unique_ptr<SharedState> state) {
  const std::lock_guard lock(mutex_);
  free_states_.push_back(std::move(state));
}

CtaChecker::CtaChecker(Checker& checker, Cta& cta)
    : checker_(checker),
      cta_(cta),
      arena_(checker.arena_),
      state_(checker.take_state()),
      own_cell_(checker.launch_ << kLaunchShift | (cta.flat_index & kCtaBits) << kCtaShift) {
  state_->begin(cta.shared.size(), cta.warps.size());
  local_written_.resize(cta.warps.size() * kLanes *
                        static_cast<size_t>(cta.launch->program->local_bytes));
}

CtaChecker::~CtaChecker() {
  try {
    checker_.give_back(std::move(state_));
  } catch (...) {
    // The next CTA makes one of its own.
  }
}

std::string CtaChecker::thread_text(uint32_t warp, uint32_t lane) const {
  const Size3& block = cta_.launch->block;
  const uint32_t thread = warp * kLanes + lane;
  return fmt::format("thread ({}, {}, {})", thread % block.x, thread / block.x % block.y,
                     thread / block.x / block.y);
}

// --- global memory

void CtaChecker::global(const Warp& warp, const Instruction& instruction, const Run& run,
                        Access access) {
  const uint64_t begin = run.address;
  const auto bytes = static_cast<uint64_t>(run.lanes) * static_cast<uint64_t>(run.bytes);
  CachedExtent& cached = extents_[static_cast<size_t>(instruction.statement) % extents_.size()];
  if (cached.statement != instruction.statement || begin < cached.extent.begin ||
      begin + bytes > cached.extent.end) {
    Report::Kind wrong;
    const Extent extent = checker_.find_extent(begin, bytes, access.kind, wrong);
    const bool has_all = begin >= extent.begin && begin + bytes <= extent.end;
    if (!has_all && run.lanes > 1) {
      for (int l = 0; l < run.lanes; ++l) {
        global(warp, instruction,
               {.first_lane = run.first_lane + l,
                .bytes = run.bytes,
                .address = begin + static_cast<uint64_t>(l) * static_cast<uint64_t>(run.bytes)},
               access);
      }
      return;
    }
    if (!has_all) {
      report(wrong, warp, instruction, run.first_lane, Space::global, begin, run.bytes, [&] {
        const Checker::Field* const field = checker_.nearest_field(begin);
        if (field == nullptr) {
          return fmt::format("{} {} bytes, and the call has no tensor at all", verb(access.kind),
                             run.bytes);
        }
        const std::string& name = checker_.subject_.views[field->view].name;
        if (wrong == Report::Kind::write_to_input)
          return fmt::format("{} {} bytes of the input `{}`", verb(access.kind), run.bytes, name);
        return fmt::format("{} {} bytes outside of `{}`", verb(access.kind), run.bytes, name);
      });
      return;
    }
    cached = {.statement = instruction.statement, .extent = extent};
  }
  uint8_t* const written = arena_.written(begin);
  const bool is_shared = access.strong || access.kind == AccessKind::atomic;
  const uint8_t call_mark = checker_.subject_.call_mark;
  if (access.kind != AccessKind::write) {
    const bool was_written =
        is_shared ? all_written_atomically(written, bytes) : all_written(written, bytes);
    const bool may_read =
        cached.extent.may_read || (is_shared ? all_equal_atomically(written, bytes, call_mark)
                                             : all_equal(written, bytes, call_mark));
    if (!may_read || !was_written) {
      report_unwritten(may_read ? Report::Kind::uninitialised_global : Report::Kind::read_of_output,
                       warp, instruction, run, access);
    }
  }
  if (access.kind != AccessKind::read) {
    if (is_shared) {
      mark_atomically(written, bytes, call_mark);
    } else {
      std::memset(written, call_mark, bytes);
    }
  }
  if (cached.extent.is_constant) return;
  if (access.read_only_path) stale_read(warp, instruction, run);
  if (checker_.uses_cells_) global_races(warp, instruction, run, access);
}

void CtaChecker::stale_read(const Warp& warp, const Instruction& instruction, const Run& run) {
  const uint64_t begin = run.address;
  const uint64_t end = begin + static_cast<uint64_t>(run.lanes) * static_cast<uint64_t>(run.bytes);
  const RaceCell* cell = arena_.race_cell(begin);
  for (uint64_t granule = begin & ~uint64_t{3}; granule < end; granule += 4, ++cell) {
    const uint64_t write = cell->write.load(std::memory_order_relaxed);
    if ((write ^ own_cell_) >> kLaunchShift != 0) continue;
    if ((write & bytes_within(granule, begin, end)) == 0) continue;
    const auto lane =
        static_cast<int>((std::max(granule, begin) - begin) / static_cast<uint64_t>(run.bytes));
    report(Report::Kind::stale_read, warp, instruction, run.first_lane + lane, Space::global,
           granule, run.bytes, [] {
             return std::string("reads through the read-only cache (.nc) what this launch wrote");
           });
    return;
  }
}

// Of global bytes that nobody wrote, or of an output's that this call has not written.
void CtaChecker::report_unwritten(Report::Kind kind, const Warp& warp,
                                  const Instruction& instruction, const Run& run, Access access) {
  const bool is_output = kind == Report::Kind::read_of_output;
  const uint8_t call_mark = checker_.subject_.call_mark;
  const uint8_t* const marks = arena_.written(run.address);
  const auto lane_bytes = static_cast<uint64_t>(run.bytes);
  uint64_t first = 0;
  for (; first + 1 < static_cast<uint64_t>(run.lanes) * lane_bytes; ++first) {
    if (is_output ? marks[first] != call_mark : marks[first] == 0) break;
  }
  const uint64_t lane = first / lane_bytes;
  const uint64_t address = run.address + (is_output ? lane * lane_bytes : first);
  report(kind, warp, instruction, run.first_lane + static_cast<int>(lane), Space::global, address,
         run.bytes, [&] {
           if (!is_output)
             return fmt::format("{} global memory that nobody wrote", verb(access.kind));
           const Checker::Field* const field = checker_.nearest_field(address);
           return fmt::format("{} {} bytes of the output `{}` that this call has not written",
                              verb(access.kind), run.bytes,
                              checker_.subject_.views[field->view].name);
         });
}

void CtaChecker::forget(uint64_t address, uint64_t bytes) {
  std::memset(arena_.written(address), 0, bytes);
}

bool CtaChecker::is_ordered(uint64_t cell) const {
  const uint32_t clock = clock_of(cell);
  if (clock == kLastClock) return true;  // it may be any later one
  const auto known = seen_.find(cta_of(cell));
  return known != seen_.end() && known->second >= clock;
}

void CtaChecker::race_between_ctas(const Warp& warp, const Instruction& instruction, const Run& run,
                                   Access access, uint64_t granule, uint64_t other,
                                   AccessKind other_kind) {
  const uint64_t at = std::max(granule, run.address);
  const auto lane = static_cast<int>((at - run.address) / static_cast<uint64_t>(run.bytes));
  report(Report::Kind::global_race, warp, instruction, run.first_lane + lane, Space::global,
         run.address + static_cast<uint64_t>(lane) * static_cast<uint64_t>(run.bytes), run.bytes,
         [&] {
           const Size3& grid = cta_.launch->grid;
           const uint32_t cta = cta_of(other);
           const std::string who = cta == cta_of(own_cell_)
                                       ? "another block"
                                       : fmt::format("block ({}, {}, {})", cta % grid.x,
                                                     cta / grid.x % grid.y, cta / grid.x / grid.y);
           return fmt::format("{} global memory that {} {} in the same launch; nothing orders them",
                              verb(access.kind), who, past(other_kind));
         });
}

void CtaChecker::global_races(const Warp& warp, const Instruction& instruction, const Run& run,
                              Access access) {
  const uint64_t begin = run.address;
  const uint64_t end = begin + static_cast<uint64_t>(run.lanes) * static_cast<uint64_t>(run.bytes);
  const uint64_t strong = access.strong ? kStrong : 0;
  const uint64_t mine = own_cell_ | uint64_t{clock_} << kClockShift | strong;
  const auto same_launch = [&](uint64_t cell) { return (cell ^ mine) >> kLaunchShift == 0; };
  const auto foreign = [&](uint64_t cell) {
    return same_launch(cell) && (cell ^ mine) >> kCtaShift != 0;
  };
  const auto same_clock = [&](uint64_t cell) { return (cell ^ mine) >> kClockShift == 0; };
  RaceCell* cell = arena_.race_cell(begin);
  for (uint64_t granule = begin & ~uint64_t{3}; granule < end; granule += 4, ++cell) {
    const uint64_t touched = bytes_within(granule, begin, end);
    const auto races_with = [&](uint64_t other) {
      return (other & touched) != 0 && (other & strong) == 0 && !is_ordered(other);
    };
    const uint64_t write = cell->write.load(std::memory_order_relaxed);
    const uint64_t read = cell->read.load(std::memory_order_relaxed);
    if (access.kind == AccessKind::read && read == (mine | touched) && !same_launch(write))
      continue;
    if (foreign(write) && races_with(write)) {
      race_between_ctas(warp, instruction, run, access, granule, write, AccessKind::write);
    }
    if (access.kind == AccessKind::read) {
      uint64_t next = mine | touched;
      if (foreign(read)) {
        if ((read & kStrong) == 0 && !is_ordered(read)) next |= (read & kAllBytes) << kOthersShift;
      } else if (same_clock(read)) {
        next = merged_cell(read, next);
      }
      if (next != read) cell->read.store(next, std::memory_order_relaxed);
      continue;
    }
    // Of several readers the last one is known. If it is this CTA, and nothing was acquired since,
    // the one before it cannot have come before this write either.
    const auto others_race = [&](uint64_t other) {
      return same_clock(other) && (other >> kOthersShift & touched) != 0;
    };
    if (foreign(read) ? races_with(read) : others_race(read))
      race_between_ctas(warp, instruction, run, access, granule, read, AccessKind::read);
    uint64_t next = mine | touched;
    if (same_clock(write)) next = merged_cell(write, next);
    if (next != write) cell->write.store(next, std::memory_order_relaxed);
  }
}

// --- shared memory

int32_t CtaChecker::cell_of(const Warp& warp, int lane, Access access, int32_t bytes_mask) const {
  return state_->now << kStampShift | warp.index << kWarpShift | lane << kLaneShift |
         (access.strong ? kAtomicBit : 0) | bytes_mask;
}

// Whether the access of `cell` came before the one of `mine`.
bool CtaChecker::orders(int32_t cell, int32_t mine) const {
  const Checker::SharedState& state = *state_;
  const int32_t stamp = stamp_of(cell);
  const uint32_t warp = warp_of(mine);
  if (stamp < state.floor || ((cell ^ mine) & kThreadBits) == 0) return true;
  if (warp_of(cell) != warp) return stamp < state.warps[warp][warp_of(cell)];
  if (stamp < state.warp_floors[warp]) return true;
  return state.lanes[warp] != nullptr && stamp < (*state.lanes[warp])[lane_of(mine)][lane_of(cell)];
}

bool CtaChecker::conflicts(int32_t cell, int32_t mine) const {
  if ((cell & mine & kAllBytes) == 0 || (cell & mine & kAtomicBit) != 0) return false;
  return !orders(cell, mine);
}

void CtaChecker::race_in_shared(const Warp& warp, const Instruction& instruction, int lane,
                                uint64_t offset, int bytes, Access access, int32_t other,
                                AccessKind other_kind) {
  report(Report::Kind::shared_race, warp, instruction, lane, Space::shared, offset, bytes, [&] {
    const bool same_warp = warp_of(other) == static_cast<uint32_t>(warp.index);
    return fmt::format("{} shared memory that {} {} with no {} between them", verb(access.kind),
                       thread_text(warp_of(other), lane_of(other)), past(other_kind),
                       same_warp ? "bar.warp.sync or barrier" : "barrier");
  });
}

void CtaChecker::shared(const Warp& warp, const Instruction& instruction, const Run& run,
                        Access access, const std::byte* values) {
  const auto lane_bytes = static_cast<uint64_t>(run.bytes);
  const auto granules = static_cast<uint64_t>(run.lanes) * lane_bytes / 4;
  const uint64_t first = run.address / 4;
  Checker::SharedState& state = *state_;
  bool is_plain = run.bytes >= 4;
  if (is_plain && state.pending_count != 0) {
    is_plain =
        all_equal(reinterpret_cast<const uint8_t*>(state.pending.data() + first), granules * 2, 0);
  }
  if (is_plain && access.kind != AccessKind::write)
    is_plain = all_equal(state.written.data() + first, granules, kAllBytes);
  if (is_plain) return shared_races(warp, instruction, run, access, values);
  for (int l = 0; l < run.lanes; ++l) {
    const uint64_t distance = static_cast<uint64_t>(l) * lane_bytes;
    shared_lane(warp, instruction, run.first_lane + l, run.address + distance, run.bytes, access,
                values != nullptr ? values + distance : nullptr);
  }
}

// Whole granules whose bytes are all there and not pending.
void CtaChecker::shared_races(const Warp& warp, const Instruction& instruction, const Run& run,
                              Access access, const std::byte* values) {
  Checker::SharedState& state = *state_;
  const uint64_t first = run.address / 4;
  const int per_lane = run.bytes / 4;
  const int count = run.lanes * per_lane;
  const int32_t floor = state.floor << kStampShift;
  const int32_t base = cell_of(warp, run.first_lane, access, kAllBytes);
  const int32_t* const pattern =
      kPatterns.of[static_cast<size_t>(std::countr_zero(static_cast<unsigned>(per_lane)))].data();
  int32_t* const writes = state.writes.data() + first;
  int32_t* const reads = state.reads.data() + first;
  int32_t* const other_reads = state.other_reads.data() + first;
  const bool changes = access.kind != AccessKind::read;
  const int32_t warp_floor = state.warp_floors[static_cast<size_t>(warp.index)] << kStampShift;
  const auto harmless = [&](const int32_t* cells) {
    return all_harmless(cells, count, base, pattern, floor, warp_floor);
  };
  const bool no_writes = harmless(writes);
  const bool no_reads = !changes || (harmless(reads) && harmless(other_reads));
  const auto meet = [&](int i, int32_t other, AccessKind other_kind) {
    const int32_t mine = base + pattern[i];
    if (other < floor || !conflicts(other, mine)) return;
    const int lane = run.first_lane + i / per_lane;
    const uint64_t at = run.address + static_cast<uint64_t>(i) * 4;
    const bool writes_the_same = other_kind == AccessKind::write &&
                                 access.kind == AccessKind::write && values != nullptr &&
                                 std::memcmp(cta_.shared.data() + at, values + i * 4, 4) == 0;
    if (writes_the_same) return;
    race_in_shared(warp, instruction, lane,
                   run.address + static_cast<uint64_t>(i / per_lane * run.bytes), run.bytes, access,
                   other, other_kind);
  };
  if (!no_writes) {
    for (int i = 0; i < count; ++i) meet(i, writes[i], AccessKind::write);
  }
  if (!changes) return add_readers(reads, other_reads, count, base, pattern, floor);
  if (!no_reads) {
    for (int i = 0; i < count; ++i) {
      meet(i, reads[i], AccessKind::read);
      meet(i, other_reads[i], AccessKind::read);
      reads[i] = other_reads[i] = 0;
    }
  }
  put_cells(writes, count, base, pattern);
  std::memset(state.written.data() + first, kAllBytes, static_cast<size_t>(count));
}

// The general case: parts of granules, and where something is wrong.
void CtaChecker::shared_lane(const Warp& warp, const Instruction& instruction, int lane,
                             uint64_t offset, int bytes, Access access, const std::byte* value) {
  Checker::SharedState& state = *state_;
  const uint64_t first = offset / 4;
  const uint64_t end = (offset + static_cast<uint64_t>(bytes) + 3) / 4;
  const int32_t touched =
      bytes >= 4 ? kAllBytes : ((1 << bytes) - 1) << static_cast<int>(offset % 4);
  for (uint64_t g = first; g < end; ++g) {
    if (state.pending[g] == 0) continue;
    const uint32_t thread = state.pending[g] - 1u;
    report(Report::Kind::async_pending, warp, instruction, lane, Space::shared, offset, bytes, [&] {
      return fmt::format(
          "{} shared memory that a cp.async of {} may still be writing: that thread "
          "did not wait for its group",
          verb(access.kind), thread_text(thread / kLanes, thread % kLanes));
    });
    return;
  }
  const int32_t mine = cell_of(warp, lane, access, touched);
  const int32_t floor = state.floor << kStampShift;
  const auto meet = [&](int32_t other, AccessKind other_kind) {
    if (other < floor || !conflicts(other, mine)) return;
    const bool writes_the_same =
        other_kind == AccessKind::write && access.kind == AccessKind::write && value != nullptr &&
        std::memcmp(cta_.shared.data() + offset, value, static_cast<size_t>(bytes)) == 0;
    if (!writes_the_same)
      race_in_shared(warp, instruction, lane, offset, bytes, access, other, other_kind);
  };
  // A thread's accesses between two synchronisations count together.
  const auto merged = [&](int32_t old) {
    return ((old ^ mine) & ~kAllBytes) == 0 ? mine | old : mine;
  };
  bool all_written = true;
  for (uint64_t g = first; g < end; ++g) {
    meet(state.writes[g], AccessKind::write);
    all_written = all_written && (state.written[g] & touched) == touched;
    int32_t& read = state.reads[g];
    int32_t& other_read = state.other_reads[g];
    if (access.kind == AccessKind::read) {
      if (((read ^ mine) & kThreadBits) == 0) {
        read = merged(read);
      } else {
        add_reader<int32_t>(read, other_read,
                            ((other_read ^ mine) & kThreadBits) == 0 ? merged(other_read) : mine,
                            floor);
      }
      continue;
    }
    for (int32_t* const cell : {&read, &other_read}) {
      meet(*cell, AccessKind::read);
      if ((*cell & kAllBytes & ~touched) == 0) *cell = 0;
    }
    state.writes[g] = merged(state.writes[g]);
  }
  if (access.kind != AccessKind::write && !all_written) {
    report(Report::Kind::uninitialised_shared, warp, instruction, lane, Space::shared, offset,
           bytes,
           [&] { return fmt::format("{} shared memory that nobody wrote", verb(access.kind)); });
  }
  if (access.kind != AccessKind::read) {
    for (uint64_t g = first; g < end; ++g)
      state.written[g] = static_cast<uint8_t>(state.written[g] | touched);
  }
}

// --- local memory

void CtaChecker::local(const Warp& warp, const Instruction& instruction, int lane, uint64_t address,
                       int bytes, AccessKind kind) {
  const auto size = static_cast<uint64_t>(cta_.launch->program->local_bytes);
  const auto thread = static_cast<uint64_t>(warp.index * kLanes + lane);
  uint8_t* const written = local_written_.data() + thread * size + address;
  const auto count = static_cast<uint64_t>(bytes);
  if (kind == AccessKind::write) {
    std::memset(written, 1, count);
  } else if (!all_equal(written, count, 1)) {
    report(Report::Kind::uninitialised_local, warp, instruction, lane, Space::local, address, bytes,
           [] { return std::string("reads local memory that the thread never wrote"); });
  }
}

// --- cp.async

void CtaChecker::async_copy(const Warp& warp, const Instruction& instruction, uint32_t lanes,
                            const std::array<uint64_t, kLanes>& to, int bytes) {
  Checker::SharedState& state = *state_;
  Checker::SharedState::AsyncCopy copy{.lanes = lanes, .bytes = bytes, .to = to};
  each_lane(lanes, [&](int lane) {
    const auto thread = static_cast<uint64_t>(warp.index * kLanes + lane);
    const uint64_t offset = to[static_cast<size_t>(lane)];
    copy.group[static_cast<size_t>(lane)] = state.committed[thread];
    // As a write it must not meet earlier accesses; that it is one is settled at the wait.
    shared(warp, instruction, {.first_lane = lane, .bytes = bytes, .address = offset},
           {.kind = AccessKind::write}, nullptr);
    for (uint64_t g = offset / 4; g < (offset + static_cast<uint64_t>(bytes)) / 4; ++g) {
      if (state.pending[g] == 0) ++state.pending_count;
      state.pending[g] = static_cast<uint16_t>(thread + 1);
    }
  });
  state.copies[static_cast<size_t>(warp.index)].push_back(copy);
}

void CtaChecker::async_commit(const Warp& warp, uint32_t lanes) {
  each_lane(lanes, [&](int lane) {
    ++state_->committed[static_cast<size_t>(warp.index * kLanes + lane)];
  });
}

void CtaChecker::async_wait(const Warp& warp, uint32_t lanes, uint32_t groups_left) {
  Checker::SharedState& state = *state_;
  auto& copies = state.copies[static_cast<size_t>(warp.index)];
  for (Checker::SharedState::AsyncCopy& copy : copies) {
    each_lane(copy.lanes & lanes, [&](int lane) {
      const auto thread = static_cast<size_t>(warp.index * kLanes + lane);
      if (uint64_t{copy.group[static_cast<size_t>(lane)]} + groups_left >= state.committed[thread])
        return;
      copy.lanes &= ~(uint32_t{1} << lane);
      const uint64_t offset = copy.to[static_cast<size_t>(lane)];
      for (uint64_t g = offset / 4; g < (offset + static_cast<uint64_t>(copy.bytes)) / 4; ++g) {
        if (state.pending[g] != thread + 1) continue;
        state.pending[g] = 0;
        --state.pending_count;
        state.writes[g] = cell_of(warp, lane, {.kind = AccessKind::write}, kAllBytes);
      }
    });
  }
  std::erase_if(copies, [](const auto& copy) { return copy.lanes == 0; });
}

// --- order within a CTA

void CtaChecker::advance() {
  if (state_->now >= kLastStamp) state_->renumber();
  ++state_->now;
}

void CtaChecker::sync_lanes(const Warp& warp, uint32_t lanes) {
  Checker::SharedState& state = *state_;
  const auto w = static_cast<size_t>(warp.index);
  const auto now = static_cast<uint16_t>(state.now);
  if ((warp.live & ~lanes) == 0) {
    state.warp_floors[w] = now;
    return;
  }
  if (state.lanes[w] == nullptr)
    state.lanes[w] = std::make_unique<Checker::SharedState::LaneStamps>();
  Checker::SharedState::LaneStamps& stamps = *state.lanes[w];
  std::array<uint16_t, kLanes> joined{};
  each_lane(lanes, [&](int lane) {
    for (size_t l = 0; l < joined.size(); ++l)
      joined[l] = std::max(joined[l], stamps[static_cast<size_t>(lane)][l]);
  });
  each_lane(lanes, [&](int lane) { joined[static_cast<size_t>(lane)] = now; });
  each_lane(lanes, [&](int lane) { stamps[static_cast<size_t>(lane)] = joined; });
}

void CtaChecker::warp_sync(const Warp& warp, uint32_t lanes) {
  advance();
  sync_lanes(warp, lanes);
}

// An aligned barrier is for whole warps: lanes of one warp must not come to it at two places, nor
// some of them without the others.
void CtaChecker::check_convergence(const std::vector<BarrierGroup>& parties) {
  for (const BarrierGroup& party : parties) {
    const Instruction& instruction = cta_.launch->program->code[party.pc];
    const uint32_t missing = party.warp->live & ~party.lanes;
    if (!instruction.aligned || missing == 0) continue;
    report(Report::Kind::divergent_barrier, *party.warp, instruction, std::countr_zero(party.lanes),
           Space::shared, 0, 0, [&] {
             return fmt::format(
                 "a barrier for the whole block is reached by the lanes {:#010x} of "
                 "a warp without {:#010x}",
                 party.lanes, missing);
           });
  }
}

void CtaChecker::barrier(uint32_t id, const std::vector<BarrierGroup>& parties) {
  check_convergence(parties);
  advance();
  Checker::SharedState& state = *state_;
  const auto now = static_cast<uint16_t>(state.now);
  Checker::SharedState::Stamps joined{};
  if (state.arrivals[id]) joined = *state.arrivals[id];
  state.arrivals[id].reset();
  uint32_t threads = 0;
  for (const BarrierGroup& party : parties) {
    threads += static_cast<uint32_t>(std::popcount(party.lanes));
    Checker::SharedState::join(joined, state.warps[static_cast<size_t>(party.warp->index)]);
  }
  if (threads >= cta_.live_threads) {
    if (state.now > kLastStamp / 2) state.renumber();
    state.floor = state.now;
    return;
  }
  for (const BarrierGroup& party : parties) joined[static_cast<size_t>(party.warp->index)] = now;
  for (const BarrierGroup& party : parties) {
    state.warps[static_cast<size_t>(party.warp->index)] = joined;
    sync_lanes(*party.warp, party.lanes);
  }
}

void CtaChecker::barrier_arrive(uint32_t id, const Warp& warp) {
  advance();
  Checker::SharedState& state = *state_;
  Checker::SharedState::Stamps stamps = state.warps[static_cast<size_t>(warp.index)];
  stamps[static_cast<size_t>(warp.index)] = static_cast<uint16_t>(state.now);
  if (!state.arrivals[id]) state.arrivals[id].emplace();
  Checker::SharedState::join(*state.arrivals[id], stamps);
}

// --- order by memory

namespace {

bool releases(CacheOrder order) {
  return order == CacheOrder::release || order == CacheOrder::acquire_release;
}
bool acquires(CacheOrder order) {
  return order == CacheOrder::acquire || order == CacheOrder::acquire_release;
}

}  // namespace

void CtaChecker::release(const Warp& warp, Space space, uint64_t address, CacheOrder order) {
  if (space == Space::shared) {
    Checker::SharedState& state = *state_;
    const auto w = static_cast<size_t>(warp.index);
    if (releases(order)) {
      advance();
      Checker::SharedState::Stamps stamps = state.warps[w];
      stamps[w] = static_cast<uint16_t>(state.now);
      Checker::SharedState::join(state.released[address], stamps);
    } else if (state.fenced[w]) {
      Checker::SharedState::join(state.released[address], *state.fenced[w]);
    }
    return;
  }
  if (!checker_.has_many_ctas_ || (!releases(order) && fences_ == 0)) return;
  Exchange& exchange = exchanges_[address];
  if (!releases(order) && exchange.given_fence == fences_) return;
  Checker::Shard& shard = checker_.shard(address);
  {
    const std::lock_guard lock(shard.mutex);
    Checker::Released& released = shard.released[address];
    bool changed = true;
    if (releases(order)) {
      if (exchange.given_seen != seen_version_) join(released.merged(), seen_);
      released.merged()[cta_of(own_cell_)] = clock_;
      exchange.given_seen = seen_version_;
    } else {
      changed = released.add(released_);
      exchange.given_fence = fences_;
    }
    if (changed) ++released.version;
  }
  checker_.any_release_.store(true);
  if (releases(order)) advance_clock();
}

void CtaChecker::acquire(const Warp& warp, Space space, uint64_t address, CacheOrder order) {
  if (space == Space::shared) {
    Checker::SharedState& state = *state_;
    const auto w = static_cast<size_t>(warp.index);
    const auto found = state.released.find(address);
    if (found == state.released.end()) return;
    Checker::SharedState::join(acquires(order) ? state.warps[w] : state.acquired[w], found->second);
    if (acquires(order)) state.warp_floors[w] = std::max(state.warp_floors[w], found->second[w]);
    return;
  }
  if (!checker_.has_many_ctas_ || !checker_.any_release_.load()) return;
  Checker::Shard& shard = checker_.shard(address);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.released.find(address);
  if (found == shard.released.end()) return;
  Exchange& exchange = exchanges_[address];
  uint64_t& version = acquires(order) ? exchange.seen_version : exchange.acquired_version;
  if (version == found->second.version) return;  // nothing new, as for one that polls
  version = found->second.version;
  if (!acquires(order)) {
    join(acquired_, found->second.clocks());
  } else if (join_seen(found->second.clocks())) {
    advance_clock();
  }
}

// Returns whether anything is new; what this CTA did itself is not.
bool CtaChecker::join_seen(const Checker::Clocks& clocks) {
  bool changed = false;
  for (const auto& [cta, clock] : clocks) {
    if (cta == cta_of(own_cell_)) continue;
    uint32_t& known = seen_[cta];
    changed = changed || known < clock;
    known = std::max(known, clock);
  }
  if (changed) ++seen_version_;
  return changed;
}

void CtaChecker::fence(const Warp& warp, FenceScope scope) {
  advance();
  Checker::SharedState& state = *state_;
  const auto w = static_cast<size_t>(warp.index);
  Checker::SharedState::join(state.warps[w], state.acquired[w]);
  state.warp_floors[w] = std::max(state.warp_floors[w], state.acquired[w][w]);
  state.acquired[w] = {};
  Checker::SharedState::Stamps stamps = state.warps[w];
  stamps[w] = static_cast<uint16_t>(state.now);
  state.fenced[w] = stamps;
  if (scope == FenceScope::cta || !checker_.has_many_ctas_) return;
  join_seen(acquired_);
  acquired_.clear();
  auto released = std::make_shared<Checker::Clocks>(seen_);
  (*released)[cta_of(own_cell_)] = clock_;
  released_ = std::move(released);
  ++fences_;
  advance_clock();
}

void CtaChecker::advance_clock() {
  if (clock_ < kLastClock && ++clock_ == kLastClock) checker_.clock_used_up_.store(true);
}

// --- hooks

void on_warp_sync(Warp& warp, uint32_t lanes) { warp.cta->checker->warp_sync(warp, lanes); }
void on_barrier(Cta& cta, uint32_t id, const std::vector<BarrierGroup>& parties) {
  cta.checker->barrier(id, parties);
}
void on_barrier_arrive(Cta& cta, uint32_t id, Warp& warp) { cta.checker->barrier_arrive(id, warp); }

}  // namespace kiln::runtime::sim
