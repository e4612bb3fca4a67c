#include "data/sample_index.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"

namespace llmtrain {

SampleIndex::SampleIndex(const TokenFile& file, const DataConfig& data, const BatchConfig& batch)
    : documents_(file.documents()),
      whole_documents_(data.packing == DataConfig::Packing::none),
      length_(batch.sequence_length) {
  LLMTRAIN_CHECK(length_ >= 1, "sequence length");
  if (whole_documents_) {
    index_documents(file, data.overflow);
  } else {
    index_windows(file);
  }
}

void SampleIndex::index_windows(const TokenFile& file) {
  counts_.samples = (file.tokens() - 1) / length_;
  counts_.unused_tokens = file.tokens() - 1 - counts_.samples * length_;
  if (counts_.samples == 0) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: {} tokens are fewer than one sample needs (batch.sequence_length + 1 = {}): give "
                                "more text, another share of it (data.validation_fraction) or a shorter sequence",
                                file.info().path, file.tokens(), length_ + 1));
  }
  longest_ = length_;
  int64_t window = 0, starts = 0;  // documents that begin inside the window, not at its start
  for (size_t d = 1; d + 1 < documents_.size(); ++d) {
    const int64_t begin = static_cast<int64_t>(documents_[d]);
    if (begin / length_ != window) starts = 0;
    window = begin / length_;
    if (window >= counts_.samples) break;
    if (begin % length_ != 0) ++starts;
    most_documents_ = std::max(most_documents_, starts + 1);
  }
}

void SampleIndex::index_documents(const TokenFile& file, DataConfig::Overflow overflow) {
  first_sample_.reserve(documents_.size());
  for (size_t d = 0; d + 1 < documents_.size(); ++d) {
    first_sample_.push_back(counts_.samples);
    const int64_t inputs = static_cast<int64_t>(documents_[d + 1] - documents_[d]) - 1;
    if (inputs == 0) ++counts_.without_target;
    if (inputs > length_) {
      ++counts_.too_long;
      if (overflow == DataConfig::Overflow::error) {
        throw UserError(ExitCode::bad_content,
                        fmt::format("{}: document {} has {} tokens, more than batch.sequence_length + 1 = {}: choose a "
                                    "longer sequence, or data.overflow = split or truncate",
                                    file.info().path, d + 1, inputs + 1, length_ + 1));
      }
      if (overflow == DataConfig::Overflow::truncate) counts_.unused_tokens += inputs - length_;
    }
    longest_ = std::max(longest_, std::min(inputs, length_));
    counts_.samples +=
        overflow == DataConfig::Overflow::truncate ? std::min<int64_t>(inputs, 1) : (inputs + length_ - 1) / length_;
  }
  first_sample_.push_back(counts_.samples);
  if (counts_.samples == 0) {
    throw UserError(ExitCode::bad_content,
                    file.info().path + ": no document has two tokens, so nothing can be trained");
  }
}

SamplePlace SampleIndex::place(int64_t sample) const {
  LLMTRAIN_CHECK(sample >= 0 && sample < counts_.samples, "no such sample");
  if (!whole_documents_) return {sample * length_, length_};
  const auto next = std::upper_bound(first_sample_.begin(), first_sample_.end(), sample);
  const size_t d = static_cast<size_t>(next - first_sample_.begin()) - 1;
  const int64_t begin = static_cast<int64_t>(documents_[d]) + (sample - first_sample_[d]) * length_;
  return {begin, std::min(length_, static_cast<int64_t>(documents_[d + 1]) - 1 - begin)};
}

}  // namespace llmtrain
