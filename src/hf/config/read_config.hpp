#pragma once
#include <string>

#include "core/files/folder_handle.hpp"

namespace llmtrain {

/// Returns the folder's config.json, for parse_hf_config. Its quantization_config becomes what the weights say, if
/// there are any: Transformers' does not have the size of blocks, nor all modules that are in 16 bits. It is left out
/// where no storage of this program has these matrices, so that they are dequantised.
std::string read_hf_config(const FolderHandle& folder);

}  // namespace llmtrain
