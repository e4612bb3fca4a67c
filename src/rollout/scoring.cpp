#include "rollout/scoring.hpp"

#include <algorithm>
#include <utility>

#include "core/activity.hpp"

namespace llmtrain {

void RolloutScorer::plan(Arena& arena, const RolloutBatches& batches) {
  const int64_t rows = batches.max_rows();
  buffers_.plan(arena, rows, batches.max_segments(), batches.shape().kept_words);
  arena.add(numbers_, MemoryCategory::activations, "rollout.numbers", DType::f32, {rows});
}

bool RolloutScorer::run(const SamplingContext& context, RolloutBatches& batches, const ScoringPass& pass) {
  const Mesh& mesh = context.rows.mesh();
  std::vector<RolloutSequence>& sequences = batches.sequences();
  const int64_t all = std::ssize(sequences), micro = batches.shape().micro, round = micro * mesh.data_ranks();
  Message message;
  for (int64_t first = 0; first < all; first += round) {
    if (first > 0 && context.interrupted()) return false;
    report_progress();
    const int64_t begin = std::min(first + mesh.data_rank() * micro, all), end = std::min(begin + micro, all);
    if (begin == end) {
      pass.compute(nullptr, {});
    } else {
      score(context, batches, batches.canonical(begin, end), pass, message);
    }
  }
  for (const std::string& bytes : mesh.job().gather_all(message.bytes())) {
    Message received(bytes);
    while (!received.at_end()) {
      std::vector<int64_t> number;
      std::vector<float> values;
      received.take(number);
      received.take(values);
      pass.keep(sequences[static_cast<size_t>(number.at(0))], std::move(values));
    }
  }
  return true;
}

void RolloutScorer::score(const SamplingContext& context, const RolloutBatches& batches, const MicroBatchPlan& plan,
                          const ScoringPass& pass, Message& message) {
  Stream& stream = context.runtime.stream();
  pass.load(plan, host_);
  const Batch batch = buffers_.upload(host_, stream);
  const Tensor numbers = first_rows(numbers_, batch.tokens);
  pass.compute(&batch, numbers);
  if (!context.rows.mesh().leads()) return;
  std::vector<float> rows(static_cast<size_t>(batch.tokens));
  copy_to_host(rows.data(), numbers.data, numbers.bytes(), stream);
  stream.synchronize();
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    const int64_t index = plan.samples[i];
    const auto end = rows.begin() + host_.segments[i + 1];
    message.put(std::vector<int64_t>{index});
    message.put(std::vector<float>(end - pass.count(batches.sequences()[static_cast<size_t>(index)]), end));
  }
}

}  // namespace llmtrain
