// Tokenizer folders against Transformers' AutoTokenizer (tests/reference/tokenizers/make_folder_goldens.py), and
// regexes without native code against Oniguruma in the tokenizers package (make_regex_goldens.py).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "harness/temporary_folder.hpp"
#include "text/load_tokenizer.hpp"
#include "text/pipeline/pre_tokenizer.hpp"
#include "text/text_stream.hpp"

namespace llmtrain {
namespace {

using testing::HasSubstr;

const std::string goldens = "tests/reference/tokenizers/";

std::string read(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

/// Files of the shared data have a folder in their name; empty without them.
std::string read_base(const std::string& base) {
  if (base.find('/') == std::string::npos) return read(goldens + "synthetic/" + base);
  const char* data = std::getenv("LLMTRAIN_DATA");
  return data == nullptr ? "" : read(data + ("/" + base));
}

std::string join(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

enum class Control {
  bare,  ///< the main file without the others beside it
  file,  ///< the main file, named by itself
};

/// Returns the number of texts that the control cuts otherwise.
int compare(const nlohmann::ordered_json& one, const nlohmann::ordered_json& texts, Control kind) {
  int different = 0;
  const test::TemporaryFolder folder;
  const std::string base = one["base"];
  std::string main = read_base(base);
  if (!one["patch"].empty()) {
    auto json = nlohmann::ordered_json::parse(main);
    json.update(one["patch"]);
    main = json.dump();
  }
  const std::string main_path = folder.text() + (base.ends_with(".json") ? "/tokenizer.json" : "/tokenizer.model");
  write(main_path, main);
  auto control = kind == Control::bare ? load_tokenizer(folder.text()) : nullptr;
  for (const auto& [file, content] : one["files"].items()) write(folder.text() + "/" + file, content.dump());
  const auto tokenizer = load_tokenizer(folder.text());
  const auto stored = make_tokenizer_from(tokenizer->serialized());
  if (!control) control = load_tokenizer(main_path);
  EXPECT_EQ(tokenizer->vocabulary_size(), one["size"].get<int64_t>());
  for (const auto& [key, id] :
       {std::pair{"eos", tokenizer->eos_id()}, {"bos", tokenizer->bos_id()}, {"pad", tokenizer->pad_id()}}) {
    EXPECT_EQ(id, one[key].is_null() ? id : one[key].get<int32_t>()) << key;
  }
  for (size_t i = 0; i < one["ids"].size(); ++i) {
    if (one["ids"][i].is_null()) continue;
    const std::string text = texts[i];
    SCOPED_TRACE(texts[i].dump());
    const std::vector<int32_t> ids = encode(*tokenizer, text);
    EXPECT_EQ(ids, one["ids"][i].get<std::vector<int32_t>>());
    EXPECT_EQ(encode(*stored, text), ids);
    std::vector<int32_t> streamed;
    EncodeStream stream(*tokenizer, 7);
    for (size_t at = 0; at < text.size(); at += 3) stream.add(std::string_view(text).substr(at, 3), streamed);
    stream.finish(streamed);
    EXPECT_EQ(streamed, ids);
    different += encode(*control, text) != ids ? 1 : 0;
  }
  if (base.ends_with(".json")) {
    for (const auto* some : {tokenizer.get(), stored.get()}) {
      std::vector<int32_t> special = encode(*some, "the cat");
      some->add_special_tokens(special, nullptr);
      EXPECT_EQ(special, one["special"].get<std::vector<int32_t>>());
    }
  }
  return different;
}

TEST(TokenizerFolder, IsReadAsAutoTokenizerReadsIt) {
  const auto document = nlohmann::ordered_json::parse(read(goldens + "folder_goldens.json"));  // keys in order
  int changed = 0;                                                                             // the control
  for (const auto& [name, one] : document["folders"].items()) {
    SCOPED_TRACE(name);
    changed += compare(one, document["texts"], Control::bare);
  }
  EXPECT_GT(changed, 200);
}

/// The control: the steps of the file, which is named by itself, cut some texts otherwise where the class has its own.
TEST(TokenizerFolder, HasTheStepsOfItsClass) {
  const auto document = nlohmann::ordered_json::parse(read(goldens + "class_goldens.json"));
  for (const auto& [name, one] : document["folders"].items()) {
    SCOPED_TRACE(name);
    if (read_base(one["base"]).empty()) continue;
    const bool own = one["class"] != "TokenizersBackend";
    const bool alike = name.starts_with("real_gpt2") && one["class"] == "GPT2Tokenizer";
    EXPECT_EQ(compare(one, document["texts"], Control::file) > 0, own && !alike);
  }
}

std::unique_ptr<Tokenizer> load_class(const test::TemporaryFolder& folder, const std::string& base,
                                      const std::string& config) {
  write(folder.text() + "/tokenizer.json", read_base(base));
  write(folder.text() + "/tokenizer_config.json", config);
  return load_tokenizer(folder.text());
}

/// Transformers guesses no token either.
TEST(TokenizerFolder, HasNoBosWhereItsConfigSaysNull) {
  if (read_base("llama2.json").empty()) GTEST_SKIP() << "there is no llama2.json";
  const test::TemporaryFolder folder;
  const std::string plain = R"("tokenizer_class": "PreTrainedTokenizerFast"})";
  EXPECT_EQ(load_class(folder, "llama2.json", "{" + plain)->bos_id(), 1);
  EXPECT_EQ(load_class(folder, "llama2.json", R"({"bos_token": null, )" + plain)->bos_id(), -1);
}

TEST(TokenizerFolder, SaysWhichStepsAreNotTheFiles) {
  const test::TemporaryFolder folder;
  const auto said = [&](const std::string& base, const std::string& config) {
    return join(load_class(folder, base, config)->warnings());
  };
  EXPECT_THAT(said("llama2.json", R"({"tokenizer_class": "LlamaTokenizerFast"})"),
              HasSubstr("the class LlamaTokenizer determines the flags of the model, normalizer, pre_tokenizer"));
  EXPECT_EQ(said("qwen2_nfc.json", R"({"tokenizer_class": "Qwen2Tokenizer"})"), "");
  EXPECT_EQ(said("gpt2.json", R"({"tokenizer_class": "GPT2Tokenizer"})"), "");
  load_class(folder, "llama2.json", R"({"tokenizer_class": "LlamaTokenizer"})");
  EXPECT_THAT(join(load_tokenizer(folder.text() + "/tokenizer.json")->warnings()),
              HasSubstr("its folder would be read as a LlamaTokenizer"));
}

/// An export has another config.json, which must not decide again.
TEST(TokenizerFolder, IsSavedWithItsClass) {
  const test::TemporaryFolder folder;
  load_class(folder, "gpt2.json", R"({"model_max_length": 8})");
  write(folder.text() + "/config.json", R"({"model_type": "qwen3"})");
  const auto saved = [&](const std::string& path) {
    const test::TemporaryFolder other;
    save_tokenizer(*load_tokenizer(path), other.text());
    EXPECT_EQ(encode(*load_tokenizer(other.text()), "12345 x"), encode(*load_tokenizer(path), "12345 x"));
    const auto config = nlohmann::json::parse(read(other.text() + "/tokenizer_config.json"));
    EXPECT_EQ(config["model_max_length"], 8);
    return config["tokenizer_class"].get<std::string>();
  };
  EXPECT_EQ(saved(folder.text()), "Qwen2Tokenizer");
  EXPECT_EQ(saved(folder.text() + "/tokenizer.json"), "PreTrainedTokenizerFast");
}

TEST(TokenizerFolder, RefusesClassesWhoseStepsItHasNot) {
  const test::TemporaryFolder folder;
  const auto refused = [&](const std::string& base, const std::string& config) -> std::string {
    try {
      load_class(folder, base, config);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_content);
      return error.what();
    }
    return "";
  };
  for (const std::string name : {"XLNetTokenizerFast", "T5Tokenizer", "GPTSw3Tokenizer"}) {
    EXPECT_THAT(
        refused("unigram.json", "{\"tokenizer_class\": \"" + name + "\"}"),
        HasSubstr("tokenizer.json: the tokenizer class " + name.substr(0, name.find("Fast")) + " of this folder"));
  }
  EXPECT_THAT(refused("unigram.json", R"({"tokenizer_class": "LlamaTokenizer"})"),
              HasSubstr("it is a Unigram, but the folder's tokenizer class LlamaTokenizer makes a BPE of it"));
  EXPECT_EQ(refused("unigram.json", R"({"tokenizer_class": "NobodysTokenizer"})"), "");
}

SplitBehavior behavior_of(const std::string& name) {
  constexpr const char* names[] = {"removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"};
  const auto* const found = std::find(std::begin(names), std::end(names), name);
  return static_cast<SplitBehavior>(found - std::begin(names));
}

TEST(AnyRegex, CutsAsOnigurumaDoes) {
  const nlohmann::json document = nlohmann::json::parse(read(goldens + "regex_goldens.json"));
  for (const nlohmann::json& one : document["cases"]) {
    SCOPED_TRACE(one["regex"].dump() + " " + one["behavior"].dump() + one["invert"].dump());
    const auto split = make_regex_split(std::make_unique<Regex>(one["regex"].get<std::string>(), "t"),
                                        behavior_of(one["behavior"]), one["invert"]);
    for (size_t i = 0; i < document["texts"].size(); ++i) {
      const std::string text = document["texts"][i];
      std::vector<size_t> pieces;
      const auto add = [&](const TextView& chunk) {
        const auto begin = static_cast<size_t>(chunk.text.data() - text.data());
        pieces.insert(pieces.end(), {begin, begin + chunk.text.size()});
      };
      split->apply({text, nullptr, true, 0}, TextSink(add));
      EXPECT_EQ(pieces, one["pieces"][i].get<std::vector<size_t>>()) << document["texts"][i].dump();
    }
  }
  for (const nlohmann::json& regex : document["refused"]) {
    EXPECT_THROW(translate_regex(regex.get<std::string>(), "t"), UserError) << regex.dump();
  }
}

TEST(AnyRegex, BytesThatAreNoUtf8AreCharacters) {
  std::vector<size_t> places;
  const Regex regex("[^a]+", "t");
  regex.for_matches(
      "a\xFF\xC3z\xE4\xB8"
      "a\xE4\xB8\xAD",
      [&](size_t begin, size_t end) {
        places.insert(places.end(), {begin, end});
      });
  EXPECT_THAT(places, testing::ElementsAre(1, 6, 7, 10));
}

std::string refusal(const std::string& pattern, const std::string& text) {
  try {
    const Regex regex(pattern, "t.json.pre_tokenizer");
    regex.for_matches(text, [](size_t, size_t) {});
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_content);
    return error.what();
  }
  return "";
}

/// An ordinary pattern is accepted on a long line, and the hostile one terminates.
TEST(AnyRegex, HostilePatternsEnd) {
  const std::string line(1 << 20, 'a');
  EXPECT_EQ(refusal(R"(\p{L}+|\s+(?!\S)|(?:ab)*)", line), "");
  EXPECT_EQ(refusal("(?:a|b)+", line), "");
  EXPECT_THAT(refusal(R"((a+)+\d)", std::string(64, 'a')), HasSubstr(R"(t.json.pre_tokenizer: the regex (a+)+\d)"));
  EXPECT_THAT(refusal("(?:", "a"), HasSubstr("has a ( without )"));
}

}  // namespace
}  // namespace llmtrain
