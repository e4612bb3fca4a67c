#include "text/encode_stream.hpp"

#include <algorithm>

namespace llmtrain {
namespace {

constexpr size_t overlap = 8;  // more than the context that find_cut examines

}  // namespace

EncodeStream::EncodeStream(const Tokenizer& tokenizer, size_t block_bytes)
    : tokenizer_(tokenizer), block_bytes_(block_bytes) {}

void EncodeStream::add(std::string_view block, std::vector<int32_t>& ids) {
  held_ += block;
  if (held_.size() < block_bytes_ || !tokenizer_.is_segmentable()) return;
  const size_t cut = find_last_cut();
  if (cut == std::string::npos) {
    searched_ = held_.size() - std::min(held_.size(), overlap);
  } else {
    encode_until(cut, ids);
  }
}

void EncodeStream::finish(std::vector<int32_t>& ids) { encode_until(held_.size(), ids); }

size_t EncodeStream::find_last_cut() const {
  const size_t context_bytes = std::clamp<size_t>(block_bytes_ / 8, 4 * overlap, 4096);
  for (size_t end = held_.size(); end > searched_;) {
    const size_t begin = std::max(searched_, end - std::min(end, context_bytes));
    const size_t cut = tokenizer_.find_cut(std::string_view(held_).substr(begin, end - begin));
    if (cut != std::string_view::npos) return begin + cut;
    if (begin <= searched_) break;
    end = begin + overlap;
  }
  return std::string::npos;
}

void EncodeStream::encode_until(size_t end, std::vector<int32_t>& ids) {
  try {
    if (end > 0) tokenizer_.encode_segment(std::string_view(held_).substr(0, end), offset_ == 0, ids);
  } catch (const EncodeError& error) {
    throw EncodeError(offset_ + error.byte(), error.reason());
  }
  offset_ += end;
  held_.erase(0, end);
  searched_ = 0;
}

}  // namespace llmtrain
