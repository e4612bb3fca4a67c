// Quantised matrices in bitsandbytes' safetensors layout. nf4 and fp4: `weight` (two codes a byte, [bytes, 1]),
// `weight.absmax` (fp32; with double quantisation bytes), `weight.quant_map`, `weight.nested_absmax`,
// `weight.nested_quant_map`, and `weight.quant_state.bitsandbytes__nf4` or `__fp4` (JSON as bytes: quant_type,
// blocksize, dtype, shape, nested_blocksize, nested_dtype, nested_offset). int8: `weight` (int8 [rows, columns]), `SCB`
// (fp32 [rows]) and `weight_format` (0: rows).

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "core/files/json_node.hpp"
#include "hf/convert.hpp"
#include "hf/weights/weight_index.hpp"
#include "kernels/dynamic_map.hpp"
#include "kernels/quantize.hpp"

namespace llmtrain {
namespace {

constexpr int64_t max_quant_state = 4096;  ///< bytes
constexpr int64_t max_dimension = int64_t{1} << 31;

class Joiner {
 public:
  Joiner(WeightIndex& index, const FolderHandle& folder) : index_(index), folder_(folder) {}

  void join() {
    for (WeightIndex::Tensor& tensor : index_.tensors) {
      const size_t at = tensor.name.rfind(quant_state_prefix);
      if (at != std::string::npos) {
        join_blocks(tensor.name.substr(0, at), tensor, tensor.name.substr(at + quant_state_prefix.size()));
      } else if (tensor.name.ends_with(".SCB")) {
        join_rows(tensor.name.substr(0, tensor.name.size() - 4), tensor);
      }
    }
    check_rest();
    if (used_.empty()) return;
    std::erase_if(index_.tensors, [&](const auto& tensor) { return used_.contains(tensor.name); });
  }

 private:
  [[noreturn]] void refuse(const WeightIndex::Tensor& tensor, const std::string& what) const {
    throw UserError(ExitCode::bad_content, fmt::format("{}: {}: {}", folder_.path_of(index_.files[tensor.file].name),
                                                       printable(tensor.name), what));
  }

  WeightIndex::Tensor& find(const std::string& name, const WeightIndex::Tensor& beside) {
    const WeightIndex::Tensor* tensor = index_.find(name);
    if (tensor == nullptr) {
      refuse(beside, fmt::format("the files do not contain {}, which belongs to the same quantised matrix; fetch the "
                                 "model again",
                                 printable(name)));
    }
    return index_.tensors[static_cast<size_t>(tensor - index_.tensors.data())];
  }

  /// A tensor beside the codes, of this type and number of elements.
  WeightIndex::Tensor& plane(const std::string& name, StoredType type, int64_t elements,
                             const WeightIndex::Tensor& beside) {
    WeightIndex::Tensor& tensor = find(name, beside);
    if (tensor.type != type || tensor.numel() != elements) {
      refuse(tensor, fmt::format("it has {} elements of type {}; its quantised matrix needs {} of type {}",
                                 tensor.numel(), name_of(tensor.type), elements, name_of(type)));
    }
    used_.insert(name);
    return tensor;
  }

  std::string bytes_of(const WeightIndex::Tensor& tensor) const {
    std::string bytes(static_cast<size_t>(tensor.end - tensor.begin), '\0');
    folder_.open_to_read(index_.files[tensor.file].name).read(tensor.begin, tensor.end - tensor.begin, bytes.data());
    return bytes;
  }

  void check_map(const WeightIndex::Tensor& tensor, std::span<const float> expected, std::string_view what) const {
    std::vector<float> values(expected.size());
    folder_.open_to_read(index_.files[tensor.file].name).read(tensor.begin, tensor.end - tensor.begin, values.data());
    const bool same = std::ranges::equal(values, expected, [](float a, float b) { return std::abs(a - b) < 1e-6F; });
    if (!same) refuse(tensor, fmt::format("its values are not those of {}, and no others are supported", what));
  }

