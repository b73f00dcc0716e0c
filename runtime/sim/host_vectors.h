// What the processor that runs the simulator offers beyond the least that the library is built for.
#pragma once

#include <cstdint>

namespace kiln::runtime::sim {

enum class HostVectors : uint8_t { base, avx2 };  // avx2: with FMA

// The best that is there. KILN_SIM_HOST=base in the environment keeps to the least; read once.
HostVectors host_vectors();

}  // namespace kiln::runtime::sim
