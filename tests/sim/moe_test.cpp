// embed_expand, moe_route and moe_combine on the simulator: planted mistakes are found by
// verification.
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
