#include "generate/beam_search.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"

namespace llmtrain {

namespace {

/// Added to scores that must not be chosen.
constexpr float excluded = -1e9F;

}  // namespace

/// A running beam with one more token.
struct BeamSearch::Candidate {
  size_t beam;
  int32_t token;
  float score;
  bool stops = false;  ///< true at an end token and at the maximum length
  bool ended = false;  ///< true at an end token
};

BeamSearch::BeamSearch(const BeamOptions& options, std::span<const int32_t> eos, int64_t max_new_tokens)
    : options_(options), eos_(eos.begin(), eos.end()), max_new_tokens_(max_new_tokens), running_(1) {
  std::ranges::sort(eos_);
  eos_.erase(std::unique(eos_.begin(), eos_.end()), eos_.end());
}

/// The best candidates, the best first: enough that as many as there are beams go on if all end tokens are chosen.
std::vector<BeamSearch::Candidate> BeamSearch::best_candidates(
    std::span<const std::span<const float>> log_probs) const {
  const auto wanted = static_cast<size_t>(options_.beams) * std::max<size_t>(2, 1 + eos_.size());
  std::vector<Candidate> all;
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
  };
  for (size_t beam = 0; beam < running_.size(); ++beam) {
    const std::span<const float> row = log_probs[beam];
    const size_t before = all.size();
    for (size_t id = 0; id < row.size(); ++id) {
      all.push_back({beam, static_cast<int32_t>(id), row[id] + running_[beam].score});
    }
    const size_t kept = std::min(wanted, row.size());
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(before);
    std::partial_sort(begin, begin + static_cast<std::ptrdiff_t>(kept), all.end(), better);
    all.resize(before + kept);
  }
  std::ranges::sort(all, better);
  all.resize(std::min(wanted, all.size()));
  for (Candidate& candidate : all) {
    candidate.ended = std::ranges::binary_search(eos_, candidate.token);
    candidate.stops = candidate.ended || length_ + 1 >= max_new_tokens_;
  }
  return all;
}

/// Only the best candidates, as many as beams, can finish; the others are there to go on.
void BeamSearch::keep_finished(const std::vector<Candidate>& candidates) {
  const auto beams = static_cast<size_t>(options_.beams);
  const bool full = finished_.size() == beams;
  if (!improvable_ || (full && options_.early_stopping == BeamOptions::EarlyStopping::yes)) return;
  const auto divisor = static_cast<float>(std::pow(static_cast<double>(length_ + 1), options_.length_penalty));
  for (size_t i = 0; i < std::min(beams, candidates.size()); ++i) {
    const Candidate& candidate = candidates[i];
    if (!candidate.stops) continue;
    Beam& beam = finished_.emplace_back(running_[candidate.beam]);
    beam.tokens.push_back(candidate.token);
    beam.score = candidate.score / divisor;
    beam.ended = candidate.ended;
  }
  std::ranges::stable_sort(finished_, [](const Beam& a, const Beam& b) { return a.score > b.score; });
  if (finished_.size() > beams) finished_.resize(beams);
}

/// A heuristic of Transformers, see BeamOptions.
bool BeamSearch::can_improve() const {
  if (finished_.size() < static_cast<size_t>(options_.beams)) return true;
  const bool longest = options_.early_stopping == BeamOptions::EarlyStopping::never && options_.length_penalty > 0;
  const auto length = static_cast<double>(longest ? max_new_tokens_ : length_);
  const auto divisor = static_cast<float>(std::pow(length, options_.length_penalty));
  return running_.front().score / divisor > finished_.back().score;
}

void BeamSearch::advance(std::span<const std::span<const float>> log_probs) {
  LLMTRAIN_CHECK(!done_ && log_probs.size() == running_.size(), "every running beam needs its log-probabilities");
  const std::vector<Candidate> candidates = best_candidates(log_probs);
  keep_finished(candidates);
  std::vector<Beam> next;
  for (const Candidate& candidate : candidates) {
    if (candidate.stops || next.size() == static_cast<size_t>(options_.beams)) continue;
    Beam& beam = next.emplace_back(running_[candidate.beam]);
    beam.tokens.push_back(candidate.token);
    beam.score = candidate.score;
    beam.parent = candidate.beam;
  }
  ++length_;
  running_ = std::move(next);
  if (running_.empty() || running_.front().score <= excluded) {
    done_ = true;
    return;
  }
  improvable_ = improvable_ && can_improve();
  const bool full = finished_.size() == static_cast<size_t>(options_.beams);
  done_ = !improvable_ || (full && options_.early_stopping == BeamOptions::EarlyStopping::yes);
}

}  // namespace llmtrain
