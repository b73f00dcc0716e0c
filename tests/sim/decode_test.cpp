// What the decoder makes of functions, variables and registers, seen in what kernels compute.
#include <string>

#include "tests/sim/memory_testing.h"

namespace kiln::runtime::sim {
namespace {

}  // namespace
}  // namespace kiln::runtime::sim
