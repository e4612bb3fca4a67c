// llmtool merge: writes a model with an adapter merged into it.

#include "hf/adapters/merge.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>

#include "hf/adapters/adapter_config.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

constexpr int64_t max_other_file = int64_t{256} << 20;  ///< bytes

struct MergeCommand {
  std::string model;
  std::string adapter;
  std::string output;
  std::string file_size = "5G";
  bool force = false;
};

/// Texts of the model, and its other files but weights of any format and the configuration of an adapter, which
/// Transformers would load.
std::map<std::string, std::string> other_files(const std::string& folder) {
  constexpr std::array<std::string_view, 10> excluded = {
      ".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf", ".h5", ".onnx", ".msgpack", adapter_config_name};
  std::map<std::string, std::string> texts = model_texts(folder);
  const FolderHandle handle = FolderHandle::open(folder);
  for (const std::string& name : handle.names()) {
    const auto ends = [&](std::string_view end) { return name.ends_with(end); };
    std::error_code ignored;
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    if (texts.contains(name) || name.starts_with('.') || std::ranges::any_of(excluded, ends)) continue;
    if (!std::filesystem::is_regular_file(path, ignored)) continue;
    texts[name] = handle.open_to_read(name).read_text(max_other_file);
  }
  return texts;
}

void merge(const MergeCommand& o) {
  ExportOptions options;
  options.output = o.output;
  options.file_bytes = parse_count_option("--file-size", o.file_size, between(1 << 10, 1e18));
  options.texts = other_files(o.model);
  print_warnings(merge_adapter(o.model, o.adapter, options, {}, o.force));
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
  app->add_option("--file-size", o->file_size, "bytes of weights after which the next file starts")
      ->capture_default_str();
  app->add_flag("--force", o->force, "merge into another model than the adapter names");
  return {app, [o] { merge(*o); }};
}

}  // namespace llmtrain
