// The SQL of the tables, one file at a time: records of store.h in and out. What several layers
// mean together is store.cpp's matter. Every function may throw SqliteError; the writers expect an
// open transaction.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/blob.h"
#include "cache/sqlite.h"
#include "cache/store.h"

namespace kiln::cache {

// A row that may be there and yet not hold what was written.
template <typename Record>
struct Found {
  std::optional<Record> record;
  bool damaged = false;
};

int64_t now_seconds();

// Decisions of every kind, whether or not a better one exists.
std::vector<Found<Decision>> read_decisions(Database& database, const Problem& problem,
                                            std::string_view gpu_class);
std::vector<Found<Decision>> read_all_decisions(Database& database);

// What this file hides of the layers below it.
bool hides_decision(Database& database, const Problem& problem, std::string_view gpu_class);
std::vector<std::pair<Problem, std::string>> hidden_decisions(Database& database);
bool hides_binary(Database& database, const Hash128& key);

bool has_plan(Database& database, const Hash128& id);
bool has_image(Database& database, const Hash128& key, Trust trust = Trust::any);
// Whether the binary is known here; gc may have dropped its image.
bool has_description(Database& database, const Hash128& key);
Found<PlanRecord> read_plan(Database& database, const Hash128& id);
Found<jit::Binary> read_binary(Database& database, const Hash128& key, Trust trust = Trust::any);
Found<jit::Binary> read_description(Database& database, const Hash128& key);
std::vector<BinaryRow> read_binary_rows(Database& database);

std::vector<Problem> read_problems(Database& database);
std::vector<std::string> read_gpu_classes(Database& database, const Problem& problem);
std::vector<Verification> read_verifications(Database& database, const Problem& problem);
std::vector<Timing> read_timings(Database& database, const Problem& problem,
                                 std::string_view gpu_class);
std::vector<Rejection> read_rejections(Database& database, const Problem& problem,
                                       std::string_view gpu_class);

std::vector<UsedSize> read_used_sizes(Database& database);

// compiled: by this build, or proven by it. elsewhere: nobody loads the image until it is proven.
enum class ImageOrigin { compiled, elsewhere };
void write_binary(Database& database, const jit::Binary& binary, const PackedImage& image,
                  ImageOrigin origin = ImageOrigin::compiled);
void write_description(Database& database, const jit::Binary& binary);
void write_plan(Database& database, const PlanRecord& plan);
// Of these binaries those whose image is there and was last noted as used before this moment.
std::vector<Hash128> images_used_before(Database& database, const std::vector<Hash128>& binaries,
                                        int64_t seconds);
void write_used_now(Database& database, const Hash128& binary);
void write_verification(Database& database, const Verification& verification);
void write_timing(Database& database, const Timing& timing);
void write_rejection(Database& database, const Rejection& rejection);
// newest_at: the date of the newest decision of this problem, class and kind in any layer; 0: none.
// Fails with store_error for one that is older.
void write_decision(Database& database, const Decision& decision, int64_t newest_at);
void delete_decisions(Database& database, const Problem& problem, std::string_view gpu_class);
// That one more session used it.
void write_used_size(Database& database, const Problem& problem, std::string_view gpu_class,
                     std::string_view gpu_label);
void delete_decision(Database& database, const Problem& problem, std::string_view gpu_class,
                     DecisionKind kind);
void write_decision_tombstone(Database& database, const Problem& problem,
                              std::string_view gpu_class, std::string_view reason);

}  // namespace kiln::cache
