// Records of another store, as a file of its own or as the text that `kiln export` writes, and what
// became of them when this one took them over.
#pragma once

#include <string>
#include <vector>

#include "cache/transfer.h"
#include "tools/kiln/common.h"

namespace kiln::cli {

// Of a store file alone, without packs. Its warnings go to stderr. Fails with usage when there is
// no such file, and with store when it cannot be read to the end.
cache::StoreContents read_store_file(const std::string& path, cache::Images images);
// Of a text; "-" is standard input. Fails with usage when there is none, and with failed when it is
// no export.
cache::StoreContents read_export(const std::string& path);
// Of either, by how the file begins.
cache::StoreContents read_contents(const std::string& path);

struct TakeOver {
  bool trust = false;  // images and verifications count as they are
  bool pins = false;   // a pin that comes in may replace one that is there
  bool dry_run = false;
};
void add_take_over_options(CLI::App& command, TakeOver& options);

// Checks the contents, takes them over into the store of this command line, and prints what became
// of each decision. Done unless nothing could be taken.
ExitCode take_over(cache::StoreContents contents, const TakeOver& options, const Common& common);

}  // namespace kiln::cli
