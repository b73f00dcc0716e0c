// From statements to a Program: operands become rows, registers get places (two that are never
// alive together share one), labels become instruction numbers, calls of functions with a body are
// inlined.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/sim/binder.h"
#include "runtime/sim/program.h"

namespace kiln::runtime::sim {

// Addresses of the module's global and constant variables.
using SymbolAddresses = std::map<std::string, uint64_t, std::less<>>;

// Fails with unsupported and the statement for what the simulator cannot do, with not_found for an
// entry that is not there.
std::shared_ptr<const Program> decode(std::shared_ptr<const Module> module, std::string_view entry,
                                      const SymbolAddresses& addresses);

// In system_ops.cpp: printf, traps, clocks.
bool bind_system(Binder& binder);

}  // namespace kiln::runtime::sim
