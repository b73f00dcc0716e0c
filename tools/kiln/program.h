// The whole program as a function, so that a test can link it with an op of its own.
#pragma once

namespace kiln::cli {

// main() of `kiln`: returns the exit code.
int run_program(int argc, char** argv);

}  // namespace kiln::cli
