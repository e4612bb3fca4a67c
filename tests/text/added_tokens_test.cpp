// Special tokens that a run adds to a tokenizer: what its files say afterwards, in every format.

#include "text/hf_folder/added_tokens.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/error.hpp"
#include "harness/temporary_folder.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain {
namespace {

void write(const std::filesystem::path& path, const std::string& text) { std::ofstream(path) << text; }

std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

TEST(AddedTokenOutput, OnlyTheListOfATokenizerJsonChanges) {
  const std::vector<AddedToken> tokens = {{.content = "<a>", .id = 7, .special = true}};
  const std::string list = R"([{"id":7,"content":"<a>","single_word":false,"lstrip":false,"rstrip":false,)"
                           R"("normalized":false,"special":true}])";
  const std::string before =
      R"({"version":"1.0","x":{"added_tokens":[1]},"y":"\"added_tokens\":[2]","n":-1.50,"added_tokens":)";
  EXPECT_EQ(replace_added_tokens(before + R"([ {"content":"]"} ] , "model":null})", tokens),
            before + list + R"( , "model":null})");
  EXPECT_EQ(replace_added_tokens(R"({"model":{}})", tokens), R"({"added_tokens":)" + list + R"(,"model":{}})");
  const std::string pretty = replace_added_tokens("{\n  \"added_tokens\": [],\n  \"model\": null\n}\n", tokens);
  EXPECT_TRUE(pretty.starts_with("{\n  \"added_tokens\": [\n    {\n      \"id\": 7,\n")) << pretty;
  EXPECT_TRUE(pretty.ends_with("    }\n  ],\n  \"model\": null\n}\n")) << pretty;
}

// Ids as Transformers gives them (5.24): behind the vocabulary and the tokens of added_tokens.json, or those of the
// vocabulary.
TEST(AddedTokenOutput, AFolderKeepsItsTokensAndGetsTheNextIds) {
  const test::TemporaryFolder folder;
  const std::filesystem::path from = folder / "from", to = folder / "to";
  std::filesystem::create_directories(from);
  std::filesystem::create_directories(to);
  write(from / "tokenizer.json",
        R"({"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},
      "post_processor":null,"decoder":null,"model":{"type":"WordLevel","vocab":{"a":0,"b":1,"[UNK]":2},"unk_token":"[UNK]"}})");
  write(from / "tokenizer_config.json", R"({"pad_token":null})");
  write(from / "added_tokens.json", R"({"<old>":3})");
  const auto old = load_tokenizer(from.string());
  const std::vector<std::string> tokens = {"<new>", "b", "<old>", "<pad>"};
  EXPECT_EQ(tokens_known_to(*old, tokens), (std::vector<std::string>{"b", "<old>"}));
  const auto grown = with_added_tokens(*old, tokens);
  save_tokenizer(*grown, to.string());
  const auto saved = load_tokenizer(to.string());
  for (const Tokenizer* tokenizer : {grown.get(), saved.get()}) {
    EXPECT_EQ(tokenizer->vocabulary_size(), 6);
    EXPECT_EQ(encode(*tokenizer, "a<new>b<old> <pad>"), (std::vector<int32_t>{0, 4, 1, 3, 5}));
    EXPECT_TRUE(tokenizer->is_special(1));
    EXPECT_FALSE(tokenizer->is_special(3));
    EXPECT_EQ(tokenizer->pad_id(), 5);
  }
  EXPECT_EQ(with_added_tokens(*grown, tokens)->serialized(), grown->serialized());
  EXPECT_EQ(with_added_tokens(*old, tokens, "<new>")->eos_id(), 4);
  EXPECT_EQ(encode(*old, "a<new>"), (std::vector<int32_t>{0, 2, 2, 2}));  // control
  EXPECT_THROW(with_added_tokens(*make_byte_tokenizer(), tokens), UserError);
}

}  // namespace
}  // namespace llmtrain
