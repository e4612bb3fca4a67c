// Hostile tokenizer files in whole programs: each is refused with the reason and the exit code of bad content or
// missing input, in bounded memory; its valid twin is accepted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "decks/program.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr int64_t max_bytes = int64_t{256} << 20;

/// Peak memory over all child processes so far; sanitizers need memory of their own. The peak of this process counts
/// too, since the kernel passes it on to a child's first program: so large files are written piece by piece.
bool memory_is_bounded() {
  if (std::string_view(LLMTRAIN_SANITIZED) == "yes") return true;
  struct rusage usage {};
  getrusage(RUSAGE_CHILDREN, &usage);
  return usage.ru_maxrss * 1024 < max_bytes;
}

class HostileTokenizer : public testing::Test {
 protected:
  HostileTokenizer() {
    write_file(folder_ / "text.txt", "hello world");
    write_file(
        folder_ / "deck.ini",
        "[run]\nmax_steps = 1\n[model]\nd_model = 8\nn_layers = 1\nn_heads = 1\n[data]\neos_token = </s>\ntrain = " +
            path("text.txt") + "\n[batch]\nsequence_length = 4\n");
    good_ = json::parse(read_file(source_folder() / "tests/reference/tokenizers/synthetic/gpt2.json"));
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string file(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    write_file(folder_ / name, bytes);
    return path(name);
  }
  /// `begin`, then `piece` repeated `times` times, then `end`.
  std::string large_file(const std::string& name, const std::string& begin, const std::string& piece, int64_t times,
                         const std::string& end) const {
    std::ofstream out(folder_ / name, std::ios::binary);
    out << begin;
    for (int64_t i = 0; i < times; ++i) out << piece;
    out << end;
    return path(name);
  }
  /// The valid tokenizer with a change.
  template <class Change>
  std::string changed(const Change& change) const {
    json all = good_;
    change(all);
    return file("changed.json", all.dump());
  }
  std::vector<Outcome> programs(const std::string& tokenizer) const {
    return {llmtool({"tokenizer", "info", "--tokenizer", tokenizer}),
            llmtool({"tokenizer", "encode", "--tokenizer", tokenizer, "--input", path("text.txt"), "--ids"}),
            llmtrain({.arguments = {path("deck.ini"), "--check", "data.tokenizer=" + tokenizer}})};
  }
  void refused(int code, const std::string& tokenizer, const std::string& why) const {
    for (const Outcome& outcome : programs(tokenizer)) {
      EXPECT_EQ(outcome.exit_code, code) << tokenizer << ": " << outcome.output;
      EXPECT_THAT(outcome.output, HasSubstr(why)) << tokenizer;
    }
    EXPECT_TRUE(memory_is_bounded()) << why;
  }
  void taken(const std::string& tokenizer) const {
    for (const Outcome& outcome : programs(tokenizer)) EXPECT_EQ(outcome.exit_code, 0) << tokenizer << outcome.output;
  }

  TemporaryFolder folder_;
  json good_;
};

TEST_F(HostileTokenizer, IdsThatAreNone) {
  taken(changed([](json& all) { all["model"]["vocab"]["zzz"] = all["model"]["vocab"].size(); }));
  for (const json& id : {json(-1), json(int64_t{1} << 31), json(1e21), json(1.5), json("7")}) {
    refused(65, changed([&](json& all) { all["model"]["vocab"]["zzz"] = id; }),
            "changed.json.model.vocab: the token \"zzz\" must have an id from 0 to ");
  }
  refused(65, changed([](json& all) { all["model"]["vocab"]["zzz"] = 3; }), "the token \"zzz\" has the id 3, as ");
  const auto added = [](const json& id, const char* token) {
    return [id, token](json& all) {
      all["added_tokens"].push_back({{"id", id}, {"content", token}, {"special", true}});
    };
  };
  refused(65, changed(added(-5, "<q>")), "added_tokens[2].id: must be an integer from 0 to 2147483646");
  refused(65, changed(added(int64_t{1} << 31, "<q>")), "added_tokens[2].id: must be an integer from 0 to 2147483646");
  refused(65, changed(added(0, "<s>")), "added_tokens[2]: the token is added twice");
}

TEST_F(HostileTokenizer, BombsOfTextAndDepth) {
  const std::string good = good_.dump();
  taken(file("good.json", good));
  std::string deep;
  for (int i = 0; i < 1 << 20; ++i) deep += "[";
  refused(65, file("deep.json", "{\"model\":" + deep),
          "deep.json:1: byte 73: the document is nested deeper than 64 levels");
  const std::string kilobyte(1024, 'q');
  const auto bloated = [&](const std::string& list, const std::string& begin, const std::string& piece, int64_t times,
                           const std::string& end) {
    const size_t place = good.find(list) + list.size();
    return large_file("large.json", good.substr(0, place) + begin, piece, times, end + good.substr(place));
  };
  const std::string merges = R"("merges":[)", vocabulary = R"("vocab":{)";
  taken(bloated(vocabulary, "\"", kilobyte, 4, "\":420,"));
  refused(65, bloated(vocabulary, "\"", kilobyte, 40 << 10, "\":420,"), "has more than 4096 bytes");
  refused(65, bloated(merges, "", R"(["a","b"],)", 3 << 20, ""), "the document has too many values");
  refused(65, bloated(merges, "\"", kilobyte, 20 << 10, " b\","), "is not in the vocabulary");
  refused(65, large_file("long.json", "", std::string(1024, ' '), 49 << 10, ""),
          "51380224 bytes, and at most 50331648 are allowed");
  refused(65, changed([](json& all) {
            all["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(a+)+$\\X"}}}, {"behavior", "Isolated"}};
          }),
          "\\X");
}

