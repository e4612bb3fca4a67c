#pragma once
// Micro-batches by the numbers of steps, whatever their origin: token files, or sequences that the model wrote.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/batch.hpp"

namespace llmtrain {

/// Sequences of one forward pass.
struct MicroBatchPlan {
  int64_t index = 0;              ///< canonical index in the step
  std::vector<int64_t> samples;   ///< sample numbers in the data set, at most batch.micro
  double mean_first_targets = 1;  ///< DocumentColumns::mean_first_targets
  int64_t longest = 0;            ///< inputs that a sample keeps, the first ones; 0: all
  int64_t first_document = 0;     ///< number of its first document in the step, where samples have documents
  int64_t rows = 0;               ///< tokens of the batch; unless packing = wrap, rounded up to a multiple of 128
};

struct StepPlan {
  int64_t step = 0;
  int64_t epoch = 0;
  std::vector<MicroBatchPlan> micro_batches;
  std::optional<double> curriculum = {};  ///< value of the curriculum, if there is one
  int64_t trained_tokens = 0;             ///< targets that count in the whole step
  std::vector<int64_t> samples;           ///< samples of all micro-batches in order
  uint64_t samples_hash = 0;              ///< hash of these numbers: "samples" in the ledger
  std::vector<uint8_t> mask;              ///< mask of one sample while its targets are counted
};

/// Batch in host memory.
struct HostBatch {
  std::vector<int32_t> ids, positions, targets, segments, sequence_offsets;
  std::vector<int64_t> sequence_ids;
  std::vector<float> loss_weights;
  std::vector<int32_t> window;       ///< tokens of one sample during loading
  std::vector<uint8_t> window_mask;  ///< mask of these tokens
  DocumentColumns documents;         ///< of preference data and rollouts, otherwise empty
  RolloutColumns rollout;            ///< of rollouts, otherwise empty
  std::vector<uint32_t> kept;        ///< Batch::kept, row by row; empty: all tokens

  /// Removes everything; the first segment begins.
  void clear();
  /// Adds a segment of its own sequence: rows without targets and loss, which the caller may set.
  void add_segment(std::span<const int32_t> inputs, int64_t sequence_id);
  /// Adds padding rows without loss, in segments of at most `longest` rows, whose sequence id is `id`.
  void pad(int64_t rows, int64_t longest, int64_t id);
};

/// Token counts of concatenated samples are rounded up to a multiple of 128, to limit the number of shapes.
constexpr int64_t rounded_rows(int64_t rows) { return (rows + 127) / 128 * 128; }

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual int64_t max_rows() const = 0;  ///< maximum over all micro-batches
  virtual int64_t max_segments() const = 0;
  /// Plans a step, and reuses the memory of another step's plan.
  virtual void plan(int64_t step, StepPlan& out) const = 0;
  StepPlan plan(int64_t step) const {
    StepPlan out;
    plan(step, out);
    return out;
  }
  /// A prefetching thread may call it.
  virtual void load(const MicroBatchPlan& plan, HostBatch& out) const = 0;
};

}  // namespace llmtrain
