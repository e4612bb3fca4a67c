// [model] path: training starts from a Hugging Face folder, for any number of ranks and any ZeRO stage, and exports the
// imported values.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "decks/program.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

fs::path models() { return source_folder() / "tests/reference/hf"; }

/// Rows of ids below 41, the vocabulary of the models.
std::string rows_of(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += "{\"input_ids\": [";
    for (int k = 0; k < 6 + i * 7 % 9; ++k)
      text += (k > 0 ? ", " : "") + std::to_string((i * 29 + k * k * 11 + k) % 41);
    text += "]}\n";
  }
  return text;
}

class ModelPath : public ::testing::Test {
 protected:
  ModelPath() {
    write_file(folder / "rows.jsonl", rows_of(40));
    write_file(folder / "deck.ini", "[run]\nmax_steps = 4\noutput = " + folder.text() +
                                        "\n[data]\ntrain = " + (folder / "rows.jsonl").string() +
                                        "\npacking = none\n[batch]\nsequence_length = 12\nmicro = 2\nglobal = 6\n"
                                        "[schedule]\nlearning_rate = 3e-3\n[evaluation]\nat_start = true\n"
                                        "[precision]\ncompute = fp32\n[log]\nparameter_hash_every_steps = 1\n");
  }

  Outcome start(int ranks, const std::string& model, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {(folder / "deck.ini").string(), "model.path=" + model};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return llmtrain({ranks, 1, arguments});
  }

  /// The ledger of one run and its exported weights, or the output if it failed.
  std::string run(int ranks, const std::string& model, std::vector<std::string> more) {
    name = "run" + std::to_string(++runs);
    more.push_back("run.name=" + name);
    more.emplace_back("checkpoint.export=last");
    const Outcome outcome = start(ranks, model, more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    if (outcome.exit_code != 0) return outcome.output + name;
    return read_file(folder / (name + "/ledger.jsonl")) + weights(folder / (name + "/export"));
  }
  static std::string weights(const fs::path& model) { return read_file(model / "model.safetensors"); }

  /// A copy of a model to modify.
  fs::path copy(const std::string& model) {
    fs::path to = folder / ("copy" + std::to_string(++copies));
    fs::copy(models() / model, to);
    return to;
  }

  void expect_error(int code, const std::string& part, const std::string& model, const std::vector<std::string>& more) {
    for (int ranks : {1, 3}) {
      const Outcome outcome = start(ranks, model, more);
      EXPECT_EQ(outcome.exit_code, code) << ranks << " ranks: " << outcome.output;
      const size_t at = outcome.output.find(part);
      EXPECT_NE(at, std::string::npos) << "no '" << part << "' in: " << outcome.output;
      EXPECT_EQ(outcome.output.find(part, at + 1), std::string::npos) << "twice: " << outcome.output;
    }
    EXPECT_FALSE(fs::exists(folder / "deck/ledger.jsonl"));
  }

  TemporaryFolder folder;
  std::string name;
  int runs = 0, copies = 0;
};

TEST_F(ModelPath, LedgerAndExportAreIdenticalForEveryRankCountAndStage) {
  const std::string model = (models() / "llama3_v4_sharded").string();
  const std::string expected = run(1, model, {"parallel.zero=1"});
  for (int stage : {0, 2, 3}) {
    EXPECT_TRUE(run(1, model, {"parallel.zero=" + std::to_string(stage)}) == expected) << "stage " << stage;
  }
  for (int ranks : {2, 3}) {
    for (int stage : {0, 1, 2, 3}) {
      EXPECT_TRUE(run(ranks, model, {"parallel.zero=" + std::to_string(stage)}) == expected) << ranks << ", " << stage;
    }
  }
  // Flips one bit of the last weight in the last file.
  const fs::path other = copy("llama3_v4_sharded");
  std::string file = read_file(other / "model-00005-of-00005.safetensors");
  file[file.size() - 2] = static_cast<char>(file[file.size() - 2] ^ 1);
  write_file(other / "model-00005-of-00005.safetensors", file);
  EXPECT_FALSE(run(2, other.string(), {"parallel.zero=3"}) == expected);
}

TEST_F(ModelPath, TheFirstLossIsThatOfTransformers) {
  for (const char* model : {"gpt2_published", "llama3_v4_sharded", "gemma2"}) {
    const nlohmann::json golden = nlohmann::json::parse(read_file(models() / model / "expected.json"));
    const std::vector<int> ids = golden["input_ids"];
    double sum = 0;
    for (size_t t = 0; t + 1 < ids.size(); ++t) {
      const std::vector<double> logits = golden["logits"][t];
      double total = 0;
      for (const double x : logits) total += std::exp(x);
      sum += std::log(total) - logits[static_cast<size_t>(ids[t + 1])];
    }
    write_file(folder / "one.jsonl", "{\"input_ids\": " + nlohmann::json(ids).dump() + "}\n");
    run(2, (models() / model).string(),
        {"data.validation=" + (folder / "one.jsonl").string(), "batch.sequence_length=19", "parallel.zero=3"});
    const std::string ledger = read_file(folder / (name + "/ledger.jsonl"));
    const nlohmann::json first = nlohmann::json::parse(ledger.substr(0, ledger.find('\n')));
    EXPECT_EQ(first["step"], 0);
    EXPECT_NEAR(std::strtod(first["validation_loss"].get<std::string>().c_str(), nullptr),
                sum / static_cast<double>(ids.size() - 1), 2e-6)
        << model;
    EXPECT_THAT(read_file(folder / (name + "/log.txt")), HasSubstr("GB/s"));
  }
}

TEST_F(ModelPath, WithoutLearningTheWeightsComeBackByteForByte) {
  // Names, order, metadata and values; phi3 has fp16 weights and fused matrices, gpt2 transposed ones.
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"gpt2", "fp32"},  {"llama", "fp32"},  {"mistral", "fp32"}, {"qwen2", "bf16"},
      {"qwen3", "fp32"}, {"gemma2", "fp32"}, {"phi3", "fp16"}};
  for (const auto& [model, type] : cases) {
    const fs::path source = models() / model;
    run(2, source.string(),
        {"schedule.learning_rate=0", "checkpoint.export_dtype=" + type, "run.max_steps=1", "parallel.zero=3"});
    EXPECT_TRUE(weights(folder / (name + "/export")) == weights(source)) << model;
    EXPECT_EQ(read_file(folder / (name + "/export/config.json")), read_file(source / "config.json")) << model;
    EXPECT_EQ(read_file(folder / (name + "/export/generation_config.json")),
              read_file(source / "generation_config.json"));
  }
  run(2, (models() / "llama").string(), {"run.max_steps=1"});
  EXPECT_FALSE(weights(folder / (name + "/export")) == weights(models() / "llama"));
}

