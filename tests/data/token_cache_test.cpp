// Sharing of token files in data.cache: runs that may, and runs that must not.

#include <filesystem>
#include <functional>
#include <set>

#include "dataset_fixture.hpp"

namespace llmtrain {
namespace {

using testing::HasSubstr;

class TokenCacheTest : public test::DatasetTest {
 protected:
  TokenCacheTest() {
    std::filesystem::create_directories(folder_ / "one");
    std::filesystem::create_directories(folder_ / "two");
  }
  std::string made() { return open().train->info().path; }
};

TEST_F(TokenCacheTest, AFileIsKeyedByAllThatDeterminesItsTokens) {
  const std::string text = R"({"text": "some words", "other": "and more"})";
  config_.train = {folder_.file("one/a.jsonl", text)};
  const std::string first = made();
  std::set<std::string> paths = {first};
  const auto expect_another = [&](const char* what, const std::function<void(SampleRules&)>& change) {
    const SampleRules kept = config_;
    change(config_);
    EXPECT_TRUE(paths.insert(made()).second) << what;
    EXPECT_TRUE(tokenized()) << what;
    config_ = kept;
  };
  expect_another("column", [](SampleRules& c) { c.text_column = "other"; });
  expect_another("tokenizer", [](SampleRules& c) { c.tokenizer = "bytes"; });
  expect_another("name, which says how a file is read",
                 [&](SampleRules& c) { c.train = {folder_.file("one/a.txt", text)}; });
  expect_another("more files", [&](SampleRules& c) { c.train.push_back(folder_.file("one/b.jsonl", text)); });
  expect_another("order of files", [&](SampleRules& c) {
    c.train = {folder_ / "one/b.jsonl", folder_ / "one/a.jsonl"};
  });
  // Keys that only divide the tokens into samples change nothing.
  config_.packing = DataConfig::Packing::best_fit;
  config_.seed = 7;
  config_.train = {folder_.file("two/a.jsonl", text)};
  EXPECT_EQ(made(), first) << "the same file in another folder";
  EXPECT_FALSE(tokenized());
}

TEST_F(TokenCacheTest, AStoredFileDoesNotHideWhatThisRunRefuses) {
  config_.tokenizer = "bytes";
  config_.train = {folder_.file("one/a.jsonl", R"({"text": "abc"}
{"text": "0123456789"})")};
  config_.packing = DataConfig::Packing::none;
  made();
  config_.overflow = DataConfig::Overflow::error;  // samples have 8 tokens
  EXPECT_THAT(refused(), HasSubstr("a.jsonl:2: "));
  config_.overflow = DataConfig::Overflow::split;
  made();
  EXPECT_FALSE(tokenized()) << "control: the file is still there";
}

}  // namespace
}  // namespace llmtrain
