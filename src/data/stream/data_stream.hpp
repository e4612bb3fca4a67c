#pragma once
// The micro-batches of any step as a pure function of (token file, deck, step): no state, so nothing to restore and
// nothing that could depend on the rank count.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/arena.hpp"
#include "core/batch.hpp"
#include "data/batch_config.hpp"
#include "data/data_config.hpp"
#include "data/files/token_file.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// Sequences of one forward pass.
struct MicroBatchPlan {
  int64_t index = 0;             ///< canonical, in the step
  std::vector<int64_t> samples;  ///< sample numbers in the data set, at most batch.micro
  int64_t rows = 0;              ///< tokens of the batch; but with packing = wrap rounded up to a multiple of 128
};

struct StepPlan {
  int64_t step = 0;
  int64_t epoch = 0;
  std::vector<MicroBatchPlan> micro_batches;
  int64_t trained_tokens = 0;    ///< targets that count, in the whole step
  std::vector<int64_t> samples;  ///< of all micro-batches in order
  uint64_t samples_hash = 0;     ///< of these numbers: the ledger's "samples"
  std::vector<uint8_t> mask;     ///< of one sample while its targets are counted
};

/// A batch in host memory.
struct HostBatch {
  std::vector<int32_t> ids, positions, targets, segments, sequence_offsets;
  std::vector<int64_t> sequence_ids;
  std::vector<float> loss_weights;
  std::vector<int32_t> window;       ///< tokens of one sample while it is loaded
  std::vector<uint8_t> window_mask;  ///< their mask
};

/// Device memory for one batch, and the copy into it.
class BatchBuffers {
 public:
  void plan(Arena& arena, int64_t max_rows, int64_t max_segments);
  /// `host` may change when this returns. The host waits where the device is two batches behind it.
  Batch upload(const HostBatch& host, Stream& stream);

 private:
  /// What of a batch is on its way.
  struct Staging {
    explicit Staging(int64_t bytes) : memory(bytes) {}
    PinnedBuffer memory;
    Event copied;
  };
  std::array<std::optional<Staging>, 2> staging_;
  size_t next_ = 0;
  Batch buffers_;
};

/// What became of documents on their way to samples.
struct SampleCounts {
  int64_t samples = 0;         ///< of one epoch
  int64_t inputs = 0;          ///< of all samples together
  int64_t too_long = 0;        ///< documents longer than the sequence, split or truncated (not with wrap)
  int64_t without_target = 0;  ///< documents of one token, which give no sample (not with wrap)
  int64_t unused_tokens = 0;   ///< at the end of the stream, or cut off by truncation
};

/// Tokens that get the share weight / sum of all weights of the samples.
struct WeightedTokens {
  std::shared_ptr<const TokenFile> tokens;
  double weight = 1;
};

struct SourceShare {
  double share = 1;     ///< of all samples
  int64_t samples = 0;  ///< of an epoch of its own
};

/// Samples. wrap: sample i is the inputs [i T, i T + T) and targets [i T + 1, i T + T + 1) of the stream of documents;
/// an incomplete window at the end is not used. none: a sample is a document, its inputs are its tokens but the last,
/// its targets its tokens but the first; `overflow` says what becomes of longer ones (split: windows of T inputs and
/// targets, stride T, inside the document). greedy, first_fit, best_fit: several of these documents or windows in a
/// sample of at most T inputs (packing.hpp), each attending to itself alone, with positions of its own.
///
/// One source: every epoch has each sample once, in a new order. Several: mixture.hpp says whose turn it is, each goes
/// through its own epochs, and an epoch of the whole is as many samples as all have together.
class DataStream {
 public:
  /// `shuffle` false: canonical order (evaluation). UserError when the data gives no sample, or a document is too long
  /// under overflow = error.
  DataStream(std::shared_ptr<const TokenFile> file, const DataConfig& data, const BatchConfig& batch, uint64_t seed,
             bool shuffle);
  DataStream(const std::vector<WeightedTokens>& sources, const DataConfig& data, const BatchConfig& batch,
             uint64_t seed, bool shuffle);

  int64_t samples() const;          ///< of one epoch
  int64_t steps_per_epoch() const;  ///< of one source the last one may be short
  int64_t max_rows() const;         ///< of any micro-batch
  int64_t max_segments() const;
  const SampleCounts& counts() const;
  std::vector<SourceShare> sources() const;
  /// Counts the samples of [first, last) that have no target. Reads their mask.
  int64_t without_target(int64_t first, int64_t last) const;
  /// Steps count from 0 over all epochs.
  StepPlan plan(int64_t step) const;
  /// In the memory of another step's plan.
  void plan(int64_t step, StepPlan& out) const;
  /// May be called from a prefetching thread.
  void load(const MicroBatchPlan& plan, HostBatch& out) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace llmtrain
