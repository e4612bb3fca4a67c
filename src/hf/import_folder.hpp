#pragma once
#include <functional>
#include <vector>

#include "hf/config_json.hpp"
#include "hf/import_model.hpp"
#include "models/decoder.hpp"

namespace llmtrain {

/// Values of a slice of a parameter, row-major [rows, columns] as the model holds it.
using SliceValues = std::function<std::vector<float>(const ParamSpec& param, const ParamSlice& slice)>;

/// The folder of a model, one slice after the other.
void write_imported(const ImportOptions& options, const ModelConfig& model, const TokenIds& ids,
                    const SliceValues& values);

}  // namespace llmtrain
