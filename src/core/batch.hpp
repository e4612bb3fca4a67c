#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/tensor.hpp"

namespace llmtrain {

/// Target of a token that is excluded from training (the field's "ignore index").
inline constexpr int32_t ignore_target = -100;

/// Documents of a micro-batch, in host memory, for objectives over documents: the batch's first segments, in order. The
/// documents of a sample (the chosen and the rejected one of a pair) follow each other; padding segments follow them
/// all.
struct DocumentColumns {
  std::vector<int64_t> ids;      ///< canonical number: sample * documents of a sample + place in it
  std::vector<int64_t> targets;  ///< number of trained targets
  std::vector<float> values;     ///< column of the data: label or margin; empty if they have none
  int64_t first_in_step = 0;     ///< number of the first document in the step
  /// Mean number of trained targets of the samples' first documents (chosen ones), over the whole step.
  double mean_first_targets = 1;
  /// Log-probabilities under the reference model, nats, which the step fills in; empty: there is no such model.
  std::vector<double> references = {};
  /// Rows of the batch that have labels, whose numbers `values` has in this order, as many for each row; empty for
  /// other data.
  std::vector<int32_t> rows = {};
};

/// Columns of a rollout, in host memory: one value for each row of a batch, 0 for rows without a trained target.
struct RolloutColumns {
  std::vector<float> old_logp;        ///< log-probability that sampling recorded, nats
  std::vector<float> reference_logp;  ///< under the reference model, nats; empty without one
  std::vector<float> advantages;
  std::vector<float> returns;     ///< targets of the critic; empty without one
  std::vector<float> old_values;  ///< the critic's values at the time of the rollout; empty without one
  int64_t longest = 0;            ///< the rollout's max_new_tokens, the divisor of dr_grpo
};

/// One micro-batch: documents concatenated without padding, N tokens in all. Packing, padding-free fine-tuning and
/// preference pairs all use this one type; there is no separate mask. Attention never crosses a border of `segments`.
/// All tensors lie on the device.
struct Batch {
  int64_t tokens = 0;         ///< N, rows of everything below
  int64_t segment_count = 0;  ///< S
  int64_t longest_segment = 0;
  int64_t padding = 0;      ///< rows at the end that belong to no document
  Tensor ids;               ///< int32 [N]
  Tensor positions;         ///< int32 [N], restart at 0 in every segment
  Tensor targets;           ///< int32 [N], ignore_target for tokens excluded from training
  Tensor loss_weights;      ///< fp32 [N], 0 for tokens excluded from training
  Tensor segments;          ///< int32 [S + 1], cumulative lengths: segment s is rows [segments[s], segments[s + 1])
  Tensor sequence_ids;      ///< int64 [N], canonical id of the sample that contains the row (key of random numbers)
  Tensor sequence_offsets;  ///< int32 [N], index of the row in its sample; rows of a segment are consecutive
  Tensor kept;  ///< uint32 [N, ceil(V / 32)]: bit t says that sampling could draw token t (top-k, top-p); empty: all
  const DocumentColumns* documents = nullptr;  ///< null if the data have no objective over documents
  const RolloutColumns* rollout = nullptr;     ///< null unless the batch is part of a rollout

  /// Rows [first, first + count), for what regards each row by itself; without segments and columns.
  Batch rows(int64_t first, int64_t count) const {
    const auto cut = [&](const Tensor& t) { return t.empty() ? t : t.rows(first, count); };
    Batch part;
    part.tokens = count;
    part.padding = std::clamp<int64_t>(first + count - (tokens - padding), 0, count);
    part.ids = cut(ids);
    part.positions = cut(positions);
    part.targets = cut(targets);
    part.loss_weights = cut(loss_weights);
    part.sequence_ids = cut(sequence_ids);
    part.sequence_offsets = cut(sequence_offsets);
    part.kept = cut(kept);
    return part;
  }
};

}  // namespace llmtrain
