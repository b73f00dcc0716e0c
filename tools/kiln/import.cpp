// `kiln import` takes over the text of a `kiln export`, `kiln merge` other store files. Both trust
// nothing that they are given.
#include <fmt/format.h>

#include "runtime/import_check.h"
#include "tools/kiln/commands.h"
#include "tools/kiln/other_store.h"

namespace kiln::cli {
namespace {

struct ImportOptions {
  std::string file;
  std::string borrower;  // slug of --as
  TakeOver take_over;
};

struct MergeCommandOptions {
  std::vector<std::string> files;
  TakeOver take_over;
};

ExitCode run_import(const ImportOptions& options, const Common& common) {
  const Gpu* borrower = options.borrower.empty() ? nullptr : &resolve_gpu(options.borrower);
  cache::StoreContents contents = read_export(options.file);
  if (borrower != nullptr) runtime::borrow(contents, *borrower);
  return take_over(std::move(contents), options.take_over, common);
}

// Each on its own, so that one that cannot be read costs the others nothing.
ExitCode run_merge(const MergeCommandOptions& options, const Common& common) {
  std::vector<cache::StoreContents> all;
  for (const std::string& file : options.files) {
    all.push_back(read_store_file(file, cache::Images::with));
  }
  cache::StoreContents contents;
  const auto append = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  for (cache::StoreContents& one : all) {
    append(contents.decisions, one.decisions);
    append(contents.plans, one.plans);
    append(contents.binaries, one.binaries);
    append(contents.verifications, one.verifications);
    append(contents.timings, one.timings);
    append(contents.rejections, one.rejections);
  }
  return take_over(std::move(contents), options.take_over, common);
}

}  // namespace

void add_import(CLI::App& app, Common& common, Chosen& chosen) {
  auto options = std::make_shared<ImportOptions>();
  CLI::App* command = add_command(
      app, common, chosen, "import", "Take over the text of a `kiln export`, which is not trusted",
      "  kiln import decisions.json\n"
      "  kiln import decisions.json --dry-run\n"
      "  kiln import a40.json --as rtx-a6000\n"
      "  ssh other kiln export --binaries | kiln import - --trust\n"
      "Without --trust, kernels that came along run only after `kiln verify` has proven them.\n"
      "Exit code 0 when something was taken or all was here, 1 when all was refused.\n",
      [options, &common] { return run_import(*options, common); });
  command->add_option("FILE", options->file, "The text, - for standard input")
      ->type_name("FILE")
      ->required();
  command
      ->add_option("--as", options->borrower,
                   "Borrow decisions for one GPU class for this one, of equal compute capability")
      ->type_name("SLUG");
  add_take_over_options(*command, options->take_over);
}

void add_merge(CLI::App& app, Common& common, Chosen& chosen) {
  auto options = std::make_shared<MergeCommandOptions>();
  CLI::App* command = add_command(app, common, chosen, "merge",
                                  "Take over the records of other stores, which are not trusted",
                                  "  kiln merge other.db\n"
                                  "  kiln merge node1.db node2.db --trust\n"
                                  "  kiln merge other.db --dry-run --json\n"
                                  "Of two decisions of one kind the newer stays; what was dropped "
                                  "is printed with the reason.\n",
                                  [options, &common] { return run_merge(*options, common); });
  command->add_option("FILE", options->files, "The other stores")->type_name("FILE")->required();
  add_take_over_options(*command, options->take_over);
}

}  // namespace kiln::cli
