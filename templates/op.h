// The description of an op: all that generic code knows about it. Jit, store, tuner, runtime,
// simulator, CLI and tests work on this and name no op. A new op is one folder with one `const Op`
// and one line in registry.cpp.
//
// Kernels take one parameter: the op's argument struct, by value. Its layout is made from the
// description (abi.h), the same for the C header and for the device, so no code marshals arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jit/base/error.h"
#include "jit/base/gpu.h"
#include "jit/base/json.h"
#include "jit/compiler.h"

namespace kiln::templates {

// Named integers in the order of their names: sizes, configs.
class NamedInts {
 public:
  NamedInts() = default;
  NamedInts(std::initializer_list<std::pair<const std::string, int64_t>> values)
      : values_(values) {}

  int64_t operator[](std::string_view name) const;  // fails with internal when absent
  int64_t get(std::string_view name, int64_t otherwise) const;
  bool contains(std::string_view name) const { return values_.find(name) != values_.end(); }
  void set(std::string_view name, int64_t value) {
    values_.insert_or_assign(std::string(name), value);
  }
  NamedInts merged(const NamedInts& over) const;  // values of `over` win
  bool empty() const { return values_.empty(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  auto operator<=>(const NamedInts&) const = default;

 private:
  std::map<std::string, int64_t, std::less<>> values_;
};
using Sizes = NamedInts;   // symbol -> value
using Config = NamedInts;  // axis -> value

enum class DType : int32_t { u8, i32, i64, bf16, f32 };
int64_t dtype_bytes(DType dtype);
const char* dtype_name(DType dtype);    // "bf16"
const char* dtype_c_type(DType dtype);  // "uint16_t": the element type in kiln_ops.h

// offset + scale * product of min(ceil(symbol / divisor), cap). Symbols are sizes, stride fields or
// derived sizes of the form constant + factor * dynamic size.
// Saturates instead of overflowing.
struct Term {
  std::string symbol;
  int64_t divisor = 1;
  int64_t cap = std::numeric_limits<int64_t>::max();
};
struct Extent {
  int64_t offset = 0;
  int64_t scale = 1;
  std::vector<Term> terms;

  int64_t value(const Sizes& sizes) const;
};

// A named size. Fixed sizes are compile-time constants and part of the problem; dynamic sizes come
// with each call, as one int64 field each; derived sizes follow from the others and only describe
// extents.
enum class SizeKind { fixed, dynamic, derived };
struct SizeName {
  std::string name;  // "f1"
  int64_t value = 0;
};
struct Size {
  std::string symbol;  // as in the dims of the arguments: "T"
  std::string field;   // in the ABI struct and in JSON: "num_tokens"
  SizeKind kind = SizeKind::dynamic;
  std::string doc;   // what the number says: "rows of the chunk, padding included"
  std::string item;  // one of what it counts, where a stride steps over it: "row of the chunk"
  int64_t min = 0;
  int64_t max = std::numeric_limits<int64_t>::max();
  std::vector<SizeName>
      names;  // a fixed size whose values have names (formats); then only these are legal
  // Of a derived size: constant or a sum of multiples of dynamic sizes; or an extent of them. A
  // call computes either without this function.
  int64_t (*derive)(const Sizes&) = nullptr;
  Extent (*derive_extent)(const Sizes& fixed) = nullptr;

  int64_t derived_value(const Sizes& sizes) const;
  const std::string* name_of(int64_t value) const;  // nullptr when it has none
};

enum class ArgKind { input, output, inout };
enum class Presence {
  required,
  optional,
  absent  // has to be NULL: see presence_in()
};
// The fixed shapes in which a size has one of some values. Without a symbol: all.
struct ShapeCondition {
  std::string symbol;
  std::vector<int64_t> values;

  bool holds(const Sizes& fixed) const;
};
enum class Memory {
  warm,
  cold
};  // cold: weights and caches, read once from DRAM; warm: what the layer has just written

struct Tolerance {
  enum class Kind {
    bit_exact,
    relative_rms
  } kind = Kind::bit_exact;  // bit-exact: any NaN equals any NaN
  double bound = 0;
  std::string text() const;
};
inline const Tolerance bit_exact{};

// A tensor argument: a device pointer and, for every dimension but the innermost (whose stride is
// 1), a stride in elements.
struct Arg {
  std::string name;
  DType dtype = DType::u8;
  ArgKind kind = ArgKind::input;
  std::vector<std::string> dims;  // symbols, outermost first
  std::string doc;
  Presence presence = Presence::required;
  ShapeCondition only_in;                        // the argument is NULL in every other shape
  std::optional<ShapeCondition> pinned_in = {};  // shapes in which it is pinned memory of the host
  Memory memory = Memory::warm;
  int64_t align_bytes = 4;                  // of the base pointer
  int64_t stride_multiple = 1;              // every stride is a multiple of this many elements
  std::optional<Tolerance> tolerance = {};  // of an output where it is not the op's

  Presence presence_in(const Sizes& fixed) const;
  bool is_pinned(const Sizes& fixed) const;
};

// Legal calls have small <= big. `sentence` says so in the words of the caller: "idx_width must be
// at least top_k + 128".
struct Requirement {
  Extent small;
  Extent big;
  std::string sentence;
};

// Sizes that a problem distinguishes; a size between two edges takes the nearest (by ratio).
struct Bucket {
  std::string symbol;
  std::vector<int64_t> edges;  // ascending
};

// The fewest bytes and operations that any implementation must spend.
struct Cost {
  double cold_read_bytes = 0;
  double bus_read_bytes = 0;  // from pinned memory of the host
  double warm_read_bytes = 0;
  double in_place_read_bytes = 0;  // of what is written again: warm in a model, rotates in a bench
  double write_bytes = 0;
  double integer_operations = 0;
  double mma_fma = 0;  // tensor-core multiply-adds
};

struct Axis {
  std::string name;
  std::vector<int64_t> values;
  std::string doc;
};
struct Rule {
  std::string
      why;  // why a config that breaks it is dropped: "a CTA would hold more warps than an SM"
  std::function<bool(const Sizes& fixed, const Config&, const Gpu&)> keeps;
};
struct Space {
  std::vector<Axis> axes;
  std::vector<Rule> rules;
};

// What the analytic model cannot see from resources alone. Per CTA, at the sizes of the problem.
struct ModelHints {
  double bytes_in_flight_per_thread = 16;  // loads issued before the first use
  double instructions_per_thread = 50;     // issued by one thread over its life, roughly
  double dependent_loads = 2;              // length of the longest chain of loads
};

struct KernelLaunch {
  std::string file;   // in the op's folder: "kernel.cu"
  std::string entry;  // extern "C" name
  std::vector<jit::Constant> constants;
  Extent grid_x;
  Extent grid_y;  // y and z end at 65,535: no size that can grow belongs there
  Extent grid_z;
  int threads = 128;
  int64_t dynamic_smem_bytes = 0;
  int max_registers = 0;
  double instructions_per_thread = 0;  // for the analytic model; 0: as the op's hints say
};

struct LaunchPlan {
  std::vector<KernelLaunch> kernels;  // in stream order
  std::string reduction_signature;    // "" for ops without a reduction
  Extent workspace_bytes{
      .scale =
          0};  // of the call; ops with a workspace have the fields `workspace`, `workspace_bytes`
};

struct Op {
  std::string name;
  int version = 1;
  std::string summary;  // one sentence
  std::string doc;      // formula and rules, for kiln_ops.h and `kiln show`
  std::string source;   // of the formula: "ops.md B15.2"
  std::vector<Size> sizes;
  std::vector<Arg> args;  // order of the ABI struct; sizes follow
  std::vector<Requirement> requirements;
  std::vector<Bucket> buckets;
  bool has_workspace = false;
  int min_cc = 80;
  // Whether the kernels of one fixed shape add in the same order at every size, so that decode,
  // prefill and verification agree to the bit: always where a selection follows (router, indexer),
  // elsewhere when tuning asks for it.
  enum class Invariance { on_request, always } invariance = Invariance::on_request;
  Tolerance tolerance = bit_exact;
  Tolerance (*tolerance_in)(const Sizes& fixed) = nullptr;  // optional; instead, of a shape

  std::vector<Sizes> (*model_shapes)(int tensor_parallel) =
      nullptr;                                        // fixed sizes of DeepSeek-V4.1-Flash
  void (*check_fixed)(const Sizes& fixed) = nullptr;  // optional; fails with a sentence
  Cost (*cost)(const Sizes& sizes) = nullptr;         // fixed and dynamic, lengths at capacity
  Space (*space)(const Sizes& fixed, const Gpu& gpu) = nullptr;
  Config (*default_config)(const Sizes& fixed) =
      nullptr;  // legal for every dynamic size, at most 48 KB of shared memory
  LaunchPlan (*plan)(const Sizes& fixed, const Config& config, const Gpu& gpu) = nullptr;
  ModelHints (*model)(const Sizes& sizes, const Config& config, const Gpu& gpu) = nullptr;

  const Size* find_size(std::string_view symbol_or_field) const;
  const Arg* find_arg(std::string_view arg) const;
  Tolerance tolerance_of(const Arg& arg, const Sizes& fixed) const;
  Tolerance tolerance_of(const Sizes& fixed) const;  // of outputs without one of their own
  std::string result_text() const;                   // what is promised of all outputs
};

// Short forms for the tables.
Size fixed(std::string symbol, std::string field, std::string doc, int64_t min, int64_t max);
Size fixed(std::string symbol, std::string field, std::string doc, std::vector<SizeName> names);
Size dynamic(std::string symbol, std::string field, std::string doc, int64_t min = 0,
             int64_t max = std::numeric_limits<int64_t>::max());
Size derived(std::string symbol, std::string item, int64_t (*derive)(const Sizes&));
Size derived(std::string symbol, std::string item, Extent (*derive)(const Sizes& fixed));
Size stepped(Size size, std::string item);  // the size of a dimension that has a stride
Arg in(std::string name, DType dtype, std::string_view dims, std::string doc);  // dims: "T K"
Arg out(std::string name, DType dtype, std::string_view dims, std::string doc);
Arg only_in(const ShapeCondition& condition, Arg arg);
Arg pinned_in(const ShapeCondition& condition, Arg arg);
Arg vectors(Arg arg, int64_t stride_multiple);  // read or written 16 bytes at a time
Arg cold(Arg arg);
Arg inout(Arg arg);     // of an input: is written too
Arg optional(Arg arg);  // may be NULL
Arg to_within(Arg arg, double relative_rms);
jit::Constant constant(std::string name, int64_t value);  // an int
// CTAs of `of_cta` units when every row has `of_row`: ceil(rows * of_row / of_cta), rounded up to a
// multiple of of_row / gcd(of_row, of_cta).
Extent grid_over_rows(std::string rows_symbol, int64_t of_row, int64_t of_cta);

std::span<const Op* const> ops();             // all, in the order of the registry
const Op* find_op(std::string_view name);     // nullptr when unknown
const Op& require_op(std::string_view name);  // fails with not_found and the list
void register_test_op(const Op* op);          // tests only: before any session or tuner exists

// Fixed shape <-> JSON by field names: {"format":"f1"}, {"ratio":2,"top_k":512}. Unknown, missing
// and illegal values fail with a sentence that names op, field, what was expected and what came.
Sizes parse_shape(const Op& op, const Json& shape);
Json shape_json(const Op& op, const Sizes& fixed);
// Dynamic sizes by field names. Fields left out are left out of the result.
Sizes parse_dynamic(const Op& op, const Json& sizes);
Json dynamic_json(const Op& op, const Sizes& dynamic);
Json config_json(const Config& config);
Config parse_config(const Op& op, const Sizes& fixed, const Gpu& gpu, const Json& config);
Sizes with_derived(const Op& op, const Sizes& sizes);
// Of the argument with dense rows; 0 when this shape has none. `dynamic` holds every dynamic size.
int64_t dense_bytes(const Op& op, const Arg& arg, const Sizes& fixed, const Sizes& dynamic);

// Every bucket of the op, as dynamic sizes of the bucket symbols; one empty entry for an op without
// buckets.
std::vector<Sizes> all_buckets(const Op& op);
Sizes nearest_bucket(const Op& op, const Sizes& dynamic);
std::string bucket_key(const Op& op, const Sizes& bucket);  // canonical JSON by field names

// Candidates of the space that its rules keep, the default first; `dropped` counts by reason.
struct Enumeration {
  std::vector<Config> configs;
  int64_t total = 0;
  std::map<std::string, int64_t> dropped;
};
Enumeration enumerate(const Op& op, const Sizes& fixed, const Gpu& gpu);

// Kernel sources embedded at build time, by path in the tree. An op's files are
// `templates/<op>/<file>`.
std::span<const jit::SourceFile> builtin_sources();
const jit::SourceFile* find_source(std::string_view path);  // nullptr when unknown
void register_test_source(jit::SourceFile source);  // tests only: "templates/<op>/kernel.cu"
// The translation unit of one launch with every header it may include: templates/common/ (kernels),
// templates/naive/ (oracles), the op's own, generated `kiln_args.h`.
jit::KernelSource kernel_source(const Op& op, const KernelLaunch& launch);
jit::CompileOptions compile_options(const KernelLaunch& launch);

}  // namespace kiln::templates
