// llmtool merge: writes a model with an adapter merged into it.

#include "hf/adapters/merge.hpp"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "tool/tool.hpp"

namespace llmtrain {
namespace {

struct MergeCommand {
  std::string model;
  std::string adapter;
  std::string output;
  std::string base;
  std::string file_size = "5G";
  bool force = false;
};

void merge(const MergeCommand& o) {
  ExportOptions options;
  options.output = o.output;
  options.file_bytes = parse_count_option("--file-size", o.file_size, between(1 << 10, 1e18));
  options.texts = other_files_of(o.model);
  const MergeBase base = o.base.empty()      ? MergeBase::unnamed
                         : o.base == "16bit" ? MergeBase::bits16
                                             : MergeBase::dequantized;
  print_warnings(merge_adapter(o.model, o.adapter, options, {}, o.force, base));
  std::cout << o.output << '\n';
}

}  // namespace

Subcommand add_merge(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "merge", "write a model with an adapter merged into its weights, in the type of the model's files");
  const auto o = std::make_shared<MergeCommand>();
  app->add_option("--model", o->model, "Hugging Face folder of the model")->required();
  app->add_option("--adapter", o->adapter, "PEFT folder of the adapter")->required();
  app->add_option("--output", o->output, "new folder")->required();
  app->add_option("--base", o->base,
                  "weights that an adapter of a quantised model is merged into: 16bit (--model is the original) or "
                  "dequantized (--model is quantised)")
      ->check(CLI::IsMember({"16bit", "dequantized"}));
  app->add_option("--file-size", o->file_size, "bytes of weights after which the next file starts")
      ->capture_default_str();
  app->add_flag("--force", o->force, "merge into another model than the adapter names");
  return {app, [o] { merge(*o); }};
}

}  // namespace llmtrain
