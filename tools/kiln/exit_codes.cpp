// The table of exit codes, and how a status of the library becomes one of them.
#include "tools/kiln/exit_codes.h"

namespace kiln::cli {
namespace {

constexpr ExitCodeRow kExitCodes[] = {
    {ExitCode::ok, "done"},
    {ExitCode::failed, "failed: the sentence on stderr says why"},
    {ExitCode::usage, "usage: an option, a name or a JSON argument is wrong"},
    {ExitCode::no_device, "no CUDA driver, no device, or not the device that was named"},
    {ExitCode::no_compiler, "NVRTC is missing or unusable"},
    {ExitCode::not_verified, "verify: a stored config computes something else than its oracle"},
    {ExitCode::store, "the store cannot be read or written, is in memory, or is damaged"},
    {ExitCode::different, "diff: the two stores decide otherwise"},
    {ExitCode::interrupted, "interrupted by Ctrl-C or SIGTERM; what was finished is stored"},
};

}  // namespace

std::span<const ExitCodeRow> exit_codes() { return kExitCodes; }

ExitCode exit_code_of(Status status) {
  switch (status) {
    case Status::ok:
      return ExitCode::ok;
    case Status::invalid_argument:
    case Status::not_found:
      return ExitCode::usage;
    case Status::no_driver:
      return ExitCode::no_device;
    case Status::no_compiler:
      return ExitCode::no_compiler;
    case Status::store_error:
      return ExitCode::store;
    case Status::interrupted:
      return ExitCode::interrupted;
    default:
      return ExitCode::failed;
  }
}

std::string next_step_of(Status status) {
  switch (status) {
    case Status::no_driver:
      return "Without a GPU, `kiln build --gpu SLUG` ranks for a named one and `--device sim:SLUG` "
             "simulates it; `kiln doctor` shows what was searched.";
    case Status::no_compiler:
      return "Install the CUDA toolkit or name a library with KILN_NVRTC=/path/libnvrtc.so; `kiln "
             "doctor` shows what was searched.";
    case Status::store_error:
      return "`kiln doctor` checks the store; `--db PATH` or KILN_DB names another file.";
    case Status::driver_error:
    case Status::out_of_memory:
      return "`kiln doctor` shows the driver and the devices; `nvidia-smi` shows who else uses "
             "them.";
    case Status::interrupted:
      return "Run the same command again to resume.";
    case Status::internal:
      return "This is a defect in Kiln: please report this line with the command that led to it.";
    default:
      return "";
  }
}

}  // namespace kiln::cli
