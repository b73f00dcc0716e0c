// The op functions of kiln_ops.h. Made from templates/<op>/op.cpp by kiln_gen_ops: do not
// edit, a test compares.
#include "runtime/abi/kiln.h"
#include "runtime/call.h"

using kiln::runtime::call_op;
using kiln::runtime::call_workspace;

static_assert(sizeof(kiln_act_quant_args) == 80);
kiln_status kiln_act_quant(kiln_plan* plan, const kiln_act_quant_args* args, void* stream) {
  return call_op(plan, 0, args, stream);
}
kiln_status kiln_act_quant_workspace(kiln_plan* plan, const kiln_act_quant_args* args,
                                     uint64_t* bytes) {
  return call_workspace(plan, 0, args, bytes);
}

static_assert(sizeof(kiln_combine_topk_swa_args) == 112);
kiln_status kiln_combine_topk_swa(kiln_plan* plan, const kiln_combine_topk_swa_args* args,
                                  void* stream) {
  return call_op(plan, 1, args, stream);
}
kiln_status kiln_combine_topk_swa_workspace(kiln_plan* plan, const kiln_combine_topk_swa_args* args,
                                            uint64_t* bytes) {
  return call_workspace(plan, 1, args, bytes);
}

static_assert(sizeof(kiln_compressed_kv_insert_args) == 104);
kiln_status kiln_compressed_kv_insert(kiln_plan* plan, const kiln_compressed_kv_insert_args* args,
                                      void* stream) {
  return call_op(plan, 2, args, stream);
}
kiln_status kiln_compressed_kv_insert_workspace(kiln_plan* plan,
                                                const kiln_compressed_kv_insert_args* args,
                                                uint64_t* bytes) {
  return call_workspace(plan, 2, args, bytes);
}

static_assert(sizeof(kiln_compressor_update_args) == 136);
kiln_status kiln_compressor_update(kiln_plan* plan, const kiln_compressor_update_args* args,
                                   void* stream) {
  return call_op(plan, 3, args, stream);
}
kiln_status kiln_compressor_update_workspace(kiln_plan* plan,
                                             const kiln_compressor_update_args* args,
                                             uint64_t* bytes) {
  return call_workspace(plan, 3, args, bytes);
}

static_assert(sizeof(kiln_embed_expand_args) == 80);
kiln_status kiln_embed_expand(kiln_plan* plan, const kiln_embed_expand_args* args, void* stream) {
  return call_op(plan, 4, args, stream);
}
kiln_status kiln_embed_expand_workspace(kiln_plan* plan, const kiln_embed_expand_args* args,
                                        uint64_t* bytes) {
  return call_workspace(plan, 4, args, bytes);
}

static_assert(sizeof(kiln_engram_fetch_args) == 144);
kiln_status kiln_engram_fetch(kiln_plan* plan, const kiln_engram_fetch_args* args, void* stream) {
  return call_op(plan, 5, args, stream);
}
kiln_status kiln_engram_fetch_workspace(kiln_plan* plan, const kiln_engram_fetch_args* args,
                                        uint64_t* bytes) {
  return call_workspace(plan, 5, args, bytes);
}

static_assert(sizeof(kiln_engram_hash_args) == 112);
kiln_status kiln_engram_hash(kiln_plan* plan, const kiln_engram_hash_args* args, void* stream) {
  return call_op(plan, 6, args, stream);
}
kiln_status kiln_engram_hash_workspace(kiln_plan* plan, const kiln_engram_hash_args* args,
                                       uint64_t* bytes) {
  return call_workspace(plan, 6, args, bytes);
}

static_assert(sizeof(kiln_engram_inject_args) == 96);
kiln_status kiln_engram_inject(kiln_plan* plan, const kiln_engram_inject_args* args, void* stream) {
  return call_op(plan, 7, args, stream);
}
kiln_status kiln_engram_inject_workspace(kiln_plan* plan, const kiln_engram_inject_args* args,
                                         uint64_t* bytes) {
  return call_workspace(plan, 7, args, bytes);
}

static_assert(sizeof(kiln_gather_dequant_kv_args) == 128);
kiln_status kiln_gather_dequant_kv(kiln_plan* plan, const kiln_gather_dequant_kv_args* args,
                                   void* stream) {
  return call_op(plan, 8, args, stream);
}
kiln_status kiln_gather_dequant_kv_workspace(kiln_plan* plan,
                                             const kiln_gather_dequant_kv_args* args,
                                             uint64_t* bytes) {
  return call_workspace(plan, 8, args, bytes);
}

static_assert(sizeof(kiln_hc_fold_norm_args) == 128);
kiln_status kiln_hc_fold_norm(kiln_plan* plan, const kiln_hc_fold_norm_args* args, void* stream) {
  return call_op(plan, 9, args, stream);
}
kiln_status kiln_hc_fold_norm_workspace(kiln_plan* plan, const kiln_hc_fold_norm_args* args,
                                        uint64_t* bytes) {
  return call_workspace(plan, 9, args, bytes);
}

