#pragma once
#include <functional>
#include <vector>

#include "data/files/text_source.hpp"
#include "parallel/communicator.hpp"
#include "text/bpe_training/word_counts.hpp"
#include "text/split/pretokenize.hpp"

namespace llmtrain {

/// What is cut into words apart from everything around it.
enum class TrainingUnit : uint8_t {
  line,      ///< a line with its end, as the tokenizers package reads files
  document,  ///< so that what stands between lines can be learnt too
};

/// The words of files of text and how often they occur. Collective: every rank and thread reads its share; afterwards
/// rank 0 has all counts, the others none. Memory is that of the distinct words, not of the files.
void count_words(const std::vector<InputFile>& files, const SourceScan& scan, const SplitPattern& split,
                 TrainingUnit unit, Communicator& communicator, const std::function<void(double)>& progress,
                 WordCounts& counts);

}  // namespace llmtrain
