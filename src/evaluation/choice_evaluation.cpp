#include "evaluation/choice_evaluation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/number_text.hpp"
#include "core/progress.hpp"
#include "text/tokens_beyond_embedding.hpp"

namespace llmtrain {

namespace {

constexpr int64_t set_bit = int64_t{1} << 32, greedy_bit = int64_t{1} << 33;

/// Inputs of a continuation: all of its ids but the last.
int64_t rows_of(const TokenContinuation& continuation) { return std::ssize(continuation.ids) - 1; }

/// Continuations of one forward pass, by their numbers.
using Pack = std::vector<size_t>;

/// Long continuations first, so that the ranks' passes are alike and the last ones are short.
std::vector<Pack> pack(std::span<const TokenContinuation> continuations, int64_t max_rows) {
  std::vector<size_t> order(continuations.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return rows_of(continuations[i]); });
  std::vector<Pack> packs;
  int64_t rows = max_rows;
  for (const size_t i : order) {
    const int64_t own = rows_of(continuations[i]);
    if (rows + own > max_rows) {
      packs.emplace_back();
      rows = 0;
    }
    packs.back().push_back(i);
    rows += own;
  }
  return packs;
}

void append(HostBatch& host, const TokenContinuation& continuation, int64_t number) {
  const int64_t rows = rows_of(continuation);
  for (int64_t i = 0; i < rows; ++i) {
    const size_t at = static_cast<size_t>(i);
    const bool scored = i >= rows - continuation.scored;
    host.ids.push_back(continuation.ids[at]);
    host.targets.push_back(scored ? continuation.ids[at + 1] : ignore_target);
    host.loss_weights.push_back(scored ? 1.0F : 0.0F);
    host.positions.push_back(static_cast<int32_t>(i));
    host.sequence_offsets.push_back(static_cast<int32_t>(i));
    host.sequence_ids.push_back(number);
  }
  host.segments.push_back(static_cast<int32_t>(host.ids.size()));
}

/// One rank's passes.
class Scorer {
 public:
  Scorer(Model& model, Context& ctx, std::span<const TokenContinuation> continuations, const LikelihoodBuffers& buffers,
         const Mesh& mesh)
      : model_(model), ctx_(ctx), continuations_(continuations), buffers_(buffers), mesh_(mesh) {
    int64_t tokens = 0;
    for (const TokenContinuation& continuation : continuations) {
      firsts_.push_back(tokens);
      tokens += continuation.scored;
    }
    results_.resize(static_cast<size_t>(tokens));
  }

  void run(const Pack& pack) {
    host_.clear();
    for (const size_t i : pack) append(host_, continuations_[i], static_cast<int64_t>(i));
    const int64_t rows = std::ssize(host_.ids);
    const int64_t padding = std::min(rounded_rows(rows), buffers_.rows()) - rows;
    host_.pad(padding, std::max<int64_t>(padding, 1), std::ssize(continuations_));
    const Batch batch = buffers_.batch.upload(host_, ctx_.stream);
    TokenStatistics statistics;
    statistics.logp = first_rows(buffers_.logp, batch.tokens);
    statistics.argmax = first_rows(buffers_.argmax, batch.tokens);
    score(model_, ctx_, &batch, statistics);
    if (mesh_.leads()) read(statistics, pack);
  }
  void run_idle() { score(model_, ctx_, nullptr, {}); }

  std::vector<TokenLikelihood> finish() {
    mesh_.job().sum(std::span(results_));  // of the one that has each token, and zeros
    std::vector<TokenLikelihood> all;
    for (const int64_t bits : results_) {
      LLMTRAIN_CHECK((bits & set_bit) != 0, "every token is scored");
      all.push_back({std::bit_cast<float>(static_cast<uint32_t>(bits)), (bits & greedy_bit) != 0});
    }
    return all;
  }

 private:
  void read(const TokenStatistics& statistics, const Pack& pack) {
    const size_t rows = host_.ids.size();
    logp_.resize(rows);
    argmax_.resize(rows);
    copy_to_host(logp_.data(), statistics.logp.data, std::ssize(logp_) * 4, ctx_.stream);
    copy_to_host(argmax_.data(), statistics.argmax.data, std::ssize(argmax_) * 4, ctx_.stream);
    ctx_.stream.synchronize();
    size_t end = 0;
    for (const size_t i : pack) {
      end += static_cast<size_t>(rows_of(continuations_[i]));
      const size_t count = static_cast<size_t>(continuations_[i].scored);
      for (size_t t = 0; t < count; ++t) {
        const size_t row = end - count + t;
        const bool greedy = argmax_[row] == host_.targets[row];
        results_[static_cast<size_t>(firsts_[i]) + t] =
            static_cast<int64_t>(std::bit_cast<uint32_t>(logp_[row])) | set_bit | (greedy ? greedy_bit : 0);
      }
    }
  }

  Model& model_;
  Context& ctx_;
  std::span<const TokenContinuation> continuations_;
  const LikelihoodBuffers& buffers_;
  const Mesh& mesh_;
  std::vector<int64_t> firsts_;   ///< number of each continuation's first token
  std::vector<int64_t> results_;  ///< of all tokens: bits of logp, set_bit, greedy_bit
  HostBatch host_;
  std::vector<float> logp_;
  std::vector<int32_t> argmax_;
};

}  // namespace

