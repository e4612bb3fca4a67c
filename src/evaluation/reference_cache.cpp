#include "evaluation/reference_cache.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/progress.hpp"
#include "metrics/metrics_hdf5.hpp"
#include "objectives/document_objective.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "params/planned_memory.hpp"

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
  std::vector<double> none(static_cast<size_t>(count), missing);
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
  if (whole) none.swap(file.column());
  return none;
}

constexpr double seconds_between_writes = 30;

/// Lines of progress.
struct Words {
  const char *topic, *values, *items, *stopped;
};

const Words& words_of(ReferenceKind kind) {
  static constexpr Words of_documents = {"reference ", "log-probabilities", "documents",
                                         "while it was scoring documents with the reference"};
  static constexpr Words of_losses = {"curriculum", "losses", "samples",
                                      "while it was scoring samples for the curriculum"};
  return kind == ReferenceKind::document_sums ? of_documents : of_losses;
}

/// A frozen model and memory for its passes.
class FrozenScorer {
 public:
  FrozenScorer(RoleSpec spec, const std::vector<ReferencePart>& parts, ReferenceKind kind, Runtime& runtime,
               const Mesh& mesh)
      : runtime_(runtime), kind_(kind), model_(std::move(spec)) {
    int64_t segments = 0, rows = 0;
    for (const ReferencePart& part : parts) {
      segments = std::max(segments, part.data->max_segments());
      rows = std::max(rows, part.data->max_rows());
    }
    model_.plan(arena_);
    batch_.plan(arena_, rows, segments);
    arena_.add(logp_, MemoryCategory::activations, "statistics.logp", DType::f32, {rows});
    arena_.add(device_sums_, MemoryCategory::activations, "reference.sums", DType::f64, {segments});
    memory_.emplace(arena_, mesh.parameters());
    model_.start(mesh, runtime.stream());
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
    if (kind_ == ReferenceKind::sample_losses) return take_losses(data, batch, logp, values);
    document_sums(sums_, batch, logp, device_sums_, runtime_.stream());
    for (size_t d = 0; d < sums_.size(); ++d) values[static_cast<size_t>(host_.documents.ids[d])] = sums_[d];
  }

 private:
  /// A segment belongs to one sample.
  void take_losses(const DataStream& data, const Batch& batch, const Tensor& logp, std::vector<double>& values) {
    struct Targets {
      double sum = 0;
      int64_t count = 0;
    };
    segment_sums(sums_, batch.segment_count, batch, logp, device_sums_, runtime_.stream());
    std::map<int64_t, Targets> samples;
    for (size_t s = 0; s < sums_.size(); ++s) {
      const auto begin = static_cast<size_t>(host_.segments[s]), end = static_cast<size_t>(host_.segments[s + 1]);
      Targets& sample = samples[host_.sequence_ids[begin]];
      sample.sum += sums_[s];
      for (size_t row = begin; row < end; ++row) sample.count += host_.targets[row] == ignore_target ? 0 : 1;
    }
    samples.erase(data.samples());  // padding
    for (const auto& [sample, targets] : samples) {
      const double none = std::numeric_limits<double>::infinity();
      values[static_cast<size_t>(sample)] =
          targets.count == 0 ? none : -targets.sum / static_cast<double>(targets.count);
    }
  }

  Runtime& runtime_;
  ReferenceKind kind_;
  RoleModel model_;
  Arena arena_;
  std::optional<PlannedMemory> memory_;
  BatchBuffers batch_;
  Tensor logp_, device_sums_;
  HostBatch host_;
  std::vector<double> sums_;
};

/// Scores what has no value yet.
class References {
 public:
  References(ReferenceRequest request, Runtime& runtime, const Mesh& mesh)
      : request_(std::move(request)), words_(words_of(request_.kind)), runtime_(runtime), mesh_(mesh) {}

  std::vector<std::vector<double>> find_or_compute() {
    std::vector<std::vector<double>> all;
    int64_t left = 0;
    for (const ReferencePart& part : request_.parts) {
      const int64_t count = part.data->samples() * part.values_of_sample;
      const std::vector<double>& values = all.emplace_back(find_cached_values(part.file, count, communicator()));
      left += std::ranges::count_if(values, is_missing);
    }
    if (left == 0) {
      print(fmt::format("{} from {}", words_.values, request_.parts.front().file));
      return all;
    }
    FrozenScorer scorer(std::move(request_.model), request_.parts, request_.kind, runtime_, mesh_);
    const LoadedWeights loaded = scorer.load();
    print(fmt::format("{}: {} {} are scored", loaded.text, left, words_.items));
    const double begin = written_ = now();
    Progress progress(fmt::format("scoring {}", words_.items), left);
    for (size_t p = 0; p < request_.parts.size(); ++p) compute(request_.parts[p], scorer, all[p], progress);
    print(fmt::format("scored in {:.3g} s", now() - begin));
    return all;
  }

 private:
  Communicator& communicator() { return runtime_.communicator(); }
  bool root() { return communicator().rank() == 0; }
  void print(const std::string& text) {
    if (root()) request_.print(fmt::format("{} {}", words_.topic, text));
  }

  /// Batches begin at multiples of their size, for any number of ranks. Ranks that share matrices score the same ones.
  void compute(const ReferencePart& part, FrozenScorer& scorer, std::vector<double>& values, Progress& progress) {
    Communicator& ranks = mesh_.passes();
    const int64_t round = part.samples_of_batch * ranks.size(), samples = part.data->samples();
    for (int64_t first = 0; first < samples; first += round) {
      const int64_t end = std::min(first + round, samples);
      const std::span<double> shared(values.data() + first * part.values_of_sample,
                                     static_cast<size_t>((end - first) * part.values_of_sample));
      if (std::ranges::none_of(shared, is_missing)) continue;
      report_progress();
      const int64_t mine = std::min(first + ranks.rank() * part.samples_of_batch, end);
      const MicroBatchPlan plan = part.data->canonical(mine, std::min(mine + part.samples_of_batch, end));
      set_missing(shared);
      scorer.score(*part.data, plan.samples.empty() ? nullptr : &plan, values);
      share_values(shared, ranks);
      progress.add(std::ssize(shared));
      save_if_due(part, values, end);
    }
    save(part, values);
  }

  void save_if_due(const ReferencePart& part, const std::vector<double>& values, int64_t done) {
    int64_t due[] = {root() && now() - written_ > seconds_between_writes ? 1 : 0};
    communicator().maximum(due);
    try {
      throw_if_stopping(communicator(), words_.stopped);
    } catch (const UserError&) {
      save(part, values);
      throw;
    }
    if (due[0] == 0) return;
    save(part, values);
    written_ = now();
    print(fmt::format("{} of {} samples", done, part.data->samples()));
  }

  void save(const ReferencePart& part, const std::vector<double>& values) {
    throw_on_all_ranks(communicator(), [&] {
      if (root()) write_cached_values(part.file, values);
    });
  }

  ReferenceRequest request_;
  const Words& words_;
  Runtime& runtime_;
  const Mesh& mesh_;
  double written_ = 0;
};

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

std::vector<std::vector<double>> find_or_compute_references(ReferenceRequest request, Runtime& runtime,
                                                            const Mesh& mesh) {
  return References(std::move(request), runtime, mesh).find_or_compute();
}

}  // namespace llmtrain
