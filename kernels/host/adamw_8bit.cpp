#include "kernels/adamw_8bit.hpp"

#include "kernels/host/decided_step.hpp"

namespace llmtrain {

void adamw_8bit_update(const Adamw8bitTensors& tensors, const AdamwStep& step, Stream& /*stream*/) {
  if (const auto decided = host::decided(step)) adamw_8bit_update_on_host(tensors, *decided);
}

}  // namespace llmtrain
