// The part of the trainer that evaluates, chooses the best checkpoint, stops early and samples. A request to stop
// interrupts both; they stay pending and run when the run resumes.

#include <algorithm>
#include <cmath>

#include "core/activity.hpp"
#include "core/clock.hpp"
#include "text/token_rows.hpp"
#include "train/evaluate.hpp"
#include "train/trainer_run.hpp"

namespace llmtrain {

std::vector<std::vector<int32_t>> encode_prompts(const Config& config, const Tokenizer* tokenizer) {
  std::vector<std::vector<int32_t>> prompts;
  if (config.log.samples_every_steps == 0) return prompts;
  if (tokenizer == nullptr) {
    throw UserError(
        ExitCode::deck,
        config.provenance.where("log.samples_every_steps") +
            ": the data are token ids without a tokenizer, so that samples cannot be text: set the key to 0");
  }
  for (const std::string& text : config.log.sample_prompts) {
    const std::string place = fmt::format("{}: '{}'", config.provenance.where("log.sample_prompts"), text);
    try {
      tokenizer->encode(text, prompts.emplace_back());
    } catch (const EncodeError& error) {
      throw UserError(ExitCode::deck, place + ": " + error.what());
    }
    require_rows(prompts.back(), tokenizer, config.model.vocab_size, place);
  }
  if (prompts.empty()) prompts.emplace_back();
  return prompts;
}

int64_t Trainer::evaluate(Run& run, int64_t completed) {
  if (!validation_) {
    run.pending.evaluation = false;
    return 0;
  }
  const SectionScope section(Section::evaluation);
  const double begin = now();
  Context ctx{params_, arena_, run.ctx.stream, run.ctx.seed, completed, false};
  const int64_t steps = first_steps(config_.evaluation, *validation_);
  const EvaluationBuffers buffers{batch_, {statistics_.logp, {}, {}, statistics_.argmax}};
  int64_t stop = 0;
  const auto interrupted = [&] { return (stop = stop_requested(run, completed)) != 0; };
  const auto result =
      llmtrain::evaluate(*model_, ctx, *validation_, steps, buffers, run.runtime.communicator(), interrupted);
  if (!result) return stop;
  run.pending.evaluation = false;
  EvaluationRecord record;
  record.step = completed;
  record.tokens = result->tokens;
  record.loss = result->loss;
  if (!statistics_.argmax.empty()) {
    record.token_accuracy = static_cast<double>(result->correct) / static_cast<double>(result->tokens);
  }
  if (!std::isfinite(record.loss)) {
    run.log.evaluation(record);
    run.guard.mark_lost(completed, "the validation loss is not finite");
    return 0;
  }
  record.best = update_best(run, record);
  record.seconds = now() - begin;
  run.log.evaluation(record);
  return 0;
}

bool Trainer::update_best(Run& run, const EvaluationRecord& record) {
  const double cost = record.token_accuracy ? -*record.token_accuracy : record.loss;
  const bool best = cost < run.best;
  if (best) {
    run.best = cost;
    run.best_step = record.step;
  }
  if (cost < run.reference - config_.evaluation.early_stopping_threshold) {
    run.reference = cost;
    run.without_improvement = 0;
  } else {
    ++run.without_improvement;
  }
  const int64_t patience = config_.evaluation.early_stopping_patience;
  run.stop = patience > 0 && run.without_improvement >= patience;
  return best;
}

int64_t Trainer::write_samples(Run& run, int64_t completed) {
  const SectionScope section(Section::sampling);
  int64_t stop = 0;
  GenerationRequest request;
  request.prompts = prompts_;
  for (std::vector<int32_t>& prompt : request.prompts) {
    if (!prompt.empty()) continue;  // starts like a sequence of the data
    HostBatch host;
    MicroBatchPlan plan = train_.plan(completed).micro_batches.front();
    plan.samples.resize(1);
    train_.load(plan, host);
    prompt.push_back(host.ids.front());
  }
  request.sampling = {config_.log.sample_temperature, config_.log.sample_top_k, config_.log.sample_top_p};
  request.max_new_tokens = config_.log.sample_length;
  if (tokenizer_->eos_id() >= 0) request.eos.push_back(tokenizer_->eos_id());
  request.vocabulary = std::min(tokenizer_->vocabulary_size(), config_.model.vocab_size);
  request.seed = run.ctx.seed;
  request.step = completed;
  request.slides = true;
  request.agree = [&](std::span<int32_t> tokens) {
    run.runtime.communicator().broadcast(tokens.data(), static_cast<int64_t>(tokens.size_bytes()));
  };
  request.interrupted = [&] { return (stop = stop_requested(run, completed)) != 0; };
  const double begin = now();
  // Samples are printed when all are complete, so that none is printed twice.
  const std::vector<Continuation> all = generator_->run(params_, arena_, run.ctx.stream, request);
  if (stop != 0) return stop;
  const double seconds = (now() - begin) / static_cast<double>(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    // Ids are decoded together, since a token at the beginning of a text may lack the space that it has inside.
    std::vector<int32_t> ids = request.prompts[i];
    const std::string given = tokenizer_->decode(ids);
    ids.insert(ids.end(), all[i].tokens.begin(), all[i].tokens.end());
    const std::string whole = tokenizer_->decode(ids);
    const bool goes_on = whole.starts_with(given);
    run.log.sample(completed, given, goes_on ? whole.substr(given.size()) : tokenizer_->decode(all[i].tokens), seconds);
  }
  run.pending.samples = false;
  return 0;
}

}  // namespace llmtrain
