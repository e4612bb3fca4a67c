// Adapters through the programs: those that PEFT made (tests/reference/adapters) have its log-probabilities, merged or
// not; a run writes an adapter that goes on from where it ended, with the same bytes for every number of ranks.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "decks/program.hpp"
#include "harness/errors.hpp"
#include "harness/temporary_folder.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string reference(const std::string& name) { return (source_folder() / "tests/reference" / name).string(); }

std::vector<double> logprobs(const std::vector<std::string>& model, const std::vector<int>& ids) {
  std::vector<std::string> arguments = {"logprobs", "--model"};
  arguments.insert(arguments.end(), model.begin(), model.end());
  const Outcome outcome = llmtool(arguments, json({{"input_ids", ids}}).dump() + "\n");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  const size_t row = outcome.output.find("{\"logprobs");
  return row == std::string::npos ? std::vector<double>()
                                  : json::parse(outcome.output.substr(row))["logprobs"].get<std::vector<double>>();
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) most = larger(most, std::abs(a[i] - b[i]));
  return most;
}

class AdapterOfPeft : public testing::TestWithParam<const char*> {};

TEST_P(AdapterOfPeft, HasItsLogProbabilities) {
  const std::string adapter = reference(std::string("adapters/") + GetParam());
  const json golden = json::parse(read_file(adapter + "/expected.json"));
  const std::string model = reference("hf/" + golden["model"].get<std::string>());
  const std::vector<int> ids = golden["input_ids"];
  std::vector<double> expected;
  for (size_t t = 0; t + 1 < ids.size(); ++t) {
    const std::vector<double> logits = golden["logits"][t];
    double total = 0;
    for (const double x : logits) total += std::exp(x);
    expected.push_back(logits[static_cast<size_t>(ids[t + 1])] - std::log(total));
  }
  EXPECT_LT(difference(logprobs({model, "--adapter", adapter}, ids), expected), 1e-5);
  const bool grown = std::string(GetParam()).ends_with("_grown");  // the model has no row for an id
  if (!grown) {
    EXPECT_GT(difference(logprobs({model}, ids), expected), 0.1) << "control";
  }
  const TemporaryFolder folder;
  const Outcome merged =
      llmtool({"merge", "--model", model, "--adapter", adapter, "--output", (folder / "merged").string()});
  ASSERT_EQ(merged.exit_code, 0) << merged.output;
  // Merged weights of models in 16 bits are rounded.
  const std::string config = read_file(model + "/config.json");
  const double rounding = config.find("bfloat16") != std::string::npos  ? 0.1
                          : config.find("float16") != std::string::npos ? 5e-3
                                                                        : 1e-5;
  EXPECT_LT(difference(logprobs({(folder / "merged").string()}, ids), expected), rounding);
}

INSTANTIATE_TEST_SUITE_P(Adapters, AdapterOfPeft,
                         testing::Values("llama_qv", "llama_dora", "gpt2_bias", "gpt2_dora", "phi3_fused", "neox_fused",
                                         "falcon_dora", "qwen2_tied", "qwen2_part", "gemma2_layers", "qwen3_regex",
                                         "llama_tables", "gpt2_tables", "gemma2_head", "qwen2_apart", "qwen2_embedding",
                                         "llama_saved", "llama_grown", "qwen2_grown", "mistral_grown", "mixtral_named",
                                         "qwen2_moe_both", "qwen3_moe_down", "olmoe_first", "gpt_oss_layer"),
                         [](const auto& test) { return std::string(test.param); });

class AdapterRun : public testing::Test {
 protected:
  AdapterRun() {
    std::mt19937 random(1);
    std::string rows;
    for (int i = 0; i < 40; ++i) {
      json ids = json::array();
      for (int k = 0; k < 20; ++k) ids.push_back(3 + random() % 38);
      rows += json({{"input_ids", ids}}).dump() + "\n";
    }
    write_file(folder_ / "rows.jsonl", rows);
  }

