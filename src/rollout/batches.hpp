#pragma once
// Sequences that the model wrote in one iteration of PPO or GRPO, and the updates that learn from them.

#include <cstdint>
#include <span>
#include <vector>

#include "data/stream/batch_source.hpp"
#include "parallel/communicator.hpp"
#include "parallel/message.hpp"

namespace llmtrain {

/// A prompt and its completion. Completion token t is ids[prompt_length + t].
struct RolloutSequence {
  std::vector<int32_t> ids;   ///< with the token that ended it
  int64_t prompt = 0;         ///< sample number of the prompt
  int64_t prompt_length = 0;  ///< at least 1
  bool ended = false;         ///< false: it was cut off at its greatest length
  double reward = 0;          ///< NaN: no function gave one
  // For each completion token:
  std::vector<float> logp;            ///< recorded by sampling, nats
  std::vector<uint32_t> kept;         ///< as append_kept() stores them; empty if no token was excluded
  std::vector<float> reference_logp;  ///< nats; empty without a reference
  std::vector<float> values;          ///< of a critic, before the token; empty without one
  std::vector<float> advantages, returns;

  int64_t completion_length() const { return static_cast<int64_t>(ids.size()) - prompt_length; }
  int64_t rows() const { return static_cast<int64_t>(ids.size()) - 1; }
  std::span<const int32_t> completion() const { return std::span(ids).subspan(static_cast<size_t>(prompt_length)); }
};

void put(Message& message, const RolloutSequence& sequence);
void take(Message& message, RolloutSequence& sequence);

/// Loads texts for a model that scores their last tokens. `max_length`: tokens of a text at most.
void load_scored(std::span<const std::vector<int32_t>> texts, int64_t max_length, HostBatch& out);

/// Sizes of an iteration.
struct RolloutShape {
  int64_t sequences = 0;     ///< of an update
  int64_t mini_batches = 1;  ///< an iteration has `sequences` times as many sequences
  int64_t epochs = 1;        ///< passes over the sequences of an iteration
  int64_t micro = 1;         ///< sequences of a forward pass
  int64_t max_length = 0;    ///< tokens of a sequence
  int64_t max_new_tokens = 0;
  int64_t kept_words = 0;   ///< words of Batch::kept of a row; 0: no token is excluded
  int64_t kept_values = 0;  ///< most values of RolloutSequence::kept of a token
  uint64_t seed = 0;
  bool graphs = false;  ///< sampling may run as graphs of a GPU

  /// Bytes of a sequence at most.
  int64_t sequence_bytes() const;
  int64_t of_iteration() const { return sequences * mini_batches; }
  int64_t updates() const { return mini_batches * epochs; }  ///< of an iteration
};

/// Step u of the data is update u % updates() of iteration u / updates(). With several mini-batches, each epoch has an
/// order of its own.
class RolloutBatches {
 public:
  explicit RolloutBatches(const RolloutShape& shape) : shape_(shape) {}

  const RolloutShape& shape() const { return shape_; }
  int64_t iteration_of(int64_t step) const { return step / shape_.updates(); }
  int64_t iteration() const { return iteration_; }  ///< of the sequences; -1: there are none
  std::vector<RolloutSequence>& sequences() { return sequences_; }
  const std::vector<RolloutSequence>& sequences() const { return sequences_; }
  void set(int64_t iteration, std::vector<RolloutSequence> sequences);
  /// Sequences [begin, end) of an iteration that a rank scores by functions.
  struct Part {
    int64_t begin, end;
  };
  Part part_of(const Communicator& communicator) const;

  int64_t max_rows() const { return rounded_rows(shape_.micro * shape_.max_length); }
  int64_t max_segments() const { return shape_.micro + (rounded_rows(1) + shape_.max_length - 2) / shape_.max_length; }
  /// The sequences must be those of the step's iteration.
  void plan(int64_t step, StepPlan& out) const;
  void load(const MicroBatchPlan& plan, HostBatch& out) const;
  /// Plans a forward pass over the sequences [first, last).
  MicroBatchPlan canonical(int64_t first, int64_t last) const;

 private:
  const RolloutSequence& at(int64_t index) const { return sequences_[static_cast<size_t>(index)]; }
  /// Key of a sequence's random numbers.
  int64_t id_of(int64_t index) const { return iteration_ * shape_.of_iteration() + index; }

  RolloutShape shape_;
  int64_t iteration_ = -1;
  std::vector<RolloutSequence> sequences_;
};

}  // namespace llmtrain
