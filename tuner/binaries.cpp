#include "tuner/binaries.h"

#include "tuner/device_tools.h"

namespace kiln::tuner {

Binaries::~Binaries() {
  for (const auto& [key, request] : coming_) pool_->withdraw(request);
  store_.touch(used_);
}

const std::shared_ptr<jit::CompilePool>& Binaries::pool() {
  if (pool_ == nullptr) {
    pool_ = jit::CompilePool::shared(jit::Compiler::load(cuda_major_), jit::pool_size().workers);
  }
  return pool_;
}

// Whether it is in memory or in the store.
bool Binaries::find(const Hash128& key) {
  if (ready_.contains(key)) return true;
  std::optional<jit::Binary> stored = store_.find_binary(key);
  if (!stored) return false;
  ready_[key] = std::make_shared<const jit::Binary>(std::move(*stored));
  used_.push_back(key);
  return true;
}

void Binaries::ahead(const jit::KernelSource& source, const std::string& arch,
                     const jit::CompileOptions& options) {
  const Hash128 key = jit::binary_key(source, arch, options);
  if (coming_.contains(key) || find(key)) return;
  try {
    coming_[key] = pool()->request(source, arch, options);
  } catch (const Error&) {
    // get() asks again and tells.
  }
}

BinaryPtr Binaries::get(const jit::KernelSource& source, const std::string& arch,
                        const jit::CompileOptions& options) {
  const Hash128 key = jit::binary_key(source, arch, options);
  ahead(source, arch, options);
  if (const auto found = ready_.find(key); found != ready_.end()) return found->second;
  if (!coming_.contains(key)) coming_[key] = pool()->request(source, arch, options);
  const jit::CompilePool::Request request = coming_.at(key);
  request.result.wait();
  if (request.is_first) ++compiles_;
  auto binary = std::make_shared<const jit::Binary>(request.result.get());
  coming_.erase(key);
  return ready_[key] = std::move(binary);
}

void Binaries::share(const std::vector<Need>& needs) {
  std::map<Hash128, const Need*> missing;
  for (const Need& need : needs) {
    const Hash128 key = jit::binary_key(need.source, need.arch, need.options);
    if (!find(key)) missing.emplace(key, &need);
  }
  if (missing.empty()) return;
  std::vector<jit::Binary> unwritten;
  const bool is_kept = store_.info().writable;
  const auto publish = [&] {
    if (is_kept && !unwritten.empty()) store_.put_kernels(unwritten, {});
    unwritten.clear();
  };
  const auto log = [&](const std::string& line) {
    if (log_) log_(line);
  };
  runtime::SharedCompiles compiles(store_, pool(), publish, log);
  for (const auto& [key, need] : missing)
    compiles.add(key, need->source, need->arch, need->options);
  constexpr auto kLook = std::chrono::milliseconds(200);
  while (!compiles.done()) {
    if (stop_ != nullptr && stop_->load()) {
      for (const jit::CompilePool::Request& begun : compiles.stop()) {
        try {
          unwritten.push_back(begun.result.get());
        } catch (const Error&) {
          // Whoever needs it is told then.
        }
      }
      publish();
      fail(Status::interrupted,
           "stopped before the kernels that every tuning needs were there; what was compiled is "
           "stored, the same command goes on");
    }
    auto finished = compiles.next(kLook);
    if (!finished) continue;
    if (finished->stored) {
      used_.push_back(finished->key);
      ready_[finished->key] = std::make_shared<const jit::Binary>(std::move(*finished->stored));
      continue;
    }
    if (finished->compiled->is_first) ++compiles_;
    try {
      const jit::Binary& binary = finished->compiled->result.get();
      unwritten.push_back(binary);
      ready_[finished->key] = std::make_shared<const jit::Binary>(binary);
    } catch (const Error&) {
      publish();
      throw;
    }
  }
  publish();
}

BinaryPtr Binaries::oracle(const templates::Kit& kit, const templates::Sizes& fixed,
                           const std::string& arch) {
  const templates::KernelLaunch launch = kit.oracle(fixed);
  const Need need{.source = templates::kernel_source(*kit.op, launch),
                  .arch = arch,
                  .options = templates::compile_options(launch)};
  share({need});
  return get(need.source, need.arch, need.options);
}

std::map<std::string, BinaryPtr> Binaries::tools(const std::string& arch) {
  std::vector<Need> needs;
  for (const auto& [file, entry] : tool_kernels())
    needs.push_back({.source = tool_source(file, entry), .arch = arch, .options = {}});
  share(needs);
  std::map<std::string, BinaryPtr> tools;
  for (const auto& [file, entry] : tool_kernels())
    tools[entry] = get(tool_source(file, entry), arch, {});
  return tools;
}

}  // namespace kiln::tuner
