#pragma once
// The decoder-only transformer of all families, which differ by its shape and by the names of their tensors.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "layers/adapter.hpp"
#include "layers/block.hpp"
#include "layers/embedding.hpp"
#include "layers/scalar_head.hpp"
#include "layers/sharing/expert_exchange.hpp"
#include "layers/sharing/split_head.hpp"
#include "models/model.hpp"

namespace llmtrain {

/// External (Hugging Face) names of a family's tensors, without ".weight"; {} stands for the layer.
struct DecoderNames {
  std::string embedding, positions, norm1, norm2, projection, up, down, final_norm, head;
  std::vector<std::string> qkv;      ///< one fused matrix or three
  bool grouped_heads = false;        ///< the fused matrix has its heads by groups (head_groups.hpp)
  std::string gate;                  ///< for gated activations; empty: `up` is both, gate first
  std::string score = "score";       ///< head that scores
  std::string query_norm, key_norm;  ///< for qk_norm
  std::string sinks;                 ///< for attention_sinks; the whole name of the tensor
  // For experts; the second {} stands for the expert.
  std::string router, expert_gate, expert_up, expert_down;
  /// Tensors of all experts of a layer, if files have these: (expert, in, out), and with _bias (expert, out); columns
  /// of gate and up alternate. The names above are then those of this program alone.
  std::string fused_first, fused_last;
  std::string shared_gate, shared_up, shared_down;  ///< of the shared expert
  std::string shared_router;                        ///< gate of its output
  std::string selection_bias;                       ///< whole name of the router's bias, where it has one
  /// For latent attention, whose query_low is empty where queries are not latent; the rest is as in the paper.
  std::string query, query_low, query_low_norm, query_high, key_low, key_low_norm, key_high;
  std::string post_attention, post_mlp;   ///< for sandwich_norm
  bool transposed_linear_layers = false;  ///< files hold [in, out] (GPT-2's Conv1D)
};

/// Embedding and head that lie beside the adapters in a file of PEFT's (save_embedding_layers).
struct SavedTables {
  std::string folder;              ///< of the adapter
  std::vector<std::string> names;  ///< of tensors of the model

  bool contains(const std::string& tensor) const { return std::ranges::find(names, tensor) != names.end(); }
};

/// Complete description of a decoder.
struct DecoderShape {
  ModelConfig config;
  int64_t tokens = 0;  ///< real vocabulary; config.vocab_size may add padding rows
  /// Rows of the embedding and an untied head in the model's files, where the model has more: the others begin as the
  /// mean of these. 0: as many as the model has.
  int64_t stored_rows = 0;
  /// The model's files need not have the head, which is a score: it is new, an adapter's or a checkpoint's.
  bool new_head = false;
  /// The model's files tie the head, which is a matrix of its own here: it begins as the embedding.
  bool unties_head = false;
  SavedTables saved_tables;      ///< read from an adapter's file in place of the model's files
  bool final_norm = true;        ///< false for post-norm models, which already end with a norm
  double projection_std = 0.02;  ///< initial standard deviation of matrices that write to the residual stream
  DecoderNames names;
  TrainedRule trained;  ///< empty: every parameter is trained
  /// Storage of frozen matrices; empty: all have the compute dtype.
  QuantizationRule quantization;
  /// Of linear layers, embeddings and the head; adapters are trained whatever `trained` says.
  AdapterRule adapters;
  /// Blocks of the matrices of layers, embedding and head that the decoder has: its units are those that all blocks
  /// share, and after these, in every layer, those of its blocks.
  TensorShare tensor;
  /// Blocks of the experts of a layer, or of each of its blocks of matrices, that the decoder has: units of their own,
  /// after the others of the layer.
  TensorShare experts;

