// run.task = classify: steps equal those of Transformers and PEFT (tests/reference/classification), scores by label
// those of scikit-learn, and the ledger does not depend on the layout. Exports and adapters label as the run does.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/program.hpp"
#include "harness/temporary_folder.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Overrides = std::vector<std::string>;

class ClassificationRun : public testing::Test {
 protected:
  static std::string file(const std::string& name) {
    return (source_folder() / "tests/reference/classification" / name).string();
  }
  static const json& goldens() {
    static const json all = json::parse(read_file(file("classification.json")));
    return all;
  }
  static bool has_words(const std::string& model) { return model.find("words") != std::string::npos; }
  /// File of the rows of a case, whose name begins with their kind.
  static std::string rows_of(const std::string& name) {
    static const std::map<std::string, std::string> files = {
        {"text", "texts"}, {"pair", "pairs"}, {"several", "several"}, {"number", "numbers"}, {"words", "words"}};
    return file(files.at(name.substr(0, name.find('_'))) + ".jsonl");
  }

  Outcome run(const std::string& name, const std::string& model, const Overrides& overrides, int ranks = 1) {
    const std::string deck = (folder / "classify.ini").string();
    write_file(deck, "[run]\ntask = classify\nmax_steps = 10\noutput = " + folder.text() + "\n[model]\npath = " +
                         file(model) + "\n[data]\ntrain = " + rows_of(model) + "\ntokenizer = " + file("../sft/model") +
                         "\nvalidation_fraction = 0\nshuffle = false\n[batch]\nsequence_length = 64\nmicro = 1\n"
                         "global = 4\n[optimizer]\nweight_decay = 0\n[schedule]\nlearning_rate = 1e-3\n[precision]\n"
                         "compute = fp32\n[checkpoint]\nat_end = false\n");
    Overrides arguments = {deck, "run.name=" + name};
    if (has_words(model)) arguments.emplace_back("classify.kind=token");
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    return llmtrain({ranks, 1, arguments});
  }

  std::string ledger(const std::string& name, const std::string& model, const Overrides& overrides, int ranks = 1) {
    const Outcome outcome = run(name, model, overrides, ranks);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return read_file(folder / name / "ledger.jsonl");
  }

