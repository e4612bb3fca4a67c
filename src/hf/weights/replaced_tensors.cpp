#include "hf/weights/replaced_tensors.hpp"

#include <algorithm>
#include <utility>

namespace llmtrain {

ReplacedTensors::ReplacedTensors(WeightIndex& index, const DecoderNames& model)
    : index_(index), removed_(index.tensors.size()) {
  std::vector<std::string_view> names;
  names.reserve(index.tensors.size());
  for (const WeightIndex::Tensor& tensor : index.tensors) names.push_back(tensor.name);
  names_ = match_names(names, model, index.folder);
}

void ReplacedTensors::add(WeightIndex::Tensor tensor, const std::string& name) {
  tensor.name = names_.added + name.substr(names_.missing.size());
  added_.push_back(std::move(tensor));
}

void ReplacedTensors::finish() {
  for (size_t t = 0; t < removed_.size(); ++t) {
    if (!removed_[t]) added_.push_back(std::move(index_.tensors[t]));
  }
  std::ranges::sort(added_, {}, &WeightIndex::Tensor::name);
  index_.tensors = std::move(added_);
}

}  // namespace llmtrain