  void join_blocks(const std::string& name, WeightIndex::Tensor& state, const std::string& kind) {
    if (kind != "nf4" && kind != "fp4") {
      refuse(state, fmt::format("quant_type {} is not known; it must be nf4 or fp4", printable(kind)));
    }
    used_.insert(state.name);
    if (state.type != StoredType::U8 || state.numel() > max_quant_state) {
      refuse(state, fmt::format("it must be JSON in at most {} bytes of type U8", max_quant_state));
    }
    const std::string where =
        fmt::format("{}: {}", folder_.path_of(index_.files[state.file].name), printable(state.name));
    const nlohmann::json document = parse_json(bytes_of(state), where);
    const JsonNode json(document, where);
    if (json.at("quant_type").text() != kind) json.at("quant_type").refuse_value(kind);
    QuantizedPlanes planes;
    planes.quantization.type = kind == "nf4" ? QuantizedType::nf4 : QuantizedType::fp4;
    const int64_t block = json.at("blocksize").integer_between(32, 4096);
    if ((block & (block - 1)) != 0) json.at("blocksize").refuse_value("a power of two from 32 to 4096");
    planes.quantization.block_size = block;
    if (json.at("shape").array().size() != 2) json.at("shape").refuse_value("[rows, columns]");
    const int64_t rows = json.at("shape").at(0).integer_between(1, max_dimension);
    const int64_t columns = json.at("shape").at(1).integer_between(1, max_dimension);
    const int64_t elements = rows * columns, blocks = blocks_of(elements, block);

    WeightIndex::Tensor& codes = find(name, state);
    if (codes.end - codes.begin != (elements + 1) / 2) {  // the type may be another one than U8: bnb_4bit_quant_storage
      refuse(codes, fmt::format("it has {} bytes; {} {} codes of 4 bits have {}", codes.end - codes.begin,
                                shape_text({rows, columns}), kind, (elements + 1) / 2));
    }
    planes.quantization.double_quantization = json.has("nested_blocksize");
    const bool nested = planes.quantization.double_quantization;
    planes.scales = place(plane(name + ".absmax", nested ? StoredType::U8 : StoredType::F32, blocks, state));
    check_map(plane(name + ".quant_map", StoredType::F32, 16, state), levels_of(planes.quantization.type), kind);
    if (nested) {
      planes.nested_block = json.at("nested_blocksize").integer_between(1, 1 << 20);
      const double offset = json.at("nested_offset").number();
      planes.offset = static_cast<float>(offset);
      if (!std::isfinite(planes.offset)) json.at("nested_offset").refuse_value("a finite number");
      planes.nested =
          place(plane(name + ".nested_absmax", StoredType::F32, blocks_of(blocks, planes.nested_block), state));
      check_map(plane(name + ".nested_quant_map", StoredType::F32, 256, state), signed_dynamic_map,
                "bitsandbytes' signed dynamic map");
    }
    const std::string dtype = json.at("dtype").text();
    constexpr std::array<StoredType, 3> types{StoredType::F32, StoredType::BF16, StoredType::F16};
    const auto* const type = std::ranges::find_if(types, [&](StoredType t) { return dtype_name(t) == dtype; });
    if (type == types.end()) json.at("dtype").refuse_value("float32, bfloat16 or float16");
    finish(codes, *type, {rows, columns}, planes);
  }

  void join_rows(const std::string& module, WeightIndex::Tensor& scales) {
    WeightIndex::Tensor& codes = find(module + ".weight", scales);
    if (codes.type != StoredType::I8 || codes.shape.size() != 2) {
      refuse(codes, fmt::format("it is {} of type {}; a matrix with scales in SCB must be [rows, columns] of type I8",
                                shape_text(codes.shape), name_of(codes.type)));
    }
    QuantizedPlanes planes;
    planes.quantization.type = QuantizedType::int8;
    planes.quantization.double_quantization = false;
    planes.scales = place(plane(scales.name, StoredType::F32, codes.shape.front(), scales));
    if (const WeightIndex::Tensor* format = index_.find(module + ".weight_format"); format != nullptr) {
      if (format->type != StoredType::U8 || format->numel() != 1 || bytes_of(*format).front() != 0) {
        refuse(*format, "only the format 0 (rows) is supported; save the model with a newer bitsandbytes");
      }
      used_.insert(format->name);
    }
    finish(codes, StoredType::F16, codes.shape, planes);  // the values were rounded to fp16
  }

  static QuantizedPlanes::Plane place(const WeightIndex::Tensor& tensor) { return {tensor.file, tensor.begin}; }

  void finish(WeightIndex::Tensor& codes, StoredType type, std::vector<int64_t> shape, const QuantizedPlanes& planes) {
    if (codes.quantized) refuse(codes, "it is quantised in two ways");
    codes.type = type;
    codes.shape = std::move(shape);
    codes.quantized = planes;
  }

  static std::string state_of(const std::string& weight) { return weight + std::string(quant_state_prefix) + "nf4"; }

  /// Names the planes without codes and the codes without planes.
  void check_rest() {
    constexpr std::array<std::string_view, 4> planes{".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"};
    for (const WeightIndex::Tensor& tensor : index_.tensors) {
      const std::string& name = tensor.name;
      if (used_.contains(name) || tensor.quantized) continue;
      for (const std::string_view end : planes) {
        if (!name.ends_with(".weight" + std::string(end))) continue;
        const std::string weight = name.substr(0, name.size() - end.size());
        refuse(tensor, fmt::format("the files contain neither {} nor its fp4 counterpart, which belongs to the same "
                                   "quantised matrix; fetch the model again",
                                   printable(state_of(weight))));
      }
      if (name.ends_with(".weight") && tensor.type == StoredType::I8) {
        refuse(tensor, fmt::format("the files do not contain {}, the scales of this matrix of type I8",
                                   printable(name.substr(0, name.size() - 7) + ".SCB")));
      }
      if (name.ends_with(".weight") && tensor.type == StoredType::U8) {
        refuse(tensor,
               fmt::format("the files contain neither {} nor its fp4 counterpart, which describes codes of 4 bits",
                           printable(state_of(name))));
      }
    }
  }

  WeightIndex& index_;
  const FolderHandle& folder_;
  std::set<std::string> used_;
};

}  // namespace

void join_quantized_tensors(WeightIndex& index, const FolderHandle& folder) { Joiner(index, folder).join(); }

}  // namespace llmtrain
