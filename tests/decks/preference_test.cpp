// run.task = dpo: steps equal those of TRL's DPOTrainer and KTOTrainer (tests/reference/preference), and the ledger
// depends neither on the layout nor on where the reference's log-probabilities come from.

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

class Dpo : public testing::Test {
 protected:
  static std::string file(const std::string& name) {
    return (source_folder() / "tests/reference/preference" / name).string();
  }

  Outcome run(const std::string& name, const std::vector<std::string>& overrides, int ranks = 1) {
    const std::string deck = (folder / "dpo.ini").string();
    write_file(deck, "[run]\ntask = dpo\nmax_steps = 5\noutput = " + folder.text() +
                         "\n[model]\npath = " + file("../sft/model") + "\n[data]\ntrain = " + file("texts.jsonl") +
                         "\nvalidation_fraction = 0\nshuffle = false\n[batch]\nsequence_length = 512\nmicro = 1\n"
                         "global = 4\n[optimizer]\nweight_decay = 0\n[schedule]\nlearning_rate = 1e-3\n[precision]\n"
                         "compute = fp32\n[checkpoint]\nat_end = false\n");
    std::vector<std::string> arguments = {deck, "run.name=" + name};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    return llmtrain({ranks, 1, arguments});
  }

  std::string ledger(const std::string& name, const std::vector<std::string>& overrides, int ranks = 1) {
    const Outcome outcome = run(name, overrides, ranks);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return read_file(folder / name / "ledger.jsonl");
  }

  TemporaryFolder folder;
};

double hex(const json& text) { return std::strtod(text.get<std::string>().c_str(), nullptr); }

/// Largest differences of a ledger from TRL's steps: relative ones of loss and norm, absolute ones of metrics.
struct Differences {
  double loss = 0, norm = 0, metrics = 0;
};
Differences compare(const std::string& ledger, const json& expected) {
  Differences result;
  std::istringstream lines(ledger);
  std::string line;
  size_t step = 0;
  for (; std::getline(lines, line); ++step) {
    const json ours = json::parse(line);
    const double loss = expected["loss"][step], norm = expected["grad_norm"][step];
    result.loss = std::max(result.loss, std::abs(hex(ours["loss"]) - loss) / loss);
    result.norm = std::max(result.norm, std::abs(hex(ours["grad_norm"]) - norm) / norm);
    for (const auto& [name, value] : ours["metrics"].items()) {
      if (!expected.contains(name)) continue;
      result.metrics = std::max(result.metrics, std::abs(hex(value) - expected[name][step].get<double>()));
    }
  }
  EXPECT_EQ(step, expected["loss"].size());
  return result;
}

// Losses that follow other paths: plain, averaged, of several terms, truncated documents, adapters, a template.
TEST_F(Dpo, StepsAreThoseOfTrl) {
  const json expected = json::parse(read_file(file("dpo.json")));
  const std::map<std::string, std::vector<std::string>> cases = {
      {"sigmoid", {}},
      {"ipo", {"dpo.loss=ipo"}},
      {"weighted", {"dpo.loss=sigmoid, bco_pair, sft", "dpo.loss_weights=0.8, 0.2, 1"}},
      {"aot", {"dpo.loss=aot"}},
      {"aot_unpaired", {"dpo.loss=aot_unpaired", "dpo.label_smoothing=0.1"}},
      {"truncated", {"batch.sequence_length=47"}},
      {"lora", {"run.finetuning=lora", "lora.path=" + file("adapter")}},
      {"conversations", {"data.train=" + file("conversations.jsonl"), "run.max_steps=2"}},
      {"implicit", {"data.train=" + file("implicit.jsonl"), "run.max_steps=2"}}};
  for (const auto& [name, overrides] : cases) {
    SCOPED_TRACE(name);
    const Differences found = compare(ledger(name, overrides), expected[name]);
    EXPECT_LT(found.loss, 1e-5);
    EXPECT_LT(found.norm, 2e-5);
    EXPECT_LT(found.metrics, 1e-4);
  }
  EXPECT_GT(compare(ledger("control", {"dpo.beta=0.101"}), expected["sigmoid"]).norm, 2e-3) << "the control";
}

// Two ranks share the rows of a micro-batch, and two the matrices: documents lie on several ranks.
TEST_F(Dpo, StepsOfAMeshAreThoseOfTrl) {
  const json expected = json::parse(read_file(file("dpo.json")));
  const std::vector<std::string> mesh = {"parallel.tensor=2", "parallel.context=2"},
                                 blocks = {"parallel.tensor_blocks=2", "parallel.context_blocks=2"},
                                 adapter = {"run.finetuning=lora", "lora.path=" + file("adapter")};
  for (const bool adapts : {false, true}) {
    const auto with = [&](std::vector<std::string> keys) {
      if (adapts) keys.insert(keys.end(), adapter.begin(), adapter.end());
      return keys;
    };
    const std::string name = adapts ? "lora" : "sigmoid", found = ledger("mesh_" + name, with(mesh), 4);
    const Differences differences = compare(found, expected[name]);
    EXPECT_LT(differences.loss, 1e-5);
    EXPECT_LT(differences.norm, 2e-5);
    EXPECT_LT(differences.metrics, 1e-4);
    EXPECT_EQ(found, ledger("blocks_" + name, with(blocks)));
    EXPECT_NE(found, ledger("whole_" + name, with({}))) << "the control";
  }
}

