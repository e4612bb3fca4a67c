#include "hf/weights/load_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "core/critic_names.hpp"
#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "core/files/content_hash.hpp"
#include "core/files/json_reader.hpp"
#include "core/parallel_for.hpp"
#include "core/progress.hpp"
#include "hf/adapters/saved_tables.hpp"
#include "hf/convert.hpp"
#include "hf/quantized/read_quantized.hpp"
#include "hf/weights/fused_experts.hpp"
#include "hf/weights/slice_writer.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "parallel/job/launcher.hpp"
#include "parallel/job/runtime.hpp"
#include "params/slice_quantizer.hpp"
#include "params/tensor_blocks.hpp"

namespace llmtrain {
namespace {

constexpr int64_t block_elements = int64_t{2} << 20;    ///< elements per read of one thread: 8 MiB of fp32
constexpr int64_t rounded_elements = int64_t{1} << 17;  ///< the same, for weights that are quantised
constexpr int64_t rounded_piece = int64_t{1} << 15;     ///< the same, of each piece that is rounded where it is read
constexpr size_t blocks_before_pause = 8;               ///< per thread

/// Elements [begin, end) of a slice and their destination on this rank.
struct Block {
  StoredSlice slice;
  int64_t begin;
  int64_t end;
  int unit;
  size_t segment;
  int64_t first;                     ///< element of the unit
  std::optional<uint64_t> key = {};  ///< of the hash, if the slice is hashed
};

/// Visits all values, as vectors.
bool all_finite(const float* values, int64_t count) {
  constexpr uint32_t exponent = 0x7F800000u;  // all ones: infinity or NaN
  uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) found |= (std::bit_cast<uint32_t>(values[i]) & exponent) == exponent ? 1 : 0;
  return found == 0;
}

/// Runs work(0) .. work(count - 1) on threads, with pauses in between.
template <class Work>
void run_on_threads(size_t count, int threads, const Pause& pause, const Work& work) {
  const size_t batch = blocks_before_pause * static_cast<size_t>(threads);
  for (size_t first = 0; first < count; first += batch) {
    parallel_for(std::min(batch, count - first), threads, [&](size_t i) { work(first + i); });
    pause();
  }
}

class Loader {
 public:
  Loader(const WeightIndex& index, const WeightMatch& match, ParamStore& params, Communicator& communicator,
         const LoadOptions& options)
      : index_(index),
        match_(match),
        params_(params),
        communicator_(communicator),
        options_(options),
        files_(index.files.size()) {}

  /// Reads this rank's share.
  void read(Stream& stream, const Pause& pause) {
    const FolderHandle folder = FolderHandle::open(index_.folder);
    const std::vector<Block> blocks = make_blocks(folder);
    const int threads = worker_threads(communicator_);
    std::atomic<int64_t> bytes{0};
    Progress progress("loading weights", std::ssize(blocks));
    if (writes_directly()) {
      run_on_threads(blocks.size(), threads, pause, [&](size_t i) {
        bytes += read_block(blocks[i]);
        progress.add();
      });
    } else {
      read_through_host(blocks, threads, bytes, progress, stream, pause);
    }
    bytes_ = bytes;
    fill_new_rows(folder, threads, stream, pause);
    if (match_.tied_head >= 0) compare_tied_head(folder, threads, pause);
  }

