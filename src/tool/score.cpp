// llmtool score: scores texts. The metric reward is the score of a reward model; score_texts.hpp has the others.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "data/tokenize/open_tokenizer.hpp"
#include "text/chat/chat_encoder.hpp"
#include "text/tokens_beyond_embedding.hpp"
#include "tool/conversation_options.hpp"
#include "tool/row_scorer.hpp"
#include "tool/score_texts.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace score_tool {
namespace {

using nlohmann::ordered_json;

struct Options {
  std::vector<std::string> metrics;
  TextScoreOptions texts;
  std::string input, eos_token;
  ModelOptions model;
  ConversationOptions conversations;
  bool json = false;
};

void require_scores(const LoadedModel& model, const std::string& path) {
  if (model.config().scores() && model.config().labels.empty()) return;
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}: it is not a reward model: its config.json must name a ForSequenceClassification "
                              "class with one label (run.task = reward exports such a folder)",
                              path));
}

/// Score of a document: the value of its last token.
double score_of(RowScorer& scorer, const std::vector<int32_t>& ids) {
  HostBatch row = RowScorer::batch_of(ids);
  row.loss_weights.back() = 1;
  const float value = scorer.score(row, ProductRole::prefill).back();  // as in training and evaluation
  if (std::isfinite(value)) return double{value};
  throw UserError(ExitCode::diverged,
                  "the score is not finite: the model's weights are damaged, or overflow in this --compute");
}

void check_ids(const std::vector<int32_t>& ids, const LoadedModel& model) {
  if (ids.empty()) throw UserError(ExitCode::bad_content, "the row has no token");
  require_rows(ids, model.tokenizer(), model.vocabulary(), "the row");
  const int64_t most = model.config().longest_sequence();
  if (std::ssize(ids) <= most) return;
  throw UserError(ExitCode::bad_content,
                  fmt::format("{} tokens are more than the model's context of {}", ids.size(), most));
}

/// Sums over pairs.
struct Pairs {
  int64_t count = 0, right = 0;
  double margin = 0, reward = 0;

  void add(double chosen, double rejected) {
    ++count;
    right += chosen > rejected ? 1 : 0;
    margin += chosen - rejected;
    reward += (chosen + rejected) / 2;
  }
  void print(bool json) const {
    if (count == 0) return;
    const auto n = static_cast<double>(count);
    const double accuracy = static_cast<double>(right) / n;
    if (json) {
      const ordered_json out = {
          {"pairs", count}, {"accuracy", accuracy}, {"margin", margin / n}, {"mean_reward", reward / n}};
      std::cout << out.dump() << '\n';
    } else {
      std::cout << fmt::format("{} pairs: accuracy {:.4f}, margin {:.6f}, mean reward {:.6f}\n", count, accuracy,
                               margin / n, reward / n);
    }
  }
};

void print_row(int64_t line, const std::vector<double>& scores, bool json) {
  const bool pair = scores.size() == 2;
  if (json) {
    ordered_json out = {{"line", line}};
    if (pair) {
      out["chosen"] = scores[0];
      out["rejected"] = scores[1];
    } else {
      out["score"] = scores[0];
    }
    std::cout << out.dump() << std::endl;  // flushed at once for programs that wait for the answer
  } else {
    std::cout << (pair ? fmt::format("line {}: chosen {:.6f}, rejected {:.6f}\n", line, scores[0], scores[1])
                       : fmt::format("line {}: {:.6f}\n", line, scores[0]));
  }
}

/// The templates of the model's folder, or of a checkpoint's run.
ChatFiles chat_files(const LoadedModel& model, const std::string& folder, const std::string& template_name) {
  if (model.checkpoint() == nullptr) return read_chat_files(template_name, folder);
  return CheckpointModel::chat(model.checkpoint()->folder()).value_or(ChatFiles{});
}

void score_rewards(const Options& options) {
  TextFormat rules;
  options.conversations.put_into(rules);
  RowScorer scorer(options.model);
  const LoadedModel& model = scorer.model();
  require_scores(model, options.model.model);
  model.required_tokenizer();
  const std::string& folder = model.checkpoint() != nullptr ? model.checkpoint()->folder() : options.model.model;
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(folder, {options.eos_token, true, false});
  const ChatConfig config = options.conversations.chat();
  const ChatEncoder encoder(*tokenizer, config, chat_files(model, options.model.model, config.template_name),
                            training_time);
  std::vector<double> scores;
  Pairs pairs;
  const auto score_row = [&](const EncodedLine& line) {
    scores.clear();
    for (const EncodedRow& document : line.documents) {
      check_ids(document.ids, model);
      scores.push_back(score_of(scorer, document.ids));
    }
    if (scores.size() == 2) pairs.add(scores[0], scores[1]);
    print_row(line.number, scores, options.json);
  };
  print_warnings(for_each_encoded_row(options.input, rules, *tokenizer, encoder, score_row));
  pairs.print(options.json);
}

void score(const Options& options) {
  const bool reward = options.metrics == std::vector<std::string>{"reward"};
  const std::vector<std::string> of_texts = options.texts.given();
  const bool bert = std::ranges::find(options.metrics, "bertscore") != options.metrics.end();
  const bool of_model =
      (!options.model.model.empty() && !bert) || !options.model.adapter.empty() || !options.input.empty();
  if (reward && !of_texts.empty()) {
    refuse_command_line(of_texts.front() + " has no effect on --metric reward");
  }
  if (!reward && of_model)
    refuse_command_line("--model, --adapter and --input are for --metric reward, and --model also for bertscore");
  if (!reward) {
    TextScoreOptions texts = options.texts;
    texts.metric.encoder = options.model.model;
    return score_texts(options.metrics, texts, options.json);
  }
  if (options.model.model.empty() || options.input.empty()) {
    refuse_command_line("--metric reward needs --model and --input");
  }
  score_rewards(options);
}

}  // namespace
}  // namespace score_tool

Subcommand add_score(CLI::App& program) {
  auto options = std::make_shared<score_tool::Options>();
  CLI::App* app = program.add_subcommand(
      "score",
      "scores texts: by references (BLEU, chrF, ROUGE, exact match, token F1), or each row of a JSONL file by a reward "
      "model, for pairs with their accuracy");
  app->add_option("--metric", options->metrics,
                  "some of bleu, chrf, chrf++, rouge1, rouge2, rougeL, rougeLsum, exact_match, token_f1, bertscore, or "
                  "rouge for all of ROUGE; or reward: the score of a reward model")
      ->delimiter(',')
      ->required();
  options->texts.add_to(*app);
  app->add_option("--model", options->model.model,
                  "Hugging Face folder of a reward model, or checkpoint of llmtrain; with --adapter the model of the "
                  "adapter; for bertscore the folder of a BERT, a RoBERTa or a decoder with its tokenizer");
  app->add_option("--adapter", options->model.adapter, "PEFT folder of an adapter for sequence classification");
  app->add_option("--input", options->input,
                  "JSONL file of prompts and completions, conversations, pairs, or text, in one of the formats of "
                  "data.format; - is the standard input");
  options->conversations.add_to(*app);
  app->add_option("--eos-token", options->eos_token, "token that ends a document, as in data.eos_token");
  options->model.quantize.add_to(*app);
  app->add_option("--compute", options->model.compute, "compute type: fp32, bf16 or fp16")->capture_default_str();
  app->add_flag("--json", options->json, "print a JSON line for each row, and one for all pairs");
  return {app, [options] { score_tool::score(*options); }};
}

}  // namespace llmtrain
