#pragma once
// Continuing several prompts at once.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "data/stream/data_stream.hpp"
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
  int64_t step = 0;     ///< of training; another one gives other draws
  bool slides = false;  ///< the oldest tokens of a text longer than the context are not read; else it ends there
  /// Told each new token of prompt p; false ends that text. May be null.
  std::function<bool(size_t p, int32_t token)> on_token;
  /// Asked before each token of all texts, by all ranks alike: whether to leave off, as they are. May be null.
  std::function<bool()> interrupted;
  /// Given the tokens just drawn, by all ranks alike: makes them those of one rank. Without it GPUs of two kinds, whose
  /// last bits differ, may end texts at different tokens and then wait for each other for ever. May be null.
  std::function<void(std::span<int32_t> tokens)> agree;
};

/// For what a Generator has room.
struct GeneratorRoom {
  int64_t vocabulary_rows = 0;  ///< of the embedding
  int64_t sequences = 1;        ///< at a time
  int64_t context = 0;          ///< tokens of each that the model reads
  bool cache = true;            ///< of keys and values; without one the whole text is run for each token
};

/// The loop of generation and its buffers. The bits of a text's logits, and so its tokens, are a function of the
/// weights, the text, whether there is a cache, the compute dtype and the processor; its draws also of the request's
/// sampling, seed and step and of the prompt's index. They do not depend on the other prompts, their number, lengths
/// and order, on the room, or on the number of threads: products are batch-invariant (kernels/matmul.hpp, which says
/// how far a GPU's are). Where weights are sharded, all ranks call it alike and compute the same.
class Generator {
 public:
  Generator(Model& model, const GeneratorRoom& room);
  /// Rows that the model must have been planned for.
  int64_t rows() const;
  void plan(Arena& arena, DType compute);
  /// The arena is committed, the model started.
  std::vector<Continuation> run(ParamStore& params, Arena& arena, Stream& stream, const GenerationRequest& request);

 private:
  struct Text;
  void run_whole_texts(Context& ctx, std::span<Text* const> texts, const GenerationRequest& request);
  void run_last_tokens(Context& ctx, std::span<Text* const> texts, const GenerationRequest& request);
  void draw(Context& ctx, const Batch& batch, std::span<const int64_t> rows, std::span<Text* const> texts,
            const GenerationRequest& request);
  void append(Text& text, int32_t token, const GenerationRequest& request) const;

  Model& model_;
  GeneratorRoom room_;
  BatchBuffers batch_;
  KvCache cache_;
  Tensor logits_;  ///< fp32 [sequences, V]
  std::vector<float> host_logits_;
};

}  // namespace llmtrain
