#pragma once
#include <string>
#include <vector>

#include "data/tokenize/train_tokenizer.hpp"

namespace llmtrain {

/// The folder with tokenizer.json and tokenizer_config.json of the tokenizer that is learnt from these files, made in
/// the cache `folder` when it is not there whole: its name is a hash of the files' content and of `training`.
/// Collective.
std::string open_trained_tokenizer(const std::vector<InputFile>& files, const SourceScan& scan,
                                   const TokenizerTraining& training, const std::string& folder,
                                   Communicator& communicator, const ProgressReport& report);

/// Writes both files of a tokenizer into a folder that is there, each whole or not at all.
void write_tokenizer_files(const TrainedTokenizer& trained, const std::string& folder);

/// "32000 tokens learnt from 2301712 words, 51364 of them distinct", and when it is less than was asked for.
std::string describe(const TrainedTokenizer& trained, const TokenizerTraining& training);

}  // namespace llmtrain
