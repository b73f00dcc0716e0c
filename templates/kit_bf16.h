// bf16 numbers on the host, for all kits.
#pragma once

#include <cstdint>

namespace kiln::templates {

double bf16_double(uint16_t bits);
float bf16_float(uint16_t bits);
uint16_t bf16_bits(double value);      // of a number that a bf16 holds, or a NaN; fails otherwise
uint16_t float_to_bf16(double value);  // of an fp32 number; a NaN is 0x7fff
// Once, nearest even, subnormals kept; what is beyond bf16 becomes 2^128, which as bf16 is
// infinity.
double round_to_bf16(double value);

// --- numbers of 8 bits that become bf16

double e4m3_double(uint8_t code);
double ue8m0_double(uint8_t byte);
// Code times scale, rounded once; beyond bf16 it is infinity ((f)3).
double dequantised(double product);

}  // namespace kiln::templates
