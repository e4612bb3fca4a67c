#include "text/pipeline/added_tokens.hpp"

#include <algorithm>

#include "text/unicode/character_sets.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const std::vector<std::unique_ptr<Normalizer>>& normalizers)
    : tokens_(std::move(tokens)) {
  AlignedText one, other;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    AddedToken& token = tokens_[i];
    token.found = token.content;
    if (token.normalized) {
      const TextView input{token.content, nullptr, true, 0};
      token.found = std::string(normalize(normalizers, input, false, one, other).text);
    }
    if (token.in_text && !token.found.empty())
      (token.normalized ? normalized_ : plain_).add(token.found, static_cast<int32_t>(i));
  }
  plain_.finish();
  normalized_.finish();
}

bool lies_in(std::span<const TextRange> ranges, size_t begin, size_t end) {
  const auto after = std::ranges::upper_bound(ranges, begin, {}, &TextRange::begin);
  return after != ranges.begin() && end <= std::prev(after)->end;
}

void AddedTokens::split(std::string_view text, bool normalized, std::vector<Segment>& segments,
                        const IsText* is_text) const {
  segments.clear();
  thread_local std::vector<LiteralMatcher::Match> matches;
  (normalized ? normalized_ : plain_).find(text, matches);
  size_t done = 0;
  for (const LiteralMatcher::Match& match : matches) {
    const AddedToken& token = tokens_[static_cast<size_t>(match.value)];
    if (token.is_split) continue;
    size_t begin = match.begin, end = match.end;
    if (is_text != nullptr && (*is_text)(token, begin, end)) continue;
    if (token.single_word) {
      const bool goes_on = (begin > 0 && is_word_character(character_before(text, begin).code)) ||
                           (end < text.size() && is_word_character(character_at(text, end).code));
      if (goes_on) continue;
    }
    if (token.lstrip) {
      while (begin > done && is_white_space(character_before(text, begin).code)) {
        begin -= character_before(text, begin).length;
      }
      begin = std::max(begin, done);
    }
    if (token.rstrip) {
      while (end < text.size() && is_white_space(character_at(text, end).code)) end += character_at(text, end).length;
    }
    end = std::max(end, begin);
    if (done < begin) segments.push_back({done, begin, -1});
    if (begin < end) segments.push_back({begin, end, token.id});  // otherwise the token before has taken it all
    done = end;
  }
  if (done < text.size()) segments.push_back({done, text.size(), -1});
}

bool AddedTokens::is_segmentable(bool prefixed) const {
  const auto alphanumeric = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  };
  return std::ranges::all_of(tokens_, [&](const AddedToken& token) {
    for (const std::string& text : {token.content, token.found}) {
      if (text.empty()) continue;
      if ((token.rstrip || prefixed) && alphanumeric(text.back())) return false;
      if (token.single_word && (is_white_space(character_at(text, 0).code) || alphanumeric(text.back()))) return false;
      for (size_t i = 1; i < text.size(); ++i) {
        if (text[i] == ' ' && alphanumeric(text[i - 1])) return false;
      }
    }
    return true;
  });
}

}  // namespace llmtrain
