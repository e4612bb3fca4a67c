#include "hf/gguf/export_gguf.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "core/error.hpp"
#include "core/progress.hpp"
#include "hf/config/config_json.hpp"
#include "hf/export.hpp"
#include "hf/gguf/gguf_model.hpp"
#include "hf/weights/folder_values.hpp"
#include "models/models.hpp"
#include "params/unit_layout.hpp"
#include "text/chat/chat_template.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain {
namespace {

constexpr int64_t rows_elements = int64_t{1} << 22;

/// llama.cpp's number for the type of most matrices.
uint32_t file_type(GgufType type) {
  switch (type) {
    case GgufType::F32:
      return 0;
    case GgufType::F16:
      return 1;
    case GgufType::Q8_0:
      return 7;
    case GgufType::BF16:
      return 32;
  }
  throw Error("a type without a number");
}

GgufType gguf_type(StoredType type) {
  return type == StoredType::F16 ? GgufType::F16 : type == StoredType::BF16 ? GgufType::BF16 : GgufType::F32;
}
GgufType type_of_largest(const WeightIndex& index) {
  const auto largest = std::ranges::max_element(index.tensors, {}, &WeightIndex::Tensor::numel);
  return gguf_type(largest->type);
}

/// A slice of the model and its tensor in the file.
struct Placed {
  int unit;
  int64_t offset;  ///< in the unit, elements
  int64_t rows, columns;
  bool vector;
  GgufSlice gguf;
};

GgufTensor tensor_of(const Placed& placed, GgufType type, int64_t experts) {
  if (placed.vector) return {placed.gguf.name, GgufType::F32, placed.rows, 0};
  if (placed.gguf.as_vector) return {placed.gguf.name, GgufType::F32, placed.columns, 0};
  if (placed.gguf.in_fp32) type = GgufType::F32;
  if (type == GgufType::Q8_0 && placed.columns % q8_block != 0) type = GgufType::F16;
  // llama.cpp adds the rows of the positions to others in fp32.
  if (placed.gguf.name.starts_with("position_embd")) type = GgufType::F32;
  if (placed.gguf.expert >= 0) return {placed.gguf.name, type, experts * placed.rows, placed.columns, experts};
  return {placed.gguf.name, type, placed.rows, placed.columns};
}

/// Row r of a head goes to row 2 r, those of its second half between: llama's rope turns neighbours.
void pair_rows(const std::vector<float>& head, int64_t columns, std::vector<float>& out) {
  const int64_t rows = std::ssize(head) / columns, half = rows / 2;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t to = 2 * (r % half) + r / half;
    std::copy_n(head.begin() + r * columns, columns, out.begin() + to * columns);
  }
}

void write_slice(const GgufWriter& writer, size_t tensor, const Placed& p, const GatherWeights& gather) {
  const HeadGroups& groups = p.gguf.groups;
  const int64_t heads = groups.kv_heads > 0 ? groups.heads + 2 * groups.kv_heads : p.gguf.pair_heads;
  const int64_t rows_at_once = heads > 0 ? p.rows / heads : std::clamp<int64_t>(rows_elements / p.columns, 1, p.rows);
  std::vector<float> values, paired;
  for (int64_t row = 0; row < p.rows; row += rows_at_once) {
    const int64_t first = row * p.columns, count = std::min(rows_at_once, p.rows - row) * p.columns;
    values.resize(static_cast<size_t>(count));
    gather(p.unit, p.offset + first, p.offset + first + count, values.data());
    for (float& value : values) value = (value + p.gguf.add) * p.gguf.factor;
    if (p.gguf.pair_heads > 0) {
      paired.resize(values.size());
      pair_rows(values, p.columns, paired);
      values.swap(paired);
    }
    const int64_t of_experts = std::max<int64_t>(p.gguf.expert, 0) * p.rows * p.columns;
    const int64_t place = groups.kv_heads > 0 ? groups.place(row / rows_at_once) * count : first;
    writer.write(tensor, of_experts + place, values.data(), count);
  }
}

std::vector<Placed> place(const DecoderShape& shape, const std::vector<UnitSpec>& units) {
  std::vector<Placed> all;
  const std::vector<UnitLayout> layouts = layouts_of(units);
  for_each_slice(units, [&](const SlicePlace& place, const ParamSpec& param, const ParamSlice& own) {
    const ParamSlice slice = exported_slice(shape, own);
    all.push_back({place.unit, place.offset(layouts), slice.rows, param.columns, param.columns == 1,
                   gguf_slice(shape, slice.name)});
  });
  return all;
}