  /// True for tensors with a row for each token: the embedding, the head, and what their adapters have of this size.
  bool has_row_per_token(const std::string& name) const {
    return name == names.embedding + ".weight" || name == names.head + ".weight" ||
           name == lora_embedding_a_name(names.embedding) || name == lora_b_name(names.head);
  }
  /// False if other ranks have blocks of its matrices or experts.
  bool has_all_blocks() const { return tensor.count == tensor.blocks && experts.count == experts.blocks; }
  /// The shape without blocks.
  DecoderShape whole() const {
    DecoderShape shape = *this;
    shape.tensor = shape.experts = {};
    return shape;
  }
  /// Calls f(index) for the blocks of split matrices that the decoder has.
  template <class F>
  void each_tensor_block(const F& f) const {
    for (int64_t i = 0; i < tensor.count; ++i) f(tensor.first + i);
  }
  /// Index in KvCache::norms of the first matrix of a layer's block; the head follows the last layer.
  size_t kept_norms_of(int layer, size_t block) const;
  Norm declare_norm(UnitBuilder& unit, const std::string& name) const;
  /// Gives a tied model a head of its own, which begins as the embedding.
  void untie_head() {
    unties_head = config.ties_head();
    if (unties_head) config.tie_embeddings = false;
  }
};

/// The name of a parameter's pattern in DecoderNames.
std::string at_layer(const std::string& name, int64_t layer, int64_t expert = 0);

class Decoder : public Model {
 public:
  /// `before`: units of another model, which come first in units(); `prefix` begins the names of the own units and
  /// parameters, in the model alone: the shape's names, and names in files, are without it.
  explicit Decoder(DecoderShape shape, std::vector<UnitSpec> before = {}, const std::string& prefix = {});

  std::vector<UnitSpec> units() const override { return units_; }
  void plan(Arena& arena, const PassPlan& passes) override;
  /// Ranks that have the other blocks of split matrices, in their order; called before the first pass. Without a call
  /// this rank has all. `meanwhile` is called while they are awaited.
  void share_blocks(Communicator& ranks, Transfer::Meanwhile meanwhile = {}) {
    tensor_ = std::make_unique<TensorSum>(shape_.tensor, &ranks, std::move(meanwhile));
  }
  /// Ranks that have the other blocks of experts, in their order, likewise.
  void share_experts(Communicator& ranks, Transfer::Meanwhile meanwhile) {
    experts_ = std::make_unique<ExpertExchange>(ranks, std::move(meanwhile));
  }
  int64_t planned_rows() const override { return planned_rows_; }
  void start(Stream& stream) override;
  void forward(Context& ctx, const Batch* batch) override;
  void score(Context& ctx, const Batch* batch, const TokenStatistics& statistics) override;
  void score_and_differentiate(Context& ctx, const Batch* batch, const TokenStatistics& statistics,
                               const TokenCotangents& cotangents) override;
  void backward(Context& ctx, const Batch* batch) override;
  void plan_cache(Arena& arena, KvCache& cache, DType compute, int64_t sequences, int64_t positions) const override;
  bool can_cache() const override { return !rope_.by_length(); }
  /// Experts sort rows, and blocks of matrices may be other ranks'.
  bool can_record() const override { return shape_.config.experts.count == 0 && !shape_.tensor.splits(); }
  void logits(Context& ctx, const Batch* batch, std::span<const int64_t> rows, const Tensor& out) override;
  /// Calls f, in which logits_of_rows() may be called. Collective where weights are sharded.
  template <class F>
  void with_head(Context& ctx, const F& f) {
    enter(ctx);
    acquire_head(ctx.params);
    f();
    release_head(ctx.params);
  }
  /// Computes logits fp32 [R, V] of R rows from `first` on of the last forward pass, as one product. Matrices are not
  /// split.
  void logits_of_rows(Context& ctx, int64_t first, const Tensor& out) const {
    head_.logits(ctx, out, hidden_.rows(first, out.dim(0)));
  }
  std::vector<ParamRef> router_biases() const override;
  double flops_per_token(int64_t sequence_length) const override;
  const DecoderShape& shape() const { return shape_; }
  std::span<const Block> blocks() const { return blocks_; }
  const SplitHead& head() const { return head_; }
  /// Inputs of the head in the last forward pass, compute dtype [rows, C]; after score_and_differentiate() and before
  /// backward(), their gradient if has_final_gradient().
  Tensor hidden_states(int64_t rows) const { return first_rows(hidden_, rows); }
  /// True if the backward pass goes on below the head.
  bool has_final_gradient() const;
  /// Sets the magnitudes of all adapters (DoRA) to the norms of the base model's rows, so that the model starts as the
  /// base; called once its weights are there. Collective.
  void set_magnitudes(ParamStore& params, Stream& stream) const;

