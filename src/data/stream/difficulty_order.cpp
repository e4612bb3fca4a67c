#include "data/stream/difficulty_order.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <thread>

#include "core/activity.hpp"
#include "core/parallel_for.hpp"
#include "core/philox.hpp"
#include "data/stream/sample_order.hpp"

namespace llmtrain {
namespace {

constexpr int64_t samples_at_once = 1024;

int usable_threads() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

/// Calls take(sample, ids) for all samples of a source, in parallel by runs of samples; state[run] belongs to a run.
template <class Take>
void each_sample(const SampleSource& source, const Take& take) {
  const int64_t samples = source.samples();
  const auto runs = static_cast<size_t>((samples + samples_at_once - 1) / samples_at_once);
  parallel_for(runs, usable_threads(), [&](size_t run) {
    std::vector<int32_t> ids;
    const int64_t begin = static_cast<int64_t>(run) * samples_at_once;
    for (int64_t sample = begin; sample < std::min(begin + samples_at_once, samples); ++sample) {
      source.read_inputs(sample, ids);
      take(sample, ids);
    }
    report_progress();
  });
}

/// -log of each token's share of the inputs of all samples.
std::vector<double> rarities(const std::vector<SampleSource>& sources) {
  std::vector<int64_t> counts;
  for (const SampleSource& source : sources) {
    std::mutex mutex;
    each_sample(source, [&](int64_t, const std::vector<int32_t>& ids) {
      const std::scoped_lock lock(mutex);  // much shorter than the reading
      for (const int32_t id : ids) {
        if (static_cast<size_t>(id) >= counts.size()) counts.resize(static_cast<size_t>(id) + 1, 0);
        ++counts[static_cast<size_t>(id)];
      }
    });
  }
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  std::vector<double> result;
  result.reserve(counts.size());
  for (const int64_t count : counts) result.push_back(count == 0 ? 0 : std::log(total / static_cast<double>(count)));
  return result;
}

}  // namespace

DifficultyOrder::DifficultyOrder(const std::vector<SampleSource>& sources, CurriculumConfig::Difficulty difficulty) {
  const bool by_length = difficulty == CurriculumConfig::Difficulty::length;
  const std::vector<double> rarity = by_length ? std::vector<double>() : rarities(sources);
  for (const SampleSource& source : sources) {
    std::vector<double> values(static_cast<size_t>(source.samples()));
    if (by_length) {
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<double>(source.index().inputs(static_cast<int64_t>(i)));
      }
    } else {
      each_sample(source, [&](int64_t sample, const std::vector<int32_t>& ids) {
        double sum = 0;
        for (const int32_t id : ids) sum += rarity[static_cast<size_t>(id)];
        values[static_cast<size_t>(sample)] = sum;
      });
    }
    std::vector<int64_t>& order = order_.emplace_back(values.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::ranges::stable_sort(order, {}, [&](int64_t sample) { return values[static_cast<size_t>(sample)]; });
    for (int64_t& sample : order) sample += source.first_id();
  }
}

int64_t DifficultyOrder::sample(size_t source, int64_t percent, int64_t level, int64_t draw, uint64_t seed) const {
  const std::vector<int64_t>& order = order_[source];
  const auto pool = std::max<int64_t>(1, static_cast<int64_t>(std::ssize(order) * percent / 100));
  const auto round = static_cast<uint64_t>(draw / pool);
  const uint64_t key =
      random_key(seed, RandomPurpose::sample_order, static_cast<uint64_t>(level) | (round + 1) << 40, source);
  return order[static_cast<size_t>(SampleOrder(pool, key)(draw % pool))];
}

}  // namespace llmtrain
