// The token file does not depend on the number of ranks; an error on one rank ends all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "corpus/stories.hpp"
#include "data/dataset.hpp"
#include "data_files.hpp"
#include "harness/harness.hpp"
#include "harness/mapped_file.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/local_communicator.hpp"
#include "table_files.hpp"

namespace llmtrain {
namespace {

using test::all_tokens;
using test::content_of;
using test::Folder;
using test::refusal;
using testing::AllOf;
using testing::HasSubstr;

class RanksTest : public testing::Test {
 protected:
  RanksTest() : ranks_(test::communicator()) {
    if (ranks_.rank() == 0) folder_ = std::make_unique<Folder>();
    path_ = folder_ ? folder_->path() : std::string();
    ranks_.broadcast(path_);
    config_.validation_fraction = 0;
    batch_.sequence_length = 8;
    batch_.global = 1;
  }
  ~RanksTest() override { ranks_.barrier(); }

  /// Rank 0 writes the file.
  std::string file(const std::string& name, const std::string& content) {
    if (folder_) folder_->file(name, content);
    ranks_.barrier();
    return path_ + "/" + name;
  }
  Dataset open(Communicator& communicator, const std::string& cache) {
    SampleRules config = config_;
    config.cache = path_ + "/" + cache;
    return open_dataset(config, batch_, communicator, [](const std::string&) {});
  }

