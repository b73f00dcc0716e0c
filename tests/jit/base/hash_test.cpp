#include "jit/base/hash.h"

#include <gtest/gtest.h>

namespace kiln {
namespace {

// Vectors of the XXH3 128 specification.
TEST(Hash, IsXxh3In128Bits) {
  EXPECT_EQ(hash_text("").hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_bytes({}).hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_text("a").hex(), "a96faf705af16834e6c632b61e964e1f");
}

TEST(Hash, BytesAndTextAgree) {
  const std::string text = "seventeen letters";
  EXPECT_EQ(hash_text(text), hash_bytes(std::as_bytes(std::span(text))));
}

TEST(HashRecord, GoldenKey) {
  const Hash128 key = HashRecord().field("op", "gather").field("version", int64_t{-3}).hash();
  EXPECT_EQ(key.hex(), "e7ed38d29990df1177dd13093e510e16");
}

TEST(HashRecord, IsTheHashOfLengthPrefixedFields) {
  const std::string seven_zeros(7, '\0');
  const std::string record = "\2" + seven_zeros + "ab" + "\3" + seven_zeros + "-12";
  EXPECT_EQ(HashRecord().field("ab", int64_t{-12}).hash(), hash_text(record));
}

// Longer records are hashed in stripes, as they come.
TEST(HashRecord, IsThatOfTheWholeRecordAtEveryLength) {
  const auto length_of = [](size_t size) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(size >> (8 * i) & 0xff);
    return bytes;
  };
  HashRecord together;
  std::string record;
  for (const size_t size : {0, 200, 240, 241, 1000, 5000}) {
    std::string value(size, 'v');
    for (size_t i = 0; i < size; i += 7) value[i] = static_cast<char>(i);
    const std::string text = length_of(1) + "n" + length_of(size) + value;
    EXPECT_EQ(HashRecord().field("n", value).hash(), hash_text(text)) << size;
    together.field("n", value);
    record += text;
  }
  EXPECT_EQ(together.hash(), hash_text(record));
}

TEST(Hash, IsReadBackFromItsDigitsAndFromNothingElse) {
  const Hash128 hash = hash_text("kiln");
  EXPECT_EQ(parse_hash(hash.hex()), hash);
  std::string wrong = hash.hex();
  EXPECT_FALSE(parse_hash(wrong + "0"));
  EXPECT_FALSE(parse_hash(wrong.substr(2)));
  wrong[5] = 'G';
  EXPECT_FALSE(parse_hash(wrong));
  EXPECT_FALSE(parse_hash(""));
}

TEST(HashRecord, EqualFieldsGiveEqualKeysWhateverWasHashedBefore) {
  auto key = [] { return HashRecord().field("a", "1").field("b", "2").hash(); };
  const Hash128 first = key();
  HashRecord().field("something", "else").hash();
  EXPECT_EQ(first, key());
}

TEST(HashRecord, C77MovingAByteBetweenFieldsChangesTheKey) {
  const Hash128 key = HashRecord().field("ab", "cd").hash();
  EXPECT_NE(key, HashRecord().field("a", "bcd").hash());
  EXPECT_NE(key, HashRecord().field("abc", "d").hash());
  EXPECT_NE(HashRecord().field("k", "v=1").hash(), HashRecord().field("k=v", "1").hash());
}

TEST(HashRecord, TwoFieldsAreNotOneThatLooksLikeTheirJoin) {
  const Hash128 two = HashRecord().field("a", "x").field("b", "y").hash();
  const std::string one(1, '\1');
  const std::string length = one + std::string(7, '\0');
  EXPECT_NE(two, HashRecord().field("a", "x" + length + "b" + length + "y").hash());
}

TEST(HashRecord, FieldOrderMatters) {
  EXPECT_NE(HashRecord().field("a", "1").field("b", "2").hash(),
            HashRecord().field("b", "2").field("a", "1").hash());
}

}  // namespace
}  // namespace kiln
