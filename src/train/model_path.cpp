#include "train/model_path.hpp"

#include "core/error.hpp"
#include "core/folder_handle.hpp"
#include "core/message.hpp"
#include "hf/config_json.hpp"
#include "hf/load_weights.hpp"
#include "hf/model_folder.hpp"
#include "models/models.hpp"

namespace llmtrain {

namespace {
constexpr std::string_view key = "model.path";
}

const ModelFolders::Facts& ModelFolders::find(const std::string& folder) {
  const auto known = known_.find(folder);
  if (known != known_.end()) return known->second;
  const FolderHandle handle = FolderHandle::open(folder);
  Facts facts{handle.open_to_read("config.json").read_text(most_config_bytes), has_tokenizer(handle) ? folder : ""};
  return known_.emplace(folder, std::move(facts)).first->second;
}

std::string ModelFolders::packed() const {
  Message message;
  message.put(std::vector<uint64_t>{known_.size()});
  for (const auto& [folder, facts] : known_) {
    for (const std::string& text : {folder, facts.config, facts.tokenizer_path}) message.put(text);
  }
  return message.bytes();
}

ModelFolders ModelFolders::unpacked(const std::string& bytes) {
  Message message(bytes);
  ModelFolders folders;
  std::vector<uint64_t> count;
  message.take(count);
  for (uint64_t i = 0; i < count.front(); ++i) {
    std::string folder;
    Facts facts;
    for (std::string* text : {&folder, &facts.config, &facts.tokenizer_path}) message.take(*text);
    folders.known_.emplace(std::move(folder), std::move(facts));
  }
  return folders;
}

std::optional<ModelConfig> load_model_path(DeckLoader& deck, const std::string& path, DataConfig& data,
                                           ModelFolders& folders) {
  if (!deck.given(key) || !deck.sound({key})) return std::nullopt;
  try {
    const ModelFolders::Facts& facts = folders.find(path);
    if (!deck.given("data.tokenizer") && !facts.tokenizer_path.empty()) {
      data.tokenizer = facts.tokenizer_path;
      deck.set("data.tokenizer", Origin::automatic, "model.path");
    }
    return parse_hf_config(facts.config, path + "/config.json").model;
  } catch (const UserError& error) {
    deck.fail(key, error.what(), error.code());
    return std::nullopt;
  }
}

void examine_weights(DeckLoader& deck, const ModelConfig& model) {
  if (!deck.given(key) || !deck.sound({key})) return;
  try {
    const DecoderShape shape = decoder_shape(model, model.vocab_size);
    check_weights(model.path, shape, Decoder(shape).units());
  } catch (const UserError& error) {
    deck.fail(key, error.what(), error.code());
  }
}

}  // namespace llmtrain
