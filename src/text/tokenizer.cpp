#include "text/tokenizer.hpp"

#include <optional>

#include "text/unicode/code_points.hpp"

namespace llmtrain {

namespace {

/// Takes a token out of the ids and returns its range.
TextRange take(size_t at, std::vector<int32_t>& ids, std::vector<TextRange>* ranges) {
  ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at));
  if (ranges == nullptr) return {};
  const TextRange range = (*ranges)[at];
  ranges->erase(ranges->begin() + static_cast<std::ptrdiff_t>(at));
  return range;
}

void insert(size_t at, int32_t id, const TextRange& range, std::vector<int32_t>& ids, std::vector<TextRange>* ranges) {
  ids.insert(ids.begin() + static_cast<std::ptrdiff_t>(at), id);
  if (ranges != nullptr) ranges->insert(ranges->begin() + static_cast<std::ptrdiff_t>(at), range);
}

}  // namespace

void put_tokens_around(const Tokenizer& tokenizer, const TokensAround& around, size_t bytes, size_t prompt,
                       std::vector<int32_t>& ids, std::vector<TextRange>* ranges) {
  const int32_t bos = tokenizer.bos_id(), eos = tokenizer.eos_id();
  const auto begins = [&] { return !ids.empty() && bos >= 0 && ids.front() == bos; };
  const auto ended = [&] { return !ids.empty() && eos >= 0 && ids.back() == eos; };
  std::optional<TextRange> own_bos, own_eos;
  if (begins()) own_bos = take(0, ids, ranges);
  if (ended() && (prompt == 0 || ranges->back().end > prompt)) own_eos = take(ids.size() - 1, ids, ranges);
  const size_t own = ids.size();
  if (around.of_tokenizer) tokenizer.add_special_tokens(ids, ranges);
  const bool alone = ids.size() == 1 && begins();  // one token can be both BOS and EOS
  const bool added_eos = ids.size() > own && ended() && !alone;
  if ((own_bos || around.add_bos) && !begins()) insert(0, bos, {}, ids, ranges);
  if (own_bos && ranges != nullptr) ranges->front() = *own_bos;
  if (added_eos && (own_eos || !around.ends)) take(ids.size() - 1, ids, ranges);
  if (own_eos || (around.ends && eos >= 0 && !(added_eos && ended()))) {
    insert(ids.size(), eos, own_eos.value_or(TextRange{bytes, bytes}), ids, ranges);
  }
}

void Tokenizer::encode_content(std::string_view text, std::span<const TextRange>, std::vector<int32_t>& ids,
                               std::vector<TextRange>& ranges) const {
  encode_with_ranges(text, ids, ranges);  // no text gives a special token
}

void Tokenizer::add_special_tokens(std::vector<int32_t>& ids, std::vector<TextRange>* ranges) const {
  if (bos_id() < 0) return;
  ids.insert(ids.begin(), bos_id());
  if (ranges != nullptr) ranges->insert(ranges->begin(), TextRange{});
}

size_t Tokenizer::find_cut(std::string_view window) const {
  for (size_t i = 1; i < window.size(); ++i) {
    if (!is_utf8_continuation(window[i]) || i > 3) return i;
  }
  return std::string_view::npos;
}

void Tokenizer::encode_segment(std::string_view text, bool, std::vector<int32_t>& ids) const { encode(text, ids); }

}  // namespace llmtrain
