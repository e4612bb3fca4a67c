#include "data/stream/batch_source.hpp"

#include <algorithm>

namespace llmtrain {

void HostBatch::clear() {
  for (auto* list : {&ids, &positions, &targets, &segments, &sequence_offsets}) list->clear();
  sequence_ids.clear();
  loss_weights.clear();
  documents.ids.clear();
  documents.targets.clear();
  documents.values.clear();
  documents.references.clear();
  for (auto* column :
       {&rollout.old_logp, &rollout.reference_logp, &rollout.advantages, &rollout.returns, &rollout.old_values}) {
    column->clear();
  }
  kept.clear();
  segments.push_back(0);
}

void HostBatch::pad(int64_t rows, int64_t longest, int64_t id) {
  while (rows > 0) {
    const int64_t n = std::min(rows, longest);
    const size_t count = static_cast<size_t>(n);
    ids.insert(ids.end(), count, 0);
    targets.insert(targets.end(), count, ignore_target);
    loss_weights.insert(loss_weights.end(), count, 0.0F);
    sequence_ids.insert(sequence_ids.end(), count, id);
    for (int32_t i = 0; i < n; ++i) {
      positions.push_back(i);
      sequence_offsets.push_back(i);
    }
    segments.push_back(static_cast<int32_t>(ids.size()));
    rows -= n;
  }
}

}  // namespace llmtrain