  Communicator& ranks_;
  std::unique_ptr<Folder> folder_;
  std::string path_;
  SampleRules config_;
  BatchConfig batch_;
};

std::string text_of_documents(const std::string& separator) {
  std::mt19937 random(5);
  const std::vector<std::string> characters = {"a", "b", "\u00e9", "\u20ac", "\U0001F600", "\n"};
  std::string text;
  for (int d = 0; d < 4000; ++d) {
    const size_t size = d == 17 ? 2'500'001 : d == 3000 ? 1'048'577 : random() % 2000;
    const size_t begin = text.size();
    while (text.size() < begin + size) text += characters[random() % characters.size()];
    text += separator;
  }
  return text;
}

TEST_F(RanksTest, TextGivesTheSameFileOnAnyNumberOfRanks) {
  config_.document_separator = "\n\n";
  const std::string separator = "\n\n";
  config_.train = {file("a.txt", text_of_documents(separator)), file("b.txt", "short"),
                   file("c.txt", std::string(3 << 20, 'b'))};
  for (const char* tokenizer : {"char", "bytes"}) {
    config_.tokenizer = tokenizer;
    const Dataset together = open(ranks_, "together");
    throw_on_all_ranks(ranks_, [&] {
      if (ranks_.rank() != 0) return;
      const auto alone = make_local_communicator();
      const Dataset expected = open(*alone, "alone");
      EXPECT_NE(together.train->info().path, expected.train->info().path);
      const std::string bytes = content_of(expected.train->info().path);
      EXPECT_GT(bytes.size(), 8'000'000U);
      EXPECT_TRUE(content_of(together.train->info().path) == bytes);
      EXPECT_TRUE(content_of(together.train->info().path + ".digest") ==
                  content_of(expected.train->info().path + ".digest"));
    });
  }
}

TEST_F(RanksTest, ANodeHasOneCopyOfOffsetsAndTheSameSamplesAsOneProcess) {
  config_.document_separator = "\n\n";
  config_.tokenizer = "bytes";
  config_.validation_fraction = 0.25;
  config_.min_length = 3;
  config_.train = {file("a.txt", "one\n\ntwo two\n\nx\n\nthree three three\n\nfour\n\nfive five\n\nsix six six six")};
  const Dataset together = open(ranks_, "together");
  for (const auto& tokens : {together.train, together.validation}) {
    const std::string mine = test::mapped_file(tokens->documents().data());
    EXPECT_EQ(mine.empty(), ranks_.node_size() == 1);
    for (const std::string& other : ranks_.gather_all(mine)) EXPECT_EQ(other, mine);
  }
  const auto process = make_local_communicator();
  const Dataset alone = open(*process, "together");
  EXPECT_TRUE(std::ranges::equal(together.train->documents(), alone.train->documents()));
  EXPECT_TRUE(std::ranges::equal(together.validation->documents(), alone.validation->documents()));
  using Packing = DataConfig::Packing;
  for (const Packing packing : {Packing::wrap, Packing::none, Packing::best_fit}) {
    SampleRules rules = config_;
    rules.packing = packing;
    const DataStream stream(together.train, rules, batch_, 1, false), expected(alone.train, rules, batch_, 1, false);
    ASSERT_EQ(stream.samples(), expected.samples());
    EXPECT_EQ(stream.max_rows(), expected.max_rows());
    EXPECT_EQ(stream.counts().inputs, expected.counts().inputs);
    HostBatch mine, wanted;
    stream.load(stream.canonical(0, stream.samples()), mine);
    expected.load(expected.canonical(0, stream.samples()), wanted);
    EXPECT_EQ(mine.ids, wanted.ids);
    EXPECT_EQ(mine.targets, wanted.targets);
  }
}

TEST_F(RanksTest, ConversationsGiveTheSameFileOnAnyNumberOfRanks) {
  std::mt19937 random(9);
  std::string rows, more;
  const auto words = [&](size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += "word" + std::to_string(random() % 50) + " ";
    return text;
  };
  for (int r = 0; r < 6000; ++r) {
    rows += R"({"instruction": ")" + words(random() % 60) + R"(x", "output": ")" + words(random() % 3) + "\"}\n";
  }
  for (int r = 0; r < 50; ++r) {
    more += random() % 2 == 0 ? R"({"prompt": "", "completion": ""})" : R"({"prompt": "q", "completion": "a"})";
    more += "\n";
  }
  config_.instructions = true;
  config_.tokenizer = "bytes";
  config_.packing = DataConfig::Packing::none;
  config_.train = {file("rows.jsonl", rows), file("text.txt", "a text"), file("more.jsonl", more)};
  ChatConfig chat;
  chat.template_name = "chatml";
  const auto open = [&](Communicator& communicator, const std::string& cache) {
    SampleRules config = config_;
    config.cache = path_ + "/" + cache;
    return open_dataset(config, batch_, communicator, [](const std::string&) {},
                        {chat, read_chat_files(chat.template_name, "")});
  };
  const Dataset together = open(ranks_, "together");
  throw_on_all_ranks(ranks_, [&] {
    if (ranks_.rank() != 0) return;
    const auto alone = make_local_communicator();
    const Dataset expected = open(*alone, "alone");
    EXPECT_TRUE(content_of(together.train->info().path) == content_of(expected.train->info().path));
    const RowCounts& counts = together.train->info().rows;
    EXPECT_EQ(counts.used + counts.untrained, 6050);
    EXPECT_GT(counts.untrained, 10);
    EXPECT_GT(counts.duplicates, 10);
    EXPECT_EQ(counts.duplicates, expected.train->info().rows.duplicates);
  });
  config_.train = {file("wrong.jsonl", rows + "{\"instruction\": \"q\"}\n" + rows)};
  EXPECT_THAT(refusal([&] { open(ranks_, "wrong"); }), HasSubstr("wrong.jsonl:6001: there is no column 'output'"));
}

/// Ranks share the row groups of tables, and cut texts by their numbers in the file.
TEST_F(RanksTest, TablesAndCutTextsGiveTheSameFilesOnAnyNumberOfRanks) {
  config_.tokenizer = "tests/reference/tokenizers/synthetic/gpt2.json";
  config_.eos_token = "</s>";
  config_.add_tokens = {"<fim_prefix>", "<fim_middle>", "<fim_suffix>"};
  config_.fim_rate = 0.5;
  std::string rows;
  for (int r = 0; r < 60'000; ++r) rows += "{\"text\": \"the light of row " + std::to_string(r) + "\"}\n";
  config_.train = {test::table_folder + "fields_commas.csv", file("rows.jsonl", rows)};
  if (test::has_arrow()) {
    for (const char* name : {"text_gzip.parquet", "text_snappy.parquet", "text_file.arrow"}) {
      config_.train.push_back(test::table_folder + name);
    }
  }
  const Dataset together = open(ranks_, "together");
  throw_on_all_ranks(ranks_, [&] {
    if (ranks_.rank() != 0) return;
    const auto alone = make_local_communicator();
    const Dataset expected = open(*alone, "alone");
    EXPECT_TRUE(content_of(together.train->info().path) == content_of(expected.train->info().path));
    int tables = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_ + "/alone")) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("unpacked-")) continue;
      ++tables;
      EXPECT_EQ(content_of(path_ + "/together/" + name), content_of(entry.path().string())) << name;
    }
    EXPECT_EQ(tables, test::has_arrow() ? 8 : 2) << "with their digests";
  });
}

