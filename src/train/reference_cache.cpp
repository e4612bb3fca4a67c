#include "train/reference_cache.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <span>
#include <utility>

#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/number_text.hpp"
#include "core/progress.hpp"
#include "metrics/metrics_hdf5.hpp"
#include "objectives/document_objective.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "params/planned_memory.hpp"

namespace llmtrain {

namespace {

constexpr double seconds_between_writes = 30;
constexpr double missing = std::numeric_limits<double>::quiet_NaN();

/// The values in a file, and a digest of them in two halves, which doubles hold exactly.
struct ReferenceFile {
  MetricsTable values{"reference", {{"logp", "nats", {}}}};
  MetricsTable digest{"digest", {{"high", "1", {}}, {"low", "1", {}}}};

  std::vector<double>& logp() { return values.columns.front().values; }
  std::pair<double, double> digest_now() {
    const uint64_t hash = XXH3_64bits(logp().data(), logp().size() * sizeof(double));
    return {static_cast<double>(hash >> 32), static_cast<double>(hash & 0xFFFFFFFFu)};
  }
};

/// Values of the file; all are missing if there is none, or if it is damaged.
std::vector<double> read_values(const std::string& path, int64_t documents) {
  const auto count = static_cast<size_t>(documents);
  ReferenceFile file;
  if (!std::filesystem::exists(path)) return std::vector<double>(count, missing);
  try {
    read_metrics_hdf5(path, file.values);
    read_metrics_hdf5(path, file.digest);
  } catch (const UserError&) {
    return std::vector<double>(count, missing);
  }
  const auto [high, low] = file.digest_now();
  const bool whole = file.logp().size() == count && file.digest.rows() == 1 &&
                     file.digest.columns[0].values[0] == high && file.digest.columns[1].values[0] == low;
  return whole ? std::move(file.logp()) : std::vector<double>(count, missing);
}

void write_values(const std::string& path, const std::vector<double>& values) {
  ReferenceFile file;
  file.logp() = values;
  const auto [high, low] = file.digest_now();
  file.digest.add({high, low});
  write_metrics_hdf5(path, {file.values, file.digest});
}

/// A frozen model and memory for its passes.
class ReferenceScorer {
 public:
  ReferenceScorer(RoleSpec spec, const std::vector<ReferencePart>& parts, Runtime& runtime)
      : runtime_(runtime), model_(std::move(spec)) {
    int64_t segments = 0, rows = 0;
    for (const ReferencePart& part : parts) {
      segments = std::max(segments, part.data->max_segments());
      rows = std::max(rows, part.data->max_rows());
    }
    model_.plan(arena_);
    batch_.plan(arena_, rows, segments);
    arena_.add(logp_, MemoryCategory::activations, "statistics.logp", DType::f32, {rows});
    arena_.add(sums_, MemoryCategory::activations, "reference.sums", DType::f64, {segments});
    memory_.emplace(arena_, runtime.communicator());
    model_.start(runtime.communicator(), runtime.stream());
  }
  LoadedWeights load() { return model_.load(runtime_.communicator(), runtime_.stream()); }

  /// An idle pass for a null plan.
  void score(const DataStream& data, const MicroBatchPlan* plan, std::vector<double>& values) {
    Context ctx{model_.params(), arena_, runtime_.stream()};
    ctx.role = ProductRole::prefill;
    if (plan == nullptr) {
      model_.model().forward(ctx, nullptr);
      model_.model().score(ctx, nullptr, {});
      return;
    }
    data.load(*plan, host_);
    const Batch batch = batch_.upload(host_, runtime_.stream());
    const Tensor logp = first_rows(logp_, batch.tokens);
    model_.model().forward(ctx, &batch);
    model_.model().score(ctx, &batch, {logp, {}, {}, {}});
    std::vector<double> sums;
    document_sums(sums, batch, logp, sums_, runtime_.stream());
    for (size_t d = 0; d < sums.size(); ++d) values[static_cast<size_t>(host_.documents.ids[d])] = sums[d];
  }

