
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.hpp"
#include "core/params.hpp"
#include "hf/config/config_json.hpp"
#include "hf/weights/weight_index.hpp"

namespace llmtrain {

namespace {

using nlohmann::json;

/// The format of all quantised matrices, if they have one that is also this program's.
std::optional<Quantization> common_format(const WeightIndex& index) {
  std::optional<Quantization> format;
  for (const WeightIndex::Tensor& tensor : index.tensors) {
    if (!tensor.quantized) continue;
    if (!format) format = tensor.quantized->quantization;
    if (!tensor.quantized->are(*format) || format->block_size > chunk_elements) return std::nullopt;
  }
  return format;
}

/// Modules whose weight is a matrix of 16 bits or more.
json dense_modules(const WeightIndex& index) {
  constexpr std::string_view end = ".weight";
  json names = json::array();
  for (const WeightIndex::Tensor& tensor : index.tensors) {
    if (tensor.quantized || tensor.shape.size() != 2 || !tensor.name.ends_with(end)) continue;
    names.push_back(tensor.name.substr(0, tensor.name.size() - end.size()));
  }
  return names;
}

bool describe(json& quantization, const WeightIndex& index) {
  const std::optional<Quantization> format = common_format(index);
  if (!format) return false;
  const bool bytes = format->type == QuantizedType::int8;
  quantization["load_in_4bit"] = !bytes;
  quantization["load_in_8bit"] = bytes;
  quantization["bnb_4bit_quant_type"] = bytes ? "fp4" : name_of(format->type);
  quantization["bnb_4bit_use_double_quant"] = format->double_quantization;
  quantization["bnb_4bit_blocksize"] = format->block_size;
  quantization["llm_int8_skip_modules"] = dense_modules(index);
  return true;
}

}  // namespace

std::string read_hf_config(const FolderHandle& folder) {
  std::string text = folder.open_to_read("config.json").read_text(max_config_bytes);
  json config = json::parse(text, nullptr, false);
  if (!config.is_object() || (!folder.has(single_weights_name) && !folder.has(weights_index_name))) return text;
  const auto found = config.find("quantization_config");
  if (found == config.end() || !found->is_object()) return text;
  parse_hf_config(text, folder.path_of("config.json"));  // refuses what is not bitsandbytes'
  try {
    if (!describe(*found, read_weight_index(folder))) config.erase(found);
  } catch (const UserError&) {  // the weights say so again when they are loaded
    return text;
  }
  return config.dump();
}

}  // namespace llmtrain
