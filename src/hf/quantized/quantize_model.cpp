#include "hf/quantized/quantize_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "core/progress.hpp"
#include "hf/convert.hpp"
#include "hf/quantized/read_quantized.hpp"
#include "hf/weights/fused_experts.hpp"
#include "hf/weights/match_weights.hpp"
#include "hf/weights/weight_index.hpp"
#include "kernels/dynamic_map.hpp"
#include "models/model_modules.hpp"
#include "models/models.hpp"

namespace llmtrain {
namespace {

constexpr int64_t quantized_step = int64_t{1} << 22;  ///< elements whose codes are held at a time
constexpr size_t state_bytes = 224;  ///< JSON of a matrix, padded with spaces: its length is known before its offset

/// The quantization_config that Transformers writes.
nlohmann::json quantization_config(const Quantization& q, const nlohmann::json& skipped) {
  const bool bytes = q.type == QuantizedType::int8;
  return {{"_load_in_4bit", !bytes},
          {"_load_in_8bit", bytes},
          {"bnb_4bit_compute_dtype", "float32"},
          {"bnb_4bit_quant_storage", "uint8"},
          {"bnb_4bit_quant_type", bytes ? "fp4" : name_of(q.type)},
          {"bnb_4bit_use_double_quant", !bytes && q.double_quantization},
          {"llm_int8_enable_fp32_cpu_offload", false},
          {"llm_int8_has_fp16_weight", false},
          {"llm_int8_skip_modules", skipped},
          {"llm_int8_threshold", q.outlier_threshold},
          {"load_in_4bit", !bytes},
          {"load_in_8bit", bytes},
          {"quant_method", "bitsandbytes"}};
}

std::string quant_state(const Quantization& q, StoredType type, int64_t rows, int64_t columns, float offset) {
  std::string text = fmt::format(R"({{"quant_type": "{}", "blocksize": {}, "dtype": "{}", "shape": [{}, {}])",
                                 name_of(q.type), q.block_size, dtype_name(type), rows, columns);
  if (q.double_quantization) {
    text += fmt::format(R"(, "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": {})",
                        NestedScales::block, nlohmann::json(static_cast<double>(offset)).dump());
  }
  text += "}";
  LLMTRAIN_CHECK(text.size() <= state_bytes, "the quant_state is too long");
  text.resize(state_bytes, ' ');
  return text;
}

/// Transformers' rule for llm_int8_skip_modules.
bool keeps_dense(std::string_view module, const std::vector<std::string>& names) {
  return std::ranges::any_of(
      names, [&](const std::string& name) { return module.ends_with(name) || module.starts_with(name + "."); });
}

class Quantizer {
 public:
  Quantizer(const std::string& source, const Quantization& quantization, const std::vector<std::string>& skipped)
      : quantization_(quantization), skipped_(skipped), folder_(FolderHandle::open(source)) {
    const HfConfig config = parse_hf_config(folder_.open_to_read("config.json").read_text(max_config_bytes),
                                            folder_.path_of("config.json"));
    model_ = config.model;
    warnings_ = config.warnings;
    const DecoderShape shape = decoder_shape(model_, model_.vocab_size);
    if (!shape.names.fused_first.empty()) {
      throw UserError(ExitCode::bad_content,
                      fmt::format("{}: {} has one tensor for all experts of a layer, which bitsandbytes does not "
                                  "quantise; quantise the base of an adapter in memory with model.quantization",
                                  folder_.path(), name_of(model_.family)));
    }
    index_ = read_model_index(folder_, shape);
    units_ = Decoder(shape).units();
    match_ = match_weights(shape, units_, index_);
    warnings_.insert(warnings_.end(), match_.warnings.begin(), match_.warnings.end());
    for (const WeightIndex::Tensor& tensor : index_.tensors) {
      if (!tensor.has_codes()) continue;
      throw UserError(ExitCode::bad_content, fmt::format("{}: {} is quantised already ({}); start from the original "
                                                         "model",
                                                         folder_.path(), printable(tensor.name), tensor.storage()));
    }
    const ModelModules modules(shape.names, units_);
    for (const std::string& name : skipped_) check_skipped(name, modules);
    for (const std::string& module : modules.linear) {
      if (!modules.tables.contains(module) && !keeps_dense(module, skipped_)) quantized_.insert(module + ".weight");
    }
    if (!skipped_.empty()) skipped_.push_back(shape.names.head);
    for (const WeightIndex::File& file : index_.files) files_.push_back(folder_.open_to_read(file.name));
  }

