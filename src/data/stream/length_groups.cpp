#include "data/stream/length_groups.hpp"

#include <algorithm>
#include <utility>

namespace llmtrain {

void group_by_length(std::vector<int64_t>& order, int64_t samples_per_step,
                     const std::function<int64_t(int64_t sample)>& length) {
  constexpr int64_t max_steps = 50;
  const auto count = static_cast<int64_t>(order.size());
  const int64_t steps = std::clamp<int64_t>(count / (4 * samples_per_step), 1, max_steps);
  std::vector<std::pair<int64_t, int64_t>> run;  // length, sample
  int64_t longest = -1, longest_at = 0;
  for (int64_t begin = 0; begin < count; begin += steps * samples_per_step) {
    const int64_t end = std::min(begin + steps * samples_per_step, count);
    run.clear();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = order[static_cast<size_t>(i)];
      run.emplace_back(length(sample), sample);
    }
    std::stable_sort(run.begin(), run.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::transform(run.begin(), run.end(), order.begin() + begin, [](const auto& entry) { return entry.second; });
    if (run.front().first > longest) {
      longest = run.front().first;
      longest_at = begin;
    }
  }
  if (count > 0) std::swap(order.front(), order[static_cast<size_t>(longest_at)]);
}

}  // namespace llmtrain
