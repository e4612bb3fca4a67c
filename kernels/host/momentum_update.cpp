#include "kernels/momentum_update.hpp"

#include "kernels/host/decided_step.hpp"

namespace llmtrain {

void momentum_update(const UpdateTensors& tensors, const SgdStep& step, Stream& /*stream*/) {
  if (const auto decided = host::decided(step)) momentum_update_on_host(tensors, *decided);
}

void momentum_update(const UpdateTensors& tensors, const LionStep& step, Stream& /*stream*/) {
  if (const auto decided = host::decided(step)) momentum_update_on_host(tensors, *decided);
}

}  // namespace llmtrain
