// `kiln` with the tuner's toy op, whose kernels run on the host in the worker that is built beside
// it. KILN_TOY_SPACE=0,1,4: which behaviours its search space holds.
#include <cstdlib>
#include <sstream>

#include "tests/tuner/toy_op.h"
#include "tools/kiln/program.h"

int main(int argc, char** argv) {
  kiln::testing::register_toy();
  if (const char* space = std::getenv("KILN_TOY_SPACE")) {
    std::vector<int64_t> behaviours;
    std::istringstream text(space);
    for (std::string number; std::getline(text, number, ',');) {
      behaviours.push_back(std::stoll(number));
    }
    kiln::testing::set_toy_space(behaviours);
  }
  return kiln::cli::run_program(argc, argv);
}
