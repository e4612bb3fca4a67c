// llmtool classify: labels of texts, or of their words, with probabilities.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "data/formats/label_rows.hpp"
#include "text/tokens_beyond_embedding.hpp"
#include "tool/conversation_options.hpp"
#include "tool/input_lines.hpp"
#include "tool/row_scorer.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace classify_tool {
namespace {

using nlohmann::ordered_json;

struct Options {
  ModelOptions model;
  ConversationOptions conversations;
  std::vector<std::string> texts;
  std::string input;
};

/// Softmax, of multi the logistic function of each output.
std::vector<double> probabilities(std::span<const float> outputs, LabelProblem problem) {
  std::vector<double> all(outputs.begin(), outputs.end());
  double sum = 0;
  const double highest = *std::ranges::max_element(all);
  for (double& x : all) {
    x = problem == LabelProblem::multi ? 1 / (1 + std::exp(-x)) : std::exp(x - highest);
    sum += x;
  }
  for (double& x : all) x /= problem == LabelProblem::multi ? 1 : sum;
  return all;
}

class Classifier {
 public:
  explicit Classifier(const Options& options)
      : scorer_(options.model), model_(scorer_.model().config()), chat_(options.conversations.chat()) {
    const LoadedModel& loaded = scorer_.model();
    if (!model_.scores()) {
      throw UserError(ExitCode::bad_content,
                      fmt::format("{}: it is a language model, without labels: its config.json must name a "
                                  "ForSequenceClassification or ForTokenClassification class (run.task = classify "
                                  "exports such a folder)",
                                  options.model.model));
    }
    tokenizer_ = &loaded.required_tokenizer();
    const ChatFiles files = loaded.checkpoint() == nullptr
                                ? read_chat_files(chat_.template_name, options.model.model)
                                : CheckpointModel::chat(loaded.checkpoint()->folder()).value_or(ChatFiles{});
    encoder_ = std::make_unique<const ChatEncoder>(*tokenizer_, chat_, files, training_time);
  }

  bool reads_tokens() const { return model_.head == ModelConfig::Head::token_score; }
  bool has_template() const { return encoder_->has_template(); }

  /// The labels of a row, whose documents are words if `reads_tokens`.
  ordered_json classify(const RowDocuments& row) {
    LabelledTokens tokens;
    encode_labelled(*encoder_, *tokenizer_, row, tokens);
    const std::vector<float> outputs = outputs_of(tokens);
    if (!reads_tokens()) return of_text(last_outputs(outputs, tokens.ids.size() - 1));
    ordered_json words = ordered_json::array();
    for (size_t i = 0; i < tokens.first_pieces.size(); ++i) {
      ordered_json word = {{"word", std::get<PlainText>(row.documents[i]).text}};
      const int64_t piece = tokens.first_pieces[i];
      word.update(piece < 0 ? ordered_json{{"label", nullptr}}
                            : of_label(last_outputs(outputs, static_cast<size_t>(piece))));
      words.push_back(std::move(word));
    }
    return {{"words", std::move(words)}};
  }

 private:
  std::span<const float> last_outputs(const std::vector<float>& outputs, size_t row) const {
    const auto count = static_cast<size_t>(model_.outputs());
    return std::span(outputs).subspan(row * count, count);
  }

  std::vector<float> outputs_of(const LabelledTokens& tokens) {
    require_rows(tokens.ids, tokenizer_, scorer_.model().vocabulary(), "the row");
    if (const int64_t most = model_.longest_sequence(); std::ssize(tokens.ids) > most) {
      throw UserError(ExitCode::bad_content,
                      fmt::format("{} tokens are more than the model's context of {}", tokens.ids.size(), most));
    }
    HostBatch batch = RowScorer::batch_of(tokens.ids);
    if (!reads_tokens()) batch.loss_weights.back() = 1;
    for (const int64_t piece : tokens.first_pieces) {
      if (piece >= 0) batch.loss_weights[static_cast<size_t>(piece)] = 1;
    }
    std::vector<float> outputs = scorer_.score(batch, ProductRole::prefill);  // as in training and evaluation
    if (std::ranges::all_of(outputs, [](float x) { return std::isfinite(x); })) return outputs;
    throw UserError(ExitCode::diverged,
                    "an output is not finite: the model's weights are damaged, or overflow in this --compute");
  }

