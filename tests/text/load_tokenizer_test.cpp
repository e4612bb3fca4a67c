// Hostile and broken tokenizer files, each with a twin that is accepted.

#include "text/load_tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "harness/temporary_folder.hpp"
#include "text/hf_folder/base64.hpp"
#include "text/hf_folder/json_in.hpp"
#include "text/pipeline/byte_level.hpp"
#include "text/sentencepiece/sentencepiece_model.hpp"

namespace llmtrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(const std::function<void()>& work, ExitCode code = ExitCode::bad_content) {
  try {
    work();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "nothing was thrown";
}

std::string replace(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

/// The twin: every test changes one thing in it.
const std::string good_json = R"({"version":"1.0","truncation":null,"padding":null,
 "added_tokens":[{"id":5,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
 "normalizer":{"type":"Lowercase"},
 "pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\s+"},"behavior":"Removed","invert":false},
 "post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"</s>","type_id":0}}],
   "pair":[],"special_tokens":{"</s>":{"id":"</s>","ids":[5],"tokens":["</s>"]}}},
 "decoder":{"type":"Fuse"},
 "model":{"type":"BPE","dropout":null,"unk_token":"?","continuing_subword_prefix":null,"end_of_word_suffix":null,
   "fuse_unk":false,"byte_fallback":false,"ignore_merges":false,
   "vocab":{"?":0,"a":1,"b":2,"ab":3,"bab":4},"merges":["a b",["b","ab"]]}})";

class Folder : public test::TemporaryFolder {
 public:
  std::string write(const std::string& name, const std::string& text) const {
    std::string path = (*this / name).string();
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::string path() const { return text(); }
};

std::string why_json(const std::string& text) {
  return refusal([&] { read_tokenizer_json(text, "t.json"); });
}

TEST(TokenizerJson, TheTwinIsRead) {
  const Folder folder;
  const auto tokenizer = load_tokenizer(folder.write("tokenizer.json", good_json));
  std::vector<int32_t> ids;
  tokenizer->encode("BAB ax </s>", ids);
  EXPECT_THAT(ids, ElementsAre(4, 1, 0, 5));
  tokenizer->add_special_tokens(ids, nullptr);
  EXPECT_THAT(ids, ElementsAre(4, 1, 0, 5, 5));
  EXPECT_EQ(tokenizer->decode(ids), "baba?");
  EXPECT_EQ(tokenizer->eos_id(), 5);
  EXPECT_EQ(tokenizer->vocabulary_size(), 6);
}

TEST(TokenizerJson, UnknownRegexIsRefusedByName) {
  EXPECT_THAT(why_json(replace(good_json, R"(\\s+)", "a(?R)")), HasSubstr("(?R..., which is not supported"));
}

TEST(TokenizerJson, UnknownPartsAreRefusedByName) {
  EXPECT_THAT(why_json(replace(good_json, "Lowercase", "Uppercase")),
              HasSubstr("t.json.normalizer: the type Uppercase is not supported (did you mean Lowercase?)"));
  EXPECT_THAT(why_json(replace(good_json, "\"Split\"", "\"Splat\"")), HasSubstr("pre_tokenizer: the type Splat"));
  EXPECT_THAT(why_json(replace(good_json, "\"Fuse\"", "\"CTC\"")), HasSubstr("decoder: a CTC decoder is for speech"));
  EXPECT_THAT(why_json(replace(good_json, "\"BPE\"", "\"ABC\"")), HasSubstr("model: the model ABC is not supported"));
  EXPECT_THAT(why_json(replace(good_json, "TemplateProcessing", "Temple")),
              HasSubstr("post_processor: the type Temple"));
  EXPECT_THAT(why_json(replace(good_json, "\"dropout\":null", "\"dropout\":0.1")), HasSubstr("model.dropout: "));
  EXPECT_THAT(why_json(replace(good_json, "\"invert\"", "\"inwert\"")), HasSubstr("the key inwert is not supported"));
  EXPECT_THAT(why_json(replace(good_json, "\"version\":\"1.0\"", "\"version\":\"2.0\"")),
              HasSubstr("only version 1.0"));
}

TEST(TokenizerJson, IdsAreUniqueAndInRange) {
  EXPECT_THAT(why_json(replace(good_json, "\"bab\":4", "\"bab\":3")),
              HasSubstr("the token \"bab\" has the id 3, as \"ab\" has"));
  EXPECT_THAT(why_json(replace(good_json, "\"bab\":4", "\"bab\":2147483648")), HasSubstr("must have an id from 0 to"));
  EXPECT_THAT(why_json(replace(good_json, "\"bab\":4", "\"bab\":-1")), HasSubstr("must have an id from 0 to"));
  EXPECT_THAT(why_json(replace(good_json, "\"bab\":4", "\"bab\":4.0")), HasSubstr("must have an id from 0 to"));
  EXPECT_THAT(why_json(replace(good_json, "{\"id\":5", "{\"id\":4")), HasSubstr("must be 5, the next free one"));
  EXPECT_THAT(why_json(replace(good_json, "\"ids\":[5]", "\"ids\":[6]")),
              HasSubstr("ids[0]: must be an integer from 0 to 5"));
}

TEST(TokenizerJson, EveryPieceOfTheFirstCharacterBeginsTheInput) {
  const Folder folder;
  const std::string json = R"({"version":"1.0","added_tokens":[],"normalizer":{"type":"NFKD"},
   "pre_tokenizer":{"type":"Sequence","pretokenizers":[
     {"type":"Split","pattern":{"String":"\u2044"},"behavior":"Isolated","invert":false},
     {"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":false}]},
   "post_processor":null,"decoder":null,
   "model":{"type":"WordLevel","unk_token":"?","vocab":{"?":0,"_1":1,"_\u2044":2,"_2":3,"2a":4,"_2a":5,"1":6,"\u2044":7}}})";
  const auto tokenizer = load_tokenizer(folder.write("tokenizer.json", json));
  std::vector<int32_t> ids;
  tokenizer->encode(
      "\xC2\xBD"
      "a",
      ids);  // one half, of three characters; as the tokenizers package has it
  EXPECT_THAT(ids, ElementsAre(1, 2, 5));
  ids.clear();
  tokenizer->encode(
      "1\xE2\x81\x84"
      "2a",
      ids);
  EXPECT_THAT(ids, ElementsAre(1, 7, 4));
}

