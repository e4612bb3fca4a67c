#pragma once
// Which tokens each sample consists of.

#include <cstdint>
#include <span>
#include <vector>

#include "data/data_config.hpp"
#include "data/data_stream.hpp"
#include "data/token_file.hpp"

namespace llmtrain {

/// Tokens [begin, begin + inputs] of the file: the first `inputs` are inputs, the last `inputs` targets.
struct SamplePlace {
  int64_t begin;
  int64_t inputs;
};

class SampleIndex {
 public:
  SampleIndex(const TokenFile& file, const DataConfig& data, const BatchConfig& batch);

  SamplePlace place(int64_t sample) const;
  const SampleCounts& counts() const { return counts_; }
  int64_t longest() const { return longest_; }                ///< inputs of any sample
  int64_t most_documents() const { return most_documents_; }  ///< that the inputs of a sample touch

 private:
  void index_windows(const TokenFile& file);
  void index_documents(const TokenFile& file, DataConfig::Overflow overflow);

  std::span<const uint64_t> documents_;
  bool whole_documents_;               // packing = none
  int64_t length_;                     // T
  std::vector<int64_t> first_sample_;  // of each document, n + 1 entries; empty for windows
  int64_t longest_ = 0;
  int64_t most_documents_ = 1;
  SampleCounts counts_;
};

}  // namespace llmtrain
