#include "train/run_evaluation.hpp"

#include <algorithm>
#include <cmath>

#include "core/activity.hpp"
#include "core/clock.hpp"
#include "evaluation/evaluate.hpp"

namespace llmtrain {

std::optional<std::vector<NamedValue>> RunEvaluation::scores(std::string& problem, const Interrupted& interrupted) {
  TrainingPlan& plan = run_.plan;
  Communicator& communicator = run_.runtime.communicator();
  std::optional<std::vector<NamedValue>> values;
  try {
    values = plan.scores.run(plan.models.at(Role::policy), plan.arena, run_.runtime, run_.rows,
                             plan.likelihood_buffers(), interrupted);
  } catch (const UserError& error) {  // the same on all ranks
    if (error.code() != ExitCode::diverged) throw;
    problem = error.what();
    return std::vector<NamedValue>();
  }
  if (values && config_.log_samples) {
    throw_on_all_ranks(communicator, [&] {
      if (communicator.rank() == 0) plan.scores.write_rows(directory_);
    });
  }
  return values;
}

int64_t RunEvaluation::run(int64_t completed, const StopRequested& stop_requested) {
  TrainingPlan& plan = run_.plan;
  if (!plan.validation && plan.scores.empty()) {
    run_.progress.pending.evaluation = false;
    return 0;
  }
  const SectionScope section(Section::evaluation);
  const double begin = now();
  Context ctx{plan.params(), plan.arena, run_.runtime.stream(), seed_, completed, false};
  ctx.rows = &run_.rows;
  int64_t stop = 0;
  const auto interrupted = [&] { return (stop = stop_requested()) != 0; };
  EvaluationRecord record;
  record.step = completed;
  std::vector<std::pair<std::string, double>> labels;
  if (plan.validation) {
    const auto result =
        evaluate(plan.model(), ctx, plan.evaluation_objective(), *plan.validation,
                 first_steps(config_, *plan.validation), plan.evaluation_buffers(), run_.rows.mesh(), interrupted);
    if (!result) return stop;
    record.tokens = result->tokens;
    record.loss = result->loss;
    record.metrics = result->metrics;
    record.labels = result->labels.labels;
    record.confusion = result->labels.confusion;
    labels = result->labels.values;
    if (plan.counts_correct) {
      record.token_accuracy = static_cast<double>(result->correct) / static_cast<double>(result->tokens);
    }
  }
  std::string problem;
  if (record.tokens > 0 && !std::isfinite(record.loss)) {
    problem = "the validation loss is not finite";
  } else {
    auto values = scores(problem, interrupted);
    if (!values) return stop;
    record.scores = std::move(*values);
    for (const auto& [name, value] : labels)
      record.scores.push_back({name, name == "macro_f1" ? "macro F1" : "", value});
  }
  run_.progress.pending.evaluation = false;
  if (problem.empty()) {
    record.best = run_.progress.best.update(record);
    record.seconds = now() - begin;
  } else {
    run_.progress.guard.mark_lost(completed, problem);
  }
  run_.log.evaluation(record);
  return 0;
}

GenerationRequest RunSamples::request(int64_t completed) const {
  const Tokenizer& tokenizer = *run_.plan.tokenizer;
  GenerationRequest request;
  request.what = "sampling";
  request.prompts = run_.plan.prompts;
  for (std::vector<int32_t>& prompt : request.prompts) {
    if (!prompt.empty()) continue;  // starts like a sequence of the data
    HostBatch host;
    MicroBatchPlan plan = run_.plan.train.plan(completed).micro_batches.front();
    plan.samples.resize(1);
    run_.plan.train.load(plan, host);
    prompt.push_back(host.ids.front());
  }
  request.sampling = {config_.sample_temperature, config_.sample_top_k, config_.sample_top_p};
  request.max_new_tokens = config_.sample_length;
  request.eos = stop_ids_;
  const int64_t rows = run_.plan.models.at(Role::policy).shape().config.vocab_size;
  request.vocabulary = std::min(tokenizer.vocabulary_size(), rows);
  request.seed = seed_;
  request.step = completed;
  request.slides = true;
  request.agree = [this](std::span<int32_t> tokens) {
    run_.runtime.communicator().broadcast(tokens.data(), static_cast<int64_t>(tokens.size_bytes()));
  };
  return request;
}

int64_t RunSamples::run(int64_t completed, const StopRequested& stop_requested) {
  const SectionScope section(Section::sampling);
  TrainingPlan& plan = run_.plan;
  const Tokenizer& tokenizer = *plan.tokenizer;
  int64_t stop = 0;
  GenerationRequest wanted = request(completed);
  wanted.interrupted = [&] { return (stop = stop_requested()) != 0; };
  const double begin = now();
  // Samples are printed when all are complete, so that none is printed twice.
  const std::vector<Continuation> all = plan.generator->run(plan.params(), plan.arena, run_.runtime.stream(), wanted);
  if (stop != 0) return stop;
  SampleRecord record{completed, {}, now() - begin};
  for (size_t i = 0; i < all.size(); ++i) {
    const std::vector<int32_t>& prompt = wanted.prompts[i];
    record.samples.push_back({tokenizer.decode(prompt), continuation_text(tokenizer, prompt, all[i].tokens)});
  }
  run_.log.samples(record);
  run_.progress.pending.samples = false;
  return 0;
}

}  // namespace llmtrain