  /// Reads this rank's share of a slice that is stored in fewer bits. No more values than those of a few blocks exist
  /// at a time.
  void quantize(const SliceSource& source, SliceQuantizer& quantizer, Stream& stream, const Pause& pause) {
    const ParamSpec& param = param_at(source);
    const ParamSlice& slice = slice_at(source);
    const WeightIndex::Tensor& tensor = index_.tensors[source.tensor];
    const FolderHandle folder = FolderHandle::open(index_.folder);
    const StoredSlice stored = slice_of(folder, tensor, slice.rows, param.columns, slice);
    const QuantizedReader codes(stored, *params_.units()[source.unit].spec.quantization);
    const bool as_it_is = has_codes(source);
    const Block block{stored, 0, 0, source.unit, 0, 0, key_of(source.unit, slice)};
    const std::vector<ElementRange> ranges = quantizer.ranges(rounded_elements);
    nested_.reset();
    std::atomic<int64_t> bytes{0};
    run_on_threads(ranges.size(), device_memory_is_host() ? worker_threads(communicator_) : 1, pause, [&](size_t i) {
      const ElementRange& range = ranges[i];
      std::vector<float> values(static_cast<size_t>(range.end - range.begin));
      bytes += read_slice(stored, range.begin, range.end, values.data());
      for (const ElementRange& own : quantizer.owned(range)) {
        examine(block, own.begin, values.data() + (own.begin - range.begin), own.end - own.begin);
      }
      if (!as_it_is) return quantizer.put(range, values.data(), stream);
      const int64_t first = range.begin / codes.block_size(), last = (range.end - 1) / codes.block_size() + 1;
      std::vector<uint8_t> bytes_of_codes(values.size());
      std::vector<float> scales(static_cast<size_t>(last - first));
      codes.read_blocks(first, last, bytes_of_codes.data(), scales.data());
      quantizer.put_codes(range, bytes_of_codes.data(), scales.data(), stream);
    });
    if (as_it_is && codes.quantization().double_quantization && codes.quantization().type != QuantizedType::int8) {
      nested_ = codes.read_nested();
    }
    bytes_ += bytes;
  }
  /// True if a slice's file has the codes that its unit stores. Those of a block are other ones: their scales are of
  /// elements that follow each other in the unit.
  bool has_codes(const SliceSource& source) const {
    const WeightIndex::Tensor& tensor = index_.tensors[source.tensor];
    if (slice_at(source).block || minus_of(slice_at(source)) != nullptr) return false;
    return tensor.quantized && tensor.quantized->are(*params_.units()[source.unit].spec.quantization);
  }
  /// The doubly quantised scales of the last slice, if its file has them.
  const std::optional<NestedScales>& nested() const { return nested_; }
  int64_t bytes() const { return bytes_; }
  uint64_t hash() const { return hash_; }

 private:
  void examine(const Block& w, int64_t at, const float* values, int64_t count) {
    if (!all_finite(values, count)) {
      throw UserError(ExitCode::bad_content, fmt::format("{}: {} has a value that is not finite", w.slice.file->path(),
                                                         printable(w.slice.tensor->name)));
    }
    if (!w.key) return;
    each_external_run(w.slice.place(), w.slice.columns, at, at + count, [&](const ExternalRun& run) {
      hash_ += hash_elements(*w.key, run.first, values + (run.begin - at), run.end - run.begin);
    });
  }
  const ParamSpec& param_at(const SliceSource& source) const {
    return params_.units()[source.unit].spec.params[static_cast<size_t>(source.param)];
  }
  const ParamSlice& slice_at(const SliceSource& source) const {
    return param_at(source).slices[static_cast<size_t>(source.slice)];
  }
  /// The key of a frozen slice's hash, if that is wanted and this rank counts the slice.
  std::optional<uint64_t> key_of(int unit, const ParamSlice& slice) const {
    const bool frozen = options_.trained != nullptr && !options_.trained->contains(slice.name);
    return frozen && params_.units().counts(unit) ? std::optional(hash_key(slice.name)) : std::nullopt;
  }

