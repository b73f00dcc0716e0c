// The GPU table: every limit and rate that decides what is legal and what is fast, as data (source:
// the vendor's datasheets and the CUDA programming guide). A GPU that is not in the table is
// described by what its driver reports.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jit/base/json.h"

namespace kiln {

struct Gpu {
  std::string slug;                  // lower-case datasheet name with hyphens: "a100-sxm4-80gb"
  std::string name;                  // as the vendor writes it
  std::vector<std::string> aliases;  // slugs and driver names of the same class: "a800-sxm4-80gb"
  int cc_major = 0;
  int cc_minor = 0;
  int sm_count = 0;
  int64_t smem_per_sm_bytes = 0;
  int64_t smem_per_cta_optin_bytes = 0;  // of one CTA at most, after the opt-in attribute
  int64_t smem_reserved_per_cta_bytes = 1024;
  int64_t registers_per_sm = 65536;
  int max_registers_per_thread = 255;
  int max_warps_per_sm = 0;
  int max_ctas_per_sm = 0;
  int64_t l2_bytes = 0;
  int64_t dram_bytes = 0;
  double dram_gb_per_s = 0;  // bus width x memory clock
  int boost_mhz = 0;         // evidence for the model, not part of the class
  int fp32_fma_per_clk_sm = 0;
  int bf16_mma_fma_per_clk_sm = 0;  // bf16 inputs, fp32 accumulation
  // "compute_80" of a simulated GPU, which runs PTX; "" of a real one
  std::string isa;

  int cc() const { return cc_major * 10 + cc_minor; }  // 80, 86, 90
  std::string sm() const;                              // "sm_80", of a simulated one too
  std::string arch() const;  // what its code is compiled for: the isa, else sm()
};

// All rows of the table, in the order of shared/spec/gpus.md.
std::span<const Gpu> gpu_table();

// By slug or alias. Fails with not_found and the list of slugs.
const Gpu& find_gpu(std::string_view slug);

// The row whose class is that of `reported` (limits equal, bandwidth within 10 %), or nullptr.
const Gpu* match_gpu(const Gpu& reported);

// The class: what decides legality and speed, as canonical JSON (cc, SMs, shared memory, registers,
// warps and CTAs per SM, L2, bandwidth rounded to the table's value when a row matches). Names,
// clocks and power limits are not part of it.
std::string gpu_class_key(const Gpu& gpu);

// CTAs of this shape that fit on one SM: 0 when one does not fit at all.
int ctas_per_sm(const Gpu& gpu, int threads, int registers_per_thread, int64_t smem_bytes);

}  // namespace kiln
