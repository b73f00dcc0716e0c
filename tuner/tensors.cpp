#include "tuner/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "templates/abi.h"

namespace kiln::tuner {

using templates::DType;

namespace {

using templates::Case;
using templates::Extent;
using templates::Field;
using templates::FieldKind;
using templates::NamedInts;
using templates::Op;
using templates::Sizes;

constexpr int kMaxFillThreads = 16;
constexpr int64_t kMaxGridX = 2147483647;
constexpr int64_t kMaxGridYz = 65535;

const TensorPlan* find_tensor(std::span<const TensorPlan> tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const TensorPlan& t) { return t.arg->name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

}  // namespace

std::vector<TensorPlan> tensor_plans(const Op& op, const Case& c) {
  std::vector<TensorPlan> plans;
  for (const templates::Arg& arg : op.args) {
    const bool is_taken = arg.presence_in(c.sizes) != templates::Presence::absent;
    if (is_taken && c.has(arg.name)) plans.push_back({&arg, templates::tensor_layout(op, arg, c)});
  }
  return plans;
}

uint64_t element_bits(DType dtype, double value) {
  switch (dtype) {
    case DType::u8:
      return static_cast<uint8_t>(static_cast<int64_t>(value));
    case DType::i32:
      return static_cast<uint32_t>(static_cast<int32_t>(value));
    case DType::i64:
      return static_cast<uint64_t>(static_cast<int64_t>(value));
    case DType::f32: {
      const float narrow = static_cast<float>(value);
      uint32_t bits = 0;
      std::memcpy(&bits, &narrow, sizeof(bits));
      return bits;
    }
    case DType::bf16: {
      double rounded = value;
      if (std::isfinite(value) && value != 0) {
        const double step = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
        rounded = std::nearbyint(value / step) * step;
      }
      const float narrow = static_cast<float>(rounded);  // exact, or an overflow to infinity
      uint32_t bits = 0;
      std::memcpy(&bits, &narrow, sizeof(bits));
      return std::isnan(value) ? 0x7FC0 : bits >> 16;
    }
  }
  fail(Status::internal, "unknown dtype {}", static_cast<int>(dtype));
}

double element_value(DType dtype, uint64_t bits) {
  switch (dtype) {
    case DType::u8:
      return static_cast<double>(bits & 0xFF);
    case DType::i32:
      return static_cast<int32_t>(bits);
    case DType::i64:
      return static_cast<double>(static_cast<int64_t>(bits));
    case DType::f32:
    case DType::bf16: {
      const auto wide = static_cast<uint32_t>(dtype == DType::bf16 ? bits << 16 : bits);
      float value = 0;
      std::memcpy(&value, &wide, sizeof(value));
      return value;
    }
  }
  fail(Status::internal, "unknown dtype {}", static_cast<int>(dtype));
}

void parallel_pieces(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  const int64_t cores =
      std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, kMaxFillThreads);
  const int64_t pieces = std::min(cores, count);
  if (pieces <= 1) {
    if (count > 0) body(0, count);
    return;
  }
  std::mutex mutex;
  std::exception_ptr failure;
  {
    std::vector<std::jthread> threads;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      threads.emplace_back([&, piece] {
        try {
          body(count * piece / pieces, count * (piece + 1) / pieces);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!failure) failure = std::current_exception();
        }
      });
    }
  }
  if (failure) std::rethrow_exception(failure);
}

std::vector<std::byte> host_contents(const templates::Kit& kit, const Case& c,
                                     const TensorPlan& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()), std::byte{0xFF});
  const auto& [dims, strides, elements] = tensor.layout;
  if (elements == 0) return bytes;
  const int64_t element_bytes = templates::dtype_bytes(tensor.arg->dtype);
  const size_t outer_rank = dims.size() - 1;
  int64_t rows = 1;
  for (size_t d = 0; d < outer_rank; ++d) rows *= dims[d];
  const auto row_bytes = static_cast<size_t>(dims.back() * element_bytes);

  parallel_pieces(rows, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> outer(outer_rank);
    for (int64_t row = begin; row < end; ++row) {
      int64_t rest = row;
      int64_t offset = 0;
      for (size_t d = outer_rank; d-- > 0;) {
        outer[d] = rest % dims[d];
        rest /= dims[d];
        offset += outer[d] * tensor.layout.strides[d];
      }
      kit.fill(c, *tensor.arg, outer, {bytes.data() + offset * element_bytes, row_bytes});
    }
  });
  return bytes;
}

