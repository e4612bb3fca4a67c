// Matrices of 4 bits in safetensors, several tensors each, words being int32. GPTQ: `qweight` [inputs / 8, outputs],
// `qzeros` [groups, outputs / 8], `scales` [groups, outputs] and `g_idx` [inputs], the group of every input
// (act-order). AutoAWQ's gemm: `qweight` [inputs, outputs / 8] and `qzeros`, both interleaved, and `scales`.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.hpp"
#include "core/files/json_node.hpp"
#include "hf/config/config_json.hpp"
#include "hf/convert.hpp"
#include "hf/weights/stored_slice.hpp"

namespace llmtrain {
namespace {

constexpr std::string_view codes_end = ".qweight";
constexpr int64_t max_packed_dimension = int64_t{1} << 31;

class PackedJoiner {
 public:
  PackedJoiner(WeightIndex& index, const FolderHandle& folder) : index_(index), folder_(folder) {}

  void join() {
    for (size_t i = 0; i < index_.tensors.size(); ++i) {
      const std::string name = index_.tensors[i].name;
      if (name.ends_with(codes_end)) join_module(name.substr(0, name.size() - codes_end.size()), i);
    }
    check_rest();
    if (used_.empty()) return;
    std::erase_if(index_.tensors, [&](const auto& tensor) { return used_.contains(tensor.name); });
    for (WeightIndex::Tensor& tensor : index_.tensors) {
      if (tensor.packed) tensor.name.replace(tensor.name.size() - codes_end.size(), codes_end.size(), ".weight");
    }
    std::ranges::sort(index_.tensors, {}, &WeightIndex::Tensor::name);
  }

 private:
  [[noreturn]] void refuse(const WeightIndex::Tensor& tensor, const std::string& what) const {
    throw UserError(ExitCode::bad_content, fmt::format("{}: {}: {}", folder_.path_of(index_.files[tensor.file].name),
                                                       printable(tensor.name), what));
  }

  const PackedFormat& format(const WeightIndex::Tensor& codes) {
    if (format_) return *format_;
    const std::string place = folder_.path_of("config.json");
    if (folder_.has("config.json")) {
      const nlohmann::json config = parse_json(folder_.open_to_read("config.json").read_text(max_config_bytes), place);
      const auto object = config.is_object() ? config.find("quantization_config") : config.end();
      if (config.is_object() && object != config.end()) {
        format_ = packed_format(*object, place + ": quantization_config");
      }
    }
    if (!format_) {
      refuse(codes, fmt::format("a matrix of 4 bits in words, and {} does not say of which kind: its "
                                "quantization_config must have quant_method gptq or awq",
                                place));
    }
    return *format_;
  }

  /// A tensor beside the codes, of this shape.
  const WeightIndex::Tensor& plane(const std::string& name, const std::vector<int64_t>& shape,
                                   const WeightIndex::Tensor& codes) {
    const WeightIndex::Tensor* tensor = index_.find(name);
    if (tensor == nullptr) {
      refuse(codes, fmt::format("the files do not contain {}, which belongs to the same quantised matrix; fetch the "
                                "model again",
                                printable(name)));
    }
    if (tensor->shape != shape) {
      refuse(*tensor, fmt::format("it is {} instead of {}, which {} of 4 bits, shape {} and groups of {} inputs has",
                                  shape_text(tensor->shape), shape_text(shape), printable(codes.name),
                                  shape_text(codes.shape), format_->group_size));
    }
    used_.insert(name);
    return *tensor;
  }

  void require_words(const WeightIndex::Tensor& tensor) const {
    if (tensor.type != StoredType::I32) refuse(tensor, fmt::format("it is {} instead of I32", name_of(tensor.type)));
  }

