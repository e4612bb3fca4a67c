#pragma once
// Tensors of a Hugging Face folder and the location of their bytes: model.safetensors alone, or the files that
// model.safetensors.index.json names.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/folder_handle.hpp"
#include "hf/safetensors.hpp"

namespace llmtrain {

inline constexpr const char* single_weights_name = "model.safetensors";
inline constexpr const char* weights_index_name = "model.safetensors.index.json";

struct WeightIndex {
  struct File {
    std::string name;
    int64_t bytes;
  };
  struct Tensor : StoredTensor {
    size_t file = 0;
  };

  std::string folder;
  std::vector<File> files;
  std::vector<Tensor> tensors;                  ///< sorted by name
  std::map<std::string, std::string> metadata;  ///< metadata of the first file

  const Tensor* find(std::string_view name) const;

  /// Serializes the index for ranks that do not read the headers.
  std::string packed() const;
  static WeightIndex unpacked(const std::string& bytes);
};

/// Reads and checks every header. Throws UserError: missing_input if there are no weights (with advice on other
/// formats), bad_content for damaged or hostile files.
WeightIndex read_weight_index(const FolderHandle& folder);

/// Reads and checks the header of one file alone.
WeightIndex read_weight_file(const FolderHandle& folder, const std::string& name);

/// Returns the command that converts a model in old PyTorch files to safetensors.
std::string pickle_way_out(const std::string& folder);

}  // namespace llmtrain
