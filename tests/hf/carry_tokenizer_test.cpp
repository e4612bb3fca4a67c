// Tokenizer files that an export carries: identified by their content, not by the deck's spelling of the folder.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "harness/temporary_folder.hpp"
#include "hf/export.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

void write_folder(const fs::path& folder, const std::string& config) {
  write(folder / "config.json", "{}");
  write(folder / "tokenizer_config.json", config);
  write(folder / "tokenizer.json", R"({"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,
      "post_processor":null,"decoder":null,"model":{"type":"WordLevel","vocab":{"a":0,"b":1},"unk_token":"a"}})");
}

TEST(CarryTokenizer, AnySpellingOfTheModelsFolderCarriesAllOfIt) {
  const test::TemporaryFolder folder;
  const fs::path model = folder / "model";
  write_folder(model, "{}");
  write(model / "chat_template.jinja", "{{ one }}");
  write(model / "additional_chat_templates/tools.jinja", "{{ two }}");
  fs::create_directory_symlink(model, folder / "link");
  ExportOptions options;
  options.texts = model_texts(model.string());
  EXPECT_EQ(options.texts.at("additional_chat_templates/tools.jinja"), "{{ two }}");
  for (const fs::path& path : {model, model / "", model / "tokenizer.json", folder / "link", folder / "link/../model",
                               folder / "link/tokenizer.json"}) {
    const auto tokenizer = load_tokenizer(path.string());
    EXPECT_EQ(carry_tokenizer(options, *tokenizer, path.string()), "");
    EXPECT_FALSE(options.save_tokenizer) << path;
  }
}

TEST(CarryTokenizer, AnotherFolderBringsItsOwnFiles) {
  const test::TemporaryFolder folder;
  write_folder(folder / "model", "{}");
  write_folder(folder / "other", R"({"model_max_length":7})");
  write(folder / "other/added_tokens.json", R"({"<new>":2})");
  write(folder / "other/chat_template.jinja", "{{ other }}");
  ExportOptions options;
  options.texts = model_texts((folder / "model").string());
  const std::string path = (folder / "other/tokenizer.json").string();
  const auto tokenizer = load_tokenizer(path);
  EXPECT_EQ(carry_tokenizer(options, *tokenizer, path), "");
  EXPECT_TRUE(options.save_tokenizer);
  EXPECT_EQ(options.companion_files.at("chat_template.jinja"), "{{ other }}");
  EXPECT_EQ(options.companion_files.count("added_tokens.json"), 1U);
  write(folder / "other/tokenizer_config.json", "{}");  // not the tokenizer's any more
  options.companion_files.clear();
  EXPECT_NE(carry_tokenizer(options, *tokenizer, (folder / "other").string()), "");
  EXPECT_TRUE(options.companion_files.empty());
  const std::string gone = carry_tokenizer(options, *tokenizer, (folder / "gone").string());
  EXPECT_NE(gone.find("gone is gone; only the tokenizer itself was exported"), std::string::npos) << gone;
  EXPECT_NE(gone.find("chat_template.jinja"), std::string::npos) << gone;
  EXPECT_EQ(gone.find("tokenizer.json"), std::string::npos) << gone;  // the export has it
  options.chat.templates["chat_template.jinja"] = "{{ run }}";
  const std::string without = carry_tokenizer(options, *tokenizer, (folder / "gone").string());
  EXPECT_EQ(without.find("chat_template"), std::string::npos) << without;
  EXPECT_NE(without.find("special_tokens_map.json"), std::string::npos) << without;
}

}  // namespace
}  // namespace llmtrain
