#include "hf/adapters/adapter_start.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "core/progress.hpp"
#include "hf/weights/fused_experts.hpp"
#include "kernels/low_rank.hpp"
#include "kernels/quantize.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "parallel/job/launcher.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/message.hpp"
#include "params/unit_layout.hpp"

namespace llmtrain {
namespace {

using Values = std::vector<float>;
constexpr const char* where = "while adapters were started";

/// A matrix whose adapter has a start.
struct Started {
  std::string module;
  size_t tensor;  ///< of the model's index
  ParamSlice slice;
  int64_t columns;
  AdapterShape adapter;
  std::optional<Quantization> quantization;
};

struct Factors {
  Values a, b;  ///< [rank, columns], [rows, rank]
};

std::vector<StoredTensor> tensors_of(const std::vector<Started>& modules) {
  std::vector<StoredTensor> tensors;
  for (const Started& m : modules) {
    tensors.push_back({lora_a_name(m.module), StoredType::F32, {m.adapter.rank, m.columns}, 0, 0});
    tensors.push_back({lora_b_name(m.module), StoredType::F32, {m.slice.rows, m.adapter.rank}, 0, 0});
  }
  return tensors;
}

/// The values that a quantised matrix has.
Values rounded(const Quantization& q, const Values& values) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<uint8_t> codes(values.size() / 2 + 1);
  Values scales(static_cast<size_t>(blocks_of(count, q.block_size))), out(values.size());
  quantize_blocks(q.type, q.block_size, values.data(), count, codes.data(), scales.data());
  if (q.double_quantization) {
    const NestedScales nested = quantize_scales(scales);
    for (size_t i = 0; i < scales.size(); ++i) {
      scales[i] = nested_scale(nested.codes.data(), nested.absmax.data(), nested.offset, static_cast<int64_t>(i));
    }
  }
  dequantize_blocks(q.type, q.block_size, codes.data(), scales.data(), count, out.data());
  return out;
}

class Starter {
 public:
  Starter(WeightIndex index, const DecoderShape& shape, int threads)
      : index_(std::move(index)), threads_(threads), units_(Decoder(shape).units()) {
    const WeightMatch match = match_weights(shape, units_, index_);
    for (const SliceSource& source : match.slices) add(shape, source);
    const FolderHandle folder = FolderHandle::open(index_.folder);
    for (const WeightIndex::File& file : index_.files) files_.push_back(folder.open_to_read(file.name));
  }

  const std::vector<Started>& modules() const { return modules_; }

  Factors compute(const Started& m) const {
    Values matrix = read(m);
    const int64_t rank = m.adapter.rank;
    if (rank > std::min(m.slice.rows, m.columns)) {
      throw UserError(ExitCode::deck, fmt::format("lora.r: {} is a matrix of {} x {}, which has no {} singular values: "
                                                  "choose a smaller rank, or another lora.init",
                                                  m.module, m.slice.rows, m.columns, rank));
    }
    if (m.adapter.init == AdapterShape::Init::olora) {
      return factors(m, first_of_qr(matrix.data(), m.slice.rows, m.columns, rank, threads_), 1);
    }
    double scale = m.adapter.scale;
    if (m.adapter.init == AdapterShape::Init::loftq) {
      const Values stored = rounded(*m.quantization, matrix);
      for (size_t i = 0; i < matrix.size(); ++i) matrix[i] -= stored[i];
      scale = 1;
    }
    return factors(m, largest_singular_values(matrix.data(), m.slice.rows, m.columns, rank, threads_), scale);
  }

 private:
  void add(const DecoderShape& shape, const SliceSource& source) {
    const UnitSpec& unit = units_[static_cast<size_t>(source.unit)];
    const ParamSlice& slice = unit.params[static_cast<size_t>(source.param)].slices[static_cast<size_t>(source.slice)];
    constexpr std::string_view end = ".weight";
    if (!slice.name.ends_with(end)) return;
    std::string module = slice.name.substr(0, slice.name.size() - end.size());
    const std::optional<AdapterShape> adapter = shape.adapters(module);
    if (!adapter || (adapter->init == AdapterShape::Init::loftq && !unit.quantization)) return;
    modules_.push_back({std::move(module), source.tensor, slice, source.columns, *adapter, unit.quantization});
  }

  Values read(const Started& m) const {
    const auto file_of = [&](size_t number) -> const FileHandle& { return files_[number]; };
    const WeightIndex::Tensor& tensor = index_.tensors[m.tensor];
    const StoredSlice slice = stored_slice(tensor, file_of, m.slice.rows, m.columns, m.slice.transposed, m.slice.block);
    Values values(static_cast<size_t>(m.slice.rows * m.columns));
    read_slice(slice, 0, std::ssize(values), values.data());
    if (std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) return values;
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: {} has a value that is not finite", slice.file->path(), printable(tensor.name)));
  }

  /// Divides the values by `scale`, and shares them between A and B.
  static Factors factors(const Started& m, const LowRankPart& found, double scale) {
    const auto rank = static_cast<size_t>(m.adapter.rank), rows = static_cast<size_t>(m.slice.rows);
    const auto columns = static_cast<size_t>(m.columns);
    Factors out{Values(rank * columns), Values(rows * rank)};
    for (size_t k = 0; k < rank; ++k) {
      const double root = std::sqrt(found.values[k] / scale);
      for (size_t i = 0; i < columns; ++i) {
        out.a[k * columns + i] = static_cast<float>(root * found.right[k * columns + i]);
      }
      for (size_t i = 0; i < rows; ++i) out.b[i * rank + k] = static_cast<float>(root * found.left[k * rows + i]);
    }
    return out;
  }

