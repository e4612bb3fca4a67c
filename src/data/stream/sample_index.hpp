#pragma once
// Which tokens each sample consists of.

#include <cstdint>
#include <span>
#include <vector>

#include "data/batch_config.hpp"
#include "data/data_config.hpp"
#include "data/files/token_file.hpp"
#include "data/stream/data_stream.hpp"

namespace llmtrain {

/// Tokens [begin, begin + inputs] of the file: the first `inputs` are inputs, the last `inputs` targets, of which the
/// first `context` do not count.
struct SamplePlace {
  int64_t begin;
  int64_t inputs;
  int64_t context = 0;
};

class SampleIndex {
 public:
  SampleIndex(const TokenFile& file, const DataConfig& data, const BatchConfig& batch);

  /// Parts of a sample: a document or a window of one each, but under wrap one part that may hold several documents.
  size_t parts(int64_t sample) const;
  SamplePlace part(int64_t sample, size_t number) const;
  int64_t inputs(int64_t sample) const;  ///< of all parts
  const SampleCounts& counts() const { return counts_; }
  int64_t longest() const { return longest_; }              ///< inputs of any sample
  int64_t max_documents() const { return max_documents_; }  ///< that the inputs of a sample touch

 private:
  void index_windows(const TokenFile& file, bool keep_rest);
  SamplePlace window(int64_t sample) const;
  void index_documents(const TokenFile& file, DataConfig::Overflow overflow);
  void index_packs(DataConfig::Packing packing, DataConfig::Overflow overflow);
  SamplePlace whole_place(int64_t sample) const;

  std::span<const uint64_t> documents_;
  DataConfig::Packing packing_;
  int64_t length_;                     // T
  int64_t stride_;                     // wrap: see DataConfig
  int64_t tokens_;                     // of the file
  std::vector<int64_t> first_sample_;  // none: of each document, n + 1 entries
  // Packed: parts of sample s are [part_range_[s], part_range_[s + 1]) of the two lists.
  std::vector<int64_t> part_range_;
  std::vector<int64_t> part_begin_;
  std::vector<int32_t> part_inputs_;
  int64_t longest_ = 0;
  int64_t max_documents_ = 1;
  SampleCounts counts_;
};

}  // namespace llmtrain
