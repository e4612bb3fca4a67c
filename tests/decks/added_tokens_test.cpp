// data.add_tokens: rows of new tokens, tokenizer files and ten steps are those of Transformers and TRL
// (tests/reference/sft/added_tokens.json), on any layout; the export has the tokens, the template and its stop token.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/program.hpp"
#include "harness/temporary_folder.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class AddedTokensOfARun : public testing::Test {
 protected:
  static std::string file(const std::string& name) { return (source_folder() / "tests/reference/sft" / name).string(); }

  Outcome run(const std::string& name, std::vector<std::string> overrides, int ranks = 1) {
    const std::string deck = (folder / "deck.ini").string();
    write_file(deck, "[run]\ntask = sft\nmax_steps = 10\noutput = " + folder.text() +
                         "\n[model]\npath = " + file("model") + "\n[data]\ntrain = " + file("messages.jsonl") +
                         "\nadd_tokens = <|user|>, <|bot|>, <|im_end|>, <|stop|>\nvalidation_fraction = 0\n"
                         "shuffle = false\n[chat]\ntemplate = " +
                         file("added_tokens.jinja") +
                         "\n[batch]\nsequence_length = 512\nmicro = 1\nglobal = 4\n[optimizer]\nweight_decay = 0\n"
                         "[schedule]\nlearning_rate = 1e-3\n[precision]\ncompute = fp32\n"
                         "[log]\nparameter_hash_every_steps = 1\n");
    overrides.insert(overrides.begin(), {deck, "run.name=" + name});
    return llmtrain({ranks, 1, overrides});
  }
  std::string ledger(const std::string& name, const std::vector<std::string>& overrides, int ranks = 1) {
    const Outcome outcome = run(name, overrides, ranks);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return read_file(folder / name / "ledger.jsonl");
  }

  TemporaryFolder folder;
};