// Answers with a label, whose loss compares them with the answers of other prompts in the step (metric kl).
TEST_F(Dpo, KtoStepsAreThoseOfTrl) {
  const json expected = json::parse(read_file(file("dpo.json")));
  const std::map<std::string, std::vector<std::string>> cases = {
      {"kto", {}}, {"kto_weights", {"dpo.beta=0.5", "dpo.desirable_weight=1.5", "dpo.undesirable_weight=0.75"}}};
  const auto kto = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.end(), {"dpo.loss=kto", "data.train=" + file("unpaired.jsonl")});
    return ledger(name, more);
  };
  for (const auto& [name, overrides] : cases) {
    SCOPED_TRACE(name);
    const Differences found = compare(kto(name, overrides), expected[name]);
    EXPECT_LT(found.loss, 1e-5);
    EXPECT_LT(found.norm, 2e-5);
    EXPECT_LT(found.metrics, 1e-4);
  }
  const Differences control = compare(kto("control", {"batch.global=2"}), expected["kto"]);
  EXPECT_GT(control.metrics, 1e-2) << "the control: a step of two documents";
}

/// Returns the steps of a ledger in the form of a golden.
json steps_of(const std::string& ledger) {
  json result;
  std::istringstream lines(ledger);
  for (std::string line; std::getline(lines, line);) {
    const json step = json::parse(line);
    for (const char* name : {"loss", "grad_norm"}) result[name].push_back(hex(step[name]));
    for (const auto& [name, value] : step["metrics"].items()) result[name].push_back(hex(value));
  }
  return result;
}

// Losses that compare the documents of a step: it is the whole step, not a micro-batch or a rank's part. Gradients of
// other micro-batches are rounded elsewhere.
TEST_F(Dpo, LossesOverAStepDoNotDependOnItsParts) {
  const std::map<std::string, std::vector<std::string>> losses = {
      {"kto", {"dpo.loss=kto", "data.train=" + file("unpaired.jsonl")}},
      {"aot", {"dpo.loss=aot"}},
      {"aot_unpaired", {"dpo.loss=aot_unpaired"}}};
  for (const auto& [name, loss] : losses) {
    SCOPED_TRACE(name);
    const auto run_with = [&, &prefix = name, &deck = loss](const std::string& layout, std::vector<std::string> more,
                                                            int ranks = 1) {
      more.insert(more.end(), deck.begin(), deck.end());
      more.insert(more.end(), {"data.shuffle=true", "run.max_steps=3"});
      return ledger(prefix + layout, more, ranks);
    };
    const std::string expected = run_with("_1", {});
    EXPECT_EQ(run_with("_2", {"parallel.zero=2"}, 2), expected);
    EXPECT_EQ(run_with("_3", {"parallel.zero=3"}, 3), expected);
    const std::string whole = run_with("_whole", {"batch.micro=4"});
    const Differences found = compare(whole, steps_of(expected));
    EXPECT_LT(found.loss, 1e-5);
    EXPECT_LT(found.norm, 1e-5);
    EXPECT_LT(found.metrics, 1e-4);
    EXPECT_GT(compare(run_with("_control", {"batch.global=2"}), steps_of(expected)).loss, 1e-3) << "the control";
  }
}

TEST_F(Dpo, LedgerIsIdenticalForLayoutsAndSourcesOfTheReference) {
  const std::vector<std::string> common = {"data.shuffle=true", "run.epochs=2", "batch.micro=2",
                                           "data.validation=" + file("texts.jsonl"), "evaluation.every_steps=3"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), common.begin(), common.end());
    return more;
  };
  const std::string cached = ledger("cached", with({}));
  EXPECT_EQ(cached, ledger("again", with({})));
  EXPECT_EQ(cached, ledger("model", with({"dpo.cache_reference=false"})));
  EXPECT_EQ(cached, ledger("shards", with({"dpo.cache_reference=false", "parallel.zero=3"}), 3));
  EXPECT_EQ(cached, ledger("ranks", with({"data.cache=" + (folder / "other").string(), "parallel.zero=2"}), 2));
  EXPECT_NE(cached, ledger("none", with({"dpo.reference=none"}))) << "the control";
}