static_assert(sizeof(kiln_hc_fused_post_pre_delayed_args) == 288);
kiln_status kiln_hc_fused_post_pre_delayed(kiln_plan* plan,
                                           const kiln_hc_fused_post_pre_delayed_args* args,
                                           void* stream) {
  return call_op(plan, 10, args, stream);
}
kiln_status kiln_hc_fused_post_pre_delayed_workspace(
    kiln_plan* plan, const kiln_hc_fused_post_pre_delayed_args* args, uint64_t* bytes) {
  return call_workspace(plan, 10, args, bytes);
}

static_assert(sizeof(kiln_hc_post_args) == 112);
kiln_status kiln_hc_post(kiln_plan* plan, const kiln_hc_post_args* args, void* stream) {
  return call_op(plan, 11, args, stream);
}
kiln_status kiln_hc_post_workspace(kiln_plan* plan, const kiln_hc_post_args* args,
                                   uint64_t* bytes) {
  return call_workspace(plan, 11, args, bytes);
}

static_assert(sizeof(kiln_hc_post_fold_norm_args) == 216);
kiln_status kiln_hc_post_fold_norm(kiln_plan* plan, const kiln_hc_post_fold_norm_args* args,
                                   void* stream) {
  return call_op(plan, 12, args, stream);
}
kiln_status kiln_hc_post_fold_norm_workspace(kiln_plan* plan,
                                             const kiln_hc_post_fold_norm_args* args,
                                             uint64_t* bytes) {
  return call_workspace(plan, 12, args, bytes);
}

static_assert(sizeof(kiln_hc_stats_args) == 144);
kiln_status kiln_hc_stats(kiln_plan* plan, const kiln_hc_stats_args* args, void* stream) {
  return call_op(plan, 13, args, stream);
}
kiln_status kiln_hc_stats_workspace(kiln_plan* plan, const kiln_hc_stats_args* args,
                                    uint64_t* bytes) {
  return call_workspace(plan, 13, args, bytes);
}

static_assert(sizeof(kiln_index_key_insert_args) == 112);
kiln_status kiln_index_key_insert(kiln_plan* plan, const kiln_index_key_insert_args* args,
                                  void* stream) {
  return call_op(plan, 14, args, stream);
}
kiln_status kiln_index_key_insert_workspace(kiln_plan* plan, const kiln_index_key_insert_args* args,
                                            uint64_t* bytes) {
  return call_workspace(plan, 14, args, bytes);
}

static_assert(sizeof(kiln_index_query_args) == 176);
kiln_status kiln_index_query(kiln_plan* plan, const kiln_index_query_args* args, void* stream) {
  return call_op(plan, 15, args, stream);
}
kiln_status kiln_index_query_workspace(kiln_plan* plan, const kiln_index_query_args* args,
                                       uint64_t* bytes) {
  return call_workspace(plan, 15, args, bytes);
}

static_assert(sizeof(kiln_linear_fp8_args) == 184);
kiln_status kiln_linear_fp8(kiln_plan* plan, const kiln_linear_fp8_args* args, void* stream) {
  return call_op(plan, 16, args, stream);
}
kiln_status kiln_linear_fp8_workspace(kiln_plan* plan, const kiln_linear_fp8_args* args,
                                      uint64_t* bytes) {
  return call_workspace(plan, 16, args, bytes);
}

static_assert(sizeof(kiln_moe_align_args) == 96);
kiln_status kiln_moe_align(kiln_plan* plan, const kiln_moe_align_args* args, void* stream) {
  return call_op(plan, 17, args, stream);
}
kiln_status kiln_moe_align_workspace(kiln_plan* plan, const kiln_moe_align_args* args,
                                     uint64_t* bytes) {
  return call_workspace(plan, 17, args, bytes);
}

static_assert(sizeof(kiln_moe_combine_args) == 120);
kiln_status kiln_moe_combine(kiln_plan* plan, const kiln_moe_combine_args* args, void* stream) {
  return call_op(plan, 18, args, stream);
}
kiln_status kiln_moe_combine_workspace(kiln_plan* plan, const kiln_moe_combine_args* args,
                                       uint64_t* bytes) {
  return call_workspace(plan, 18, args, bytes);
}

static_assert(sizeof(kiln_moe_route_args) == 96);
kiln_status kiln_moe_route(kiln_plan* plan, const kiln_moe_route_args* args, void* stream) {
  return call_op(plan, 19, args, stream);
}
kiln_status kiln_moe_route_workspace(kiln_plan* plan, const kiln_moe_route_args* args,
                                     uint64_t* bytes) {
  return call_workspace(plan, 19, args, bytes);
}

