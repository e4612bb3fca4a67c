#include "train/checkpoint_model.hpp"

#include <algorithm>
#include <filesystem>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/checkpoint_reader.hpp"
#include "core/files/folder_handle.hpp"
#include "text/load_tokenizer.hpp"
#include "train/config/load_config.hpp"

namespace llmtrain {

namespace {

constexpr const char* kept_texts[] = {"config.json", "generation_config.json"};

bool holds(const Manifest& manifest, std::string_view name) {
  return std::ranges::any_of(manifest.files, [&](const CheckpointFile& file) { return file.name == name; });
}

}  // namespace

std::string CheckpointModel::find(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) return "";
  if (std::filesystem::is_regular_file(folder + "/" + manifest_name, ignored)) return folder;
  const std::string checkpoints = folder + "/checkpoints";
  const std::vector<int64_t> steps = published_steps(checkpoints);
  return steps.empty() ? "" : checkpoints + "/" + checkpoint_name(steps.front());
}

std::map<std::string, std::string> CheckpointModel::texts(const std::string& folder) {
  std::map<std::string, std::string> texts;
  const Manifest manifest = read_manifest(folder);
  for (const char* name : kept_texts) {
    if (holds(manifest, name)) {
      texts[name] = FolderHandle::open(folder).open_to_read(name).read_text(max_config_bytes);
    }
  }
  return texts;
}

std::optional<ChatFiles> CheckpointModel::chat(const std::string& folder) {
  if (!holds(read_manifest(folder), stored_chat_name)) return std::nullopt;
  return ChatFiles{read_chat_templates(folder), read_special_tokens(folder)};
}

CheckpointModel::CheckpointModel(const std::string& folder, Communicator& communicator,
                                 std::unique_ptr<Tokenizer>& tokenizer)
    : folder_(folder), manifest_(verify_checkpoint(folder, communicator)) {
  const Config recorded = load_config(manifest_.deck, folder + "/manifest.json: deck", {}, DeckFiles::recorded);
  config_.model = recorded.model;
  if (recorded.run.finetuning == RunConfig::Finetuning::lora) lora_ = recorded.lora;
  quantization_ = recorded.quantization;
  tokens_ = config_.model.vocab_size;
  if (!holds(manifest_, stored_tokenizer_name)) return;
  tokenizer = load_tokenizer(folder);
  if (tokenizer->bos_id() >= 0) config_.ids.bos = tokenizer->bos_id();
  if (tokenizer->eos_id() >= 0) config_.ids.eos = {tokenizer->eos_id()};
  if (config_.model.path.empty()) tokens_ = std::min(tokens_, tokenizer->vocabulary_size());
}

}  // namespace llmtrain
