// run.task = sft and dft and run.finetuning = freeze: ten steps equal those of TRL's SFTTrainer (tests/reference/sft),
// and the ledger does not depend on the layout.

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

class Sft : public testing::Test {
 protected:
  static std::string file(const std::string& name) { return (source_folder() / "tests/reference/sft" / name).string(); }

  Outcome run(const std::string& name, const std::vector<std::string>& overrides, int ranks = 1, int threads = 1) {
    const std::string deck = (folder / "sft.ini").string();
    write_file(deck, "[run]\ntask = sft\nmax_steps = 10\noutput = " + folder.text() +
                         "\n[model]\npath = " + file("model") + "\n[data]\ntrain = " + file("messages.jsonl") +
                         "\nvalidation_fraction = 0\nshuffle = false\n[batch]\nsequence_length = 512\nmicro = 1\n"
                         "global = 4\n[optimizer]\nweight_decay = 0\n[schedule]\nlearning_rate = 1e-3\n[precision]\n"
                         "compute = fp32\n[checkpoint]\nat_end = false\n");
    std::vector<std::string> arguments = {deck, "run.name=" + name};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    return llmtrain({ranks, threads, arguments});
  }

  std::string ledger(const std::string& name, const std::vector<std::string>& overrides, int ranks = 1,
                     int threads = 1) {
    const Outcome outcome = run(name, overrides, ranks, threads);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return read_file(folder / name / "ledger.jsonl");
  }

