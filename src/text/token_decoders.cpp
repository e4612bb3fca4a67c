#include <utility>

#include "text/byte_level.hpp"
#include "text/token_decoder.hpp"

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

/// A decoder that takes every token alone, given its place.
template <class Change>
class Each final : public TokenDecoder {
 public:
  explicit Each(Change change) : change_(std::move(change)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) change_(tokens[i], i, tokens.size());
  }

 private:
  Change change_;
};

template <class Change>
std::unique_ptr<TokenDecoder> each(Change change) {
  return std::make_unique<Each<Change>>(std::move(change));
}

class ByteLevelDecoder final : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string text;
    for (std::string& token : tokens) {
      std::string bytes;
      text += from_byte_level(token, bytes) ? bytes : token;
    }
    tokens.assign(1, std::move(text));
  }
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
};

class Fuse final : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string text;
    for (const std::string& token : tokens) text += token;
    tokens.assign(1, std::move(text));
  }
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

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::unique_ptr<TokenDecoder> make_byte_level_decoder() { return std::make_unique<ByteLevelDecoder>(); }
std::unique_ptr<TokenDecoder> make_byte_fallback_decoder() { return std::make_unique<ByteFallback>(); }
std::unique_ptr<TokenDecoder> make_fuse_decoder() { return std::make_unique<Fuse>(); }

std::unique_ptr<TokenDecoder> make_strip_decoder(char32_t content, size_t start, size_t stop) {
  return each([=](std::string& token, size_t, size_t) { token = stripped(token, content, start, stop); });
}

std::unique_ptr<TokenDecoder> make_replace_decoder(std::string pattern, std::string content) {
  return each([pattern = std::move(pattern), content = std::move(content)](std::string& token, size_t, size_t) {
    replace_all(token, pattern, content);
  });
}

std::unique_ptr<TokenDecoder> make_regex_replace_decoder(std::string_view regex, std::string content) {
  std::shared_ptr<Normalizer> replace = make_regex_replace_normalizer(regex, std::move(content));
  if (replace == nullptr) return nullptr;
  return each([replace](std::string& token, size_t, size_t) {
    AlignedText changed;
    const Chunk chunk{token};
    changed.reset(chunk);
    replace->apply(chunk, changed);
    token = std::string(changed.chunk().text);
  });
}

std::unique_ptr<TokenDecoder> make_metaspace_decoder(char32_t replacement, bool keeps_first) {
  std::string symbol;
  append_character(symbol, replacement);
  return each([symbol, keeps_first](std::string& token, size_t i, size_t) {
    replace_all(token, symbol, i == 0 && !keeps_first ? "" : " ");
  });
}

std::unique_ptr<TokenDecoder> make_word_piece_decoder(std::string prefix, bool cleanup) {
  return each([prefix = std::move(prefix), cleanup](std::string& token, size_t i, size_t) {
    if (i > 0) token = token.starts_with(prefix) ? token.substr(prefix.size()) : " " + token;
    if (cleanup) clean_up(token);
  });
}

std::unique_ptr<TokenDecoder> make_bpe_decoder(std::string suffix) {
  return each([suffix = std::move(suffix)](std::string& token, size_t i, size_t count) {
    replace_all(token, suffix, i + 1 == count ? "" : " ");
  });
}

}  // namespace llmtrain
