#pragma once
// Continues several prompts at once.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/stream/data_stream.hpp"
#include "device/graph_pool.hpp"
#include "generate/generation_cache.hpp"
#include "generate/generation_request.hpp"
#include "generate/token_drawer.hpp"
#include "models/model.hpp"

namespace llmtrain {

/// Generation loop and its buffers. A text that ends gives its place to the next prompt. The bits of a text's logits,
/// and so its tokens, are a function of the weights, the text, whether there is a cache, the compute dtype and the
/// processor; its samples also of the request's sampling, seed and step and of the prompt's index. They do not depend
/// on the other prompts, their number, lengths and order, on the capacity, or on the number of threads: products are
/// batch-invariant (kernels/matmul.hpp documents the limits on a GPU). If weights are sharded, all ranks call it alike
/// and compute the same.
class Generator {
 public:
  Generator(Model& model, const GeneratorCapacity& capacity);
  /// Returns the rows that the model must be planned for.
  int64_t rows() const { return capacity_.rows(); }
  void plan(Arena& arena, DType compute);
  /// Requires a committed arena and a started model.
  std::vector<Continuation> run(ParamStore& params, Arena& arena, Stream& stream, const GenerationRequest& request);

 private:
  /// prefill: first tokens of texts, or all of them. chunk: tokens of prompts after those in the cache. decode: a
  /// token of each text.
  enum class Pass : uint8_t { prefill, chunk, decode };
  void check(const GenerationRequest& request) const;
  void run_pass(Context& ctx, Pass pass, std::span<const TextPortion> portions, std::span<GeneratedText> texts,
                const GenerationRequest& request);
  /// What graphs depend on, beside the number of texts.
  struct Recorded {
    const ParamStore* params = nullptr;
    TokenFilters filters = {};
    bool records_logp = false;
    int64_t vocabulary = 0;
    bool operator==(const Recorded&) const = default;
  };
  void choose_graphs(const ParamStore& params, const GenerationRequest& request);
  /// A text that gets the keys of another one.
  struct Follower {
    GeneratedText *text, *leader;
  };
  static std::vector<Follower> follow_leaders(std::span<GeneratedText> texts, std::vector<Draw>& draws);
  void run_idle(Context& ctx);

  Model& model_;
  GeneratorCapacity capacity_;
  BatchBuffers batch_;
  GenerationCache cache_;
  TokenDrawer drawer_;
  Recorded recorded_;
  std::optional<GraphPool> graphs_;  ///< of decoding, by its number of texts; none if the host takes part
};

}  // namespace llmtrain
