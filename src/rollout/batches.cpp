#include "rollout/batches.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "core/files/content_hash.hpp"
#include "core/kept_tokens.hpp"
#include "core/philox.hpp"
#include "data/stream/sample_order.hpp"
#include "data/tokenize/shared_work.hpp"

namespace llmtrain {

int64_t RolloutShape::sequence_bytes() const {
  constexpr int64_t columns = 5, lists = 8, bytes_of_allocation = 32;
  return static_cast<int64_t>(sizeof(RolloutSequence)) + lists * bytes_of_allocation +
         4 * (max_length + 1 + max_new_tokens * (columns + kept_values));
}

void put(Message& message, const RolloutSequence& sequence) {
  message.put(sequence.ids);
  message.put(std::vector<int64_t>{sequence.prompt, sequence.prompt_length, sequence.ended ? 1 : 0});
  message.put(std::vector<double>{sequence.reward});
  message.put(sequence.logp);
  message.put(sequence.kept);
  message.put(sequence.reference_logp);
  message.put(sequence.values);
  message.put(sequence.advantages);
  message.put(sequence.returns);
}

void take(Message& message, RolloutSequence& sequence) {
  std::vector<int64_t> facts;
  std::vector<double> reward;
  message.take(sequence.ids);
  message.take(facts);
  message.take(reward);
  LLMTRAIN_CHECK(facts.size() == 3 && reward.size() == 1, "a sequence of a rollout is incomplete");
  sequence.prompt = facts[0];
  sequence.prompt_length = facts[1];
  sequence.ended = facts[2] != 0;
  sequence.reward = reward[0];
  message.take(sequence.logp);
  message.take(sequence.kept);
  message.take(sequence.reference_logp);
  message.take(sequence.values);
  message.take(sequence.advantages);
  message.take(sequence.returns);
}

void RolloutBatches::set(int64_t iteration, std::vector<RolloutSequence> sequences) {
  LLMTRAIN_CHECK(std::ssize(sequences) == shape_.of_iteration(), "a rollout has the sequences of an iteration");
  iteration_ = iteration;
  sequences_ = std::move(sequences);
}

RolloutBatches::Part RolloutBatches::part_of(const Communicator& communicator) const {
  const auto [begin, end] = own_items(shape_.of_iteration(), communicator);
  return {begin, end};
}

void RolloutBatches::plan(int64_t step, StepPlan& out) const {
  LLMTRAIN_CHECK(iteration_of(step) == iteration_, "the rollout of this step was not made");
  const int64_t update = step % shape_.updates(), epoch = update / shape_.mini_batches;
  const int64_t first = update % shape_.mini_batches * shape_.sequences, count = shape_.of_iteration();
  const uint64_t key = random_key(shape_.seed, RandomPurpose::rollout_order, static_cast<uint64_t>(iteration_),
                                  static_cast<uint64_t>(epoch));
  const SampleOrder order(count, key);
  out.step = step;
  out.epoch = iteration_;
  out.trained_tokens = 0;
  out.samples.clear();
  StreamHash hash;
  for (int64_t place = first; place < first + shape_.sequences; ++place) {
    const int64_t index = shape_.mini_batches > 1 ? order(place) : place;
    const RolloutSequence& sequence = at(index);
    out.samples.push_back(index);
    out.trained_tokens += sequence.completion_length();
    hash.update(sequence.ids.data(), sequence.ids.size() * sizeof(int32_t));
  }
  out.samples_hash = hash.digest().low;
  out.micro_batches.clear();
  for (int64_t begin = 0; begin < shape_.sequences; begin += shape_.micro) {
    const int64_t end = std::min(begin + shape_.micro, shape_.sequences);
    MicroBatchPlan& micro = out.micro_batches.emplace_back();
    micro.index = begin / shape_.micro;
    micro.samples.assign(out.samples.begin() + begin, out.samples.begin() + end);
    micro.first_document = begin;
    for (const int64_t index : micro.samples) micro.rows += at(index).rows();
    micro.rows = rounded_rows(micro.rows);
  }
}

MicroBatchPlan RolloutBatches::canonical(int64_t first, int64_t last) const {
  MicroBatchPlan plan;
  for (int64_t index = first; index < last; ++index) {
    plan.samples.push_back(index);
    plan.rows += at(index).rows();
  }
  plan.rows = rounded_rows(plan.rows);
  plan.first_document = first;
  return plan;
}

void RolloutBatches::load(const MicroBatchPlan& plan, HostBatch& out) const {
  out.clear();
  out.documents.first_in_step = plan.first_document;
  RolloutColumns& columns = out.rollout;
  columns.longest = shape_.max_new_tokens;
  const auto words = static_cast<size_t>(shape_.kept_words);
  out.kept.resize(static_cast<size_t>(plan.rows) * words, ~0U);  // of prompts and padding: all
  for (const int64_t index : plan.samples) {
    const RolloutSequence& sequence = at(index);
    const size_t begin = out.ids.size(), prompt = static_cast<size_t>(sequence.prompt_length) - 1;
    out.add_segment(std::span(sequence.ids).first(sequence.ids.size() - 1), id_of(index));
    std::copy(sequence.ids.begin() + sequence.prompt_length, sequence.ids.end(),
              out.targets.begin() + static_cast<std::ptrdiff_t>(begin + prompt));
    std::fill(out.loss_weights.begin() + static_cast<std::ptrdiff_t>(begin + prompt), out.loss_weights.end(), 1.0F);
    out.documents.ids.push_back(index);
    out.documents.targets.push_back(sequence.completion_length());
    const auto add = [&](std::vector<float>& column, const std::vector<float>& values) {
      if (values.empty()) return;
      column.resize(begin + prompt, 0.0F);
      column.insert(column.end(), values.begin(), values.end());
    };
    add(columns.old_logp, sequence.logp);
    add(columns.reference_logp, sequence.reference_logp);
    add(columns.advantages, sequence.advantages);
    add(columns.returns, sequence.returns);
    add(columns.old_values, sequence.values);
    std::span<const uint32_t> kept(sequence.kept);
    for (size_t row = begin + prompt; words > 0 && row < out.ids.size(); ++row) {
      take_kept(kept, std::span(out.kept).subspan(row * words, words));
    }
  }
  out.pad(plan.rows - std::ssize(out.ids), shape_.max_length, id_of(shape_.of_iteration()));
  const size_t rows = out.ids.size();
  for (auto* column :
       {&columns.old_logp, &columns.reference_logp, &columns.advantages, &columns.returns, &columns.old_values}) {
    if (!column->empty()) column->resize(rows, 0.0F);
  }
}

void load_scored(std::span<const std::vector<int32_t>> texts, int64_t max_length, HostBatch& out) {
  out.clear();
  for (const std::vector<int32_t>& text : texts) {
    out.add_segment(text, std::ssize(out.documents.ids));
    out.loss_weights.back() = 1;
    out.documents.ids.push_back(std::ssize(out.documents.ids));
    out.documents.targets.push_back(1);
  }
  const int64_t rows = std::ssize(out.ids);
  out.pad(rounded_rows(rows) - rows, max_length, std::ssize(texts));
}

}  // namespace llmtrain
