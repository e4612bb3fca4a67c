// llmtool score: scores texts. The metric reward is the score of a reward model; score_texts.hpp has the others.

#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "data/formats/encode_documents.hpp"
#include "data/stream/data_stream.hpp"
#include "data/tokenize/named_tokenizer.hpp"
#include "text/chat/chat_encoder.hpp"
#include "text/tokens_beyond_embedding.hpp"
#include "tool/conversation_options.hpp"
#include "tool/input_lines.hpp"
#include "tool/loaded_model.hpp"
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

/// A reward model with room for documents of some length; a longer one restarts it with more room.
class RewardScorer {
 public:
  explicit RewardScorer(const ModelOptions& options) : loaded_(options) {
    if (loaded_.config().scores()) return;
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: it is not a reward model: its config.json must name a ForSequenceClassification "
                                "class with one label (run.task = reward exports such a folder)",
                                options.model));
  }

  const LoadedModel& model() const { return loaded_; }

  double score(const std::vector<int32_t>& ids) {
    const auto n = static_cast<int64_t>(ids.size());
    make_room(n);
    Context ctx = loaded_.context();
    ctx.role = ProductRole::prefill;  // as in training and evaluation
    const Batch batch = batch_->upload(batch_of(ids), ctx.stream);
    const TokenStatistics statistics{first_rows(scores_, n), {}, {}, {}};
    loaded_.model().forward(ctx, &batch);
    loaded_.model().score(ctx, &batch, statistics);
    float value = 0;
    copy_to_host(&value, scores_.rows(n - 1, 1).data, sizeof(float), ctx.stream);
    ctx.stream.synchronize();
    if (std::isfinite(value)) return double{value};
    throw UserError(ExitCode::diverged,
                    "the score is not finite: the model's weights are damaged, or overflow in this --compute");
  }

 private:
  /// One segment, whose last row counts.
  static HostBatch batch_of(const std::vector<int32_t>& ids) {
    HostBatch host;
    host.ids = ids;
    host.targets.assign(ids.size(), ignore_target);
    host.loss_weights.assign(ids.size(), 0.0F);
    host.loss_weights.back() = 1;
    host.sequence_ids.assign(ids.size(), 0);
    for (size_t i = 0; i < ids.size(); ++i) host.positions.push_back(static_cast<int32_t>(i));
    host.sequence_offsets = host.positions;
    host.segments = {0, static_cast<int32_t>(ids.size())};
    return host;
  }

  void make_room(int64_t tokens) {
    if (tokens <= room_) return;
    room_ =
        std::min(std::max({tokens, 2 * room_, int64_t{256}}), std::max(tokens, loaded_.config().longest_sequence()));
    batch_.emplace();
    loaded_.start([&](Arena& arena) {
      loaded_.model().plan(arena, {loaded_.compute(), room_, false});
      batch_->plan(arena, room_, 1);
      arena.add(scores_, MemoryCategory::activations, "scores", DType::f32, {room_});
    });
  }

  LoadedModel loaded_;
  std::optional<BatchBuffers> batch_;
  Tensor scores_;  ///< fp32 [N]
  int64_t room_ = 0;
};

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
  RewardScorer scorer(options.model);
  const LoadedModel& model = scorer.model();
  model.required_tokenizer();
  const std::string& folder = model.checkpoint() != nullptr ? model.checkpoint()->folder() : options.model.model;
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(folder, {options.eos_token, true, false});
  const ChatConfig config = options.conversations.chat();
  const ChatEncoder encoder(*tokenizer, config, chat_files(model, options.model.model, config.template_name),
                            training_time);
  InputLines lines(options.input);
  const std::string source = options.input == "-" ? "standard input" : options.input;
  std::optional<RowReader> reader;  // of the format that the first row has
  std::vector<EncodedRow> documents;
  std::vector<double> scores;
  Pairs pairs;
  int64_t number = 0;
  FormatRecognition recognition(rules.row_format, rules.columns);
  for (std::string_view line; lines.next(line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      recognition.add(line, number);
      if (!reader) reader.emplace(recognition.format(), rules.columns, encoder.has_template());
      encode_documents(encoder, reader->read_documents(line), documents);
      scores.clear();
      for (const EncodedRow& document : documents) {
        check_ids(document.ids, model);
        scores.push_back(scorer.score(document.ids));
      }
    } catch (const UserError& error) {
      throw UserError(error.code(), fmt::format("{}:{}: {}", source, number, error.what()));
    }
    if (scores.size() == 2) pairs.add(scores[0], scores[1]);
    print_row(number, scores, options.json);
  }
  pairs.print(options.json);
}

void score(const Options& options) {
  const bool reward = options.metrics == std::vector<std::string>{"reward"};
  const std::vector<std::string> of_texts = options.texts.given();
  const bool of_model = !options.model.model.empty() || !options.model.adapter.empty() || !options.input.empty();
  if (reward && !of_texts.empty()) {
    refuse_command_line(of_texts.front() + " has no effect on --metric reward");
  }
  if (!reward && of_model) refuse_command_line("--model, --adapter and --input belong to --metric reward");
  if (!reward) return score_texts(options.metrics, options.texts, options.json);
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
                  "some of bleu, chrf, chrf++, rouge1, rouge2, rougeL, rougeLsum, exact_match, token_f1, or rouge for all of ROUGE; or reward: the score of a "
                  "reward model")
      ->delimiter(',')
      ->required();
  options->texts.add_to(*app);
  app->add_option("--model", options->model.model,
                  "Hugging Face folder of a reward model, or checkpoint of llmtrain; with --adapter the model of the "
                  "adapter");
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
