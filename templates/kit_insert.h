// What the kits of the ops that write paged caches share: rows with slots and positions, the RoPE
// table, and the bytes of an entry by the writer's formulas of ops.md B8. Truth is computed from
// the source rows; no cache is read.
//
// Sizes of such an op: T rows, P table rows, page_size, num_pages. Its arguments: the source rows,
// positions, slots, rope_table, cache.
//
// Knobs of a case: values (see QuantiserInput), position (of all rows; left out: any of the table),
// bad_slots and bad_positions (one in so many rows has one that means nothing), spread (1: every
// row has a page of its own), page_spacing (distance of the pages in use), first_entry (of row 0).
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "templates/kit.h"
#include "templates/kit_quantise.h"
#include "templates/kit_rope.h"

namespace kiln::templates {

enum class CacheLayout : int64_t { f1 = 1, f2 = 2, f3 = 3, f4 = 4, f5 = 5, f6 = 6 };

// What distinguishes one op from another.
struct InsertOp {
  const Op* op = nullptr;
  const char* source = "";  // argument that holds the rows
  int64_t width = 512;      // elements of a row, of which the last 64 rotate
  int64_t page_size = 64;   // of the measured calls
  bool has_yarn = true;     // frequencies of the table: ops.md B5
  Quantiser (*quantiser)(const Sizes& fixed) = nullptr;
  RowBits (*before_rope)(const Case& c, int64_t row) = nullptr;  // left out: the source row

  CacheLayout layout(const Sizes& fixed) const { return static_cast<CacheLayout>(fixed["format"]); }
};

int64_t entry_bytes(CacheLayout layout);
// The byte of a page: of which entry, and what stands there for the row (bf16 after RoPE).
int64_t entry_of_byte(CacheLayout layout, int64_t page_size, int64_t byte);
int entry_byte(CacheLayout layout, Quantiser quantiser, const RowBits& row, int64_t page_size,
               int64_t byte);
// What a reader gets for element e of the row.
double stored_value(CacheLayout layout, Quantiser quantiser, const RowBits& row, int64_t e);

// Of the norms of such ops.
uint16_t norm_weight_bits(const Case& c, int64_t column);
// The source row after its norm.
RowBits normalised_row(const InsertOp& insert, const Case& c, int64_t row);
InputRows insert_input(const InsertOp& insert, const Case& c);
// What is in the cache for row t; nullopt: nothing is written.
std::optional<RowBits> written_row(const InsertOp& insert, const Case& c, int64_t t);
int64_t slot_of(const Case& c, int64_t t);
int64_t position_of(const Case& c, int64_t t);

Case insert_measured_case(const InsertOp& insert, const Sizes& fixed, const Sizes& bucket);
std::vector<Case> insert_verify_cases(const InsertOp& insert, const Sizes& fixed,
                                      const Sizes& bucket);
std::vector<Case> insert_replay_cases(const InsertOp& insert, const Sizes& fixed);
std::vector<Case> insert_large_cases(const InsertOp& insert, const Sizes& fixed);
// Every argument but further ones of the op.
void insert_fill(const InsertOp& insert, const Case& c, const Arg& arg,
                 std::span<const int64_t> outer, std::span<std::byte> row);
std::optional<double> insert_expected(const InsertOp& insert, const Case& c,
                                      std::span<const int64_t> index);
std::vector<ElementRange> insert_written_by(const InsertOp& insert, const Case& c, int64_t t);

}  // namespace kiln::templates
