// kiln-worker: the child process of the tuner. Started by it, not by people.
#include <fcntl.h>

#include <cstdio>

#include "tuner/worker.h"

int main() {
  if (fcntl(kiln::tuner::kWorkerFd, F_GETFD) < 0) {
    std::fputs(
        "kiln-worker is started by \"kiln tune\", \"kiln verify\" and \"kiln bench\"; it is of no "
        "use alone.\n",
        stderr);
    return 2;
  }
  return kiln::tuner::worker_main(kiln::tuner::kWorkerFd, kiln::tuner::kWorkerFd);
}
