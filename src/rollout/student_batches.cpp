#include "rollout/student_batches.hpp"

#include <algorithm>
#include <utility>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/number_text.hpp"
#include "core/philox.hpp"
#include "core/profile.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "rollout/sampling.hpp"

namespace llmtrain {

StudentBatches::StudentBatches(StudentParts parts, DataStream data)
    : parts_(std::move(parts)), data_(std::move(data)), written_(parts_.shape) {}

int64_t StudentBatches::max_rows() const { return std::max(data_.max_rows(), written_.max_rows()); }

int64_t StudentBatches::max_segments() const { return std::max(data_.max_segments(), written_.max_segments()); }

bool StudentBatches::writes(int64_t step) const {
  const uint64_t key = random_key(parts_.shape.seed, RandomPurpose::rollout_order, static_cast<uint64_t>(step));
  return random_uniform(random_bits(key, 0, 0)) < parts_.fraction;
}

void StudentBatches::plan(int64_t step, StepPlan& out) const {
  const bool written = writes(step);
  written ? written_.plan(step, out) : data_.plan(step, out);
  for (MicroBatchPlan& micro : out.micro_batches) micro.written = written;  // a plan is that of an earlier step
}

void StudentBatches::load(const MicroBatchPlan& plan, HostBatch& out) const {
  if (!plan.written) return data_.load(plan, out);
  written_.load(plan, out);
  out.kept.clear();
  out.documents = {};
  out.rollout = {};
}

void StudentBatches::plan_memory(ModelSet& models, Arena& arena, DType compute, int ranks) {
  generator_.emplace(models.at(Role::policy).actor(),
                     sampling_capacity(models, parts_.shape, parts_.sampling, ranks, max_rows()));
  generator_->plan(arena, compute);
}

std::vector<int32_t> StudentBatches::prompt_of(int64_t sample) const {
  HostBatch batch;
  data_.load(data_.canonical(sample, sample + 1), batch);
  const size_t rows = batch.ids.size() - static_cast<size_t>(batch.padding);
  const auto trained = [&](size_t row) { return batch.targets[row] != ignore_target && batch.loss_weights[row] != 0; };
  size_t end = rows;
  while (end > 0 && !trained(end - 1)) --end;
  size_t begin = end > 0 ? end - 1 : rows - 1;
  while (begin > 0 && trained(begin - 1)) --begin;
  const auto last = batch.ids.begin() + static_cast<std::ptrdiff_t>(begin) + 1;
  const int64_t room = parts_.shape.max_length - parts_.sampling.max_new_tokens;
  const int64_t length = std::min<int64_t>(static_cast<int64_t>(begin) + 1, room);
  return {last - length, last};
}

Prepared StudentBatches::prepare(const SamplingContext& run, int64_t step) {
  if (!writes(step)) return Prepared::ready;
  const SectionScope section(Section::sampling);
  run.models.at(Role::policy).params().finish_update();
  const ProfileSpan phase(SpanKind::phase, "sampling");
  const std::vector<int64_t> samples = data_.plan(step).samples;
  GenerationRequest wanted;
  throw_on_all_ranks(run.runtime.communicator(), [&] {
    wanted = sampling_request(run, parts_.sampling, parts_.shape.seed, step);
    for (const int64_t sample : samples) wanted.prompts.push_back(prompt_of(sample));
  });
  std::vector<RolloutSequence> sequences;
  const Prepared outcome =
      sample_sequences(run, *generator_, std::move(wanted), {parts_.sampling.stop, parts_.tokenizer.get()}, sequences);
  if (outcome != Prepared::ready) return outcome;
  RolloutShape shape = parts_.shape;
  shape.sequences = std::ssize(sequences);  // the last step of an epoch may be short
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i].prompt = samples[i];
    sequences[i].logp.clear();
    sequences[i].kept.clear();
  }
  written_ = RolloutBatches(shape);
  written_.set(step, std::move(sequences));
  return Prepared::ready;
}

}  // namespace llmtrain
