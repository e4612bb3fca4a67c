#pragma once
// Micro-batches by the numbers of steps, whatever their origin: token files, or sequences that the model wrote.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/batch.hpp"
#include "core/dtype.hpp"

namespace llmtrain {

class Arena;
class ModelSet;
struct SamplingContext;

/// Sequences of one forward pass.
struct MicroBatchPlan {
  int64_t index = 0;              ///< canonical index in the step
  std::vector<int64_t> samples;   ///< sample numbers in the data set, at most batch.micro
  double mean_first_targets = 1;  ///< DocumentColumns::mean_first_targets
  int64_t longest = 0;            ///< inputs that a sample keeps, the first ones; 0: all
  int64_t first_document = 0;     ///< number of its first document in the step, where samples have documents
  bool written = false;           ///< the model wrote its samples, which are no samples of the data set
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
  int64_t padding = 0;               ///< rows at the end that belong to no document

  /// Removes everything; the first segment begins.
  void clear();
  /// Adds a segment of its own sequence: rows without targets and loss, which the caller may set.
  void add_segment(std::span<const int32_t> inputs, int64_t sequence_id);
  /// Adds padding rows without loss, in segments of at most `longest` rows, whose sequence id is `id`.
  void pad(int64_t rows, int64_t longest, int64_t id);
};

/// Token counts of concatenated samples are rounded up to a multiple of 128, to limit the number of shapes.
constexpr int64_t rounded_rows(int64_t rows) { return (rows + 127) / 128 * 128; }

/// A number that every step of a source reports.
struct SourceMetric {
  std::string name;        ///< as in the ledger
  std::string label = {};  ///< on the console; empty: it is not shown
};

/// Result of BatchSource::prepare(), which may be called again unless it is `ready`.
enum class Prepared : uint8_t { ready, interrupted, not_finite };

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual int64_t max_rows() const = 0;  ///< maximum over all micro-batches
  virtual int64_t max_segments() const = 0;
  virtual int64_t steps_per_epoch() const = 0;
  /// Plans a step, and reuses the memory of another step's plan.
  virtual void plan(int64_t step, StepPlan& out) const = 0;
  StepPlan plan(int64_t step) const {
    StepPlan out;
    plan(step, out);
    return out;
  }
  /// A prefetching thread may call it.
  virtual void load(const MicroBatchPlan& plan, HostBatch& out) const = 0;

  // A source whose samples the model writes (src/rollout) has memory, work between steps, metrics and state.

  virtual void plan_memory(ModelSet& /*models*/, Arena& /*arena*/, DType /*compute*/, int /*ranks*/) {}
  virtual int64_t host_bytes() const { return 0; }      ///< host memory beside the plan
  virtual int64_t kept_words() const { return 0; }      ///< words of Batch::kept of a row
  virtual float temperature() const { return 1; }       ///< divisor of logits
  virtual int64_t prepared_steps() const { return 1; }  ///< steps that learn from one call of prepare()
  /// True if the step can be planned.
  virtual bool is_prepared(int64_t /*step*/) const { return true; }
  /// Makes the samples of a step. Collective.
  virtual Prepared prepare(const SamplingContext& /*run*/, int64_t /*step*/) { return Prepared::ready; }
  virtual std::vector<SourceMetric> metrics() const { return {}; }
  virtual std::vector<double> metric_values() const { return {}; }
  /// Numbers of the rows of data that samples come from, ascending, and places of the first ones for messages.
  virtual std::vector<int64_t> rows_of(std::span<const int64_t> samples) const {
    return {samples.begin(), samples.end()};
  }
  virtual std::vector<std::string> places_of(std::span<const int64_t> /*rows*/) const { return {}; }
  virtual bool has_state() const { return false; }
  /// State for a checkpoint before the step; restore() throws UserError(bad_content) beginning
  /// with `source`.
  virtual std::string save(int64_t /*step*/) const { return {}; }
  virtual void restore(const std::string& /*bytes*/, int64_t /*step*/, const std::string& /*source*/) {}
  /// Forgets the state.
  virtual void reset() {}
};

}  // namespace llmtrain
