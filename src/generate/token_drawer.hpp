#pragma once
// The next token of texts, drawn from the model's logits.

#include <span>
#include <vector>

#include "generate/generated_text.hpp"
#include "generate/generation_cache.hpp"
#include "models/model.hpp"

namespace llmtrain {

// The texts of beam searches: each running beam is a text with a place in the cache.

/// Logits in host memory, rows `stride` apart.
struct RowsOfLogits {
  float* values;
  size_t stride, vocabulary;
  std::span<const float> row(size_t number) const { return {values + number * stride, vocabulary}; }
};

/// Takes the next step of the searches of these draws, in which the beams of each prompt follow one another. Beams get
/// the keys of their parents; a search that is done gives its results.
void advance_beams(const RowsOfLogits& logits, std::span<const Draw> draws, const GenerationRequest& request,
                   const GenerationCache& cache, Stream& stream);

class TokenDrawer {
 public:
  TokenDrawer(Model& model, const GeneratorCapacity& capacity) : model_(model), capacity_(capacity) {}
  void plan(Arena& arena);
  /// Draws a token for each text of `draws` from the logits of `rows` of the batch, which ascend, and appends it.
  /// Without rows it takes part in the passes of other ranks.
  void draw(Context& ctx, const Batch& batch, std::span<const int64_t> rows, std::span<const Draw> draws,
            const GenerationRequest& request, const GenerationCache& cache);

 private:
  void sample(Context& ctx, const Tensor& logits, const RowsOfLogits& host, std::span<const Draw> draws,
              const GenerationRequest& request);
  void record(Context& ctx, const Tensor& logits, std::span<const Draw> draws, std::span<const int32_t> drawn,
              std::span<const uint32_t> kept, int64_t vocabulary);
  void append(GeneratedText& text, int32_t token, const GenerationRequest& request) const;

  Model& model_;
  GeneratorCapacity capacity_;
  Tensor logits_;                   ///< fp32 [sequences, V]
  Tensor targets_;                  ///< int32 [sequences]
  Tensor logp_;                     ///< fp32 [sequences]
  Tensor kept_;                     ///< uint32 [sequences, ceil(V / 32)]
  std::vector<float> host_logits_;  ///< of a GPU
};

}  // namespace llmtrain
