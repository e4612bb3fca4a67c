#pragma once
// Steps of data, some of which the student writes itself (generalised knowledge distillation, Agarwal et al. 2024,
// arXiv:2306.13649): it samples a completion for the prompt of each of the step's conversations, and learns from these.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "data/stream/data_stream.hpp"
#include "generate/generator.hpp"
#include "rollout/batches.hpp"
#include "rollout/rollout_config.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

struct StudentParts {
  RolloutShape shape;  ///< of a step
  RolloutConfig sampling;
  std::shared_ptr<const Tokenizer> tokenizer;
  double fraction = 0;  ///< of the steps that the student writes
};

/// A step's completions are a function of the parameters, the data and the step: there is no state.
class StudentBatches : public BatchSource {
 public:
  /// `data`: a sample of it is one conversation. Its last trained turn is what the student writes anew; a prompt is cut
  /// to the last tokens that leave room for it.
  StudentBatches(StudentParts parts, DataStream data);

  int64_t max_rows() const override;
  int64_t max_segments() const override;
  int64_t steps_per_epoch() const override { return data_.steps_per_epoch(); }
  using BatchSource::plan;
  void plan(int64_t step, StepPlan& out) const override;
  void load(const MicroBatchPlan& plan, HostBatch& out) const override;
  void plan_memory(ModelSet& models, Arena& arena, DType compute, int ranks) override;
  int64_t host_bytes() const override { return 2 * parts_.shape.sequences * parts_.shape.sequence_bytes(); }
  bool is_prepared(int64_t step) const override { return !writes(step) || written_.iteration() == step; }
  Prepared prepare(const SamplingContext& run, int64_t step) override;
  void reset() override { written_ = RolloutBatches(parts_.shape); }

 private:
  bool writes(int64_t step) const;
  std::vector<int32_t> prompt_of(int64_t sample) const;

  StudentParts parts_;
  DataStream data_;
  RolloutBatches written_;
  std::optional<Generator> generator_;
};

}  // namespace llmtrain
