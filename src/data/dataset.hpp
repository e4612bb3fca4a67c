#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/files/content_hash.hpp"
#include "data/batch_config.hpp"
#include "data/data_config.hpp"
#include "data/files/token_file.hpp"
#include "data/progress.hpp"
#include "data/stream/data_stream.hpp"
#include "data/tokenize/train_tokenizer.hpp"
#include "parallel/communicator.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

/// What a run trains and validates on.
struct Dataset {
  std::shared_ptr<const Tokenizer> tokenizer;   ///< null for token files without one
  int64_t vocabulary_size = 0;                  ///< the least that a model needs
  std::vector<WeightedTokens> sources;          ///< of training data; more than one: they are mixed by weight
  std::shared_ptr<const TokenFile> train;       ///< all of them
  std::shared_ptr<const TokenFile> validation;  ///< null: none
  /// builtin:stories only: the exact entropy in nats per trained token, else 0. What a perfect model's loss would be.
  double optimum = 0;
  /// The contents of data.train, data.validation and data.tokenizer, in order; on rank 0.
  std::vector<NamedContent> contents;
  std::string note;  ///< names tokens that the model has no row for; empty: none
};

/// Finds the deck's data, tokenizing text that is not in the cache: all ranks share the work (documents or pieces in
/// canonical order), progress is reported, and nobody waits inside a collective while others work for long (polling).
/// The cached file is keyed by the hash of content, tokenizer and settings, written under a temporary name and renamed.
/// Collective; with one process (LocalCommunicator) it needs no MPI.
Dataset open_dataset(const DataConfig& config, const BatchConfig& batch, Communicator& communicator,
                     const ProgressReport& report);

/// What data.tokenizer = bpe learns from data.train, without the cache. Collective.
TrainedTokenizer learn_tokenizer(const DataConfig& config, Communicator& communicator, const ProgressReport& report);

/// Told each error and the key that it belongs to.
using DataErrorReport = std::function<void(const char* key, const UserError&)>;
struct DataFacts {
  int64_t vocabulary_size = 0;  ///< that a model needs; 0 where only reading the text can tell (char, rows)
  std::string note;             ///< as of a Dataset
};
/// Whether the files that the deck names are there and, of token files, whether their headers are right and agree.
/// Reads no text. After an error nothing is known.
DataFacts check_data_files(const DataConfig& config, const DataErrorReport& report);

/// Where token files go when no folder is named: $XDG_CACHE_HOME/llmtrain, ~/.cache/llmtrain, or $TMPDIR/llmtrain.
std::string default_cache_folder();

}  // namespace llmtrain
