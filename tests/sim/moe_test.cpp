// The ops around the routed experts on the simulator: planted mistakes are found by verification,
// and one reads what the other has written.
#include "tests/sim/op_chain.h"
#include "tests/sim/planted_mistakes.h"

namespace kiln {
namespace {

using templates::Sizes;

TEST(MoeOnSimulator, MistakesOfMoeRouteAreRejected) {
  const std::vector<Mutant> mutants{
      {"equal keys go to the higher expert of a group", "kernel.cu", "keys[i] > best",
       "keys[i] >= best"},
      {"equal keys go to the higher group", "kernel.cu", "of[group].best > key",
       "of[group].best >= key"},
      {"equal keys go to the higher lane", "kernel.cu",
       "__reduce_min_sync(all_lanes, mine.key == "
       "key ? mine.expert : no_expert)",
       "__reduce_max_sync(all_lanes, mine.key == key ? mine.expert : -1)"},
      {"the bias is in the weights", "kernel.cu", "{__float_as_uint(score[0]),",
       "{__float_as_uint(keys.of[group].keys[0]),"},
      {"the score underflows", "score.cuh", "is_below ? __fmul_rn(root_of_t, root) : root",
       "is_below ? sqrt_rn(__fmul_rn(t, p)) : root"},
      {"ln(1 + t) is t", "score.cuh", "const float p = log1p_over(t);", "const float p = 1.0f;"},
      {"subnormals are lost", "score.cuh", "__fmul_rn(__fmul_rn(p, power), 0x1p-64f)",
       "__fmul_rn(fmaxf(__fmul_rn(p, power), 0x1p-62f) - 0x1p-62f, 0x1p-64f)"},
      {"infinity becomes NaN", "score.cuh", "square == infinity() ? infinity() :", ""},
      {"weights are not scaled", "kernel.cu", "1e-20f)), 1.5f)", "1e-20f)), 1.0f)"},
      {"another epsilon", "kernel.cu", "1e-20f", "1e-6f"},
      {"images have the bias of text", "kernel.cu", "is_image ? args.bias_image : args.bias",
       "args.bias"},
      {"a bias that is not there is read", "kernel.cu", "args.bias_image != nullptr &&", ""},
      {"padded rows choose", "kernel.cu", "|| !is_valid", ""},
      {"NaN is chosen", "kernel.cu",
       "fmaxf(__fadd_rn(score[i], __uint_as_float(biases[i])), -infinity())",
       "__fadd_rn(score[i], __uint_as_float(biases[i]))"},
      {"-infinity is chosen", "kernel.cu", "never_chosen = 0x007fffffu", "never_chosen = 0u"},
      {"an expert is chosen again", "kernel.cu", "is_it ? -infinity() :", ""},
      {"missing experts have a weight", "kernel.cu",
       "is_chosen ? load_shared_float(scores + 4 * mine.expert) : 0.0f",
       "load_shared_float(scores + 4 * (mine.expert & 127))"},
      {"biases are not waited for", "kernel.cu", "copy_async_wait<0>();", ""},
      {"strides are those of dense rows", "kernel.cu", "t * args.experts_stride", "t * top_k"},
  };
  const std::vector<std::string> cases{
      "images and padded rows",   "ties",        "any bits",         "edges",
      "logits from -100 to 100",  "few numbers", "experts shut out", "no bias for images",
      "from subnormal scores on", "odd strides"};
  expect_rejected("moe_route", mutants, {{"E", 384}, {"K", 6}}, {}, cases);
}

TEST(MoeOnSimulator, MistakesAmongWarpsOfARowAreRejected) {
  const std::vector<Mutant> mutants{
      {"one warp's choice is left out", "kernel.cu", "lane < warps_per_row * top_k) left",
       "lane < (warps_per_row - 1) * top_k) left"},
      {"the warps do not wait", "kernel.cu", "barrier(1 + row_in_cta, threads_per_row);", ""},
      {"rows share a barrier and what is chosen", "kernel.cu", "all_chosen[row_in_cta][0]",
       "all_chosen[0][0]"},
      {"experts that do not exist are chosen", "kernel.cu",
       "first + i < experts ? key : "
       "-infinity()",
       "key"},
      {"a choice is taken again", "kernel.cu", "if (left.expert == best.expert)", "if (false)"},
  };
  expect_rejected("moe_route", mutants, {{"E", 257}, {"K", 8}},
                  {{"threads_per_row", 64}, {"rows_per_cta", 2}},
                  {"images and padded rows", "ties", "few numbers"});
}

TEST(MoeOnSimulator, MistakesOfMoeCombineAreRejected) {
  const std::vector<Mutant> both{
      {"pairs are added by columns", "kernel.cu", "its_key < key ||", "other < lane ||"},
      {"pairs are added by descending experts", "kernel.cu", "its_key < key ||",
       "its_key > key ||"},
      {"equal experts share a rank", "kernel.cu", "(its_key == key && other < lane)", "false"},
      {"experts of other ranks add", "kernel.cu", "args.expert_map[adds ? expert : 0] >= 0",
       "true"},
      {"the rank's expert 0 is none", "kernel.cu", "args.expert_map[adds ? expert : 0] >= 0",
       "args.expert_map[adds ? expert : 0] > 0"},
      {"experts beyond the map are looked up", "kernel.cu", "adds && expert < args.num_experts",
       "adds"},
      {"pairs without expert add", "kernel.cu", "bool adds = expert >= 0;", "bool adds = true;"},
      {"the last pair is left out", "kernel.cu", "if (start + n < order.count) add(",
       "if (start + n + 1 < order.count) add("},
      {"pairs have the stride of dense rows", "kernel.cu", "column * args.pairs_stride1",
       "column * hidden"},
      {"the last part is missing", "kernel.cu", "piece < pieces) store(",
       "piece < pieces / 2) store("},
      {"odd elements are forgotten", "kernel.cu", "high_bf16(pairs[i])", "0.0f"},
  };
  const std::vector<Mutant> bf16{
      {"the shared expert is left out", "kernel.cu", "if (has_shared) add(", "if (false) add("},
      {"every row has the shared expert of the first", "kernel.cu",
       "if (has_shared) of_shared[i] = load(args.shared + t * args.shared_stride, i);",
       "if (has_shared) of_shared[i] = load(args.shared, i);"},
      {"a shared expert that is not there is read", "kernel.cu", "args.shared != nullptr;",
       "true;"},
  };
  const std::vector<std::string> cases{"5 rows",
                                       "padded rows, pairs without expert",
                                       "experts of other ranks",
                                       "an expert twice",
                                       "no shared expert",
                                       "padded strides"};
  const Sizes in_bf16{{"K", 6}, {"H", 512}, {"result", 0}},
      in_f32{{"K", 10}, {"H", 264}, {"result", 1}};
  expect_rejected("moe_combine", both, in_bf16, {{"threads", 32}}, cases);
  expect_rejected("moe_combine", bf16, in_bf16, {{"threads", 32}, {"pieces_per_thread", 2}}, cases);
  const std::vector<Mutant> of_f32{
      {"sums are rounded", "kernel.cu", "store_16(y + i, {__float_as_uint(sums[i]),",
       "store_16(y + i, {__float_as_uint(sums[i]) & 0xffff0000u,"},
      {"the second batch of columns is left out", "kernel.cu", "start += batch",
       "start += 2 * batch"},
      {"the second batch starts anew", "kernel.cu", "order.column(start + n)", "order.column(n)"},
  };
  expect_rejected("moe_combine", of_f32, in_f32, {}, cases);
  expect_rejected("moe_combine", both, {{"K", 6}, {"H", 512}, {"result", 1}}, {{"threads", 32}},
                  cases);
}

const Sizes kFewExperts{{"E", 48}, {"K", 6}, {"block", 32}};
const std::vector<std::string> kAlignCases{"17 rows",
                                           "all on one expert",
                                           "experts with 0, 1, m and m + 1 pairs",
                                           "uneven, pairs without expert",
                                           "padded rows",
                                           "experts of other ranks",
                                           "a map of numbers that do not exist",
                                           "no counts, odd strides",
                                           "no row",
                                           "many pairs"};

TEST(MoeOnSimulator, MistakesOfMoeAlignAreRejected) {
  const std::vector<Mutant> mutants{
      {"lanes are not in order", "kernel.cu", "__popc(same & lanes_before)",
       "__popc(same & ~lanes_before) - 1"},
      {"warps before are left out", "kernel.cu", "count_of_warps_before(shared, expert) + rank",
       "rank"},
      {"a warp counts itself", "kernel.cu", "max(warp_id() - 4 * word, 0)",
       "max(warp_id() + 1 - 4 * word, 0)"},
      {"rounds before are left out", "kernel.cu", "atomicAdd(&shared.next[expert], __popc(same));",
       ""},
      {"counts of a round stay", "kernel.cu", "*count_of_warp(shared, expert) = 0;", ""},
      {"parts before are left out", "kernel.cu", "atomicAdd(&shared.next[expert], before_of[n]);",
       ""},
      {"the CTA's own part is before it", "kernel.cu", "part < blockIdx.x ? 1 : 0",
       "part <= blockIdx.x ? 1 : 0"},
      {"a part is left out", "kernel.cu", "is_part = part < gridDim.x",
       "is_part = part + 1 < gridDim.x"},
      {"parts beyond the last count", "kernel.cu", "is_part = part < gridDim.x ? 1 : 0",
       "is_part = 1"},
      {"runs are not padded", "kernel.cu", "(count + block - 1) / block * block", "count"},
      {"full runs have one block more", "kernel.cu", "(count + block - 1) / block * block",
       "(count / block + 1) * block"},
      {"padding is the pair before", "kernel.cu", "padding = static_cast<i32>(pairs);",
       "padding = static_cast<i32>(pairs) - 1;"},
      {"padding is left out", "kernel.cu", "args.sorted_token_ids[start + i] = padding;", ""},
      {"blocks beyond the first have no expert", "kernel.cu", "i < padded / block; i += warp_lanes",
       "i < 1; i += warp_lanes"},
      {"nothing is behind the last run", "kernel.cu", "i < blocks * (block / 4)", "i < 0"},
      {"blocks behind the last run are left", "kernel.cu", "i < blocks; i += all_threads",
       "i < 0; i += 1"},
      {"the room is that of fewer experts", "kernel.cu", "pairs + experts * (block - 1)",
       "pairs + (experts - 1) * (block - 1)"},
      {"experts beyond the rank's are taken", "pairs.cuh",
       "static_cast<u32>(of[i]) < static_cast<u32>(experts)", "of[i] >= 0"},
      {"the map is read beyond its end", "pairs.cuh", "&& of[i] < args.num_global_experts", ""},
      {"the map is not used", "pairs.cuh", "args.expert_map != nullptr", "false"},
      {"rows have the stride of dense rows", "pairs.cuh", "row * args.experts_stride",
       "row * top_k"},
      {"counts are not cleared", "count.cu", "    counts[expert] = 0;", ";"},
      {"the workspace is that of fewer experts", "count.cu", "* count_vectors;",
       "* (count_vectors - 1);"},
      {"counts that are not wanted are written", "kernel.cu",
       "if (args.expert_counts == nullptr) return;", ""},
      {"the end is that of the CTA's warp", "kernel.cu", "end += sum;", "end = sum;"},
      {"threads do not wait for the counts of warps", "kernel.cu",
       "static_cast<u8>(__popc(same));\n    __syncthreads();", "static_cast<u8>(__popc(same));"},
  };
  expect_rejected("moe_align", mutants, kFewExperts,
                  {{"threads", 128}, {"rows_per_cta", 64}, {"more_ctas", 1}}, kAlignCases);
}

TEST(MoeOnSimulator, MistakesOfMoeAlignInOneKernelAreRejected) {
  const std::vector<Mutant> mutants{
      {"pairs before are left out", "kernel.cu", "if (any < part.begin)", "if (false)"},
      {"the first pair of the part is before it", "kernel.cu", "any < part.begin",
       "any <= part.begin"},
      {"only the own part is counted", "kernel.cu", "for_each_pair(args, 0, pairs,",
       "for_each_pair(args, part.begin, part.end,"},
      {"pairs of the second batch are left out", "pairs.cuh", "first += batch * threads",
       "first += 2 * batch * threads"},
  };
  expect_rejected("moe_align", mutants, kFewExperts,
                  {{"threads", 128}, {"rows_per_cta", 32}, {"counted", 0}}, kAlignCases);
}

class MoeChain : public OpChain {
 protected:
  runtime::DevicePtr upload(const std::vector<uint16_t>& values) {
    const auto count = static_cast<int64_t>(values.size() * sizeof(uint16_t));
    const runtime::DevicePtr memory = allocate(count);
    write(memory, std::as_bytes(std::span(values)));
    return memory;
  }
};

// Rows of padding have no experts, so that they are in no block and add nothing to their row.
TEST_F(MoeChain, L59PaddedRowsAreRoutedAlignedAndCombinedAsNothing) {
  constexpr int64_t kExperts = 128, kTopK = 3, kBlock = 16, kHidden = 64, kRows = 37, kPadded = 5;
  const templates::Kit& route_kit = templates::require_kit(templates::require_op("moe_route"));
  templates::Case route;
  for (const templates::Case& c :
       route_kit.verify_cases({{"E", kExperts}, {"K", kTopK}}, {{"T", 1}})) {
    if (c.name == "images and padded rows") route = c;
  }
  ASSERT_EQ(route.sizes["T"], kRows);
  ASSERT_EQ(route.knobs["padded_rows"], kPadded);
  const Pointers routed = tensors_of(route_kit, route);
  call("moe_route", route, routed);
  const auto experts = elements<int32_t>(routed.at("experts"), kRows * kTopK);

  templates::Case align{
      .name = "aligned",
      .sizes = {{"E", kExperts}, {"K", kTopK}, {"block", kBlock}, {"T", kRows}, {"G", 0}},
      .strides = {},
      .knobs = {},
      .absent = {"expert_map"}};
  const templates::Sizes sizes =
      templates::with_derived(templates::require_op("moe_align"), align.sizes);
  std::vector<std::byte> first;
  for (const templates::Config& config :
       {templates::Config{}, templates::Config{{"counted", 0}},
        templates::Config{{"threads", 512}, {"rows_per_cta", 8}, {"more_ctas", 32}}}) {
    const Pointers aligned{{"experts", routed.at("experts")},
                           {"sorted_token_ids", allocate(4 * sizes["entries"])},
                           {"expert_ids", allocate(4 * sizes["blocks"])},
                           {"num_tokens_post_pad", allocate(4)},
                           {"expert_counts", allocate(4 * kExperts)}};
    call("moe_align", align, aligned, config);
    const auto sorted = elements<int32_t>(aligned.at("sorted_token_ids"), sizes["entries"]);
    const auto counts = elements<int32_t>(aligned.at("expert_counts"), kExperts);
    int64_t placed = 0, counted = 0;
    for (const int32_t pair : sorted) {
      placed += pair < kRows * kTopK;
      EXPECT_TRUE(pair < (kRows - kPadded) * kTopK || pair == kRows * kTopK) << pair;
    }
    for (const int32_t count : counts) counted += count;
    EXPECT_EQ(placed, (kRows - kPadded) * kTopK);
    EXPECT_EQ(counted, placed);
    const std::vector<std::byte> these =
        bytes(aligned.at("sorted_token_ids"), 4 * sizes["entries"]);
    if (first.empty()) first = these;
    EXPECT_EQ(these, first);
  }

  // Pairs of rows of padding are as they were: NaN.
  const templates::Case combine{
      .name = "combined",
      .sizes = {{"K", kTopK}, {"H", kHidden}, {"result", 0}, {"T", kRows}, {"E", 0}},
      .strides = {},
      .knobs = {},
      .absent = {"expert_map"}};
  constexpr uint16_t kOne = 0x3f80, kTwo = 0x4000, kNan = 0x7fff, kFive = 0x40a0;
  std::vector<uint16_t> pairs(kRows * kTopK * kHidden, kOne), shared(kRows * kHidden, kTwo);
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (experts[i / kHidden] < 0) pairs[i] = kNan;
  }
  const Pointers combined{{"pairs", upload(pairs)},
                          {"experts", routed.at("experts")},
                          {"shared", upload(shared)},
                          {"y", allocate(2 * kRows * kHidden)}};
  call("moe_combine", combine, combined);
  const auto y = elements<uint16_t>(combined.at("y"), kRows * kHidden);
  for (int64_t i = 0; i < kRows * kHidden; ++i) {
    ASSERT_EQ(y[static_cast<size_t>(i)], i / kHidden < kRows - kPadded ? kFive : kTwo) << i;
  }
}

}  // namespace
}  // namespace kiln
