#pragma once
// Numbered samples of one source of tokens, and their rows in a batch.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "data/batch_config.hpp"
#include "data/files/token_file.hpp"
#include "data/sample_rules.hpp"
#include "data/stream/batch_source.hpp"
#include "data/stream/sample_index.hpp"

namespace llmtrain {

class SampleSource {
 public:
  static constexpr int64_t no_limit = std::numeric_limits<int64_t>::max();

  /// A batch identifies samples by first_id + their number here.
  SampleSource(std::shared_ptr<const TokenFile> file, const SampleRules& data, const BatchConfig& batch,
               int64_t first_id);

  const SampleIndex& index() const { return index_; }
  int64_t samples() const { return index_.counts().samples; }
  int64_t first_id() const { return first_id_; }
  int64_t vocabulary_size() const { return file_->info().vocabulary_size; }
  /// Maximum number of segments in the rows of one sample.
  int64_t max_segments() const { return across_documents_ ? 1 : index_.max_documents(); }
  /// A span of a document has a target, unless a mask says otherwise.
  bool may_lack_targets() const {
    return file_->info().has_token_labels() || (!scores_ && (windows_ || file_->info().has_mask));
  }
  /// Counts the targets among the first `longest` inputs of the sample; `mask` is working memory.
  int64_t trained_targets(int64_t sample, std::vector<uint8_t>& mask, int64_t longest = no_limit) const;
  /// The same of one of its spans.
  int64_t trained_targets(int64_t sample, size_t span, std::vector<uint8_t>& mask) const;
  bool has_groups() const { return file_->info().has_groups(); }
  /// Mean of the values of the sample's documents, weighted by their inputs in it. The documents have values.
  double mean_value(int64_t sample) const;
  /// Replaces `ids` by the inputs of a sample.
  void read_inputs(int64_t sample, std::vector<int32_t>& ids) const;
  /// Replaces `ids` by the tokens of a prompt.
  void read_prompt(int64_t sample, std::vector<int32_t>& ids) const;
  /// Reads the row of a prompt.
  StoredRow row(int64_t sample) const;
  /// Appends the first `longest` inputs of the sample.
  void append(int64_t sample, HostBatch& out, int64_t longest = no_limit) const;
  /// Appends the prompt of a sample of one document, and after it the completion of another sample, which may be of
  /// another source; what is longer than `longest` inputs is cut off.
  void append_mismatched(int64_t sample, const SampleSource& other, int64_t other_sample, int64_t longest,
                         HostBatch& out) const;

 private:
  void require_trained_target() const;
  int64_t targets_in(SampleSpan span, std::vector<uint8_t>& mask) const;
  /// Calls take(number, span) for the spans of the first `longest` inputs of a sample, of which the last one is cut.
  template <class Take>
  void each_span(int64_t sample, int64_t longest, const Take& take) const {
    for (size_t number = 0; number < index_.spans(sample) && longest > 0; ++number) {
      SampleSpan span = index_.span(sample, number);
      span.inputs = std::min(span.inputs, longest);
      longest -= span.inputs;
      take(number, span);
    }
  }
  /// Tokens and mask of a sample's only document, and the place of its first token that is a target.
  struct Completion {
    std::vector<int32_t> ids;
    std::vector<uint8_t> mask;  ///< of all tokens but the first
    size_t begin = 0;
  };
  Completion completion_of(int64_t sample) const;
  /// Number in the file of a document of a sample.
  size_t document_of(int64_t sample, size_t place) const;
  std::span<const uint64_t> borders_in(const SampleSpan& span) const;
  void append_span(const SampleSpan& span, HostBatch& out) const;
  void append_scored_span(const SampleSpan& span, HostBatch& out) const;
  void append_labels(size_t document, const SampleSpan& span, size_t row, HostBatch& out) const;
  /// Labels of the tokens of a span.
  std::span<const float> token_labels(const SampleSpan& span) const {
    return file_->values().subspan(static_cast<size_t>(span.begin), static_cast<size_t>(span.inputs));
  }
  /// Adds the document of the rows from `row` on, number `place` of the sample.
  void append_document(int64_t sample, size_t place, size_t row, HostBatch& out) const;

  std::shared_ptr<const TokenFile> file_;
  bool windows_;           // packing = wrap, but for preference data: a span can hold several documents
  bool across_documents_;  // and attention crosses their borders
  bool scores_;            // documents have inputs and no targets
  int64_t first_id_;
  SampleIndex index_;
};

}  // namespace llmtrain
