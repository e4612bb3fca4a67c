// llmtool import and export of models: the released small ones reproduce known results. They and the texts are in the
// folder that LLMTRAIN_DATA names.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/program.hpp"
#include "harness/errors.hpp"
#include "text/hf_folder/base64.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Import : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& bytes) const { write_file(folder_ / name, bytes); }
  static void expect_error(int code, const std::string& what, const std::vector<std::string>& arguments) {
    const Outcome outcome = llmtool(arguments);
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(what));
  }
  std::string import(std::vector<std::string> arguments, const std::string& output) const {
    arguments.insert(arguments.begin(), "import");
    arguments.insert(arguments.end(), {"--output", path(output), "--force"});
    const Outcome outcome = llmtool(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return path(output);
  }

 private:
  TemporaryFolder folder_;
};

#define NEEDS_DATA()                                                            \
  const char* const data = std::getenv("LLMTRAIN_DATA");                        \
  if (data == nullptr) GTEST_SKIP() << "LLMTRAIN_DATA names no folder of data"; \
  const std::string weights = std::string(data) + "/weights/"

std::vector<float> floats(const json& tensor) {
  std::string bytes;
  EXPECT_TRUE(from_base64(tensor["data"].get<std::string>(), bytes));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Sum of the log-probabilities that `logprobs` prints for rows of ids.
std::vector<std::vector<double>> logprobs(const std::string& model, const std::vector<std::vector<int32_t>>& rows) {
  std::string input;
  for (const auto& row : rows) input += json({{"input_ids", row}}).dump() + "\n";
  const Outcome outcome = llmtool({"logprobs", "--model", model}, input);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  std::vector<std::vector<double>> values;
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);) values.push_back(json::parse(line)["logprobs"]);
  return values;
}

TEST_F(Import, Stories260KTellsItsStory) {
  NEEDS_DATA();
  const std::string stories = weights + "stories260K/";
  const std::string model = import({stories + "stories260K.bin", "--tokenizer", stories + "tok512.model"}, "stories");
  const auto tell = [&](const char* tokens) {
    const Outcome outcome =
        llmtool({"generate", "--model", model, "--prompt", "", "--greedy", "--ignore-eos", "--max-new-tokens", tokens});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  const std::string expected = read_file(stories + "expected_greedy_200.txt");
  EXPECT_EQ(tell("200"), expected + "\n");
  EXPECT_NE(tell("199"), expected + "\n");
}

/// Stories begin with one of these; blank lines separate their paragraphs.
std::vector<std::string> read_stories(const std::string& file) {
  const std::string text = read_file(file);
  std::vector<std::string> stories;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find("\n\n", begin), text.size());
    const std::string paragraph = text.substr(begin, end - begin);
    begin = end + 2;
    if (paragraph.starts_with("Once upon a time") || paragraph.starts_with("One day,")) {
      stories.push_back(paragraph);
    } else if (!stories.empty()) {
      stories.back() += "\n\n" + paragraph;
    }
  }
  return stories;
}

TEST_F(Import, Stories260KHasItsLoss) {
  NEEDS_DATA();
  const std::string stories = weights + "stories260K/";
  const std::string model = import({stories + "stories260K.bin", "--tokenizer", stories + "tok512.model"}, "stories");
  const auto tokenizer = load_tokenizer(model);
  std::vector<std::vector<int32_t>> rows;
  for (const std::string& story : read_stories(std::string(data) + "/text/tinystories_sample.txt")) {
    std::vector<int32_t> ids = {1};
    tokenizer->encode(story, ids);
    ids.resize(std::min<size_t>(ids.size(), 512));
    rows.push_back(ids);
    if (rows.size() == 60) break;
  }
  double sum = 0;
  size_t targets = 0;
  for (const std::vector<double>& row : logprobs(model, rows)) {
    for (const double value : row) sum -= value;
    targets += row.size();
  }
  EXPECT_EQ(targets, 15248u);
  EXPECT_NEAR(sum / static_cast<double>(targets), 1.3151, 5e-5);
  // Control: rotating halves without the permutation of rows gives a different model.
  for (std::vector<int32_t>& row : rows) std::swap(row[1], row[2]);
  sum = 0;
  for (const std::vector<double>& row : logprobs(model, rows)) sum -= row[0];
  EXPECT_GT(sum / 60, 2);
}

