// embed_expand, engram_hash and engram_inject on the simulator: planted mistakes are found by
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
      {"padding is hashed", "kernel.cu", "request >= 0 && request < args.num_requests",
       "request >= 0"},
      {"rows before their request are hashed", "kernel.cu", "if (t < first_row)",
       "if (!is_request)"},
  };
  expect_rejected("engram_hash", mutants, {{"heads", 8}}, {{"threads", 64}},
                  {"vectors", "vectors behind history", "chunks at every border",
                   "several requests, some empty", "rows before their request"});
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
      {"keys are not normalised", "kernel.cu", "norm_factor<columns>(of_row[of_key])",
       "norm_factor<columns>(of_row[of_h])"},
      {"the dead are fed", "kernel.cu", "if (id < 0) return;", ""},
      {"sums share their place", "norm.cuh", "shared[n * threads + thread] = sums[n]",
       "shared[thread] = sums[n]"},
  };
  expect_rejected("engram_inject", mutants, {{"K", 1272}, {"C", 3}},
                  {{"threads_per_row", 64}, {"rows_per_cta", 2}},
                  {"17 rows", "aligned", "faint", "padded strides"});
}

}  // namespace
}  // namespace kiln
