// Tokens and texts that arrive in blocks give the same as wholes, with every kind of tokenizer.

#include "text/text_stream.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "text/load_tokenizer.hpp"

namespace llmtrain {
namespace {

const std::string folder = "tests/reference/tokenizers/synthetic/";

const nlohmann::json& goldens() {
  static const nlohmann::json document = nlohmann::json::parse(std::ifstream(folder + "goldens.json"));
  return document;
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, cases] : goldens()["tokenizers"].items()) all.push_back(name);
  return all;
}

std::string all_texts() {
  std::string all;
  for (const auto& text : goldens()["texts"]) all += text.get<std::string>() + " ";
  return all;
}

/// Tokens of difficult texts, then arbitrary ones: halves of characters, special tokens, words without an end.
std::vector<int32_t> tokens_of(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  tokenizer.encode(all_texts(), ids);
  uint64_t state = 17;
  for (int i = 0; i < 600; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(tokenizer.vocabulary_size())));
    for (uint64_t again = (state >> 50) % 40; again > 36; --again) ids.push_back(ids.back());
  }
  return ids;
}

class Streams : public testing::TestWithParam<std::string> {
 protected:
  Streams() : tokenizer_(load_tokenizer(folder + GetParam())) {}
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(Streams, TextIsThatOfAllTokensAtAnyTime) {
  const std::vector<int32_t> ids = tokens_of(*tokenizer_);
  for (const size_t given : {size_t{0}, size_t{1}, size_t{7}, ids.size() / 2}) {
    const std::vector<int32_t> prompt(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(given));
    const size_t before = tokenizer_->decode(prompt).size();
    TextStream stream(*tokenizer_, prompt);
    std::string certain;
    for (size_t i = given; i < ids.size(); ++i) {
      stream.add(ids[i]);
      if (i % 7 != 0 && i > given + 100) continue;
      const std::string whole = tokenizer_->decode(std::span(ids).first(i + 1));
      ASSERT_EQ(stream.text(), whole.size() > before ? whole.substr(before) : "") << given << " " << i;
      ASSERT_TRUE(stream.text().starts_with(certain)) << given << " " << i;
      certain = stream.text().substr(0, stream.certain());
    }
    EXPECT_TRUE(tokenizer_->decode_reach() != 0 || stream.certain() + 3 >= stream.text().size());
  }
}

TEST_P(Streams, IdsAreThoseOfTheWholeText) {
  std::string text;
  for (int i = 0; i < 4; ++i) text += all_texts() + std::string(300, 'x') + " \xFF\xF0\x9F\x98 end";
  std::vector<int32_t> expected;
  tokenizer_->encode(text, expected);
  for (const size_t part : {1, 13, 5000, 1 << 20}) {
    EncodeStream stream(*tokenizer_, 300);
    std::vector<int32_t> ids;
    for (size_t i = 0; i < text.size(); i += part) stream.add(std::string_view(text).substr(i, part), ids);
    const size_t early = ids.size();
    stream.finish(ids);
    EXPECT_TRUE(ids == expected) << part;
    EXPECT_EQ(early > 0, tokenizer_->is_segmentable()) << part;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Streams, testing::ValuesIn(names()), [](const auto& one) {
  std::string name = one.param;
  for (char& c : name) c = c == '.' || c == '-' ? '_' : c;
  return name;
});

/// Counts the decoded tokens.
class Counted final : public Tokenizer {
 public:
  explicit Counted(std::unique_ptr<Tokenizer> tokenizer, size_t reach) : inner_(std::move(tokenizer)), reach_(reach) {}
  std::string kind() const override { return inner_->kind(); }
  int64_t vocabulary_size() const override { return inner_->vocabulary_size(); }
  int32_t eos_id() const override { return inner_->eos_id(); }
  int32_t bos_id() const override { return inner_->bos_id(); }
  void encode(std::string_view text, std::vector<int32_t>& ids) const override { inner_->encode(text, ids); }
  void encode_with_ranges(std::string_view text, std::vector<int32_t>& ids,
                          std::vector<TextRange>& ranges) const override {
    inner_->encode_with_ranges(text, ids, ranges);
  }
  std::string decode(std::span<const int32_t> ids) const override {
    decoded_ += ids.size();
    return inner_->decode(ids);
  }
  size_t decode_reach() const override { return reach_; }
  std::string serialized() const override { return inner_->serialized(); }
  size_t decoded() const { return decoded_; }

 private:
  std::unique_ptr<Tokenizer> inner_;
  size_t reach_;
  mutable size_t decoded_ = 0;
};

TEST(TextStream, EachTokenCostsTheSame) {
  const auto cost = [](size_t tokens, size_t reach, bool asks) {
    const Counted tokenizer(load_tokenizer(folder + "llama2.json"), reach);
    std::vector<int32_t> ids;
    std::string text;
    for (int i = 0; i < 400; ++i) text += "the cat sat on a mat ";
    tokenizer.encode(text, ids);
    ids.resize(tokens);
    TextStream stream(tokenizer, {});
    size_t bytes = 0;
    for (const int32_t id : ids) {
      stream.add(id);
      if (asks) bytes += stream.text().size();
    }
    EXPECT_GT(bytes + stream.text().size(), 0u);
    return tokenizer.decoded();
  };
  const size_t reach = load_tokenizer(folder + "llama2.json")->decode_reach();
  EXPECT_GT(reach, 0u);
  EXPECT_LT(cost(2000, reach, true), size_t{2000 * 48});
  EXPECT_EQ(cost(2000, std::string::npos, true), size_t{2000 * 2001 / 2});  // decodes all tokens each time
  EXPECT_EQ(cost(2000, std::string::npos, false), size_t{2000});            // text() is called once
}

TEST(TextStream, CharactersAreCertainWhenWhole) {
  const auto tokenizer = make_byte_tokenizer();
  TextStream stream(*tokenizer, {});
  const auto add = [&](std::string_view bytes) {
    for (const char byte : bytes) stream.add(static_cast<uint8_t>(byte));
    return stream.certain();
  };
  EXPECT_EQ(add("a\xF0\x9F\x98"), 1u);
  EXPECT_EQ(add("\x80"), 5u);
  EXPECT_EQ(add("\xE4\xB8"), 5u);
  EXPECT_EQ(add("b"), 8u);  // invalid bytes are unchanged
  EXPECT_EQ(stream.text(),
            "a\xF0\x9F\x98\x80\xE4\xB8"
            "b");
  EXPECT_EQ(add("\x80\xFF"), 10u);
}

TEST(EncodeStream, ErrorsNameTheByteOfTheWholeText) {
  const auto tokenizer = make_char_tokenizer({U' ', U'a', U'b'});
  EncodeStream stream(*tokenizer, 64);
  std::vector<int32_t> ids;
  for (int i = 0; i < 10; ++i) stream.add("ab aab ba ", ids);
  EXPECT_GT(ids.size(), 30u);
  stream.add("ab?", ids);
  try {
    stream.finish(ids);
    ADD_FAILURE() << "accepted";
  } catch (const EncodeError& error) {
    EXPECT_EQ(error.byte(), 102u);
  }
}

}  // namespace
}  // namespace llmtrain
