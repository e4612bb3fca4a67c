#include "hf/weights/weight_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "core/files/json_node.hpp"
#include "parallel/message.hpp"

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

/// A tensor without its name and shape, which ranks copy as bytes.
struct TensorPlaces {
  StoredType type;
  int64_t begin, end;
  size_t file;
  std::optional<QuantizedPlanes> quantized;
  std::optional<WeightIndex::BlockScales> mxfp4;
  std::optional<PackedPlanes> packed;
  std::optional<WeightIndex::Strides> strides;
};

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
  std::vector<int64_t> file_bytes;
  for (const File& f : files) file_bytes.push_back(f.bytes);
  std::vector<TensorPlaces> places;
  for (const Tensor& t : tensors) {
    places.push_back({t.type, t.begin, t.end, t.file, t.quantized, t.mxfp4, t.packed, t.strides});
  }
  message.put(folder);
  message.put(file_bytes);
  message.put(places);
  for (const File& f : files) message.put(f.name);
  for (const Tensor& t : tensors) {
    message.put(t.name);
    message.put(t.shape);
  }
  return message.bytes();
}

WeightIndex WeightIndex::unpacked(const std::string& bytes) {
  Message message(bytes);
  WeightIndex index;
  std::vector<int64_t> file_bytes;
  std::vector<TensorPlaces> places;
  message.take(index.folder);
  message.take(file_bytes);
  message.take(places);
  for (const int64_t size : file_bytes) message.take(index.files.emplace_back(File{{}, size}).name);
  for (const TensorPlaces& p : places) {
    Tensor tensor;
    tensor.type = p.type;
    tensor.begin = p.begin;
    tensor.end = p.end;
    tensor.file = p.file;
    tensor.quantized = p.quantized;
    tensor.mxfp4 = p.mxfp4;
    tensor.packed = p.packed;
    tensor.strides = p.strides;
    message.take(tensor.name);
    message.take(tensor.shape);
    index.tensors.push_back(std::move(tensor));
  }
  return index;
}

}  // namespace llmtrain