std::vector<uint64_t> pack_arguments(const Op& op, const Case& c,
                                     std::span<const TensorPlan> tensors,
                                     const std::map<std::string, runtime::DevicePtr>& pointers,
                                     const Workspace& workspace) {
  const std::vector<Field> fields = templates::abi_fields(op);
  const auto value = [&](const Field& field) -> uint64_t {
    switch (field.kind) {
      case FieldKind::struct_bytes:
        return fields.size() * templates::kFieldBytes;
      case FieldKind::pointer: {
        const auto found = pointers.find(op.args[static_cast<size_t>(field.arg)].name);
        return found == pointers.end() ? 0 : found->second;
      }
      case FieldKind::stride: {
        const TensorPlan* tensor =
            find_tensor(tensors, op.args[static_cast<size_t>(field.arg)].name);
        return tensor == nullptr
                   ? 0
                   : static_cast<uint64_t>(tensor->layout.strides[static_cast<size_t>(field.dim)]);
      }
      case FieldKind::size:
        return static_cast<uint64_t>(c.sizes[op.sizes[static_cast<size_t>(field.size)].symbol]);
      case FieldKind::workspace:
        return workspace.pointer;
      case FieldKind::workspace_bytes:
        return static_cast<uint64_t>(workspace.bytes);
    }
    fail(Status::internal, "{}: unknown field kind {}", op.name, static_cast<int>(field.kind));
  };
  std::vector<uint64_t> words;
  for (const Field& field : fields) words.push_back(value(field));
  return words;
}

Sizes extent_symbols(const Op& op, const Case& c) {
  Sizes symbols = templates::with_derived(op, c.sizes);
  const std::vector<TensorPlan> tensors = tensor_plans(op, c);
  for (const Field& field : templates::abi_fields(op)) {
    if (field.kind != FieldKind::stride) continue;
    const TensorPlan* tensor = find_tensor(tensors, op.args[static_cast<size_t>(field.arg)].name);
    symbols.set(field.name,
                tensor == nullptr ? 0 : tensor->layout.strides[static_cast<size_t>(field.dim)]);
  }
  return symbols;
}

std::string launch_plan(runtime::Device& device, const RunnablePlan& plan, const Sizes& symbols,
                        const void* args, runtime::Stream stream) {
  for (const RunnableKernel& kernel : plan.kernels) {
    const int64_t x = kernel.grid_x.value(symbols);
    const int64_t y = kernel.grid_y.value(symbols);
    const int64_t z = kernel.grid_z.value(symbols);
    if (x <= 0 || y <= 0 || z <= 0) continue;
    if (x > kMaxGridX || y > kMaxGridYz || z > kMaxGridYz) {
      return fmt::format("{}: a grid of {} x {} x {} CTAs is beyond what a launch takes",
                         kernel.entry, x, y, z);
    }
    const runtime::Dim3 grid{static_cast<uint32_t>(x), static_cast<uint32_t>(y),
                             static_cast<uint32_t>(z)};
    const runtime::LaunchResult result = device.launch(kernel.kernel, grid, args, stream);
    if (result.driver_error != 0)
      return fmt::format("{}: {}", kernel.entry, device.error_text(result.driver_error));
  }
  return "";
}

Json ints_json(const NamedInts& ints) {
  Json object = Json::object();
  for (const auto& [name, value] : ints) object[name] = value;
  return object;
}

NamedInts ints_from_json(const Json& json) {
  NamedInts ints;
  for (const auto& [name, value] : json.items()) ints.set(name, value.get<int64_t>());
  return ints;
}

Json case_json(const Case& c) {
  return Json{{"name", c.name},
              {"sizes", ints_json(c.sizes)},
              {"strides", ints_json(c.strides)},
              {"knobs", ints_json(c.knobs)},
              {"absent", c.absent},
              {"seed", c.seed}};
}

Case case_from_json(const Json& json) {
  return Case{.name = json.at("name"),
              .sizes = ints_from_json(json.at("sizes")),
              .strides = ints_from_json(json.at("strides")),
              .knobs = ints_from_json(json.at("knobs")),
              .absent = json.at("absent").get<std::vector<std::string>>(),
              .seed = json.at("seed")};
}

}  // namespace kiln::tuner
