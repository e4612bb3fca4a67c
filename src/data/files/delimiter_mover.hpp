#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace llmtrain {

/// Turns ids of documents that begin with a delimiter into ids of documents that end with EOS. A delimiter other than
/// EOS stays at the begin of its document.
class DelimiterMover {
 public:
  DelimiterMover(int32_t delimiter, int32_t eos) : delimiter_(delimiter), eos_(eos) {}

  void add(std::span<const int32_t> ids, std::vector<int32_t>& out) {
    for (const int32_t id : ids) {
      if (id == delimiter_) {
        found_ = true;
        if (started_) close(out);
        leads_ = delimiter_ != eos_;
      } else {
        if (std::exchange(leads_, false)) add(delimiter_, out);
        add(id, out);
      }
      started_ = true;
    }
  }
  /// Ends the last document.
  void close(std::vector<int32_t>& out) {
    if (length_ == 0) {
      ++empty_;
      return;
    }
    out.push_back(eos_);
    offsets_.push_back(offsets_.back() + std::exchange(length_, 0) + 1);
  }
  const std::vector<uint64_t>& offsets() const { return offsets_; }
  int64_t empty() const { return empty_; }
  bool found_delimiter() const { return found_; }

 private:
  void add(int32_t id, std::vector<int32_t>& out) {
    out.push_back(id);
    ++length_;
  }

  int32_t delimiter_, eos_;
  std::vector<uint64_t> offsets_ = {0};
  uint64_t length_ = 0;  // of the document that is open
  bool started_ = false, found_ = false;
  bool leads_ = false;  // the delimiter comes before the next id
  int64_t empty_ = 0;
};

}  // namespace llmtrain
