#pragma once
// Requests to a Generator, and its results.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/deck/named_enum.hpp"
#include "generate/beam_search.hpp"
#include "generate/sampler.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Reason why a continuation ended.
enum class GenerationEnd : uint8_t { eos, length, context, stopped };

template <>
inline constexpr auto enum_names<GenerationEnd> = name_list("eos", "length", "context", "stop");

struct Continuation {
  std::vector<int32_t> tokens;  ///< without EOS
  GenerationEnd end = GenerationEnd::length;
  int32_t eos = -1;  ///< the EOS that ended it; -1: none
  // If the request records log-probabilities or gives them, for each token and for that EOS:
  std::vector<float> logp;     ///< under the distribution that it was drawn from, or of the model, nats
  std::vector<uint32_t> kept;  ///< as append_kept() stores them; empty unless top-k or top-p exclude tokens
  float score = 0;             ///< of a beam, see BeamOptions
  bool own = false;            ///< false: another rank has made it, or it got no place before the end
};

struct GenerationRequest {
  std::vector<std::vector<int32_t>> prompts;  ///< none empty, unless `read` is set
  /// Reads a prompt when a text of it begins, in place of prompts[p]. May be null.
  std::function<std::vector<int32_t>(size_t p)> read;
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
  /// Set if the ranks share the texts: all have the same request, a text goes to a rank that has a place for it when
  /// its turn comes, and they agree on every pass. A UserError ends the passes of all ranks, and is thrown by the rank
  /// whose texts caused it.
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

}  // namespace llmtrain
