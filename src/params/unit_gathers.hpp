#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/communicator.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

/// Gathers of the buffers of units, from the shards of all ranks: at most one per unit in progress. Their numbers count
/// the exchanges of gradients too, since both pass the same boards of a node.
class UnitGathers {
 public:
  explicit UnitGathers(const UnitStates& units) : units_(units), gathers_(static_cast<size_t>(units.size())) {}
  /// `meanwhile` is called while a gather is awaited, since other ranks may wait for this one's share of a sum.
  void start(Communicator& communicator, Stream& stream, Transfer::Meanwhile meanwhile);
  Communicator& communicator() const;

  /// Number of gathers that gather_all() has in progress: many messages at once slow MPI down.
  static int max_at_once(const UnitStates& units);
  /// Starts the gather of a unit's segments in a buffer of all its elements, or of its records.
  void begin(int unit, const Tensor& buffer);
  /// Waits until the unit is complete.
  void wait(int unit);
  /// Waits until the unit's buffer may be changed, too.
  void finish(int unit);
  void finish_all();
  /// Gathers `buffer(unit)` of all trained, or of all frozen units; finish_all() must precede any change of them. On
  /// the host, whose ranks move the data themselves, the gathers complete here.
  void gather_all(bool trained, const std::function<Tensor(int unit)>& buffer);
  /// Call it before an exchange of gradients starts. Waits for gathers that many transfers have followed, for whose
  /// entries on the node's board (NodeMemory::slots) other ranks may wait.
  void wait_for_old();
  /// Lets messages progress, which MPI moves in its calls alone: between two kernels of the host.
  void progress();

 private:
  struct Gather {
    Transfer transfer;
    int64_t number = 0;  ///< among all transfers; 0: none that was not waited for
  };
  Gather& at(int unit) { return gathers_[static_cast<size_t>(unit)]; }

  const UnitStates& units_;
  std::vector<Gather> gathers_;  ///< by unit
  const int at_once_ = max_at_once(units_);
  int64_t transfers_ = 0;  ///< number of gathers and exchanges so far
  Communicator* communicator_ = nullptr;
  Stream* stream_ = nullptr;
  Transfer::Meanwhile meanwhile_;
};

}  // namespace llmtrain