GgufMetadata metadata_of(const GgufOptions& options, const ModelConfig& model, GgufType type,
                         std::vector<std::string>& warnings) {
  GgufMetadata metadata;
  metadata.add("general.architecture", gguf_architecture(model.family));
  metadata.add("general.type", "model");
  if (!options.name.empty()) metadata.add("general.name", options.name);
  metadata.add("general.file_type", file_type(type));
  metadata.add("general.quantization_version", uint32_t{2});
  add_hyperparameters(metadata, model);
  if (options.tokenizer == nullptr) {
    metadata.add("tokenizer.ggml.model", "none");
    warnings.emplace_back("the model has no tokenizer, so that llama.cpp takes and gives token ids only");
    return metadata;
  }
  const std::vector<std::string> of_tokenizer = add_vocabulary(metadata, *options.tokenizer, model.vocab_size);
  warnings.insert(warnings.end(), of_tokenizer.begin(), of_tokenizer.end());
  const auto more =
      std::ranges::find_if(options.stop_ids, [&](int64_t id) { return id != options.tokenizer->eos_id(); });
  if (more != options.stop_ids.end()) metadata.add("tokenizer.ggml.eot_token_id", static_cast<uint32_t>(*more));
  if (!options.chat_template.empty()) metadata.add("tokenizer.chat_template", options.chat_template);
  return metadata;
}

}  // namespace

std::string default_chat_template(const std::string& folder) {
  for (const ChatTemplateFile& file : read_chat_templates(folder)) {
    if (file.name == default_template) return file.source;
  }
  return "";
}

std::optional<GgufType> gguf_type_of(std::string_view name) {
  if (name == "q8_0") return GgufType::Q8_0;
  const std::optional<StoredType> type = weight_type_of(name);
  if (!type) return std::nullopt;
  return gguf_type(*type);
}

std::vector<std::string> write_gguf(const GgufOptions& options, const DecoderShape& shape,
                                    const std::vector<UnitSpec>& units, const GatherWeights& gather) {
  ModelConfig model = shape.config;
  model.vocab_size = shape.tokens;
  if (const std::string obstacle = gguf_obstacle(model); !obstacle.empty()) {
    throw UserError(
        ExitCode::bad_content,
        fmt::format("{}: GGUF is not written for a model with {}: leave out --format gguf to export a folder",
                    options.output, obstacle));
  }
  std::vector<std::string> warnings = gguf_differences(model);
  const GgufType type = options.type.value_or(GgufType::F32);
  const GgufMetadata metadata = metadata_of(options, model, type, warnings);
  const std::vector<Placed> slices = place(shape, units);
  std::vector<GgufTensor> tensors;
  std::vector<size_t> tensor_of_slice;
  std::map<std::string, size_t> known;
  for (const Placed& slice : slices) {
    const auto [found, is_new] = known.try_emplace(slice.gguf.name, tensors.size());
    if (is_new) tensors.push_back(tensor_of(slice, type, model.experts.count));
    tensor_of_slice.push_back(found->second);
  }
  const size_t of_weights = tensors.size();
  const std::vector<GgufTable> tables = gguf_tables(model);
  for (const GgufTable& table : tables) tensors.push_back({table.name, GgufType::F32, std::ssize(table.values), 0});
  GgufWriter writer(options.output, options.overwrite, metadata, std::move(tensors));
  Progress progress("exporting", std::ssize(slices));
  for (size_t i = 0; i < slices.size(); ++i) {
    write_slice(writer, tensor_of_slice[i], slices[i], gather);
    progress.add();
  }
  for (size_t i = 0; i < tables.size(); ++i) {
    writer.write(of_weights + i, 0, tables[i].values.data(), std::ssize(tables[i].values));
  }
  writer.publish();
  return warnings;
}

std::vector<std::string> convert_to_gguf(const std::string& source, GgufOptions options) {
  const FolderHandle folder = FolderHandle::open(source);
  const HfConfig config = parse_hf_config(read_hf_config(folder), folder.path_of("config.json"));
  const WeightIndex index = read_weight_index(folder);
  const DecoderShape shape = decoder_shape(config.model, config.model.vocab_size);
  const std::vector<UnitSpec> units = Decoder(shape).units();
  const FolderValues values(source, shape, units);
  std::unique_ptr<Tokenizer> tokenizer;
  if (has_tokenizer(folder)) tokenizer = load_tokenizer(folder.path());
  options.tokenizer = tokenizer.get();
  options.chat_template = default_chat_template(source);
  options.stop_ids = config.ids.eos;
  if (const char* name = "generation_config.json"; folder.has(name)) {
    const std::string text = folder.open_to_read(name).read_text(max_config_bytes);
    options.stop_ids = parse_generation_ids(text, folder.path_of(name), config.ids).eos;
  }
  if (options.name.empty()) options.name = std::filesystem::canonical(source).filename().string();
  if (!options.type) options.type = type_of_largest(index);
  std::vector<std::string> warnings = config.warnings;
  const auto gather = [&](int unit, int64_t begin, int64_t end, float* out) { values.read(unit, begin, end, out); };
  const std::vector<std::string> more = write_gguf(options, shape, units, gather);
  warnings.insert(warnings.end(), more.begin(), more.end());
  return warnings;
}

}  // namespace llmtrain
