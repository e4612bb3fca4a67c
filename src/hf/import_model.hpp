#pragma once
// Small published models in other formats than Hugging Face's -> a Hugging Face folder.

#include <functional>
#include <string>
#include <vector>

#include "hf/safetensors.hpp"

namespace llmtrain {

struct ImportOptions {
  std::string output;
  bool overwrite = false;
  StoredType type = StoredType::F32;
  std::function<void(const std::string& folder)> save_tokenizer;  ///< may be null
  std::function<void(int64_t rows)> check_rows;  ///< told how many rows the model's embedding has; may be null
};

/// llama2.c, checkpoint versions 0 and 1 (fp32), and 2 (matrices of int8 with scales, which become what they mean). It
/// rotates adjacent pairs of a head's elements, Hugging Face the two halves: rows of the query and key matrices are put
/// in that order.
void import_llama2c(const std::string& path, const ImportOptions& options);

/// JSON of minGPT's or nanoGPT's state: "config", and name -> shape, dtype, data (base64 of little-endian fp32). Its
/// linear weights are [out, in], those of Hugging Face's GPT-2 [in, out]. Gives warnings for the user.
std::vector<std::string> import_gpt_json(const std::string& path, const ImportOptions& options);

enum class ModelFormat : uint8_t { none, llama2c, gpt_json };
/// By the file's beginning and size.
ModelFormat find_model_format(const std::string& path);

}  // namespace llmtrain