  /// Outcome of a run with these keys more.
  Outcome train(const std::string& name, const std::vector<std::string>& keys, int ranks = 1,
                const std::string& model = "llama", int threads = 1) {
    std::string deck = fmt::format(
        "[run]\nname = {}\noutput = {}\nfinetuning = lora\nmax_steps = 4\n[model]\npath = {}\n[data]\ntrain = {}\n"
        "packing = none\nvalidation_fraction = 0.2\n[batch]\nsequence_length = 24\nmicro = 2\nglobal = 4\n"
        "[schedule]\nname = constant\nlearning_rate = 0.01\n[precision]\ncompute = fp32\n"
        "[evaluation]\nevery_steps = 2\nat_start = true\n[checkpoint]\nevery_steps = 2\n",
        name, (folder_ / "runs").string(), reference("hf/" + model), (folder_ / "rows.jsonl").string());
    write_file(folder_ / (name + ".ini"), deck);
    std::vector<std::string> arguments = {(folder_ / (name + ".ini")).string()};
    arguments.insert(arguments.end(), keys.begin(), keys.end());
    return llmtrain({ranks, threads, arguments});
  }
  std::string at(const std::string& path) const { return (folder_ / "runs" / path).string(); }
  std::string adapter(const std::string& run) const {
    return read_file(at(run + "/adapter/adapter_model.safetensors"));
  }

  TemporaryFolder folder_;
};

const std::vector<std::string> dora = {"lora.r=3",         "lora.target_modules=.*\\.(q|v|down)_proj",
                                       "lora.dora=true",   "lora.modules_to_save=lm_head, k_proj",
                                       "lora.dropout=0.1", "checkpoint.export_merged=true"};

TEST_F(AdapterRun, WritesTheSameAdapterHoweverItIsComputed) {
  const Outcome one = train("one", dora);
  ASSERT_EQ(one.exit_code, 0) << one.output;
  const auto expect_same = [&](const std::string& name, std::vector<std::string> keys, int ranks, int threads = 1) {
    keys.insert(keys.end(), dora.begin(), dora.end());
    const Outcome other = train(name, keys, ranks, "llama", threads);
    ASSERT_EQ(other.exit_code, 0) << other.output;
    EXPECT_EQ(adapter(name), adapter("one")) << name;
    EXPECT_EQ(read_file(at(name + "/ledger.jsonl")), read_file(at("one/ledger.jsonl"))) << name;
  };
  expect_same("sharded", {"parallel.zero=3"}, 2);
  expect_same("three", {"parallel.zero=2"}, 3);
  expect_same("recomputed", {"memory.recompute=block"}, 1, 2);
  expect_same("offloaded", {"parallel.offload_optimizer=nvme", "parallel.offload_path=" + folder_.text()}, 1);
  std::vector<std::string> keys = dora;
  keys.emplace_back("run.max_steps=2");
  ASSERT_EQ(train("resumed", keys, 2).exit_code, 0);
  expect_same("resumed", {"parallel.zero=3"}, 3);
  keys = dora;
  keys.emplace_back("run.seed=7");
  ASSERT_EQ(train("seed", keys).exit_code, 0);
  EXPECT_NE(adapter("seed"), adapter("one")) << "control";
}