  /// Reads a block to where it is stored. Frozen weights of 16 bits are rounded in between.
  int64_t read_block(const Block& w) {
    const ParamStore::Shard shard = params_.shard(w.unit, w.segment);
    const int64_t first = w.first - shard.begin;
    int64_t bytes = 0;
    if (!shard.master().empty()) {
      float* to = shard.master().as<float>() + first;
      bytes = read_slice(w.slice, w.begin, w.end, to);
      examine(w, w.begin, to, w.end - w.begin);
      return bytes;
    }
    if (w.slice.transposed) {
      const Tensor to = shard.weights.rows(first, w.end - w.begin);
      const auto examine_run = [&](int64_t at, const float* values, int64_t count) {
        examine(w, w.begin + at, values, count);
      };
      return read_transposed(w.slice, w.begin, w.end, to.dtype, to.data, examine_run);
    }
    const int64_t piece = std::min(w.end - w.begin, rounded_piece);
    std::vector<float> values(static_cast<size_t>(piece));
    for (int64_t at = w.begin; at < w.end; at += piece) {
      const int64_t end = std::min(at + piece, w.end);
      bytes += read_slice(w.slice, at, end, values.data());
      examine(w, at, values.data(), end - at);
      const Tensor to = shard.weights.rows(first + (at - w.begin), end - at);
      round_to(to.dtype, values.data(), end - at, to.data);
    }
    return bytes;
  }

  const FileHandle& file(const FolderHandle& folder, size_t number) {
    std::optional<FileHandle>& handle = files_[number];
    if (!handle) {
      handle = folder.open_to_read(index_.files[number].name);
      if (handle->size() != index_.files[number].bytes) {
        throw UserError(ExitCode::bad_content, handle->path() + ": the file has changed since its header was read");
      }
    }
    return *handle;
  }

  StoredSlice slice_of(const FolderHandle& folder, const WeightIndex::Tensor& tensor, int64_t rows, int64_t columns,
                       const ParamSlice& slice = {}) {
    const auto file_of = [&](size_t number) -> const FileHandle& { return file(folder, number); };
    StoredSlice stored = stored_slice(tensor, file_of, rows, columns, slice.transposed, slice.block);
    stored.minus = minus_of(slice);
    return stored;
  }

  /// The product that is taken from a slice; may be null.
  const SubtractedProduct* minus_of(const ParamSlice& slice) const {
    if (options_.minus == nullptr) return nullptr;
    const auto found = options_.minus->find(slice.name);
    return found == options_.minus->end() ? nullptr : &found->second;
  }

  std::vector<Block> make_blocks(const FolderHandle& folder) {
    std::vector<Block> blocks;
    for (const SliceSource& source : match_.slices) {
      const ParamSpec& param = param_at(source);
      const ParamSlice& slice = slice_at(source);
      if (params_.units()[source.unit].spec.quantization) continue;
      const int64_t offset = params_.units()[source.unit].layout.offset(source.param, source.slice);
      const int64_t rows = stored_rows(slice, source);
      for (size_t segment = 0; segment < params_.units()[source.unit].segments.size(); ++segment) {
        const UnitRange own = params_.units().owned(source.unit, segment);
        const int64_t begin = std::max(own.begin, offset);
        const int64_t end = std::min(own.end, offset + rows * param.columns);
        if (begin >= end) continue;
        const WeightIndex::Tensor& tensor = index_.tensors[source.tensor];
        const StoredSlice stored = slice_of(folder, tensor, rows, param.columns, slice);
        const std::optional<uint64_t> key = key_of(source.unit, slice);
        for (int64_t at = begin; at < end; at += block_elements) {
          const int64_t stop = std::min(at + block_elements, end);
          blocks.push_back({stored, at - offset, stop - offset, source.unit, segment, at, key});
        }
      }
    }
    return blocks;
  }

  void read_through_host(const std::vector<Block>& blocks, int threads, std::atomic<int64_t>& bytes, Progress& progress,
                         Stream& stream, const Pause& pause) {
    const size_t at_once = static_cast<size_t>(threads);
    std::vector<std::vector<float>> buffers(at_once);
    for (size_t first = 0; first < blocks.size(); first += at_once) {
      const size_t count = std::min(at_once, blocks.size() - first);
      parallel_for(count, threads, [&](size_t i) {
        const Block& w = blocks[first + i];
        buffers[i].resize(static_cast<size_t>(w.end - w.begin));
        bytes += read_slice(w.slice, w.begin, w.end, buffers[i].data());
        examine(w, w.begin, buffers[i].data(), w.end - w.begin);
      });
      for (size_t i = 0; i < count; ++i) {
        const Block& w = blocks[first + i];
        params_.write_state(w.unit, master_plane, w.first, w.end - w.begin, buffers[i].data(), stream);
        progress.add();
      }
      pause();
    }
  }

