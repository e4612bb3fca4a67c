#include "evaluation/cached_values.hpp"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "metrics/metrics_hdf5.hpp"

namespace llmtrain {
namespace {

constexpr double missing = std::numeric_limits<double>::quiet_NaN();

/// The values in a file, and a digest of them in two halves, which doubles hold exactly.
struct ValuesFile {
  MetricsTable values{"values", {{"value", "nats", {}}}};
  MetricsTable digest{"digest", {{"high", "1", {}}, {"low", "1", {}}}};

  std::vector<double>& column() { return values.columns.front().values; }
  std::pair<double, double> digest_now() {
    const uint64_t hash = XXH3_64bits(column().data(), column().size() * sizeof(double));
    return {static_cast<double>(hash >> 32), static_cast<double>(hash & 0xFFFFFFFFu)};
  }
};

std::vector<double> read_values(const std::string& path, int64_t count) {
  const std::vector<double> none(static_cast<size_t>(count), missing);
  ValuesFile file;
  if (!std::filesystem::exists(path)) return none;
  try {
    read_metrics_hdf5(path, file.values);
    read_metrics_hdf5(path, file.digest);
  } catch (const UserError&) {
    return none;
  }
  const auto [high, low] = file.digest_now();
  const bool whole = file.column().size() == none.size() && file.digest.rows() == 1 &&
                     file.digest.columns[0].values[0] == high && file.digest.columns[1].values[0] == low;
  return whole ? std::move(file.column()) : none;
}

}  // namespace

bool is_missing(double value) { return std::isnan(value); }

void set_missing(std::span<double> values) { std::ranges::fill(values, missing); }

std::vector<double> find_cached_values(const std::string& path, int64_t count, Communicator& communicator) {
  std::vector<double> values(static_cast<size_t>(count));
  if (communicator.rank() == 0) values = read_values(path, count);
  communicator.broadcast(values.data(), static_cast<int64_t>(values.size() * sizeof(double)));
  return values;
}

void write_cached_values(const std::string& path, const std::vector<double>& values) {
  ValuesFile file;
  file.column() = values;
  const auto [high, low] = file.digest_now();
  file.digest.add({high, low});
  write_metrics_hdf5(path, {file.values, file.digest});
}

void share_values(std::span<double> values, Communicator& communicator) {
  std::vector<uint64_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    bits[i] = is_missing(values[i]) ? 0 : std::bit_cast<uint64_t>(values[i]) + 1;
  }
  communicator.sum(std::span(bits));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = bits[i] == 0 ? missing : std::bit_cast<double>(bits[i] - 1);
  }
}

}  // namespace llmtrain
