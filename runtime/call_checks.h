// What a legal call of an op with one fixed shape looks like, as tables of field indices: checking
// a call walks numbers only, with no strings and no allocation. Sentences are made after a check
// has failed, from the description.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "templates/abi.h"
#include "templates/op.h"

namespace kiln::runtime {

inline constexpr int kMaxFields = 96;

// An Extent over the fields of a call's struct; fixed sizes are folded into the scale. Same value
// as Extent::value.
class FieldExtent {
 public:
  FieldExtent() = default;
  int64_t value(const int64_t* fields) const noexcept;
  std::vector<int> fields() const {  // that it depends on, for messages
    std::vector<int> found;
    for (const Factor& factor : factors_) found.push_back(factor.field);
    return found;
  }

 private:
  friend class FieldResolver;
  struct Factor {  // min(ceil((times * field + plus) / divisor), cap)
    int field = 0;
    int64_t times = 1;
    int64_t plus = 0;
    int shift = -1;  // divisor is 1 << shift; -1: it is no power of two
    int64_t divisor = 1;
    int64_t cap = 0;
  };
  int64_t offset_ = 0;
  int64_t scale_ = 0;
  std::vector<Factor> factors_;
};

// Where the symbols of an op live in a call: a constant of the fixed shape, or a field of the
// struct.
class FieldResolver {
 public:
  FieldResolver(const templates::Op& op, const templates::Sizes& fixed);

  // sum: constant + factor * field + ..., or an extent, as derived sizes are. unknown: another
  // function of the sizes of a call, which an argument cannot have.
  struct Place {
    enum class Kind { constant, field, sum, extent, unknown } kind = Kind::constant;
    int64_t constant = 0;
    int field = 0;
    struct Summand {
      int field = 0;
      int64_t factor = 0;
    };
    std::vector<Summand> summands;
    FieldExtent extent;
  };
  Place find(std::string_view symbol) const;
  FieldExtent compile(const templates::Extent& extent, std::string_view what) const;

  const std::vector<templates::Field>& fields() const { return fields_; }

 private:
  Place find_derived(const templates::Size& size) const;

  const templates::Op& op_;
  templates::Sizes fixed_;  // with the derived sizes that follow from the fixed ones alone
  std::vector<templates::Field> fields_;
};

class CallChecks {
 public:
  CallChecks(const templates::Op& op, const templates::Sizes& fixed);
  CallChecks(const CallChecks&) = delete;  // rows point into others
  CallChecks& operator=(const CallChecks&) = delete;

  // Views the caller's struct as fields. A shorter struct of an older header is copied to `storage`
  // and filled with zeros; nullptr when the struct's size is not acceptable.
  const int64_t* view(const void* args, int64_t* storage) const noexcept;

  bool sizes_hold(const int64_t* fields) const noexcept;
  bool holds(const int64_t* fields) const noexcept;  // sizes, pointers, strides, requirements

  // Why view() or holds() failed; "" when it did not. Slow.
  std::string explain_view(const void* args) const;
  std::string explain(const int64_t* fields) const;
  // Why no call of these sizes is legal, however its tensors lie; "" when one is.
  std::string explain_sizes(const templates::Sizes& dynamic) const;

  // "num_tokens = 70000, idx_width = 640": for the sentences of others.
  std::string sizes_text(const int64_t* fields) const;
  const std::string& field_name(int field) const {
    return resolver_.fields()[static_cast<size_t>(field)].name;
  }

  const templates::Op& op() const { return op_; }
  int field_count() const { return static_cast<int>(resolver_.fields().size()); }
  const FieldResolver& resolver() const { return resolver_; }
  int workspace_field() const {
    return workspace_field_;
  }  // -1 without one; its size is the next field

 private:
  struct SizeCheck {
    int field = 0;
    int64_t min = 0;
    int64_t max = 0;
  };
  struct StrideCheck {
    int field = 0;
    int64_t multiple = 1;
    FieldResolver::Place steps;  // how many there are of the dimension that this stride walks
    FieldResolver::Place row;    // extent of the innermost dimension
  };
  struct PointerCheck {
    int field = 0;
    bool is_written = false;
    templates::Presence presence = templates::Presence::required;
    uint64_t misaligned_bits = 0;
    int64_t element_bytes = 1;
    int64_t most_elements = 0;  // offsets in bytes are 64-bit numbers
    std::vector<StrideCheck> strides;
    std::vector<FieldResolver::Place> dims;
  };
  // The same in small flat rows, which the usual call walks and passes. What does not pass them is
  // looked at by pointer_holds().
  struct Number {
    int field = -1;
    int64_t constant = 0;                         // when there is no field
    const FieldResolver::Place* place = nullptr;  // when it is neither
    int64_t value(const int64_t* fields) const noexcept;
  };
  struct QuickStride {
    int field = 0;
    int64_t bad_bits = 0;  // that a multiple has not; -1: it is of no power of two
    Number steps;
  };
  struct QuickPointer {
    int field = 0;
    int strides_end = 0;  // index into quick_strides_; they begin where the last one's end
    bool nests = false;   // writes along two strides
    uint64_t bad_bits = 0;
    int64_t most_elements = 0;
    Number row;
  };
  // Of two walked dimensions of an output the one with the larger stride, and the other, which has
  // to fit between two steps of it.
  struct Nesting {
    const StrideCheck* outer = nullptr;  // nullptr: nothing to nest
    const StrideCheck* inner = nullptr;
    int64_t inner_steps = 0;
    int64_t reach = 0;  // from the first element of the inner dimension to its last row
    int64_t row = 0;
  };
  struct RequirementCheck {
    FieldExtent small;
    FieldExtent big;
  };

  void add_quick_checks();
  static Number number_of(const FieldResolver::Place& place);
  static bool quickly_holds(const QuickPointer& check, const QuickStride* strides,
                            const QuickStride* end, const int64_t* fields) noexcept;
  static bool stride_holds(const StrideCheck& check, const int64_t* fields) noexcept;
  static Nesting nesting(const PointerCheck& check, const int64_t* fields) noexcept;
  static bool writes_apart(const PointerCheck& check, const int64_t* fields) noexcept;
  static bool is_addressable(const PointerCheck& check, const int64_t* fields) noexcept;
  static bool pointer_holds(const PointerCheck& check, const int64_t* fields) noexcept;
  static bool is_empty(const PointerCheck& check, const int64_t* fields) noexcept;
  std::string numbers_of(const templates::Requirement& requirement, const int64_t* fields) const;
  std::string explain_pointer(const PointerCheck& check, const int64_t* fields) const;

  const templates::Op& op_;
  FieldResolver resolver_;
  int least_fields_ = 0;  // a shorter struct lacks a field that cannot be zero
  int workspace_field_ = -1;
  std::vector<SizeCheck> sizes_;
  std::vector<PointerCheck> pointers_;        // does not change once the rows below point into it
  std::vector<QuickPointer> quick_pointers_;  // as pointers_
  std::vector<QuickStride> quick_strides_;
  std::vector<RequirementCheck> requirements_;
};

// Fails with invalid_argument and the sentence of explain_sizes().
void require_sizes(const templates::Op& op, const templates::Sizes& fixed,
                   const templates::Sizes& dynamic);

}  // namespace kiln::runtime
