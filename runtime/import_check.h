// What comes from elsewhere, judged by what this build knows of ops, shapes, configs and GPUs. The
// values alone are judged by cache/transfer.h; here each record must mean something.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/transfer.h"
#include "jit/base/gpu.h"

namespace kiln::runtime {

// The GPU that a class key describes, without names, clocks and rates; nothing unless the key is
// one that gpu_class_key() makes.
std::optional<Gpu> gpu_of_class_key(std::string_view key);

// Why a record is not taken: its op is not known in that version, its shape, bucket or config is
// not legal there, its id does not follow from its fields. "" when nothing is wrong with it.
std::string why_meaningless(const cache::Decision& decision);
std::string why_meaningless(const cache::PlanRecord& plan);
std::string why_meaningless(const cache::Problem& problem);

// Takes out of `contents` what is not taken, and says why.
std::vector<cache::MergeRow> drop_refused(cache::StoreContents& contents);

// Makes decisions for one other GPU class decisions of kind `borrowed` for this one: of each
// problem the best kind. Evidence of the other class goes; what is known of plans stays. Fails with
// invalid_argument when the contents are of several classes, or of another compute capability.
void borrow(cache::StoreContents& contents, const Gpu& gpu);

}  // namespace kiln::runtime