TEST_F(Import, GptNanoSorts) {
  NEEDS_DATA();
  const std::string model = import({weights + "gpt-nano-sort/model.json"}, "sort");
  for (const auto& [digits, sorted] : std::vector<std::pair<std::string, std::string>>{
           {"0,0,2,1,0,1", "0 0 0 1 1 2\n"}, {"2,1,0,2,1,0", "0 0 1 1 2 2\n"}, {"2,2,2,2,2,0", "0 2 2 2 2 2\n"}}) {
    const Outcome outcome =
        llmtool({"generate", "--model", model, "--prompt-ids", digits, "--greedy", "--ids", "--max-new-tokens", "6"});
    EXPECT_EQ(outcome.output, sorted) << outcome.output;
  }
}

/// logits [V] of one position: the head on the normalised output of a block, in double.
std::vector<double> logits_of(const std::vector<float>& block, size_t row, const json& model) {
  constexpr size_t width = 48;
  const std::vector<float> scale = floats(model["transformer.ln_f.weight"]);
  const std::vector<float> shift = floats(model["transformer.ln_f.bias"]), head = floats(model["lm_head.weight"]);
  const float* x = block.data() + row * width;
  double mean = 0, square = 0;
  for (size_t i = 0; i < width; ++i) mean += double{x[i]} / width;
  for (size_t i = 0; i < width; ++i) square += (x[i] - mean) * (x[i] - mean) / width;
  std::vector<double> logits(head.size() / width);
  for (size_t v = 0; v < logits.size(); ++v) {
    for (size_t i = 0; i < width; ++i) {
      const double normed = (x[i] - mean) / std::sqrt(square + 1e-5) * scale[i] + shift[i];
      logits[v] += normed * head[v * width + i];
    }
  }
  return logits;
}

TEST_F(Import, GptNanoHasTheKnownActivationsAfterEachBlock) {
  NEEDS_DATA();
  json model = json::parse(read_file(weights + "gpt-nano-sort/model.json"));
  const json partials = json::parse(read_file(weights + "gpt-nano-sort/partials.json"));
  const std::vector<float> idx = floats(partials["idx"]);
  std::vector<std::vector<int32_t>> rows(3);
  for (size_t i = 0; i < idx.size(); ++i) rows[i / 11].push_back(static_cast<int32_t>(idx[i]));
  for (int layers = 3; layers >= 1; --layers) {  // the model with its first blocks only
    model["config"]["n_layer"] = layers;
    write("model.json", model.dump());
    const auto found = logprobs(import({path("model.json")}, "nano"), rows);
    const std::vector<float> block = floats(partials["block" + std::to_string(layers - 1)]);
    double max_control = 0;
    for (size_t b = 0; b < 3; ++b) {
      for (size_t t = 0; t + 1 < 11; ++t) {
        const auto logp = [&](size_t row) {
          const std::vector<double> logits = logits_of(block, row, model);
          double total = 0;
          for (const double x : logits) total += std::exp(x);
          return logits[static_cast<size_t>(rows[b][t + 1])] - std::log(total);
        };
        const double expected = logp(b * 11 + t);
        EXPECT_NEAR(found[b][t], expected, 1e-5 + 3e-6 * std::abs(expected)) << layers << " blocks, " << b << ", " << t;
        max_control = larger(max_control, std::abs(found[b][t] - logp((b + 1) % 3 * 11 + t)));
      }
    }
    EXPECT_GT(max_control, 0.1);
    for (auto item = model.begin(); item != model.end();) {  // for the next iteration
      const bool last = item.key().starts_with("transformer.h." + std::to_string(layers - 1) + ".");
      item = last ? model.erase(item) : std::next(item);
    }
  }
}

