#include "tuner/trial.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>

#include "jit/base/rounding.h"

namespace kiln::tuner {
namespace {

using templates::Arg;
using templates::ArgKind;
using templates::Case;
using templates::DType;
using templates::Tolerance;

constexpr int64_t kGuardBytes = 4096;
constexpr int64_t kAllElements =
    65536;  // so small an output is checked against the reference everywhere
constexpr int64_t kSamples = 4096;
constexpr int64_t kMaxRowEdges = 4096;
constexpr uint64_t kSampleStream = 0x5A3B1E;

bool is_output(const Arg& arg) { return arg.kind != ArgKind::input; }

bool is_float(DType dtype) { return dtype == DType::bf16 || dtype == DType::f32; }

uint64_t load_bits(const std::byte* at, int64_t bytes) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, static_cast<size_t>(bytes));
  return bits;
}

std::string value_text(DType dtype, uint64_t bits) {
  if (!is_float(dtype)) return fmt::format("{:.0f}", element_value(dtype, bits));
  return fmt::format("{:.9g} (0x{:x})", element_value(dtype, bits), bits);
}

// Row-major number of an element -> its indices.
std::vector<int64_t> index_of(const std::vector<int64_t>& dims, int64_t number) {
  std::vector<int64_t> index(dims.size());
  for (size_t d = dims.size(); d-- > 0;) {
    index[d] = number % dims[d];
    number /= dims[d];
  }
  return index;
}

// Which elements are compared with the reference: all of a small output; else the ends, the ends of
// rows and seeded samples.
std::vector<int64_t> chosen_elements(const std::vector<int64_t>& dims, uint64_t seed) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  std::vector<int64_t> chosen;
  if (count <= kAllElements) {
    for (int64_t i = 0; i < count; ++i) chosen.push_back(i);
    return chosen;
  }
  for (int64_t i = 0; i < kSamples; ++i) {
    chosen.push_back(
        templates::counter_range(seed, kSampleStream, static_cast<uint64_t>(i), 0, count - 1));
  }
  const int64_t row = dims.back();
  const int64_t rows = count / row;
  const int64_t edges = std::min(rows, kMaxRowEdges);
  for (int64_t i = 0; i < edges; ++i) {
    const int64_t r = edges > 1 ? i * (rows - 1) / (edges - 1) : 0;
    chosen.push_back(r * row);
    chosen.push_back((r + 1) * row - 1);
  }
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

}  // namespace

PreparedCase::PreparedCase(DeviceTools& tools, const templates::Kit& kit, Case c,
                           Alignment alignment)
    : tools_(tools),
      kit_(kit),
      op_(*kit.op),
      case_(std::move(c)),
      symbols_(extent_symbols(op_, case_)) {
  allocate(alignment);
}

void PreparedCase::allocate(Alignment alignment) {
  runtime::Device& device = tools_.device();
  for (TensorPlan& plan : tensor_plans(op_, case_)) {
    Tensor tensor{.plan = std::move(plan)};
    const Arg& arg = *tensor.plan.arg;
    const int64_t align = std::max(arg.align_bytes, templates::dtype_bytes(arg.dtype));
    tensor.before_bytes = kGuardBytes + (alignment == Alignment::least ? align : 0);
    const int64_t total = round_up(tensor.before_bytes + tensor.plan.bytes() + kGuardBytes, 16);
    tensor.memory = tools_.arena().allocate(total);
    pointers_[arg.name] = tensor.memory.get() + static_cast<uint64_t>(tensor.before_bytes);
    if (is_output(arg)) {
      tensor.first = tools_.arena().allocate(total);
      tensor.second = tools_.arena().allocate(total);
    }
    if (arg.kind != ArgKind::output) {
      if (arg.kind == ArgKind::inout) tensor.initial = tools_.arena().allocate(total);
      const runtime::DevicePtr target =
          arg.kind == ArgKind::inout ? tensor.initial.get() : tensor.memory.get();
      device.fill(target, 0xFF, total, tools_.stream());
      device.synchronize(tools_.stream());
      const std::vector<std::byte> contents = host_contents(kit_, case_, tensor.plan);
      device.copy_to_device(target + static_cast<uint64_t>(tensor.before_bytes), contents.data(),
                            static_cast<int64_t>(contents.size()));
    }
    tensors_.push_back(std::move(tensor));
  }
}

