// kiln-worker that knows the planted op.
#include "tests/gpu/planted_op.h"
#include "tuner/worker.h"

int main() {
  kiln::testing::register_planted();
  return kiln::tuner::worker_main(kiln::tuner::kWorkerFd, kiln::tuner::kWorkerFd);
}
