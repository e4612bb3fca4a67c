#include "text/pipeline/token_model.hpp"
#include "text/pipeline/token_trie.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

/// Takes the longest token from the left each time, with the continuation prefix after the first; a word that tokens do
/// not cover to its end is one unknown token.
class WordPieceModel final : public TokenModel {
 public:
  WordPieceModel(Vocabulary vocabulary, const WordPieceOptions& options)
      : vocabulary_(std::move(vocabulary)), options_(options), unk_(vocabulary_.find(options.unk_token)) {
    for (int32_t id = 0; id < vocabulary_.id_limit(); ++id) {
      if (!vocabulary_.has(id)) continue;
      const std::string_view token = vocabulary_.token(id);
      if (token.empty()) continue;
      starts_.add(token, id);
      if (token.starts_with(options.prefix) && token.size() > options.prefix.size()) {
        continues_.add(token.substr(options.prefix.size()), id);
      }
    }
  }

  std::string kind() const override { return "wordpiece"; }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

  void tokenize(std::string_view word, TokenSink sink) const override {
    const size_t before = sink.ids.size();
    const size_t ranges_before = sink.ranges != nullptr ? sink.ranges->size() : 0;
    bool covered = static_cast<size_t>(count_code_points(word)) <= options_.max_characters;
    for (size_t begin = 0; covered && begin < word.size();) {
      size_t length = 0;
      int32_t id = -1;
      (begin == 0 ? starts_ : continues_).prefixes(word.substr(begin), [&](size_t n, int32_t value) {
        const size_t end = begin + n;
        if (end < word.size() && is_utf8_continuation(word[end])) return;  // never inside a character
        length = n;
        id = value;
      });
      covered = length > 0;
      if (covered) sink.add(id, begin, begin + length);
      begin += length;
    }
    if (covered) return;
    sink.ids.resize(before);
    if (sink.ranges != nullptr) sink.ranges->resize(ranges_before);
    sink.add(unk_, 0, word.size());
  }

 private:
  Vocabulary vocabulary_;
  WordPieceOptions options_;
  int32_t unk_;
  TokenTrie starts_, continues_;
};

class WordLevelModel final : public TokenModel {
 public:
  WordLevelModel(Vocabulary vocabulary, const std::string& unk_token)
      : vocabulary_(std::move(vocabulary)), unk_(vocabulary_.find(unk_token)) {}

  std::string kind() const override { return "wordlevel"; }
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  void tokenize(std::string_view word, TokenSink sink) const override {
    const int32_t id = vocabulary_.find(word);
    sink.add(id >= 0 ? id : unk_, 0, word.size());
  }

 private:
  Vocabulary vocabulary_;
  int32_t unk_;
};

}  // namespace

std::unique_ptr<TokenModel> make_word_piece_model(Vocabulary vocabulary, const WordPieceOptions& options) {
  return std::make_unique<WordPieceModel>(std::move(vocabulary), options);
}

std::unique_ptr<TokenModel> make_word_level_model(Vocabulary vocabulary, const std::string& unk_token) {
  return std::make_unique<WordLevelModel>(std::move(vocabulary), unk_token);
}

}  // namespace llmtrain