TEST(TokenizerJson, AWordMayHaveNoTokens) {
  const Folder folder;
  const std::string json = replace(good_json, R"("unk_token":"?")", R"("unk_token":null)");
  const auto tokenizer = load_tokenizer(folder.write("tokenizer.json", json));
  std::vector<int32_t> ids;
  tokenizer->encode("xyz", ids);
  EXPECT_TRUE(ids.empty());
  tokenizer->encode("xyz ab xyz", ids);
  EXPECT_THAT(ids, ElementsAre(3));
}

TEST(TokenizerJson, ATokenOfWhichNothingIsLeftIsRefused) {
  const auto with = [](const std::string& normalizer, const std::string& normalized) {
    return why_json(replace(replace(good_json, "\"Lowercase\"", normalizer), R"("special":true}],)",
                            R"("special":true},{"id":6,"content":"\n","normalized":)" + normalized + "}],"));
  };
  const std::string strip = R"("Strip","strip_left":false,"strip_right":true)";
  EXPECT_THAT(with(strip, "true"), HasSubstr("t.json.added_tokens: the normalizer removes all of the token '\\x0a'"));
  EXPECT_EQ(with(strip, "false"), "nothing was thrown");
  EXPECT_EQ(with("\"Lowercase\"", "true"), "nothing was thrown");
}

TEST(TokenizerJson, MergesAreOfTokens) {
  EXPECT_THAT(why_json(replace(good_json, "\"a b\"", "\"a c\"")),
              HasSubstr("merges[0]: the token \"c\" is not in the vocabulary"));
  EXPECT_THAT(why_json(replace(good_json, "\"a b\"", "\"b a\"")),
              HasSubstr("the token \"ba\" is not in the vocabulary"));
  EXPECT_THAT(why_json(replace(good_json, "\"a b\"", "\"a b c\"")), HasSubstr("merges[0]: must be two tokens"));
  EXPECT_THAT(why_json(replace(good_json, "\"unk_token\":\"?\"", "\"unk_token\":\"!\"")),
              HasSubstr("unk_token: the token \"!\""));
}

