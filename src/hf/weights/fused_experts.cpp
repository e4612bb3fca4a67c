#include "hf/weights/fused_experts.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "hf/weights/replaced_tensors.hpp"

namespace llmtrain {
namespace {

constexpr const char* fused_router = "model.layers.{}.mlp.gate";

class Splitter {
 public:
  Splitter(WeightIndex& index, const DecoderShape& shape)
      : folder_(index.folder), shape_(shape), tensors_(index, shape.names) {}

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
    tensors_.finish();
  }

 private:
  /// Adds the matrices of all experts, equal parts of the rows of each, to the index, unless it has them.
  void split_tensor(int64_t layer, const std::string& fused, const std::vector<int64_t>& expected,
                    const std::vector<std::string>& parts) {
    const int64_t found = tensors_.find(at_layer(fused, layer));
    if (found < 0 || tensors_.find(at_layer(parts.front(), layer) + ".weight") >= 0) return;
    const WeightIndex::Tensor& tensor = tensors_.tensor(found);
    if (tensor.shape != expected) {
      throw UserError(ExitCode::bad_content,
                      fmt::format("{}: {} is {} instead of {}: all experts of a layer, by config.json", folder_,
                                  printable(tensor.name), shape_text(tensor.shape), shape_text(expected)));
    }
    const auto count = static_cast<int64_t>(parts.size()), rows = expected[1] / count;
    const int64_t bytes = (tensor.end - tensor.begin) / (expected[0] * count);
    int64_t begin = tensor.begin;
    for (int64_t expert = 0; expert < expected[0]; ++expert) {
      for (const std::string& part : parts) {
        WeightIndex::Tensor one = tensor;
        one.shape = {rows, expected[2]};
        one.begin = begin;
        one.end = begin + bytes;
        begin = one.end;
        tensors_.add(std::move(one), at_layer(part, layer, expert) + ".weight");
      }
    }
    tensors_.remove(found);
  }

  void rename_router(int64_t layer) {
    const std::string published = at_layer(shape_.names.router, layer) + ".weight";
    const int64_t found = tensors_.find(at_layer(fused_router, layer) + ".weight");
    if (found < 0 || tensors_.find(published) >= 0) return;
    tensors_.add(tensors_.tensor(found), published);
    tensors_.remove(found);
  }

  std::string folder_;
  const DecoderShape& shape_;
  ReplacedTensors tensors_;
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