  /// Number of a slice's rows that the file has: fewer than the model's if it has more tokens
  /// (DecoderShape::stored_rows).
  int64_t stored_rows(const ParamSlice& slice, const SliceSource& source) const {
    const WeightIndex::Tensor& tensor = index_.tensors[source.tensor];
    if (slice.transposed) return slice.rows;
    const int64_t first = slice.block ? slice.block->first_row : 0;
    return std::clamp<int64_t>(tensor.shape.front() - first, 0, slice.rows);
  }

  /// The mean of a matrix's rows, the same whatever the number of ranks and threads.
  std::vector<float> mean_row(const StoredSlice& matrix, int threads, const Pause& pause) {
    const int64_t columns = matrix.columns, step = std::max<int64_t>(1, block_elements / 8 / columns);
    const auto blocks = static_cast<size_t>((matrix.rows + step - 1) / step);
    std::vector<std::vector<double>> sums(blocks);
    run_on_threads(blocks, threads, pause, [&](size_t i) {
      const int64_t begin = static_cast<int64_t>(i) * step, end = std::min(begin + step, matrix.rows);
      std::vector<float> values(static_cast<size_t>((end - begin) * columns));
      read_slice(matrix, begin * columns, end * columns, values.data());
      sums[i].assign(static_cast<size_t>(columns), 0);
      for (size_t e = 0; e < values.size(); ++e) sums[i][e % static_cast<size_t>(columns)] += values[e];
    });
    std::vector<float> mean;
    for (size_t c = 0; c < static_cast<size_t>(columns); ++c) {
      double sum = 0;
      for (const std::vector<double>& block : sums) sum += block[c];
      mean.push_back(static_cast<float>(sum / static_cast<double>(matrix.rows)));
    }
    return mean;
  }

  /// Fills this rank's share of the rows that the model has in addition to its files.
  void fill_new_rows(const FolderHandle& folder, int threads, Stream& stream, const Pause& pause) {
    for (const SliceSource& source : match_.slices) {
      const ParamSlice& slice = slice_at(source);
      const ParamSpec& param = param_at(source);
      const TensorBlock place = block_of(param, slice);
      const int64_t rows = stored_rows(slice, source), columns = param.columns;
      if (params_.units()[source.unit].spec.quantization) continue;  // no slice of a linear layer has new rows
      const int64_t offset = params_.units()[source.unit].layout.offset(source.param, source.slice);
      const WeightIndex::Tensor& tensor = index_.tensors[source.tensor];
      std::vector<float> mean;
      for (size_t segment = 0; segment < params_.units()[source.unit].segments.size(); ++segment) {
        const UnitRange own = params_.units().owned(source.unit, segment);
        const int64_t end = std::min(own.end, offset + slice.rows * columns);
        for (int64_t at = std::max(own.begin, offset + rows * columns); at < end;) {
          if (mean.empty()) {
            mean = mean_row(slice_of(folder, tensor, tensor.shape.front(), place.columns), threads, pause);
          }
          const int64_t first = (at - offset) % columns, count = std::min(columns - first, end - at);
          write_values(source.unit, segment, at, count, mean.data() + place.first_column + first, stream);
          at += count;
        }
      }
    }
  }

  void write_values(int unit, size_t segment, int64_t at, int64_t count, const float* values, Stream& stream) {
    const ParamStore::Shard shard = params_.shard(unit, segment);
    if (!writes_directly()) {
      params_.write_state(unit, master_plane, at, count, values, stream);
    } else if (!shard.master().empty()) {
      std::copy_n(values, count, shard.master().as<float>() + (at - shard.begin));
    } else {
      const Tensor to = shard.weights.rows(at - shard.begin, count);
      round_to(to.dtype, values, count, to.data);
    }
  }

