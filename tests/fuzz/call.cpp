// The struct of an op call, of every op, in a sealed session on the fake driver: it is refused with
// a sentence, or it reaches the driver. The struct is in memory of just the size that it states.
//   input: which plan, one byte; then records of ten bytes (field, how, a number of eight bytes)
//          that change a legal call; a first byte of 128 and more: the bytes of the struct itself
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cache/store.h"
#include "runtime/call.h"
#include "runtime/workload.h"
#include "templates/abi.h"
#include "templates/kit.h"
#include "tests/fake_cuda/fake_cubin.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fuzz/fuzz.h"

namespace kiln::fuzz {
namespace {

using templates::Field;
using templates::FieldKind;

constexpr size_t kFieldBytes = templates::kFieldBytes;
constexpr size_t kMostStructBytes = 96 * kFieldBytes;  // what the library looks at

struct Target {
  kiln_plan* plan = nullptr;
  int op_index = 0;
  std::vector<int64_t> legal;  // the fields of a legal call
};

std::vector<int64_t> legal_call(const templates::Op& op, const templates::Sizes& fixed) {
  const templates::Case c =
      templates::require_kit(op).measured_case(fixed, templates::all_buckets(op).front());
  const std::vector<Field> fields = templates::abi_fields(op);
  std::vector<int64_t> values;
  for (const Field& field : fields) {
    const auto index = static_cast<int64_t>(values.size());
    switch (field.kind) {
      case FieldKind::struct_bytes:
        values.push_back(static_cast<int64_t>(fields.size() * kFieldBytes));
        break;
      case FieldKind::pointer: {
        const templates::Arg& arg = op.args[static_cast<size_t>(field.arg)];
        const bool is_given =
            c.has(arg.name) && arg.presence_in(fixed) != templates::Presence::absent;
        values.push_back(is_given ? (index + 1) << 40 : 0);
        break;
      }
      case FieldKind::stride: {
        const templates::Arg& arg = op.args[static_cast<size_t>(field.arg)];
        values.push_back(
            templates::tensor_layout(op, arg, c).strides[static_cast<size_t>(field.dim)]);
        break;
      }
      case FieldKind::size:
        values.push_back(c.sizes[op.sizes[static_cast<size_t>(field.size)].symbol]);
        break;
      case FieldKind::workspace:
        values.push_back(int64_t{1} << 50);
        break;
      case FieldKind::workspace_bytes:
        values.push_back(int64_t{1} << 46);
        break;
    }
  }
  return values;
}

// Binaries of the default configs, as a compile would have left them in the store.
void seed(const std::string& path, const std::vector<runtime::WorkloadItem>& items) {
  const Gpu& gpu = find_gpu("a100-sxm4-80gb");
  const auto store = cache::Store::open({.path = path, .pack = ":"});
  for (const runtime::WorkloadItem& item : items) {
    const templates::Config config = item.op->default_config(item.fixed);
    for (const auto& launch : item.op->plan(item.fixed, config, gpu).kernels) {
      jit::Binary binary;
      binary.key = jit::binary_key(templates::kernel_source(*item.op, launch), gpu.arch(),
                                   templates::compile_options(launch));
      binary.arch = gpu.arch();
      binary.entry = launch.entry;
      binary.nvrtc_version = "13.0";
      binary.resources.registers = 32;
      binary.image = fake::make_cubin(gpu.cc(), {{.name = launch.entry}});
      require(store->put_binary(binary), "no binary is kept");
    }
  }
}

std::vector<Target> open_targets() {
  setenv("KILN_LIBCUDA", KILN_FAKE_LIBCUDA, 1);
  setenv("KILN_NVRTC", "/nonexistent", 1);
  fake_cuda_reset();
  fake_cuda_set_recording(0);
  std::string folder = (std::filesystem::temp_directory_path() / "kiln-fuzz-XXXXXX").string();
  require(mkdtemp(folder.data()) != nullptr, "no folder can be made");
  const std::string path = folder + "/kiln.db";
  const std::vector<runtime::WorkloadItem> items = runtime::parse_workload("");
  seed(path, items);
  kiln_options options{};
  options.size = sizeof options;
  options.store = path.c_str();
  kiln_session* session = nullptr;
  require(kiln_open(&options, &session) == KILN_OK, kiln_last_error());
  require(kiln_prepare(session, nullptr, nullptr, nullptr) == KILN_OK, kiln_last_error());
  require(kiln_seal(session) == KILN_OK, kiln_last_error());
  std::vector<Target> targets;
  for (const runtime::WorkloadItem& item : items) {
    Target target;
    while (templates::ops()[static_cast<size_t>(target.op_index)] != item.op) ++target.op_index;
    const std::string shape = templates::shape_json(*item.op, item.fixed).dump();
    require(
        kiln_plan_create(session, item.op->name.c_str(), shape.c_str(), &target.plan) == KILN_OK,
        kiln_last_error());
    target.legal = legal_call(*item.op, item.fixed);
    require(runtime::call_op(target.plan, target.op_index, target.legal.data(), nullptr) == KILN_OK,
            kiln_last_error());
    targets.push_back(std::move(target));
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);  // it is read; nothing compiles any more
  return targets;
}

int64_t changed(int64_t value, uint8_t how, int64_t number) {
  const auto bits = static_cast<uint64_t>(value);
  switch (how % 8) {
    case 0:
      return number;
    case 1:
      return static_cast<int64_t>(bits + static_cast<uint64_t>(number));
    case 2:
      return static_cast<int64_t>(static_cast<uint64_t>(number) % 4096);
    case 3:
      return static_cast<int64_t>(uint64_t{1} << (number & 63));
    case 4:
      return static_cast<int64_t>((uint64_t{1} << (number & 63)) - 1);
    case 5:
      return static_cast<int64_t>(bits ^ (uint64_t{1} << (number & 63)));
    case 6:
      return static_cast<int64_t>(uint64_t{0} - bits);
    default:
      return static_cast<int64_t>(bits + static_cast<uint64_t>(number % 17) - 8);
  }
}

void call(const Target& target, const std::vector<uint8_t>& struct_bytes) {
  // Exactly what is stated, and never less than what states it.
  uint64_t stated = 0;
  std::memcpy(&stated, struct_bytes.data(), sizeof stated);
  const size_t bytes =
      stated > kMostStructBytes || stated < sizeof stated ? sizeof stated : size_t{stated};
  const std::unique_ptr<uint8_t[]> args(new uint8_t[bytes]());
  std::memcpy(args.get(), struct_bytes.data(), std::min(bytes, struct_bytes.size()));

  uint64_t workspace_bytes = 1;
  for (const kiln_status status :
       {runtime::call_workspace(target.plan, target.op_index, args.get(), &workspace_bytes),
        runtime::call_op(target.plan, target.op_index, args.get(), nullptr)}) {
    require(status == KILN_OK || status == KILN_INVALID_ARGUMENT, kiln_last_error());
    require(status == KILN_OK || std::strlen(kiln_last_error()) > 20, "a refusal says too little");
  }
  require(workspace_bytes <= uint64_t{INT64_MAX}, "a workspace that no memory holds");
}

}  // namespace
}  // namespace kiln::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace kiln::fuzz;
  static const std::vector<Target> targets = open_targets();
  Bytes input(data, bytes);
  const uint8_t first = input.take<uint8_t>();
  const Target& target = targets[first % 128 % targets.size()];
  std::vector<uint8_t> args(target.legal.size() * sizeof(int64_t));
  std::memcpy(args.data(), target.legal.data(), args.size());
  if (first >= 128) {
    args.assign(input.data(), input.data() + input.left());
    args.resize(std::max(args.size(), sizeof(uint64_t)));
  }
  while (first < 128 && input.left() > 0) {
    const size_t field = input.take<uint8_t>() % target.legal.size();
    const uint8_t how = input.take<uint8_t>();
    const int64_t number = input.take<int64_t>();
    int64_t value = 0;
    std::memcpy(&value, args.data() + field * sizeof value, sizeof value);
    value = changed(value, how, number);
    std::memcpy(args.data() + field * sizeof value, &value, sizeof value);
  }
  call(target, args);
  return 0;
}
