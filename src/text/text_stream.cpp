#include "text/text_stream.hpp"

#include <algorithm>
#include <span>

#include "core/utf8.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {

namespace {

constexpr size_t min_tokens = 8;
constexpr size_t first_limit = 32;
constexpr size_t unbounded = std::string_view::npos;

/// Returns the number of bytes at the end of `text` that more bytes can complete to a character.
size_t unfinished(std::string_view text) {
  for (size_t length = 1; length <= std::min<size_t>(3, text.size()); ++length) {
    const std::string_view last = text.substr(text.size() - length);
    if (is_utf8_continuation(last[0])) continue;
    const auto lead = static_cast<uint8_t>(last[0]);
    const size_t wanted = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 1;
    return lead <= 0xF4 && wanted > length ? length : 0;
  }
  return 0;
}

constexpr size_t overlap = 8;  // more than the context that find_cut examines

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<int32_t> before)
    : tokenizer_(tokenizer), reach_(tokenizer.decode_reach()), tokens_(std::move(before)), max_tokens_(first_limit) {
  const std::string decoded = tokenizer_.decode(tokens_);
  begin_ = decoded.size();
  if (tokens_.size() > max_tokens_) forget_old_tokens(decoded);
}

void TextStream::add(int32_t token) {
  tokens_.push_back(token);
  stale_ = reach_ == unbounded;
  if (stale_) return;
  const std::string decoded = tokenizer_.decode(tokens_);
  text_.resize(kept_);
  if (decoded.size() > begin_) text_.append(decoded, begin_);
  if (tokens_.size() > max_tokens_) forget_old_tokens(decoded);
}

const std::string& TextStream::text() const {
  if (stale_) {
    const std::string decoded = tokenizer_.decode(tokens_);
    text_.assign(decoded, std::min(decoded.size(), begin_));
    stale_ = false;
  }
  return text_;
}

/// The first tokens of a text can give other bytes than the same tokens within it, within reach_, and the last ones can
/// change within reach_: the bytes between the two equal those in the text of the last tokens alone.
void TextStream::forget_old_tokens(std::string_view decoded) {
  if (reach_ == unbounded) return;
  for (size_t count = min_tokens; count * 2 <= tokens_.size(); count *= 2) {
    const std::span<const int32_t> last = std::span<const int32_t>(tokens_).last(count);
    const std::string text = tokenizer_.decode(last);
    if (text.size() < 2 * reach_ + 1) continue;
    const size_t forgotten = decoded.size() - std::min(decoded.size(), text.size());
    if (text_.size() > reach_) {
      kept_ = text_.size() - reach_;
      begin_ = text.size() - reach_;
    } else if (begin_ >= forgotten + reach_) {  // the text is shorter and still begins in these tokens
      begin_ -= forgotten;
    } else {
      continue;
    }
    tokens_.erase(tokens_.begin(), tokens_.end() - static_cast<std::ptrdiff_t>(count));
    max_tokens_ = std::max(first_limit, 4 * count);
    return;
  }
  max_tokens_ = 2 * tokens_.size();
}

size_t TextStream::certain() const {
  if (reach_ == unbounded) return 0;
  const size_t end = text_.size() - std::min(text_.size(), reach_);
  return end - unfinished(std::string_view(text_).substr(0, end));
}

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
