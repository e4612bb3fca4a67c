#pragma once
#include <functional>
#include <vector>

#include "hf/config/config_json.hpp"
#include "hf/import_model.hpp"
#include "models/decoder.hpp"

namespace llmtrain {

/// Function that returns the values of a slice of a parameter, row-major [rows, columns] as in the model.
using SliceValues = std::function<std::vector<float>(const ParamSpec& param, const ParamSlice& slice)>;

/// Writes the folder of a model, slice by slice.
void write_imported(const ImportOptions& options, const ModelConfig& model, const TokenIds& ids,
                    const SliceValues& values);

}  // namespace llmtrain
