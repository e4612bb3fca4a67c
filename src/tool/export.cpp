// llmtool export: a model as a Hugging Face folder, with other types or sizes of files.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "hf/export_model.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

struct Options {
  std::string source;
  std::string output;
  std::string dtype;
  std::string file_size = "5G";
  bool force = false;
};

void export_folder(const Options& o) {
  ExportOptions options;
  options.output = o.output;
  options.overwrite = o.force;
  options.file_bytes = parse_count_option("--file-size", o.file_size, between(1 << 10, 1e18));
  if (!o.dtype.empty()) options.type = parse_weight_type_option(o.dtype);
  convert_model(o.source, options);
  std::cout << o.output << '\n';
}

}  // namespace

StoredType parse_weight_type_option(const std::string& text) {
  const std::optional<StoredType> type = weight_type_of(text);
  if (!type) refuse_command_line("--dtype: '" + text + "' is none of fp32, bf16, fp16");
  return *type;
}

Subcommand add_export(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "export", "write a model as a Hugging Face folder: checked, in files of another type or size");
  const auto o = std::make_shared<Options>();
  app->add_option("source", o->source, "Hugging Face folder")->required();
  app->add_option("--output", o->output, "folder to write")->required();
  app->add_option("--dtype", o->dtype, "of the weights: fp32, bf16 or fp16; as they are unless given");
  app->add_option("--file-size", o->file_size, "bytes of weights before another file is begun")->capture_default_str();
  app->add_flag("--force", o->force, "replace the folder");
  return {app, [o] { export_folder(*o); }};
}

}  // namespace llmtrain
