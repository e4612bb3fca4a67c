#pragma once
// [model] path: what the deck takes from a Hugging Face folder, or, to evaluate it, from a checkpoint.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/deck/deck.hpp"
#include "models/model_config.hpp"

namespace llmtrain {

struct Config;

/// What a deck needs to know of the folders that it names, so that rank 0 reads them for all.
class ModelFolders {
 public:
  struct Facts {
    std::string config;          ///< text of config.json; of a checkpoint the recorded deck
    std::string tokenizer_path;  ///< the folder or checkpoint, if it has a tokenizer; else empty
    std::string checkpoint;      ///< whose deck that is; empty: none
    int64_t tokens = 0;          ///< of it: rows of the embedding that are tokens
    bool gone = false;           ///< the folder is not there; the checkpoint is of a run that began with it
  };

  /// From the disk, where it is not known. `runs`: folders of runs, or checkpoints, that may have begun with a folder
  /// that is gone. UserError: missing_input, bad_content.
  const Facts& find(const std::string& folder, const std::vector<std::string>& runs);
  std::string packed() const;
  static ModelFolders unpacked(const std::string& bytes);

 private:
  std::map<std::string, Facts> known_;
};

/// The model in model.path, if the deck gives one; what is wrong with it is reported at that key. Its tokenizer is the
/// data's, unless the deck names another.
std::optional<ModelConfig> load_model_path(DeckLoader& deck, Config& config, ModelFolders& folders);

/// How the deck names the tokenizer in a model's folder.
std::string tokenizer_of_model(const std::string& folder);

/// Reports at model.path what is wrong with the headers of the weights.
void examine_weights(DeckLoader& deck, const Config& config);

}  // namespace llmtrain
