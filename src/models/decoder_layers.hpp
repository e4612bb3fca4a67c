#pragma once
// The parameters of a decoder's layers: which there are, in which units, under which external names.

#include <string>
#include <vector>

#include "models/decoder.hpp"

namespace llmtrain {

class LayerDeclarations {
 public:
  /// The shape stays where it is as long as these declarations.
  explicit LayerDeclarations(const DecoderShape& shape) : shape_(shape) {}
  /// Appends the units of a layer; `own` becomes those without the ones that its experts use in turn.
  Block declare(std::vector<UnitSpec>& units, int layer, UnitGroup& own) const;

 private:
  /// The matrices of attention or an MLP, as a whole.
  struct Shapes {
    LinearShape first, last;
  };
  Shapes attention_shapes(int layer) const;
  /// The matrices of queries, and of keys and values, between the first one and latent heads.
  Shapes latent_shapes(int layer) const;
  Shapes mlp_shapes(int layer) const;
  Shapes expert_shapes(int layer, int64_t expert) const;
  Shapes shared_expert_shapes(int layer) const;
  LinearPart part(const std::string& name, int layer, int64_t rows, std::vector<int64_t> sections = {}) const;

  void declare_whole(UnitBuilder& unit, Block& block) const;
  void declare_split(UnitBuilder& unit, Block& block) const;
  Attention declare_heads(UnitBuilder& unit, int layer) const;
  void declare_head_norms(UnitBuilder& unit, Attention& attention, int layer) const;
  void declare_latent(UnitBuilder& unit, Attention& attention, int layer) const;
  void declare_sinks(UnitBuilder& unit, Attention& attention, int layer) const;
  // Experts (decoder_experts.cpp).
  /// Declares experts without the matrices of this rank's blocks, or with them if the model is not split.
  Experts declare_experts(UnitBuilder& unit, int layer) const;
  void declare_expert_blocks(UnitBuilder& unit, Experts& experts, int layer, int64_t of_layer) const;
  void declare_shared_block(UnitBuilder& unit, Experts& experts, int layer, int64_t block) const;
  void declare_expert_block(UnitBuilder& unit, Experts& experts, int layer, int64_t first, int64_t count) const;
  void declare_expert_biases(UnitBuilder& unit, Experts& experts, int layer, int64_t first, int64_t count) const;

  const DecoderShape& shape_;
};

}  // namespace llmtrain
