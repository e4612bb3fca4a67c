#pragma once
// Beam search as in Transformers 5.24 (GenerationMixin._beam_search without sampling).

#include <cstdint>
#include <span>
#include <vector>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

struct BeamOptions {
  /// When the search ends. no: when no running beam is likely to exceed the worst finished one at its present length;
  /// yes: when there are as many finished texts as beams; never: when none can at its maximum length.
  enum class EarlyStopping : uint8_t { no, yes, never };

  int64_t beams = 1;
  double length_penalty = 1;  ///< a text's score is its log-probability over its length to this power
  EarlyStopping early_stopping = EarlyStopping::no;
};

template <>
inline constexpr auto enum_names<BeamOptions::EarlyStopping> = name_list("false", "true", "never");

/// The search for the continuations of one prompt.
class BeamSearch {
 public:
  /// A running beam, or a finished text, with its end token.
  struct Beam {
    std::vector<int32_t> tokens = {};  ///< new ones
    float score = 0;                   ///< sum of log-probabilities; of a finished text over its length
    size_t parent = 0;                 ///< beam that it continues, before the last advance()
    bool ended = false;                ///< of a finished text: it ended before the maximum length
  };

  BeamSearch(const BeamOptions& options, std::span<const int32_t> eos, int64_t max_new_tokens);

  bool done() const { return done_; }
  /// The running beams, the best first; before the first advance() one without tokens.
  const std::vector<Beam>& running() const { return running_; }
  /// `log_probs`: the processed log-probabilities of the next token of each running beam, fp32 [V].
  void advance(std::span<const std::span<const float>> log_probs);
  /// The best finished texts first, at most as many as beams.
  const std::vector<Beam>& finished() const { return finished_; }

 private:
  struct Candidate;
  std::vector<Candidate> best_candidates(std::span<const std::span<const float>> log_probs) const;
  void keep_finished(const std::vector<Candidate>& candidates);
  bool can_improve() const;

  BeamOptions options_;
  std::vector<int32_t> eos_;
  int64_t max_new_tokens_;
  int64_t length_ = 0;  ///< of the running beams
  bool improvable_ = true, done_ = false;
  std::vector<Beam> running_, finished_;
};

}  // namespace llmtrain