TEST_F(Import, StatesOfWrappedModelsAreTheSameModel) {
  NEEDS_DATA();
  const json plain = json::parse(read_file(weights + "gpt-nano-sort/model.json"));
  const auto renamed = [&](const auto& name_of) {
    json state;
    for (const auto& [name, value] : plain.items()) state[name == "config" ? name : name_of(name)] = value;
    return state.dump();
  };
  const std::string expected =
      read_file(import({weights + "gpt-nano-sort/model.json"}, "plain") + "/model.safetensors");
  for (const std::string prefix : {"_orig_mod.", "module._orig_mod.", "_forward_module.model."}) {
    write("model.json", renamed([&](const std::string& name) { return prefix + name; }));
    EXPECT_EQ(read_file(import({path("model.json")}, "wrapped") + "/model.safetensors"), expected) << prefix;
  }
  write("model.json",
        renamed([](const std::string& name) { return name == "lm_head.weight" ? name : "module." + name; }));
  expect_error(65, "have different prefixes", {"import", path("model.json"), "--output", path("out")});
}

TEST_F(Import, DamagedModelsAreRefused) {
  NEEDS_DATA();
  const std::string good = read_file(weights + "stories260K/stories260K.bin");
  const auto refused = [&](const std::string& bytes, const std::string& what) {
    write("model.bin", bytes);
    expect_error(65, what, {"import", path("model.bin"), "--format", "llama2c", "--output", path("out")});
    EXPECT_FALSE(std::filesystem::exists(path("out")));
  };
  const auto with = [&](size_t field, int32_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + 4 * field, &value, 4);
    return bytes;
  };
  refused(good.substr(0, 20), "too short");
  refused(good.substr(0, good.size() - 1),
          "it has 1056539 bytes, but its header (dim 64, 5 layers, vocabulary 512) declares");
  refused(good + "x", "bytes, but its header");
  refused(with(0, -64), "dim is -64");
  refused(with(2, INT32_MAX), "n_layers is 2147483647");
  refused(with(3, 5), "do not divide");
  refused(with(5, INT32_MIN), "vocab_size is 0");
  refused(with(0, 0x616b3432), "version 172; only version 0 is supported");  // hidden_dim is taken for it
  json state = json::parse(read_file(weights + "gpt-nano-sort/model.json"));
  const auto json_refused = [&](const json& bad, const std::string& what) {
    write("model.json", bad.dump());
    expect_error(65, what, {"import", path("model.json"), "--output", path("out")});
  };
  json bad = state;
  bad.erase("transformer.h.2.mlp.c_proj.bias");
  json_refused(bad, "transformer.h.2.mlp.c_proj.bias: the tensor is missing");
  bad = state;
  bad["transformer.h.3.ln_1.weight"] = bad["transformer.h.2.ln_1.weight"];
  json_refused(bad, "'transformer.h.3.ln_1.weight': this model does not use it");
  bad = state;
  bad["lm_head.weight"]["shape"] = {48, 3};
  json_refused(bad, "lm_head.weight.shape: must be [3, 48], not [48,3]");
  bad = state;
  bad["lm_head.weight"]["data"] = "AAAA";
  json_refused(bad, "lm_head.weight.data: must have 576 bytes, not 3");
  bad = state;
  bad["config"]["n_layer"] = -1;
  json_refused(bad, "n_layer");
}

TEST_F(Import, ExportChangesTypesAndBack) {
  const std::string source = (source_folder() / "tests/reference/hf/llama").string();
  const auto exported = [&](const std::string& from, const std::vector<std::string>& more, const std::string& to) {
    std::vector<std::string> arguments = {"export", from, "--output", path(to)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = llmtool(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return path(to);
  };
  const auto file = [](const std::string& folder) { return read_file(folder + "/model.safetensors"); };
  EXPECT_EQ(file(exported(source, {}, "same")), file(source));
  const std::string half = exported(source, {"--dtype", "bf16", "--file-size", "9000"}, "half");
  EXPECT_THAT(read_file(half + "/model.safetensors.index.json"), HasSubstr("model-00001-of-00003.safetensors"));
  EXPECT_THAT(read_file(half + "/config.json"), HasSubstr("\"dtype\": \"bfloat16\""));
  const std::string full = exported(half, {"--dtype", "fp32"}, "full");
  EXPECT_NE(file(full), file(source)) << "rounded";
  expect_error(73, "it already exists", {"export", source, "--output", path("same")});
  expect_error(64, "must be fp32, bf16 or fp16", {"export", source, "--output", path("new"), "--dtype", "int8"});
  expect_error(66, "nowhere", {"export", "nowhere", "--output", path("new")});
}

}  // namespace
}  // namespace llmtrain::test
