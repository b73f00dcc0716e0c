// kiln-worker that knows the toy op, on the device that it is told.
#include "tests/tuner/toy_op.h"
#include "tuner/worker.h"

int main() {
  kiln::testing::register_toy();
  return kiln::tuner::worker_main(kiln::tuner::kWorkerFd, kiln::tuner::kWorkerFd);
}