static_assert(sizeof(kiln_pack_weights_args) == 56);
kiln_status kiln_pack_weights(kiln_plan* plan, const kiln_pack_weights_args* args, void* stream) {
  return call_op(plan, 20, args, stream);
}
kiln_status kiln_pack_weights_workspace(kiln_plan* plan, const kiln_pack_weights_args* args,
                                        uint64_t* bytes) {
  return call_workspace(plan, 20, args, bytes);
}

static_assert(sizeof(kiln_qkv_norm_args) == 112);
kiln_status kiln_qkv_norm(kiln_plan* plan, const kiln_qkv_norm_args* args, void* stream) {
  return call_op(plan, 21, args, stream);
}
kiln_status kiln_qkv_norm_workspace(kiln_plan* plan, const kiln_qkv_norm_args* args,
                                    uint64_t* bytes) {
  return call_workspace(plan, 21, args, bytes);
}

static_assert(sizeof(kiln_ragged_indptr_args) == 72);
kiln_status kiln_ragged_indptr(kiln_plan* plan, const kiln_ragged_indptr_args* args, void* stream) {
  return call_op(plan, 22, args, stream);
}
kiln_status kiln_ragged_indptr_workspace(kiln_plan* plan, const kiln_ragged_indptr_args* args,
                                         uint64_t* bytes) {
  return call_workspace(plan, 22, args, bytes);
}

static_assert(sizeof(kiln_ragged_keys_args) == 160);
kiln_status kiln_ragged_keys(kiln_plan* plan, const kiln_ragged_keys_args* args, void* stream) {
  return call_op(plan, 23, args, stream);
}
kiln_status kiln_ragged_keys_workspace(kiln_plan* plan, const kiln_ragged_keys_args* args,
                                       uint64_t* bytes) {
  return call_workspace(plan, 23, args, bytes);
}

static_assert(sizeof(kiln_rms_norm_args) == 56);
kiln_status kiln_rms_norm(kiln_plan* plan, const kiln_rms_norm_args* args, void* stream) {
  return call_op(plan, 24, args, stream);
}
kiln_status kiln_rms_norm_workspace(kiln_plan* plan, const kiln_rms_norm_args* args,
                                    uint64_t* bytes) {
  return call_workspace(plan, 24, args, bytes);
}

static_assert(sizeof(kiln_rope_args) == 72);
kiln_status kiln_rope(kiln_plan* plan, const kiln_rope_args* args, void* stream) {
  return call_op(plan, 25, args, stream);
}
kiln_status kiln_rope_workspace(kiln_plan* plan, const kiln_rope_args* args, uint64_t* bytes) {
  return call_workspace(plan, 25, args, bytes);
}

static_assert(sizeof(kiln_rope_table_args) == 40);
kiln_status kiln_rope_table(kiln_plan* plan, const kiln_rope_table_args* args, void* stream) {
  return call_op(plan, 26, args, stream);
}
kiln_status kiln_rope_table_workspace(kiln_plan* plan, const kiln_rope_table_args* args,
                                      uint64_t* bytes) {
  return call_workspace(plan, 26, args, bytes);
}

static_assert(sizeof(kiln_sparse_mla_decode_args) == 264);
kiln_status kiln_sparse_mla_decode(kiln_plan* plan, const kiln_sparse_mla_decode_args* args,
                                   void* stream) {
  return call_op(plan, 27, args, stream);
}
kiln_status kiln_sparse_mla_decode_workspace(kiln_plan* plan,
                                             const kiln_sparse_mla_decode_args* args,
                                             uint64_t* bytes) {
  return call_workspace(plan, 27, args, bytes);
}

static_assert(sizeof(kiln_topk_to_slots_args) == 120);
kiln_status kiln_topk_to_slots(kiln_plan* plan, const kiln_topk_to_slots_args* args, void* stream) {
  return call_op(plan, 28, args, stream);
}
kiln_status kiln_topk_to_slots_workspace(kiln_plan* plan, const kiln_topk_to_slots_args* args,
                                         uint64_t* bytes) {
  return call_workspace(plan, 28, args, bytes);
}

static_assert(sizeof(kiln_window_kv_insert_args) == 112);
kiln_status kiln_window_kv_insert(kiln_plan* plan, const kiln_window_kv_insert_args* args,
                                  void* stream) {
  return call_op(plan, 29, args, stream);
}
kiln_status kiln_window_kv_insert_workspace(kiln_plan* plan, const kiln_window_kv_insert_args* args,
                                            uint64_t* bytes) {
  return call_workspace(plan, 29, args, bytes);
}

static_assert(sizeof(kiln_window_slots_args) == 168);
kiln_status kiln_window_slots(kiln_plan* plan, const kiln_window_slots_args* args, void* stream) {
  return call_op(plan, 30, args, stream);
}
kiln_status kiln_window_slots_workspace(kiln_plan* plan, const kiln_window_slots_args* args,
                                        uint64_t* bytes) {
  return call_workspace(plan, 30, args, bytes);
}
