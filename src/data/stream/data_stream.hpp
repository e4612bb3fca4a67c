#pragma once
// Micro-batches of any step as a pure function of (token file, deck, step): there is no state to restore, and nothing
// can depend on the rank count.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/arena.hpp"
#include "core/batch.hpp"
#include "data/batch_config.hpp"
#include "data/curriculum_config.hpp"
#include "data/files/token_file.hpp"
#include "data/sample_rules.hpp"
#include "data/stream/batch_source.hpp"
#include "data/stream/sample_index.hpp"
#include "device/device.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

class DifficultyOrder;

/// Device memory of one batch, and the copy to it: one for all its columns.
class BatchBuffers {
 public:
  /// `kept_words`: words of Batch::kept of a row; 0: batches have none. `min_rows`: shorter batches are padded to so
  /// many rows; at most rounded_rows(1). `max_numbers`: of upload().
  void plan(Arena& arena, int64_t max_rows, int64_t max_segments, int64_t kept_words = 0, int64_t min_rows = 1,
            int64_t max_numbers = 0);
  /// `host` may change when this returns. The host waits if the device is two batches behind. Batch::documents and
  /// Batch::rollout are valid until the next call. `numbers` go with it. Batches with as many rows, segments and
  /// numbers lie at the same addresses.
  Batch upload(const HostBatch& host, Stream& stream, std::span<const uint32_t> numbers = {});
  /// The numbers of the last batch, uint32 [n].
  const Tensor& numbers() const { return numbers_; }

 private:
  Batch upload_padded(HostBatch host, int64_t padding, Stream& stream);
  /// Part of a batch that is being copied.
  struct Staging {
    explicit Staging(int64_t bytes) : memory(bytes) {}
    PinnedBuffer memory;
    Event copied;
  };
  std::array<std::optional<Staging>, 2> staging_;
  DocumentColumns documents_;  ///< of the last batch
  RolloutColumns rollout_;
  size_t next_ = 0;
  int64_t min_rows_ = 1, max_rows_ = 0, max_borders_ = 0, kept_words_ = 0, max_numbers_ = 0;
  Tensor memory_;  ///< uint8: the columns, one after the other
  Tensor numbers_;
};

/// Tokens whose share of all samples is weight / sum of all weights.
struct WeightedTokens {
  std::shared_ptr<const TokenFile> tokens;
  double weight = 1;
};

struct SourceShare {
  double share = 1;     ///< fraction of all samples
  int64_t samples = 0;  ///< samples per epoch of this source
};

/// Samples of preference data: the documents of a group (of one, or of the chosen and the rejected answer) that one
/// forward pass takes together, each with separate attention and positions, each at most T inputs; batch.micro and
/// batch.global count groups. If one document of a group keeps no target, the group is left out.
///
/// Samples of prompts: a prompt each, of at most T - SampleRules::completion_tokens inputs and no targets; each counts
/// as one trained token of its step.
///
/// Samples of other data. wrap: sample i has the inputs [i T, i T + T) and targets [i T + 1, i T + T + 1) of the stream
/// of documents; an incomplete window at the end is not used. none: a sample is a document, its inputs are its tokens
/// but the last, its targets its tokens but the first; `overflow` handles longer ones (split: windows of T inputs and
/// targets, stride T, inside the document). greedy, first_fit, best_fit: several of these documents or windows in a
/// sample of at most T inputs (packing.hpp), each with separate attention and positions.
///
/// A curriculum of lengths cuts the samples of a step to its first tokens. One of difficulties draws a step's samples
/// from the easiest ones of their source, each of them once before any of them again, as long as these stay the same;
/// the stream is then endless, without a short step.
///
/// With one source, every epoch has each sample once, in a new order. With several, mixture.hpp chooses the source of
/// each sample, each source has its own epochs, and an epoch of the whole is the sum of the sources' samples.
class DataStream : public BatchSource {
 public:
  /// `shuffle` false: canonical order (evaluation). Collective over the ranks of the files, see SampleIndex. Throws
  /// UserError if the data gives no sample, or if a document is too long with overflow = error.
  DataStream(std::shared_ptr<const TokenFile> file, const SampleRules& data, const BatchConfig& batch, uint64_t seed,
             bool shuffle);
  /// `difficulties`: one for each sample, by number; empty: as the curriculum says, but without an order of samples if
  /// they are losses, which are not known then.
  DataStream(const std::vector<WeightedTokens>& sources, const SampleRules& data, const BatchConfig& batch,
             uint64_t seed, bool shuffle, const CurriculumConfig& curriculum = {},
             std::span<const double> difficulties = {});

  int64_t samples() const;                   ///< samples per epoch
  int64_t steps_per_epoch() const override;  ///< with one source the last step can be short
  int64_t max_rows() const override;
  int64_t max_segments() const override;
  const SampleCounts& counts() const;
  std::vector<SourceShare> sources() const;
  /// Computes the rarity of every sample (difficulty_order.hpp). Collective.
  std::vector<double> rarities(Communicator& communicator) const;
  /// The order of a curriculum of difficulties; null: there is none.
  const DifficultyOrder* difficulty_order() const;
  /// Counts the samples of [first, last) without a target. Reads their mask.
  int64_t without_target(int64_t first, int64_t last) const;
  /// Steps count from 0 over all epochs.
  using BatchSource::plan;
  void plan(int64_t step, StepPlan& out) const override;
  /// The samples [first, last) in the order of their numbers as one micro-batch.
  MicroBatchPlan canonical(int64_t first, int64_t last) const;
  void load(const MicroBatchPlan& plan, HostBatch& out) const override;
  /// Documents of the micro-batch's prompts, each with the completion of the sample before it in the step, the first
  /// one with the last one's. Samples have one document.
  void load_mismatched(const StepPlan& step, const MicroBatchPlan& plan, HostBatch& out) const;
  /// Replaces `ids` by the tokens of a prompt, of which there is one a sample. A prefetching thread may call it.
  void read_prompt(int64_t sample, std::vector<int32_t>& ids) const;
  /// Reads the row of a prompt.
  StoredRow row(int64_t sample) const;
  int64_t documents_of_sample() const { return std::max<int64_t>(counts().group, 1); }

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace llmtrain
