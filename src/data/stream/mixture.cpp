#include "data/stream/mixture.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.hpp"

namespace llmtrain {
namespace {

/// Returns whole numbers in the ratio of the weights if these are decimals of few digits; otherwise none.
std::vector<int64_t> exact_shares(std::span<const double> weights) {
  double scale = 1;
  for (int digits = 0; digits <= 9; ++digits, scale *= 10) {
    std::vector<int64_t> shares;
    for (const double weight : weights) {
      const double scaled = weight * scale;
      if (scaled > 1e15 || std::abs(scaled - std::round(scaled)) > 1e-12 * scaled || std::round(scaled) < 1) break;
      shares.push_back(static_cast<int64_t>(std::round(scaled)));
    }
    if (shares.size() != weights.size()) continue;
    int64_t divisor = 0;
    for (const int64_t share : shares) divisor = std::gcd(divisor, share);
    LLMTRAIN_CHECK(divisor > 0, "shares are positive");
    int64_t total = 0;
    for (int64_t& share : shares) {
      share /= divisor;
      if (share > Mixture::longest_cycle - total) return {};
      total += share;
    }
    return shares;
  }
  return {};
}

/// Rounds to shares of 2^20 by largest remainders, at least 1 each.
std::vector<int64_t> rounded_shares(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> shares;
  std::vector<double> lacks;
  for (const double weight : weights) {
    const double ideal = weight / sum * static_cast<double>(Mixture::longest_cycle);
    shares.push_back(std::max<int64_t>(1, static_cast<int64_t>(ideal)));
    lacks.push_back(ideal - static_cast<double>(shares.back()));
  }
  int64_t left = Mixture::longest_cycle - std::accumulate(shares.begin(), shares.end(), int64_t{0});
  while (left != 0) {
    const auto at = left > 0 ? std::ranges::max_element(lacks) : std::ranges::min_element(lacks);
    const int64_t change = left > 0 ? 1 : -1;
    shares[static_cast<size_t>(at - lacks.begin())] += change;
    *at -= static_cast<double>(change);
    left -= change;
  }
  return shares;
}

}  // namespace

Mixture::Mixture(std::span<const double> weights) {
  LLMTRAIN_CHECK(!weights.empty() && weights.size() <= max_sources, "number of sources of a mixture");
  for (const double weight : weights) LLMTRAIN_CHECK(weight > 0 && std::isfinite(weight), "weight of a source");
  shares_ = exact_shares(weights);
  if (shares_.empty()) shares_ = rounded_shares(weights);
  const int64_t cycle = std::accumulate(shares_.begin(), shares_.end(), int64_t{0});
  const int64_t k = static_cast<int64_t>(shares_.size());
  source_.reserve(static_cast<size_t>(cycle));
  number_.reserve(static_cast<size_t>(cycle));
  std::vector<int64_t> taken(shares_.size(), 0);
  for (int64_t n = 1; n <= cycle; ++n) {
    // All numbers are in units of 1 / (cycle (2 k - 2)): lead is how far the source is behind its share of the first n
    // samples. A source that is behind by 1 / (2 k - 2) or more is eligible; the one with the earliest deadline is
    // chosen.
    size_t chosen = shares_.size();
    double chosen_end = 0;
    for (size_t j = 0; j < shares_.size(); ++j) {
      const int64_t behind = shares_[j] * n - taken[j] * cycle;
      if (k > 1 && behind * (2 * k - 2) < cycle) continue;
      const double end = (static_cast<double>(cycle) * static_cast<double>(2 * k - 3) -
                          static_cast<double>(behind) * static_cast<double>(2 * k - 2)) /
                         static_cast<double>(shares_[j]);
      if (chosen < shares_.size() && end >= chosen_end) continue;
      chosen = j;
      chosen_end = end;
    }
    LLMTRAIN_CHECK(chosen < shares_.size(), "some source must be behind its share");
    source_.push_back(static_cast<uint8_t>(chosen));
    number_.push_back(static_cast<int32_t>(taken[chosen]++));
  }
  LLMTRAIN_CHECK(taken == shares_, "a cycle must give every source its share");
}

int64_t Mixture::taken_before(int64_t sample, size_t source) const {
  for (int64_t next = sample;; ++next) {  // each cycle has the source
    const Choice choice = (*this)(next);
    if (choice.source == source) return choice.number;
  }
}

Mixture::Choice Mixture::operator()(int64_t sample) const {
  const int64_t round = sample / cycle();
  const auto place = static_cast<size_t>(sample % cycle());
  const size_t source = source_[place];
  return {source, round * shares_[source] + number_[place]};
}

}  // namespace llmtrain
