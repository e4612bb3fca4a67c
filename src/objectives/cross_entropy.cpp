#include "kernels/objective.hpp"
#include "objectives/objective.hpp"

namespace llmtrain {

namespace {

class CrossEntropy : public Objective {
 public:
  bool cotangents_known() const override { return true; }
  void cotangents(const Batch& batch, const TokenStatistics& /*statistics*/, const TokenCotangents& out,
                  const Tensor& scale, Stream& stream) const override {
    cross_entropy_cotangents(out.logp, batch.loss_weights, scale, stream);
  }
};

}  // namespace

std::unique_ptr<Objective> make_cross_entropy() { return std::make_unique<CrossEntropy>(); }

}  // namespace llmtrain
