// embed_expand, engram_hash, engram_inject, moe_route, moe_align and
// moe_combine on the simulator: planted
// mistakes are found by verification.
#include "tests/sim/planted_mistakes.h"

namespace kiln {
namespace {

TEST(EmbedExpandOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> mutants{
      {"ids count from 0", "kernel.cu", "args.ids[row] - args.first_id", "args.ids[row]"},
      {"one embedding more", "kernel.cu", "entry < args.num_embeddings",
       "entry <= args.num_embeddings"},
      {"others keep what was there", "kernel.cu", "uint4{0, 0, 0, 0}", "uint4{1, 0, 0, 0}"},
      {"one stream less", "kernel.cu", "copy < copies", "copy < copies - 1"},
      {"tables are dense", "kernel.cu", "entry * args.table_stride", "entry * columns"},
      {"the last piece is missing", "kernel.cu", "piece >= pieces) break",
       "piece + 1 >= pieces) break"},
  };
  expect_rejected("embed_expand", mutants, {{"K", 1272}, {"C", 3}},
                  {{"threads", 64}, {"pieces_per_thread", 2}},
                  {"33 rows", "no embedding", "padded strides"});
}

TEST(EngramHashOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> mutants{
      {"history from its other end", "kernel.cu", "look_backs + (in_step - first_row)",
       "(first_row - in_step - 1)"},
      {"the rows of the request before", "kernel.cu", "in_step >= first_row", "in_step >= 0"},
      {"the base is not taken off", "kernel.cu", " - args.query_start_loc[0]", ""},
      {"only the dead one is replaced", "kernel.cu", "is_within = is_within && ids[n] >= 0",
       "is_within = ids[n] >= 0"},
      {"the dead are 0", "kernel.cu", "ids[n] : args.pad_id", "ids[n] : 0"},
      {"one token less", "kernel.cu", "n <= 1 + column / num_heads", "n <= column / num_heads"},
      {"sums instead of xor", "kernel.cu", "hash ^= product", "hash += product"},
      {"32 bits", "kernel.cu", "hash % prime", "static_cast<u32>(hash) % prime"},
      {"no offset", "kernel.cu", " + args.offsets[column]", ""},
      {"padding is hashed", "kernel.cu", "request >= args.num_requests", "false"},
  };
  expect_rejected("engram_hash", mutants, {{"heads", 8}}, {{"threads", 64}},
                  {"vectors", "vectors behind history", "chunks at every border",
                   "several requests, some empty"});
}

TEST(EngramInjectOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> mutants{
      {"the key of stream 0", "kernel.cu", "keys + stream * columns", "keys"},
      {"the last key as value", "kernel.cu", "keys + num_streams * columns",
       "keys + (num_streams - 1) * columns"},
      {"weights of stream 0", "kernel.cu", "args.q_weight + stream *", "args.q_weight + 0 *"},
      {"one weight for both", "kernel.cu", "args.k_weight + stream * args.k_weight_stride", "q"},
      {"the sign is lost", "kernel.cu", "copysignf(__fsqrt_rn(fmaxf(fabsf(dot), 1e-6f)), dot)",
       "__fsqrt_rn(fmaxf(fabsf(dot), 1e-6f))"},
      {"no root", "kernel.cu", "__fsqrt_rn(fmaxf(fabsf(dot), 1e-6f))", "fmaxf(fabsf(dot), 1e-6f)"},
      {"not divided by the width", "kernel.cu", "__fmul_rn(normed, width)", "normed"},
      {"keys are not normalised", "kernel.cu", "norm_factor<columns>(of_keys)",
       "norm_factor<columns>(squares)"},
      {"the dead are fed", "kernel.cu", "args.ids[t] < 0", "args.ids[t] < -1"},
      {"sums share their place", "kernel.cu", "exchange + 2 * step", "exchange + step"},
  };
  expect_rejected("engram_inject", mutants, {{"K", 1272}, {"C", 3}},
                  {{"threads_per_row", 64}, {"rows_per_cta", 2}},
                  {"17 rows", "aligned", "faint", "padded strides"});
}

TEST(MoeRouteOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> mutants{
      {"log(1 + exp(x))", "kernel.cu", "log1pf(expf(logit))", "logf(1.0f + expf(logit))"},
      {"no threshold", "kernel.cu", "logit > 20.0f ? logit : ", ""},
      {"no root", "kernel.cu", "__fsqrt_rn(softplus)", "softplus"},
      {"weights of keys", "kernel.cu", "scores[i] = is_number ? score_of(logit[i]) : 0.0f",
       "scores[i] = is_number ? score_of(logit[i]) + added[i] : 0.0f"},
      {"no bias", "kernel.cu", "__fadd_rn(scores[i], added[i])", "scores[i]"},
      {"images have no bias of their own", "kernel.cu", "is_image && args.image_bias != nullptr",
       "is_image && args.image_bias == nullptr"},
      {"of equal keys the highest", "kernel.cu", "__reduce_min_sync(all_lanes, own)",
       "__reduce_max_sync(all_lanes, own + 1) - 1"},
      {"NaN is chosen", "kernel.cu", "is_one && is_number ?", "is_one ?"},
      {"an expert twice", "kernel.cu", "keys[i] = never;", ""},
      {"padding is routed", "kernel.cu", "is_valid && i < top_k", "i < top_k"},
      {"not scaled", "kernel.cu", "scaling = 1.5f", "scaling = 1.0f"},
      {"the last expert is missing", "kernel.cu",
       "expert < num_experts;\n      const bool is_number",
       "expert + 1 < num_experts;\n      const bool is_number"},
  };
  expect_rejected("moe_route", mutants, {{"E", 33}, {"top_k", 4}}, {{"rows_per_cta", 2}},
                  {"33 rows", "logits to 100", "closed", "ties", "no numbers", "padded strides"});
}

TEST(MoeAlignOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> mutants{
      {"pairs change places", "kernel.cu", "of_warps[warp][expert] + peers.before",
       "of_warps[warp][expert] + peers.count - 1 - peers.before"},
      {"warps are counted from the last", "kernel.cu", "groups * warp / warps",
       "groups * (warps - 1 - warp) / warps"},
      {"an expert without pairs has a block", "kernel.cu",
       "blocks[i] = (count + block_size - 1) / block_size", "blocks[i] = count / block_size + 1"},
      {"ids of other ranks", "kernel.cu", "id < num_experts ? id : -1", "id"},
      {"the map is left out", "kernel.cu", "args.expert_map == nullptr", "true"},
      {"padding is 0", "kernel.cu", "args.sorted_token_ids[i] = static_cast<i32>(pairs)",
       "args.sorted_token_ids[i] = 0"},
      {"blocks behind the last are 0", "kernel.cu", "args.expert_ids[i] = -1",
       "args.expert_ids[i] = 0"},
      {"the number of pairs", "kernel.cu", "= all_blocks * block_size", "= all_blocks"},
      {"beyond the capacity", "kernel.cu", "if (place < args.capacity)", "if (true)"},
      {"no barrier before the pairs", "kernel.cu", "args.expert_ids[i] = -1;\n  __syncthreads();",
       "args.expert_ids[i] = -1;"},
  };
  expect_rejected(
      "moe_align", mutants, {{"E", 48}, {"top_k", 6}, {"block", 16}}, {{"warps", 4}},
      {"97 rows", "an expert map", "one expert", "none of this rank", "little capacity"});
}

TEST(MoeCombineOnSimulator, PlantedMistakesAreRejected) {
  const std::vector<Mutant> mutants{
      {"in the order of the router", "kernel.cu", "pairs + order[i] *", "pairs + i *"},
      {"by descending expert", "kernel.cu", "id < ids[own]", "id > ids[own]"},
      {"none counts", "kernel.cu", "const bool counts = id >= 0", "const bool counts = id >= -1"},
      {"expert 0 is none", "kernel.cu", "const bool counts = id >= 0",
       "const bool counts = id > 0"},
      {"the shared one is left out", "kernel.cu", "args.shared != nullptr",
       "args.shared == nullptr"},
      {"sums of bf16", "kernel.cu", "__fadd_rn(of[2 * i], low_bf16(pairs[i]))",
       "low_bf16(to_bf16x2(__fadd_rn(of[2 * i], low_bf16(pairs[i])), 0.0f))"},
      {"no barrier", "kernel.cu", "__syncthreads();", ""},
  };
  expect_rejected("moe_combine", mutants, {{"K", 1272}, {"top_k", 6}},
                  {{"threads", 64}, {"pieces_per_thread", 2}},
                  {"17 rows", "any bits", "cancelling", "padded strides"});
}

}  // namespace
}  // namespace kiln
