// Signal handlers may touch nothing but lock-free atomics and write(2), hence the one static flag.
#include "tools/kiln/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <array>

#include "tools/kiln/exit_codes.h"

namespace kiln::cli {
namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

constexpr std::array kSignals = {SIGINT, SIGTERM};
std::array<struct sigaction, kSignals.size()> previous_actions;

extern "C" void handle_interrupt(int) {
  if (stop_requested.exchange(true)) _exit(static_cast<int>(ExitCode::interrupted));
  constexpr char kText[] =
      "\nkiln: stopping as soon as the problem at hand is stored; Ctrl-C again ends at once.\n";
  // A failed write changes nothing that could be helped here.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  stop_requested = false;
  struct sigaction action = {};
  action.sa_handler = handle_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &action, &previous_actions[i]);
  }
}

InterruptGuard::~InterruptGuard() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &previous_actions[i], nullptr);
  }
}

const std::atomic<bool>& InterruptGuard::flag() const { return stop_requested; }

}  // namespace kiln::cli