// TR-DPO: the reference follows the policy. Its weights are in checkpoints.
TEST_F(Dpo, ReferenceFollowsThePolicy) {
  const json expected = json::parse(read_file(file("dpo.json")))["synchronised"];
  const auto with = [](std::vector<std::string> more) {
    more.emplace_back("dpo.sync_every=2");
    return more;
  };
  const std::string one = ledger("one", with({}));
  const Differences found = compare(one, expected);
  EXPECT_LT(found.loss, 1e-5);
  EXPECT_LT(found.norm, 2e-5);
  EXPECT_LT(found.metrics, 1e-4);
  EXPECT_GT(compare(ledger("control", with({"dpo.sync_alpha=0.5"})), expected).metrics, 1e-3) << "the control";
  for (const std::string stage : {"0", "2", "3"}) {
    EXPECT_EQ(ledger("stage" + stage, with({"parallel.zero=" + stage}), 2), one) << stage;
  }
  ledger("part", with({"run.max_steps=3", "checkpoint.at_end=true"}));
  EXPECT_EQ(ledger("part", with({"parallel.zero=3"}), 3), one);
  const std::vector<std::string> freeze = {"run.finetuning=freeze", "freeze.trainable_layers=1"};
  const std::string frozen = ledger("frozen", with(freeze));
  EXPECT_NE(frozen, one);
  std::vector<std::string> shards = with(freeze), part = with(freeze);
  shards.emplace_back("parallel.zero=3");
  part.insert(part.end(), {"run.max_steps=3", "checkpoint.at_end=true"});
  EXPECT_EQ(ledger("frozen_shards", shards, 2), frozen);
  ledger("frozen_part", part);
  EXPECT_EQ(ledger("frozen_part", shards, 2), frozen);
}

// The reference is the quantised base: the policy without its adapters, or a model of its own that is scored first.
TEST_F(Dpo, TrainsAdaptersOfAQuantisedModel) {
  std::vector<std::string> ledgers;
  for (const std::string bits : {"4", "8"}) {
    SCOPED_TRACE(bits);
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.end(), {"run.finetuning=lora", "lora.path=" + file("adapter"), "quantization.bits=" + bits});
      return more;
    };
    const std::string one = ledger("one" + bits, with({}));
    EXPECT_EQ(ledger("two" + bits, with({"parallel.zero=3"}), 2), one);
    EXPECT_EQ(ledger("running" + bits, with({"dpo.cache_reference=false"})), one);
    EXPECT_EQ(ledger("shards" + bits, with({"dpo.cache_reference=false", "parallel.zero=3"}), 2), one);
    ledgers.push_back(one);
  }
  EXPECT_NE(ledgers[0], ledgers[1]) << "the control";
}

TEST_F(Dpo, ReferenceMayBeAnotherModel) {
  const std::string own = ledger("own", {});
  EXPECT_EQ(ledger("named", {"dpo.reference=" + file("../sft/model")}), own);
  const std::filesystem::path other = folder / "model";
  std::filesystem::copy(file("../sft/model"), other);
  std::string weights = read_file(other / "model.safetensors");
  weights[weights.size() - 2] ^= 0x40;  // a bit of the last value
  write_file(other / "model.safetensors", weights);
  const std::string changed = ledger("other", {"dpo.reference=" + other.string()});
  EXPECT_NE(changed, own);
  EXPECT_EQ(ledger("running", {"dpo.reference=" + other.string(), "dpo.cache_reference=false"}), changed);
  EXPECT_EQ(run("missing", {"dpo.reference=/nonexistent"}).exit_code, 66);
}

TEST_F(Dpo, ResumesOnOtherRanks) {
  const std::vector<std::string> whole = {"run.max_steps=4"}, part = {"run.max_steps=2", "checkpoint.at_end=true"};
  const std::string expected = ledger("whole", whole);
  ledger("part", part);
  EXPECT_EQ(ledger("part", {"run.max_steps=4", "parallel.zero=3", "dpo.cache_reference=false"}, 2), expected);
}

TEST_F(Dpo, RefusesWhatCannotBeMeant) {
  const auto message = [&](const std::vector<std::string>& overrides) {
    const Outcome outcome = run("refused", overrides);
    EXPECT_EQ(outcome.exit_code, 78) << outcome.output;
    return outcome.output;
  };
  EXPECT_THAT(message({"dpo.reference=" + file("reward_model")}), HasSubstr("is a reward model"));
  EXPECT_THAT(message({"dpo.sync_every=2", "run.finetuning=lora"}), HasSubstr("use full or freeze"));
  EXPECT_THAT(message({"dpo.sync_every=2", "dpo.cache_reference=true"}), HasSubstr("must run with every step"));
  EXPECT_THAT(message({"dpo.sync_every=2", "dpo.loss=simpo"}), HasSubstr("a loss with a reference"));
  EXPECT_THAT(message({"dpo.loss=sigmiod"}), HasSubstr("did you mean"));
  EXPECT_THAT(message({"dpo.loss=exo_pair"}), HasSubstr("label_smoothing above 0"));
  EXPECT_THAT(message({"dpo.loss=sigmoid, ipo", "dpo.loss_weights=1"}), HasSubstr("1 weights for 2 losses"));
}

}  // namespace
}  // namespace llmtrain::test