/// Values of a matrix of F32 in a folder with one file of weights.
std::vector<float> values_of(const std::filesystem::path& model, const std::string& name) {
  const std::string bytes = read_file(model / "model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  const json place = json::parse(bytes.substr(8, header))[name]["data_offsets"];
  std::vector<float> values((place[1].get<size_t>() - place[0].get<size_t>()) / 4);
  std::memcpy(values.data(), bytes.data() + 8 + header + place[0].get<size_t>(), values.size() * 4);
  return values;
}

TEST_F(AddedTokensOfARun, AreThoseOfTransformersAndTrl) {
  const json expected = json::parse(read_file(file("added_tokens.json")));
  const std::string text = ledger("steps", {"checkpoint.export=last"});
  std::istringstream lines(text);
  size_t step = 0;
  for (std::string line; std::getline(lines, line); ++step) {
    const json row = json::parse(line);
    EXPECT_EQ(row["tokens"], expected["steps"]["tokens"][step]);
    for (const char* key : {"loss", "grad_norm"}) {
      const double theirs = expected["steps"][key][step];
      EXPECT_NEAR(std::strtod(row[key].get<std::string>().c_str(), nullptr) / theirs, 1, step == 0 ? 2e-6 : 1e-5);
    }
  }
  EXPECT_EQ(step, 10U);

  const std::filesystem::path exported = folder / "steps" / "export";
  const auto tokenizer = load_tokenizer(exported.string());
  EXPECT_EQ(json::parse(read_file(exported / "config.json"))["vocab_size"], expected["rows"]);
  EXPECT_EQ(tokenizer->vocabulary_size(), expected["rows"]);
  for (const auto& [sentence, ids] : expected["ids"].items()) {
    std::vector<int32_t> ours;
    tokenizer->encode(sentence, ours);
    EXPECT_EQ(json(ours), ids) << sentence;
  }
  EXPECT_EQ(read_file(exported / "chat_template.jinja"), read_file(file("added_tokens.jinja")));
  const int32_t stop = static_cast<int32_t>(tokenizer->vocabulary_size()) - 1, eos = tokenizer->eos_id();
  EXPECT_EQ(json::parse(read_file(exported / "generation_config.json"))["eos_token_id"], json({eos, stop}));

  const Outcome again = llmtool(
      {"export", (folder / "steps/checkpoints/step-00000010").string(), "--output", (folder / "again").string()});
  EXPECT_EQ(again.exit_code, 0) << again.output;
  for (const auto& entry : std::filesystem::directory_iterator(exported)) {
    const std::string name = entry.path().filename().string();
    EXPECT_EQ(read_file(folder / "again" / name), read_file(entry.path())) << name;
  }
}

// Before the first step the new rows are the mean, in the embedding and in the head.
TEST_F(AddedTokensOfARun, BeginAsTheMean) {
  const json expected = json::parse(read_file(file("added_tokens.json")));
  ledger("first", {"run.max_steps=1", "schedule.learning_rate=1e-30", "checkpoint.export=last"}, 2);
  for (const auto& [tensor, key] :
       {std::pair("model.embed_tokens.weight", "embedding_mean"), {"lm_head.weight", "head_mean"}}) {
    const std::vector<float> values = values_of(folder / "first" / "export", tensor);
    const std::vector<float> old = values_of(file("model"), tensor), mean = expected[key];
    ASSERT_EQ(values.size(), old.size() + 3 * mean.size());
    for (size_t i = 0; i < old.size(); ++i) EXPECT_NEAR(values[i], old[i], 1e-20);  // the step is smaller
    for (size_t i = old.size(); i < values.size(); ++i) EXPECT_NEAR(values[i], mean[i % mean.size()], 1e-8);
  }
}

TEST_F(AddedTokensOfARun, DoNotDependOnTheLayout) {
  const std::string one = ledger("one", {"run.max_steps=3"});
  EXPECT_EQ(ledger("three", {"run.max_steps=3", "parallel.zero=3"}, 3), one);
  ledger("resumed", {"run.max_steps=2"}, 2);
  EXPECT_EQ(ledger("resumed", {"run.max_steps=3", "parallel.zero=2"}), one);
  EXPECT_NE(ledger("control", {"run.max_steps=3", "data.add_tokens=<|user|>, <|bot|>, <|stop|>, <|more|>"}), one);

  // A frozen embedding is not in checkpoints: its rows are made again.
  const std::vector<std::string> freeze = {"run.finetuning=freeze", "run.max_steps=3"};
  const std::string frozen = ledger("frozen", freeze);
  ledger("halted", {"run.finetuning=freeze", "run.max_steps=2"}, 2);
  EXPECT_EQ(ledger("halted", freeze), frozen);
  const Outcome exported = llmtool(
      {"export", (folder / "frozen/checkpoints/step-00000003").string(), "--output", (folder / "exported").string()});
  EXPECT_EQ(exported.exit_code, 0) << exported.output;
  EXPECT_EQ(values_of(folder / "exported", "lm_head.weight").size(), 324U * 32);
}

TEST_F(AddedTokensOfARun, AreCheckedAndNoted) {
  const Outcome known = run("known", {"--check"});
  EXPECT_EQ(known.exit_code, 0);
  EXPECT_THAT(known.output, HasSubstr("has <|im_end|> already"));
  const std::string resolved = (folder / "resolved.ini").string();
  write_file(resolved, known.output.substr(known.output.find("# ")));
  const Outcome again = llmtrain({1, 1, {resolved, "--check"}});
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_THAT(again.output, HasSubstr("vocab_size = 324"));
  const Outcome bytes = run("bytes", {"data.tokenizer=bytes", "--check"});
  EXPECT_EQ(bytes.exit_code, 78) << bytes.output;
  EXPECT_THAT(bytes.output,
              HasSubstr("data.add_tokens: data.tokenizer = bytes cannot be given more tokens (data.add_tokens)"));
  EXPECT_EQ(run("twice", {"data.add_tokens=<a>, <a>", "--check"}).exit_code, 78);
}

// llmtool prepare makes the token file that the run makes; split keeps rows whole, in text and in token files.
TEST_F(AddedTokensOfARun, PreparedAndSplitDataAreThoseOfTheRun) {
  const std::string one = ledger("one", {"run.max_steps=3"});
  const std::string prepared = (folder / "prepared.h5").string();
  const Outcome outcome = llmtool({"prepare", "--input", file("messages.jsonl"), "--tokenizer", file("model"),
                                   "--template", file("added_tokens.jinja"), "--add-tokens",
                                   "<|user|>,<|bot|>,<|im_end|>,<|stop|>", "--output", prepared});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("40 rows of conversations"));
  EXPECT_EQ(ledger("prepared", {"run.max_steps=3", "data.train=" + prepared}), one);
  EXPECT_NE(ledger("control", {"run.max_steps=3", "chat.train_on=last"}), one);

  for (const auto& [input, ending] : {std::pair(prepared, ".h5"), {file("messages.jsonl"), ".jsonl"}}) {
    const std::string train = (folder / "train").string() + ending, held = (folder / "held").string() + ending;
    const Outcome split = llmtool({"split", "--input", input, "--train", train, "--validation", held});
    EXPECT_EQ(split.exit_code, 0) << split.output;
    const Outcome halves =
        run("halves" + std::string(ending), {"run.max_steps=1", "data.train=" + train, "data.validation=" + held});
    EXPECT_EQ(halves.exit_code, 0) << halves.output;
    EXPECT_THAT(halves.output, HasSubstr("36 rows of conversations"));
    EXPECT_THAT(halves.output, HasSubstr("36 rows are few"));
  }
  const std::string broken = (folder / "broken.jsonl").string();
  write_file(broken, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})"
                     "\n{]\n");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"prepare", "--input", broken, "--tokenizer", file("model"), "--output", prepared,
                                 "--force"},
        {"split", "--input", broken, "--train", (folder / "a.jsonl").string(), "--validation",
         (folder / "b.jsonl").string()}}) {
    const Outcome refused = llmtool(command);
    EXPECT_EQ(refused.exit_code, 65) << refused.output;
    EXPECT_THAT(refused.output, HasSubstr("broken.jsonl:2: "));
  }
}

// The start of a run tells of a template for another tokenizer, and of rows that truncation empties.
TEST_F(AddedTokensOfARun, AreMissedByTheTemplate) {
  const Outcome split = run("split", {"run.max_steps=1", "data.add_tokens=<|user|>, <|bot|>"});
  EXPECT_THAT(split.output, HasSubstr("the template writes <|stop|>, which is not one token of this tokenizer"));
  EXPECT_THAT(split.output, HasSubstr("40 of 40 rows train no stop token at their end"));
  const Outcome whole = run("whole", {"run.max_steps=1"});
  EXPECT_EQ(whole.exit_code, 0) << whole.output;
  EXPECT_EQ(whole.output.find("the template writes"), std::string::npos) << whole.output;
  EXPECT_EQ(whole.output.find("no stop token"), std::string::npos) << whole.output;
  const Outcome cut = run("cut", {"run.max_steps=1", "batch.sequence_length=16"});
  EXPECT_THAT(cut.output, HasSubstr("conversations lose all tokens to train on when they are truncated"));
}

}  // namespace
}  // namespace llmtrain::test