TEST_F(ModelPath, TheBestModelIsExportedNotTheLast) {
  // Validated on its own output, the model gets worse by training on other text.
  const fs::path model = models() / "llama";
  nlohmann::json said = nlohmann::json::parse(read_file(model / "expected.json"))["greedy"][0];
  nlohmann::json row = said["prompt"];
  for (const auto& id : said["new"]) row.push_back(id);
  write_file(folder / "said.jsonl", "{\"input_ids\": " + row.dump() + "}\n");
  const std::vector<std::string> settings = {"schedule.learning_rate=0.03", "checkpoint.export=best",
                                             "evaluation.every_steps=1", "batch.sequence_length=16",
                                             "data.validation=" + (folder / "said.jsonl").string()};
  const auto best_is_the_first = [&](std::vector<std::string> more) {
    more.insert(more.end(), settings.begin(), settings.end());
    const Outcome outcome = start(2, model.string(), more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return weights(folder / "deck/export") == weights(model);
  };
  EXPECT_TRUE(best_is_the_first({}));
  EXPECT_FALSE(best_is_the_first({"run.overwrite=true", "data.train=" + (folder / "said.jsonl").string()}));
}

TEST_F(ModelPath, ACheckpointIsExportedAsTheRunExportsItself) {
  run(2, (models() / "phi3").string(), {"parallel.zero=2"});
  const Outcome outcome = llmtool({"export", (folder / (name + "/checkpoints/step-00000004")).string(), "--output",
                                   (folder / "exported").string()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const char* file : {"model.safetensors", "config.json", "generation_config.json"}) {
    EXPECT_TRUE(read_file(folder / "exported" / file) == read_file(folder / (name + "/export") / file)) << file;
  }
  EXPECT_FALSE(weights(folder / "exported") == weights(models() / "phi3"));
}

// From new weights, with padding rows of the embedding, which are not exported.
// Checkpoints of freeze tuning hold what is trained; the rest stays in the model's folder, from where both exports have
// it: a run in bf16 has rounded it.
TEST_F(ModelPath, FrozenWeightsStayInTheirFolder) {
  const fs::path model = copy("llama");
  const std::vector<std::string> freeze = {"run.finetuning=freeze",        "freeze.trainable_layers=1",
                                           "freeze.trainable_modules=mlp", "checkpoint.every_steps=2",
                                           "evaluation.at_start=false",    "precision.compute=bf16"};
  const std::string expected = run(1, model.string(), freeze);
  const fs::path checkpoint = folder / (name + "/checkpoints/step-00000004"), exported = folder / (name + "/export");
  const auto manifest = nlohmann::json::parse(read_file(checkpoint / "manifest.json"))["manifest"];
  EXPECT_EQ(manifest["frozen"]["path"], model.string());
  for (const auto& tensor : manifest["tensors"]) EXPECT_THAT(std::string(tensor["name"]), HasSubstr(".mlp."));
  EXPECT_TRUE(run(3, model.string(), freeze) == expected);

  const auto generate = [](const fs::path& from) {
    return llmtool(
        {"generate", "--model", from.string(), "--prompt-ids", "1,2,3", "--max-new-tokens", "8", "--greedy", "--ids"});
  };
  const Outcome here = generate(exported);
  ASSERT_EQ(here.exit_code, 0) << here.output;
  EXPECT_EQ(generate(checkpoint).output, here.output);
  const fs::path again = folder / "again";
  ASSERT_EQ(llmtool({"export", checkpoint.string(), "--output", again.string()}).exit_code, 0);
  EXPECT_TRUE(weights(again) == weights(exported));

  // Flips one bit of a frozen weight.
  const fs::path file = model / "model.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() - 100] = static_cast<char>(bytes[bytes.size() - 100] ^ 1);
  write_file(file, bytes);
  const Outcome other = generate(checkpoint);
  EXPECT_EQ(other.exit_code, 65) << other.output;
  EXPECT_THAT(other.output, HasSubstr("its frozen weights, which it does not contain, were those of"));
  fs::remove_all(model);
  const Outcome gone = generate(checkpoint);
  EXPECT_EQ(gone.exit_code, 66) << gone.output;
  EXPECT_THAT(gone.output,
              HasSubstr("its frozen weights, which it does not contain, cannot be read. " + model.string()));
}

TEST_F(ModelPath, NewWeightsAreExportedWithoutPaddingRows) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += i * i % 7 < 3 ? "a" : "b";
  write_file(folder / "text.txt", text);
  const Outcome outcome =
      llmtrain({2,
                1,
                {(folder / "deck.ini").string(), "data.train=" + (folder / "text.txt").string(), "data.packing=wrap",
                 "run.name=new", "model.family=llama", "model.d_model=16", "model.n_layers=1", "model.n_heads=2",
                 "model.vocab_size=64", "checkpoint.export=last", "checkpoint.export_dtype=bf16"}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  const nlohmann::json config = nlohmann::json::parse(read_file(folder / "new/export/config.json"));
  EXPECT_EQ(config["vocab_size"], 3) << "a, b and the end of a text";
  EXPECT_EQ(config["architectures"][0], "LlamaForCausalLM");
  const Outcome scored =
      llmtool({"logprobs", "--model", (folder / "new/export").string()}, "{\"input_ids\": [0, 1, 2]}");
  EXPECT_EQ(scored.exit_code, 0) << scored.output;
}

TEST_F(ModelPath, CheckPrintsADeckThatIsValidAgain) {
  const std::string model = (models() / "gpt2").string();
  const Outcome first = start(1, model, {"--check"});
  EXPECT_EQ(first.exit_code, 0) << first.output;
  EXPECT_THAT(first.output, HasSubstr("d_model = 24"));
  write_file(folder / "deck.ini", first.output);
  const Outcome second = llmtrain({1, 1, {(folder / "deck.ini").string(), "--check"}});
  EXPECT_EQ(second.exit_code, 0) << second.output;
  const auto values = [](const std::string& deck) {
    std::string lines;
    std::istringstream in(deck);
    for (std::string line; std::getline(in, line);) {
      if (line.find(" = ") != std::string::npos) lines += line.substr(0, line.find(" ;")) + "\n";
    }
    return lines;
  };
  EXPECT_EQ(values(second.output), values(first.output));
}

TEST_F(ModelPath, EstimateNeedsConfigJsonAlone) {
  const auto parameters = [&](const std::string& config) {
    const fs::path model = folder / ("shape" + std::to_string(++copies));
    fs::create_directory(model);
    write_file(model / "config.json", config);
    const Outcome outcome =
        start(1, model.string(), {"--estimate", "--json", "--ranks", "64", "--ranks-per-node", "8"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return nlohmann::json::parse(outcome.output)["parameters"].get<int64_t>();
  };
  EXPECT_EQ(parameters(R"({"model_type":"gpt2","architectures":["GPT2LMHeadModel"],"n_embd":1600,"n_layer":48,)"
                       R"("n_head":25,"n_positions":1024,"n_ctx":1024,"vocab_size":50257})"),
            1'557'611'200);
  EXPECT_EQ(parameters(R"({"model_type":"llama","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,)"
                       R"("num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,"rms_norm_eps":1e-5,)"
                       R"("max_position_embeddings":131072,"rope_theta":500000.0,"rope_scaling":{"rope_type":"llama3",)"
                       R"("factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
                       R"("original_max_position_embeddings":8192},"torch_dtype":"bfloat16"})"),
            8'030'261'248);
}

TEST_F(ModelPath, WhatContradictsTheModelIsRefusedWithBothValues) {
  const std::string model = (models() / "llama").string();
  expect_error(78, "model.d_model: is 24 in " + model + "/config.json", model, {"model.d_model=32"});
  expect_error(78, "model.family: is llama in", model, {"model.family=qwen2"});
  const Outcome same = start(1, model, {"model.d_model=24", "model.dropout=0.1", "run.max_steps=1", "run.name=same"});
  EXPECT_EQ(same.exit_code, 0) << same.output;
}

TEST_F(ModelPath, ItsTokenizerReadsTheText) {
  const fs::path model = copy("llama");
  const auto write_tokenizer = [&](int end_id) {
    write_file(model / "tokenizer.json",
               R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":)" + std::to_string(end_id) +
                   R"(,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,)"
                   R"("special":true}],"normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":null,)"
                   R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":3,"</s>":)" +
                   std::to_string(end_id) + R"(},"merges":["a b"]}})");
  };
  write_tokenizer(2);
  std::string text;
  for (int i = 0; i < 300; ++i) text += i * i % 7 < 3 ? "a" : "b";
  write_file(folder / "text.txt", text);
  const std::vector<std::string> settings = {"data.train=" + (folder / "text.txt").string(), "data.packing=wrap",
                                             "batch.global=2", "run.max_steps=2"};
  const Outcome checked = start(1, model.string(), {"data.train=" + (folder / "text.txt").string(), "--check"});
  EXPECT_EQ(checked.exit_code, 0) << checked.output;
  EXPECT_THAT(checked.output, HasSubstr("tokenizer = " + model.string()));
  run(2, model.string(), settings);
  EXPECT_EQ(read_file(folder / (name + "/export/tokenizer.json")), read_file(model / "tokenizer.json"));
  EXPECT_THAT(read_file(folder / (name + "/log.txt")), testing::Not(HasSubstr("has no tokenizer")));
  // The end-of-document token has no row: refused before anything is read. A missing tokenizer is reported.
  write_tokenizer(41);
  std::vector<std::string> ended = settings;
  ended.emplace_back("data.eos_token=</s>");
  expect_error(65, "EOS cannot end documents: the token \"</s>\" has the id 41", model.string(), ended);
  fs::remove(model / "tokenizer.json");
  run(1, model.string(), settings);
  EXPECT_THAT(read_file(folder / (name + "/log.txt")), HasSubstr("has no tokenizer"));
}

/// A padding token was added when the model was fine-tuned: no text contains it, and the result is only a warning.
TEST_F(ModelPath, ItsTokenizerMayHaveMoreTokensThanItHasRows) {
  const fs::path model = copy("llama");
  std::string vocabulary = R"("a":0,"b":1,"</s>":2,"ab":3)";
  for (int id = 4; id < 41; ++id) vocabulary += fmt::format(R"(,"c{}":{})", id, id);
  write_file(
      model / "tokenizer.json",
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":2,"content":"</s>","single_word":false,)"
      R"("lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":null,)"
      R"("post_processor":null,"decoder":null,"model":{"type":"BPE","vocab":{)" +
          vocabulary + R"(},"merges":["a b"]}})");
  write_file(model / "tokenizer_config.json", R"({"eos_token":"</s>"})");
  std::string text;
  for (int i = 0; i < 300; ++i) text += i * i % 7 < 3 ? "a" : "b";
  write_file(folder / "text.txt", text);
  const std::vector<std::string> settings = {"data.train=" + (folder / "text.txt").string(),
                                             "data.packing=wrap",
                                             "batch.global=2",
                                             "run.max_steps=2",
                                             "log.samples_every_steps=2",
                                             "log.sample_length=4"};
  const std::string without = run(1, model.string(), settings);
  EXPECT_THAT(read_file(folder / (name + "/log.txt")), testing::Not(HasSubstr("warning")));
  write_file(model / "special_tokens_map.json", R"({"pad_token":"[PAD]"})");
  EXPECT_EQ(run(1, model.string(), settings), without);
  EXPECT_THAT(read_file(folder / (name + "/log.txt")), HasSubstr(R"("[PAD]" (id 41) has no row)"));
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    EXPECT_EQ(read_file(folder / (name + "/export/") / file), read_file(model / file)) << file;
  }
  const auto refused = [&](const std::string& part, const std::string& setting) {
    std::vector<std::string> all = settings;
    all.insert(all.end(), {setting, "run.name=refused"});
    const Outcome outcome = start(1, model.string(), all);
    EXPECT_EQ(outcome.exit_code, 65) << outcome.output;
    EXPECT_THAT(outcome.output, testing::AllOf(HasSubstr(part), HasSubstr(R"("[PAD]" has the id 41)")));
  };
  refused("log.sample_prompts: 'b[PAD]'", "log.sample_prompts=a,b[PAD]");
  write_file(folder / "padded.txt", "ab\nab[PAD]");
  refused("padded.txt:2: byte 5", "data.validation=" + (folder / "padded.txt").string());

  const Outcome drawn = llmtool({"generate", "--model", model.string(), "--prompt", "ab", "--max-new-tokens", "40",
                                 "--temperature", "1000", "--ignore-eos"});
  EXPECT_EQ(drawn.exit_code, 0) << drawn.output;
  const Outcome prompted = llmtool({"generate", "--model", model.string(), "--prompt", "a[PAD]"});
  EXPECT_EQ(prompted.exit_code, 65);
  EXPECT_THAT(prompted.output, HasSubstr(R"(--prompt: the token "[PAD]" has the id 41)"));
}

TEST_F(ModelPath, WhatIsMissingOrDamagedIsNamed) {
  expect_error(66, "nowhere: ", (folder / "nowhere").string(), {});
  fs::path model = copy("llama");
  fs::rename(model / "model.safetensors", model / "pytorch_model.bin");
  expect_error(66, "pytorch_model.bin", model.string(), {});
  model = copy("llama");
  std::string config = read_file(model / "config.json");
  write_file(model / "config.json", std::string(config).replace(config.find("\"llama\""), 7, "\"mamba\""));
  expect_error(65, "model_type 'mamba' is not supported", model.string(), {});
  // One more layer than there are weights, then one fewer.
  const size_t layers = config.find("\"num_hidden_layers\": 2") + 21;
  write_file(model / "config.json", std::string(config).replace(layers, 1, "3"));
  expect_error(65, "model.layers.2.self_attn.q_proj.weight", model.string(), {});
  write_file(model / "config.json", std::string(config).replace(layers, 1, "1"));
  expect_error(65, "model.layers.1.self_attn.q_proj.weight", model.string(), {});
  const size_t width = config.find("\"intermediate_size\": 40") + 21;
  write_file(model / "config.json", std::string(config).replace(width, 2, "44"));
  expect_error(65, "model.layers.1.mlp.up_proj.weight is [40, 24] instead of [44, 24]", model.string(), {});
}

}  // namespace
}  // namespace llmtrain::test