 private:
  void declare_units();
  void declare_head(UnitBuilder& unit);
  void acquire_head(ParamStore& params) const;
  void release_head(ParamStore& params) const;
  void declare_embedding();
  ParamRef declare_table(UnitBuilder& unit, const std::string& name, int64_t block) const;
  void declare_head_block(UnitBuilder& unit, int64_t index, const Linear& shared);
  /// Units of a layer, without those that its experts use in turn.
  const UnitGroup& block_units(int layer) const { return block_units_[static_cast<size_t>(layer)]; }
  void prefetch_experts(ParamStore& params, int layer, bool backward) const {
    const std::optional<Experts>& experts = blocks_[static_cast<size_t>(layer)].experts;
    if (experts) experts->prefetch(params, backward);
  }
  void find_backward_end();
  const Rope& rope_of(int layer) const {
    const ModelConfig& c = shape_.config;
    return !c.has_rope(layer) ? no_rope_ : c.has_local_rope(layer) ? local_rope_ : rope_;
  }
  void plan_other_kind(Arena& arena, const PassPlan& passes);
  /// True if the backward pass needs the gradient of a layer's input.
  bool input_gradient(int layer) const { return layer > backward_end_ || embedding_.is_trained(); }
  void find_head_units();
  /// Norm of a layer's output, if it can be joined to the layer's last sum; else null.
  const Norm* joined_norm(const ParamStore& params, size_t layer) const;
  /// Begins a pass.
  void enter(Context& ctx) const;
  void score_rows(Context& ctx, const Batch& batch, const TokenStatistics& statistics) const;
  Tensor gather(std::span<const int64_t> rows, Stream& stream) const;
  BlockSaved& saved(int layer) {
    return saved_[static_cast<size_t>(std::max(layer - std::max(shared_layers_ - 1, 0), 0))];
  }

  DecoderShape shape_;
  std::vector<UnitSpec> units_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  Norm final_norm_;
  SplitHead head_;
  ScalarHead scalar_head_;                   ///< in place of it
  UnitGroup embedding_units_, final_units_;  ///< the latter: final norm and a head of its own, if any
  std::vector<UnitGroup> block_units_;
  std::vector<int> head_units_;  ///< with weights of the head, in either place
  std::unique_ptr<TensorSum> tensor_;
  std::unique_ptr<ExpertExchange> experts_;
  /// Lowest layer of the backward pass, below which nothing is trained; the number of layers if none is.
  int backward_end_ = 0;

  std::vector<BlockSaved> saved_;
  BlockSaved pass_;  ///< of the block that runs, with the tensors that it drops
  int64_t planned_rows_ = 0;
  int shared_layers_ = 0;  ///< the first ones, which the backward pass does not reach, share saved_[0]
  Rope rope_;
  Rope local_rope_;  ///< of layers with the window, if theirs is another one
  Rope no_rope_;     ///< of layers without positions
  Tensor output_;    ///< fp32 [N, C], residual stream after the last block
  Tensor gradient_;  ///< fp32 [N, C], gradient of the residual stream, during the backward pass
  Tensor hidden_;    ///< compute dtype [N, C], input of the head; in the backward pass its gradient
  NormSaved final_saved_;
};

}  // namespace llmtrain
