#include "hf/weights/fused_experts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "hf/weights/placed_experts.hpp"
#include "hf/weights/stored_names.hpp"

namespace llmtrain {
namespace {

constexpr const char* fused_router = "model.layers.{}.mlp.gate";

class Splitter {
 public:
  Splitter(WeightIndex& index, const DecoderShape& shape) : index_(index), shape_(shape) {
    std::vector<std::string_view> names;
    names.reserve(index.tensors.size());
    for (const WeightIndex::Tensor& tensor : index.tensors) names.push_back(tensor.name);
    names_ = match_names(names, shape.names, index.folder);
    replaced_.resize(index.tensors.size());
  }

  void split() {
    const ModelConfig& c = shape_.config;
    const DecoderNames& n = shape_.names;
    const int64_t width = c.experts.d_ff;
    for (int64_t layer = 0; layer < c.n_layers; ++layer) {
      if (!c.experts.in_layer(layer)) continue;
      split_tensor(layer, fused_first_name, {c.experts.count, 2 * width, c.d_model}, {n.expert_gate, n.expert_up});
      split_tensor(layer, fused_last_name, {c.experts.count, c.d_model, width}, {n.expert_down});
      rename_router(layer);
    }
    if (added_.empty()) return;
    std::vector<WeightIndex::Tensor> tensors = std::move(added_);
    for (size_t t = 0; t < replaced_.size(); ++t) {
      if (!replaced_[t]) tensors.push_back(std::move(index_.tensors[t]));
    }
    std::ranges::sort(tensors, {}, &WeightIndex::Tensor::name);
    index_.tensors = std::move(tensors);
  }

 private:
  static std::string name_at(const std::string& pattern, int64_t layer, int64_t expert = 0) {
    return fmt::format(fmt::runtime(pattern), layer, expert);
  }
  /// The name in files of a tensor of the model: with the prefix that the others have.
  std::string stored_name(const std::string& name) const { return names_.added + name.substr(names_.missing.size()); }

  /// Adds the matrices of all experts, equal parts of the rows of each, to the index, unless it has them.
  void split_tensor(int64_t layer, const std::string& fused, const std::vector<int64_t>& expected,
                    const std::vector<std::string>& parts) {
    const int64_t found = names_.find(name_at(fused, layer));
    if (found < 0 || names_.find(name_at(parts.front(), layer) + ".weight") >= 0) return;
    const auto number = static_cast<size_t>(found);
    const WeightIndex::Tensor tensor = index_.tensors[number];
    if (tensor.shape != expected) {
      throw UserError(ExitCode::bad_content,
                      fmt::format("{}: {} is {} instead of {}: all experts of a layer, by config.json", index_.folder,
                                  printable(tensor.name), shape_text(tensor.shape), shape_text(expected)));
    }
    const auto count = static_cast<int64_t>(parts.size()), rows = expected[1] / count;
    const int64_t bytes = (tensor.end - tensor.begin) / (expected[0] * count);
    int64_t begin = tensor.begin;
    for (int64_t expert = 0; expert < expected[0]; ++expert) {
      for (const std::string& part : parts) {
        WeightIndex::Tensor one = tensor;
        one.name = stored_name(name_at(part, layer, expert) + ".weight");
        one.shape = {rows, expected[2]};
        one.begin = begin;
        one.end = begin += bytes;
        added_.push_back(std::move(one));
      }
    }
    replaced_[number] = true;
  }

  void rename_router(int64_t layer) {
    const std::string published = name_at(shape_.names.router, layer) + ".weight";
    const int64_t found = names_.find(name_at(fused_router, layer) + ".weight");
    if (found < 0 || names_.find(published) >= 0) return;
    const auto number = static_cast<size_t>(found);
    added_.push_back(index_.tensors[number]);
    added_.back().name = stored_name(published);
    replaced_[number] = true;
  }

  WeightIndex& index_;
  const DecoderShape& shape_;
  StoredNames names_;
  std::vector<bool> replaced_;  ///< by tensor of the index
  std::vector<WeightIndex::Tensor> added_;
};

}  // namespace

void split_fused_experts(WeightIndex& index, const DecoderShape& shape) {
  if (!shape.names.fused_first.empty()) return place_experts(index, shape);
  if (shape.config.experts.exist() && !shape.names.expert_gate.empty()) Splitter(index, shape).split();
}

WeightIndex read_model_index(const FolderHandle& folder, const DecoderShape& shape) {
  WeightIndex index = read_weight_index(folder);
  split_fused_experts(index, shape);
  return index;
}

}  // namespace llmtrain
