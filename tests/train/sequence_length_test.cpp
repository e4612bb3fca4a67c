// batch.sequence_length of evaluate and generate without a word of the deck: the limits of the model's folder, as far
// as they are limits, and within them what fits.
#include "train/config/sequence_length.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "config/run_facts.hpp"
#include "harness/temporary_folder.hpp"
#include "train/config/load_config.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* no_limit = "1000000000000000019884624838656";  // as Transformers writes it

struct SequenceLength : testing::Test {
  /// A model's folder with these limits; the tokenizer's may be any JSON, "": none.
  void write_model(const std::string& positions, const std::string& tokenizer) const {
    std::ofstream(folder / "config.json")
        << R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, )"
        << R"("num_attention_heads": 4, "vocab_size": 321, "max_position_embeddings": )" << positions << "}";
    fs::copy_file("tests/reference/sft/model/tokenizer.json", folder / "tokenizer.json",
                  fs::copy_options::overwrite_existing);
    std::ofstream(folder / "tokenizer_config.json")
        << (tokenizer.empty() ? "{}" : "{\"model_max_length\": " + tokenizer + "}");
  }
  Config load(const std::string& task, const std::vector<std::string>& arguments = {},
              DeckFiles files = DeckFiles::trust) const {
    const std::string data =
        task == "generate" ? "[generate]\nprompts = p.txt\nmax_new_tokens = 20\n" : "[data]\nvalidation = v.txt\n";
    return load_config("[run]\ntask = " + task + "\n[model]\npath = " + folder.text() + "\n" + data, "deck.ini",
                       arguments, files);
  }
  std::string error_of(const std::string& task, const std::vector<std::string>& arguments = {}) const {
    try {
      load(task, arguments);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  }

  test::TemporaryFolder folder;
};

TEST_F(SequenceLength, IsTheModelsLimit) {
  struct Case {
    std::string positions, tokenizer;
    int64_t evaluate, generate;
    std::string source;
  };
  for (const Case& one :
       {Case{"512", no_limit, 512, 512, "(config.json)"}, Case{"512", "256", 256, 256, "(tokenizer_c"},
        Case{"512", "1024", 512, 512, "(config.json)"}, Case{"512", "1e30", 512, 512, "(config.json)"},
        Case{"512", "-1", 512, 512, "(config.json)"}, Case{"512", "\"x\"", 512, 512, "(config.json)"},
        Case{"512", "", 512, 512, "(config.json)"}, Case{"512", "0.5", 512, 512, "(config.json)"},
        Case{"131072", no_limit, 4096, 131072, "131072 (config.json)"},
        Case{"131072", "131072", 4096, 131072, "131072 (config.json)"},
        Case{no_limit, "131072", 4096, 131072, "131072 (tokenizer_config.json)"},
        Case{"1e30", no_limit, 4096, 1 << 24, "16777216 (config.json)"}}) {
    SCOPED_TRACE(one.positions + " " + one.tokenizer);
    write_model(one.positions, one.tokenizer);
    for (const char* task : {"evaluate", "generate"}) {
      const Config config = load(task);
      EXPECT_EQ(config.batch.sequence_length, *task == 'e' ? one.evaluate : one.generate);
      EXPECT_TRUE(chooses_sequence_length(config));
      if (*task == 'e') {
        EXPECT_THAT(config.provenance.at("batch.sequence_length").note, HasSubstr(one.source));
      }
      const Config again = load_config(write_deck(config), "deck.ini", {}, DeckFiles::recorded);
      EXPECT_EQ(again.batch.sequence_length, config.batch.sequence_length);
    }
  }
  const Config given = load("evaluate", {"batch.sequence_length=64"});
  EXPECT_EQ(given.batch.sequence_length, 64);
  EXPECT_FALSE(chooses_sequence_length(given)) << "the control";
}

TEST_F(SequenceLength, FitsPromptsAndBatches) {
  write_model("131072", no_limit);
  const auto fitted = [](const Config& deck, int64_t longest_prompt) {
    RunFacts facts(deck);
    facts.sequence_length = fit_sequence_length(deck, longest_prompt);
    return with_facts(deck, facts);
  };
  const Config config = fitted(load("generate"), 7);
  EXPECT_EQ(config.batch.sequence_length, 27);
  EXPECT_THAT(write_deck(config), HasSubstr("the longest prompt, 7, and generate.max_new_tokens"));
  EXPECT_TRUE(differences(load("generate"), write_deck(config), "d").empty()) << "it is found again";
  EXPECT_EQ(differences(load("generate", {"batch.sequence_length=28"}), write_deck(config), "d").size(), 1u);
  write_model("24", no_limit);
  EXPECT_EQ(fitted(load("generate"), 4).batch.sequence_length, 24) << "prompts are cut before";
  write_model("1e30", no_limit);
  EXPECT_EQ(load("generate", {"batch.micro=1024"}).batch.sequence_length, (int64_t{1} << 31) / 1024 - 1);
  EXPECT_EQ(load("evaluate", {"data.max_tokens_per_batch=512"}).batch.sequence_length, 512);
}

TEST_F(SequenceLength, IsRequiredWhereNothingGivesOne) {
  write_model("16", no_limit);
  EXPECT_THAT(
      error_of("generate"),
      HasSubstr("20 tokens leave no room for a prompt in batch.sequence_length = 16: lower generate.max_new_tokens; "
                "the length is automatic: the limit of model.path is 16 (config.json)"));
  EXPECT_THAT(error_of("generate", {"batch.sequence_length=16"}), HasSubstr("longer sequence")) << "the control";
  EXPECT_EQ(error_of("generate", {"generate.max_new_tokens=8"}), "no error");
  write_model("0", no_limit);
  EXPECT_THAT(error_of("evaluate"), HasSubstr("max_position_embeddings"));
  EXPECT_THAT(error_of("evaluate", {"model.path=" + (folder / "none").string()}), Not(HasSubstr("sequence_length")));
  EXPECT_THAT(error_of("sft", {"run.max_steps=1", "data.train=rows.jsonl"}),
              HasSubstr("batch.sequence_length: is required"));
}

}  // namespace
}  // namespace llmtrain
