#include "data/stream/batch_source.hpp"

#include <algorithm>

namespace llmtrain {

void HostBatch::clear() {
  for (auto* list : {&ids, &positions, &targets, &segments, &sequence_offsets}) list->clear();
  sequence_ids.clear();
  padding = 0;
  loss_weights.clear();
  documents.ids.clear();
  documents.targets.clear();
  documents.values.clear();
  documents.rows.clear();
  documents.references.clear();
  for (auto* column :
       {&rollout.old_logp, &rollout.reference_logp, &rollout.advantages, &rollout.returns, &rollout.old_values}) {
    column->clear();
  }
  kept.clear();
  segments.push_back(0);
}

void HostBatch::add_segment(std::span<const int32_t> inputs, int64_t sequence_id) {
  ids.insert(ids.end(), inputs.begin(), inputs.end());
  targets.resize(ids.size(), ignore_target);
  loss_weights.resize(ids.size(), 0.0F);
  sequence_ids.resize(ids.size(), sequence_id);
  for (int32_t i = 0; i < std::ssize(inputs); ++i) {
    positions.push_back(i);
    sequence_offsets.push_back(i);
  }
  segments.push_back(static_cast<int32_t>(ids.size()));
}

void HostBatch::pad(int64_t rows, int64_t longest, int64_t id) {
  const std::vector<int32_t> nothing(static_cast<size_t>(std::clamp<int64_t>(rows, 0, longest)));
  padding += std::max<int64_t>(rows, 0);
  for (; rows > 0; rows -= longest) {
    add_segment(std::span(nothing).first(static_cast<size_t>(std::min(rows, longest))), id);
  }
}

}  // namespace llmtrain
