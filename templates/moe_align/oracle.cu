// The naive form of moe_align: one thread, expert after expert.
// grid  (1)   block (1)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // num_experts, top_k, block_size

extern "C" __global__ void moe_align_oracle(const __grid_constant__ Args args) {
  const long long pairs = args.num_rows * top_k;
  long long place = 0;
  const auto put = [&](long long pair) {
    if (place < args.capacity) args.sorted_token_ids[place] = static_cast<int>(pair);
    ++place;
  };
  for (int expert = 0; expert < num_experts; ++expert) {
    for (long long pair = 0; pair < pairs; ++pair) {
      int id = args.ids[pair / top_k * args.ids_stride + pair % top_k];
      if (args.expert_map != nullptr)
        id = id >= 0 && id < args.num_global_experts ? args.expert_map[id] : -1;
      if (id != expert) continue;
      if (place % block_size == 0 && place < args.capacity)
        args.expert_ids[place / block_size] = expert;
      put(pair);
    }
    while (place % block_size != 0) put(pairs);
  }
  args.num_tokens_post_pad[0] = static_cast<int>(place);
  for (long long block = place / block_size; block * block_size < args.capacity; ++block)
    args.expert_ids[block] = -1;
  while (place < args.capacity) put(pairs);
}