std::string PreparedCase::run(const RunnablePlan& plan, const Poison& poison) {
  runtime::Device& device = tools_.device();
  for (const Tensor& tensor : tensors_) {
    if (tensor.plan.arg->kind == ArgKind::output) {
      tools_.poison(tensor.memory.get(), tensor.alloc_bytes(), poison,
                    poison_mask(tensor.plan.arg->dtype));
    } else if (tensor.plan.arg->kind == ArgKind::inout) {
      device.copy_on_device(tensor.memory.get(), tensor.initial.get(), tensor.alloc_bytes(),
                            tools_.stream());
    }
  }
  Workspace workspace;
  workspace_.reset();
  workspace_digest_ = 0;
  if (op_.has_workspace) {
    workspace.bytes = std::max<int64_t>(plan.workspace_bytes.value(symbols_), 0);
    if (workspace.bytes > 0) {
      workspace_ = tools_.arena().allocate(round_up(workspace.bytes, 8) + 2 * kGuardBytes);
      workspace.pointer = workspace_.get() + kGuardBytes;
      tools_.poison(workspace_.get(), workspace_.bytes(), poison, ~uint64_t{0});
      tools_.start_digest();
      tools_.add_to_digest(workspace_.get(), kGuardBytes);
      tools_.add_to_digest(
          workspace_.get() + static_cast<uint64_t>(workspace_.bytes() - kGuardBytes), kGuardBytes);
      workspace_digest_ = tools_.finish_digest();
    }
  }
  std::vector<TensorPlan> plans;
  for (const Tensor& tensor : tensors_) plans.push_back(tensor.plan);
  const std::vector<uint64_t> args = pack_arguments(op_, case_, plans, pointers_, workspace);
  device.synchronize(tools_.stream());
  return launch_plan(device, plan, symbols_, args.data(), tools_.stream());
}

std::map<std::string, std::vector<std::byte>> PreparedCase::outputs() const {
  std::map<std::string, std::vector<std::byte>> contents;
  for (const Tensor& tensor : tensors_) {
    if (!is_output(*tensor.plan.arg)) continue;
    std::vector<std::byte>& bytes = contents[tensor.plan.arg->name];
    bytes.resize(static_cast<size_t>(tensor.alloc_bytes()));
    tools_.device().copy_to_host(bytes.data(), tensor.memory.get(), tensor.alloc_bytes());
  }
  return contents;
}

uint64_t PreparedCase::digest() {
  tools_.start_digest();
  for (const Tensor& tensor : tensors_) {
    if (tensor.plan.arg->kind == ArgKind::input)
      tools_.add_to_digest(tensor.memory.get(), tensor.alloc_bytes());
    if (tensor.plan.arg->kind == ArgKind::inout)
      tools_.add_to_digest(tensor.initial.get(), tensor.alloc_bytes());
    if (is_output(*tensor.plan.arg)) {
      tools_.add_to_digest(tensor.first.get(), tensor.alloc_bytes());
      tools_.add_to_digest(tensor.second.get(), tensor.alloc_bytes());
    }
  }
  return tools_.finish_digest();
}

void PreparedCase::prove_oracle(const RunnablePlan& oracle) {
  runtime::Device& device = tools_.device();
  const Poison plain{.seed = 2 * case_.seed + 1};
  const Poison complement{.seed = plain.seed, .form = Poison::Form::complement};
  for (const Poison& poison : {plain, complement}) {
    if (const std::string failure = run(oracle, poison); !failure.empty()) {
      fail(Status::internal, "{}, case \"{}\": the oracle could not be launched: {}", op_.name,
           case_.name, failure);
    }
    for (const Tensor& tensor : tensors_) {
      if (!is_output(*tensor.plan.arg)) continue;
      const Arena::Buffer& target =
          poison.form == Poison::Form::plain ? tensor.first : tensor.second;
      device.copy_on_device(target.get(), tensor.memory.get(), tensor.alloc_bytes(),
                            tools_.stream());
    }
    device.synchronize(tools_.stream());
  }

  // Where the two runs differ, each must have kept its own poison; else the oracle reads what
  // nobody wrote.
  for (const Tensor& tensor : tensors_) {
    if (!is_output(*tensor.plan.arg)) continue;
    const DType dtype = tensor.plan.arg->dtype;
    const int64_t elements = tensor.alloc_bytes() / templates::dtype_bytes(dtype);
    for (const Poison& poison : {plain, complement}) {
      const Arena::Buffer& result =
          poison.form == Poison::Form::plain ? tensor.first : tensor.second;
      const Comparison same = tools_.compare(result.get(), tensor.first.get(), tensor.second.get(),
                                             elements, dtype, templates::bit_exact, poison);
      if (same.compared != elements) {
        fail(Status::internal,
             "the tuner's kernels do not run on {}: {} of {} elements were compared",
             device.info().name, same.compared, elements);
      }
      if (same.mismatches > 0) {
        fail(Status::internal,
             "{}, case \"{}\": two runs of the oracle differ in {} elements of {}", op_.name,
             case_.name, same.mismatches, tensor.plan.arg->name);
      }
    }
    check_reference(tensor, plain);
  }
  digest_ = digest();
}