TEST(TokenizerJson, BombsAreRefused) {
  std::string deep = "{\"a\":";
  deep += std::string(100'000, '[');
  EXPECT_THAT(why_json(deep), HasSubstr("nested deeper than 64"));
  EXPECT_THAT(why_json(replace(good_json, "\"a\":1", "\"a\":1,\"a\":9")), HasSubstr("twice"));
  EXPECT_THAT(why_json(good_json.substr(0, good_json.size() / 2)), HasSubstr("t.json:"));
  EXPECT_THAT(why_json(replace(good_json, "\"bab\":4", "\"" + std::string(5000, 'x') + "\":4")),
              HasSubstr("has more than 4096 bytes"));
  std::string many = "{\"vocab\":[";
  for (int i = 0; i < 4'300'000; ++i) many += "0,";
  EXPECT_THAT(why_json(many), HasSubstr("too many values"));
}

TEST(TokenizerJson, NestedSequencesAreCounted) {
  std::string steps = R"({"type":"Sequence","normalizers":[)";
  for (int i = 0; i < 200; ++i) steps += R"({"type":"NFC"},)";
  steps.back() = ']';
  EXPECT_THAT(why_json(replace(good_json, R"({"type":"Lowercase"})", steps + "}")), HasSubstr("more than 64 steps"));
}

// ---- SentencePiece

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
std::string field(uint32_t number, const std::string& bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string number(uint32_t field_number, uint64_t value) { return varint(field_number << 3) + varint(value); }
std::string piece(const std::string& text, float score, int type = 1) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &score, 4);
  return field(1, field(1, text) + varint(2 << 3 | 5) + bytes + number(3, static_cast<uint64_t>(type)));
}
std::string good_model(const std::string& charsmap = {}) {
  const std::string normalizer = charsmap.empty() ? number(3, 1) : field(2, charsmap) + number(3, 1);
  return piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3) + piece("\xE2\x96\x81", -1) + piece("a", -2) +
         piece(
             "\xE2\x96\x81"
             "a",
             -3) +
         field(2, number(3, 2)) + field(3, normalizer);
}
std::string why_model(const std::string& bytes) {
  return refusal([&] { read_sentencepiece_model(bytes, "t.model"); });
}

TEST(SentencePiece, TheTwinIsRead) {
  const Folder folder;
  const auto tokenizer = load_tokenizer(folder.write("tokenizer.model", good_model()));
  std::vector<int32_t> ids;
  tokenizer->encode("a aab", ids);
  EXPECT_THAT(ids, ElementsAre(5, 5, 4, 0));
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->kind(), "sentencepiece bpe");
}

