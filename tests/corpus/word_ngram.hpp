#pragma once
// An interpolated 5-gram model of words: the baseline that the example corpus must beat. Two smoothings, modified
// Kneser-Ney (Chen and Goodman, Computer Speech and Language 13, 1999, eq. 26) and Witten-Bell (eq. 17 there).

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace llmtrain::test {

enum class Smoothing { kneser_ney, witten_bell };

class WordNgram {
 public:
  static constexpr size_t order = 5;
  using Sentence = std::vector<uint64_t>;

  explicit WordNgram(Smoothing smoothing) : smoothing_(smoothing) {}

  /// Words of one document; begin and end are added here.
  void count(const std::vector<std::string_view>& words) {
    const Sentence ids = sentence(words, true);
    for (size_t i = order - 1; i < ids.size(); ++i) {
      for (size_t n = 1; n <= order; ++n) ++counts_[n][key(ids, i, n)];
    }
  }

  /// Called once, after all counts.
  void finish() {
    if (smoothing_ == Smoothing::kneser_ney) use_continuations();
    for (size_t n = 1; n <= order; ++n) {
      std::array<double, 5> of_count{};
      for (const auto& [gram, count] : counts_[n]) {
        Context& context = contexts_[n][gram >> bits];
        context.total += count;
        ++context.distinct[std::min<uint32_t>(count, 3)];
        if (count <= 4) ++of_count[count];
      }
      set_discounts(n, of_count);
    }
  }

  /// Returns the natural logarithm of the probability of the words and the end.
  double log_probability(const std::vector<std::string_view>& words) const {
    const Sentence ids = const_cast<WordNgram*>(this)->sentence(words, false);
    double sum = 0;
    for (size_t i = order - 1; i < ids.size(); ++i) sum += std::log(probability(ids, i));
    return sum;
  }

  /// Returns the sum over all words of the probability after the given ones: 1 for a proper model.
  double total_probability(const std::vector<std::string_view>& words) const {
    Sentence ids = const_cast<WordNgram*>(this)->sentence(words, false);
    double sum = 0;
    for (uint64_t word = unknown_id; word < next_id_; ++word) {
      ids.back() = word;
      sum += probability(ids, ids.size() - 1);
    }
    return sum;
  }

 private:
  static constexpr int bits = 12;  // five words in 60 bits
  static constexpr uint64_t begin_id = 0, unknown_id = 1, end_id = 2;
  struct Context {
    uint64_t total = 0;
    std::array<uint32_t, 4> distinct{};  // words seen once, twice, more often
  };

  Sentence sentence(const std::vector<std::string_view>& words, bool learn) {
    Sentence ids(order - 1, begin_id);
    for (std::string_view word : words) {
      const auto found = ids_.find(std::string(word));
      if (found == ids_.end() && learn) ids_.emplace(word, next_id_);
      ids.push_back(found != ids_.end() ? found->second : learn ? next_id_++ : unknown_id);
    }
    if (next_id_ >= (1 << bits)) throw std::runtime_error("too many words for the packed keys");
    ids.push_back(end_id);
    return ids;
  }

  /// Words i - n + 1 .. i.
  static uint64_t key(const Sentence& ids, size_t i, size_t n) {
    uint64_t packed = 0;
    for (size_t k = i + 1 - n; k <= i; ++k) packed = packed << bits | ids[k];
    return packed;
  }

  /// Lower orders count the distinct words before them.
  void use_continuations() {
    for (size_t n = 1; n < order; ++n) {
      counts_[n].clear();
      const uint64_t mask = (uint64_t{1} << (bits * static_cast<int>(n))) - 1;
      for (const auto& entry : counts_[n + 1]) ++counts_[n][entry.first & mask];
    }
  }

  void set_discounts(size_t n, const std::array<double, 5>& of_count) {
    const double y = of_count[1] / std::max(1.0, of_count[1] + 2 * of_count[2]);
    for (size_t c = 1; c <= 3; ++c) {
      const double d =
          static_cast<double>(c) - (static_cast<double>(c) + 1) * y * of_count[c + 1] / std::max(1.0, of_count[c]);
      discounts_[n][c] = std::clamp(d, 0.01, static_cast<double>(c));
    }
  }

  double probability(const Sentence& ids, size_t i) const {
    double p = 1.0 / static_cast<double>(next_id_ - 1);  // any word, unknown, end
    for (size_t n = 1; n <= order; ++n) {
      const uint64_t gram = key(ids, i, n);
      const auto context = contexts_[n].find(gram >> bits);
      if (context == contexts_[n].end()) break;
      const auto found = counts_[n].find(gram);
      const double count = found == counts_[n].end() ? 0.0 : found->second;
      p = smoothed(n, context->second, count, p);
    }
    return p;
  }

  double smoothed(size_t n, const Context& context, double count, double lower) const {
    const std::array<double, 4>& d = discounts_[n];
    const auto& distinct = context.distinct;
    const double total = static_cast<double>(context.total);
    if (smoothing_ == Smoothing::witten_bell) {
      const double types = static_cast<double>(distinct[1]) + distinct[2] + distinct[3];
      return (count + types * lower) / (total + types);
    }
    const double kept = count - d[static_cast<size_t>(std::min(count, 3.0))];
    return (kept + (d[1] * distinct[1] + d[2] * distinct[2] + d[3] * distinct[3]) * lower) / total;
  }

  Smoothing smoothing_;
  uint64_t next_id_ = end_id + 1;
  std::unordered_map<std::string, uint64_t> ids_;
  std::array<std::unordered_map<uint64_t, uint32_t>, order + 1> counts_;   // by n: n-gram -> count
  std::array<std::unordered_map<uint64_t, Context>, order + 1> contexts_;  // by n: first n - 1 words
  std::array<std::array<double, 4>, order + 1> discounts_{};
};

}  // namespace llmtrain::test
