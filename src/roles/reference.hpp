#pragma once
// The reference of a preference run: log-probabilities of documents under a frozen model. Either the model runs beside
// the policy, or they were computed before training.

#include <cstdint>
#include <utility>
#include <vector>

#include "core/batch.hpp"
#include "layers/context.hpp"
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

}  // namespace llmtrain