  bool writes_directly() const { return device_memory_is_host() && !params_.offload().has(master_plane); }

  /// Every rank compares its share of the two matrices.
  void compare_tied_head(const FolderHandle& folder, int threads, const Pause& pause) {
    const WeightIndex::Tensor& head = index_.tensors[static_cast<size_t>(match_.tied_head)];
    const WeightIndex::Tensor& embedding = index_.tensors[static_cast<size_t>(match_.embedding)];
    const int64_t elements = head.numel(), ranks = communicator_.size(), rank = communicator_.rank();
    const int64_t first = elements / ranks * rank, last = rank + 1 == ranks ? elements : elements / ranks * (rank + 1);
    const StoredSlice a = slice_of(folder, head, head.shape.front(), elements / head.shape.front());
    const StoredSlice b = slice_of(folder, embedding, head.shape.front(), elements / head.shape.front());
    const int64_t step = block_elements / 8;
    const auto blocks = static_cast<size_t>((last - first + step - 1) / step);
    run_on_threads(blocks, threads, pause, [&](size_t i) {
      const int64_t begin = first + static_cast<int64_t>(i) * step, end = std::min(begin + step, last);
      std::vector<float> left(static_cast<size_t>(end - begin)), right(left.size());
      read_slice(a, begin, end, left.data());
      read_slice(b, begin, end, right.data());
      if (std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) != 0) {
        throw UserError(ExitCode::bad_content,
                        fmt::format("{}: {} differs from {}, although config.json ties them (tie_word_embeddings). "
                                    "If they are two matrices, set tie_word_embeddings to false there; if one "
                                    "of the two is obsolete, remove it",
                                    index_.folder, head.name, embedding.name));
      }
    });
  }

  const WeightIndex& index_;
  const WeightMatch& match_;
  ParamStore& params_;
  Communicator& communicator_;
  const LoadOptions& options_;
  std::vector<std::optional<FileHandle>> files_;
  int64_t bytes_ = 0;
  std::atomic<uint64_t> hash_{0};
  std::optional<NestedScales> nested_;
};

/// The store's units with the names of their parameters in files, without parameters of the other model.
std::vector<UnitSpec> units_in_files(const ParamStore& params, bool critic) {
  std::vector<UnitSpec> units = units_of(params);
  for (UnitSpec& unit : units) {
    if (unit.name.starts_with(critic_prefix) != critic) unit.params.clear();
    if (critic) remove_prefix(unit, critic_prefix.size());
  }
  return units;
}

}  // namespace

uint64_t hash_key(const std::string& name) { return digest_of(name.data(), name.size()).low; }

uint64_t hash_elements(uint64_t key, int64_t first, const float* values, int64_t count) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t h = key + static_cast<uint64_t>(first + i) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 32 ^ std::bit_cast<uint32_t>(values[i])) * 0xD6E8FEB86659FD93u;
    sum += (h ^ h >> 32) * 0xD6E8FEB86659FD93u;
  }
  return sum;
}

/// Sets the tables that lie in an adapter's folder, and adds them to the report.
static void load_saved_tables(const DecoderShape& shape, ParamStore& params, Communicator& communicator, Stream& stream,
                              const LoadOptions& options, LoadReport& report) {
  std::string packed;
  on_root(communicator, [&] { packed = read_saved_tables(shape.saved_tables.folder).packed(); });
  communicator.broadcast(packed);
  const WeightIndex index = WeightIndex::unpacked(packed);
  WeightMatch match;
  throw_on_all_ranks(communicator,
                     [&] { match = match_saved_tables(shape, units_in_files(params, options.critic), index); });
  const LoadReport tables = load_match(index, match, params, communicator, stream, options);
  report.bytes += tables.bytes;
  report.seconds += tables.seconds;
  if (!report.hash.empty()) {
    report.hash = fmt::format("{:016x}", std::stoull(report.hash, nullptr, 16) + std::stoull(tables.hash, nullptr, 16));
  }
  report.notes.push_back(fmt::format("{} from {}", joined(shape.saved_tables.names, ", "), shape.saved_tables.folder));
}

