// kiln_ops.h on its own, in strict C++11.
#include "kiln_ops.h"

int main() { return kiln_status_name(KILN_OK)[0] == 'K' ? 0 : 1; }
