#pragma once
#include <string>
#include <vector>

#include "data/tokenize/train_tokenizer.hpp"

namespace llmtrain {

/// Returns the folder with tokenizer.json and tokenizer_config.json of the tokenizer trained on these files. It is made
/// in the cache `folder` unless it is there intact: its name is a hash of the files' content and of `training`.
/// Collective.
std::string open_trained_tokenizer(const std::vector<InputFile>& files, const SourceScan& scan,
                                   const TokenizerTraining& training, const std::string& folder,
                                   Communicator& communicator, const ProgressReport& report);

/// Writes both files of a tokenizer into an existing folder, each atomically.
void write_tokenizer_files(const TrainedTokenizer& trained, const std::string& folder);

/// Returns "32000 tokens trained on 2301712 words, 51364 of them distinct", and a note if there are fewer than
/// requested.
std::string describe(const TrainedTokenizer& trained, const TokenizerTraining& training);

}  // namespace llmtrain
