#pragma once
// The reference of a preference run: log-probabilities of documents under a frozen model. Either the model runs beside
// the policy, or they were computed before training.

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/batch.hpp"
#include "layers/context.hpp"
#include "parallel/communicator.hpp"
#include "params/param_store.hpp"
#include "roles/model_set.hpp"

namespace llmtrain {

/// Log-probabilities of all documents by their numbers, nats.
struct ReferenceValues {
  std::vector<double> train, validation;
};

enum class DataPart : uint8_t { train, validation };

class Reference {
 public:
  /// The model runs in every pass; the policy's runs without its adapters.
  explicit Reference(RoleModel& model) : model_(&model) {}
  explicit Reference(ReferenceValues values) : values_(std::move(values)) {}

  /// Sets values that were not known when the plan was made.
  void set(ReferenceValues values) { values_ = std::move(values); }
  /// Fills documents.references. `logp`: fp32 [N], `sums`: fp64 [documents], both overwritten. Collective where a model
  /// runs and is sharded.
  void score(const Context& ctx, const Batch& batch, const Tensor& logp, const Tensor& sums, DocumentColumns& documents,
             DataPart part);
  /// Takes part in the passes of other ranks.
  void run_idle(const Context& ctx);

 private:
  Context own_context(const Context& ctx) const;

  RoleModel* model_ = nullptr;
  ReferenceValues values_;
};

/// A reference that follows the policy (TR-DPO: Gorbatovski et al. 2024, arXiv:2404.09656): every few steps its weights
/// become alpha times the policy's and 1 - alpha times its own, in fp32. Its fp32 weights are a plane of the policy's
/// state, so that checkpoints contain them; the frozen model that runs has them in its own type.
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
