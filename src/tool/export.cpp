// llmtool export: writes a checkpoint, or a Hugging Face folder, as a Hugging Face folder or a GGUF file.

#include "hf/export.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/checkpoint_weights.hpp"
#include "data/dataset.hpp"
#include "hf/gguf/export_gguf.hpp"
#include "hf/model_folder.hpp"
#include "methods/method.hpp"
#include "text/load_tokenizer.hpp"
#include "tool/loaded_model.hpp"
#include "tool/tool.hpp"
#include "train/checkpoint_model.hpp"
#include "train/config/load_config.hpp"

namespace llmtrain {
namespace {

struct ExportCommand {
  std::string source;
  std::string output;
  std::string format = "hf";
  std::string dtype;
  std::string tokenizer;
  std::string file_size = "5G";
  bool force = false;
};

/// The checkpoint stores the templates; those of an older program are read where they were, and give a warning where
/// they are gone.
ChatExport chat_of(const std::string& checkpoint, const Config& deck, const Tokenizer& tokenizer,
                   const std::string& tokenizer_path) {
  if (!task_rules(deck.run.task).data().instructions) return {};
  std::error_code ignored;
  const bool named = std::filesystem::is_directory(tokenizer_path, ignored);
  try {
    std::optional<ChatFiles> files = CheckpointModel::chat(checkpoint);
    if (!files) {
      files = read_chat_files(deck.chat.template_name, named ? tokenizer_path : deck.model.path,
                              named                             ? tokenizer_path
                              : deck.data.has_tokenizer_files() ? deck.tokenizer_path()
                                                                : "");
    }
    return export_chat(deck.chat, tokenizer, *files);
  } catch (const UserError& error) {
    print_warnings({fmt::format("the chat template of the run is not exported: {}", error.what())});
    return {};
  }
}

/// Calls use() with the weights of a checkpoint: its own read piece by piece, frozen ones, which are elsewhere, loaded.
template <class Use>
void with_weights(LoadedModel& loaded, const Use& use) {
  const CheckpointModel& checkpoint = *loaded.checkpoint();
  const Manifest& manifest = checkpoint.manifest();
  if (manifest.frozen) {
    loaded.start([](Arena&) {});
    return use(
        [&](int unit, int64_t begin, int64_t end, float* out) { loaded.params().gather_range(unit, begin, end, out); });
  }
  const std::string& path = checkpoint.folder();
  const std::vector<UnitSpec> units = loaded.model().units();
  const Schema wanted = make_schema(units, manifest.schema.states);
  const bool split = manifest.schema.has_blocks();
  const std::string what = split ? tensor_difference(manifest.schema, wanted) : difference(manifest.schema, wanted);
  if (!what.empty()) {
    throw UserError(ExitCode::bad_content, fmt::format("{}: its tensors do not fit its deck: {}", path, what));
  }
  CheckpointWeights weights(path, manifest);
  WholeUnits whole(units, blocks_of_units(manifest.schema),
                   [&](int unit, int64_t begin, int64_t end, float* out) { weights.read(unit, begin, end, out); });
  use([&](int unit, int64_t begin, int64_t end, float* out) { whole.read(unit, begin, end, out); });
}

/// The weights of a checkpoint, read piece by piece; what belongs to them comes from the folder that the run began
/// with, if it did, or from the checkpoint where that is gone. `tokenizer_path`: see --tokenizer; may be empty.
void export_checkpoint(const std::string& path, const std::string& tokenizer_path, ExportOptions options) {
  ModelOptions source;
  source.model = path;
  LoadedModel loaded(source);
  const Tokenizer* tokenizer = loaded.tokenizer();
  const std::string& origin = loaded.config().path;
  std::error_code ignored;
  if (!origin.empty() && std::filesystem::exists(origin + "/config.json", ignored)) {
    options.texts = model_texts(origin);
  } else if (!origin.empty()) {
    options.texts = CheckpointModel::texts(path);
  }
  options.ids = loaded.ids();
  const Manifest& manifest = loaded.checkpoint()->manifest();
  if (loaded.lora()) {
    if (!tokenizer_path.empty()) refuse_command_line("--tokenizer: the checkpoint has adapters, which need none");
    if (options.type) refuse_command_line("--dtype: the checkpoint has adapters, which are written in fp32");
    loaded.start([](Arena&) {});
    return loaded.role().write_adapters(options.output, loaded.communicator(), options.overwrite);
  }
  if (tokenizer != nullptr) {
    const Config deck = load_config(manifest.deck, path + "/manifest.json: deck", {}, DeckFiles::recorded);
    const bool named = !tokenizer_path.empty();
    const std::string& of_deck = deck.data.has_tokenizer_files() ? deck.data.tokenizer : tokenizer_path;
    options.chat = chat_of(path, deck, *tokenizer, tokenizer_path);
    const std::string warning =
        carry_tokenizer(options, *tokenizer, named ? tokenizer_path : of_deck, deck.data.add_tokens);
    if (named && !warning.empty()) {
      throw UserError(
          std::filesystem::exists(tokenizer_path, ignored) ? ExitCode::bad_content : ExitCode::missing_input,
          "--tokenizer: " + warning);
    }
    if (!warning.empty()) print_warnings({warning + " (--tokenizer DIR names where they are now)"});
  } else if (!tokenizer_path.empty()) {
    refuse_command_line("--tokenizer: the checkpoint has no tokenizer");
  }
  with_weights(loaded, [&](const GatherWeights& gather) {
    export_model(options, loaded.shape(), loaded.model().units(), gather, loaded.communicator());
  });
}

/// A checkpoint as a GGUF file: with the tokenizer, and the chat template of its run or else of the model's folder.
std::vector<std::string> checkpoint_to_gguf(const std::string& path, GgufOptions options) {
  ModelOptions source;
  source.model = path;
  LoadedModel loaded(source);
  if (loaded.lora()) {
    throw UserError(ExitCode::bad_content,
                    path +
                        ": it has adapters; export them without --format, put them into their model with llmtool "
                        "merge, and export that folder");
  }
  options.tokenizer = loaded.tokenizer();
  options.stop_ids = loaded.ids().eos;
  if (loaded.tokenizer() != nullptr) {
    const Config deck =
        load_config(loaded.checkpoint()->manifest().deck, path + "/manifest.json: deck", {}, DeckFiles::recorded);
    ChatExport chat = chat_of(path, deck, *loaded.tokenizer(), "");
    options.chat_template = chat.templates[chat_template_file];
    options.stop_ids.insert(options.stop_ids.end(), chat.stop_ids.begin(), chat.stop_ids.end());
  }
  std::error_code ignored;
  const std::string& origin = loaded.config().path;
  if (options.chat_template.empty() && std::filesystem::is_directory(origin, ignored)) {
    options.chat_template = default_chat_template(origin);
  }
  std::vector<std::string> warnings;
  with_weights(loaded, [&](const GatherWeights& gather) {
    warnings = write_gguf(options, loaded.shape(), loaded.model().units(), gather);
  });
  return warnings;
}

void export_gguf(const ExportCommand& o) {
  if (!o.tokenizer.empty())
    refuse_command_line("--tokenizer: a GGUF file has the tokenizer of the checkpoint or folder");
  GgufOptions options;
  options.output = o.output;
  options.overwrite = o.force;
  options.type = gguf_type_of(o.dtype);
  if (!o.dtype.empty() && !options.type) {
    refuse_command_line("--dtype must be fp32, bf16, fp16 or q8_0, not '" + o.dtype + "'");
  }
  const std::string checkpoint = CheckpointModel::find(o.source);
  print_warnings(checkpoint.empty() ? convert_to_gguf(o.source, options) : checkpoint_to_gguf(checkpoint, options));
  std::cout << o.output << '\n';
}

void export_any(const ExportCommand& o) {
  if (o.format == "gguf") return export_gguf(o);
  require_other_folder(o.source, o.output);
  ExportOptions options;
  options.output = o.output;
  options.overwrite = o.force;
  options.file_bytes = parse_count_option("--file-size", o.file_size, between(1 << 10, 1e18));
  if (!o.dtype.empty()) options.type = parse_weight_type_option(o.dtype);
  if (const std::string checkpoint = CheckpointModel::find(o.source); !checkpoint.empty()) {
    export_checkpoint(checkpoint, o.tokenizer, std::move(options));
  } else if (!o.tokenizer.empty()) {
    refuse_command_line("--tokenizer: a Hugging Face folder is exported with the tokenizer that it holds");
  } else {
    print_warnings(convert_model(o.source, std::move(options)));
  }
  std::cout << o.output << '\n';
}

}  // namespace

StoredType parse_weight_type_option(const std::string& text) {
  const std::optional<StoredType> type = weight_type_of(text);
  if (!type) refuse_command_line("--dtype must be fp32, bf16 or fp16, not '" + text + "'");
  return *type;
}

Subcommand add_export(CLI::App& program) {
  CLI::App* app = program.add_subcommand("export",
                                         "export a checkpoint as a Hugging Face folder (the adapters of a LoRA run as "
                                         "PEFT's) or a GGUF file, or convert such a folder to another type, file size "
                                         "or format");
  const auto o = std::make_shared<ExportCommand>();
  app->add_option("source", o->source, "checkpoint or Hugging Face folder")->required();
  app->add_option("--output", o->output, "output folder, or file of --format gguf")->required();
  app->add_option("--format", o->format, "hf (a Hugging Face folder) or gguf (one file for llama.cpp)")
      ->check(CLI::IsMember({"hf", "gguf"}))
      ->capture_default_str();
  app->add_option("--dtype", o->dtype,
                  "type of the weights: fp32, bf16 or fp16, in a GGUF file also q8_0; default: unchanged, for a "
                  "checkpoint fp32");
  app->add_option("--file-size", o->file_size, "bytes of weights after which the next file starts")
      ->capture_default_str();
  app->add_option(
      "--tokenizer", o->tokenizer,
      "for a checkpoint: current folder of its tokenizer, from which chat templates and other files are copied");
  app->add_flag("--force", o->force, "replace the folder or file");
  return {app, [o] { export_any(*o); }};
}

}  // namespace llmtrain