LoadReport load_weights(const std::string& folder, const DecoderShape& shape, ParamStore& params,
                        Communicator& communicator, Stream& stream, const LoadOptions& options) {
  // Rank 0 alone reads the headers, since a model can have a thousand files.
  std::string packed;
  on_root(communicator, [&] { packed = read_model_index(FolderHandle::open(folder), shape).packed(); });
  communicator.broadcast(packed);
  const WeightIndex index = WeightIndex::unpacked(packed);
  WeightMatch match;
  throw_on_all_ranks(communicator,
                     [&] { match = match_weights(shape, units_in_files(params, options.critic), index); });
  const bool tables = !shape.saved_tables.names.empty();
  LoadOptions first = options;
  first.publish = options.publish && !tables;
  LoadReport report = load_match(index, match, params, communicator, stream, first);
  if (tables) load_saved_tables(shape, params, communicator, stream, options, report);
  return report;
}

LoadReport load_match(const WeightIndex& index, WeightMatch& match, ParamStore& params, Communicator& communicator,
                      Stream& stream, const LoadOptions& options) {
  Loader loader(index, match, params, communicator, options);
  const auto begin = std::chrono::steady_clock::now();
  constexpr const char* where = "while the weights were read";
  run_cancellable(communicator, where, [&](const Pause& pause) { loader.read(stream, pause); });
  Progress progress("quantising weights", std::ssize(match.slices));
  for (const SliceSource& source : match.slices) {  // one after the other, since a scale may depend on all of a slice
    if (!params.units()[source.unit].spec.quantization) continue;
    SliceQuantizer quantizer(params.units()[source.unit], source.param, source.slice);
    run_cancellable(communicator, where,
                    [&](const Pause& pause) { loader.quantize(source, quantizer, stream, pause); });
    if (loader.nested()) {
      quantizer.finish(*loader.nested(), stream);
    } else {
      quantizer.finish(params.ranks(), stream);
    }
    progress.set(&source - match.slices.data() + 1);
  }
  int64_t nanoseconds[] = {(std::chrono::steady_clock::now() - begin) / std::chrono::nanoseconds(1)};
  communicator.maximum(nanoseconds);
  const int64_t bytes = sum_of_ranks(communicator, loader.bytes());
  if (options.publish) params.publish_masters();
  LoadReport report;
  report.bytes = bytes;
  report.seconds = static_cast<double>(nanoseconds[0]) * 1e-9;
  report.files = static_cast<int64_t>(index.files.size());
  for (const WeightIndex::File& file : index.files) report.file_bytes += file.bytes;
  if (options.trained != nullptr) {
    std::vector<uint64_t> hash{loader.hash()};
    communicator.sum(hash);
    report.hash = fmt::format("{:016x}", hash[0]);
  }
  report.notes = std::move(match.notes);
  report.warnings = std::move(match.warnings);
  return report;
}

void check_weights(const std::string& folder, const DecoderShape& shape, const std::vector<UnitSpec>& units) {
  match_weights(shape, units, read_model_index(FolderHandle::open(folder), shape));
  if (shape.saved_tables.names.empty()) return;
  match_saved_tables(shape, units, read_saved_tables(shape.saved_tables.folder));
}

std::string load_text(const LoadReport& r) {
  const double megabytes = static_cast<double>(r.bytes) * 1e-6;
  const std::string size =
      megabytes < 1000 ? fmt::format("{:.1f} MB", megabytes) : fmt::format("{:.2f} GB", megabytes / 1000);
  std::string text = fmt::format("{} from {} file{} in {:.2f} s, {:.2f} GB/s", size, r.files, r.files == 1 ? "" : "s",
                                 r.seconds, megabytes / 1000 / std::max(r.seconds, 1e-9));
  for (const std::string& note : r.notes) text += "; " + note;
  return text;
}

}  // namespace llmtrain
