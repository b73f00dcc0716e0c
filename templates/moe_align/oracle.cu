// The naive form of moe_align: one block, a thread an expert, which looks through all pairs.
#include "kiln_args.h"
#include "kiln_constants.h"  // experts, top_k, block

__device__ int expert_of(const Args& args, long long pair) {
  int expert = args.experts[pair / top_k * args.experts_stride + pair % top_k];
  if (args.expert_map != nullptr)
    expert = expert < 0 || expert >= args.num_global_experts ? -1 : args.expert_map[expert];
  return expert < 0 || expert >= experts ? -1 : expert;
}

extern "C" __global__ void moe_align_oracle(const __grid_constant__ Args args) {
  __shared__ int counts[experts];
  const long long pairs = args.num_rows * top_k;
  const int e = threadIdx.x;
  int count = 0;
  for (long long pair = 0; pair < pairs && e < experts; ++pair)
    count += expert_of(args, pair) == e ? 1 : 0;
  if (e < experts) counts[e] = count;
  __syncthreads();
  long long start = 0, end = 0;
  for (int other = 0; other < experts; ++other) {
    const long long blocks = (counts[other] + block - 1) / block;
    if (other < e) start += blocks * block;
    end += blocks * block;
  }
  if (e < experts) {
    long long at = start;
    for (long long pair = 0; pair < pairs; ++pair)
      if (expert_of(args, pair) == e) args.sorted_token_ids[at++] = static_cast<int>(pair);
    while (at % block != 0) args.sorted_token_ids[at++] = static_cast<int>(pairs);
    for (long long b = start / block; b < at / block; ++b) args.expert_ids[b] = e;
    if (args.expert_counts != nullptr) args.expert_counts[e] = count;
  }
  if (e == 0) args.num_tokens_post_pad[0] = static_cast<int>(end);
  const long long blocks = (pairs + experts * (block - 1ll) + block - 1) / block;
  for (long long i = end + e; i < blocks * block; i += blockDim.x)
    args.sorted_token_ids[i] = static_cast<int>(pairs);
  for (long long b = end / block + e; b < blocks; b += blockDim.x) args.expert_ids[b] = -1;
}
