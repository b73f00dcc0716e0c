#include "tuner/device_tools.h"

#include <algorithm>
#include <array>

#include "jit/base/error.h"

namespace kiln::tuner {

std::span<const jit::SourceFile> device_sources();  // made by kiln_embed

namespace {

using runtime::DevicePtr;
using templates::DType;

constexpr int kThreads = 256;
constexpr int64_t kMaxCtas = 8192;
constexpr int64_t kMaxSimulatedCtas = 64;  // to begin a CTA costs more there than what it does
constexpr int64_t kResultBytes = 256;
constexpr int64_t kChunkBytes = 16 << 10;  // of the larger stream of a mix
constexpr int64_t kVectorBytes = 16;

// As in kernels/check.cu.
struct PoisonArgs {
  uint64_t words, count, seed, flip, mask;
};
struct DigestArgs {
  uint64_t words, count, salt, sum;
};
struct CompareResult {
  uint64_t compared, mismatches, first_mismatch;
  double error_squares, reference_squares;
};
struct CompareArgs {
  uint64_t candidate, first, second, count, element_bytes, kind, tolerant, seed, flip, mask, result;
};
// As in kernels/rates.cu.
struct MixArgs {
  uint64_t source, target, reads, writes, chunks, never;
};

uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint64_t flip_of(const Poison& poison) {
  return poison.form == Poison::Form::complement ? ~uint64_t{0} : 0;
}

uint64_t float_kind(DType dtype) { return dtype == DType::bf16 ? 1 : dtype == DType::f32 ? 2 : 0; }

}  // namespace

void Arena::require_left(int64_t bytes) const {
  if (bytes > left_bytes()) {
    fail(Status::out_of_memory,
         "{} bytes of device memory are needed, but {} of the tuner's {} are left.", bytes,
         left_bytes(), limit_bytes_);
  }
}

Arena::Buffer Arena::allocate(int64_t bytes) {
  require_left(bytes);
  runtime::DeviceBuffer memory(device_, bytes);
  used_bytes_ += bytes;
  return Buffer(*this, std::move(memory));
}

Arena::Buffer Arena::allocate_pinned(int64_t bytes) {
  require_left(bytes);
  runtime::PinnedBuffer pinned(device_, bytes);
  used_bytes_ += bytes;
  return Buffer(*this, std::move(pinned));
}

uint64_t poison_mask(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0xBFFFBFFFBFFFBFFFu;
    case DType::f32:
      return 0xBFFFFFFFBFFFFFFFu;
    default:
      return ~uint64_t{0};
  }
}

uint64_t poison_word(const Poison& poison, uint64_t mask, uint64_t index) {
  return (mixed(poison.seed + index) ^ flip_of(poison)) & mask;
}

const std::vector<std::pair<std::string, std::string>>& tool_kernels() {
  static const std::vector<std::pair<std::string, std::string>> kernels = {
      {"tuner/kernels/check.cu", "kiln_poison"},  {"tuner/kernels/check.cu", "kiln_digest"},
      {"tuner/kernels/check.cu", "kiln_compare"}, {"tuner/kernels/rates.cu", "kiln_empty"},
      {"tuner/kernels/rates.cu", "kiln_mix_1"},   {"tuner/kernels/rates.cu", "kiln_mix_2"},
      {"tuner/kernels/rates.cu", "kiln_mix_4"},   {"tuner/kernels/rates.cu", "kiln_mix_8"},
      {"tuner/kernels/rates.cu", "kiln_multiply"}};
  return kernels;
}

jit::KernelSource tool_source(const std::string& file, const std::string& entry) {
  for (const jit::SourceFile& source : device_sources()) {
    if (source.path == file)
      return jit::KernelSource{.main = source, .headers = {}, .constants = {}, .entry = entry};
  }
  fail(Status::internal, "the tuner's source {} is not embedded in this library", file);
}

DeviceTools::DeviceTools(runtime::Device& device,
                         const std::map<std::string, jit::Binary>& tools_by_entry,
                         int64_t arena_bytes)
    : device_(device),
      stream_(device),
      arena_(device, arena_bytes),
      result_(arena_.allocate(kResultBytes)) {
  for (const auto& [file, entry] : tool_kernels()) {
    const auto found = tools_by_entry.find(entry);
    if (found == tools_by_entry.end())
      fail(Status::internal, "the tuner's kernel {} was not sent to its child", entry);
    kernels_.emplace(entry, device.load(found->second, kThreads, 0));
  }
}

