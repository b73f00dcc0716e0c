// One function per command; each adds its subcommand, options, help and run.
#pragma once

#include "tools/kiln/common.h"

namespace kiln::cli {

void add_tune(CLI::App& app, Common& common, Chosen& chosen);
void add_build(CLI::App& app, Common& common, Chosen& chosen);
void add_ops(CLI::App& app, Common& common, Chosen& chosen);
void add_devices(CLI::App& app, Common& common, Chosen& chosen);
void add_ls(CLI::App& app, Common& common, Chosen& chosen);
void add_show(CLI::App& app, Common& common, Chosen& chosen);
void add_explain(CLI::App& app, Common& common, Chosen& chosen);
void add_verify(CLI::App& app, Common& common, Chosen& chosen);
void add_bench(CLI::App& app, Common& common, Chosen& chosen);
void add_workload(CLI::App& app, Common& common, Chosen& chosen);
void add_export(CLI::App& app, Common& common, Chosen& chosen);
void add_import(CLI::App& app, Common& common, Chosen& chosen);
void add_merge(CLI::App& app, Common& common, Chosen& chosen);
void add_diff(CLI::App& app, Common& common, Chosen& chosen);
void add_pin(CLI::App& app, Common& common, Chosen& chosen);
void add_forget(CLI::App& app, Common& common, Chosen& chosen);
void add_gc(CLI::App& app, Common& common, Chosen& chosen);
void add_doctor(CLI::App& app, Common& common, Chosen& chosen);

}  // namespace kiln::cli
