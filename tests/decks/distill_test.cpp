// run.task = distill: ten steps equal those of GKD's loss in TRL's trainer (tests/reference/distillation), with the
// teacher of another family and size beside the student or its values from a file, and the ledger does not depend on
// the layout.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/program.hpp"
#include "harness/temporary_folder.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Overrides = std::vector<std::string>;

class Distill : public testing::Test {
 protected:
  static std::string file(const std::string& name) { return (source_folder() / "tests/reference" / name).string(); }

  Outcome run(const std::string& name, const Overrides& overrides, int ranks = 1) {
    const std::string deck = (folder / "distill.ini").string();
    write_file(deck,
               "[run]\ntask = distill\nmax_steps = 10\noutput = " + folder.text() +
                   "\n[model]\npath = " + file("sft/model") + "\n[distill]\nteacher = " + file("distillation/teacher") +
                   "\n[data]\ntrain = " + file("sft/messages.jsonl") + "\ncache = " + (folder / "cache").string() +
                   "\nvalidation_fraction = 0\nshuffle = false\n[batch]\nsequence_length = 512\nmicro = 1\n"
                   "global = 4\n[optimizer]\nweight_decay = 0\n[schedule]\nlearning_rate = 1e-3\n[precision]\n"
                   "compute = fp32\n[checkpoint]\nat_end = false\n");
    Overrides arguments = {deck, "run.name=" + name};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    return llmtrain({ranks, 1, arguments});
  }

  std::string ledger(const std::string& name, const Overrides& overrides, int ranks = 1) {
    const Outcome outcome = run(name, overrides, ranks);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return read_file(folder / name / "ledger.jsonl");
  }

  TemporaryFolder folder;
};

double largest_error(const json& ours, const json& theirs, size_t steps) {
  double error = 0;
  for (size_t i = 0; i < steps; ++i) {
    const double expected = theirs[i];
    error = std::max(error, std::abs(std::strtod(ours[i].get<std::string>().c_str(), nullptr) - expected) / expected);
  }
  return error;
}

TEST_F(Distill, TenStepsAreThoseOfTrl) {
  const json expected = json::parse(read_file(file("distillation/steps.json")));
  const std::map<std::string, Overrides> cases = {
      {"forward_kl", {}},
      {"jsd", {"distill.loss=jsd", "distill.beta=0.3", "distill.temperature=2"}},
      {"mixed", {"distill.temperature=1.5", "distill.cross_entropy=0.5", "distill.cache=false"}},
      {"reverse_kl", {"distill.loss=reverse_kl", "distill.cache=false"}},
  };
  json previous;
  for (const auto& [name, overrides] : cases) {
    json ours;
    std::istringstream lines(ledger(name, overrides));
    for (std::string line; std::getline(lines, line);) {
      const json row = json::parse(line);
      for (const char* key : {"tokens", "loss", "grad_norm"}) ours[key].push_back(row[key]);
    }
    const json& theirs = expected[name];
    EXPECT_EQ(ours["tokens"], theirs["tokens"]) << name;
    EXPECT_LT(largest_error(ours["loss"], theirs["loss"], 1), 1e-6) << name;
    EXPECT_LT(largest_error(ours["grad_norm"], theirs["grad_norm"], 1), 3e-6) << name;
    EXPECT_LT(largest_error(ours["loss"], theirs["loss"], 10), 1e-5) << name;
    EXPECT_LT(largest_error(ours["grad_norm"], theirs["grad_norm"], 10), 2e-5) << name;
    if (!previous.is_null()) {  // control
      EXPECT_GT(largest_error(ours["grad_norm"], previous, 10), 1e-2) << name;
    }
    previous = theirs["grad_norm"];
  }
}

