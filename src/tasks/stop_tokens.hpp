#pragma once
// The tokens that end a text of the model.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/config.hpp"
#include "data/dataset.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Ids of the tokenizer's EOS, of the chat template's stop token, and of the EOS in the model's files: config.json and
/// generation_config.json among `texts`, by name. An id can occur twice.
std::vector<int64_t> stop_tokens(const Config& config, const Dataset& data,
                                 const std::map<std::string, std::string>& texts);

/// The same for the files of model.path, or those that a checkpoint stores; rank 0 reads them. Collective.
std::vector<int32_t> find_stop_tokens(const Config& config, const Dataset& data, Communicator& communicator);

}  // namespace llmtrain