  void join_module(const std::string& module, size_t number) {
    WeightIndex::Tensor& codes = index_.tensors[number];
    const bool awq = format(codes).awq;
    require_words(codes);
    const bool is_matrix = codes.shape.size() == 2 && std::ranges::max(codes.shape) <= max_packed_dimension;
    const int64_t in_words = is_matrix ? 8 * codes.shape[awq ? 1 : 0] : 0;
    const int64_t plain = is_matrix ? codes.shape[awq ? 0 : 1] : 0;
    const int64_t outputs = awq ? in_words : plain, inputs = awq ? plain : in_words;
    if (inputs < 1 || outputs < 1 || outputs % 8 != 0 || inputs > max_packed_dimension ||
        outputs > max_packed_dimension) {
      refuse(codes,
             fmt::format("it is {}; a matrix of 4 bits is {} in words of 8 codes, and its outputs are a multiple "
                         "of 8",
                         shape_text(codes.shape), awq ? "[inputs, outputs / 8]" : "[inputs / 8, outputs]"));
    }
    if (index_.find(module + ".weight") != nullptr) refuse(codes, "the files contain the same matrix in 16 bits, too");
    PackedPlanes planes;
    planes.awq = awq;
    planes.zeros_less_1 = format_->zeros_less_1;
    planes.group_size = format_->group_size < 0 ? inputs : format_->group_size;
    planes.groups = (inputs - 1) / planes.group_size + 1;
    const WeightIndex::Tensor& scales = plane(module + ".scales", {planes.groups, outputs}, codes);
    if (!is_weight_type(scales.type)) {
      refuse(scales, fmt::format("it is {} instead of F16, BF16 or F32", name_of(scales.type)));
    }
    const WeightIndex::Tensor& zeros = plane(module + ".qzeros", {planes.groups, outputs / 8}, codes);
    require_words(zeros);
    planes.scales = {scales.file, scales.begin};
    planes.zeros = {zeros.file, zeros.begin};
    if (!awq && (format_->by_activation || index_.find(module + ".g_idx") != nullptr)) {
      const WeightIndex::Tensor& group_of = plane(module + ".g_idx", {inputs}, codes);
      require_words(group_of);
      planes.group_of = {group_of.file, group_of.begin};
    }
    planes.zero_bias = has_zero_bias(module + ".bias");
    const StoredType type = scales.type;
    codes.packed = planes;
    if (planes.group_of) check_groups(codes, inputs);
    codes.type = type;
    codes.shape = {outputs, inputs};
  }

  void check_groups(const WeightIndex::Tensor& codes, int64_t inputs) const {
    const FileHandle file = folder_.open_to_read(index_.files[codes.packed->group_of->file].name);
    StoredSlice slice{&codes, &file, 0, inputs, true};
    slice.group_of = &file;
    read_groups(slice, 0, inputs);
  }

  bool has_zero_bias(const std::string& name) const {
    const WeightIndex::Tensor* bias = index_.find(name);
    if (bias == nullptr || !is_weight_type(bias->type)) return false;
    std::string bytes(static_cast<size_t>(bias->end - bias->begin), '\0');
    folder_.open_to_read(index_.files[bias->file].name).read(bias->begin, bias->end - bias->begin, bytes.data());
    return std::ranges::all_of(bytes, [](char byte) { return byte == 0; });
  }

  /// Names planes without codes.
  void check_rest() const {
    constexpr std::array<std::string_view, 3> planes{".qzeros", ".scales", ".g_idx"};
    for (const WeightIndex::Tensor& tensor : index_.tensors) {
      if (used_.contains(tensor.name)) continue;
      const auto* const end =
          std::ranges::find_if(planes, [&](std::string_view plane) { return tensor.name.ends_with(plane); });
      if (end == planes.end()) continue;
      const std::string module = tensor.name.substr(0, tensor.name.size() - end->size());
      refuse(tensor, fmt::format("it belongs to a matrix of 4 bits in GPTQ's or AutoAWQ's layout, and {}",
                                 index_.find(module + std::string(codes_end)) != nullptr
                                     ? "the layout that config.json names has no such tensor"
                                     : fmt::format("the files do not contain {}; fetch the model again",
                                                   printable(module + std::string(codes_end)))));
    }
  }

  WeightIndex& index_;
  const FolderHandle& folder_;
  std::optional<PackedFormat> format_;
  std::set<std::string> used_;
};

}  // namespace

std::optional<PackedFormat> packed_format(const nlohmann::json& quantization_config, const std::string& place) {
  if (!quantization_config.is_object()) return std::nullopt;
  const JsonNode json(quantization_config, place);
  const nlohmann::json method = quantization_config.value("quant_method", nlohmann::json());
  if (method != "gptq" && method != "awq") return std::nullopt;
  PackedFormat format{.awq = method == "awq"};
  // Transformers writes the name of today and the one of before.
  const std::string named = json.text_or("format", format.awq ? "gemm" : "gptq");
  const char* const key = format.awq ? "version" : "checkpoint_format";
  std::string kind = json.text_or(key, named);
  std::ranges::transform(kind, kind.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const auto& names = format.awq ? "gemm" : "gptq or gptq_v2";
  if (format.awq ? kind != "gemm" : kind != "gptq" && kind != "gptq_v2") {
    json.refuse(fmt::format("{}: the layout {} is not supported; it must be {}. Start from the original model", key,
                            printable(kind), names));
  }
  if (json.has("bits") && json.at("bits").value() != 4) {
    json.at("bits").refuse_value("4");
  }
  if (format.awq && !json.boolean_or("zero_point", true)) json.at("zero_point").refuse_value("true");
  if (json.has("group_size")) {
    format.group_size = json.at("group_size").integer_between(-1, max_packed_dimension);
    if (format.group_size == 0) json.at("group_size").refuse_value("-1 (all inputs) or a number of inputs");
  }
  format.zeros_less_1 = !format.awq && kind == "gptq";
  format.by_activation = !format.awq && json.boolean_or("desc_act", false);
  return format;
}

void join_packed_tensors(WeightIndex& index, const FolderHandle& folder) { PackedJoiner(index, folder).join(); }

}  // namespace llmtrain
