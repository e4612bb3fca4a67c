#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/files/content_hash.hpp"
#include "data/batch_config.hpp"
#include "data/files/task_files.hpp"
#include "data/files/token_file.hpp"
#include "data/progress.hpp"
#include "data/sample_rules.hpp"
#include "data/stream/data_stream.hpp"
#include "data/tokenize/train_tokenizer.hpp"
#include "parallel/communicator.hpp"
#include "text/chat/chat_encoder.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

/// [chat], and the run's templates.
struct ChatSource {
  ChatConfig config;
  ChatFiles files;
};

/// Training and validation data of a run.
struct Dataset {
  SampleRules rules;                            ///< as given to open_dataset
  std::shared_ptr<const Tokenizer> tokenizer;   ///< null for token files without one
  int64_t vocabulary_size = 0;                  ///< smallest vocabulary that a model needs
  std::vector<WeightedTokens> sources;          ///< training data; several are mixed by weight
  std::shared_ptr<const TokenFile> train;       ///< all of the training data
  std::vector<double> difficulties;             ///< of its samples, by number; empty: none are computed in advance
  std::shared_ptr<const TokenFile> validation;  ///< null: none
  /// For builtin:stories the exact entropy in nats per trained token, otherwise 0. This is the loss of a perfect model.
  double optimum = 0;
  /// Contents of data.train, data.validation and data.tokenizer, in order; on rank 0.
  std::vector<NamedContent> contents;
  int64_t short_documents = 0;      ///< left out by data.min_length
  std::vector<std::string> labels;  ///< of texts or their tokens, in order; none for other data
  bool has_conversations() const {
    return train->info().rows.used + (validation ? validation->info().rows.used : 0) > 0;
  }
  std::vector<std::string> warnings;  ///< of the first rows of conversations; on rank 0
  std::string note;                   ///< names tokens without an embedding row in the model; empty: none
  ChatSource chat;                    ///< as given to open_dataset
  std::vector<TaskFile> tasks = {};   ///< files of evaluation.tasks
};

/// Opens the deck's data and tokenizes text that is not in the cache: all ranks share the work (documents or pieces in
/// canonical order), progress is reported, and no rank waits long inside a collective while others work (polling). The
/// key of a cached file is the hash of content, tokenizer and settings; the file is written under a temporary name and
/// renamed. Collective; with one process (LocalCommunicator) it needs no MPI. `chat` encodes rows of instruction data.
Dataset open_dataset(const SampleRules& config, const BatchConfig& batch, Communicator& communicator,
                     const ProgressReport& report, const ChatSource& chat = {});

/// Describes rows of instruction data and what was left out of them, for people; empty if there are none.
std::string describe_rows(const RowCounts& rows);
/// The same for preference data too, with their lengths.
std::string describe_rows(const TokenFile& file);

/// Trains the tokenizer of data.tokenizer = bpe on data.train, without the cache. Collective.
TrainedTokenizer train_deck_tokenizer(const SampleRules& config, Communicator& communicator,
                                      const ProgressReport& report);

/// Receives each error and its key.
using DataErrorReport = std::function<void(const char* key, const UserError&)>;
struct DataFacts {
  int64_t vocabulary_size = 0;  ///< needed by a model; 0 if only reading the text can tell (char, rows)
  std::string note;             ///< as in Dataset
};
/// Checks that the files of the deck exist and that the headers of token files are valid and agree. Reads no text.
/// After an error the result is unspecified.
DataFacts check_data_files(const SampleRules& config, const DataErrorReport& report);

}  // namespace llmtrain