TEST_F(AdapterRun, OfTablesIsTheSameHoweverItIsComputed) {
  struct Case {
    const char* model;
    std::vector<std::string> keys;
  };
  const std::vector<Case> cases = {
      {"llama", {"lora.target_modules=q_proj, lm_head, embed_tokens", "lora.dropout=0.1"}},
      {"gpt2", {"lora.target_modules=c_attn, lm_head, wte, wpe"}},
      {"qwen2", {"lora.target_modules=q_proj", "lora.modules_to_save=embed_tokens, lm_head"}},
      {"llama", {"lora.path=" + reference("adapters/llama_grown")}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const auto run = [&](const std::string& name, std::vector<std::string> keys, int ranks) {
      keys.insert(keys.end(), cases[i].keys.begin(), cases[i].keys.end());
      const Outcome outcome = train(fmt::format("{}{}", name, i), keys, ranks, cases[i].model);
      ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    };
    const auto folder = [&](const std::string& name) { return fmt::format("{}{}", name, i); };
    run("one", {"checkpoint.export_merged=true"}, 1);
    run("sharded", {"parallel.zero=3", "memory.recompute=block"}, 2);
    run("resumed", {"run.max_steps=2"}, 2);
    run("resumed", {"parallel.zero=2"}, 3);
    for (const char* name : {"sharded", "resumed"}) {
      EXPECT_EQ(adapter(folder(name)), adapter(folder("one"))) << name;
      EXPECT_EQ(read_file(at(folder(name) + "/ledger.jsonl")), read_file(at(folder("one") + "/ledger.jsonl"))) << name;
    }
    const std::vector<int> ids = {5, 6, 40, 7, 22, 13, 9, 30};
    const std::string model = reference(std::string("hf/") + cases[i].model);
    const std::vector<double> expected = logprobs({at(folder("one"))}, ids);
    EXPECT_EQ(logprobs({model, "--adapter", at(folder("one") + "/adapter")}, ids), expected);
    EXPECT_LT(difference(logprobs({at(folder("one") + "/export")}, ids), expected), 0.05);  // rounded to bf16
    EXPECT_GT(difference(logprobs({model}, ids), expected), 0.1) << "control";
    const json merged = json::parse(read_file(at(folder("one") + "/export/config.json")));
    EXPECT_EQ(merged["tie_word_embeddings"], false);
  }
}

TEST_F(AdapterRun, GoesOnFromAdaptersOfFusedExperts) {
  const std::string fused = reference("adapters/mixtral_named");
  const auto run = [&](const std::string& name, const std::string& path, std::vector<std::string> keys, int ranks) {
    keys.push_back("lora.path=" + path);
    const Outcome outcome = train(name, keys, ranks, "mixtral");
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  };
  const auto expect_same = [&](const std::string& name, const std::string& as) {
    EXPECT_EQ(adapter(name), adapter(as)) << name;
    EXPECT_EQ(read_file(at(name + "/ledger.jsonl")), read_file(at(as + "/ledger.jsonl"))) << name;
  };
  run("one", fused, {}, 1);
  run("sharded", fused, {"parallel.zero=3"}, 2);
  run("experts", fused, {"parallel.expert=2"}, 2);
  expect_same("sharded", "one");
  expect_same("experts", "one");
  run("blocks", fused, {"parallel.tensor_blocks=2"}, 1);
  run("split", fused, {"parallel.tensor=2"}, 2);
  expect_same("split", "blocks");
  run("more", at("one/adapter"), {"parallel.tensor=2"}, 2);
  EXPECT_NE(adapter("more"), adapter("one")) << "control";
  const std::vector<int> ids = {5, 6, 40, 7, 22, 13, 9, 30};
  const std::string model = reference("hf/mixtral");
  EXPECT_EQ(logprobs({model, "--adapter", at("one/adapter")}, ids), logprobs({at("one")}, ids));
  const Outcome missing = train("other", {"lora.path=" + fused}, 1, "llama");
  EXPECT_EQ(missing.exit_code, 65);
  EXPECT_THAT(missing.output, HasSubstr("target_parameters: 'down_proj': only those of fused experts"));
}

TEST_F(AdapterRun, OverAQuantizedModelIsTheSameHoweverItIsComputed) {
  const std::vector<std::string> nf4 = {"lora.r=3", "lora.dropout=0.1", "quantization.bits=4"};
  const auto run = [&](const std::string& name, std::vector<std::string> keys, int ranks) {
    keys.insert(keys.end(), nf4.begin(), nf4.end());
    const Outcome outcome = train(name, keys, ranks);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  };
  const auto ledger = [&](const std::string& name) { return read_file(at(name + "/ledger.jsonl")); };
  run("one", {}, 1);
  run("sharded", {"parallel.zero=3", "memory.recompute=block"}, 3);
  run("offloaded", {"parallel.zero=3", "parallel.offload_optimizer=nvme", "parallel.offload_path=" + folder_.text()},
      2);
  run("resumed", {"run.max_steps=2"}, 2);
  run("resumed", {"parallel.zero=2"}, 1);
  for (const char* name : {"sharded", "offloaded", "resumed"}) {
    EXPECT_EQ(adapter(name), adapter("one")) << name;
    EXPECT_EQ(ledger(name), ledger("one")) << name;
  }
  ASSERT_EQ(train("dense16", {"lora.r=3", "lora.dropout=0.1"}).exit_code, 0);
  EXPECT_NE(ledger("dense16"), ledger("one")) << "control";
  // The checkpoint says how its model is stored.
  const std::vector<int> ids = {5, 6, 40, 7, 22, 13, 9, 30};
  const std::string model = reference("hf/llama");
  const std::vector<double> expected = logprobs({at("one")}, ids);
  EXPECT_EQ(logprobs({model, "--adapter", at("one/adapter"), "--quantize", "nf4", "--double"}, ids), expected);
  EXPECT_NE(logprobs({model, "--adapter", at("one/adapter")}, ids), expected);
  // The adapter names its storage, so that merging asks which weights are meant.
  const Outcome unnamed =
      llmtool({"merge", "--model", model, "--adapter", at("one/adapter"), "--output", at("merged")});
  EXPECT_EQ(unnamed.exit_code, 65);
  EXPECT_THAT(unnamed.output, HasSubstr("'nf4 in blocks of 64, doubly quantised'"));
  const Outcome full = train("full", {"run.finetuning=full", "quantization.bits=4"});
  EXPECT_EQ(full.exit_code, 78);
  EXPECT_THAT(full.output, HasSubstr("quantization.bits: needs run.finetuning = lora"));
  const Outcome part = train("part", {"quantization.bits=4", "quantization.skip_modules=lm_head, k_proj"});
  EXPECT_EQ(part.exit_code, 78);
  EXPECT_THAT(part.output, HasSubstr("q_proj, k_proj, v_proj are one matrix here"));
  EXPECT_EQ(train("bits", {"quantization.bits=5"}).exit_code, 78);
}

// PiSSA and OLoRA: the frozen matrices lose what the adapters begin with, and the adapter that is written fits the
// model as it was.
TEST_F(AdapterRun, StartsFromTheMatrices) {
  const std::vector<int> ids = {5, 6, 40, 7, 22, 13, 9, 30};
  const std::string model = reference("hf/llama");
  const auto first_loss = [&](const std::string& run) {
    const std::string ledger = read_file(at(run + "/ledger.jsonl"));
    const json row = json::parse(ledger.substr(0, ledger.find('\n')));
    return std::strtod(row.at("validation_loss").get<std::string>().c_str(), nullptr);
  };
  ASSERT_EQ(train("plain", {"lora.r=3"}).exit_code, 0);
  for (const std::string init : {"pissa", "olora"}) {
    SCOPED_TRACE(init);
    const auto run = [&](const std::string& name, std::vector<std::string> keys, int ranks, int threads = 1) {
      keys.insert(keys.end(), {"lora.r=3", "lora.init=" + init});
      const Outcome outcome = train(name + init, keys, ranks, "llama", threads);
      ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    };
    run("one", {"checkpoint.export_merged=true"}, 1);
    run("sharded", {"parallel.zero=3"}, 2, 2);
    run("resumed", {"run.max_steps=2"}, 2);
    run("resumed", {"parallel.zero=2"}, 3);
    for (const char* name : {"sharded", "resumed"}) {
      EXPECT_EQ(adapter(name + init), adapter("one" + init)) << name;
      EXPECT_EQ(read_file(at(name + init + "/ledger.jsonl")), read_file(at("one" + init + "/ledger.jsonl"))) << name;
    }
    EXPECT_NEAR(first_loss("one" + init), first_loss("plain"), 1e-5);
    const std::vector<double> trained = logprobs({at("one" + init)}, ids);  // frozen matrices as they were trained with
    EXPECT_LT(difference(logprobs({model, "--adapter", at("one" + init + "/adapter")}, ids), trained), 1e-4);
    EXPECT_LT(difference(logprobs({at("one" + init + "/export")}, ids), trained), 1e-4);
    EXPECT_GT(difference(logprobs({model}, ids), trained), 0.05) << "control";
    const json config = json::parse(read_file(at("one" + init + "/adapter/adapter_config.json")));
    EXPECT_EQ(config["r"], 6);
    EXPECT_EQ(config["lora_alpha"], 12);
  }
  EXPECT_NE(adapter("onepissa"), adapter("oneolora")) << "control";
  std::filesystem::remove(at("resumedpissa/initial_adapter.safetensors"));
  const Outcome gone = train("resumedpissa", {"lora.r=3", "lora.init=pissa", "run.max_steps=6"});
  EXPECT_EQ(gone.exit_code, 66);
  EXPECT_THAT(gone.output, HasSubstr("initial_adapter.safetensors: the file is gone"));
  const Outcome norms = train("norms", {"lora.init=pissa", "lora.dora=true"});
  EXPECT_EQ(norms.exit_code, 78);
  EXPECT_THAT(norms.output, HasSubstr("lora.dora: cannot be true with lora.init = pissa"));
  const Outcome table = train("table", {"lora.init=olora", "lora.target_modules=q_proj, embed_tokens"});
  EXPECT_EQ(table.exit_code, 78);
  EXPECT_THAT(table.output, HasSubstr("lora.target_modules: the embedding cannot be adapted with lora.init = olora"));
  const Outcome tied = train("tied", {"lora.init=pissa", "lora.target_modules=q_proj, lm_head"}, 1, "qwen2");
  EXPECT_EQ(tied.exit_code, 78);
  EXPECT_THAT(tied.output, HasSubstr("the head cannot be adapted with lora.init = pissa: its matrix is the embedding"));
}

// LoftQ: the adapters correct the errors of 4 bits.
TEST_F(AdapterRun, CorrectsTheErrorsOfQuantization) {
  const std::vector<int> ids = {5, 6, 40, 7, 22, 13, 9, 30};
  const std::string model = reference("hf/llama");
  const auto run = [&](const std::string& name, std::vector<std::string> keys, int ranks) {
    keys.insert(keys.end(), {"lora.r=8", "lora.alpha=8", "quantization.bits=4", "schedule.learning_rate=1e-9"});
    const Outcome outcome = train(name, keys, ranks);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    return;
  };
  run("one", {"lora.init=loftq"}, 1);
  run("sharded", {"lora.init=loftq", "parallel.zero=3"}, 3);
  run("resumed", {"lora.init=loftq", "run.max_steps=2"}, 2);
  run("resumed", {"lora.init=loftq"}, 1);
  run("plain", {}, 1);
  for (const char* name : {"sharded", "resumed"}) {
    EXPECT_EQ(adapter(name), adapter("one")) << name;
    EXPECT_EQ(read_file(at(std::string(name) + "/ledger.jsonl")), read_file(at("one/ledger.jsonl"))) << name;
  }
  const std::vector<double> dense = logprobs({model}, ids), trained = logprobs({at("one")}, ids);
  EXPECT_LT(difference(trained, dense), 0.5 * difference(logprobs({at("plain")}, ids), dense));
  EXPECT_EQ(logprobs({model, "--adapter", at("one/adapter"), "--quantize", "nf4", "--double"}, ids), trained);
  const Outcome whole = train("whole", {"lora.init=loftq"});
  EXPECT_EQ(whole.exit_code, 78);
  EXPECT_THAT(whole.output, HasSubstr("lora.init: loftq corrects the errors of 4 bits: set quantization.bits = 4"));
}

TEST_F(AdapterRun, IsExportedMergedEvaluatedAndContinued) {
  ASSERT_EQ(train("one", dora).exit_code, 0);
  const std::string exported = (folder_ / "exported").string(), model = reference("hf/llama");
  ASSERT_EQ(llmtool({"export", at("one"), "--output", exported}).exit_code, 0);
  EXPECT_EQ(read_file(exported + "/adapter_model.safetensors"), adapter("one"));
  EXPECT_EQ(read_file(exported + "/adapter_config.json"), read_file(at("one/adapter/adapter_config.json")));

  EXPECT_EQ(llmtool({"export", at("one"), "--output", exported}).exit_code, 73) << "it is there";
  EXPECT_EQ(llmtool({"export", at("one"), "--output", exported, "--force"}).exit_code, 0);

  const std::vector<int> ids = {5, 6, 40, 7, 22, 13, 9, 30};
  const std::vector<double> expected = logprobs({model, "--adapter", exported}, ids);
  EXPECT_LT(difference(logprobs({at("one")}, ids), expected), 1e-6) << "of the checkpoint";
  EXPECT_LT(difference(logprobs({at("one/export")}, ids), expected), 1e-5) << "of the merged model";
  EXPECT_GT(difference(logprobs({model}, ids), expected), 0.01) << "control";

  // The first evaluation of a run that goes on is the last one of the other.
  const auto evaluations = [&](const std::string& run) {
    std::vector<std::string> losses;
    std::istringstream lines(read_file(at(run + "/ledger.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      const json row = json::parse(line);
      if (row.contains("validation_loss")) losses.push_back(row["validation_loss"]);
    }
    return losses;
  };
  const Outcome more = train("more", {"lora.path=" + at("one/adapter")});
  ASSERT_EQ(more.exit_code, 0) << more.output;
  EXPECT_EQ(evaluations("more").front(), evaluations("one").back());
  EXPECT_NE(evaluations("one").front(), evaluations("one").back()) << "control";
  EXPECT_THAT(read_file(at("more/deck.ini")), HasSubstr("r = 3"));
  // Names that the model does not have, as PEFT writes those that it was given.
  std::filesystem::copy(at("one/adapter"), folder_ / "wider");
  json config = json::parse(read_file(folder_ / "wider/adapter_config.json"));
  config["target_modules"].push_back("c_attn");
  config["modules_to_save"].push_back("score");
  write_file(folder_ / "wider/adapter_config.json", config.dump());
  const std::string wider = (folder_ / "wider").string();
  const Outcome same = train("same", {"lora.path=" + wider, "lora.target_modules=.*[qv]_proj|.*down.*"});
  EXPECT_EQ(same.exit_code, 0) << same.output;
  EXPECT_THAT(same.output, HasSubstr("they are ignored: target_modules c_attn; modules_to_save score"));
  EXPECT_EQ(evaluations("same"), evaluations("more"));
  const Outcome other = train("other", {"lora.path=" + at("one/adapter"), "lora.r=8"});
  EXPECT_EQ(other.exit_code, 78);
  EXPECT_THAT(other.output, HasSubstr("lora.r: the adapter in lora.path has 3"));

  const Outcome evaluated = train("evaluated", {"run.task=evaluate", "lora.path=" + at("one/adapter")});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.output;
  const json report = json::parse(read_file(at("evaluated/evaluation.json")));
  const double loss = report["loss"];
  EXPECT_EQ(report["adapter"].get<std::string>(), at("one/adapter"));
  EXPECT_NEAR(loss, std::strtod(evaluations("one").back().c_str(), nullptr), 1e-6);

  const Outcome emptied = train("one", {"run.overwrite=true", "lora.path=" + at("one/adapter")});
  EXPECT_EQ(emptied.exit_code, 78);
  EXPECT_THAT(emptied.output, HasSubstr("lies in the folder of this run, which run.overwrite=true empties"));
  EXPECT_FALSE(adapter("one").empty());
}

TEST_F(AdapterRun, ThatMustNotGoOnIsRefused) {
  EXPECT_EQ(train("full", {"run.finetuning=full", "lora.r=8"}).exit_code, 78);
  const Outcome shape = train("shape", {"lora.path=" + reference("adapters/llama_qv")}, 1, "gpt2");
  EXPECT_EQ(shape.exit_code, 65);
  EXPECT_THAT(shape.output, HasSubstr("does not fit the model"));
  EXPECT_EQ(train("half", {"lora.rank_pattern=q_proj:2.5"}).exit_code, 78);
  const Outcome missing = train("missing", {"lora.path=" + at("nowhere")});
  EXPECT_EQ(missing.exit_code, 66);
  // Another model of the same shape than the adapter was trained with.
  const std::filesystem::path other = folder_ / "other";
  std::filesystem::copy(reference("hf/llama"), other);
  ASSERT_EQ(train("one", {"model.path=" + other.string()}).exit_code, 0);
  std::string bytes = read_file(other / "model.safetensors");
  bytes[bytes.size() - 5] ^= 1;
  write_file(other / "model.safetensors", bytes);
  const Outcome resumed = train("one", {"model.path=" + other.string(), "run.max_steps=5"});
  EXPECT_EQ(resumed.exit_code, 65);
  EXPECT_THAT(resumed.output, HasSubstr("the run started from another model than model.path has now. Restore the old "
                                        "model, or start a new run"));
  const std::vector<std::string> merge = {
      "merge", "--model", other.string(), "--adapter", at("one/adapter"), "--output", (folder_ / "merged").string()};
  const Outcome merged = llmtool(merge);
  EXPECT_EQ(merged.exit_code, 65);
  EXPECT_THAT(merged.output, HasSubstr("was trained with other weights"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "merged"));
  std::vector<std::string> forced = merge;
  forced.emplace_back("--force");
  EXPECT_EQ(llmtool(forced).exit_code, 0);
}

}  // namespace
}  // namespace llmtrain::test
