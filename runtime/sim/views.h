// The tensors that a launch may touch, from the op's description and the bytes of its arguments.
#pragma once

#include <span>

#include "runtime/device.h"
#include "runtime/sim/checker.h"

namespace kiln::runtime::sim {

// Without an op (`subject.op` is nullptr) it names the kernel only: then every allocation may be
// touched. Outputs and the workspace hold nothing when the call begins. Fails with internal when
// `params` is not the op's struct, and with invalid_argument when an output shares memory with
// another argument.
Subject checker_subject(const KernelSubject& subject, std::string_view kernel,
                        std::span<const std::byte> params);

}  // namespace kiln::runtime::sim
