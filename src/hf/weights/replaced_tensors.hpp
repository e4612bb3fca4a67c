#pragma once
#include <string>
#include <vector>

#include "hf/weights/stored_names.hpp"
#include "hf/weights/weight_index.hpp"

namespace llmtrain {

/// Replaces tensors of an index by others, which are parts of them.
class ReplacedTensors {
 public:
  /// UserError as match_names.
  ReplacedTensors(WeightIndex& index, const DecoderNames& model);

  /// Returns the number of a tensor by its name in the model, or -1.
  int64_t find(std::string_view name) const { return names_.find(name); }
  const WeightIndex::Tensor& tensor(int64_t number) const { return index_.tensors[static_cast<size_t>(number)]; }
  /// Leaves a tensor out of the new index.
  void remove(int64_t number) { removed_[static_cast<size_t>(number)] = true; }
  /// Adds a tensor under a name in the model, to which the files' prefix is added.
  void add(WeightIndex::Tensor tensor, const std::string& name);
  /// Replaces the tensors of the index, whose numbers end.
  void finish();

 private:
  WeightIndex& index_;
  StoredNames names_;
  std::vector<bool> removed_;  ///< by tensor of the index
  std::vector<WeightIndex::Tensor> added_;
};

}  // namespace llmtrain