 private:
  Runtime& runtime_;
  RoleModel model_;
  Arena arena_;
  std::optional<PlannedMemory> memory_;
  BatchBuffers batch_;
  Tensor logp_, sums_;
  HostBatch host_;
};

/// Gives every rank the values in [begin, end) that any rank has computed; the others' are missing.
void share(std::span<double> values, Communicator& communicator) {
  std::vector<uint64_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) bits[i] = std::isnan(values[i]) ? 0 : std::bit_cast<uint64_t>(values[i]);
  communicator.sum(std::span(bits));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = bits[i] == 0 ? missing : std::bit_cast<double>(bits[i]);
  }
}

}  // namespace

std::vector<std::vector<double>> find_or_compute_references(ReferenceRequest request, Runtime& runtime) {
  Communicator& communicator = runtime.communicator();
  const bool root = communicator.rank() == 0;
  std::vector<std::vector<double>> all;
  int64_t left = 0;
  for (const ReferencePart& part : request.parts) {
    const int64_t documents = part.data->samples() * part.documents_of_sample;
    std::vector<double>& values = all.emplace_back(static_cast<size_t>(documents), 0);
    if (root) values = read_values(part.file, documents);
    communicator.broadcast(values.data(), static_cast<int64_t>(values.size() * sizeof(double)));
    left += std::ranges::count_if(values, [](double value) { return std::isnan(value); });
  }
  if (left == 0) {
    if (root) request.print(fmt::format("reference  log-probabilities from {}", request.parts.front().file));
    return all;
  }
  ReferenceScorer scorer(std::move(request.model), request.parts, runtime);
  const LoadedWeights loaded = scorer.load();
  if (root) request.print(fmt::format("reference  {}: {} documents are scored", loaded.text, left));
  const double begin = now();
  double written = begin;
  Progress progress("scoring with the reference", left);
  for (size_t p = 0; p < request.parts.size(); ++p) {
    const ReferencePart& part = request.parts[p];
    std::vector<double>& values = all[p];
    const int64_t round = part.samples_of_batch * communicator.size(), samples = part.data->samples();
    const auto known = [&](int64_t first, int64_t last) {
      const auto at = [&](int64_t sample) { return values.begin() + sample * part.documents_of_sample; };
      return std::none_of(at(first), at(last), [](double value) { return std::isnan(value); });
    };
    const auto save = [&] {
      throw_on_all_ranks(communicator, [&] {
        if (root) write_values(part.file, values);
      });
    };
    for (int64_t first = 0; first < samples; first += round) {
      const int64_t end = std::min(first + round, samples);
      if (known(first, end)) continue;
      report_progress();
      const int64_t mine = std::min(first + communicator.rank() * part.samples_of_batch, end);
      const MicroBatchPlan plan = part.data->canonical(mine, std::min(mine + part.samples_of_batch, end));
      const std::span<double> shared(values.data() + first * part.documents_of_sample,
                                     static_cast<size_t>((end - first) * part.documents_of_sample));
      std::ranges::fill(shared, missing);
      scorer.score(*part.data, plan.samples.empty() ? nullptr : &plan, values);
      share(shared, communicator);
      progress.add(std::ssize(shared));
      int64_t due[] = {root && now() - written > seconds_between_writes ? 1 : 0};
      communicator.maximum(due);
      try {
        throw_if_stopping(communicator, "while it was scoring documents with the reference");
      } catch (const UserError&) {
        save();
        throw;
      }
      if (due[0] == 0) continue;
      save();
      written = now();
      if (root) request.print(fmt::format("reference  {} of {} samples", end, samples));
    }
    save();
  }
  if (root) request.print(fmt::format("reference  scored in {:.3g} s", now() - begin));
  return all;
}

}  // namespace llmtrain
