#include "hf/weights/weight_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "core/error.hpp"
#include "core/files/json_node.hpp"
#include "core/message.hpp"

namespace llmtrain {
namespace {

constexpr JsonLimits index_limits = {.bytes = int64_t{32} << 20, .values = int64_t{1} << 20};
constexpr size_t max_files = 10000;

[[noreturn]] void refuse_files(const std::string& path, const std::string& what) {
  throw UserError(ExitCode::bad_content, path + ": " + what);
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view e) { return name.ends_with(e); });
}

/// Describes other files that are there instead of the weights.
[[noreturn]] void no_weights(const FolderHandle& folder) {
  const auto error = [&](const std::string& what) {
    return UserError(ExitCode::missing_input,
                     fmt::format("{}: no {} here{}", folder.path(), single_weights_name, what));
  };
  for (const std::string& name : folder.names()) {
    if (ends_with_any(name, {".bin", ".pt", ".pth", ".bin.index.json"})) {
      throw error(
          fmt::format(", but {}, an old PyTorch file. Reading such a file runs code in it, so it is not "
                      "read. If you trust it, convert it once:\n  {}",
                      name, pickle_way_out(folder.path())));
    }
    if (name == "adapter_model.safetensors") throw error(", but a LoRA adapter, which needs its base model");
    if (name.starts_with("consolidated.")) {
      throw error(
          fmt::format(", but {}, which has the original layout of its authors; fetch the Hugging Face files", name));
    }
    if (ends_with_any(name, {".gguf", ".h5", ".msgpack", ".onnx", ".ckpt", ".index"})) {
      throw error(fmt::format(", but {}; only safetensors are supported", name));
    }
  }
  throw error("");
}

void add_file(WeightIndex& index, const FolderHandle& folder, const std::string& name) {
  const FileHandle file = folder.open_to_read(name);
  SafetensorsHeader header = read_safetensors_header(file);
  if (static_cast<int64_t>(index.tensors.size() + header.tensors.size()) > max_tensors_of_file) {
    refuse_files(file.path(), fmt::format("more than {} tensors in all files", max_tensors_of_file));
  }
  for (StoredTensor& tensor : header.tensors) index.tensors.push_back({std::move(tensor), index.files.size()});
  if (index.files.empty()) index.metadata = std::move(header.metadata);
  index.files.push_back({name, file.size()});
}

/// name of tensor -> name of file
std::map<std::string, std::string> read_weight_map(const FolderHandle& folder) {
  const FileHandle file = folder.open_to_read(weights_index_name);
  const nlohmann::json document = read_json(file, index_limits);
  const auto map = document.is_object() ? document.find("weight_map") : document.end();
  if (!document.is_object() || map == document.end() || !map->is_object() || map->empty()) {
    refuse_files(file.path(), "weight_map must be an object of tensor names and files");
  }
  std::map<std::string, std::string> result;
  JsonNode(*map, file.path() + ": weight_map").each_member([&](const std::string& tensor, const JsonNode& name) {
    check_file_name(name.text(), name.where());
    result.emplace(tensor, name.text());
  });
  return result;
}

void read_sharded(WeightIndex& index, const FolderHandle& folder) {
  const std::map<std::string, std::string> weight_map = read_weight_map(folder);
  std::vector<std::string> names;
  names.reserve(weight_map.size());
  for (const auto& [tensor, file] : weight_map) names.push_back(file);
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  const std::string place = folder.path_of(weights_index_name);
  if (names.size() > max_files) refuse_files(place, fmt::format("names {} files", names.size()));
  for (const std::string& name : names) add_file(index, folder, name);
  // Checks both directions: tensors of the index are in the files, and tensors of the files are in the index.
  std::map<std::string_view, size_t> place_of;
  for (const WeightIndex::Tensor& t : index.tensors) {
    const auto said = weight_map.find(t.name);
    const std::string& file = index.files[t.file].name;
    if (said == weight_map.end())
      refuse_files(place, fmt::format("{} contains {}, which is not in weight_map", file, printable(t.name)));
    if (said->second != file) {
      refuse_files(
          place, fmt::format("{} contains {}, which weight_map assigns to {}", file, printable(t.name), said->second));
    }
    place_of.emplace(t.name, t.file);
  }
  for (const auto& [tensor, file] : weight_map) {
    if (!place_of.contains(tensor))
      refuse_files(place,
                   fmt::format("{} does not contain {}, which weight_map assigns to it", file, printable(tensor)));
  }
}

void pack_planes(const QuantizedPlanes& p, std::vector<int64_t>& numbers) {
  const Quantization& q = p.quantization;
  numbers.insert(numbers.end(), {static_cast<int64_t>(q.type), q.block_size, q.double_quantization ? 1 : 0,
                                 std::bit_cast<int64_t>(q.outlier_threshold), static_cast<int64_t>(p.scales.file),
                                 p.scales.begin, static_cast<int64_t>(p.nested.file), p.nested.begin, p.nested_block,
                                 std::bit_cast<int32_t>(p.offset)});
}

template <class Take>
QuantizedPlanes unpack_planes(const Take& take) {
  QuantizedPlanes p;
  p.quantization.type = static_cast<QuantizedType>(take());
  p.quantization.block_size = take();
  p.quantization.double_quantization = take() != 0;
  p.quantization.outlier_threshold = std::bit_cast<double>(take());
  p.scales.file = static_cast<size_t>(take());
  p.scales.begin = take();
  p.nested.file = static_cast<size_t>(take());
  p.nested.begin = take();
  p.nested_block = take();
  p.offset = std::bit_cast<float>(static_cast<int32_t>(take()));
  return p;
}

