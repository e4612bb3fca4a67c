#pragma once
// Token files in memory, and streams of them.

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "core/error.hpp"
#include "data/files/token_file.hpp"
#include "data/stream/data_stream.hpp"

namespace llmtrain::test {

/// Documents in memory.
class MemoryTokens final : public TokenFile {
 public:
  explicit MemoryTokens(const std::vector<std::vector<int32_t>>& documents, std::vector<uint8_t> mask = {})
      : mask_(std::move(mask)) {
    std::vector<uint64_t> offsets{0};
    for (const auto& document : documents) {
      ids_.insert(ids_.end(), document.begin(), document.end());
      offsets.push_back(ids_.size());
    }
    documents_ = std::move(offsets);
    info_.path = "memory";
    info_.tokens = std::ssize(ids_);
    info_.documents = static_cast<int64_t>(documents.size());
    info_.has_mask = !mask_.empty();
    info_.vocabulary_size = ids_.empty() ? 0 : int64_t{std::ranges::max(ids_)} + 1;
  }
  void set_rows(const RowCounts& rows) { info_.rows = rows; }
  /// Makes preference data of the documents, or documents with difficulties; with a column, the value of document d is
  /// d.
  void set_preferences(int64_t group, const std::string& column) {
    info_.group = group;
    info_.column = column;
    values_.clear();
    for (size_t d = 0; !column.empty() && d + 1 < documents_.size(); ++d) values_.push_back(static_cast<float>(d));
  }
  std::span<const float> values() const override { return values_; }
  void read(int64_t begin, int64_t count, int32_t* ids) const override {
    LLMTRAIN_CHECK(begin >= 0 && begin + count <= tokens(), "range");
    std::copy_n(ids_.begin() + begin, count, ids);
  }
  void read_mask(int64_t begin, int64_t count, uint8_t* mask) const override {
    LLMTRAIN_CHECK(begin >= 0 && begin + count <= tokens(), "range");
    for (int64_t i = 0; i < count; ++i) mask[i] = mask_.empty() ? 1 : mask_[static_cast<size_t>(begin + i)];
  }

 private:
  std::vector<int32_t> ids_;
  std::vector<uint8_t> mask_;
  std::vector<float> values_;
};

inline SampleRules packing(DataConfig::Packing mode) {
  SampleRules config;
  config.packing = mode;
  return config;
}

inline BatchConfig batch_of(int64_t length, int64_t micro, int64_t global) {
  BatchConfig batch;
  batch.sequence_length = length;
  batch.micro = micro;
  batch.global = global;
  return batch;
}

inline HostBatch first_batch(const DataStream& stream) {
  HostBatch batch;
  stream.load(stream.plan(0).micro_batches.at(0), batch);
  return batch;
}

}  // namespace llmtrain::test
