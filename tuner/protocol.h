// What the tuner and its child say to each other, as JSON. Both are built from the same sources;
// the version is checked at the start.
//
//   hello    {protocol, parent}  the child ends when its parent is another by now
//   open     {device, memory_bytes} -> {device, memory_bytes}
//   binary   {binary} + image  once per key; kept
//   tools    {entries: {entry: key}}  the tuner's own kernels
//   verify   {plan, oracle, cases} -> {outcome, detail, worst_error, cases, fatal}
//   measure  {plans, case, rounds, first_round}
//            -> {outcome, detail, index, times_ns, rounds, calls, copies, flushed, fatal}
//   launch   {} -> {time_ns}
//   ceiling  {read_share, bytes} -> {gb_per_s}
//   bus_ceiling, mma_ceiling  {} -> {gb_per_s}, {tflop_per_s}
//
// While it works the child sends {event: "prepare", what} before work of its own and {event: "run",
// index} before each time that it lets a candidate run, so that the parent knows whom to blame and
// how long to wait. A reply is {ok: true, ...} or {ok: false, status, error}; with fatal the child
// ends after it, since its context is broken.
#pragma once

#include <string>

#include "jit/base/json.h"
#include "jit/compiler.h"
#include "runtime/device.h"

namespace kiln::tuner {

Json device_json(const runtime::DeviceInfo& info);
runtime::DeviceInfo device_from_json(const Json& json);
Json binary_json(const jit::Binary& binary);  // without the image
jit::Binary binary_from_json(const Json& json, std::string image);

}  // namespace kiln::tuner
