// An op call: checks the struct, picks kernels by bucket, launches. What the generated functions of
// kiln_ops.h call. On success it takes no lock, allocates nothing and reads no environment.
#pragma once

#include <cstdint>

#include "runtime/abi/kiln.h"

namespace kiln::runtime {

// op_index: position of the op in templates::ops().
kiln_status call_op(kiln_plan* plan, int op_index, const void* args, void* stream) noexcept;
kiln_status call_workspace(kiln_plan* plan, int op_index, const void* args,
                           uint64_t* bytes) noexcept;

}  // namespace kiln::runtime
