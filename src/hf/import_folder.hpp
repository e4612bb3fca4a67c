#pragma once
// Converts small published models in other formats to a Hugging Face folder.

#include <functional>
#include <string>
#include <vector>

#include "hf/config/config_json.hpp"
#include "hf/weights/safetensors.hpp"
#include "models/decoder.hpp"

namespace llmtrain {

struct ImportOptions {
  std::string output;
  bool overwrite = false;
  StoredType type = StoredType::F32;
  std::function<void(const std::string& folder)> save_tokenizer;  ///< may be null
  std::function<void(int64_t rows)> check_rows;  ///< receives the number of rows of the model's embedding; may be null
};

/// Imports llama2.c's checkpoints of version 0, which are published. llama2.c rotates adjacent pairs of a head's
/// elements, Hugging Face the two halves: rows of the query and key matrices are reordered.
void import_llama2c(const std::string& path, const ImportOptions& options);

/// Imports JSON of a minGPT or nanoGPT state: "config", and name -> shape, dtype, data (base64 of little-endian fp32).
/// Its linear weights are [out, in], those of Hugging Face's GPT-2 [in, out]. Returns warnings for the user.
std::vector<std::string> import_gpt_json(const std::string& path, const ImportOptions& options);

enum class ModelFormat : uint8_t { none, llama2c, gpt_json };
/// Detects the format by the file's beginning and size.
ModelFormat find_model_format(const std::string& path);

/// Function that returns the values of a slice of a parameter, row-major [rows, columns] as in the model.
using SliceValues = std::function<std::vector<float>(const ParamSpec& param, const ParamSlice& slice)>;

/// Writes the folder of a model, slice by slice.
void write_imported(const ImportOptions& options, const ModelConfig& model, const TokenIds& ids,
                    const SliceValues& values);

}  // namespace llmtrain