  ordered_json of_label(std::span<const float> outputs) const {
    if (model_.labels.empty()) return {{"value", outputs.front()}};
    const std::vector<double> all = probabilities(outputs, model_.problem);
    const auto best = std::ranges::max_element(all) - all.begin();
    return {{"label", model_.labels[static_cast<size_t>(best)]}, {"score", all[static_cast<size_t>(best)]}};
  }

  ordered_json of_text(std::span<const float> outputs) const {
    if (model_.labels.empty()) return of_label(outputs);
    const std::vector<double> all = probabilities(outputs, model_.problem);
    ordered_json result = ordered_json::object(), scores = ordered_json::object(), labels = ordered_json::array();
    for (size_t k = 0; k < all.size(); ++k) {
      scores[model_.labels[k]] = all[k];
      if (outputs[k] > 0) labels.push_back(model_.labels[k]);
    }
    if (model_.problem == LabelProblem::multi) {
      result["labels"] = std::move(labels);
    } else {
      result = of_label(outputs);
    }
    result["scores"] = std::move(scores);
    return result;
  }

  RowScorer scorer_;
  const ModelConfig& model_;
  ChatConfig chat_;
  const Tokenizer* tokenizer_;
  std::unique_ptr<const ChatEncoder> encoder_;
};

/// A text as a row: its words are what white space divides.
RowDocuments row_of(const std::string& text, bool words) {
  RowDocuments row;
  row.labelled = LabelledRow{.labels = nullptr, .column = {}, .words = words};
  if (!words) row.documents.emplace_back(PlainText{text});
  for (size_t at = 0; words && at < text.size();) {
    const size_t begin = std::min(text.find_first_not_of(" \t\r\n", at), text.size());
    at = std::min(text.find_first_of(" \t\r\n", begin), text.size());
    if (at > begin) row.documents.emplace_back(PlainText{text.substr(begin, at - begin)});
  }
  if (row.documents.empty() || text.empty()) throw UserError(ExitCode::bad_content, "the text is empty");
  return row;
}

void print(const ordered_json& line) {
  std::cout << line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << std::endl;  // flushed for programs
}

void classify(const Options& options) {
  if (options.texts.empty() == options.input.empty()) refuse_command_line("give --text or --input");
  Classifier classifier(options);
  const bool tokens = classifier.reads_tokens();
  for (const std::string& text : options.texts) print(classifier.classify(row_of(text, tokens)));
  if (options.input.empty()) return;
  TextFormat rules;
  options.conversations.put_into(rules);
  InputLines lines(options.input);
  const std::string source = options.input == "-" ? "standard input" : options.input;
  const RowReader reader(tokens ? "token_classification" : "classification", rules.columns, classifier.has_template());
  int64_t number = 0;
  for (std::string_view line; lines.next(line);) {
    ++number;
    if (is_blank(line)) continue;
    try {
      ordered_json out = {{"line", number}};
      out.update(classifier.classify(reader.read_documents(line)));
      print(out);
    } catch (const UserError& error) {
      throw UserError(error.code(), fmt::format("{}:{}: {}", source, number, error.what()));
    }
  }
}

}  // namespace
}  // namespace classify_tool

Subcommand add_classify(CLI::App& program) {
  auto options = std::make_shared<classify_tool::Options>();
  CLI::App* app = program.add_subcommand(
      "classify",
      "print the labels of texts, or of their words, with probabilities, as JSON lines: by a folder or checkpoint of "
      "run.task = classify, or any ForSequenceClassification or ForTokenClassification of a supported family");
  app->add_option("--model", options->model.model, "Hugging Face folder, or checkpoint of llmtrain")->required();
  app->add_option("--adapter", options->model.adapter, "PEFT folder of an adapter for classification");
  app->add_option("--text", options->texts, "a text; may be repeated");
  app->add_option("--input", options->input,
                  "JSONL file of rows with text (and text_pair), messages, or tokens; - is the standard input");
  options->conversations.add_to(*app);
  options->model.quantize.add_to(*app);
  app->add_option("--compute", options->model.compute, "compute type: fp32, bf16 or fp16")->capture_default_str();
  return {app, [options] { classify_tool::classify(*options); }};
}

}  // namespace llmtrain
