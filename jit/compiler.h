// NVRTC behind one seam: KernelSource + constants + arch + options -> Binary.
// libnvrtc is found with dlopen (KILN_NVRTC, the CUDA toolkit's folders, the loader's path), its
// builtins are loaded from the same folder, and a pair of different versions is refused by name.
// Everything a template includes is handed over in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "jit/base/error.h"
#include "jit/base/hash.h"

namespace kiln::jit {

struct SourceFile {
  std::string path;  // as included: "templates/common/bf16.cuh"
  std::string text;
};

struct Constant {
  std::string name;
  std::string type;   // "int", "bool", "long long", or a type that a header of the source declares
  std::string value;  // as written in C++
};

// A self-contained template: one translation unit and the headers it may include. Hash covers the
// closure actually included.
struct KernelSource {
  SourceFile main;
  std::vector<SourceFile> headers;
  std::vector<Constant> constants;  // become `kiln_constants.h`, one `constexpr` line each
  std::string entry;                // extern "C" name of the __global__ function
};

enum class BinaryKind : int32_t { cubin = 0, ptx = 1 };  // stored; never renumber

struct CompileOptions {
  int max_registers = 0;  // 0: the compiler decides
  BinaryKind kind = BinaryKind::cubin;  // for "compute_80" and its like always PTX
  std::vector<std::string> extra;  // further NVRTC options, part of the key
};

struct Resources {
  int registers = 0;
  int64_t spill_store_bytes = 0;
  int64_t spill_load_bytes = 0;
  int64_t stack_bytes = 0;
  int64_t static_smem_bytes = 0;
};

struct Binary {
  Hash128 key;          // binary_key() of what it was made from
  Hash128 source_hash;  // of the closure
  std::string arch;     // "sm_86" for a cubin, "compute_80" for PTX
  std::string options;  // canonical, space separated
  std::string entry;
  BinaryKind kind = BinaryKind::cubin;
  std::string image;  // cubin or PTX bytes
  Resources resources;
  std::string log;
  std::string nvrtc_version;  // "13.0"; an attribute, not part of the key
  int64_t compile_ns = 0;
};

// Hash of source closure (main file, the headers it reaches, constants, entry) + options + arch:
// needs no NVRTC.
Hash128 binary_key(const KernelSource& source, std::string_view arch,
                   const CompileOptions& options);

// The whole closure as one file that plain `nvcc --fmad=false -arch=...` compiles: the includes are
// inlined in order.
std::string dump_source(const KernelSource& source);

class CompilePool;

class Compiler {
 public:
  // Finds and loads NVRTC once per process: what KILN_NVRTC names, else the newest that is usable.
  // With driver_cuda_major (13 for a driver of CUDA 13), a newer major version is passed over,
  // since that driver could not load its output; 0 means no driver is at hand. Fails with
  // no_compiler and the places searched.
  static std::shared_ptr<Compiler> load(int driver_cuda_major = 0);
  virtual ~Compiler() = default;

  virtual std::string version() const = 0;  // "13.0"
  virtual std::string library_path() const = 0;
  virtual std::vector<int> supported_archs() const = 0;  // 75, 80, 86, ...

  // Thread-safe. Fails with compile_error (full log, options, a window of the source) or
  // unsupported (arch not known to this NVRTC).
  virtual Binary compile(const KernelSource& source, std::string_view arch,
                         const CompileOptions& options) = 0;

 private:
  friend class CompilePool;
  std::weak_ptr<CompilePool> pool_;  // CompilePool::shared()
  int pool_process_ = 0;             // that made it
};

// One libnvrtc that was found, or a place named by KILN_NVRTC where none was.
struct NvrtcCandidate {
  std::string path;
  std::string origin;   // "KILN_NVRTC", "the loader's path", "CUDA_HOME", ...
  std::string version;  // "13.0", or "" when it does not load
  bool usable = false;
  std::string why;  // the defect, or the builtins that go with it
};

// Every NVRTC of this machine in the order of the search, for `kiln doctor`. What was opened stays
// open.
std::vector<NvrtcCandidate> nvrtc_candidates();

// How many compiles may run at once here, from the cores and the memory that are really available
// (cgroup limits counted).
struct PoolSize {
  int workers = 1;
  std::string why;  // "2 cores, 21.3 GiB free, 1 GiB each"
};
PoolSize pool_size();

// Workers over one Compiler, started as they are needed; equal requests share one compile.
class CompilePool {
 public:
  CompilePool(std::shared_ptr<Compiler> compiler, int workers);  // so many at most
  ~CompilePool();  // drops what has not begun, waits for what has

  // The pool that sessions and tunings of this process share for this compiler, so that the number
  // of compiles at once does not grow with those who ask. It ends with its last holder; `workers`
  // counts when it is made. A forked child makes its own.
  static std::shared_ptr<CompilePool> shared(const std::shared_ptr<Compiler>& compiler,
                                             int workers);

  struct Request {
    Hash128 key;
    std::shared_future<Binary> result;
    bool is_first = true;     // false: somebody else had asked for the same before
    uint64_t generation = 0;  // tells it from requests of the same key after it failed
  };
  Request request(KernelSource source, std::string arch, CompileOptions options);
  std::shared_future<Binary> submit(KernelSource source, std::string arch, CompileOptions options);

  // Takes a request back. dropped: it had not begun, nobody else wants it, and its result is an
  // error. expected: its result is there or comes; a request of the same key that somebody has made
  // since then is left alone. shared: others still wait for it in the queue.
  enum class Withdrawn { dropped, expected, shared };
  Withdrawn withdraw(const Request& request);

  int workers() const;
  int waiting() const;  // compiles that have not begun

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kiln::jit
