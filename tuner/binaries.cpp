#include "tuner/binaries.h"

#include "tuner/device_tools.h"

namespace kiln::tuner {

Binaries::~Binaries() {
  for (const auto& [key, request] : coming_) pool_->withdraw(request);
  store_.touch(used_);
}

jit::CompilePool& Binaries::pool() {
  if (pool_ == nullptr) {
    pool_ = jit::CompilePool::shared(jit::Compiler::load(cuda_major_), jit::pool_size().workers);
  }
  return *pool_;
}

void Binaries::ahead(const jit::KernelSource& source, const std::string& arch,
                     const jit::CompileOptions& options) {
  const Hash128 key = jit::binary_key(source, arch, options);
  if (ready_.contains(key) || coming_.contains(key)) return;
  if (std::optional<jit::Binary> stored = store_.find_binary(key)) {
    ready_[key] = std::make_shared<const jit::Binary>(std::move(*stored));
    used_.push_back(key);
    return;
  }
  try {
    coming_[key] = pool().request(source, arch, options);
  } catch (const Error&) {
    // get() asks again and tells.
  }
}

BinaryPtr Binaries::get(const jit::KernelSource& source, const std::string& arch,
                        const jit::CompileOptions& options) {
  const Hash128 key = jit::binary_key(source, arch, options);
  ahead(source, arch, options);
  if (const auto found = ready_.find(key); found != ready_.end()) return found->second;
  if (!coming_.contains(key)) coming_[key] = pool().request(source, arch, options);
  auto binary = std::make_shared<const jit::Binary>(coming_.at(key).result.get());
  coming_.erase(key);
  return ready_[key] = std::move(binary);
}

BinaryPtr Binaries::oracle(const templates::Kit& kit, const templates::Sizes& fixed,
                           const std::string& arch) {
  const templates::KernelLaunch launch = kit.oracle(fixed);
  return get(templates::kernel_source(*kit.op, launch), arch, templates::compile_options(launch));
}

std::map<std::string, BinaryPtr> Binaries::tools(const std::string& arch) {
  std::map<std::string, BinaryPtr> tools;
  for (const auto& [file, entry] : tool_kernels()) ahead(tool_source(file, entry), arch, {});
  for (const auto& [file, entry] : tool_kernels())
    tools[entry] = get(tool_source(file, entry), arch, {});
  return tools;
}

}  // namespace kiln::tuner
