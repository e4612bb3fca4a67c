#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "data/stream/data_stream.hpp"
#include "kernels/matmul.hpp"
#include "tool/loaded_model.hpp"

namespace llmtrain {

/// A model with room for rows of some length; a longer row restarts it with more room.
class RowScorer {
 public:
  explicit RowScorer(const ModelOptions& options) : loaded_(options) {}

  const LoadedModel& model() const { return loaded_; }
  int64_t room() const { return room_; }  ///< tokens

  /// Returns a row as a batch of one segment without targets.
  static HostBatch batch_of(const std::vector<int32_t>& ids);
  /// Returns the model's value for each token of such a batch: log-probability of the target, nats, or score; of a
  /// model of labels the outputs of each token whose loss weight is not 0.
  std::vector<float> score(const HostBatch& row, ProductRole role);

  /// Returns true if a row of this many tokens needs more room than the rows before it, and grows the room for it.
  bool needs_room(int64_t tokens);
  /// Prints the memory for rows that fit into the room. It allocates nothing; score() must not follow.
  void print_estimate();

 private:
  void plan(Arena& arena);

  LoadedModel loaded_;
  std::optional<BatchBuffers> batch_;
  Tensor values_;  ///< fp32 [N], or [N, K]
  int64_t room_ = 0;
};

}  // namespace llmtrain