  WeightIndex index_;
  int threads_;
  std::vector<UnitSpec> units_;
  std::vector<Started> modules_;
  std::vector<FileHandle> files_;
};

}  // namespace

void write_adapter_start(const std::string& file, const std::string& folder, const DecoderShape& shape,
                         Communicator& communicator) {
  std::string packed;
  on_root(communicator, [&] { packed = read_model_index(FolderHandle::open(folder), shape).packed(); });
  communicator.broadcast(packed);
  std::optional<Starter> starter;
  throw_on_all_ranks(communicator, [&] {
    starter.emplace(WeightIndex::unpacked(packed), shape.whole(), worker_threads(communicator));
  });
  const std::vector<Started>& modules = starter->modules();
  const std::string part = file + ".part";
  std::optional<SafetensorsWriter> writer;
  on_root(communicator, [&] {
    std::filesystem::remove(part);
    writer.emplace(part, tensors_of(modules), std::map<std::string, std::string>{{"format", "pt"}});
  });
  const auto ranks = static_cast<size_t>(communicator.size()), rank = static_cast<size_t>(communicator.rank());
  Progress progress("starting adapters", std::ssize(modules));
  for (size_t first = 0; first < modules.size(); first += ranks) {
    Factors own;
    run_cancellable(communicator, where, [&](const Pause& /*pause*/) {
      if (first + rank < modules.size()) own = starter->compute(modules[first + rank]);
    });
    for (size_t i = first; i < std::min(first + ranks, modules.size()); ++i) {
      const Started& m = modules[i];
      Factors found = i - first == rank ? std::exchange(own, {}) : Factors{};
      found.a.resize(static_cast<size_t>(m.adapter.rank * m.columns));
      found.b.resize(static_cast<size_t>(m.slice.rows * m.adapter.rank));
      for (Values* values : {&found.a, &found.b}) {
        communicator.broadcast(values->data(), 4 * std::ssize(*values), static_cast<int>(i - first));
      }
      on_root(communicator, [&] {
        writer->write(lora_a_name(m.module), 0, found.a.data(), std::ssize(found.a));
        writer->write(lora_b_name(m.module), 0, found.b.data(), std::ssize(found.b));
      });
      progress.add();
    }
  }
  on_root(communicator, [&] {
    writer->finish();
    std::filesystem::rename(part, file);
  });
}

AdapterStart AdapterStart::open(const std::string& file, const DecoderShape& shape, Communicator& communicator) {
  const std::filesystem::path path = file;
  AdapterStart start;
  std::string packed;
  on_root(communicator, [&] {
    const FolderHandle folder = FolderHandle::open(path.parent_path().string());
    if (!folder.has(path.filename().string())) {
      throw UserError(
          ExitCode::missing_input,
          fmt::format("{}: the file is gone, which has what lora.init took from the frozen matrices", file));
    }
    packed = read_weight_file(folder, path.filename().string()).packed();
  });
  communicator.broadcast(packed);
  start.index = WeightIndex::unpacked(packed);
  throw_on_all_ranks(communicator, [&] {
    start.file = std::make_shared<const FileHandle>(
        FolderHandle::open(path.parent_path().string()).open_to_read(path.filename().string()));
    for (const WeightIndex::Tensor& a : start.index.tensors) {
      constexpr std::string_view prefix = "base_model.model.", end = ".lora_A.weight";
      if (!a.name.starts_with(prefix) || !a.name.ends_with(end)) continue;
      const std::string module = a.name.substr(prefix.size(), a.name.size() - prefix.size() - end.size());
      const std::optional<AdapterShape> adapter = shape.adapters(module);
      const WeightIndex::Tensor* const b = start.index.find(lora_b_name(module));
      const bool fits = adapter && b != nullptr && a.type == StoredType::F32 && b->type == StoredType::F32 &&
                        a.shape.size() == 2 && b->shape.size() == 2 && a.shape[0] == adapter->rank &&
                        b->shape[1] == adapter->rank;
      if (!fits) {
        throw UserError(ExitCode::bad_content,
                        fmt::format("{}: {} does not fit the adapters of the run", file, printable(a.name)));
      }
      if (!AdapterShape::moves_base(adapter->init)) continue;
      start.minus[module + ".weight"] = {a, *b, start.file.get(), adapter->scale};
    }
  });
  return start;
}

WeightMatch AdapterStart::match(const std::vector<UnitSpec>& units) const {
  WeightMatch match;
  for_each_slice(units, [&](const SlicePlace& place, const ParamSpec& param, const ParamSlice& slice) {
    const WeightIndex::Tensor* const tensor = is_adapter_name(slice.name) ? index.find(slice.name) : nullptr;
    if (tensor == nullptr) return;
    if (tensor->shape != stored_shape(param, slice)) {
      throw UserError(ExitCode::bad_content,
                      fmt::format("{}: {} is {} instead of {}", file->path(), printable(slice.name),
                                  shape_text(tensor->shape), shape_text(stored_shape(param, slice))));
    }
    match.slices.push_back(
        {place.unit, place.param, place.slice, param.columns, static_cast<size_t>(tensor - index.tensors.data())});
  });
  return match;
}

}  // namespace llmtrain
