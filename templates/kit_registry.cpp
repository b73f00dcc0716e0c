// The kits of the library: one line per op, as in registry.cpp.
#include <vector>

#include "templates/kit.h"

namespace kiln::templates {

extern const Kit act_quant_kit;
extern const Kit combine_topk_swa_kit;
extern const Kit compressed_kv_insert_kit;
extern const Kit compressor_update_kit;
extern const Kit embed_expand_kit;
extern const Kit engram_fetch_kit;
extern const Kit engram_hash_kit;
extern const Kit engram_inject_kit;
extern const Kit gather_dequant_kv_kit;
extern const Kit hc_fold_norm_kit;
extern const Kit hc_fused_post_pre_delayed_kit;
extern const Kit hc_post_fold_norm_kit;
extern const Kit hc_post_kit;
extern const Kit hc_stats_kit;
extern const Kit index_key_insert_kit;
extern const Kit index_query_kit;
extern const Kit linear_fp8_kit;
extern const Kit moe_align_kit;
extern const Kit moe_combine_kit;
extern const Kit moe_route_kit;
extern const Kit pack_weights_kit;
extern const Kit qkv_norm_kit;
extern const Kit ragged_indptr_kit;
extern const Kit ragged_keys_kit;
extern const Kit rms_norm_kit;
extern const Kit rope_kit;
extern const Kit rope_table_kit;
extern const Kit sparse_mla_decode_kit;
extern const Kit topk_to_slots_kit;
extern const Kit window_kv_insert_kit;
extern const Kit window_slots_kit;

namespace {

std::vector<const Kit*>& registry() {
  static std::vector<const Kit*> kits{
      &act_quant_kit,
      &combine_topk_swa_kit,
      &compressed_kv_insert_kit,
      &compressor_update_kit,
      &embed_expand_kit,
      &engram_fetch_kit,
      &engram_hash_kit,
      &engram_inject_kit,
      &gather_dequant_kv_kit,
      &hc_fold_norm_kit,
      &hc_fused_post_pre_delayed_kit,
      &hc_post_fold_norm_kit,
      &hc_post_kit,
      &hc_stats_kit,
      &index_key_insert_kit,
      &index_query_kit,
      &linear_fp8_kit,
      &moe_align_kit,
      &moe_combine_kit,
      &moe_route_kit,
      &pack_weights_kit,
      &qkv_norm_kit,
      &ragged_indptr_kit,
      &ragged_keys_kit,
      &rms_norm_kit,
      &rope_kit,
      &rope_table_kit,
      &sparse_mla_decode_kit,
      &topk_to_slots_kit,
      &window_kv_insert_kit,
      &window_slots_kit,
  };
  return kits;
}

}  // namespace

std::span<const Kit* const> kits() { return registry(); }

const Kit& require_kit(const Op& op) {
  for (const Kit* kit : registry()) {
    if (kit->op == &op) return *kit;
  }
  fail(Status::internal, "{}: no kit is registered for this op", op.name);
}

void register_test_kit(const Kit* kit) { registry().push_back(kit); }

}  // namespace kiln::templates