void pack_packed(const PackedPlanes& p, std::vector<int64_t>& numbers) {
  const auto group_of = p.group_of.value_or(QuantizedPlanes::Plane{0, -1});
  numbers.insert(numbers.end(), {p.awq ? 1 : 0, p.zeros_less_1 ? 1 : 0, p.zero_bias ? 1 : 0, p.groups, p.group_size});
  for (const QuantizedPlanes::Plane& plane : {p.scales, p.zeros, group_of}) {
    numbers.insert(numbers.end(), {static_cast<int64_t>(plane.file), plane.begin});
  }
}

template <class Take>
PackedPlanes unpack_packed(const Take& take) {
  PackedPlanes p;
  QuantizedPlanes::Plane group_of;
  p.awq = take() != 0;
  p.zeros_less_1 = take() != 0;
  p.zero_bias = take() != 0;
  p.groups = take();
  p.group_size = take();
  for (QuantizedPlanes::Plane* plane : {&p.scales, &p.zeros, &group_of}) {
    plane->file = static_cast<size_t>(take());
    plane->begin = take();
  }
  if (group_of.begin >= 0) p.group_of = group_of;
  return p;
}

}  // namespace

std::string_view WeightIndex::Tensor::storage() const {
  if (packed) return packed->awq ? "awq" : "gptq";
  return name_of(quantized->quantization.type);
}

std::string pickle_way_out(const std::string& folder) {
  return fmt::format(
      "python -c \"from transformers import AutoModelForCausalLM as M; "
      "M.from_pretrained('{0}').save_pretrained('{0}-safetensors')\"",
      folder);
}

const WeightIndex::Tensor* WeightIndex::find(std::string_view name) const {
  const auto at = std::lower_bound(tensors.begin(), tensors.end(), name,
                                   [](const Tensor& t, std::string_view wanted) { return t.name < wanted; });
  return at == tensors.end() || at->name != name ? nullptr : &*at;
}

WeightIndex read_weight_index(const FolderHandle& folder) {
  WeightIndex index;
  index.folder = folder.path();
  if (folder.has(single_weights_name)) {
    add_file(index, folder, single_weights_name);
  } else if (folder.has(weights_index_name)) {
    read_sharded(index, folder);
  } else {
    no_weights(folder);
  }
  std::ranges::sort(index.tensors,
                    [](const WeightIndex::Tensor& a, const WeightIndex::Tensor& b) { return a.name < b.name; });
  join_quantized_tensors(index, folder);
  join_packed_tensors(index, folder);
  return index;
}

WeightIndex read_weight_file(const FolderHandle& folder, const std::string& name) {
  WeightIndex index;
  index.folder = folder.path();
  add_file(index, folder, name);
  std::ranges::sort(index.tensors, {}, &WeightIndex::Tensor::name);
  return index;
}

std::string WeightIndex::packed() const {
  Message message;
  std::vector<int64_t> numbers = {static_cast<int64_t>(files.size()), static_cast<int64_t>(tensors.size())};
  for (const File& f : files) numbers.push_back(f.bytes);
  for (const Tensor& t : tensors) {
    numbers.insert(numbers.end(), {static_cast<int64_t>(t.type), t.begin, t.end, static_cast<int64_t>(t.file),
                                   static_cast<int64_t>(t.shape.size())});
    numbers.insert(numbers.end(), t.shape.begin(), t.shape.end());
    numbers.push_back(t.quantized ? 1 : 0);
    if (t.quantized) pack_planes(*t.quantized, numbers);
    numbers.push_back(t.packed ? 1 : 0);
    if (t.packed) pack_packed(*t.packed, numbers);
    const WeightIndex::Strides strides = t.strides.value_or(WeightIndex::Strides{0, 0});
    const WeightIndex::BlockScales scales = t.mxfp4.value_or(WeightIndex::BlockScales{0, 0, 0});
    numbers.insert(numbers.end(),
                   {strides.row, strides.column, static_cast<int64_t>(scales.file), scales.begin, scales.row_stride});
  }
  message.put(numbers);
  message.put(folder);
  for (const File& f : files) message.put(f.name);
  for (const Tensor& t : tensors) message.put(t.name);
  return message.bytes();
}

WeightIndex WeightIndex::unpacked(const std::string& bytes) {
  Message message(bytes);
  std::vector<int64_t> numbers;
  message.take(numbers);
  size_t next = 0;
  const auto take = [&] { return numbers.at(next++); };
  WeightIndex index;
  index.files.resize(static_cast<size_t>(take()));
  index.tensors.resize(static_cast<size_t>(take()));
  for (File& f : index.files) f.bytes = take();
  for (Tensor& t : index.tensors) {
    t.type = static_cast<StoredType>(take());
    t.begin = take();
    t.end = take();
    t.file = static_cast<size_t>(take());
    t.shape.resize(static_cast<size_t>(take()));
    for (int64_t& dim : t.shape) dim = take();
    if (take() != 0) t.quantized = unpack_planes(take);
    if (take() != 0) t.packed = unpack_packed(take);
    const int64_t row = take(), column = take();
    if (row != 0) t.strides = Strides{row, column};
    const auto scales = static_cast<size_t>(take());
    const int64_t begin = take(), row_stride = take();
    if (row_stride != 0) t.mxfp4 = BlockScales{scales, begin, row_stride};
  }
  message.take(index.folder);
  for (File& f : index.files) message.take(f.name);
  for (Tensor& t : index.tensors) message.take(t.name);
  return index;
}

}  // namespace llmtrain
