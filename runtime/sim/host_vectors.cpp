#include "runtime/sim/host_vectors.h"

#include <cstdlib>
#include <string_view>

namespace kiln::runtime::sim {

HostVectors host_vectors() {
  static const HostVectors best = [] {
    const char* const wish = std::getenv("KILN_SIM_HOST");
    if (wish != nullptr && std::string_view(wish) == "base") return HostVectors::base;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return HostVectors::avx2;
#endif
    return HostVectors::base;
  }();
  return best;
}

}  // namespace kiln::runtime::sim
