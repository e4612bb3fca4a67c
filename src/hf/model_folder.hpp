#pragma once
// Writing a Hugging Face folder: config.json, weights in one file or several, and whatever texts belong to them. It
// appears whole under its name or not at all.

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/files/folder_handle.hpp"
#include "hf/safetensors_writer.hpp"

namespace llmtrain {

/// Files of a tokenizer in such a folder.
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

/// Those of them that hold a chat template, and the folder of further ones, NAME.jinja.
inline constexpr std::array<const char*, 2> chat_template_names = {"chat_template.jinja", "chat_template.json"};
inline constexpr const char* chat_template_folder = "additional_chat_templates";

struct ModelFolderPlan {
  std::string path;
  bool overwrite = false;                    ///< the model in a folder that is there is replaced; other files stay
  std::vector<StoredTensor> tensors;         ///< name, type and shape, in the order of the model
  int64_t file_bytes = 5'000'000'000;        ///< of weights, before another file is begun
  std::map<std::string, std::string> texts;  ///< name -> content of further files, may be in chat_template_folder
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  std::function<void(const std::string& folder)> save_tokenizer;  ///< writes its files into the folder; may be null
};

/// Whether a folder has files of a tokenizer.
bool has_tokenizer(const FolderHandle& folder);

class ModelFolderWriter {
 public:
  /// UserError(cannot_create) when the folder is there and may not be replaced, holds folders (it may be the one of all
  /// models), or cannot be made.
  explicit ModelFolderWriter(ModelFolderPlan plan);
  /// Removes what was not published.
  ~ModelFolderWriter();
  ModelFolderWriter(const ModelFolderWriter&) = delete;
  ModelFolderWriter& operator=(const ModelFolderWriter&) = delete;

  /// Elements [first, first + count) of a tensor, row-major as stored.
  void write(const std::string& name, int64_t first, const float* values, int64_t count) const;
  /// Writes the index and the texts, makes all durable and gives the folder its name.
  void publish();

 private:
  void open_files();
  void write_text(const std::string& name, const std::string& content) const;

  ModelFolderPlan plan_;
  std::string partial_;  ///< name while it is written
  std::vector<std::unique_ptr<SafetensorsWriter>> files_;
  std::map<std::string, size_t> file_of_;  ///< tensor -> file
  std::string index_;                      ///< text of the index; empty with one file
};

}  // namespace llmtrain
