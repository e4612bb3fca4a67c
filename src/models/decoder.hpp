#pragma once
// The decoder-only transformer of all families, which differ by its shape and by the names of their tensors.

#include <string>
#include <vector>

#include "layers/block.hpp"
#include "layers/embedding.hpp"
#include "layers/head.hpp"
#include "models/model.hpp"

namespace llmtrain {

/// External (Hugging Face) names of a family's tensors, without ".weight"; {} stands for the layer.
struct DecoderNames {
  std::string embedding, positions, norm1, norm2, projection, up, down, final_norm, head;
  std::vector<std::string> qkv;           ///< one fused matrix or three
  std::string gate;                       ///< for gated activations; empty: `up` is both, gate first
  std::string query_norm, key_norm;       ///< for qk_norm
  std::string post_attention, post_mlp;   ///< for sandwich_norm
  bool transposed_linear_layers = false;  ///< files hold [in, out] (GPT-2's Conv1D)
};

/// Complete description of a decoder.
struct DecoderShape {
  ModelConfig config;
  int64_t tokens = 0;            ///< real vocabulary; config.vocab_size may add padding rows
  bool final_norm = true;        ///< false for post-norm models, which already end with a norm
  double projection_std = 0.02;  ///< initial standard deviation of matrices that write to the residual stream
  DecoderNames names;
};

class Decoder : public Model {
 public:
  explicit Decoder(DecoderShape shape);

  std::vector<UnitSpec> units() const override { return units_; }
  void plan(Arena& arena, const PassPlan& passes) override;
  void start(Stream& stream) override;
  void forward(Context& ctx, const Batch* batch) override;
  void score(Context& ctx, const Batch* batch, const TokenStatistics& statistics) override;
  void score_and_differentiate(Context& ctx, const Batch* batch, const TokenStatistics& statistics,
                               const TokenCotangents& cotangents) override;
  void backward(Context& ctx, const Batch* batch) override;
  void plan_cache(Arena& arena, KvCache& cache, DType compute, int64_t sequences, int64_t positions) const override;
  bool can_cache() const override { return !rope_.by_length(); }
  void logits(Context& ctx, const Batch* batch, std::span<const int64_t> rows, const Tensor& out) override;
  double flops_per_token(int64_t sequence_length) const override;

 private:
  void declare_units();
  Block declare_block(int layer);
  Attention declare_attention(UnitBuilder& unit, int layer) const;
  Mlp declare_mlp(UnitBuilder& unit, int layer) const;
  LinearPart part(const std::string& name, int layer, int64_t rows) const;
  Norm declare_norm(UnitBuilder& unit, const std::string& name) const;
  int block_unit(int layer) const { return 1 + layer; }
  Tensor gather(std::span<const int64_t> rows, Stream& stream) const;
  BlockSaved& saved(int layer) { return saved_[saved_.size() == 1 ? 0 : static_cast<size_t>(layer)]; }

  DecoderShape shape_;
  std::vector<UnitSpec> units_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  Norm final_norm_;
  Head head_;
  int final_unit_ = -1;  ///< final norm and untied head; -1 when there is neither
  int head_unit_ = 0;

  std::vector<BlockSaved> saved_;
  Rope rope_;
  Tensor output_;    ///< fp32 [N, C], residual stream after the last block
  Tensor gradient_;  ///< fp32 [N, C], gradient of the residual stream, during the backward pass
  Tensor hidden_;    ///< compute dtype [N, C], input of the head; in the backward pass its gradient
  NormSaved final_saved_;
};

}  // namespace llmtrain
