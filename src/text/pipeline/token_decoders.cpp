#include <utility>

#include "text/pipeline/byte_level.hpp"
#include "text/pipeline/token_decoder.hpp"

namespace llmtrain {
namespace {

void replace_all(std::string& text, std::string_view pattern, std::string_view content) {
  if (pattern.empty()) return;
  std::string changed;
  size_t done = 0;
  for (size_t at = text.find(pattern); at != std::string::npos; at = text.find(pattern, done)) {
    changed.append(text, done, at - done).append(content);
    done = at + pattern.size();
  }
  if (done == 0) return;
  text = changed.append(text, done);
}

/// Decoder that processes every token alone, given its index. It calls `extend(DecodeReach&)` when tokens are joined.
template <class Change, class Extend>
class Each final : public TokenDecoder {
 public:
  Each(Change change, Extend extend) : change_(std::move(change)), extend_(std::move(extend)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) change_(tokens[i], i, tokens.size());
  }
  void extend(DecodeReach& reach) const override {
    if (reach.joined) extend_(reach);
  }

 private:
  Change change_;
  Extend extend_;
};

template <class Change, class Extend>
std::unique_ptr<TokenDecoder> each(Change change, Extend extend) {
  return std::make_unique<Each<Change, Extend>>(std::move(change), std::move(extend));
}

/// Reports a step that joins tokens and examines whole ones.
void join(DecodeReach& reach) {
  if (reach.joined) reach.add(DecodeReach::unbounded);
  reach.joined = true;
}

class ByteLevelDecoder final : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string text;
    for (std::string& token : tokens) {
      std::string bytes;
      text += from_byte_level(token, bytes) ? bytes : token;
    }
    tokens.assign(1, text);
  }
  void extend(DecodeReach& reach) const override { join(reach); }
};

class ByteFallback final : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> joined;
    bool after_byte = false;
    for (std::string& token : tokens) {
      const int byte = byte_of_token(token);
      if (byte < 0) {
        joined.push_back(std::move(token));
      } else if (after_byte) {
        joined.back() += static_cast<char>(byte);
      } else {
        joined.emplace_back(1, static_cast<char>(byte));
      }
      after_byte = byte >= 0;
    }
    tokens = std::move(joined);
  }
  void extend(DecodeReach& reach) const override { join(reach); }
};

class Fuse final : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string text;
    for (const std::string& token : tokens) text += token;
    tokens.assign(1, text);
  }
  void extend(DecodeReach& reach) const override { reach.joined = true; }
};

/// Turns the suffix of a word into a space, except after the last token, which can change when others follow.
class SuffixDecoder final : public TokenDecoder {
 public:
  explicit SuffixDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
  }
  void extend(DecodeReach& reach) const override {
    reach.add(reach.joined ? DecodeReach::unbounded : reach.longest_token);
  }

 private:
  std::string suffix_;
};

std::string stripped(const std::string& token, char32_t content, size_t start, size_t stop) {
  std::u32string characters = to_characters(token);
  size_t begin = 0, end = characters.size();
  while (begin < start && begin < characters.size() && characters[begin] == content) ++begin;
  while (characters.size() - end < stop && end > begin && characters[end - 1] == content) --end;
  std::string text;
  for (size_t i = begin; i < end; ++i) append_character(text, characters[i]);
  return text;
}

void clean_up(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> changes[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [pattern, content] : changes) replace_all(text, pattern, content);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

void DecodeReach::add_replacement(std::string_view pattern, std::string_view content) {
  constexpr size_t longest = 64;  // length of a replacement in bytes
  const bool one = !pattern.empty() && character_at(pattern, 0).length == pattern.size();
  add(one && content.size() <= longest ? pattern.size() : unbounded);
  if (bytes != unbounded) bytes *= std::max<size_t>(1, content.size());
}

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::unique_ptr<TokenDecoder> make_byte_level_decoder() { return std::make_unique<ByteLevelDecoder>(); }
std::unique_ptr<TokenDecoder> make_byte_fallback_decoder() { return std::make_unique<ByteFallback>(); }
std::unique_ptr<TokenDecoder> make_fuse_decoder() { return std::make_unique<Fuse>(); }

std::unique_ptr<TokenDecoder> make_strip_decoder(char32_t content, size_t start, size_t stop) {
  return each([=](std::string& token, size_t, size_t) { token = stripped(token, content, start, stop); },
              [=](DecodeReach& reach) {
                constexpr size_t most = 64;  // in characters
                const size_t taken = std::max(start, stop);
                reach.add(taken <= most ? 4 * taken : DecodeReach::unbounded);
              });
}

std::unique_ptr<TokenDecoder> make_replace_decoder(const std::string& pattern, const std::string& content) {
  return each([=](std::string& token, size_t, size_t) { replace_all(token, pattern, content); },
              [=](DecodeReach& reach) { reach.add_replacement(pattern, content); });
}

std::unique_ptr<TokenDecoder> make_regex_replace_decoder(const std::string& regex, std::string content,
                                                         const std::string& place) {
  std::shared_ptr<Normalizer> replace = make_regex_replace_normalizer(regex, std::move(content), place);
  const auto change = [replace](std::string& token, size_t, size_t) {
    AlignedText changed;
    const TextView view{token};
    changed.reset(view);
    replace->apply(view, changed);
    token = std::string(changed.view().text);
  };
  return each(change, [](DecodeReach& reach) { reach.add(DecodeReach::unbounded); });
}

std::unique_ptr<TokenDecoder> make_metaspace_decoder(char32_t replacement, bool keeps_first) {
  std::string symbol;
  append_character(symbol, replacement);
  const auto change = [=](std::string& token, size_t i, size_t) {
    replace_all(token, symbol, i == 0 && !keeps_first ? "" : " ");
  };
  return each(change, [=](DecodeReach& reach) { reach.add_replacement(symbol, " "); });
}

std::unique_ptr<TokenDecoder> make_word_piece_decoder(std::string prefix, bool cleanup) {
  const auto change = [prefix = std::move(prefix), cleanup](std::string& token, size_t i, size_t) {
    if (i > 0) token = token.starts_with(prefix) ? token.substr(prefix.size()) : " " + token;
    if (cleanup) clean_up(token);
  };
  return each(change, [](DecodeReach& reach) { reach.add(DecodeReach::unbounded); });
}

std::unique_ptr<TokenDecoder> make_bpe_decoder(std::string suffix) {
  return std::make_unique<SuffixDecoder>(std::move(suffix));
}

}  // namespace llmtrain