TEST_F(RanksTest, PromptsAndTheirRowsAreTheSameOnAnyNumberOfRanks) {
  std::string rows;
  for (int r = 0; r < 20'000; ++r) {
    rows += "{\"prompt\": \"p" + std::string(static_cast<size_t>(r * 7919 % 400), 'x') +
            "\", \"answer\": " + std::to_string(r * r) + "}\n";
  }
  config_.instructions = true;
  config_.use = DataUse::prompts;
  config_.tokenizer = "bytes";
  config_.packing = DataConfig::Packing::none;
  config_.train = {file("rows.jsonl", rows), file("more.jsonl", "{\"messages\": \"m\", \"prompt\": \"q\"}\n")};
  const Dataset together = open(ranks_, "together");
  const auto row = [&](int64_t d) { return StoredRow::parse(together.train->row_text(d)); };
  EXPECT_EQ(row(19'999).columns, "{\"answer\":399960001}");
  EXPECT_EQ(row(19'999).offset, static_cast<int64_t>(rows.rfind("{\"prompt\"")));
  EXPECT_EQ(row(20'000).columns, "{}") << "messages are a column of the prompt";
  throw_on_all_ranks(ranks_, [&] {
    if (ranks_.rank() != 0) return;
    const auto alone = make_local_communicator();
    const Dataset expected = open(*alone, "alone");
    const std::string bytes = content_of(expected.train->info().path);
    EXPECT_GT(bytes.size(), 4'000'000U) << "several pieces of a file";
    EXPECT_TRUE(content_of(together.train->info().path) == bytes);
  });
}

TEST_F(RanksTest, TheTrainedTokenizerIsTheSameOnAnyNumberOfRanks) {
  config_.train = {file("a.txt", stories_text(3, 3'000'000)), file("b.txt", stories_text(4, 20'000))};
  config_.tokenizer = "bpe";
  config_.vocab_size = 600;
  const Dataset together = open(ranks_, "together");
  EXPECT_EQ(together.vocabulary_size, 600);
  throw_on_all_ranks(ranks_, [&] {
    if (ranks_.rank() != 0) return;
    const auto alone = make_local_communicator();
    const Dataset expected = open(*alone, "alone");
    EXPECT_EQ(together.tokenizer->serialized(), expected.tokenizer->serialized());
    EXPECT_TRUE(content_of(together.train->info().path) == content_of(expected.train->info().path));
    config_.train.pop_back();
    EXPECT_NE(open(*alone, "alone").tokenizer->serialized(), expected.tokenizer->serialized());
  });
}

/// A cached tokenizer is not trained again; a damaged one is.
TEST_F(RanksTest, TheTrainedTokenizerIsKept) {
  config_.train = {file("a.txt", stories_text(3, 200'000))};
  config_.tokenizer = "bpe";
  config_.vocab_size = 300;
  config_.add_bos = true;
  config_.cache = path_ + "/kept";
  const auto trained = [&] {
    std::string said;
    const Dataset data = open_dataset(config_, batch_, ranks_, [&](const std::string& line) { said += line + "\n"; });
    EXPECT_EQ(data.tokenizer->token(data.tokenizer->eos_id()), "<|endoftext|>");
    EXPECT_EQ(data.tokenizer->token(data.tokenizer->bos_id()), "<|begin_of_text|>");
    ranks_.broadcast(said);
    return said.find("300 tokens") != std::string::npos;
  };
  EXPECT_TRUE(trained());
  EXPECT_FALSE(trained());
  ranks_.barrier();
  if (folder_) {
    for (const auto& entry : std::filesystem::directory_iterator(path_ + "/kept")) {
      if (entry.is_directory()) std::ofstream(entry.path() / "tokenizer.json", std::ios::app) << " ";
    }
  }
  ranks_.barrier();
  EXPECT_TRUE(trained());
}

/// The first of several errors, whichever rank reads it.
TEST_F(RanksTest, AnIdWithoutARowIsFoundByAllRanks) {
  std::string rows;
  for (int r = 0; r < 600; ++r) {
    rows += R"({"input_ids":[1)";
    for (int i = 1; i < 1000; ++i) rows += (r == 400 || r == 550) && i == 4 ? ",9" : ",2";
    rows += "]}\n";
  }
  config_.train = {file("rows.jsonl", rows)};
  config_.train = {open(ranks_, "cache").train->info().path};
  config_.embedding_rows = 9;
  EXPECT_THAT(refusal([&] { open(ranks_, "other"); }),
              testing::HasSubstr("token 5 of document 401: a token has the id 9"));
  config_.embedding_rows = 10;
  EXPECT_EQ(open(ranks_, "other").vocabulary_size, 10);
}

TEST_F(RanksTest, RowsGiveTheSameFileOnAnyNumberOfRanks) {
  std::mt19937 random(6);
  std::string rows;
  for (int r = 0; r < 30000; ++r) {
    std::string ids, labels;
    for (uint32_t i = random() % 60; i > 0; --i) {
      const std::string id = std::to_string(random() % 60000), comma = ids.empty() ? "" : ",";
      ids += comma + id;
      labels += comma + (random() % 3 == 0 ? "-100" : id);
    }
    rows += "{\"input_ids\":[" + ids + "]" + (r % 2 == 0 && r > 25000 ? ",\"labels\":[" + labels + "]" : "") + "}\n";
  }
  config_.train = {file("a.jsonl", rows), file("b.jsonl", "{\"input_ids\":[7]}\n")};
  const Dataset together = open(ranks_, "together");
  EXPECT_TRUE(together.train->info().has_mask);
  throw_on_all_ranks(ranks_, [&] {
    if (ranks_.rank() != 0) return;
    const auto alone = make_local_communicator();
    const Dataset expected = open(*alone, "alone");
    EXPECT_TRUE(content_of(together.train->info().path) == content_of(expected.train->info().path));
  });
}

TEST_F(RanksTest, TheExampleCorpusIsFoundByAll) {
  config_.train = {builtin_stories};
  config_.validation_fraction = 0.1;
  const Dataset data = open(ranks_, "cache");
  const std::vector<std::string> all =
      ranks_.gather_all(std::to_string(data.train->tokens()) + " " + std::to_string(data.validation->tokens()) +
                        data.tokenizer->serialized());
  for (const std::string& text : all) EXPECT_EQ(text, all.front());
}

TEST_F(RanksTest, AnErrorOnOneRankEndsAll) {
  std::string text(8 << 20, 'x');
  text[(7 << 20) + 12345] = '\xFF';  // a piece of the last rank
  config_.train = {file("a.txt", text)};
  const std::string place = "a.txt:1: byte " + std::to_string((7 << 20) + 12345);
  EXPECT_THAT(refusal([&] { open(ranks_, "cache"); }), AllOf(HasSubstr("65 "), HasSubstr(place)));
  config_.train = {path_ + "/missing.txt"};
  EXPECT_THAT(refusal([&] { open(ranks_, "cache"); }), HasSubstr("66 "));
  std::string rows;
  for (int i = 0; i < 200000; ++i) rows += "{\"input_ids\":[1,2,3,4,5,6,7,8]}\n";
  config_.train = {file("b.jsonl", rows + "{\"input_ids\":[1,2,\n")};
  EXPECT_THAT(refusal([&] { open(ranks_, "cache"); }), AllOf(HasSubstr("65 "), HasSubstr("b.jsonl:200001: ")));
  config_.train = {file("c.txt", "a right one")};
  EXPECT_EQ(open(ranks_, "cache").train->tokens(), 12);
}

TEST_F(RanksTest, SeveralJobsMayFillOneCacheAtOnce) {
  config_.train = {file("a.txt", text_of_documents("\n"))};
  const auto alone = make_local_communicator();
  ranks_.barrier();
  const Dataset mine = open(*alone, "cache");  // every rank is a separate job
  const std::string path = mine.train->info().path;
  ranks_.barrier();
  const std::vector<std::string> paths = ranks_.gather_all(path);
  for (const std::string& other : paths) EXPECT_EQ(other, path);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path_ + "/cache"), {}), 2);
  EXPECT_EQ(all_tokens(*mine.train).size(), static_cast<size_t>(open(ranks_, "cache").train->tokens()));
}

}  // namespace
}  // namespace llmtrain
