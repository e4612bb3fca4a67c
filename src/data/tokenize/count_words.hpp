#pragma once
#include <functional>
#include <vector>

#include "data/files/text_source.hpp"
#include "parallel/communicator.hpp"
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

}  // namespace llmtrain