TEST(SentencePiece, PiecesAreBounded) {
  EXPECT_THAT(why_model(good_model() + piece(std::string(100'000, 'x'), 0)),
              HasSubstr("piece 6 has more than 4096 bytes"));
  EXPECT_THAT(why_model(good_model() + piece("", 0)), HasSubstr("piece 6 is empty"));
  EXPECT_THAT(why_model(good_model() + piece("\xFF", 0)), HasSubstr("piece 6 is not UTF-8"));
  EXPECT_THAT(why_model(good_model() + piece("x", std::numeric_limits<float>::quiet_NaN())),
              HasSubstr("a score that is not a number"));
  EXPECT_THAT(why_model(good_model() + piece("x", 0, 9)), HasSubstr("type 9"));
  EXPECT_THAT(why_model(good_model() + piece("a", 0)), HasSubstr("is repeated"));
  EXPECT_THAT(why_model(good_model() + piece("<0x41>", 0, 6)), HasSubstr("the model has no byte_fallback"));
  EXPECT_THAT(why_model(good_model() + piece("<unk2>", 0, 2)), HasSubstr("a second unknown piece"));
  EXPECT_THAT(why_model(piece("a", 0)), HasSubstr("no unknown piece"));
}

TEST(SentencePiece, CutOffOrNoModel) {
  const std::string good = good_model();
  // Shorter than the first pieces of any model.
  for (size_t length = 0; length < 55; ++length) {
    EXPECT_THAT(why_model(good.substr(0, length)), HasSubstr("t.model: ")) << length;
  }
  EXPECT_THAT(why_model(good.substr(0, good.size() - 1)), HasSubstr("not a SentencePiece model, or cut off"));
  EXPECT_THAT(why_model("hello, this is no model"), HasSubstr("t.model: "));
  EXPECT_THAT(why_model(std::string(200, '\xFF')), HasSubstr("t.model: "));
}

std::string word(uint32_t value) {
  std::string bytes(4, '\0');
  for (size_t i = 0; i < 4; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

TEST(SentencePiece, TheTrieOfRulesStaysInside) {
  // One rule, "b" to "a": the root's children are at 0 ^ 0x100 ^ byte; the child of "b" has its value beside it.
  std::vector<uint32_t> units(0x200, 0);
  units[0] = 0x100u << 10;
  units[0x100 ^ 'b'] = 'b' | 1u << 8 | 1u << 10;
  units[(0x100 ^ 'b') ^ 1] = 0x80000000u;
  const auto blob = [&](const std::vector<uint32_t>& trie, const std::string& replacements) {
    std::string bytes = word(static_cast<uint32_t>(trie.size() * 4));
    for (const uint32_t unit : trie) bytes += word(unit);
    return bytes + replacements;
  };
  const std::string good = blob(units, std::string("a\0", 2));
  const Folder folder;
  const auto tokenizer = load_tokenizer(folder.write("tokenizer.model", good_model(good)));
  std::vector<int32_t> ids;
  tokenizer->encode("b", ids);
  EXPECT_THAT(ids, ElementsAre(5));

  const auto why = [&](const std::string& map) { return why_model(good_model(map)); };
  std::vector<uint32_t> bad = units;
  bad[0] = 0x1FFFFFu << 10;
  EXPECT_THAT(why(blob(bad, std::string("a\0", 2))), HasSubstr("unit 0 of the trie points outside"));
  bad = units;
  bad[0x100 ^ 'b'] = 'b' | 1u << 8 | 0x1FFFFu << 10;
  EXPECT_THAT(why(blob(bad, std::string("a\0", 2))), HasSubstr("points outside"));
  bad = units;
  bad[(0x100 ^ 'b') ^ 1] = 0x80000000u | 77u;
  EXPECT_THAT(why(blob(bad, std::string("a\0", 2))), HasSubstr("points to replacement 77 of 2"));
  EXPECT_THAT(why(blob(units, "a")), HasSubstr("its last replacement has no end"));
  EXPECT_THAT(why(blob(units, std::string("\xFF\0", 2))), HasSubstr("not UTF-8"));
  EXPECT_THAT(why(word(1u << 30) + good.substr(4)), HasSubstr("a trie of 1073741824 bytes"));
  EXPECT_THAT(why("abc"), HasSubstr("too short"));
}

TEST(SentencePiece, OtherKindsAreRefused) {
  EXPECT_THAT(why_model(good_model() + field(2, number(3, 3))), HasSubstr("models of type word"));
  EXPECT_THAT(why_model(good_model() + field(5, field(2, "x"))), HasSubstr("denormalizer_spec"));
}

// ---- other files

TEST(Tiktoken, BrokenFilesNameTheLine) {
  const Folder folder;
  const auto why = [&](const std::string& text) {
    return refusal([&] { load_tokenizer(folder.write("tokenizer.model", text)); });
  };
  EXPECT_THAT(why("IQ== 0\nIg= 1\n"), HasSubstr("tokenizer.model:2: must be the bytes of a token in base64"));
  EXPECT_THAT(why("IQ== 0\nIg== x\n"), HasSubstr(":2: the rank"));
  EXPECT_THAT(why("IQ== 0\nIg== 99999999\n"), HasSubstr(":2: the rank"));
  EXPECT_THAT(why("IQ== 0\nIQ== 1\n"), HasSubstr(":2: the token or the rank is repeated"));
  EXPECT_THAT(why("IQ== 0\nIg== 1\n"), HasSubstr("the file has 2 ranks"));
}

TEST(TokenizerFiles, FolderSaysWhichTokensMeanWhat) {
  const Folder folder;
  folder.write("tokenizer.json", good_json);
  folder.write("tokenizer_config.json", R"({"eos_token":{"content":"bab"},"bos_token":"ab"})");
  folder.write("generation_config.json", R"({"pad_token_id":1,"eos_token_id":[2,3]})");
  const auto tokenizer = load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->eos_id(), 4);
  EXPECT_EQ(tokenizer->bos_id(), 3);
  EXPECT_EQ(tokenizer->pad_id(), 1);
  EXPECT_EQ(load_tokenizer(folder.path(), "a")->eos_id(), 1);
  EXPECT_THAT(refusal([&] { load_tokenizer(folder.path(), "zzz"); }), HasSubstr("\"zzz\" is not in the vocabulary"));
  folder.write("tokenizer_config.json", R"({"eos_token":"none such"})");
  EXPECT_EQ(load_tokenizer(folder.path())->eos_id(), 6);  // a new one, as in Transformers
}

TEST(TokenizerFiles, MissingOnes) {
  const Folder folder;
  EXPECT_THAT(refusal([&] { load_tokenizer(folder.path()); }, ExitCode::missing_input),
              HasSubstr("has no tokenizer.json"));
  EXPECT_THAT(refusal([&] { load_tokenizer(folder.path() + "/x.json"); }, ExitCode::missing_input),
              HasSubstr("x.json"));
  folder.write("vocab.json", "{\"a\":0}");
  EXPECT_THAT(refusal([&] { load_tokenizer(folder.path()); }, ExitCode::missing_input), HasSubstr("merges.txt"));
}

/// GPT-2's files with a token for every byte, and one merge.
void write_gpt2_files(const Folder& folder) {
  nlohmann::json vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary[to_byte_level(std::string(1, static_cast<char>(byte)))] = byte;
  vocabulary["ab"] = 256;
  vocabulary["<s>"] = 257;
  folder.write("vocab.json", vocabulary.dump());
  folder.write("merges.txt", "#version: 0.2\na b\n");
}

// Ids as Transformers 5.23 gives them for the same files.
TEST(TokenizerFiles, TokensAddedBesideAVocabulary) {
  const Folder folder;
  write_gpt2_files(folder);
  const auto encode = [&](const std::string& text) {
    std::vector<int32_t> ids;
    load_tokenizer(folder.path(), "ab")->encode(text, ids);
    return ids;
  };
  EXPECT_EQ(encode("ab <p>").size(), 5U);  // the control: they are text
  folder.write("added_tokens.json", R"({"<p>":258})");
  EXPECT_THAT(encode("ab <p>"), ElementsAre(256, ' ', 258));
  folder.write("tokenizer_config.json",
               R"({"tokenizer_class":"GPT2Tokenizer","bos_token":"<s>","pad_token":"<pad>","added_tokens_decoder":{
                   "258":{"content":"<pad>","special":true,"lstrip":true},
                   "259":{"content":"frob","special":false,"single_word":true}}})");
  EXPECT_THAT(encode("ab  <pad>frobs frob<s>"), ElementsAre(256, 258, 'f', 'r', 'o', 'b', 's', ' ', 259, 257));
  EXPECT_EQ(load_tokenizer(folder.path(), "ab")->pad_id(), 258);

  // Transformers assigns the ids itself; a warning reports that the file has another.
  folder.write("tokenizer_config.json", R"({"added_tokens_decoder":{"7":{"content":"<p>"}}})");
  EXPECT_THAT(encode("ab<p>"), ElementsAre(256, 258));
  EXPECT_THAT(load_tokenizer(folder.path(), "ab")->warnings(),
              ElementsAre(HasSubstr("added_tokens_decoder: the token \"<p>\" has the id 7 in the file, but gets 258")));
  folder.write("tokenizer_config.json", R"({"added_tokens_decoder":{"x":{"content":"ab"}}})");
  EXPECT_THAT(refusal([&] { load_tokenizer(folder.path(), "ab"); }), HasSubstr("the key must be the id of a token"));

  // Qwen2 splits text otherwise, and only the type of the model tells.
  folder.write("tokenizer_config.json", "{}");
  folder.write("config.json", R"({"model_type":"gpt2"})");
  EXPECT_THAT(encode("ab"), ElementsAre(256));
  folder.write("config.json", R"({"model_type":"qwen2"})");
  EXPECT_THAT(refusal([&] { load_tokenizer(folder.path(), "ab"); }), HasSubstr("has a Qwen2Tokenizer"));
}

// As in the tokenizers package: the first takes the white space of the second, which is then nothing.
TEST(TokenizerFiles, AnAddedTokenOfWhiteSpaceTakesAllOfIt) {
  const Folder folder;
  write_gpt2_files(folder);
  const auto encode = [&](const char* strips) {
    folder.write("tokenizer_config.json",
                 std::string(R"({"added_tokens_decoder":{"258":{"content":"  ",)") + strips + R"("special":false}}})");
    std::vector<int32_t> ids;
    load_tokenizer(folder.path(), "ab")->encode("a    b", ids);
    return ids;
  };
  EXPECT_THAT(encode(R"("lstrip":true,"rstrip":true,)"), ElementsAre('a', 258, 'b'));
  EXPECT_THAT(encode(""), ElementsAre('a', 258, 258, 'b'));
}

TEST(TokenizerFiles, AVocabularyOfAnotherSplitIsNotTakenForGpt2s) {
  const Folder folder;
  write_gpt2_files(folder);
  folder.write("tokenizer_config.json", R"({"tokenizer_class":"GPT2TokenizerFast"})");
  load_tokenizer(folder.path(), "ab");
  folder.write("tokenizer_config.json", R"({"tokenizer_class":"Qwen2Tokenizer"})");
  EXPECT_THAT(refusal([&] { load_tokenizer(folder.path(), "ab"); }), HasSubstr("'Qwen2Tokenizer': vocab.json"));
}

TEST(TokenizerFiles, WithoutEosSaysHowToNameOne) {
  const Folder folder;
  std::string json = good_json;
  while (json.find("</s>") != std::string::npos) json = replace(json, "</s>", "<zz>");
  const auto tokenizer = load_tokenizer(folder.write("tokenizer.json", json));
  EXPECT_EQ(tokenizer->eos_id(), -1);
  EXPECT_THAT(refusal([&] { require_eos(*tokenizer, "F"); }), HasSubstr("data.eos_token"));
}

TEST(TokenizerFiles, SavedFilesAreTheSame) {
  const Folder from, to;
  from.write("tokenizer.json", good_json);
  const auto tokenizer = make_tokenizer_from(load_tokenizer(from.path())->serialized());
  save_tokenizer(*tokenizer, to.path());
  std::ifstream stream(to.path() + "/tokenizer.json");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(stream), {}), good_json);
  EXPECT_EQ(load_tokenizer(to.path())->eos_id(), 5);
}

