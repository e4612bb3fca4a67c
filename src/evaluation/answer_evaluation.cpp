#include "evaluation/answer_evaluation.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/progress.hpp"
#include "metrics/scalars.hpp"
#include "parallel/job/launcher.hpp"
#include "parallel/message.hpp"

namespace llmtrain {

namespace {

constexpr int64_t max_side_by_side = 64;  ///< answers that a rank decodes at once

/// Splits a document, rows [begin, end) of the batch.
std::optional<PromptWithAnswer> split_document(const HostBatch& host, size_t begin, size_t end) {
  size_t last = end;
  while (last > begin && host.targets[last - 1] == ignore_target) --last;
  if (last == begin) return std::nullopt;  // padding
  size_t first = last;
  while (first > begin && host.targets[first - 1] != ignore_target) --first;
  PromptWithAnswer row;
  row.prompt.assign(host.ids.begin() + static_cast<std::ptrdiff_t>(begin),
                    host.ids.begin() + static_cast<std::ptrdiff_t>(first) + 1);
  row.answer.assign(host.targets.begin() + static_cast<std::ptrdiff_t>(first),
                    host.targets.begin() + static_cast<std::ptrdiff_t>(last));
  return row;
}

}  // namespace

std::string continuation_text(const Tokenizer& tokenizer, std::span<const int32_t> before,
                              std::span<const int32_t> tokens) {
  std::vector<int32_t> ids(before.begin(), before.end());
  const std::string given = tokenizer.decode(ids);
  ids.insert(ids.end(), tokens.begin(), tokens.end());
  const std::string whole = tokenizer.decode(ids);
  return whole.starts_with(given) ? whole.substr(given.size()) : tokenizer.decode(tokens);
}

std::vector<PromptWithAnswer> prompts_with_answers(const DataStream& data, int64_t steps, bool has_prompts) {
  std::vector<PromptWithAnswer> rows;
  HostBatch host;
  for (int64_t step = 0; step < steps; ++step) {
    report_progress();
    for (const MicroBatchPlan& batch : data.plan(step).micro_batches) {
      data.load(batch, host);
      for (size_t s = 0; s + 1 < host.segments.size(); ++s) {
        auto row =
            split_document(host, static_cast<size_t>(host.segments[s]), static_cast<size_t>(host.segments[s + 1]));
        if (row) rows.push_back(std::move(*row));
      }
    }
  }
  // One token stands before the first target of any text, as a prompt can be.
  if (has_prompts || std::ranges::any_of(rows, [](const PromptWithAnswer& row) { return row.prompt.size() > 1; }))
    return rows;
  throw UserError(ExitCode::bad_content,
                  "evaluation.metrics: the documents of data.validation have no prompts, since each of their tokens is "
                  "trained: give rows with prompts and answers (data.format, chat.train_on = completion)");
}

AnswerEvaluation::AnswerEvaluation(AnswerOptions options, std::vector<PromptWithAnswer> rows,
                                   std::shared_ptr<const Tokenizer> tokenizer)
    : options_(std::move(options)),
      names_(text_metric_names(options_.metrics)),
      rows_(std::move(rows)),
      tokenizer_(std::move(tokenizer)) {
  if (options_.metrics.empty()) return;
  if (tokenizer_ == nullptr) {
    throw UserError(ExitCode::deck,
                    "evaluation.metrics: the data are token ids without a tokenizer, so that answers cannot be text: "
                    "name it with data.tokenizer");
  }
  if (rows_.empty()) throw UserError(ExitCode::bad_content, "evaluation.metrics: data.validation has no prompts");
}

void AnswerEvaluation::open(Communicator& communicator) {
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() != 0 || empty()) return;
    metrics_ = open_text_metrics(options_.metrics);
    for (const auto& metric : metrics_) metric->start();
  });
}

std::vector<std::pair<std::string, std::string>> AnswerEvaluation::signatures() const {
  std::vector<std::pair<std::string, std::string>> all;
  for (size_t i = 0; i < metrics_.size(); ++i) {
    if (std::string signature = metrics_[i]->signature("1"); !signature.empty()) all.emplace_back(names_[i], signature);
  }
  return all;
}

void AnswerEvaluation::plan(RoleModel& policy, Arena& arena, DType compute, int ranks) {
  if (empty()) return;
  GeneratorCapacity room;
  room.vocabulary_rows = policy.shape().config.vocab_size;
  room.sequences = std::min({max_side_by_side, (rows() + ranks - 1) / ranks, options_.longest});
  room.context = options_.longest;
  room.graphs = options_.graphs && policy.shape().config.experts.count == 0;
  generator_ = std::make_unique<Generator>(policy.actor(), room);
  generator_->plan(arena, compute);
}

