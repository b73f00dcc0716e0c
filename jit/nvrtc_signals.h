// While it compiles, NVRTC's front end puts handlers of its own on SIGINT and SIGTERM and ignores
// SIGXFSZ; a signal that comes then ends the process with exit(4), whatever the host had installed.
// NVRTC has no option against that. It goes through signal(), which is one slot in the library's
// table of imported functions.
#pragma once

namespace kiln::jit {

// Points that slot of the loaded library at a function that installs nothing and answers that the
// signal is ignored, which NVRTC respects. For every user of the library in this process, until it
// ends. Where the slot is not found or cannot be written, NVRTC goes on as it always did.
void keep_signals_from(void* nvrtc) noexcept;

}  // namespace kiln::jit