  /// A copy of the model whose config.json names this token as padding, which rows have as a part of their text.
  std::string model_with_padding(const std::string& token) {
    const std::filesystem::path copy = folder / "padded";
    std::filesystem::copy(file("model"), copy);
    const json tokenizer = json::parse(read_file(copy / "tokenizer.json"));
    json config = json::parse(read_file(copy / "config.json"));
    for (const json& added : tokenizer["added_tokens"]) {
      if (added["content"] == token) config["pad_token_id"] = added["id"];
    }
    write_file(copy / "config.json", config.dump());
    return copy.string();
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

// Losses over completions and assistant turns, counts of trained tokens with unequal micro-batches, and frozen parts.
TEST_F(Sft, TenStepsAreThoseOfTrl) {
  const json expected = json::parse(read_file(file("expected.json")));
  const std::map<std::string, std::vector<std::string>> cases = {
      {"messages", {}},
      {"completions", {"data.train=" + file("completions.jsonl")}},
      {"dft", {"run.task=dft"}},
      {"freeze_last_2", {"run.finetuning=freeze"}},
      {"freeze_first_1", {"run.finetuning=freeze", "freeze.trainable_layers=-1"}},
      {"freeze_mlp_and_norm", {"run.finetuning=freeze", "freeze.trainable_modules=mlp", "freeze.extra_modules=norm"}},
      {"freeze_llama_pro_2", {"run.finetuning=freeze", "freeze.llama_pro=true"}},
      {"padding_in_rows", {"model.path=" + model_with_padding("<|im_end|>")}},
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
    EXPECT_LT(largest_error(ours["grad_norm"], theirs["grad_norm"], 1), 2e-6) << name;
    EXPECT_LT(largest_error(ours["loss"], theirs["loss"], 10), 1e-5) << name;
    EXPECT_LT(largest_error(ours["grad_norm"], theirs["grad_norm"], 10), 1e-5) << name;
    if (!previous.is_null()) {  // control: the cases differ by far more; padding in rows is one token of 320
      EXPECT_GT(largest_error(ours["grad_norm"], previous, 10), 5e-4) << name;
    }
    previous = theirs["grad_norm"];
  }
}

TEST_F(Sft, LedgerDoesNotDependOnTheLayout) {
  const std::vector<std::string> packed = {"data.packing=best_fit", "data.shuffle=true", "run.max_steps=3",
                                           "batch.sequence_length=256", "log.parameter_hash_every_steps=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), packed.begin(), packed.end());
    return more;
  };
  const std::string one = ledger("one", packed);
  EXPECT_EQ(ledger("three", with({"parallel.zero=3", "memory.recompute=block"}), 3), one);
  EXPECT_EQ(ledger("two", with({"parallel.zero=2"}), 2), one);
  EXPECT_EQ(ledger("zero", with({"parallel.zero=0"}), 2, 2), one);
  EXPECT_EQ(ledger("offloaded", with({"parallel.offload_optimizer=nvme", "parallel.offload_path=" + folder.text()})),
            one);
  EXPECT_NE(ledger("control", with({"chat.train_on=last"})), one);

  std::vector<std::string> shorter = with({"checkpoint.at_end=true"});
  std::ranges::replace(shorter, "run.max_steps=3", "run.max_steps=2");
  EXPECT_NE(ledger("resumed", shorter, 2), one);
  // A template that renders the same text, of which it marks other parts.
  const std::filesystem::path marked = folder / "marked";
  std::filesystem::copy(file("model"), marked);
  std::string text = read_file(marked / "chat_template.jinja");
  const std::string whole = "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}";
  const size_t at = text.find(whole);
  ASSERT_NE(at, std::string::npos);
  write_file(marked / "chat_template.jinja",
             text.replace(at, whole.size(), "{{ message['content'] }}{% endgeneration %}{{ '<|im_end|>' }}"));
  const Outcome other = run("resumed", with({"model.path=" + marked.string()}));
  EXPECT_EQ(other.exit_code, 65) << other.output;
  EXPECT_THAT(other.output, HasSubstr("or with another chat template or mask"));
  EXPECT_EQ(ledger("resumed", packed, 1), one);
}

// The head runs twice, and evaluations measure the cross-entropy.
TEST_F(Sft, LedgerOfDftDoesNotDependOnTheLayout) {
  const auto dft = [](std::vector<std::string> more) {
    for (const char* key : {"run.task=dft", "data.packing=best_fit", "run.max_steps=2", "batch.sequence_length=256",
                            "data.validation_fraction=0.2", "evaluation.every_steps=1", "precision.compute=bf16",
                            "log.parameter_hash_every_steps=1"}) {
      more.emplace_back(key);
    }
    return more;
  };
  const std::vector<std::string> adapters = {"run.finetuning=lora", "lora.r=4", "lora.dropout=0.1",
                                             "lora.target_modules=q_proj, lm_head"};
  std::string dense;
  for (const std::vector<std::string>& trained : {std::vector<std::string>{}, adapters}) {
    const std::string name = trained.empty() ? "dense" : "adapters";
    const std::string one = ledger(name, dft(trained));
    std::vector<std::string> sharded = trained;
    sharded.insert(sharded.end(), {"parallel.zero=3", "memory.recompute=block"});
    EXPECT_EQ(ledger(name + "_of_two", dft(sharded), 2), one);
    EXPECT_NE(one, dense) << "control";
    dense = one;
    std::istringstream lines(one);
    json step, evaluation;
    for (std::string line; std::getline(lines, line);) {
      const json row = json::parse(line);
      (row.contains("validation_loss") ? evaluation : step) = row;
    }
    const auto number = [](const json& value) { return std::strtod(value.get<std::string>().c_str(), nullptr); };
    const double cross_entropy = number(step["metrics"]["cross_entropy"]);
    EXPECT_GT(cross_entropy, 10 * number(step["loss"]));
    EXPECT_NEAR(number(evaluation["validation_loss"]), cross_entropy, 0.5);
  }
}

// Everything together: quantised weights, adapters with moments in 8 bits, packed rows. Adapters of rank 128 are large
// enough for 8 bits.
TEST_F(Sft, LedgerOfQloraDoesNotDependOnTheLayout) {
  const auto qlora = [&](const std::vector<std::string>& more, const std::string& optimizer = "adamw_8bit",
                         int steps = 3) {
    std::vector<std::string> all = {"run.finetuning=lora",
                                    "lora.r=128",
                                    "lora.dropout=0.1",
                                    "quantization.bits=4",
                                    "data.packing=best_fit",
                                    "data.shuffle=true",
                                    "batch.sequence_length=256",
                                    "log.parameter_hash_every_steps=1",
                                    "parallel.offload_path=" + folder.text(),
                                    "optimizer.name=" + optimizer,
                                    "run.max_steps=" + std::to_string(steps)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::string one = ledger("one", qlora({"parallel.zero=0"}));
  EXPECT_EQ(ledger("three",
                   qlora({"parallel.zero=3", "memory.recompute=block", "parallel.offload_optimizer=nvme",
                          "parallel.offload_parameters=nvme"}),
                   3),
            one);
  EXPECT_EQ(ledger("two", qlora({"parallel.zero=2"}, "paged_adamw_8bit"), 2, 2), one);
  EXPECT_NE(ledger("resumed", qlora({"parallel.zero=3", "checkpoint.at_end=true"}, "adamw_8bit", 2), 3), one);
  EXPECT_EQ(ledger("resumed", qlora({"parallel.zero=1", "memory.recompute=attention"}), 2), one);
  EXPECT_NE(ledger("moments", qlora({}, "adamw")), one) << "control: moments in fp32";
}

// Checkpoints keep the template and the stop tokens; samples are turns of the user.
TEST_F(Sft, ResumesAndExportsWithoutTheFolderOfTheModel) {
  const std::filesystem::path model = folder / "model";
  std::filesystem::copy(file("model"), model);
  const auto with = [&](const char* steps) {
    return std::vector<std::string>{"model.path=" + model.string(), "checkpoint.export=last",
                                    "checkpoint.at_end=true",       "log.samples_every_steps=2",
                                    "log.sample_prompts=Hello",     steps};
  };
  const Outcome whole = run("whole", with("run.max_steps=2"));
  EXPECT_THAT(whole.output, HasSubstr("user\n  | Hello\n  | assistant\n"));
  EXPECT_NE(ledger("resumed", with("run.max_steps=1")), read_file(folder / "whole/ledger.jsonl"));
  std::filesystem::remove_all(model);
  std::filesystem::remove_all(folder / "resumed/export");
  EXPECT_EQ(ledger("resumed", with("run.max_steps=2"), 2), read_file(folder / "whole/ledger.jsonl"));
  for (const char* name : {"chat_template.jinja", "generation_config.json"}) {
    EXPECT_EQ(read_file(folder / "resumed/export" / name), read_file(folder / "whole/export" / name)) << name;
  }
}

// An epoch of the rows has ten steps.
TEST_F(Sft, IntervalsMayBeEpochs) {
  const std::string text = ledger(
      "epochs", {"run.max_steps=8", "evaluation.every_epochs=0.4", "checkpoint.every_epochs=0.3",
                 "data.validation=" + file("completions.jsonl"), "evaluation.batches=1", "evaluation.at_end=false"});
  std::vector<int64_t> evaluated;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const json row = json::parse(line);
    if (row.contains("validation_loss")) evaluated.push_back(row["step"]);
  }
  EXPECT_THAT(evaluated, testing::ElementsAre(4, 8));
  EXPECT_TRUE(std::filesystem::exists(folder / "epochs/checkpoints/step-00000006"));
  EXPECT_FALSE(std::filesystem::exists(folder / "epochs/checkpoints/step-00000008"));
  // The export has the template that the deck names, so that Transformers renders as the training did.
  ledger("named", {"run.max_steps=1", "chat.template=chatml", "checkpoint.export=last"});
  EXPECT_THAT(read_file(folder / "named/export/chat_template.jinja"), HasSubstr("<|im_start|>"));
}

TEST_F(Sft, SaysWhatItCannotTrainOn) {
  const auto refused = [&](const std::string& name, const std::string& row, const std::string& what) {
    write_file(folder / (name + ".jsonl"), row + "\n");
    const Outcome outcome = run(name, {"data.train=" + (folder / (name + ".jsonl")).string()});
    EXPECT_EQ(outcome.exit_code, 65) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(name + ".jsonl:1"));
    EXPECT_THAT(outcome.output, HasSubstr(what));
  };
  refused("question", R"({"messages":[{"role":"user","content":"a"}]})", "assistant");
  refused("shape", R"({"messages":[{"role":"user"}]})", "content");
  const Outcome strict = run("strict", {"run.task=pretrain", "chat.template=chatml"});
  EXPECT_EQ(strict.exit_code, 78);
  EXPECT_THAT(strict.output, HasSubstr("chat.template: run.task = pretrain does not use it"));
}

}  // namespace
}  // namespace llmtrain::test
