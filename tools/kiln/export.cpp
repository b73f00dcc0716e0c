// `kiln export`: the store as canonical JSON, or as a pack.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "cache/files.h"
#include "cache/transfer.h"
#include "jit/base/file_descriptor.h"
#include "tools/kiln/commands.h"
#include "tools/kiln/decisions.h"

namespace kiln::cli {
namespace {

struct ExportOptions {
  std::vector<std::string> ops;
  std::vector<std::string> gpus;
  bool decisions = false;
  bool binaries = false;
  std::string out;
  std::string pack;
};

Failure cannot_write(const std::string& path, int error) {
  if (error == EEXIST) {
    return Failure(ExitCode::usage, fmt::format("the file {} exists.", in_quotes(path)),
                   "Remove it or give another name.");
  }
  return Failure(ExitCode::failed,
                 fmt::format("{} cannot be written: {}.", in_quotes(path), std::strerror(error)));
}

int write_all(int file, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t wrote = write(file, text.data() + at, text.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno;
    at += static_cast<size_t>(wrote);
  }
  return fsync(file) == 0 && fchmod(file, 0644) == 0 ? 0 : errno;
}

// All of it under that name, or nothing.
void write_new_file(const std::string& path, const std::string& text) {
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) {
    throw cannot_write(path, EEXIST);
  }
  const std::string draft = cache::make_draft(path);
  if (draft.empty()) throw cannot_write(path, errno);
  const FileDescriptor file{open(draft.c_str(), O_WRONLY | O_CLOEXEC)};
  int error = file.get() < 0 ? errno : write_all(file.get(), text);
  if (error == 0) error = cache::publish_file(draft, path).error;
  if (error != 0) {
    unlink(draft.c_str());
    throw cannot_write(path, error);
  }
}

ExitCode run_export(const ExportOptions& options, const Common& common) {
  OpenStore store(common, StoreUse::read);
  if (!options.pack.empty()) {
    store->make_pack(options.pack);
    note(fmt::format("the pack {} is made; KILN_PACK or --pack puts it under a store.",
                     options.pack));
    return store.code_of_reading();
  }
  const DecisionFilter filter = decision_filter(*store, options.ops, options.gpus);
  cache::ContentsFilter wanted{.ops = options.ops, .gpu = {}, .images = cache::Images::without};
  if (!options.gpus.empty()) {
    wanted.gpu = [&](const std::string& gpu_class, const std::string& label) {
      return filter.lets_through(gpu_class, label);
    };
  }
  if (options.binaries) wanted.images = cache::Images::with;
  const cache::StoreContents contents = cache::contents_of(*store, wanted);
  if (contents.empty()) {
    const ExitCode code = store.code_of_reading();
    if (code != ExitCode::ok) return code;
    throw Failure(ExitCode::failed, fmt::format("nothing matches in {}.", store_place(common).path),
                  "`kiln ls` lists the decisions; `kiln tune` or `kiln build` makes them.");
  }
  const std::string text = cache::to_json(
      contents, options.decisions ? cache::ExportParts::decisions : cache::ExportParts::all);
  if (options.out.empty()) {
    std::fwrite(text.data(), 1, text.size(), stdout);
  } else {
    write_new_file(options.out, text);
  }
  note(fmt::format("{} decisions, digest {}.", contents.decisions.size(),
                   cache::decisions_digest(contents).hex()));
  return store.code_of_reading();
}

}  // namespace

void add_export(CLI::App& app, Common& common, Chosen& chosen) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* command = add_command(
      app, common, chosen, "export", "Write the store as canonical JSON, or as a pack",
      "  kiln export --out decisions.json\n"
      "  kiln export --gpu rtx-3090 --op act_quant\n"
      "  kiln export --decisions            # the part that is the same bytes in equal stores\n"
      "  kiln export --binaries --out all.json\n"
      "  kiln export --as-pack kernels.db\n"
      "Stores that decide the same have the same digest, which stderr shows.\n",
      [options, &common] { return run_export(*options, common); });
  CLI::Option* ops = command->add_option("--op", options->ops, "Only this op; may be repeated");
  ops->type_name("NAME");
  CLI::Option* gpus = command->add_option("--gpu", options->gpus, "Only this GPU; may be repeated");
  gpus->type_name("SLUG");
  CLI::Option* decisions =
      command->add_flag("--decisions", options->decisions, "Without times and other evidence");
  CLI::Option* binaries =
      command->add_flag("--binaries", options->binaries, "With the compiled kernels");
  binaries->excludes(decisions);
  CLI::Option* out = command->add_option("--out", options->out, "A new file (default: stdout)");
  out->type_name("FILE");
  CLI::Option* pack = command->add_option("--as-pack", options->pack,
                                          "Copy the whole store into this new read-only store");
  pack->type_name("FILE");
  for (CLI::Option* other : {ops, gpus, decisions, binaries, out}) pack->excludes(other);
}

}  // namespace kiln::cli
