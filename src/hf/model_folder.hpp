#pragma once
// Writes a Hugging Face folder: config.json, weights in one file or several, and further texts. The folder appears
// under its name atomically.

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/files/folder_handle.hpp"
#include "hf/weights/safetensors.hpp"
#include "hf/weights/weight_index.hpp"
#include "models/expert_places.hpp"
#include "text/chat/chat_template.hpp"

namespace llmtrain {

/// Names of tokenizer files in such a folder.
inline constexpr std::array<const char*, 12> tokenizer_file_names = {"tokenizer.json",
                                                                     "tokenizer_config.json",
                                                                     "tokenizer.model",
                                                                     "special_tokens_map.json",
                                                                     "added_tokens.json",
                                                                     "vocab.json",
                                                                     "merges.txt",
                                                                     "chat_template.jinja",
                                                                     "chat_template.json",
                                                                     "spiece.model",
                                                                     "sentencepiece.bpe.model",
                                                                     "tokenizer_model"};

/// Files among them that hold a chat template, and the folder of further templates, NAME.jinja.
inline constexpr std::array<const char*, 2> chat_template_names = {chat_template_file, "chat_template.json"};

struct ModelFolderPlan {
  std::string path;
  bool overwrite = false;             ///< True if the model in an existing folder is replaced; other files are kept
  std::vector<StoredTensor> tensors;  ///< name, type and shape, in the order of the model
  /// Tensors among these that are parts of larger ones in files. Their values become those of the larger tensor.
  ExpertPlaces experts;
  int64_t file_bytes = 5'000'000'000;        ///< maximum size of a file of weights
  std::map<std::string, std::string> texts;  ///< name -> content of further files; names may be in chat_template_folder
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  std::function<void(const std::string& folder)> save_tokenizer;  ///< writes its files into the folder; may be null
  std::string single_file = single_weights_name;                  ///< name of the file if it is one
};

/// Returns true if a folder has tokenizer files.
bool has_tokenizer(const FolderHandle& folder);

class ModelFolderWriter {
 public:
  /// Throws UserError(cannot_create) if the folder exists and must not be replaced, contains folders (it may be a
  /// collection of models), or cannot be made.
  explicit ModelFolderWriter(ModelFolderPlan plan);
  /// Removes an unpublished folder.
  ~ModelFolderWriter();
  ModelFolderWriter(const ModelFolderWriter&) = delete;
  ModelFolderWriter& operator=(const ModelFolderWriter&) = delete;

  /// Writes elements [first, first + count) of a tensor, row-major as stored. Those of an expert wait in memory for all
  /// parts of its tensor.
  void write(const std::string& name, int64_t first, const float* values, int64_t count);
  /// Writes bytes [first, first + count) of a tensor of any type.
  void write_bytes(const std::string& name, int64_t first, const void* bytes, int64_t count) const;
  /// Writes the index and the texts, makes all durable and gives the folder its name.
  void publish();

 private:
  /// The values of one expert in a tensor of all.
  struct Expert {
    std::vector<float> values;
    int64_t written = 0;
  };

  void join_experts();
  void write_expert(const ExpertPlace& place, int64_t first, const float* values, int64_t count);
  void open_files();
  const SafetensorsWriter& file_with(const std::string& name) const;
  void write_text(const std::string& name, const std::string& content) const;

  ModelFolderPlan plan_;
  std::string partial_;  ///< temporary name
  std::vector<std::unique_ptr<SafetensorsWriter>> files_;
  std::map<std::string, size_t> file_of_;                      ///< tensor -> file
  std::string index_;                                          ///< text of the index; empty with one file
  std::map<std::pair<std::string, int64_t>, Expert> experts_;  ///< by tensor and first element
};

}  // namespace llmtrain
