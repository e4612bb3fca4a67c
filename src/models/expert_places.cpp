#include "models/expert_places.hpp"

namespace llmtrain {

namespace {

class PlaceList {
 public:
  PlaceList(const DecoderShape& shape, int64_t layer) : shape_(shape), layer_(layer) {}

  /// Adds the parts of all experts whose outputs alternate in a tensor: `parts` matrices [rows, columns], and their
  /// biases.
  void add(ExpertPlaces& places, const std::string& tensor, const std::vector<std::string>& parts, int64_t rows,
           int64_t columns) const {
    const int64_t experts = shape_.config.experts.count, outputs = std::ssize(parts) * rows;
    const std::string name = at_layer(tensor, layer_);
    for (int64_t expert = 0; expert < experts; ++expert) {
      for (int64_t i = 0; i < std::ssize(parts); ++i) {
        const std::string part = at_layer(parts[static_cast<size_t>(i)], layer_, expert);
        const int64_t begin = expert * columns * outputs, bias = expert * outputs;
        places[part + ".weight"] = {name,
                                    {experts, columns, outputs},
                                    rows,
                                    columns,
                                    begin + i,
                                    std::ssize(parts),
                                    outputs,
                                    begin,
                                    columns * outputs};
        places[part + ".bias"] = {
            name + "_bias", {experts, outputs}, rows, 1, bias + i, std::ssize(parts), outputs, bias, outputs};
      }
    }
  }

 private:
  const DecoderShape& shape_;
  int64_t layer_;
};

}  // namespace

ExpertPlaces expert_places(const DecoderShape& shape) {
  ExpertPlaces places;
  const DecoderNames& n = shape.names;
  const ModelConfig& c = shape.config;
  if (n.fused_first.empty()) return places;
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    if (!c.experts.in_layer(layer)) continue;
    const PlaceList list(shape, layer);
    list.add(places, n.fused_first, {n.expert_gate, n.expert_up}, c.experts.d_ff, c.d_model);
    list.add(places, n.fused_last, {n.expert_down}, c.d_model, c.experts.d_ff);
  }
  return places;
}

}  // namespace llmtrain
