// Stores of several nodes over one shared pack that nobody writes: what the pack holds serves all
// of them without a compiler, and what a node decides stays its own.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "jit/base/gpu.h"
#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWorkload =
    "{\"ops\": [{\"op\": \"staged_rows\", \"shape\": {\"format\": \"plain\", \"width\": 64}}]}";

class OverlayTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();  // no compiler
    with_store([](cache::Store& store) { decide(store, 2, cache::DecisionKind::measured); });
    fs::create_directory(packs_);
    with_store([&](cache::Store& store) { store.make_pack(packs_ + "/sm_80.db"); });
    fs::permissions(packs_ + "/sm_80.db", fs::perms(0444));
    fs::permissions(packs_, fs::perms(0555));
    bytes_ = bytes_of_pack();
    setenv("KILN_PACK", packs_.c_str(), 1);
  }
  void TearDown() override {
    EXPECT_EQ(bytes_of_pack(), bytes_);
    EXPECT_EQ(std::distance(fs::directory_iterator(packs_), fs::directory_iterator()), 1);
    fs::permissions(packs_, fs::perms(0755));
    unsetenv("KILN_PACK");
    RuntimeTest::TearDown();
  }

  static void decide(cache::Store& store, int64_t splits, cache::DecisionKind kind) {
    seed_decision(store, fake_gpu(0),
                  {.op = &staged_rows(),
                   .fixed = {{"format", 0}, {"C", 64}},
                   .bucket = {{"T", 256}},
                   .config = {{"rows_per_cta", 4}, {"splits", splits}},
                   .kind = kind});
  }
  void go_to_node(int number) { store_path_ = folder_.file(fmt::format("node{}.db", number)); }

  // What every call takes on this node.
  kiln_digests prepared_digests() {
    kiln_session* session = open();
    EXPECT_OK(kiln_prepare(session, kWorkload, nullptr, nullptr));
    EXPECT_OK(kiln_seal(session));
    EXPECT_EQ(stats(session).compiles, 0u);
    EXPECT_EQ(stats(session).decision_hits, 1u);
    kiln_plan* rows = plan(session, "staged_rows", kStagedShape);
    EXPECT_OK(call_staged_rows(rows, staged_rows_args(200)));
    kiln_digests digests{};
    digests.size = sizeof digests;
    EXPECT_OK(kiln_get_digests(session, &digests));
    EXPECT_OK(kiln_close(session));
    EXPECT_EQ(log_.count("warning: "), 0) << log_.text();
    return digests;
  }
  std::string bytes_of_pack() const {
    std::ifstream file(packs_ + "/sm_80.db", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const std::string packs_ = folder_.file("packs");
  std::string bytes_;
};

bool same_exact(const kiln_digests& one, const kiln_digests& other) {
  return std::equal(std::begin(one.exact), std::end(one.exact), std::begin(other.exact));
}

TEST_F(OverlayTest, C16C19SharedReadOnlyPackServesWithoutACompiler) {
  kiln_digests digests[3];
  for (int node = 0; node < 3; ++node) {
    go_to_node(node);
    digests[node] = prepared_digests();
    // Nothing was copied: the node's own file holds no kernel.
    EXPECT_TRUE(cache::Store::open({.path = store_path_, .pack = ":"})->list_binaries().empty());
  }
  EXPECT_TRUE(same_exact(digests[0], digests[1]));
  EXPECT_TRUE(same_exact(digests[0], digests[2]));
}

TEST_F(OverlayTest, WhatANodeDecidesServesThatNodeAlone) {
  go_to_node(0);
  const kiln_digests before = prepared_digests();
  with_store([](cache::Store& store) { decide(store, 1, cache::DecisionKind::pinned); });
  EXPECT_FALSE(same_exact(prepared_digests(), before));
  go_to_node(1);
  EXPECT_TRUE(same_exact(prepared_digests(), before));
  go_to_node(0);
  with_store([](cache::Store& store) {
    for (const cache::DecisionRow& row : store.list_decisions()) {
      if (row.decision.kind == cache::DecisionKind::pinned) {
        EXPECT_TRUE(store.forget(row.decision.problem, row.decision.gpu_class));
      }
    }
  });
  EXPECT_TRUE(same_exact(prepared_digests(), before));
}

TEST_F(OverlayTest, C10StartLineCountsWhatIsThereAndWhatIsUsable) {
  go_to_node(0);
  prepared_digests();
  EXPECT_TRUE(log_.has(
      "store " + store_path_ + ", pack " + packs_ +
      "/sm_80.db: of 4 kernels 0 are loaded, 4 stored, 0 missing (0 absent, 0 damaged); of "
      "4 buckets 1 have a decision, 1 of them usable"))
      << log_.text();
  with_store([](cache::Store& store) {
    for (const cache::DecisionRow& row : store.list_decisions()) {
      EXPECT_TRUE(store.put_verification({.plan = row.decision.plan,
                                          .problem = row.decision.problem,
                                          .by = cache::Verified::device,
                                          .passed = false,
                                          .detail = "out[0] is wrong",
                                          .card = "Another Card"}));
    }
  });
  kiln_session* session = open();
  ASSERT_OK(kiln_prepare(session, kWorkload, nullptr, nullptr));
  EXPECT_TRUE(log_.has("4 buckets 1 have a decision, 0 of them usable")) << log_.text();
}

// A pack of before goes on serving beside one that came later.
TEST_F(OverlayTest, KernelThatNoLayerHasIsTheOnlyOneThatIsMissed) {
  go_to_node(0);
  kiln_session* session = open();
  ASSERT_OK(kiln_prepare(session, kWorkload, nullptr, nullptr));
  EXPECT_REFUSED(
      kiln_prepare(session,
                   "{\"ops\": [{\"op\": \"staged_rows\", \"shape\": {\"format\": \"plain\","
                   " \"width\": 32}}]}",
                   nullptr, nullptr),
      KILN_NO_COMPILER, "KILN_NVRTC");
  EXPECT_EQ(stats(session).miss_absent, 2u);
  kiln_plan* rows = plan(session, "staged_rows", kStagedShape);
  EXPECT_OK(call_staged_rows(rows, staged_rows_args(200)));
}

}  // namespace
}  // namespace kiln::runtime