void DeviceTools::launch_grid(const std::string& entry, int64_t ctas, const void* args) {
  const runtime::Dim3 grid{static_cast<uint32_t>(ctas), 1, 1};
  const runtime::LaunchResult result =
      device_.launch(kernels_.at(entry), grid, args, stream_.get());
  if (result.driver_error != 0) {
    fail(Status::driver_error, "The tuner's kernel {} could not be launched: {}.", entry,
         device_.error_text(result.driver_error));
  }
}

void DeviceTools::launch(const std::string& entry, int64_t work_items, const void* args) {
  const bool is_simulated = device_.info().timing == runtime::Timing::none;
  const int64_t most = is_simulated ? kMaxSimulatedCtas : kMaxCtas;
  launch_grid(entry, std::clamp<int64_t>((work_items + kThreads - 1) / kThreads, 1, most), args);
}

void DeviceTools::poison(DevicePtr at, int64_t bytes, const Poison& poison, uint64_t mask) {
  const PoisonArgs args{at, static_cast<uint64_t>(bytes / 8), poison.seed, flip_of(poison), mask};
  launch("kiln_poison", bytes / 8, &args);
}

void DeviceTools::start_digest() {
  device_.fill(result_.get(), 0, kResultBytes, stream_.get());
  digest_salt_ = 1;
}

void DeviceTools::add_to_digest(DevicePtr at, int64_t bytes) {
  digest_salt_ = mixed(digest_salt_);
  const DigestArgs args{at, static_cast<uint64_t>(bytes / 8), digest_salt_, result_.get()};
  launch("kiln_digest", bytes / 8, &args);
}

uint64_t DeviceTools::finish_digest() {
  device_.synchronize(stream_.get());
  uint64_t sum = 0;
  device_.copy_to_host(&sum, result_.get(), sizeof(sum));
  return sum;
}

Comparison DeviceTools::compare(DevicePtr candidate, DevicePtr first, DevicePtr second,
                                int64_t elements, DType dtype,
                                const templates::Tolerance& tolerance, const Poison& poison) {
  const CompareResult start{0, 0, ~uint64_t{0}, 0, 0};
  device_.copy_to_device(result_.get(), &start, sizeof(start));
  const bool tolerant =
      tolerance.kind != templates::Tolerance::Kind::bit_exact && float_kind(dtype) != 0;
  const CompareArgs args{candidate,
                         first,
                         second,
                         static_cast<uint64_t>(elements),
                         static_cast<uint64_t>(templates::dtype_bytes(dtype)),
                         float_kind(dtype),
                         tolerant ? uint64_t{1} : uint64_t{0},
                         poison.seed,
                         flip_of(poison),
                         poison_mask(dtype),
                         result_.get()};
  const int64_t per_word = static_cast<int64_t>(8 / args.element_bytes);
  launch("kiln_compare", (elements + per_word - 1) / per_word, &args);
  device_.synchronize(stream_.get());
  CompareResult result{};
  device_.copy_to_host(&result, result_.get(), sizeof(result));
  return Comparison{
      .compared = static_cast<int64_t>(result.compared),
      .mismatches = static_cast<int64_t>(result.mismatches),
      .first_mismatch = result.mismatches > 0 ? static_cast<int64_t>(result.first_mismatch) : -1,
      .error_squares = result.error_squares,
      .reference_squares = result.reference_squares};
}

void DeviceTools::mix(DevicePtr source, int64_t read_bytes, DevicePtr target, int64_t write_bytes,
                      int unroll, int64_t ctas) {
  const int64_t chunks = std::max<int64_t>(std::max(read_bytes, write_bytes) / kChunkBytes, 1);
  const MixArgs args{source,
                     target,
                     static_cast<uint64_t>(read_bytes / kVectorBytes),
                     static_cast<uint64_t>(write_bytes / kVectorBytes),
                     static_cast<uint64_t>(chunks),
                     result_.get() + 128};
  launch_grid(fmt::format("kiln_mix_{}", unroll), ctas > 0 ? std::min(ctas, chunks) : chunks,
              &args);
}

int64_t DeviceTools::multiply(int64_t steps, int64_t ctas) {
  struct {
    uint64_t steps;
    runtime::DevicePtr never;
  } const args{static_cast<uint64_t>(steps), result_.get() + 128};
  launch_grid("kiln_multiply", ctas, &args);
  constexpr int64_t kWarps = 8, kMmaPerStep = 16, kFmaPerMma = 16 * 8 * 16;
  return ctas * kWarps * steps * kMmaPerStep * kFmaPerMma;
}

void DeviceTools::empty() {
  const uint64_t nothing = 0;
  launch_grid("kiln_empty", 1, &nothing);
}

}  // namespace kiln::tuner
