#include "evaluation/teacher_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/number_text.hpp"
#include "core/progress.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "params/planned_memory.hpp"

namespace llmtrain {

namespace {

constexpr double seconds_between_lines = 30;

std::string text_of_bytes(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

/// A teacher and memory for its passes.
class Scorer {
 public:
  Scorer(RoleSpec spec, const TeacherOptions& options, const DataStream& data, Runtime& runtime, const Mesh& mesh)
      : runtime_(runtime), model_(std::move(spec)), teacher_(options, &model_) {
    const int64_t rows = data.max_rows();
    model_.plan(arena_);
    block_ = model_.actor().head().blocks.front().block_rows(rows);
    teacher_.plan(arena_, block_);
    batch_.plan(arena_, rows, data.max_segments());
    memory_.emplace(arena_, mesh.parameters());
    model_.start(mesh, runtime.stream());
    teacher_.begin_step(true);
  }
  LoadedWeights load() { return model_.load(runtime_.communicator(), runtime_.stream()); }

  /// An idle pass for a null plan.
  void score(const DataStream& data, const MicroBatchPlan* plan, const TeacherFile& file) {
    const Context ctx{model_.params(), arena_, runtime_.stream()};
    if (plan == nullptr) {
      teacher_.begin_idle(ctx);
      return teacher_.with_head([] {});
    }
    data.load(*plan, host_);
    const Batch batch = batch_.upload(host_, runtime_.stream());
    file.find_tokens(host_, tokens_);
    teacher_.begin(ctx, &batch, host_, 0);
    teacher_.with_head([&] {
      Head::each_run(std::ssize(tokens_), block_, [&](int64_t first, int64_t rows) { keep(first, rows, file); });
    });
  }

 private:
  void keep(int64_t first, int64_t rows, const TeacherFile& file) {
    const std::span<const int64_t> tokens =
        std::span(tokens_).subspan(static_cast<size_t>(first), static_cast<size_t>(rows));
    if (std::ranges::all_of(tokens, [](int64_t token) { return token < 0; })) return;
    const TeacherRows found = teacher_.rows_of(first, rows, runtime_.stream());
    values_.resize(file.shape(), rows);
    const auto fetch = [&](auto& to, const Tensor& from) {
      if (to.empty()) return;
      copy_to_host(to.data(), from.data, static_cast<int64_t>(to.size() * sizeof to[0]), runtime_.stream());
    };
    if (found.tokens.empty() && found.logp.dim(1) != file.shape().vocabulary) {
      for (int64_t row = 0; row < rows; ++row) {
        copy_to_host(values_.logp.data() + row * file.shape().vocabulary, found.logp.rows(row, 1).data,
                     4 * file.shape().vocabulary, runtime_.stream());
      }
    } else {
      fetch(values_.tokens, found.tokens);
      fetch(values_.logp, found.logp);
      fetch(values_.rest, found.rest);
    }
    runtime_.stream().synchronize();
    for (int64_t row = 0; row < rows; ++row) {
      if (const int64_t token = tokens[static_cast<size_t>(row)]; token >= 0) file.write(token, values_, row);
    }
  }

  Runtime& runtime_;
  RoleModel model_;
  Teacher teacher_;
  Arena arena_;
  std::optional<PlannedMemory> memory_;
  BatchBuffers batch_;
  HostBatch host_;
  int64_t block_ = 0;
  std::vector<int64_t> tokens_;
  TeacherValues values_;
};

class TeacherCache {
 public:
  TeacherCache(TeacherRequest request, Runtime& runtime, const Mesh& mesh)
      : request_(std::move(request)), runtime_(runtime), mesh_(mesh) {}

  TeacherFile find_or_compute() {
    if (!exists()) create();
    std::optional<TeacherFile> file;
    throw_on_all_ranks(communicator(), [&] { file.emplace(request_.file, false); });
    const std::vector<uint8_t> complete = complete_samples(*file);
    const auto left = std::ranges::count(complete, 0);
    print(fmt::format("log-probabilities of {} tokens: {} in {}", count_text(file->shape().tokens),
                      text_of_bytes(file->shape().bytes()), request_.file));
    if (left == 0) return std::move(*file);
    throw_on_all_ranks(communicator(), [&] { file.emplace(request_.file, true); });
    compute(*file, complete, left);
    throw_on_all_ranks(communicator(), [&] { file.emplace(request_.file, false); });
    if (std::ranges::count(complete_samples(*file), 0) > 0) {  // where two jobs replaced a damaged file
      throw UserError(ExitCode::io,
                      fmt::format("{}: another job has begun this file meanwhile: when it has ended, give "
                                  "the same command again",
                                  request_.file));
    }
    return std::move(*file);
  }

 private:
  /// Flags as rank 0 reads them: another job may score the same samples at the same time.
  std::vector<uint8_t> complete_samples(const TeacherFile& file) {
    std::vector<uint8_t> complete = file.complete_samples();
    communicator().broadcast(complete.data(), std::ssize(complete));
    return complete;
  }
  Communicator& communicator() { return runtime_.communicator(); }
  bool root() { return communicator().rank() == 0; }
  void print(const std::string& text) {
    if (root()) request_.print("teacher    " + text);
  }

  /// True if there is a file of this data; a damaged one is deleted.
  bool exists() {
    int64_t found[] = {0};
    if (root() && std::filesystem::exists(request_.file)) {
      try {
        const TeacherFile file(request_.file, false);
        const auto& shape = file.shape();
        if (shape == request_.options.file_shape(request_.data.samples(), shape.tokens)) found[0] = 1;
      } catch (const UserError&) {
        found[0] = 0;
      }
      if (found[0] == 0) std::filesystem::remove(request_.file);
    }
    communicator().maximum(found);
    return found[0] == 1;
  }

  void create() {
    const int64_t samples = request_.data.samples();
    std::vector<uint64_t> counts(static_cast<size_t>(samples), 0);
    const int64_t round = request_.samples_of_batch * communicator().size();
    HostBatch batch;
    throw_on_all_ranks(communicator(), [&] {
      for (int64_t first = communicator().rank() * request_.samples_of_batch; first < samples; first += round) {
        report_progress();
        request_.data.load(request_.data.canonical(first, std::min(first + request_.samples_of_batch, samples)), batch);
        for (size_t row = 0; row < batch.ids.size(); ++row) {
          if (is_trained_row(batch, row)) ++counts[static_cast<size_t>(batch.sequence_ids[row])];
        }
      }
    });
    communicator().sum(std::span(counts));
    std::vector<int64_t> first_tokens{0};
    for (const uint64_t count : counts) first_tokens.push_back(first_tokens.back() + static_cast<int64_t>(count));
    throw_on_all_ranks(communicator(), [&] {
      if (!root()) return;
      const TeacherFileShape shape = request_.options.file_shape(samples, first_tokens.back());
      require_room(shape);
      TeacherFile::create(request_.file, shape, first_tokens);
    });
  }

  void require_room(const TeacherFileShape& shape) const {
    const std::string folder = request_.file.substr(0, request_.file.rfind('/'));
    std::error_code unknown;
    const std::filesystem::space_info space = std::filesystem::space(folder, unknown);
    const int64_t bytes = shape.bytes(), free = unknown ? bytes : static_cast<int64_t>(space.available);
    const bool many = shape.top_k == 0 && bytes > max_dense_cache_bytes;
    if (bytes <= free && !many) return;
    TeacherFileShape best = shape;
    best.top_k = 64;
    const std::string limit = many ? "at most " + text_of_bytes(max_dense_cache_bytes) + " are kept of all tokens"
                                   : fmt::format("{} has {}", folder, text_of_bytes(free));
    const std::string remedy = shape.top_k == 0 && shape.vocabulary > 64
                                   ? fmt::format("; distill.top_k = 64 would take {}", text_of_bytes(best.bytes()))
                                   : "";
    throw UserError(ExitCode::deck, fmt::format("{}: the teacher's log-probabilities of {} tokens of the vocabulary "
                                                "for {} tokens of text are {} bytes ({}), and "
                                                "{}: set false{}",
                                                request_.key, shape.top_k == 0 ? shape.vocabulary : shape.top_k,
                                                shape.tokens, bytes, text_of_bytes(bytes), limit, remedy));
  }

  /// Batches begin at multiples of their size, for any number of ranks. Ranks that share matrices score the same ones.
  /// Other jobs may score samples of the same file: they write the same values.
  void compute(const TeacherFile& file, const std::vector<uint8_t>& complete, int64_t left) {
    Scorer scorer(std::move(request_.model), request_.options, request_.data, runtime_, mesh_);
    const LoadedWeights loaded = scorer.load();
    print(fmt::format("{}: {} samples are scored", loaded.text, count_text(left)));
    Communicator& ranks = mesh_.passes();
    const int64_t each = request_.samples_of_batch, round = each * ranks.size(), samples = request_.data.samples();
    const double begin = now();
    double printed = begin;
    std::vector<std::pair<int64_t, int64_t>> written;  // samples that are not marked yet
    const auto mark = [&] {
      file.sync();
      for (const auto& [from, to] : written) file.mark_complete(from, to);
      written.clear();
    };
    Progress progress("scoring samples by the teacher", left);
    for (int64_t first = 0; first < samples; first += round) {
      const int64_t end = std::min(first + round, samples);
      const std::span<const uint8_t> flags(complete.data() + first, static_cast<size_t>(end - first));
      const auto missing = std::ranges::count(flags, 0);
      if (missing == 0) continue;
      report_progress();
      const int64_t mine = std::min(first + ranks.rank() * each, end), last = std::min(mine + each, end);
      const MicroBatchPlan plan = request_.data.canonical(mine, last);
      scorer.score(request_.data, plan.samples.empty() ? nullptr : &plan, file);
      if (mesh_.tensor_rank() == 0 && last > mine) written.emplace_back(mine, last);
      progress.add(missing);
      try {
        throw_if_stopping(communicator(), "while the teacher was scoring samples");
      } catch (const UserError&) {
        mark();
        throw;
      }
      if (now() - printed > seconds_between_lines) {
        printed = now();
        mark();
        print(fmt::format("{} of {} samples", count_text(end), count_text(samples)));
      }
    }
    throw_on_all_ranks(communicator(), [&] { mark(); });
    communicator().barrier();
    print(fmt::format("scored in {:.3g} s", now() - begin));
  }

  TeacherRequest request_;
  Runtime& runtime_;
  const Mesh& mesh_;
};

}  // namespace

TeacherFile find_or_compute_teacher(TeacherRequest request, Runtime& runtime, const Mesh& mesh) {
  return TeacherCache(std::move(request), runtime, mesh).find_or_compute();
}

}  // namespace llmtrain