TEST(TokenizerFiles, AStoredOneNamesNoFilesOfOtherPlaces) {  // saved, they would be written there
  const Folder from;
  from.write("tokenizer.json", good_json);
  const auto stored = nlohmann::ordered_json::parse(load_tokenizer(from.path())->serialized());
  const auto with_file = [&](const std::string& name) {
    nlohmann::ordered_json changed = stored;
    changed["files"].push_back({{"name", name}, {"base64", "e30="}});
    return make_tokenizer_from(changed.dump());
  };
  for (const std::string name : {"../evil", "/tmp/evil", "folder/tokenizer_config.json", "..", "", "a\nb"}) {
    EXPECT_THAT(refusal([&] { with_file(name); }), HasSubstr("is not the name of a file in this folder")) << name;
  }
  for (const std::string name : {"model.safetensors", "tokenizer.json", "evil.py"}) {
    EXPECT_THAT(refusal([&] { with_file(name); }), HasSubstr("is not a tokenizer's file")) << name;
  }
  EXPECT_EQ(with_file("special_tokens_map.json")->files().size(), 2u);  // the twin
}

TEST(Base64, RoundTripAndRefusals) {
  for (const std::string text : {"", "a", "ab", "abc", "abcd", "\xFF\x00\x80"}) {
    std::string back;
    EXPECT_TRUE(from_base64(to_base64(text), back));
    EXPECT_EQ(back, text);
  }
  std::string bytes;
  for (const char* bad : {"a", "ab", "abc", "ab=c", "====", "a===", "ab c"})
    EXPECT_FALSE(from_base64(bad, bytes)) << bad;
}

}  // namespace
}  // namespace llmtrain