void PreparedCase::check_reference(const Tensor& tensor, const Poison& poison) {
  const Arg& arg = *tensor.plan.arg;
  if (kit_.expected == nullptr || tensor.plan.layout.elements == 0) return;
  const Tolerance tolerance = op_.tolerance_of(arg, case_.sizes);
  const int64_t element_bytes = templates::dtype_bytes(arg.dtype);
  std::vector<std::byte> got(static_cast<size_t>(tensor.alloc_bytes()));
  tools_.device().copy_to_host(got.data(), tensor.first.get(), tensor.alloc_bytes());
  std::vector<std::byte> before;
  if (arg.kind == ArgKind::inout) {
    before.resize(got.size());
    tools_.device().copy_to_host(before.data(), tensor.initial.get(), tensor.alloc_bytes());
  }
  const uint64_t mask = poison_mask(arg.dtype);
  const auto untouched_bits = [&](int64_t byte) {
    if (arg.kind == ArgKind::inout) return load_bits(before.data() + byte, element_bytes);
    const uint64_t word =
        poison_word(poison, mask, static_cast<uint64_t>(byte / 8)) >> (8 * (byte % 8));
    return element_bytes == 8 ? word : word & ((uint64_t{1} << (8 * element_bytes)) - 1);
  };

  const std::vector<int64_t> chosen = chosen_elements(tensor.plan.layout.dims, case_.seed);
  std::mutex mutex;
  std::string mismatch;
  int64_t mismatch_at = -1;
  double error_squares = 0, reference_squares = 0;
  parallel_pieces(static_cast<int64_t>(chosen.size()), [&](int64_t begin, int64_t end) {
    double piece_error = 0, piece_reference = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t number = chosen[static_cast<size_t>(i)];
      const std::vector<int64_t> index = index_of(tensor.plan.layout.dims, number);
      int64_t byte = tensor.before_bytes;
      for (size_t d = 0; d < index.size(); ++d)
        byte += index[d] * tensor.plan.layout.strides[d] * element_bytes;
      const uint64_t bits = load_bits(got.data() + byte, element_bytes);
      const std::optional<double> want = kit_.expected(case_, arg, index);
      const bool exact =
          tolerance.kind == Tolerance::Kind::bit_exact || !is_float(arg.dtype) || !want.has_value();
      const uint64_t want_bits = want ? element_bits(arg.dtype, *want) : untouched_bits(byte);
      const double value = element_value(arg.dtype, bits);
      bool same = bits == want_bits;
      if (is_float(arg.dtype) && want && std::isnan(*want)) same = std::isnan(value);
      if (!exact && std::isfinite(value) && std::isfinite(*want)) {
        piece_error += (value - *want) * (value - *want);
        piece_reference += *want * *want;
        same = true;
      }
      if (same) continue;
      const std::lock_guard lock(mutex);
      if (mismatch_at >= 0 && mismatch_at < number) continue;
      mismatch_at = number;
      mismatch = fmt::format("{}[{}] is {}, but the reference says {}", arg.name,
                             fmt::join(index, ", "), value_text(arg.dtype, bits),
                             want ? value_text(arg.dtype, want_bits) : "that it is not written");
    }
    const std::lock_guard lock(mutex);
    error_squares += piece_error;
    reference_squares += piece_reference;
  });
  if (!mismatch.empty()) {
    fail(Status::internal, "{}, case \"{}\": the oracle disagrees with the reference: {}", op_.name,
         case_.name, mismatch);
  }
  if (tolerance.kind == Tolerance::Kind::relative_rms &&
      std::sqrt(error_squares) > tolerance.bound * std::sqrt(reference_squares)) {
    fail(Status::internal,
         "{}, case \"{}\": the oracle's {} is off by {:.3g} of its rms; {} is allowed", op_.name,
         case_.name, arg.name, std::sqrt(error_squares / std::max(reference_squares, 1e-300)),
         tolerance.text());
  }
}