std::optional<std::vector<std::string>> AnswerEvaluation::answers(RoleModel& policy, Arena& arena, Runtime& runtime,
                                                                  const Mesh& mesh, const Interrupted& interrupted) {
  Communicator& communicator = runtime.communicator();
  GenerationRequest request;
  for (const auto& row : rows_) request.prompts.push_back(row.prompt);
  request.what = "answering";
  request.sampling.temperature = 0;
  request.max_new_tokens = options_.max_new_tokens;
  request.eos = stop_ids_;
  request.vocabulary = policy.shape().tokens;
  request.threads = worker_threads(communicator);
  if (mesh.passes().size() > 1) request.ranks = &mesh.passes();
  constexpr int64_t passes_between_polls = 16;
  int64_t passes = 0;
  bool stopped = false;
  request.interrupted = [&] {
    if (++passes % passes_between_polls == 0) stopped = interrupted();
    return stopped;
  };
  std::vector<Continuation> all;
  throw_on_all_ranks(communicator, [&] { all = generator_->run(policy.params(), arena, runtime.stream(), request); });
  if (stopped) return std::nullopt;
  Message message;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].own || mesh.tensor_rank() > 0) continue;
    message.put(std::vector<int64_t>{static_cast<int64_t>(i)});
    // An answer may end within a character.
    message.put(with_valid_utf8(continuation_text(*tokenizer_, request.prompts[i], all[i].tokens)));
  }
  std::vector<std::string> texts(all.size());
  for (const std::string& bytes : communicator.gather(message.bytes())) {
    Message received(bytes);
    while (!received.at_end()) {
      std::vector<int64_t> number;
      received.take(number);
      received.take(texts[static_cast<size_t>(number.at(0))]);
    }
  }
  return texts;
}

std::optional<std::vector<NamedValue>> AnswerEvaluation::run(RoleModel& policy, Arena& arena, Runtime& runtime,
                                                             const Mesh& mesh, const Interrupted& interrupted) {
  std::vector<NamedValue> values;
  if (empty()) return values;
  policy.params().finish_update();
  auto texts = answers(policy, arena, runtime, mesh, interrupted);
  if (!texts) return std::nullopt;
  segments_.clear();
  for (size_t i = 0; i < rows_.size(); ++i) {
    segments_.push_back(
        {std::move((*texts)[i]), {with_valid_utf8(continuation_text(*tokenizer_, rows_[i].prompt, rows_[i].answer))}});
  }
  const auto scores = compare(runtime.communicator(), interrupted);
  if (!scores) return std::nullopt;
  for (size_t i = 0; i < names_.size(); ++i) values.push_back({names_[i], names_[i], (*scores)[i]});
  return values;
}

std::optional<std::vector<double>> AnswerEvaluation::compare(Communicator& communicator,
                                                             const Interrupted& interrupted) {
  constexpr double seconds_between_polls = 1;
  const bool root = communicator.rank() == 0;
  std::vector<double> scores;
  Progress progress("comparing answers", root ? std::ssize(names_) * rows() : 0);
  for (size_t i = 0; i < names_.size(); ++i) {
    std::vector<double> sums(root ? metrics_[i]->size() : 0);
    for (int64_t done = 0; done < rows(); communicator.broadcast(&done, sizeof(done))) {
      if (interrupted()) return std::nullopt;
      throw_on_all_ranks(communicator, [&] {
        for (const double begin = now(); root && done < rows() && now() - begin < seconds_between_polls; ++done) {
          report_progress();
          metrics_[i]->add(segments_[static_cast<size_t>(done)], sums);
          progress.add();
        }
      });
    }
    scores.push_back(root ? metrics_[i]->score(sums).value : 0);
  }
  communicator.broadcast(scores.data(), static_cast<int64_t>(scores.size() * sizeof(double)));
  return scores;
}

std::string AnswerEvaluation::rows_text() const {
  std::string text;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const nlohmann::ordered_json line = {{"prompt", tokenizer_->decode_with_special(rows_[i].prompt)},
                                         {"text", segments_[i].hypothesis},
                                         {"reference", segments_[i].references.front()}};
    text += line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  return text;
}

}  // namespace llmtrain