TEST_F(HostileTokenizer, BytesThatAreNoTokenizer) {
  const std::string good = good_.dump();
  refused(65, file("cut.json", good.substr(0, good.size() / 2)), "not valid JSON");
  std::string broken = good;
  broken.replace(broken.find("\"!\""), 3, "\"\xFF\"");
  refused(65, file("latin.json", broken), "latin.json:1: byte 2597: not valid JSON");
  refused(65, file("nul.json", good + std::string(1, '\0')), "a NUL");
  refused(65, file("empty.json", ""), "empty.json: the file is empty");
  refused(65, file("list.json", "[]"), "list.json: must be an object");
  refused(65, file("twice.json", "{\"model\":{},\"model\":{}}"), "the key 'model' appears twice in one object");
  refused(65, file("pieces/tokenizer.model", std::string("\x0A\xFF\xFF\xFF\xFF\x0F", 6)), "not a SentencePiece model");
  refused(65, file("ranks/tokenizer.model", "IQ== 0\nIg== 0\n"),
          "tokenizer.model:2: the token or the rank is repeated");
  refused(65, file("none.h5", "no file of HDF5"), "none.h5: not a usable token file");
}

TEST_F(HostileTokenizer, FilesThatAreMissingOrNone) {
  refused(66, path("nowhere/tokenizer.json"), "nowhere/tokenizer.json: cannot read it");
  std::filesystem::create_directories(folder_ / "empty");
  refused(66, path("empty"), "the folder has no tokenizer.json, tokenizer.model, or vocab.json and merges.txt");
  std::filesystem::create_directories(folder_ / "folder/tokenizer.json");
  refused(66, path("folder/tokenizer.json"), "the folder has no tokenizer.json");
  std::filesystem::create_symlink("loop.json", folder_ / "loop.json");
  refused(66, path("loop.json"), "loop.json: cannot read it");
  ASSERT_EQ(mkfifo(path("pipe.json").c_str(), 0600), 0);
  refused(66, path("pipe.json"), "pipe.json: not a file");
  const std::string vocabulary = good_["model"]["vocab"].dump();
  file("gpt2/vocab.json", vocabulary);
  refused(66, path("gpt2"), "gpt2/merges.txt: cannot read it");
  file("gpt2/merges.txt", "a\n");
  refused(65, path("gpt2"), "gpt2/merges.txt:1: must be two tokens with a space between them");
  file("gpt2/merges.txt", "h e\n");
  taken(path("gpt2"));
}

TEST_F(HostileTokenizer, FilesBesideATokenizer) {
  const auto beside = [&](const std::string& name, const std::string& bytes) {
    std::filesystem::remove_all(folder_ / "model");
    file("model/tokenizer.json", good_.dump());
    file("model/" + name, bytes);
    return path("model");
  };
  taken(beside("tokenizer_config.json", R"({"eos_token":"</s>"})"));
  taken(beside("tokenizer_config.json", R"({"eos_token":"none"})"));  // it gets the next id
  refused(65, beside("tokenizer_config.json", R"({"eos_token":)"), "tokenizer_config.json:1: byte 13: not valid JSON");
  refused(65, beside("tokenizer_config.json", "[1]"), "tokenizer_config.json: must be an object");
  refused(65, beside("tokenizer_config.json", std::string(2 << 20, ' ')), "at most 1048576 are allowed");
  refused(65, beside("config.json", R"({"eos_token_id":999999999999})"),
          "config.json.eos_token_id: must be an integer");
  refused(65, beside("config.json", R"({"eos_token_id":[[]]})"), "config.json.eos_token_id[0]: must be an integer");
}

TEST_F(HostileTokenizer, EndsARunOnEveryRank) {
  const std::string bad = changed([](json& all) { all["model"]["vocab"]["zzz"] = -1; });
  const Outcome outcome =
      llmtrain({.ranks = 2, .arguments = {path("deck.ini"), "run.output=" + path("runs"), "data.tokenizer=" + bad}});
  EXPECT_EQ(outcome.exit_code, 65) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("the token \"zzz\" must have an id from 0 to "));
}

}  // namespace
}  // namespace llmtrain::test
