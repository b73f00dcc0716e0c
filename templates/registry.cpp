// The ops of the library. A new op is one folder and one line here.
#include <algorithm>
#include <vector>

#include "jit/base/json.h"
#include "templates/op.h"

namespace kiln::templates {

extern const Op act_quant;
extern const Op combine_topk_swa;
extern const Op compressed_kv_insert;
extern const Op compressor_update;
extern const Op embed_expand;
extern const Op engram_fetch;
extern const Op engram_hash;
extern const Op engram_inject;
extern const Op gather_dequant_kv;
extern const Op hc_fold_norm;
extern const Op hc_fused_post_pre_delayed;
extern const Op hc_post;
extern const Op hc_post_fold_norm;
extern const Op hc_stats;
extern const Op index_key_insert;
extern const Op index_query;
extern const Op linear_fp8;
extern const Op moe_align;
extern const Op moe_combine;
extern const Op moe_route;
extern const Op pack_weights;
extern const Op qkv_norm;
extern const Op ragged_indptr;
extern const Op ragged_keys;
extern const Op rms_norm;
extern const Op rope;
extern const Op rope_table;
extern const Op sparse_mla_decode;
extern const Op topk_to_slots;
extern const Op window_kv_insert;
extern const Op window_slots;

namespace {

std::vector<const Op*>& registry() {
  static std::vector<const Op*> ops{
      &act_quant,
      &combine_topk_swa,
      &compressed_kv_insert,
      &compressor_update,
      &embed_expand,
      &engram_fetch,
      &engram_hash,
      &engram_inject,
      &gather_dequant_kv,
      &hc_fold_norm,
      &hc_fused_post_pre_delayed,
      &hc_post,
      &hc_post_fold_norm,
      &hc_stats,
      &index_key_insert,
      &index_query,
      &linear_fp8,
      &moe_align,
      &moe_combine,
      &moe_route,
      &pack_weights,
      &qkv_norm,
      &ragged_indptr,
      &ragged_keys,
      &rms_norm,
      &rope,
      &rope_table,
      &sparse_mla_decode,
      &topk_to_slots,
      &window_kv_insert,
      &window_slots,
  };
  return ops;
}

}  // namespace

std::span<const Op* const> ops() { return registry(); }

const Op* find_op(std::string_view name) {
  const auto& all = registry();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Op* op) { return op->name == name; });
  return found == all.end() ? nullptr : *found;
}

const Op& require_op(std::string_view name) {
  if (const Op* op = find_op(name)) return *op;
  std::vector<std::string> names;
  for (const Op* op : registry()) names.push_back(op->name);
  fail(Status::not_found, "there is no op {}; the ops are {}", in_quotes(name),
       fmt::join(names, ", "));
}

void register_test_op(const Op* op) { registry().push_back(op); }

}  // namespace kiln::templates
