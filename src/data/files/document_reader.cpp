#include "data/files/document_reader.hpp"

#include <algorithm>

#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

constexpr int64_t block_bytes = int64_t{1} << 20;

}  // namespace

DocumentReader::DocumentReader(const InputFile& file, int64_t limit)
    : file_(FileHandle::open_to_read(file.path)),
      file_bytes_(file_.size()),
      separator_(file.kind == InputKind::text ? file.format.separator : "\n"),
      longest_(file.kind == InputKind::text ? max_segment_bytes : file.format.row_limit) {
  if (file.is_packed()) unpacked_ = open_packed(file_, file, limit);
  if (file.text_begin > 0 && fill()) begin_ = searched_ = static_cast<size_t>(file.text_begin);
}

double DocumentReader::progress() const {
  const int64_t done = unpacked_ ? unpacked_->position() : buffer_offset_ + static_cast<int64_t>(begin_);
  return file_bytes_ > 0 ? static_cast<double>(done) / static_cast<double>(file_bytes_) : 1;
}

/// Appends a block to the buffer; returns false at the end of the file.
bool DocumentReader::fill() {
  if (ended_) return false;
  if (begin_ > static_cast<size_t>(block_bytes)) {
    buffer_.erase(0, begin_);
    buffer_offset_ += static_cast<int64_t>(begin_);
    searched_ -= begin_;
    begin_ = 0;
  }
  const size_t before = buffer_.size();
  buffer_.resize(before + static_cast<size_t>(block_bytes));
  char* data = buffer_.data() + before;
  const int64_t n = unpacked_ ? unpacked_->read(data, block_bytes)
                              : file_.read_some(buffer_offset_ + static_cast<int64_t>(before), block_bytes, data);
  buffer_.resize(before + static_cast<size_t>(n));
  ended_ = n < block_bytes;
  return n > 0;
}

void DocumentReader::take(size_t end, DocumentSegment& segment) {
  segment.text.assign(buffer_, begin_, end - begin_);
  segment.offset = buffer_offset_ + static_cast<int64_t>(begin_);
  segment.line = line_;
  segment.first = !in_document_;
  line_ += std::ranges::count(segment.text, '\n');
  begin_ = searched_ = end;
}

/// Returns true if the rest exceeds the limit; a carriage return at the end of a row does not count.
bool DocumentReader::is_too_long(size_t end) const {
  const bool carriage_return = separator_ == "\n" && end > begin_ && buffer_[end - 1] == '\r';
  return end - begin_ > static_cast<size_t>(longest_) + (carriage_return ? 1 : 0);
}

void DocumentReader::take_longest(DocumentSegment& segment) {
  size_t end = begin_ + static_cast<size_t>(longest_);
  for (int back = 0; back < 3 && end > begin_ + 1 && is_utf8_continuation(buffer_[end]); ++back) --end;
  take(end, segment);
  segment.last = false;
  in_document_ = true;
}

bool DocumentReader::next(DocumentSegment& segment) {
  segment.behind.clear();
  segment.last = true;
  while (true) {
    const size_t found = separator_.empty() ? std::string::npos : buffer_.find(separator_, searched_);
    if (found != std::string::npos && !is_too_long(found)) {
      take(found, segment);
      segment.behind = separator_;
      line_ += std::ranges::count(separator_, '\n');
      begin_ = searched_ = found + separator_.size();
      in_document_ = false;
      return true;
    }
    searched_ = std::max(searched_, buffer_.size() - std::min(buffer_.size(), separator_.size()));
    const size_t most = static_cast<size_t>(longest_) + 1 + separator_.size();
    const bool cut = found != std::string::npos || buffer_.size() - begin_ > most;
    if (!cut && fill()) continue;
    if (cut || is_too_long(buffer_.size())) {
      take_longest(segment);
      return true;
    }
    if (begin_ == buffer_.size() && !in_document_) return false;
    take(buffer_.size(), segment);
    in_document_ = false;
    return true;
  }
}

}  // namespace llmtrain
