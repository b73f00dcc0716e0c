// Images that came from elsewhere and were not proven here: nobody is given one, whatever names it,
// until it is compiled here.
#include "tests/cache/fixture.h"

namespace kiln::cache {
namespace {

class TrustTest : public StoreTest {
 protected:
  const TuningResult result_ = sample_result("a");
  const jit::Binary& first_ = result_.binaries[0];
  const jit::Binary& second_ = result_.binaries[1];

  void distrust(const std::string& path, const Hash128& key) {
    sql(path, "UPDATE images SET trusted = 0 WHERE binary = '" + key.hex() + "'");
  }
};

TEST_F(TrustTest, WhatIsCompiledHereIsTrusted) {
  auto store = open();
  ASSERT_TRUE(store->put(result_));
  for (const BinaryRow& row : store->list_binaries()) EXPECT_TRUE(row.trusted);
}

TEST_F(TrustTest, UntrustedImageIsAMissWithoutAWarning) {
  ASSERT_TRUE(open()->put(result_));
  distrust(path_, first_.key);
  for (const auto mode : {StoreOptions::Mode::read_write, StoreOptions::Mode::read_only}) {
    auto store = open(mode);
    EXPECT_FALSE(store->has_binary(first_.key));
    EXPECT_FALSE(store->find_binary(first_.key));
    EXPECT_TRUE(store->has_binary(second_.key));
    EXPECT_TRUE(store->find_binary(second_.key));
    for (const BinaryRow& row : store->list_binaries()) {
      EXPECT_EQ(row.trusted, row.key != first_.key);
    }
    EXPECT_TRUE(store->warnings().empty());
    EXPECT_TRUE(store->check().empty());
  }
  EXPECT_EQ(sql("SELECT count(*) FROM kernels WHERE trusted = 0"), std::vector<std::string>{"1"});
}

TEST_F(TrustTest, TrustedOneOfThePackIsFoundUnderAnUntrustedOne) {
  pack_ = make_pack_of("base.pack", {result_});
  ASSERT_TRUE(open()->put(result_));
  distrust(path_, first_.key);
  auto store = open();
  EXPECT_TRUE(store->has_binary(first_.key));
  ASSERT_TRUE(store->find_binary(first_.key));
  expect_equal(*store->find_binary(first_.key), first_);
  for (const BinaryRow& row : store->list_binaries()) {
    EXPECT_TRUE(row.trusted);
    EXPECT_EQ(row.layer, row.key == first_.key ? pack_ : path_);
    EXPECT_EQ(row.op, "sample_op");
  }
}

TEST_F(TrustTest, UntrustedOneOfThePackIsAMiss) {
  pack_ = make_pack_of("base.pack", {result_});
  distrust(pack_, first_.key);
  auto store = open();
  EXPECT_FALSE(store->has_binary(first_.key));
  EXPECT_FALSE(store->find_binary(first_.key));
}

TEST_F(TrustTest, CompiledOneTakesThePlaceOfAnUntrustedOne) {
  ASSERT_TRUE(open()->put(result_));
  sql("UPDATE images SET trusted = 0, data = x'00'");
  auto store = open();
  ASSERT_TRUE(store->put_binary(first_));
  ASSERT_TRUE(store->find_binary(first_.key));
  EXPECT_EQ(store->find_binary(first_.key)->image, first_.image);
  EXPECT_FALSE(store->has_binary(second_.key));
}

TEST_F(TrustTest, PlanAndEvidenceMayNameAnUntrustedImage) {
  ASSERT_TRUE(open()->put(result_));
  distrust(path_, first_.key);
  auto store = open();
  EXPECT_TRUE(store->put_plan(result_.plans[0]));
  EXPECT_TRUE(store->put_timing(result_.timings[0]));
  EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
}

TEST_F(TrustTest, PackKeepsWhatIsUntrustedSo) {
  ASSERT_TRUE(open()->put(result_));
  distrust(path_, first_.key);
  const std::string pack = folder_ + "/a.pack";
  open()->make_pack(pack);
  EXPECT_EQ(sql(pack, "SELECT binary FROM images WHERE trusted = 0"),
            std::vector{first_.key.hex()});
}

}  // namespace
}  // namespace kiln::cache
