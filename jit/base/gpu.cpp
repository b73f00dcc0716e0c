// The GPU table and what follows from it: lookup by name, the class of a card, and how many CTAs
// one SM holds. A new card is one row of make_table(); a card that is another's equal is an alias.
#include "jit/base/gpu.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "jit/base/error.h"
#include "jit/base/json.h"
#include "jit/base/rounding.h"

namespace kiln {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr int64_t kGiB = 1024 * kMiB;

constexpr double kSameBandwidth = 1.10;

constexpr int kWarpSize = 32;
constexpr int kMaxThreadsPerCta = 1024;
constexpr int64_t kRegisterUnitPerWarp = 256;
constexpr int64_t kSubPartitionsPerSm = 4;
constexpr int64_t kSmemUnitBytes = 128;

// Per-SM limits (CUDA programming guide, Ampere tuning guide), one function per chip family.
Gpu ga100() {
  return Gpu{.cc_major = 8,
             .cc_minor = 0,
             .smem_per_sm_bytes = 164 * kKiB,
             .smem_per_cta_optin_bytes = 163 * kKiB,
             .max_warps_per_sm = 64,
             .max_ctas_per_sm = 32,
             .fp32_fma_per_clk_sm = 64,
             .bf16_mma_fma_per_clk_sm = 1024};
}

// GeForce cards accumulate bf16 products in fp32 at half the rate of the professional cards.
Gpu ga102(int bf16_mma_fma_per_clk_sm) {
  return Gpu{.cc_major = 8,
             .cc_minor = 6,
             .smem_per_sm_bytes = 100 * kKiB,
             .smem_per_cta_optin_bytes = 99 * kKiB,
             .max_warps_per_sm = 48,
             .max_ctas_per_sm = 16,
             .l2_bytes = 6 * kMiB,
             .fp32_fma_per_clk_sm = 128,
             .bf16_mma_fma_per_clk_sm = bf16_mma_fma_per_clk_sm};
}

// The rate of mma.sync, which is what Kiln issues: 620 to 640 TFLOPS measured, 1184 FMA per clock
// and SM at the boost clock.
Gpu gh100() {
  return Gpu{.cc_major = 9,
             .cc_minor = 0,
             .smem_per_sm_bytes = 228 * kKiB,
             .smem_per_cta_optin_bytes = 227 * kKiB,
             .max_warps_per_sm = 64,
             .max_ctas_per_sm = 32,
             .fp32_fma_per_clk_sm = 128,
             .bf16_mma_fma_per_clk_sm = 1225};
}

struct Card {
  const char* slug;
  const char* name;
  std::vector<std::string> aliases;
  int sm_count;
  int64_t l2_bytes;
  int64_t dram_bytes;
  double dram_gb_per_s;
  int boost_mhz;
};

Gpu row(Gpu chip, Card card) {
  chip.slug = card.slug;
  chip.name = card.name;
  chip.aliases = std::move(card.aliases);
  chip.sm_count = card.sm_count;
  chip.l2_bytes = card.l2_bytes;
  chip.dram_bytes = card.dram_bytes;
  chip.dram_gb_per_s = card.dram_gb_per_s;
  chip.boost_mhz = card.boost_mhz;
  return chip;
}

std::vector<Gpu> make_table() {
  return {
      row(ga100(), {"a100-sxm4-40gb",
                    "A100-SXM4-40GB",
                    {"NVIDIA A100-SXM4-40GB"},
                    108,
                    40 * kMiB,
                    40 * kGiB,
                    1555,
                    1410}),
      row(ga100(), {"a100-sxm4-80gb",
                    "A100-SXM4-80GB",
                    {"NVIDIA A100-SXM4-80GB", "a800-sxm4-80gb", "NVIDIA A800-SXM4-80GB"},
                    108,
                    40 * kMiB,
                    80 * kGiB,
                    2039,
                    1410}),
      row(ga100(), {"a100-pcie-40gb",
                    "A100-PCIe-40GB",
                    {"NVIDIA A100-PCIE-40GB", "a800-pcie-40gb", "NVIDIA A800 40GB Active",
                     "NVIDIA A800 40GB PCIe"},
                    108,
                    40 * kMiB,
                    40 * kGiB,
                    1555,
                    1410}),
      row(ga100(), {"a100-pcie-80gb",
                    "A100-PCIe-80GB",
                    {"NVIDIA A100 80GB PCIe", "NVIDIA A100-PCIE-80GB", "a800-pcie-80gb",
                     "NVIDIA A800 80GB PCIe"},
                    108,
                    40 * kMiB,
                    80 * kGiB,
                    1935,
                    1410}),
      row(ga100(), {"a30", "A30", {"NVIDIA A30"}, 56, 24 * kMiB, 24 * kGiB, 933, 1440}),
      row(ga102(256), {"rtx-3090",
                       "RTX 3090",
                       {"NVIDIA GeForce RTX 3090", "GeForce RTX 3090"},
                       82,
                       6 * kMiB,
                       24 * kGiB,
                       936,
                       1695}),
      row(ga102(256), {"rtx-3090-ti",
                       "RTX 3090 Ti",
                       {"NVIDIA GeForce RTX 3090 Ti", "GeForce RTX 3090 Ti"},
                       84,
                       6 * kMiB,
                       24 * kGiB,
                       1008,
                       1860}),
      row(ga102(512),
          {"rtx-a6000", "RTX A6000", {"NVIDIA RTX A6000"}, 84, 6 * kMiB, 48 * kGiB, 768, 1800}),
      row(ga102(512), {"a40", "A40", {"NVIDIA A40"}, 84, 6 * kMiB, 48 * kGiB, 696, 1740}),
      row(ga102(512), {"a10", "A10", {"NVIDIA A10"}, 72, 6 * kMiB, 24 * kGiB, 600, 1695}),
      row(gh100(), {"h200", "H200", {"NVIDIA H200"}, 132, 60 * kMiB, 141'000'000'000, 4800, 1980}),
  };
}

const std::vector<Gpu>& table() {
  static const std::vector<Gpu> rows = make_table();
  return rows;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

bool is_called(const Gpu& gpu, std::string_view name) {
  if (same_name(gpu.slug, name) || same_name(gpu.name, name)) return true;
  return std::any_of(gpu.aliases.begin(), gpu.aliases.end(),
                     [&](const std::string& alias) { return same_name(alias, name); });
}

bool same_limits(const Gpu& a, const Gpu& b) {
  return a.cc() == b.cc() && a.sm_count == b.sm_count &&
         a.smem_per_sm_bytes == b.smem_per_sm_bytes &&
         a.smem_per_cta_optin_bytes == b.smem_per_cta_optin_bytes &&
         a.smem_reserved_per_cta_bytes == b.smem_reserved_per_cta_bytes &&
         a.registers_per_sm == b.registers_per_sm &&
         a.max_registers_per_thread == b.max_registers_per_thread &&
         a.max_warps_per_sm == b.max_warps_per_sm && a.max_ctas_per_sm == b.max_ctas_per_sm &&
         a.l2_bytes == b.l2_bytes;
}

// How many times one bandwidth is the other, at least 1; infinite when one is not known.
double bandwidth_ratio(const Gpu& a, const Gpu& b) {
  const double low = std::min(a.dram_gb_per_s, b.dram_gb_per_s);
  const double high = std::max(a.dram_gb_per_s, b.dram_gb_per_s);
  return low > 0 ? high / low : HUGE_VAL;
}

// "Within 10 %" alone is not an equivalence, so a class takes the bandwidth of one row: the fastest
// of the rows that it holds. The A100 80 GB cards (2039 and 1935 GB/s) are one class; the RTX A6000
// and the A40 (768 and 696) are two.
int64_t class_bandwidth_gb_per_s(const Gpu& gpu) {
  const Gpu* match = match_gpu(gpu);
  if (match == nullptr) {
    if (gpu.dram_gb_per_s <= 0) return 0;
    const double unit = std::pow(10.0, std::floor(std::log10(gpu.dram_gb_per_s)) - 1);
    return std::llround(std::round(gpu.dram_gb_per_s / unit) * unit);
  }
  double bandwidth = match->dram_gb_per_s;
  for (const Gpu& other : table()) {
    if (same_limits(*match, other) && bandwidth_ratio(*match, other) <= kSameBandwidth) {
      bandwidth = std::max(bandwidth, other.dram_gb_per_s);
    }
  }
  return std::llround(bandwidth);
}

}  // namespace

std::string Gpu::sm() const { return fmt::format("sm_{}{}", cc_major, cc_minor); }

std::string Gpu::arch() const { return isa.empty() ? sm() : isa; }

std::span<const Gpu> gpu_table() { return table(); }

const Gpu& find_gpu(std::string_view slug) {
  for (const Gpu& gpu : table()) {
    if (is_called(gpu, slug)) return gpu;
  }
  std::string known;
  for (const Gpu& gpu : table()) {
    known += known.empty() ? "" : ", ";
    known += gpu.slug;
  }
  fail(Status::not_found, "No GPU is called {}. Known are: {}.", in_quotes(slug), known);
}

const Gpu* match_gpu(const Gpu& reported) {
  const Gpu* best = nullptr;
  for (const Gpu& gpu : table()) {
    if (!same_limits(gpu, reported)) continue;
    const double ratio = bandwidth_ratio(gpu, reported);
    // 10 % is counted from the row's value, in both directions.
    const double change = std::abs(reported.dram_gb_per_s - gpu.dram_gb_per_s) / gpu.dram_gb_per_s;
    if (ratio > kSameBandwidth && change > kSameBandwidth - 1) continue;
    const bool closer = best == nullptr || ratio < bandwidth_ratio(*best, reported);
    // Rows of equal bandwidth differ only in name; the driver's name then picks the label.
    const bool named = best != nullptr && ratio == bandwidth_ratio(*best, reported) &&
                       is_called(gpu, reported.name) && !is_called(*best, reported.name);
    if (closer || named) best = &gpu;
  }
  return best;
}

std::string gpu_class_key(const Gpu& gpu) {
  return canonical_json(Json{
      {"bandwidth_gb_per_s", class_bandwidth_gb_per_s(gpu)},
      {"cc", gpu.cc()},
      {"ctas_per_sm", gpu.max_ctas_per_sm},
      {"l2_bytes", gpu.l2_bytes},
      {"registers_per_sm", gpu.registers_per_sm},
      {"registers_per_thread", gpu.max_registers_per_thread},
      {"sm_count", gpu.sm_count},
      {"smem_per_cta_optin_bytes", gpu.smem_per_cta_optin_bytes},
      {"smem_per_sm_bytes", gpu.smem_per_sm_bytes},
      {"smem_reserved_per_cta_bytes", gpu.smem_reserved_per_cta_bytes},
      {"warps_per_sm", gpu.max_warps_per_sm},
  });
}

int ctas_per_sm(const Gpu& gpu, int threads, int registers_per_thread, int64_t smem_bytes) {
  if (threads <= 0 || threads > kMaxThreadsPerCta) return 0;
  if (registers_per_thread < 0 || registers_per_thread > gpu.max_registers_per_thread) return 0;
  if (smem_bytes < 0 || smem_bytes > gpu.smem_per_cta_optin_bytes) return 0;

  const int64_t warps = round_up(threads, kWarpSize) / kWarpSize;
  int64_t ctas = std::min<int64_t>(gpu.max_ctas_per_sm, gpu.max_warps_per_sm / warps);

  if (registers_per_thread > 0) {
    // Warps are dealt to the four sub-partitions of the SM, each with a quarter of the register
    // file.
    const int64_t registers_per_warp =
        round_up(int64_t{registers_per_thread} * kWarpSize, kRegisterUnitPerWarp);
    const int64_t warps_per_sub_partition =
        gpu.registers_per_sm / kSubPartitionsPerSm / registers_per_warp;
    if (registers_per_warp * round_up(warps, kSubPartitionsPerSm) > gpu.registers_per_sm) return 0;
    ctas = std::min(ctas, warps_per_sub_partition * kSubPartitionsPerSm / warps);
  }

  const int64_t smem_per_cta_bytes =
      round_up(smem_bytes + gpu.smem_reserved_per_cta_bytes, kSmemUnitBytes);
  if (smem_per_cta_bytes > 0) ctas = std::min(ctas, gpu.smem_per_sm_bytes / smem_per_cta_bytes);
  return static_cast<int>(ctas);
}

}  // namespace kiln
