#pragma once
// Continues several prompts at once.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "data/stream/data_stream.hpp"
#include "generate/beam_search.hpp"
#include "generate/cache_policy.hpp"
#include "generate/sampler.hpp"
#include "layers/kv_selection.hpp"
#include "models/model.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Reason why a continuation ended.
enum class GenerationEnd : uint8_t { eos, length, context, stopped };

struct Continuation {
  std::vector<int32_t> tokens;  ///< without EOS
  GenerationEnd end = GenerationEnd::length;
  int32_t eos = -1;  ///< the EOS that ended it; -1: none
  // If the request records log-probabilities or gives them, for each token and for that EOS:
  std::vector<float> logp;     ///< under the distribution that it was drawn from, or of the model, nats
  std::vector<uint32_t> kept;  ///< as append_kept() stores them; empty unless top-k or top-p exclude tokens
  float score = 0;             ///< of a beam, see BeamOptions
};

struct GenerationRequest {
  std::vector<std::vector<int32_t>> prompts;  ///< none empty
  /// Continuations of each prompt, which share its pass. Those of prompt p have the indices p * samples .. (p + 1) *
  /// samples - 1. With beams: the best ones, at most as many as beams.
  int64_t samples = 1;
  SamplingOptions sampling;
  /// With more than one beam the most probable tokens are searched: no temperature, filters, records_logp, gives_logp,
  /// on_token and agree.
  BeamOptions beams = {};
  int64_t max_new_tokens = 256;
  std::vector<int32_t> eos;  ///< each of them ends a text
  int64_t vocabulary = 0;    ///< number of tokens that may be sampled
  uint64_t seed = 0;
  int64_t step = 0;  ///< training step; another one gives other samples
  /// Number of each prompt in the whole job, a key of its random numbers; empty: its index.
  std::vector<int64_t> numbers;
  /// True for products like those of a training pass over documents, so that the recorded log-probabilities have the
  /// bits of such a pass. There is no repetition penalty then.
  bool records_logp = false;
  /// True for log-probabilities of the new tokens under the model: temperature 1, without filters and penalties.
  bool gives_logp = false;
  /// Set if the ranks have prompts of their own: they then agree on every pass. A UserError ends the passes of all
  /// ranks, and is thrown by the rank whose texts caused it.
  Communicator* ranks = nullptr;
  std::string what;     ///< name of the work for its progress; empty: none is shown
  int threads = 1;      ///< that draw tokens
  bool slides = false;  ///< True if the oldest tokens of a text longer than the context are dropped; otherwise the text
                        ///< ends there
  /// Receives each new token of continuation c; false ends that text. May be null.
  std::function<bool(size_t c, int32_t token)> on_token;
  /// Receives continuation c once it has ended, in place of the result of run(). May be null.
  std::function<void(size_t c, Continuation continuation)> on_end;
  /// Called before each token of all texts, by all ranks alike: returns true to stop with the texts so far. May be
  /// null.
  std::function<bool()> interrupted;
  /// Called with the tokens just sampled, by all ranks alike: replaces them with those of one rank. Without it, GPUs of
  /// two kinds, whose last bits differ, can end texts at different tokens and then wait for each other forever. May be
  /// null.
  std::function<void(std::span<int32_t> tokens)> agree;
};

/// Capacity of a Generator.
struct GeneratorRoom {
  int64_t vocabulary_rows = 0;  ///< rows of the embedding
  int64_t sequences = 1;        ///< number of simultaneous sequences
  int64_t context = 0;          ///< tokens of each that the model reads
  bool cache = true;  ///< True for a cache of keys and values; without it the whole text is processed for each token
  bool records_logp = false;  ///< room for GenerationRequest::records_logp
  /// Tokens of prompts in a pass, for less memory; 0: as many as the context. Without a cache it has no effect.
  int64_t prompt_tokens = 0;
  CachePolicy policy = {};  ///< other ones than full read prompts as a whole
  int64_t kv_heads = 0;     ///< of the model, for these
};

/// Generation loop and its buffers. A text that ends gives its place to the next prompt. The bits of a text's logits,
/// and so its tokens, are a function of the weights, the text, whether there is a cache, the compute dtype and the
/// processor; its samples also of the request's sampling, seed and step and of the prompt's index. They do not depend
/// on the other prompts, their number, lengths and order, on the capacity, or on the number of threads: products are
/// batch-invariant (kernels/matmul.hpp documents the limits on a GPU). If weights are sharded, all ranks call it alike
/// and compute the same.
class Generator {
 public:
  Generator(Model& model, const GeneratorRoom& room);
  /// Returns the rows that the model must be planned for.
  int64_t rows() const;
  void plan(Arena& arena, DType compute);
  /// Requires a committed arena and a started model.
  std::vector<Continuation> run(ParamStore& params, Arena& arena, Stream& stream, const GenerationRequest& request);

 private:
  struct Text;
  struct Portion;
  struct Passes;
  struct Draw;
  enum class Pass : uint8_t { first, more, last };
  void check(const GenerationRequest& request) const;
  std::vector<Text> make_texts(const GenerationRequest& request) const;
  static double completed(std::span<const Text> texts, int64_t max_new_tokens);
  Passes plan_passes(std::span<Text> texts, const GenerationRequest& request) const;
  Passes plan_whole_texts(std::span<Text> texts, const GenerationRequest& request) const;
  bool admit(std::span<Text> texts, size_t index, std::vector<int64_t>& free, const GenerationRequest& request) const;
  bool selects() const { return room_.cache && room_.policy.kind != CachePolicy::Kind::full; }
  void set_budgets(std::span<const Portion> portions, Stream& stream);
  void copy_cache(int64_t to, int64_t from, int64_t tokens, Stream& stream) const;
  int64_t window_of(const Text& text, const GenerationRequest& request) const;
  void run_pass(Context& ctx, Pass pass, std::span<const Portion> portions, std::span<Text> texts,
                const GenerationRequest& request);
  void run_idle(Context& ctx);
  // generator_draw.cpp
  void draw(Context& ctx, const Batch& batch, std::span<const int64_t> rows, std::span<const Draw> draws,
            const GenerationRequest& request);
  void sample(Context& ctx, const Tensor& logits, float* values, std::span<const Draw> draws,
              const GenerationRequest& request);
  void advance_beams(Context& ctx, const float* values, std::span<const Draw> draws, const GenerationRequest& request);
  void place_beams(Context& ctx, Text& first, const GenerationRequest& request);
  void end_search(Text& first, const GenerationRequest& request) const;
  void record(Context& ctx, const Tensor& logits, std::span<const Draw> draws, std::span<const int32_t> drawn,
              std::span<const uint32_t> kept, int64_t vocabulary);
  void append(Text& text, int32_t token, const GenerationRequest& request) const;

  Model& model_;
  GeneratorRoom room_;
  BatchBuffers batch_;
  KvCache cache_;
  KvSelection selection_;
  Tensor logits_;                   ///< fp32 [sequences, V]
  Tensor targets_;                  ///< int32 [sequences]
  Tensor logp_;                     ///< fp32 [sequences]
  Tensor kept_;                     ///< uint32 [sequences, ceil(V / 32)]
  std::vector<float> host_logits_;  ///< of a GPU
};

}  // namespace llmtrain
