// The child process of the tuner: all contact with the device happens here. It is told what to run
// over a channel (protocol.h), never opens the store, and ends when its parent does. A candidate
// that breaks the context costs this process and nothing else.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "runtime/device.h"

namespace kiln::tuner {

// Descriptor on which a child talks with its parent.
inline constexpr int kWorkerFd = 3;

using OpenDevice = std::function<std::unique_ptr<runtime::Device>(std::string_view id)>;

// Serves until the parent closes the channel; returns the exit code. Ops and kits of tests are
// registered before it is called.
int worker_main(int in_fd, int out_fd);
int worker_main(int in_fd, int out_fd, const OpenDevice& open_device);

}  // namespace kiln::tuner