  std::vector<std::string> write(ExportOptions options) {
    const StoredType type = index_.tensors[match_.slices.front().tensor].type;
    add_quantization(options);
    ModelFolderPlan plan = folder_plan(options, model_, type, true);
    for (const SliceSource& s : match_.slices) plan_slice(s, plan.tensors);
    ModelFolderWriter writer(std::move(plan));
    Progress progress("quantising", std::ssize(match_.slices));
    for (const SliceSource& s : match_.slices) {
      if (!quantized_.contains(slice_of(s).name)) {
        copy(writer, s);
      } else if (quantization_.type == QuantizedType::int8) {
        write_rows(writer, s);
      } else {
        write_blocks(writer, s);
      }
      progress.add();
    }
    writer.publish();
    return warnings_;
  }

 private:
  /// A name that keeps no matrix is refused: "mlp" is neither the end nor the beginning of a linear layer's name.
  void check_skipped(const std::string& name, const ModelModules& modules) const {
    const auto keeps = [&](const std::string& module) { return !name.empty() && keeps_dense(module, {name}); };
    if (std::ranges::any_of(modules.linear, keeps) || std::ranges::any_of(modules.tables, keeps)) return;
    throw UserError(ExitCode::command_line,
                    fmt::format("--skip-modules: {}: no name of a linear layer ends with it or is inside of a module "
                                "of this full name",
                                printable(name)));
  }

  void add_quantization(ExportOptions& options) const {
    std::string& text = options.texts["config.json"];
    nlohmann::json config = parse_json(text, folder_.path_of("config.json"));
    nlohmann::json skipped;
    if (!skipped_.empty()) skipped = skipped_;
    config["quantization_config"] = quantization_config(quantization_, skipped);
    text = config.dump(2) + "\n";
  }

  const ParamSlice& slice_of(const SliceSource& s) const {
    return units_[static_cast<size_t>(s.unit)]
        .params[static_cast<size_t>(s.param)]
        .slices[static_cast<size_t>(s.slice)];
  }
  StoredSlice stored(const SliceSource& s) const {
    const auto file_of = [&](size_t number) -> const FileHandle& { return files_[number]; };
    const ParamSlice& slice = slice_of(s);
    return stored_slice(index_.tensors[s.tensor], file_of, slice.rows, s.columns, slice.transposed);
  }

  /// Names, types and shapes of what one tensor becomes.
  void plan_slice(const SliceSource& s, std::vector<StoredTensor>& tensors) const {
    const ParamSlice& slice = slice_of(s);
    const WeightIndex::Tensor& tensor = index_.tensors[s.tensor];
    const std::string& name = slice.name;
    const auto add = [&](const std::string& end, StoredType type, std::vector<int64_t> shape) {
      tensors.push_back({name + end, type, std::move(shape), 0, 0});
    };
    if (!quantized_.contains(name)) return add("", tensor.type, tensor.shape);
    if (quantization_.type == QuantizedType::int8) {
      const std::string module(parent_module(name));
      add("", StoredType::I8, {slice.rows, s.columns});
      tensors.push_back({module + ".SCB", StoredType::F32, {slice.rows}, 0, 0});
      tensors.push_back({module + ".weight_format", StoredType::U8, {}, 0, 0});
      return;
    }
    const bool nested = quantization_.double_quantization;
    const int64_t elements = slice.rows * s.columns, blocks = blocks_of(elements, quantization_.block_size);
    add("", StoredType::U8, {(elements + 1) / 2, 1});
    add(".absmax", nested ? StoredType::U8 : StoredType::F32, {blocks});
    add(".quant_map", StoredType::F32, {16});
    if (nested) {
      add(".nested_absmax", StoredType::F32, {blocks_of(blocks, NestedScales::block)});
      add(".nested_quant_map", StoredType::F32, {256});
    }
    add(std::string(quant_state_prefix) + std::string(name_of(quantization_.type)), StoredType::U8,
        {static_cast<int64_t>(state_bytes)});
  }

