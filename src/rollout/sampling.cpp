#include "rollout/sampling.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.hpp"
#include "generate/stop_texts.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "parallel/job/launcher.hpp"

namespace llmtrain {

namespace {

constexpr int64_t max_at_once = 64;           ///< sequences that a rank samples side by side
constexpr int64_t passes_between_polls = 16;  ///< of sampling, for requests to stop

}  // namespace

GeneratorCapacity sampling_capacity(ModelSet& models, const RolloutShape& shape, const RolloutConfig& sampling,
                                    int ranks, int64_t max_rows) {
  const ModelConfig& policy = models.at(Role::policy).shape().config;
  GeneratorCapacity room;
  room.vocabulary_rows = policy.vocab_size;
  room.sequences = std::min({max_at_once, (shape.of_iteration() + ranks - 1) / ranks, max_rows});
  room.context = shape.max_length;
  room.records_logp = true;
  room.policy = sampling.cache;
  room.kv_heads = policy.n_kv_heads;
  room.graphs = shape.graphs && policy.experts.count == 0;
  return room;
}

GenerationRequest sampling_request(const SamplingContext& run, const RolloutConfig& sampling, uint64_t seed,
                                   int64_t iteration) {
  GenerationRequest request;
  request.what = "generating the rollout";
  request.sampling = {sampling.temperature, sampling.top_k, sampling.top_p};
  request.max_new_tokens = sampling.max_new_tokens;
  request.eos = {run.stop_ids.begin(), run.stop_ids.end()};
  request.vocabulary = run.models.at(Role::policy).shape().tokens;  // as the softmax of updates
  request.seed = seed;
  request.step = iteration;
  request.records_logp = true;
  request.threads = worker_threads(run.runtime.communicator());
  if (run.rows.mesh().passes().size() > 1) request.ranks = &run.rows.mesh().passes();
  return request;
}

Prepared sample_sequences(const SamplingContext& run, Generator& generator, GenerationRequest wanted,
                          const StopTexts& stop, std::vector<RolloutSequence>& sequences) {
  Communicator& communicator = run.runtime.communicator();
  std::map<size_t, StopTextStream> texts;
  if (!stop.texts.empty()) {
    wanted.on_token = [&](size_t p, int32_t token) {
      return texts.try_emplace(p, *stop.tokenizer, wanted.prompts[p], stop.texts).first->second.add(token);
    };
  }
  int64_t passes = 0;
  bool stopped = false;
  wanted.interrupted = [&] {
    if (++passes % passes_between_polls == 0) stopped = run.interrupted();
    return stopped;
  };
  std::vector<Continuation> all;
  try {
    throw_on_all_ranks(communicator, [&] {
      all = generator.run(run.models.at(Role::policy).params(), run.arena, run.runtime.stream(), wanted);
    });
  } catch (const UserError& error) {  // the same on all ranks
    if (error.code() != ExitCode::diverged) throw;
    return Prepared::not_finite;
  }
  if (stopped) return Prepared::interrupted;
  Message message;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].own || run.rows.mesh().tensor_rank() > 0) continue;
    RolloutSequence sequence;
    sequence.ids = std::move(wanted.prompts[i]);
    sequence.prompt_length = std::ssize(sequence.ids);
    sequence.ids.insert(sequence.ids.end(), all[i].tokens.begin(), all[i].tokens.end());
    if (all[i].end == GenerationEnd::eos) sequence.ids.push_back(all[i].eos);
    sequence.ended = all[i].end == GenerationEnd::eos || all[i].end == GenerationEnd::stopped;
    sequence.logp = std::move(all[i].logp);
    sequence.kept = std::move(all[i].kept);
    message.put(std::vector<int64_t>{static_cast<int64_t>(i)});
    put(message, sequence);
  }
  sequences.resize(all.size());
  for (std::string& bytes : communicator.gather_all(message.bytes())) {
    Message received(std::move(bytes));
    while (!received.at_end()) {
      std::vector<int64_t> number;
      received.take(number);
      take(received, sequences[static_cast<size_t>(number.at(0))]);
    }
  }
  return Prepared::ready;
}

}  // namespace llmtrain