  /// Lines of llmtool classify.
  static std::vector<json> classified(const Overrides& more) {
    Overrides arguments = {"classify"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = llmtool(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::vector<json> lines;
    std::istringstream text(outcome.output);
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
  }

  /// A folder of the references with the tokenizer that they share.
  std::string with_tokenizer(const std::string& model) {
    const std::filesystem::path to = folder / ("whole_" + model);
    std::filesystem::create_directory(to);
    for (const std::string& from : {file(model), file("../sft/model")}) {
      for (const auto& entry : std::filesystem::directory_iterator(from)) {
        const bool own = from == file(model) || entry.path().filename().string().starts_with("tokenizer");
        if (own) std::filesystem::copy(entry.path(), to, std::filesystem::copy_options::skip_existing);
      }
    }
    return to.string();
  }

  TemporaryFolder folder;
};

double number(const json& text) { return std::strtod(text.get<std::string>().c_str(), nullptr); }

/// Largest relative differences of a ledger from the steps of Transformers.
struct StepDifferences {
  double loss = 0, norm = 0;
};
StepDifferences compare_steps(const std::string& ledger, const json& expected) {
  StepDifferences result;
  std::istringstream lines(ledger);
  size_t step = 0;
  for (std::string line; std::getline(lines, line); ++step) {
    const json ours = json::parse(line);
    const double loss = expected["loss"][step], norm = expected["grad_norm"][step];
    result.loss = std::max(result.loss, std::abs(number(ours["loss"]) - loss) / loss);
    result.norm = std::max(result.norm, std::abs(number(ours["grad_norm"]) - norm) / norm);
  }
  EXPECT_EQ(step, expected["loss"].size());
  return result;
}

/// Softmax, of `multi` the logistic function.
std::vector<double> probabilities(const json& outputs, bool multi) {
  std::vector<double> all = outputs.get<std::vector<double>>();
  double sum = 0;
  for (double& x : all) sum += x = multi ? 1 / (1 + std::exp(-x)) : std::exp(x);
  for (double& x : all) x /= multi ? 1 : sum;
  return all;
}

/// Largest difference of the tool's lines from the outputs of Transformers for the same rows.
double largest_difference(const std::vector<json>& lines, const json& outputs, const std::string& model) {
  EXPECT_EQ(lines.size(), outputs.size());
  double largest = 0;
  const auto compare = [&](double a, double b) { largest = std::max(largest, std::abs(a - b)); };
  for (size_t row = 0; row < std::min(lines.size(), outputs.size()); ++row) {
    if (model.starts_with("number")) {
      compare(lines[row]["value"], outputs[row][0]);
    } else if (model.find("words") != std::string::npos) {
      EXPECT_EQ(lines[row]["words"].size(), outputs[row].size());
      for (size_t word = 0; word < outputs[row].size(); ++word) {
        compare(lines[row]["words"][word]["score"], std::ranges::max(probabilities(outputs[row][word], false)));
      }
    } else {
      const std::vector<double> all = probabilities(outputs[row], model.starts_with("several"));
      const json config =
          json::parse(read_file(source_folder() / "tests/reference/classification" / model / "config.json"));
      for (size_t k = 0; k < all.size(); ++k) {
        compare(lines[row]["scores"][config["id2label"][std::to_string(k)].get<std::string>()], all[k]);
      }
    }
  }
  return largest;
}

const std::vector<std::string> models = {"text_llama",   "text_gpt2",   "text_qwen2", "pair_llama", "several_llama",
                                         "number_llama", "words_llama", "words_gpt2", "words_qwen2"};

// Every problem and kind, three families: the weights after ten steps, which the export has, give the same outputs.
TEST_F(ClassificationRun, StepsAndExportsAreThoseOfTransformers) {
  for (const std::string& model : models) {
    SCOPED_TRACE(model);
    const json& expected = goldens()[model];
    const StepDifferences found =
        compare_steps(ledger(model, model, {"checkpoint.export=last", "checkpoint.at_end=true"}), expected);
    EXPECT_LT(found.loss, 2e-5);
    EXPECT_LT(found.norm, 5e-5);
    const std::string exported = (folder / model / "export").string();
    EXPECT_LT(
        largest_difference(classified({"--model", exported, "--input", rows_of(model)}), expected["after"], model),
        2e-5);
    EXPECT_EQ(json::parse(read_file(exported + "/config.json"))["id2label"],
              json::parse(read_file(file(model) + "/config.json"))["id2label"]);
  }
  EXPECT_GT(compare_steps(ledger("control", "text_llama", {"data.overflow=truncate", "batch.sequence_length=8"}),
                          goldens()["text_llama"])
                .loss,
            1e-3)
      << "the control: texts without their ends";
}

TEST_F(ClassificationRun, AdaptersAreThoseOfPeft) {
  for (const std::string model : {"text_llama", "words_gpt2"}) {
    SCOPED_TRACE(model);
    const json& expected = goldens()["adapter_" + model];
    const Overrides adapted = {"run.finetuning=lora", "lora.path=" + file("adapter_" + model), "checkpoint.export=last",
                               "checkpoint.export_merged=true", "checkpoint.at_end=true"};
    const StepDifferences found = compare_steps(ledger(model, model, adapted), expected);
    EXPECT_LT(found.loss, 2e-5);
    EXPECT_LT(found.norm, 5e-5);
    const std::string own = (folder / model).string(), base = with_tokenizer(model), rows = rows_of(model);
    const std::vector<json> loaded = classified({"--model", base, "--adapter", own + "/adapter", "--input", rows});
    EXPECT_LT(largest_difference(loaded, expected["after"], model), 2e-5);
    EXPECT_EQ(classified({"--model", own, "--input", rows}), loaded);
    EXPECT_LT(largest_difference(classified({"--model", own + "/export", "--input", rows}), expected["after"], model),
              2e-3)
        << "merged in bf16";
    EXPECT_GT(largest_difference(classified({"--model", base, "--input", rows}), expected["after"], model), 1e-2)
        << "the control";
  }
}

// A new head, labels that the rows name, shards, ranks that share texts or matrices, a resume elsewhere.
TEST_F(ClassificationRun, LedgerIsIdenticalForLayoutsAndResumes) {
  for (const std::string model : {"text_llama", "words_llama"}) {
    SCOPED_TRACE(model);
    const Overrides common = {"model.path=" + file("../sft/model"),
                              "batch.micro=2",
                              "data.shuffle=true",
                              "run.max_steps=4",
                              "log.parameter_hash_every_steps=1",
                              "evaluation.every_steps=2",
                              "data.validation=" + rows_of(model)};
    const auto with = [&](Overrides more) {
      more.insert(more.end(), common.begin(), common.end());
      return more;
    };
    const std::string one = ledger("one" + model, model, with({}));
    EXPECT_THAT(one, AllOf(HasSubstr("macro_f1"), HasSubstr(model == "text_llama" ? "recall/neutral" : "f1/B-LOC")));
    EXPECT_EQ(one, ledger("two" + model, model, with({"parallel.zero=0"}), 2));
    EXPECT_EQ(one, ledger("shards" + model, model, with({"parallel.zero=3"}), 3));
    ledger("part" + model, model, with({"run.max_steps=2", "checkpoint.at_end=true"}));
    EXPECT_EQ(one, ledger("part" + model, model, with({"parallel.zero=3"}), 2));
    EXPECT_NE(one, ledger("seed" + model, model, with({"run.seed=43", "data.seed=42"}))) << "the control";
  }
}

TEST_F(ClassificationRun, EvaluationsScoreAsScikitLearn) {
  for (const std::string model : {"text_llama", "words_gpt2"}) {
    SCOPED_TRACE(model);
    const json& expected = goldens()[model]["scores"];
    ledger(model, model,
           {"run.max_steps=1", "evaluation.at_start=true", "evaluation.batches=0", "data.validation=" + rows_of(model)},
           2);
    std::istringstream lines(read_file(folder / model / "metrics.jsonl"));
    json found;
    for (std::string line; !found.contains("validation_confusion") && std::getline(lines, line);) {
      found = json::parse(line);
    }
    EXPECT_EQ(found["validation_confusion"]["counts"], expected["confusion"]);
    EXPECT_NEAR(found["validation_accuracy"].get<double>(), expected["accuracy"].get<double>(), 1e-12);
    EXPECT_NEAR(found["validation_macro_f1"].get<double>(), expected["macro_f1"].get<double>(), 1e-12);
    const json& labels = found["validation_confusion"]["labels"];
    for (size_t k = 0; k < labels.size(); ++k) {
      for (const std::string score : {"precision", "recall", "f1"}) {
        const double value = found["validation_" + score + "/" + labels[k].get<std::string>()];
        EXPECT_NEAR(value, expected[score][k].get<double>(), 1e-12) << score << " of " << labels[k];
      }
    }
    const Outcome report = llmtool({"report", (folder / model).string(), "--output", (folder / "report").string()});
    EXPECT_EQ(report.exit_code, 0) << report.output;
    EXPECT_THAT(read_file(folder / "report" / "report.html"),
                HasSubstr("Confusion matrix of the evaluation at step 1"));
  }
}

TEST_F(ClassificationRun, AdaptersOverNf4AreThoseOfPeftAndBitsandbytes) {
  for (const std::string model : {"text_llama", "words_gpt2"}) {
    SCOPED_TRACE(model);
    Overrides deck = {"run.finetuning=lora", "lora.path=" + file("adapter_" + model), "quantization.bits=4",
                      "quantization.double=false"};
    const std::string one = ledger(model, model, deck);
    const StepDifferences found = compare_steps(one, goldens()["qlora_" + model]);
    EXPECT_LT(found.loss, 2e-5);
    EXPECT_LT(found.norm, 5e-5);
    EXPECT_GT(compare_steps(one, goldens()["adapter_" + model]).loss, 1e-2) << "the control: the same in 16 bits";
    deck.emplace_back("parallel.zero=3");
    EXPECT_EQ(ledger("shards_" + model, model, deck, 2), one);
  }
}

TEST_F(ClassificationRun, RefusesRowsThatCannotBeMeant) {
  const std::string rows = (folder / "rows.jsonl").string();
  const auto message = [&](const std::string& model, const std::string& content, const Overrides& overrides = {}) {
    write_file(rows, content);
    Overrides all = {"data.train=" + rows};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const Outcome outcome = run("refused", model, all);
    EXPECT_EQ(outcome.exit_code, 65) << outcome.output;
    return outcome.output;
  };
  const std::string good = R"({"text": "a b", "label": "good"})"
                           "\n";
  EXPECT_THAT(
      message("text_llama", good + R"({"text": "a b", "label": "goood"})"),
      AllOf(HasSubstr("rows.jsonl:2"), HasSubstr("not one of the labels bad, good, neutral"), HasSubstr("good?")));
  EXPECT_THAT(message("text_llama", good + R"({"text": "a b"})"),
              AllOf(HasSubstr("rows.jsonl:2"), HasSubstr("no label")));
  EXPECT_THAT(message("text_llama", good + R"({"text": "a b", "label": 3})"), HasSubstr("not the number of a label"));
  EXPECT_THAT(message("text_llama", good + R"({"text": "", "label": 1})"),
              AllOf(HasSubstr(":2"), HasSubstr("is empty")));
  EXPECT_THAT(message("text_llama", good + R"({"texts": "a", "label": 1})"),
              AllOf(HasSubstr(":2"), HasSubstr("no column")));
  EXPECT_THAT(message("several_llama", R"({"text": "a", "label": "cost"})"), HasSubstr("not a list of labels"));
  EXPECT_THAT(message("number_llama", R"({"text": "a", "label": "1"})"), HasSubstr("not a number"));
  EXPECT_THAT(message("number_llama", R"({"text": "a", "label": 1e39})"), HasSubstr("not a finite number"));
  EXPECT_THAT(message("number_llama", R"({"text": "a", "label": NaN})"), HasSubstr("rows.jsonl:1"));
  EXPECT_THAT(message("words_llama", R"({"tokens": ["a", "b"], "labels": ["O"]})"), HasSubstr("1 labels of 2 words"));
  EXPECT_THAT(message("words_llama", R"({"tokens": [], "labels": []})"), HasSubstr("no word"));
  const Overrides fresh = {"model.path=" + file("../sft/model")};
  EXPECT_THAT(message("text_llama", good + R"({"text": "a", "label": 1.5})", fresh),
              AllOf(HasSubstr("neither a label's name nor its number"), HasSubstr("classify.problem = regression")));
  EXPECT_THAT(message("text_llama", good, fresh), HasSubstr("fewer than two labels"));
}

TEST_F(ClassificationRun, RefusesDecksThatCannotBeMeant) {
  const auto message = [&](const std::string& model, const Overrides& overrides) {
    const Outcome outcome = run("refused", model, overrides);
    EXPECT_NE(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  EXPECT_THAT(message("words_llama", {"classify.problem=multi"}), HasSubstr("a word has a single label"));
  EXPECT_THAT(message("text_llama", {"classify.labels=a, b"}), HasSubstr("is for the labels bad, good, neutral"));
  EXPECT_THAT(message("text_llama", {"classify.kind=token"}), HasSubstr("it has a head for texts"));
  EXPECT_THAT(message("text_llama", {"run.task=sft"}), HasSubstr("a model of labels"));
  EXPECT_THAT(message("text_llama", {"run.task=evaluate"}), HasSubstr("llmtool classify"));
  EXPECT_THAT(message("text_llama", {"log.samples_every_steps=1"}), HasSubstr("writes none"));
  const Outcome of_language = llmtool({"classify", "--model", file("../sft/model"), "--text", "a"});
  EXPECT_EQ(of_language.exit_code, 65);
  EXPECT_THAT(of_language.output, HasSubstr("without labels"));
}

}  // namespace
}  // namespace llmtrain::test
