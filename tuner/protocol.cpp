#include "tuner/protocol.h"

#include <optional>

#include "jit/base/error.h"
#include "tuner/wire.h"

namespace kiln::tuner {

Json device_json(const runtime::DeviceInfo& info) {
  const Gpu& g = info.gpu;
  return Json{{"id", info.id},
              {"name", info.name},
              {"driver", info.driver},
              {"cuda_major", info.cuda_major},
              {"match", info.match},
              {"timing", static_cast<int>(info.timing)},
              {"gpu",
               {{"slug", g.slug},
                {"isa", g.isa},
                {"name", g.name},
                {"cc_major", g.cc_major},
                {"cc_minor", g.cc_minor},
                {"sm_count", g.sm_count},
                {"smem_per_sm_bytes", g.smem_per_sm_bytes},
                {"smem_per_cta_optin_bytes", g.smem_per_cta_optin_bytes},
                {"smem_reserved_per_cta_bytes", g.smem_reserved_per_cta_bytes},
                {"registers_per_sm", g.registers_per_sm},
                {"max_registers_per_thread", g.max_registers_per_thread},
                {"max_warps_per_sm", g.max_warps_per_sm},
                {"max_ctas_per_sm", g.max_ctas_per_sm},
                {"l2_bytes", g.l2_bytes},
                {"dram_bytes", g.dram_bytes},
                {"dram_gb_per_s", g.dram_gb_per_s},
                {"boost_mhz", g.boost_mhz},
                {"fp32_fma_per_clk_sm", g.fp32_fma_per_clk_sm},
                {"bf16_mma_fma_per_clk_sm", g.bf16_mma_fma_per_clk_sm}}}};
}

runtime::DeviceInfo device_from_json(const Json& json) {
  const Json& g = json.at("gpu");
  runtime::DeviceInfo info{.id = json.at("id"),
                           .name = json.at("name"),
                           .driver = json.at("driver"),
                           .cuda_major = json.at("cuda_major"),
                           .gpu = {},
                           .match = json.at("match"),
                           .timing = json.at("timing").get<runtime::Timing>()};
  info.gpu = Gpu{.slug = g.at("slug"),
                 .name = g.at("name"),
                 .aliases = {},
                 .cc_major = g.at("cc_major"),
                 .cc_minor = g.at("cc_minor"),
                 .sm_count = g.at("sm_count"),
                 .smem_per_sm_bytes = g.at("smem_per_sm_bytes"),
                 .smem_per_cta_optin_bytes = g.at("smem_per_cta_optin_bytes"),
                 .smem_reserved_per_cta_bytes = g.at("smem_reserved_per_cta_bytes"),
                 .registers_per_sm = g.at("registers_per_sm"),
                 .max_registers_per_thread = g.at("max_registers_per_thread"),
                 .max_warps_per_sm = g.at("max_warps_per_sm"),
                 .max_ctas_per_sm = g.at("max_ctas_per_sm"),
                 .l2_bytes = g.at("l2_bytes"),
                 .dram_bytes = g.at("dram_bytes"),
                 .dram_gb_per_s = g.at("dram_gb_per_s"),
                 .boost_mhz = g.at("boost_mhz"),
                 .fp32_fma_per_clk_sm = g.at("fp32_fma_per_clk_sm"),
                 .bf16_mma_fma_per_clk_sm = g.at("bf16_mma_fma_per_clk_sm"),
                 .isa = g.at("isa")};
  return info;
}

// Options are the parent's business; the child needs what a load needs.
Json binary_json(const jit::Binary& binary) {
  return Json{{"key", binary.key.hex()},
              {"arch", binary.arch},
              {"entry", binary.entry},
              {"kind", static_cast<int>(binary.kind)},
              {"nvrtc_version", binary.nvrtc_version}};
}

jit::Binary binary_from_json(const Json& json, std::string image) {
  jit::Binary binary;
  const std::string key = json.at("key");
  const std::optional<Hash128> parsed = parse_hash(key);
  if (!parsed) fail(Status::internal, "a binary came with the key {}, which is no hash", key);
  binary.key = *parsed;
  binary.arch = json.at("arch");
  binary.entry = json.at("entry");
  binary.kind = static_cast<jit::BinaryKind>(json.at("kind").get<int>());
  binary.nvrtc_version = json.at("nvrtc_version");
  binary.image = std::move(image);
  return binary;
}

}  // namespace kiln::tuner
