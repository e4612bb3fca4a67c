#pragma once
// [model] path: what the deck takes from a Hugging Face folder.

#include <map>
#include <optional>
#include <string>

#include "core/deck.hpp"
#include "data/data_config.hpp"
#include "models/model_config.hpp"

namespace llmtrain {

/// What a deck needs to know of the folders that it names, so that rank 0 reads them for all.
class ModelFolders {
 public:
  struct Facts {
    std::string config;          ///< text of config.json
    std::string tokenizer_path;  ///< the folder, if it has a tokenizer; else empty
  };

  /// From the disk, where it is not known. UserError: missing_input, bad_content.
  const Facts& find(const std::string& folder);
  std::string packed() const;
  static ModelFolders unpacked(const std::string& bytes);

 private:
  std::map<std::string, Facts> known_;
};

/// The model in model.path, if the deck gives one; what is wrong with it is reported at that key. Its tokenizer is the
/// data's, unless the deck names another.
std::optional<ModelConfig> load_model_path(DeckLoader& deck, const std::string& path, DataConfig& data,
                                           ModelFolders& folders);

/// Reports at model.path what is wrong with the headers of the weights.
void examine_weights(DeckLoader& deck, const ModelConfig& model);

}  // namespace llmtrain