// The teacher beside the student and its file, ranks, stages, blocks of rows, a resume.
TEST_F(Distill, LedgerDoesNotDependOnTheLayout) {
  const auto with = [&](Overrides more) {
    const Overrides all = {"data.packing=best_fit",           "data.shuffle=true", "run.max_steps=3",
                           "batch.sequence_length=256",       "distill.top_k=5",   "distill.tail=true",
                           "log.parameter_hash_every_steps=1"};
    more.insert(more.begin(), all.begin(), all.end());
    return more;
  };
  const std::string one = ledger("one", with({"distill.cache=false"}));
  EXPECT_EQ(ledger("cached", with({}), 2), one);
  EXPECT_EQ(ledger("three", with({"distill.cache=false", "parallel.zero=3"}), 3), one);
  EXPECT_EQ(ledger("again", with({"parallel.zero=0"})), one) << "values from the file";
  const Outcome again = run("read", with({}));
  EXPECT_THAT(again.output, Not(HasSubstr("samples are scored")));
  EXPECT_NE(ledger("control", with({"distill.top_k=6"})), one);

  Overrides shorter = with({"checkpoint.at_end=true"});
  std::ranges::replace(shorter, "run.max_steps=3", "run.max_steps=2");
  EXPECT_NE(ledger("resumed", shorter, 2), one);
  EXPECT_EQ(ledger("resumed", with({"distill.cache=false"})), one);

  for (const auto& entry : std::filesystem::directory_iterator(folder / "cache")) {
    if (!entry.path().filename().string().starts_with("teacher-")) continue;
    std::string bytes = read_file(entry.path());
    for (size_t i = bytes.size() / 4; i < bytes.size(); i += 40) bytes[i] ^= 1;
    write_file(entry.path(), bytes);
  }
  const Outcome damaged = run("damaged", with({}));
  EXPECT_EQ(damaged.exit_code, 65) << damaged.output;
  EXPECT_THAT(damaged.output, HasSubstr("are damaged: delete the file"));
}

TEST_F(Distill, LedgerDoesNotDependOnHowRanksShareRows) {
  const Overrides all = {"run.max_steps=2", "batch.sequence_length=256", "parallel.context_blocks=2",
                         "log.parameter_hash_every_steps=1"};
  const auto with = [&](Overrides more) {
    more.insert(more.begin(), all.begin(), all.end());
    return more;
  };
  const std::string one = ledger("one", with({"distill.cache=false"}));
  EXPECT_EQ(ledger("two", with({"distill.cache=false", "parallel.context=2"}), 2), one);
  EXPECT_EQ(ledger("cached", with({"parallel.context=2"}), 2), one);
}

TEST_F(Distill, TheStudentWritesAShareOfTheSteps) {
  const auto with = [&](Overrides more) {
    const Overrides all = {"run.max_steps=4",           "batch.sequence_length=256",        "distill.on_policy=0.5",
                           "rollout.max_new_tokens=12", "log.parameter_hash_every_steps=1", "distill.top_k=8"};
    more.insert(more.begin(), all.begin(), all.end());
    return more;
  };
  const std::string one = ledger("one", with({}));
  EXPECT_EQ(ledger("two", with({"distill.cache=false", "parallel.zero=3"}), 2), one);
  Overrides shorter = with({"checkpoint.at_end=true"});
  std::ranges::replace(shorter, "run.max_steps=4", "run.max_steps=2");
  EXPECT_NE(ledger("resumed", shorter, 2), one);
  EXPECT_EQ(ledger("resumed", with({})), one);
  EXPECT_NE(ledger("control", with({"rollout.temperature=1.5"})), one);
  // Some steps have the tokens of the data, and some do not.
  const std::string data = ledger("data", {"run.max_steps=4", "batch.sequence_length=256", "distill.top_k=8"});
  std::istringstream ours(one), theirs(data);
  int equal = 0, other = 0;
  for (std::string a, b; std::getline(ours, a) && std::getline(theirs, b);) {
    (json::parse(a)["samples"] == json::parse(b)["samples"] ? equal : other) += 1;
  }
  EXPECT_GT(equal, 0);
  EXPECT_GT(other, 0);
}

TEST_F(Distill, ErrorsNameTheKey) {
  const auto error = [&](const Overrides& overrides, const std::string& text, int code = 78) {
    Overrides all = overrides;
    all.push_back("run.overwrite=true");
    const Outcome outcome = run("error", all);
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(text));
  };
  error({"distill.loss=reverse_kl", "distill.top_k=4"}, "distill.top_k: the reverse divergence from tokens");
  error({"distill.tail=true"}, "distill.tail: needs distill.top_k above 0");
  error({"parallel.tensor=2"}, "parallel.tensor: must be 1 with run.task = distill");
  error({"distill.on_policy=0.5", "data.packing=best_fit", "rollout.max_new_tokens=8"},
        "distill.on_policy: a sample must");
  // Another tokenizer of the same size: two tokens have changed places.
  const std::filesystem::path other = folder / "other";
  std::filesystem::copy(file("sft/model"), other);
  json tokenizer = json::parse(read_file(other / "tokenizer.json"));
  std::swap(tokenizer["model"]["vocab"]["!"], tokenizer["model"]["vocab"]["\""]);
  write_file(other / "tokenizer.json", tokenizer.dump());
  error({"distill.teacher=" + other.string()}, "its tokenizer is another one than the student's");
  error({"distill.teacher=" + file("hf/llama")}, "distill.teacher: ");
}

}  // namespace
}  // namespace llmtrain::test
