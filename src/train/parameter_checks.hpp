#pragma once
// Checks of the whole model's state over all ranks.

#include <cstdint>
#include <utility>
#include <vector>

#include "device/device.hpp"
#include "parallel/communicator.hpp"
#include "params/param_store.hpp"

namespace llmtrain {

/// Hash of all parameters, kept for the step after which it was computed. It does not depend on the number of ranks.
class ParameterHash {
 public:
  ParameterHash(ParamStore& params, Communicator& communicator, Stream& stream)
      : params_(params), communicator_(communicator), stream_(stream) {}
  /// Hash after this many steps. Collective.
  uint64_t after(int64_t completed);
  /// Call it when parameters change without a step.
  void forget() { known_ = {-1, 0}; }

 private:
  uint64_t compute();

  ParamStore& params_;
  Communicator& communicator_;
  Stream& stream_;
  std::vector<uint64_t> unit_hashes_;
  std::pair<int64_t, uint64_t> known_{-1, 0};  ///< step, and the hash after it
};

/// True if masters and moments are finite on all ranks. Collective.
bool state_is_finite(ParamStore& params, Communicator& communicator, Stream& stream);

}  // namespace llmtrain