  void copy(ModelFolderWriter& writer, const SliceSource& s) const {
    const WeightIndex::Tensor& tensor = index_.tensors[s.tensor];
    std::vector<char> bytes;
    for (int64_t at = 0, size = tensor.end - tensor.begin; at < size; at += quantized_step) {
      bytes.resize(static_cast<size_t>(std::min(quantized_step, size - at)));
      files_[tensor.file].read(tensor.begin + at, std::ssize(bytes), bytes.data());
      writer.write_bytes(slice_of(s).name, at, bytes.data(), std::ssize(bytes));
    }
  }

  /// Writes the codes step by step and returns the scales.
  std::vector<float> write_codes(ModelFolderWriter& writer, const SliceSource& s) const {
    const QuantizedReader reader(stored(s), quantization_);
    const int64_t step = std::max<int64_t>(1, quantized_step / reader.block_size());
    const int64_t elements = slice_of(s).rows * s.columns;
    const bool bytes = quantization_.type == QuantizedType::int8;
    std::vector<float> scales(static_cast<size_t>(reader.blocks()));
    std::vector<uint8_t> codes;
    for (int64_t first = 0; first < reader.blocks(); first += step) {
      const int64_t last = std::min(first + step, reader.blocks()), begin = first * reader.block_size();
      const int64_t count = std::min(last * reader.block_size(), elements) - begin;
      codes.resize(static_cast<size_t>(bytes ? count : (count + 1) / 2));
      reader.read_blocks(first, last, codes.data(), scales.data() + first);
      writer.write_bytes(slice_of(s).name, bytes ? begin : begin / 2, codes.data(), std::ssize(codes));
    }
    return scales;
  }

  void write_rows(ModelFolderWriter& writer, const SliceSource& s) const {
    const std::vector<float> scales = write_codes(writer, s);
    const std::string module(parent_module(slice_of(s).name));
    writer.write(module + ".SCB", 0, scales.data(), std::ssize(scales));
    writer.write_bytes(module + ".weight_format", 0, "", 1);
  }

  void write_blocks(ModelFolderWriter& writer, const SliceSource& s) const {
    const std::vector<float> scales = write_codes(writer, s);
    const ParamSlice& slice = slice_of(s);
    const auto floats = [&](const char* end, std::span<const float> values) {
      writer.write(slice.name + end, 0, values.data(), std::ssize(values));
    };
    floats(".quant_map", levels_of(quantization_.type));
    float offset = 0;
    if (quantization_.double_quantization) {
      const NestedScales nested = quantize_scales(scales);
      offset = nested.offset;
      writer.write_bytes(slice.name + ".absmax", 0, nested.codes.data(), std::ssize(nested.codes));
      floats(".nested_absmax", nested.absmax);
      floats(".nested_quant_map", signed_dynamic_map);
    } else {
      floats(".absmax", scales);
    }
    const std::string state = quant_state(quantization_, index_.tensors[s.tensor].type, slice.rows, s.columns, offset);
    writer.write_bytes(slice.name + std::string(quant_state_prefix) + std::string(name_of(quantization_.type)), 0,
                       state.data(), std::ssize(state));
  }

  Quantization quantization_;
  std::vector<std::string> skipped_;
  FolderHandle folder_;
  ModelConfig model_;
  WeightIndex index_;
  std::vector<UnitSpec> units_;
  WeightMatch match_;
  NameSet quantized_;  ///< tensors
  std::vector<FileHandle> files_;
  std::vector<std::string> warnings_;
};

}  // namespace

std::vector<std::string> quantize_model(const std::string& source, ExportOptions options,
                                        const Quantization& quantization,
                                        const std::vector<std::string>& skip_modules) {
  return Quantizer(source, quantization, skip_modules).write(std::move(options));
}

std::string description_of(const Quantization& q) {
  if (q.type == QuantizedType::int8) return "int8";
  return fmt::format("{} in blocks of {}{}", name_of(q.type), q.block_size,
                     q.double_quantization ? ", doubly quantised" : "");
}

}  // namespace llmtrain
