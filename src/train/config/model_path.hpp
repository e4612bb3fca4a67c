#pragma once
// [model] path: values that the deck takes from a Hugging Face folder or, for evaluation, from a checkpoint.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/config.hpp"
#include "hf/adapters/saved_tables.hpp"
#include "methods/method.hpp"

namespace llmtrain {

/// Facts about the folders that a deck names; rank 0 reads them for all ranks.
class ModelFolders {
 public:
  struct Facts {
    std::string config;          ///< text of config.json; for a checkpoint, the recorded deck
    std::string tokenizer_path;  ///< the folder or checkpoint if it has a tokenizer; else empty
    std::string checkpoint;      ///< checkpoint whose deck that is; empty: none
    int64_t tokens = 0;          ///< embedding rows of a checkpoint that are tokens; of a folder its tokenizer's limit
    bool gone = false;           ///< the folder does not exist; the checkpoint is of a run that started from it
  };

  /// A tokenizer with the tokens of data.add_tokens.
  struct GrownTokenizer {
    int64_t tokens = 0;              ///< its vocabulary
    std::vector<std::string> known;  ///< those of the deck's tokens that it had before
  };

  /// Reads the facts from the disk, if they are not known. `runs`: folders of runs, or checkpoints, that may have
  /// started from a folder that is gone. UserError: missing_input, bad_content.
  const Facts& find(const std::string& folder, const std::vector<std::string>& runs);
  const GrownTokenizer& grow(const std::string& tokenizer, const std::vector<std::string>& added);
  struct Adapter {
    std::string config;                 ///< text of adapter_config.json
    std::optional<FoundTables> tables;  ///< beside the adapters, once they have been asked for
  };
  /// Returns the facts of an adapter's folder, in the same way.
  Adapter& find_adapter(const std::string& folder);
  std::string packed() const;
  static ModelFolders unpacked(const std::string& bytes);

 private:
  std::map<std::string, Facts> known_;
  std::map<std::string, GrownTokenizer> grown_;  ///< by the tokenizer's path; a deck names one list of tokens
  std::map<std::string, Adapter> adapters_;      ///< by folder
};

/// Loads the model in model.path, if the deck gives one, and reports its errors at that key. Its tokenizer becomes the
/// data's, unless the deck names another.
std::optional<ModelConfig> load_model_path(DeckLoader& deck, Config& config, const TaskRules& task,
                                           ModelFolders& folders);

/// Loads the properties of the models beside the policy, and reports errors at the keys that name them.
void load_role_folders(DeckLoader& deck, Config& config, const TaskRules& task, ModelFolders& folders);

/// Adds the tokens of data.add_tokens to the vocabulary of the model in model.path, if there is one, where its
/// embedding has no rows for them, and notes those that the tokenizer has already.
void grow_vocabulary(DeckLoader& deck, Config& config, ModelFolders& folders, std::optional<ModelConfig>& loaded);
/// Takes the properties of the adapter in lora.path, if the deck gives one, and reports its errors at that key.
void load_adapter_path(DeckLoader& deck, Config& config, const TaskRules& task, ModelFolders& folders);

/// Value of data.tokenizer for the tokenizer in a model's folder.
std::string tokenizer_of_model(const std::string& folder);

/// Reports errors of the weights' headers at model.path, and of the adapter's at lora.path.
void examine_weights(DeckLoader& deck, const Config& config);

}  // namespace llmtrain