std::optional<std::vector<TokenLikelihood>> score_continuations(Model& model, Context ctx,
                                                                std::span<const TokenContinuation> continuations,
                                                                const LikelihoodBuffers& buffers, const Mesh& mesh,
                                                                const Interrupted& interrupted) {
  ctx.role = ProductRole::prefill;
  const std::vector<Pack> packs = pack(continuations, buffers.rows());
  Scorer scorer(model, ctx, continuations, buffers, mesh);
  Progress progress("scoring choices", std::ssize(packs));
  for (size_t first = 0; first < packs.size(); first += static_cast<size_t>(mesh.data_ranks())) {
    progress.set(static_cast<int64_t>(first));
    if (interrupted()) return std::nullopt;
    report_progress();
    const size_t mine = first + static_cast<size_t>(mesh.data_rank());
    if (mine < packs.size()) {
      scorer.run(packs[mine]);
    } else {
      scorer.run_idle();
    }
  }
  return scorer.finish();
}

using nlohmann::ordered_json;

ChoiceEvaluation::ChoiceEvaluation(const std::vector<TaskFile>& files, const Tokenizer* tokenizer, int64_t longest,
                                   int64_t vocabulary) {
  std::set<std::string> names;
  for (const TaskFile& file : files) {
    if (tokenizer == nullptr) {
      throw UserError(ExitCode::deck,
                      "evaluation.tasks: the model has no tokenizer, so that texts cannot be scored: "
                      "name its tokenizer with data.tokenizer");
    }
    Task& task = tasks_.emplace_back();
    task.rows = parse_choice_task(file);
    if (!names.insert(task.rows.name).second) {
      throw UserError(ExitCode::deck,
                      fmt::format("evaluation.tasks: two files give the task {}: rename one of them", task.rows.name));
    }
    task.choices = encode_choices(*tokenizer, task.rows, longest);
    for (const TokenContinuation& choice : task.choices) {
      require_rows(choice.ids, tokenizer, vocabulary, file.path);
      task.truncated += choice.truncated > 0 ? 1 : 0;
    }
  }
}

std::vector<std::string> ChoiceEvaluation::names() const {
  std::vector<std::string> all;
  for (const Task& task : tasks_) {
    for (const std::string& score : choice_score_names(task.rows.kind)) all.push_back(task.rows.name + "/" + score);
  }
  return all;
}

std::vector<std::string> ChoiceEvaluation::descriptions() const {
  std::vector<std::string> lines;
  for (const Task& task : tasks_) {
    std::string& line = lines.emplace_back(fmt::format("task       {}: {}, {}", task.rows.name,
                                                       counted(std::ssize(task.rows.rows), "row"),
                                                       counted(std::ssize(task.choices), "choice")));
    if (task.truncated > 0) line += fmt::format("; {} without the beginning of the context", task.truncated);
  }
  return lines;
}

void ChoiceEvaluation::Task::sum_up() {
  results.clear();
  size_t token = 0;
  for (const TokenContinuation& choice : choices) {
    Likelihood& result = results.emplace_back();
    result.greedy = true;
    for (int64_t t = 0; t < choice.scored; ++t, ++token) {
      result.logp += static_cast<double>(tokens[token].logp);
      result.greedy = result.greedy && tokens[token].greedy;
    }
    if (std::isfinite(result.logp)) continue;
    throw UserError(ExitCode::diverged, rows.path +
                                            ": a log-probability is not finite: the weights, or products of them in "
                                            "this precision.compute, overflow; try precision.compute = fp32");
  }
  scores = score_choices(rows, results);
}

std::optional<std::vector<NamedValue>> ChoiceEvaluation::run(Model& model, const Context& ctx,
                                                             const LikelihoodBuffers& buffers, const Mesh& mesh,
                                                             const Interrupted& interrupted) {
  std::vector<NamedValue> values;
  for (Task& task : tasks_) {
    auto tokens = score_continuations(model, ctx, task.choices, buffers, mesh, interrupted);
    if (!tokens) return std::nullopt;
    task.tokens = std::move(*tokens);
    task.sum_up();
    for (const NamedScore& score : task.scores) {
      const std::string name = task.rows.name + "/" + score.name;
      values.push_back({name, score.name.ends_with("_stderr") ? "" : name, score.value});
    }
  }
  return values;
}

std::string ChoiceEvaluation::rows_text() const {
  std::string text;
  for (const Task& task : tasks_) {
    size_t choice = 0, token = 0;
    for (const ChoiceRow& row : task.rows.rows) {
      ordered_json line = {{"task", task.rows.name}, {"line", row.line}, {"answer", row.answer}};
      line["choices"] = ordered_json::array();
      for (size_t c = 0; c < row.choices.size(); ++c, ++choice) {
        const Likelihood& result = task.results[choice];
        std::vector<float> logprobs;
        for (int64_t t = 0; t < task.choices[choice].scored; ++t, ++token) logprobs.push_back(task.tokens[token].logp);
        line["choices"].push_back({{"sum", result.logp}, {"greedy", result.greedy}, {"logprobs", logprobs}});
      }
      text += line.dump() + "\n";
    }
  }
  return text;
}

std::string ChoiceEvaluation::report() const {
  ordered_json report = ordered_json::object();
  for (const Task& task : tasks_) {
    ordered_json& scores = report[task.rows.name];
    for (const NamedScore& score : task.scores) scores[score.name] = score.value;
    scores["rows"] = task.rows.rows.size();
    scores["truncated"] = task.truncated;
  }
  return report.dump();
}

}  // namespace llmtrain
