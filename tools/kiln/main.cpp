// The `kiln` program.
#include "tools/kiln/program.h"

int main(int argc, char** argv) { return kiln::cli::run_program(argc, argv); }
