#pragma once
// The next token of texts, drawn from the model's logits.

#include <span>
#include <vector>

#include "generate/generated_text.hpp"
#include "generate/generation_cache.hpp"
#include "kernels/sampling.hpp"
#include "models/model.hpp"

namespace llmtrain {

/// Logits in host memory, rows `stride` apart.
struct RowsOfLogits {
  float* values;
  size_t stride, vocabulary;
  std::span<const float> row(size_t number) const { return {values + number * stride, vocabulary}; }
};

/// Takes the next step of the searches of these draws, in which the beams of each prompt follow one another; each
/// running beam is a text with a place in the cache. Beams get the keys of their parents; a search that is done gives
/// its results.
void advance_beams(const RowsOfLogits& logits, std::span<const Draw> draws, const GenerationRequest& request,
                   const GenerationCache& cache, Stream& stream);

class TokenDrawer {
 public:
  TokenDrawer(Model& model, const GeneratorCapacity& capacity) : model_(model), capacity_(capacity) {}
  void plan(Arena& arena);
  /// Rows of the logits and random bits of these draws, for the device: uint32 [D, 2]; empty if the host draws.
  static std::vector<uint32_t> numbers(std::span<const Draw> draws, const GenerationRequest& request);
  /// Starts to compute the logits of `rows` of the batch, which ascend, and to draw from them by `numbers`. Without
  /// rows it takes part in the passes of other ranks.
  void compute(Context& ctx, const Batch& batch, std::span<const int64_t> rows, const Tensor& numbers,
               const GenerationRequest& request) const;
  /// Appends a token to each text of `draws`, from `rows` rows of logits.
  void take(Context& ctx, int64_t rows, std::span<const Draw> draws, const GenerationRequest& request,
            const GenerationCache& cache);
  /// The host draws where more than the logits decides: beams, penalties, and log-probabilities of the model.
  static bool draws_on_device(const GenerationRequest& request);
  static TokenFilters filters(const GenerationRequest& request);

 private:
  /// Results of draws, one after the other in device memory, so that one copy brings them all.
  struct Results {
    Tensor all;     ///< uint32
    Tensor tokens;  ///< int32 [D]
    Tensor logp;    ///< fp32 [D], if they are recorded
    Tensor kept;    ///< uint32 [D, ceil(vocabulary / 32)], if filters exclude tokens then
  };

  Results results(int64_t count, const GenerationRequest& request) const;
  void record(Context& ctx, const Tensor& logits, const Results& drawn, const GenerationRequest& request) const;
  void take_results(Context& ctx, const Tensor& logits, std::span<const Draw> draws, const GenerationRequest& request);
  void decide(Context& ctx, const Tensor& logits, std::span<const Draw> draws, const Results& drawn,
              const GenerationRequest& request);
  void sample_on_host(const RowsOfLogits& host, std::span<const Draw> draws, const GenerationRequest& request) const;
  void append(GeneratedText& text, int32_t token, const GenerationRequest& request) const;

  Model& model_;
  GeneratorCapacity capacity_;
  Tensor logits_;              ///< fp32 [sequences, V]
  Tensor results_;             ///< uint32, room for the Results of all sequences
  PinnedBuffer host_results_;  ///< a copy of them
  PinnedBuffer host_logits_;   ///< of a GPU, where the host draws
};

}  // namespace llmtrain
