#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/files/text_source.hpp"
#include "data/progress.hpp"
#include "parallel/communicator.hpp"
#include "text/bpe_training/bpe_train.hpp"
#include "text/bpe_training/word_counts.hpp"
#include "text/split/pretokenize.hpp"

namespace llmtrain {

/// Unit of text that is split into words separately.
enum class TrainingUnit : uint8_t {
  line,      ///< a line with its end, as the tokenizers package reads files
  document,  ///< a document, so that the text between lines can be part of tokens, too
};

/// Counts the words of files of text and rows. Collective: every rank and thread reads its share; afterwards rank 0 has
/// all counts, the others none. Memory depends on the distinct words, not on the files.
void count_words(const std::vector<InputFile>& files, const SourceScan& scan, const SplitPattern& split,
                 TrainingUnit unit, Communicator& communicator, const std::function<void(double)>& progress,
                 WordCounts& counts);

inline constexpr std::string_view end_of_text_token = "<|endoftext|>";
inline constexpr std::string_view begin_of_text_token = "<|begin_of_text|>";

struct TokenizerTraining {
  int64_t vocabulary_size = 32000;
  int64_t min_frequency = 0;
  std::vector<std::string> special_tokens = {std::string(end_of_text_token)};
  std::string eos = std::string(end_of_text_token);  ///< one of the special tokens, or empty
  std::string bos = {};                              ///< likewise
  std::string split = "gpt2";                        ///< name of a SplitPattern
  TrainingUnit unit = TrainingUnit::line;
  BpeTrainingOptions::Ties ties = BpeTrainingOptions::Ties::ids;
};

struct TrainedTokenizer {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
  int64_t tokens = 0;
  int64_t merges = 0;
  int64_t distinct_words = 0;
  int64_t words = 0;
};

/// Trains byte-level BPE on scanned files of text and rows of text. Collective: all ranks count words, rank 0 merges
/// pairs, all get the same result, which does not depend on the number of ranks and threads. Throws UserError like
/// train_bpe; (bad_content) for files that are not text.
TrainedTokenizer train_tokenizer(const std::vector<InputFile>& files, const SourceScan& scan,
                                 const TokenizerTraining& training, Communicator& communicator,
                                 const ProgressReport& report);

/// Returns the names of the split patterns that tokenizers can be trained with.
std::vector<std::string_view> trainable_splits();

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