std::string PreparedCase::describe_mismatch(const Tensor& tensor, int64_t element) const {
  const Arg& arg = *tensor.plan.arg;
  const int64_t element_bytes = templates::dtype_bytes(arg.dtype);
  const int64_t first = tensor.before_bytes / element_bytes;
  if (element < first)
    return fmt::format("wrote {} bytes before {}", (first - element) * element_bytes, arg.name);
  int64_t rest = element - first;
  if (rest >= tensor.plan.layout.elements) {
    return fmt::format("wrote {} bytes after the end of {}",
                       (rest - tensor.plan.layout.elements) * element_bytes, arg.name);
  }
  std::vector<int64_t> index;
  for (size_t d = 0; d < tensor.plan.layout.dims.size(); ++d) {
    index.push_back(rest / tensor.plan.layout.strides[d]);
    rest %= tensor.plan.layout.strides[d];
    if (index.back() >= tensor.plan.layout.dims[d])
      return fmt::format("wrote between the rows of {}", arg.name);
  }
  uint64_t got = 0, want = 0, second = 0;
  const auto at = static_cast<uint64_t>(element * element_bytes);
  tools_.device().copy_to_host(&got, tensor.memory.get() + at, element_bytes);
  tools_.device().copy_to_host(&want, tensor.first.get() + at, element_bytes);
  tools_.device().copy_to_host(&second, tensor.second.get() + at, element_bytes);
  if (want != second)
    return fmt::format("wrote {}[{}], which must be left alone", arg.name, fmt::join(index, ", "));
  return fmt::format("{}[{}] is {} instead of {}", arg.name, fmt::join(index, ", "),
                     value_text(arg.dtype, got), value_text(arg.dtype, want));
}

RunVerdict PreparedCase::compare_outputs(const Poison& poison) {
  RunVerdict verdict;
  for (const Tensor& tensor : tensors_) {
    const Arg& arg = *tensor.plan.arg;
    if (!is_output(arg)) continue;
    const Tolerance tolerance = op_.tolerance_of(arg, case_.sizes);
    const int64_t elements = tensor.alloc_bytes() / templates::dtype_bytes(arg.dtype);
    const Comparison c =
        tools_.compare(tensor.memory.get(), tensor.first.get(), tensor.second.get(), elements,
                       arg.dtype, tolerance, poison);
    if (c.compared != elements) {
      return {Outcome::harness,
              fmt::format("{} of {} elements of {} were compared", c.compared, elements, arg.name)};
    }
    if (c.mismatches > 0) {
      return {Outcome::wrong,
              fmt::format("{}; {} elements of {} differ",
                          describe_mismatch(tensor, c.first_mismatch), c.mismatches, arg.name)};
    }
    if (tolerance.kind == Tolerance::Kind::bit_exact) continue;
    const double reference = std::sqrt(c.reference_squares);
    const double error = std::sqrt(c.error_squares);
    const double in_tolerance =
        error == 0 ? 0 : error / std::max(tolerance.bound * reference, 1e-300);
    verdict.worst_error = std::max(verdict.worst_error, in_tolerance);
    if (!(in_tolerance <= 1)) {
      return {Outcome::wrong,
              fmt::format("{} is off by {:.3g} of its rms; the tolerance is {}", arg.name,
                          error / std::max(reference, 1e-300), tolerance.text()),
              in_tolerance};
    }
  }
  return verdict;
}

RunVerdict PreparedCase::check(const RunnablePlan& plan) {
  const Poison poison{.seed = templates::counter_bits(case_.seed, 0xF2E5, ++runs_)};
  const std::string failure = run(plan, poison);
  try {
    tools_.device().synchronize(tools_.stream());
  } catch (const Error& error) {
    return {Outcome::trap, error.what()};
  }
  if (!failure.empty()) return {Outcome::launch, failure};

  RunVerdict verdict = compare_outputs(poison);
  if (verdict.outcome == Outcome::passed && digest() != digest_) {
    damaged_ = true;
    verdict = {Outcome::wrong, "changed an input, or memory that is not part of the call"};
  } else if (verdict.outcome == Outcome::wrong && digest() != digest_) {
    damaged_ = true;
  }
  if (workspace_digest_ != 0) {
    tools_.start_digest();
    tools_.add_to_digest(workspace_.get(), kGuardBytes);
    tools_.add_to_digest(workspace_.get() + static_cast<uint64_t>(workspace_.bytes() - kGuardBytes),
                         kGuardBytes);
    if (tools_.finish_digest() != workspace_digest_ && verdict.outcome == Outcome::passed) {
      verdict = {Outcome::wrong, "wrote outside of its workspace"};
    }
    workspace_.reset();
  }
  return verdict;
}

}  // namespace kiln::tuner
