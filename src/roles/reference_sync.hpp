#pragma once
// A reference that follows the policy (TR-DPO: Gorbatovski et al. 2024, arXiv:2404.09656): every few steps its weights
// become alpha times the policy's and 1 - alpha times its own, in fp32. Its fp32 weights are a plane of the policy's
// state, so that checkpoints contain them; the frozen model that runs has them in its own type.

#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/communicator.hpp"
#include "params/param_store.hpp"

namespace llmtrain {

struct ReferenceSyncOptions {
  int64_t every = 0;  ///< steps; 0: the reference stays what it was
  float alpha = 0;
};

class ReferenceSync {
 public:
  /// Plane of the policy's state, one fp32 value per element.
  static StatePlane plane() { return {"reference"}; }

  /// Both stores have the same units; those that are not trained do not change.
  ReferenceSync(ParamStore& policy, ParamStore& reference, const ReferenceSyncOptions& options);

  bool is_due(int64_t completed) const { return completed % options_.every == 0; }
  /// Fills the plane with the weights of the reference, once these are loaded.
  void fill_plane(Stream& stream);
  /// Gives the reference the weights of the plane, once the policy's state is restored. Collective.
  void restore(Communicator& communicator, Stream& stream);
  /// Moves the plane and the reference towards the policy. No other thread reads the state. Collective.
  void move(Communicator& communicator, Stream& stream);

 private:
  /// Calls work for pieces of this rank's part of every trained unit.
  void each_piece(const std::function<void(int unit, int64_t begin, int64_t count)>& work) const;

  ParamStore& policy_;
  ParamStore& reference_;
  ReferenceSyncOptions options_;
  size_t plane_ = 0;
  std::vector<float> values_, policy_values_;  // of a piece
};

}  // namespace llmtrain
