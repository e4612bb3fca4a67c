#pragma once
// Tokens of each sample.

#include <cstdint>
#include <span>

#include "data/batch_config.hpp"
#include "data/files/token_file.hpp"
#include "data/sample_rules.hpp"
#include "parallel/node_array.hpp"

namespace llmtrain {

/// Tokens [begin, begin + inputs] of the file: the first `inputs` are inputs, the last `inputs` targets, of which the
/// first `context` do not count. Documents that are scored have inputs alone.
struct SampleSpan {
  int64_t begin;
  int64_t inputs;
  int64_t context = 0;
};

/// Statistics on how documents became samples.
struct SampleCounts {
  int64_t group = 1;         ///< documents of a sample of preference data
  int64_t samples = 0;       ///< samples per epoch
  int64_t inputs = 0;        ///< inputs of all samples
  int64_t too_long = 0;      ///< documents longer than the sequence (not with wrap)
  int64_t dropped = 0;       ///< of these, left out by overflow = drop; of preference data, samples with such documents
  int64_t lost_targets = 0;  ///< of these, conversations left out since truncation would leave no target; likewise
  int64_t without_target = 0;   ///< documents of one token, which give no sample (not with wrap); likewise
  int64_t unused_tokens = 0;    ///< tokens at the end of the stream, or removed from documents
  int64_t shorter_prompts = 0;  ///< documents whose prompt is cut to DataConfig::max_prompt_length

  SampleCounts& operator+=(const SampleCounts& other);
};

class SampleIndex {
 public:
  /// Collective over the ranks of the file: rank 0 makes it, of which each node has one copy. Throws
  /// UserError(bad_content) on all of them.
  SampleIndex(const TokenFile& file, const SampleRules& data, const BatchConfig& batch);

  /// Spans of a sample: one document or window each, but under wrap one span that can hold several documents. A sample
  /// of preference data has the documents of a group, whatever data.packing says.
  size_t spans(int64_t sample) const;
  SampleSpan span(int64_t sample, size_t number) const;
  int64_t inputs(int64_t sample) const;  ///< inputs of all spans
  const SampleCounts& counts() const { return counts_; }
  int64_t longest() const { return longest_; }  ///< largest number of inputs of a sample
  /// Maximum number of documents that the inputs of a sample overlap.
  int64_t max_documents() const { return max_documents_; }

 private:
  void make(const TokenFile& file, const SampleRules& data);
  void index_windows(const TokenFile& file, bool keep_rest);
  SampleSpan window(int64_t sample) const;
  /// Samples of a document: `count` windows of at most T inputs, one after the other.
  struct Windows {
    int64_t begin;  ///< of the first one in the file
    int64_t inputs;
    int64_t count;
  };
  Windows windows_of(size_t document) const;
  void index_groups(const TokenFile& file, int64_t max_prompt);
  Windows windows_behind_prompt(const TokenFile& file, size_t document, int64_t max_prompt);
  void index_documents(const TokenFile& file);
  Windows windows_of_range(int64_t begin, int64_t end) const;
  bool has_target(const TokenFile& file, const Windows& kept) const;
  bool loses_targets(const TokenFile& file, size_t document) const;
  [[noreturn]] void refuse_too_long(const TokenFile& file, size_t document, int64_t tokens) const;
  void refuse_no_sample(const TokenFile& file) const;
  void index_packs();
  SampleSpan whole_span(int64_t sample) const;

  std::span<const uint64_t> documents_;
  DataConfig::Packing packing_;
  DataConfig::Overflow overflow_;
  int64_t length_;                   // T
  int64_t stride_;                   // for wrap: see SampleRules
  int64_t behind_;                   // tokens at the end of a document that are not inputs: a target, or none
  int64_t tokens_;                   // number of tokens in the file
  NodeArray<int64_t> first_sample_;  // for none: offset of each document, n + 1 entries
  // Packed, and preference data: the spans of sample s are [span_range_[s], span_range_[s + 1]) of the two lists.
  NodeArray<int64_t> span_range_;
  NodeArray<int64_t> span_begin_;
  NodeArray<int32_t> span_inputs_;
  int64_t longest_ = 0;
  int64_t max_documents_ = 1;
  SampleCounts counts_;
};

}  // namespace llmtrain
