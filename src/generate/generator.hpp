#pragma once
// Continuing several prompts at once, with a cache of keys and values.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "data/data_stream.hpp"
#include "generate/sampler.hpp"
#include "models/model.hpp"

namespace llmtrain {

/// Why a continuation ended.
enum class GenerationEnd : uint8_t { eos, length, context, stopped };

struct Continuation {
  std::vector<int32_t> tokens;  ///< without EOS
  GenerationEnd end = GenerationEnd::length;
};

struct GenerationRequest {
  std::vector<std::vector<int32_t>> prompts;  ///< none empty
  SamplingOptions sampling;
  int64_t max_new_tokens = 256;
  std::vector<int32_t> eos;  ///< any of them ends a text
  int64_t vocabulary = 0;    ///< tokens that may be drawn
  uint64_t seed = 0;
  /// Told each new token of prompt p; false ends that text. May be null.
  std::function<bool(size_t p, int32_t token)> on_token;
};

/// Holds a model's buffers for generation on one rank: `sequences` at a time, each of at most `context` tokens. What a
/// prompt is continued with is a function of (weights, prompt, request, its index), whatever runs beside it.
class Generator {
 public:
  Generator(Model& model, DType compute, int64_t vocabulary_rows, int64_t sequences, int64_t context);
  void plan(Arena& arena);
  /// The arena is committed, the model started.
  std::vector<Continuation> run(ParamStore& params, Arena& arena, Stream& stream, const GenerationRequest& request);

 private:
  struct Text;
  void begin_texts(Context& ctx, std::span<Text> texts, const GenerationRequest& request);
  void step_texts(Context& ctx, const std::vector<Text*>& texts, const GenerationRequest& request);
  void draw(Context& ctx, const Batch& batch, std::span<const int64_t> rows, std::span<Text* const> texts,
            const GenerationRequest& request);

  Model& model_;
  DType compute_;
  int64_t rows_of_table_;
  int64_t sequences_;
  int64_t context_;
  BatchBuffers batch_;
  KvCache cache_;
  Tensor logits_;  ///< fp32 [1, V]
};

}  // namespace llmtrain
