#include "tools/kiln/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tools/kiln/common.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

sigset_t interrupting_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  const sigset_t signals = interrupting_signals();
  signals_ = signalfd(-1, &signals, SFD_CLOEXEC);
  end_ = eventfd(0, EFD_CLOEXEC);
  if (signals_ < 0 || end_ < 0) {
    // Ctrl-C then ends the program as it ends any other; finished problems are stored all the same.
    warn(fmt::format("Ctrl-C cannot be caught: {}.", std::strerror(errno)));
    return;
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([this] { watch(); });
}

InterruptGuard::~InterruptGuard() {
  if (thread_.joinable()) {
    eventfd_write(end_, 1);
    thread_.join();
    const sigset_t signals = interrupting_signals();
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  }
  if (signals_ >= 0) close(signals_);
  if (end_ >= 0) close(end_);
}

void InterruptGuard::watch() {
  pollfd descriptors[] = {{signals_, POLLIN, 0}, {end_, POLLIN, 0}};
  while (true) {
    if (poll(descriptors, 2, -1) < 0) continue;
    if (descriptors[1].revents != 0) return;
    signalfd_siginfo infos[2];  // both at once when both are waiting
    const ssize_t got = read(signals_, infos, sizeof infos);
    if (got < static_cast<ssize_t>(sizeof infos[0])) continue;
    const bool is_second = stop_requested_.exchange(true) || got == sizeof infos;
    if (is_second) _exit(static_cast<int>(ExitCode::interrupted));
    print_error(fmt::format(
        "\nkiln: stopping as soon as the problem at hand is stored; Ctrl-C again ends at "
        "once.\n"));
  }
}

}  // namespace kiln::cli
