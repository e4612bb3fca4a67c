// Tokenizers without files: characters and bytes.

#include <fmt/format.h>

#include "core/error.hpp"
#include "core/utf8.hpp"
#include "text/tokenizer.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {

namespace {

class CharTokenizer final : public Tokenizer {
 public:
  CharTokenizer(std::vector<char32_t> code_points, bool with_bos)
      : code_points_(std::move(code_points)), with_bos_(with_bos) {
    LLMTRAIN_CHECK(!code_points_.empty(), "a char tokenizer needs at least one character");
    for (size_t i = 0; i < code_points_.size(); ++i) {
      LLMTRAIN_CHECK(code_points_[i] < code_point_limit, "not a Unicode code point");
      LLMTRAIN_CHECK(i == 0 || code_points_[i - 1] < code_points_[i], "code points must be distinct and sorted");
    }
    id_of_.assign(size_t{code_points_.back()} + 1, -1);
    for (size_t i = 0; i < code_points_.size(); ++i) id_of_[code_points_[i]] = static_cast<int32_t>(i);
  }

  std::string kind() const override { return "char"; }
  int64_t vocabulary_size() const override { return characters() + (with_bos_ ? 2 : 1); }
  int32_t eos_id() const override { return characters(); }
  int32_t bos_id() const override { return with_bos_ ? characters() + 1 : -1; }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    for_characters(text, [&](int32_t id, size_t, size_t) { ids.push_back(id); });
  }
  void encode_with_ranges(std::string_view text, std::vector<int32_t>& ids,
                          std::vector<TextRange>& ranges) const override {
    for_characters(text, [&](int32_t id, size_t begin, size_t end) {
      ids.push_back(id);
      ranges.push_back({begin, end});
    });
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id >= 0 && id < characters()) append_code_point(text, code_points_[static_cast<size_t>(id)]);
    }
    return text;
  }

  std::string serialized() const override {
    std::string text = fmt::format(R"({{"type":"char","bos":{},"code_points":[)", with_bos_);
    for (size_t i = 0; i < code_points_.size(); ++i) {
      if (i > 0) text += ',';
      text += std::to_string(static_cast<uint32_t>(code_points_[i]));
    }
    return text + "]}";
  }

 private:
  template <class Use>
  void for_characters(std::string_view text, const Use& use) const {
    const size_t invalid = find_invalid_utf8(text);
    if (invalid != std::string_view::npos) throw EncodeError(invalid, "the text is not UTF-8");
    for (size_t i = 0; i < text.size();) {
      const size_t begin = i;
      const char32_t c = next_code_point(text, i);
      const int32_t id = c < id_of_.size() ? id_of_[c] : -1;
      if (id < 0) {
        throw EncodeError(begin, fmt::format("character U+{:04X} is not one of the {} characters of the vocabulary",
                                             static_cast<uint32_t>(c), characters()));
      }
      use(id, begin, i);
    }
  }

  int32_t characters() const { return static_cast<int32_t>(code_points_.size()); }

  std::vector<char32_t> code_points_;
  std::vector<int32_t> id_of_;  // by code point, -1 = none
  bool with_bos_;
};

constexpr int32_t byte_count = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(bool with_bos) : with_bos_(with_bos) {}

  std::string kind() const override { return "bytes"; }
  int64_t vocabulary_size() const override { return byte_count + (with_bos_ ? 2 : 1); }
  int32_t eos_id() const override { return byte_count; }
  int32_t bos_id() const override { return with_bos_ ? byte_count + 1 : -1; }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  }
  void encode_with_ranges(std::string_view text, std::vector<int32_t>& ids,
                          std::vector<TextRange>& ranges) const override {
    encode(text, ids);
    for (size_t i = 0; i < text.size(); ++i) ranges.push_back({i, i + 1});
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id >= 0 && id < byte_count) text += static_cast<char>(id);
    }
    return text;
  }

  std::string serialized() const override {
    return with_bos_ ? R"({"type":"bytes","bos":true})" : R"({"type":"bytes","bos":false})";
  }

 private:
  bool with_bos_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_char_tokenizer(std::vector<char32_t> code_points, bool with_bos) {
  if (code_points.size() > max_char_vocabulary) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("the text has {} different characters, but a char vocabulary has at most {}; use "
                                "data.tokenizer = bytes",
                                code_points.size(), max_char_vocabulary));
  }
  return std::make_unique<CharTokenizer>(std::move(code_points), with_bos);
}

std::unique_ptr<Tokenizer> make_byte_tokenizer(bool with_bos) { return std::make_unique<ByteTokenizer>(with_bos); }

}  // namespace llmtrain
