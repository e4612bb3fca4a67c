// llmtool generate and logprobs on models made by Transformers, compared with the results of Transformers.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/program.hpp"
#include "harness/errors.hpp"
#include "harness/temporary_folder.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string golden_model(const std::string& name) { return (source_folder() / "tests/reference/hf" / name).string(); }

class HuggingFace : public testing::TestWithParam<const char*> {
 protected:
  HuggingFace() : golden_(json::parse(read_file(model() + "/expected.json"))) {}
  static std::string model() { return golden_model(GetParam()); }

  static std::string greedy(const std::vector<int>& prompt, size_t tokens) {
    const Outcome outcome =
        llmtool({"generate", "--model", model(), "--prompt-ids", fmt::format("{}", fmt::join(prompt, ",")), "--ids",
                 "--greedy", "--ignore-eos", "--max-new-tokens", std::to_string(tokens)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  }

  json golden_;
};

TEST_P(HuggingFace, GreedyGenerationIsIdentical) {
  for (const json& one : golden_["greedy"]) {
    const std::vector<int> expected = one["new"];
    std::vector<int> prompt = one["prompt"];
    EXPECT_EQ(greedy(prompt, expected.size()), fmt::format("{}\n", fmt::join(expected, " ")));
    bool other = false;  // control
    for (int k = 1; k <= 3 && !other; ++k) {
      prompt.back() = (prompt.back() + 7) % 41;
      other = greedy(prompt, expected.size()) != fmt::format("{}\n", fmt::join(expected, " "));
    }
    EXPECT_TRUE(other);
  }
}

TEST_P(HuggingFace, LogProbabilitiesAreThoseOfTheLogits) {
  const std::vector<int> ids = golden_["input_ids"];
  const json row = {{"input_ids", ids}};
  const json reversed = {{"input_ids", std::vector<int>(ids.rbegin(), ids.rend())}};
  const Outcome outcome = llmtool({"logprobs", "--model", model()}, row.dump() + "\n" + reversed.dump() + "\n");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const size_t first_line = outcome.output.find('\n');
  const json found = json::parse(outcome.output.substr(0, first_line));
  const json other = json::parse(outcome.output.substr(first_line + 1));
  const std::vector<double> values = found["logprobs"], control = other["logprobs"];
  ASSERT_EQ(values.size(), ids.size() - 1);
  double sum = 0, max_control = 0;
  for (size_t t = 0; t < values.size(); ++t) {
    const std::vector<double> logits = golden_["logits"][t];
    double total = 0;
    for (const double x : logits) total += std::exp(x);
    const double expected = logits[static_cast<size_t>(ids[t + 1])] - std::log(total);
    EXPECT_NEAR(values[t], expected, 1e-5) << "token " << t;
    max_control = larger(max_control, std::abs(control[t] - expected));
    sum += expected;
  }
  EXPECT_NEAR(found["sum"].get<double>(), sum, 1e-4);
  EXPECT_GT(max_control, 0.1) << "other ids have other probabilities";
}

INSTANTIATE_TEST_SUITE_P(Families, HuggingFace,
                         testing::Values("gpt2", "gpt2_published", "llama", "llama3_v4_sharded", "mistral", "qwen2",
                                         "qwen3", "gemma2", "phi3", "mixtral", "mixtral_fused", "olmoe", "qwen2_moe",
                                         "qwen3_moe", "qwen2_moe_between", "deepseek_v2", "deepseek_v3", "gpt_oss",
                                         "phi4", "starcoder2", "granite", "smollm3", "olmo2", "gpt_neox", "pythia",
                                         "falcon", "falcon_grouped", "gemma3"),
                         [](const auto& test) { return std::string(test.param); });

/// Renames tensors of a safetensors file; their data stay in place.
void rename_tensors(const std::filesystem::path& path, const json& renamed) {
  const std::string bytes = read_file(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  json header = json::parse(bytes.substr(8, length));
  for (const auto& [from, to] : renamed.items()) {
    header[to.get<std::string>()] = header.at(from);
    header.erase(from);
  }
  const std::string text = header.dump(), tensors = bytes.substr(8 + length);
  length = text.size();
  std::string start(sizeof(length), '\0');
  std::memcpy(start.data(), &length, sizeof(length));
  write_file(path, start + text + tensors);
}

// Variants of files that users have, besides those that Transformers writes today: see make_variants.py. A folder of
// links stands for a snapshot of the Hugging Face cache.
TEST(HuggingFaceVariants, HaveTheLogProbabilitiesOfTransformers) {
  const json variants = json::parse(read_file(golden_model("variants.json")))["variants"];
  ASSERT_GE(variants.size(), 9U);
  double max_control = 0;
  for (const json& variant : variants) {
    SCOPED_TRACE(variant["model"].dump() + variant["config"].dump());
    const TemporaryFolder folder;
    const std::filesystem::path blobs = folder / "blobs", model = folder / "model";
    std::filesystem::copy(golden_model(variant["model"]), blobs);
    json config = json::parse(read_file(blobs / "config.json"));
    config.update(variant["config"]);
    write_file(blobs / "config.json", config.dump());
    rename_tensors(blobs / "model.safetensors", variant["renamed"]);
    std::filesystem::create_directory(model);
    for (const char* name : {"config.json", "model.safetensors"}) {
      std::filesystem::create_symlink(std::filesystem::path("../blobs") / name, model / name);
    }
    const std::vector<int> ids = variant["input_ids"];
    const Outcome outcome = llmtool({"logprobs", "--model", model.string()}, json({{"input_ids", ids}}).dump() + "\n");
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const std::vector<double> values =
        json::parse(outcome.output.substr(outcome.output.find("{\"logprobs")))["logprobs"];
    const std::vector<double> expected = variant["logprobs"], other = variants[6]["logprobs"];
    ASSERT_EQ(values.size(), expected.size());
    for (size_t t = 0; t < values.size(); ++t) {
      EXPECT_NEAR(values[t], expected[t], 1e-5) << "token " << t;
      if (variant["model"] == "llama") max_control = larger(max_control, std::abs(expected[t] - other[t]));
    }
  }
  EXPECT_GT(max_control, 0.01) << "other rope has other probabilities";
}

// int8 needs bitsandbytes' order of operations to the last place: one code more or less shows in the third digit.
TEST(HuggingFaceQuantized, HasTheLogProbabilitiesOfTransformers) {
  for (const std::string name : {"llama_nf4", "gpt2_int8"}) {
    const std::string model = (source_folder() / "tests/reference/quantization" / name).string();
    const json golden = json::parse(read_file(model + "/expected.json"));
    const std::vector<double> expected = golden["logprobs"];
    const auto largest_error = [&](const std::string& folder) {
      const Outcome outcome = llmtool({"logprobs", "--model", folder}, json{{"input_ids", golden["input_ids"]}}.dump());
      EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
      const std::vector<double> found = json::parse(outcome.output)["logprobs"];
      EXPECT_EQ(found.size(), expected.size());
      double largest = 0;
      for (size_t t = 0; t < expected.size(); ++t) largest = larger(largest, std::abs(found.at(t) - expected[t]));
      return largest;
    };
    EXPECT_LT(largest_error(model), 1e-5) << name;
    EXPECT_GT(largest_error(golden_model(name.substr(0, name.find('_')))), 1e-3) << "control: not quantised";
  }
}

// Matrices of 4 bits of other programs, dequantised as those compute.
TEST(HuggingFaceQuantized, GptqAndAwqHaveTheLogProbabilitiesOfTransformers) {
  const TemporaryFolder folder;
  const auto largest_error = [&](const std::string& name, const json& quantization) {
    const std::filesystem::path model = source_folder() / "tests/reference/quantization" / name;
    const std::string to = (folder / name).string();
    using std::filesystem::copy_options;
    std::filesystem::copy(model, to, copy_options::recursive | copy_options::overwrite_existing);
    json config = json::parse(read_file((model / "config.json").string()));
    config["quantization_config"].update(quantization);
    write_file(to + "/config.json", config.dump());
    const json golden = json::parse(read_file((model / "expected.json").string()));
    const std::vector<double> expected = golden["logprobs"];
    const Outcome outcome = llmtool({"logprobs", "--model", to}, json{{"input_ids", golden["input_ids"]}}.dump());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    const std::vector<double> found = json::parse(outcome.output)["logprobs"];
    EXPECT_EQ(found.size(), expected.size());
    double largest = 0;
    for (size_t t = 0; t < expected.size(); ++t) largest = larger(largest, std::abs(found.at(t) - expected[t]));
    return largest;
  };
  for (const std::string name : {"llama_gptq", "llama_gptq_v2", "llama_awq"}) {
    EXPECT_LT(largest_error(name, json::object()), 1e-5) << name;
  }
  EXPECT_GT(largest_error("llama_gptq", {{"checkpoint_format", "gptq_v2"}}), 1e-2) << "control: other zero points";
}

// Transformers' quantization_config does not have the size of blocks. Without it all matrices are dequantised.
TEST(HuggingFaceQuantized, KeepsTheCodesOfItsFiles) {
  const TemporaryFolder folder;
  const auto logprobs = [&](const char* block, bool described) {
    const std::string to = (folder / block).string();
    const Outcome quantized = llmtool({"quantize", "--model", golden_model("llama"), "--output", to, "--force",
                                       "--bits", "4", "--double", "--block-size", block});
    EXPECT_EQ(quantized.exit_code, 0) << quantized.output;
    json config = json::parse(read_file(to + "/config.json"));
    if (!described) config.erase("quantization_config");
    write_file(to + "/config.json", config.dump());
    const Outcome outcome = llmtool({"logprobs", "--model", to}, R"({"input_ids": [5, 6, 40, 7, 22]})");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  EXPECT_EQ(logprobs("32", true), logprobs("32", false));
  EXPECT_NE(logprobs("32", true), logprobs("64", true)) << "control";
}

// Every expert is the dense model's MLP, and the weights of a token's experts sum to 1.
TEST(HuggingFaceUpcycled, BeginsAsTheDenseModel) {
  const TemporaryFolder folder;
  const auto logprobs = [](const std::string& model) {
    const Outcome outcome = llmtool({"logprobs", "--model", model}, R"({"input_ids": [5, 6, 40, 7, 22, 31, 9, 12]})");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return json::parse(outcome.output)["logprobs"].get<std::vector<double>>();
  };
  const auto largest_difference = [](const std::vector<double>& a, const std::vector<double>& b) {
    EXPECT_EQ(a.size(), b.size());
    double largest = 0;
    for (size_t t = 0; t < std::min(a.size(), b.size()); ++t) largest = larger(largest, std::abs(a[t] - b[t]));
    return largest;
  };
  for (const std::string family : {"llama", "mistral", "qwen3"}) {
    const std::string made = (folder / family).string();
    const Outcome outcome =
        llmtool({"upcycle", "--model", golden_model(family), "--output", made, "--experts", "4", "--per-token", "3"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const std::vector<double> dense = logprobs(golden_model(family));
    EXPECT_LT(largest_difference(logprobs(made), dense), 5e-6) << family;
    json config = json::parse(read_file(made + "/config.json"));
    EXPECT_EQ(config["architectures"][0], family == "qwen3" ? "Qwen3MoeForCausalLM" : "MixtralForCausalLM");
    EXPECT_EQ(config["num_experts_per_tok"], 3);
    if (family != "qwen3") continue;
    EXPECT_EQ(config["norm_topk_prob"], true);
    config["norm_topk_prob"] = false;
    write_file(made + "/config.json", config.dump());
    EXPECT_GT(largest_difference(logprobs(made), dense), 1e-3) << "control: weights that sum to less than 1";
  }
}

std::string three_tokens() {
  return R"({"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,"post_processor":null,
             "decoder":null,"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2},"merges":[]}})";
}

// A row that is longer than all before it needs more memory, and changes nothing else.
TEST(HuggingFaceTokens, LogProbabilitiesAreThoseOfTheRowAlone) {
  const TemporaryFolder folder;
  std::filesystem::copy(golden_model("llama"), folder / "model", std::filesystem::copy_options::recursive);
  json config = json::parse(read_file(folder / "model/config.json"));
  config["max_position_embeddings"] = 2000;
  write_file(folder / "model/config.json", config.dump());
  const auto row = [](int length) {
    std::vector<int> ids(static_cast<size_t>(length));
    for (int i = 0; i < length; ++i) ids[static_cast<size_t>(i)] = 1 + (i * i) % 40;
    return json({{"input_ids", ids}}).dump() + "\n";
  };
  const auto logprobs = [&](const std::string& rows) {
    const Outcome outcome = llmtool({"logprobs", "--model", (folder / "model").string()}, rows);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  const std::string together = logprobs(row(5) + row(700) + row(9) + row(1500));
  EXPECT_EQ(together, logprobs(row(5)) + logprobs(row(700)) + logprobs(row(9)) + logprobs(row(1500)));
  EXPECT_NE(logprobs(row(5)), logprobs(row(6)));  // the control
}

// Published models have more rows than tokens; Transformers decodes the extra ids to nothing.
TEST(HuggingFaceTokens, RowsWithoutATokenAreNoText) {
  const TemporaryFolder folder;
  std::filesystem::copy(golden_model("llama"), folder / "model", std::filesystem::copy_options::recursive);
  write_file(folder / "model/tokenizer.json", three_tokens());
  const std::string model = (folder / "model").string();
  const Outcome ids = llmtool({"generate", "--model", model, "--prompt-ids", "5", "--ids", "--greedy"});
  EXPECT_EQ(ids.exit_code, 0) << ids.output;
  const Outcome text = llmtool({"generate", "--model", model, "--prompt", "a", "--greedy", "--max-new-tokens", "8"});
  EXPECT_EQ(text.exit_code, 0) << text.output;
  EXPECT_EQ(text.output.find_first_not_of("abc \n"), std::string::npos) << text.output;
}

TEST(HuggingFaceTokens, GenerationConfigSaysWhatEndsAText) {
  const TemporaryFolder folder;
  std::filesystem::copy(golden_model("llama"), folder / "model", std::filesystem::copy_options::recursive);
  const std::string model = (folder / "model").string();
  const auto generate = [&] {
    const Outcome outcome =
        llmtool({"generate", "--model", model, "--prompt-ids", "5", "--ids", "--greedy", "--max-new-tokens", "6"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::vector<int> ids;
    std::istringstream words(outcome.output);
    for (int id = 0; words >> id;) ids.push_back(id);
    return ids;
  };
  write_file(folder / "model/generation_config.json", "{}");
  const std::vector<int> all = generate();
  ASSERT_GE(all.size(), 3U);
  write_file(folder / "model/generation_config.json", json({{"eos_token_id", {40, all[2]}}}).dump());
  EXPECT_LE(generate().size(), 3U);
}

// The programs contain more code than the tests of the library: exceptions must also lead to an error message here.
TEST(HuggingFaceErrors, BrokenTokenizersEndWithAMessage) {
  const auto info = [](const std::string& path) { return llmtool({"tokenizer", "info", "--tokenizer", path}); };
  const TemporaryFolder folder;
  write_file(folder / "vocab.json", R"({"a":0})");
  write_file(folder / "merges.txt", "");
  EXPECT_THAT(info(folder.text()).output, HasSubstr("vocab.json: some bytes have no token"));
  EXPECT_EQ(info(folder.text()).exit_code, 65);
  int files = 0;
  for (const char* kind : {"tokenizer_json", "sentencepiece", "tiktoken"}) {
    for (const auto& entry : std::filesystem::directory_iterator(source_folder() / "tests/fuzz/corpus" / kind)) {
      const Outcome outcome = info(entry.path().string());
      EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 65) << entry.path() << '\n' << outcome.output;
      ++files;
    }
  }
  EXPECT_GT(files, 5);
}

TEST(HuggingFaceErrors, OutputThatCannotBeWrittenIsNoSuccess) {
  EXPECT_EQ(shell(programs::llmtool + " tokenizer info --tokenizer bytes > /dev/null").exit_code, 0);
  const Outcome full = shell(programs::llmtool + " tokenizer info --tokenizer bytes 2>&1 > /dev/full");
  EXPECT_EQ(full.exit_code, 74);
  EXPECT_THAT(full.output, HasSubstr("standard output: it cannot be written"));
}

TEST(HuggingFaceErrors, AreNamed) {
  const auto expect = [](int code, const std::string& what, const std::vector<std::string>& arguments,
                         const std::string& input = "") {
    const Outcome outcome = llmtool(arguments, input);
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(what));
  };
  const std::string model = golden_model("llama");
  expect(66, "nowhere", {"generate", "--model", "nowhere", "--prompt-ids", "1"});
  expect(66, "it has no tokenizer", {"generate", "--model", model, "--prompt", "text"});
  expect(64, "--prompt-ids", {"generate", "--model", model, "--prompt-ids", "1,x"});
  expect(65, "--prompt-ids: a token has the id 41", {"generate", "--model", model, "--prompt-ids", "1,41"});
  expect(64, "one of --prompt", {"generate", "--model", model});
  expect(65, "standard input:2: input_ids[1]: a token has the id 41, but", {"logprobs", "--model", model},
         "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 41]}\n");
  expect(65, "33 ids are more than the model's context of 32", {"logprobs", "--model", model},
         json({{"input_ids", std::vector<int>(33, 1)}}).dump());
  expect(66, "it is a file, not a folder", {"logprobs", "--model", model + "/config.json"});
  expect(64, "--stop must not be empty", {"generate", "--model", model, "--prompt-ids", "1", "--stop", ""});
  expect(64, "--temperature", {"generate", "--model", model, "--prompt-ids", "1", "--temperature", "nan"});
  const TemporaryFolder folder;
  write_file(folder / "model.pt", std::string("PK\x03\x04", 4) + "data.pkl");
  expect(65, "Reading such a file runs code", {"import", (folder / "model.pt").string(), "--output", "none"});
  expect(65, "standard input:1: the line is longer than 16 MiB", {"logprobs", "--model", model},
         std::string(size_t{17} << 20, ' ') + "\n");
}

}  // namespace
}  // namespace llmtrain::test
