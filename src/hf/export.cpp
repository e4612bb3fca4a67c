#include "hf/export.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.hpp"
#include "core/progress.hpp"
#include "hf/adapters/adapter_config.hpp"
#include "hf/convert.hpp"
#include "hf/weights/fused_experts.hpp"
#include "hf/weights/match_weights.hpp"
#include "hf/weights/stored_slice.hpp"
#include "models/models.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "parallel/job/runtime.hpp"
#include "params/unit_layout.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain {
namespace {

constexpr int64_t piece_elements = int64_t{1} << 22;
constexpr int64_t max_text = int64_t{256} << 20;  ///< bytes per file of a tokenizer

bool is_chat_template(const std::string& name) {
  return name.starts_with(std::string(chat_template_folder) + "/") ||
         std::ranges::find(chat_template_names, name) != chat_template_names.end();
}
bool has_chat_template(const std::map<std::string, std::string>& texts) {
  const auto config = texts.find("tokenizer_config.json");
  return std::ranges::any_of(texts, [](const auto& text) { return is_chat_template(text.first); }) ||
         (config != texts.end() && config->second.find("\"chat_template\"") != std::string::npos);
}

/// Returns true if the files that the tokenizer was read from are among these.
bool holds_tokenizer(const std::map<std::string, std::string>& texts, const Tokenizer& tokenizer) {
  const std::vector<TokenizerFile> files = tokenizer.files();
  return !files.empty() && std::ranges::all_of(files, [&](const TokenizerFile& file) {
    const auto text = texts.find(file.name);
    const bool of_model = file.name == "config.json" || file.name == "generation_config.json";
    return of_model || (text != texts.end() && text->second == file.bytes);
  });
}

/// Returns true if `path` names what this tokenizer was before a run added tokens.
bool grew_from(const std::string& path, const Tokenizer& tokenizer, const std::vector<std::string>& added) {
  if (added.empty()) return false;
  const auto own_files = [](const Tokenizer& one) {
    std::map<std::string, std::string> files;
    for (TokenizerFile& file : one.files()) {
      if (file.name != "config.json" && file.name != "generation_config.json") files[file.name] = std::move(file.bytes);
    }
    return files;
  };
  try {
    return own_files(*with_added_tokens(*load_tokenizer(path), added)) == own_files(tokenizer);
  } catch (const UserError&) {
    return false;
  }
}

/// The files that belong to a tokenizer and are not its own, which only its folder has. The chat templates are not
/// among them where the model's or the run's are exported.
std::string left_behind(const ExportOptions& options, const Tokenizer& tokenizer, const std::string& path,
                        std::string_view why) {
  const std::vector<TokenizerFile> files = tokenizer.files();
  const auto of_chat = [](const auto& text) { return is_chat_template(text.first); };
  const bool has_chat = !options.chat.templates.empty() || std::ranges::any_of(options.texts, of_chat);
  std::vector<std::string> names;
  for (const char* name : tokenizer_file_names) {
    const bool own = std::ranges::any_of(files, [&](const TokenizerFile& file) { return file.name == name; });
    if (!own && !(has_chat && is_chat_template(name))) names.emplace_back(name);
  }
  if (!has_chat) names.push_back(std::string(chat_template_folder) + "/");
  return fmt::format(
      "{} {}; only the tokenizer{} exported, and none of the other files that the folder may have held ({}). Give "
      "--tokenizer DIR to copy them",
      path, why, has_chat ? " and the chat template were" : " itself was", fmt::join(names, ", "));
}

std::map<std::string, std::string> texts_of(const ExportOptions& options, const ModelConfig& model, StoredType type) {
  std::map<std::string, std::string> texts = options.texts;
  std::string& config = texts["config.json"];
  const std::string_view dtype = dtype_name(type);
  TokenIds ids = options.ids;
  if (options.texts.empty()) {
    config = write_hf_config(model, ids, dtype);
  } else {
    config = with_vocabulary(with_dtype(config, "config.json", dtype), "config.json", model.vocab_size);
    const HfConfig before = parse_hf_config(config, "config.json");
    ids = before.ids;
    if (before.model.tie_embeddings && !model.tie_embeddings) config = with_untied_head(config, "config.json");
  }
  if (model.scores()) {
    config = with_score_head(config, "config.json", options.pad < model.vocab_size ? options.pad : -1, model);
    texts.erase("generation_config.json");
  } else {
    std::string& generation =
        texts.try_emplace("generation_config.json", write_generation_config(model, ids)).first->second;
    generation = with_eos_ids(generation, "generation_config.json", ids.eos, options.chat.stop_ids);
  }
  const bool of_tokenizer = options.save_tokenizer && has_chat_template(options.companion_files);
  if (options.save_tokenizer) {
    std::erase_if(texts, [&](const auto& text) {
      if (is_chat_template(text.first)) return of_tokenizer;
      return std::ranges::find(tokenizer_file_names, text.first) != tokenizer_file_names.end();
    });
    texts.insert(options.companion_files.begin(), options.companion_files.end());
  }
  // The run's templates are written where they may be others than those of the folders.
  if (options.chat.replaces || of_tokenizer || !has_chat_template(texts)) {
    for (const auto& [name, text] : options.chat.templates) texts[name] = text;
  }
  return texts;
}

int64_t elements_of(const std::vector<UnitSpec>& units) {
  int64_t elements = 0;
  for (const UnitSpec& unit : units) elements += unit.parameters();
  return elements;
}

/// Copies a tensor, or writes a quantised one dequantised, transposed where the model's files have it so.
void copy_tensor(ModelFolderWriter& writer, const std::string& name, const WeightIndex::Tensor& tensor,
                 const std::vector<FileHandle>& files, bool transposed) {
  const auto file_of = [&](size_t number) -> const FileHandle& { return files[number]; };
  const StoredSlice whole = whole_tensor(tensor, file_of);
  const int64_t elements = tensor.numel(), columns = whole.columns;
  if (tensor.has_codes() && transposed) {
    std::vector<float> matrix(static_cast<size_t>(elements)), turned(matrix.size());
    read_slice(whole, 0, elements, matrix.data());
    for (int64_t row = 0; row < whole.rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        turned[static_cast<size_t>(column * whole.rows + row)] = matrix[static_cast<size_t>(row * columns + column)];
      }
    }
    return writer.write(name, 0, turned.data(), elements);
  }
  std::vector<float> values(static_cast<size_t>(std::min(elements, piece_elements)));
  for (int64_t at = 0; at < elements; at += piece_elements) {
    const int64_t count = std::min(piece_elements, elements - at);
    read_slice(whole, at, at + count, values.data());
    writer.write(name, at, values.data(), count);
  }
}

}  // namespace

ModelFolderPlan folder_plan(const ExportOptions& options, const ModelConfig& model, StoredType type, bool quantized) {
  ModelFolderPlan plan;
  plan.path = options.output;
  plan.overwrite = options.overwrite;
  plan.file_bytes = options.file_bytes;
  plan.texts = texts_of(options, model, type);
  plan.experts = expert_places(decoder_shape(model, model.vocab_size));
  std::string& config = plan.texts["config.json"];
  if (!quantized) config = without_quantization(config, "config.json");
  plan.save_tokenizer = options.save_tokenizer;
  return plan;
}

std::optional<StoredType> weight_type_of(std::string_view name) {
  if (name == "fp32") return StoredType::F32;
  if (name == "bf16") return StoredType::BF16;
  if (name == "fp16") return StoredType::F16;
  return std::nullopt;
}

void export_model(const ExportOptions& options, const DecoderShape& shape, const std::vector<UnitSpec>& units,
                  const GatherWeights& gather, Communicator& communicator) {
  const StoredType type = options.type.value_or(StoredType::F32);
  ModelConfig model = shape.config;
  model.vocab_size = shape.tokens;
  std::unique_ptr<ModelFolderWriter> writer;
  on_root(communicator, [&] {
    const std::string obstacle = options.texts.empty() ? hf_config_obstacle(model) : "";
    if (!obstacle.empty()) throw UserError(ExitCode::deck, fmt::format("{}: {}", options.output, obstacle));
    ModelFolderPlan plan = folder_plan(options, model, type);
    for_each_slice(units, [&](SlicePlace, const ParamSpec& param, const ParamSlice& slice) {
      plan.tensors.push_back({slice.name, type, stored_shape(param, exported_slice(shape, slice)), 0, 0});
    });
    writer = std::make_unique<ModelFolderWriter>(std::move(plan));
  });
  SliceWriter slices(gather, writer.get(), communicator);
  Progress progress("exporting", elements_of(units));
  const std::vector<UnitLayout> layouts = layouts_of(units);
  for_each_slice(units, [&](const SlicePlace& place, const ParamSpec& param, const ParamSlice& slice) {
    slices.write(place.unit, place.offset(layouts), param, exported_slice(shape, slice), {slice.name});
    progress.add(slice.rows * param.columns);
  });
  throw_on_all_ranks(communicator, [&] { slices.raise(); });  // of any rank, before the folder gets its name
  throw_on_all_ranks(communicator, [&] {
    if (writer) writer->publish();
  });
}

std::map<std::string, std::string> tokenizer_texts(const std::string& folder) {
  const FolderHandle source = FolderHandle::open(folder);
  std::map<std::string, std::string> texts;
  for (const char* name : tokenizer_file_names) {
    if (source.has(name)) texts[name] = source.open_to_read(name).read_text(max_text);
  }
  std::error_code ignored;
  const std::filesystem::path further = std::filesystem::path(folder) / chat_template_folder;
  for (std::filesystem::directory_iterator entry(further, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    if (!entry->is_regular_file(ignored) || entry->path().extension() != ".jinja") continue;
    const std::string name = fmt::format("{}/{}", chat_template_folder, entry->path().filename().string());
    texts[name] = FileHandle::open_to_read(entry->path().string()).read_text(max_config_bytes);
  }
  return texts;
}

std::string carry_tokenizer(ExportOptions& options, const Tokenizer& tokenizer, const std::string& path,
                            const std::vector<std::string>& added) {
  options.pad = tokenizer.pad_id();
  if (holds_tokenizer(options.texts, tokenizer)) return "";
  options.ids.bos = tokenizer.bos_id();
  if (tokenizer.eos_id() >= 0) options.ids.eos = {tokenizer.eos_id()};
  options.save_tokenizer = [&tokenizer](const std::string& folder) { save_tokenizer(tokenizer, folder); };
  std::error_code ignored;
  if (path.empty()) return "";
  const std::filesystem::path place(path);
  const bool is_folder = std::filesystem::is_directory(place, ignored);
  if (!is_folder && !std::filesystem::is_regular_file(place, ignored)) {
    return tokenizer.files().empty() ? "" : left_behind(options, tokenizer, path, "is gone");
  }
  const std::string folder = is_folder ? path : place.has_parent_path() ? place.parent_path().string() : ".";
  std::map<std::string, std::string> beside = tokenizer_texts(folder);
  if (holds_tokenizer(beside, tokenizer)) {
    options.companion_files = std::move(beside);
    return "";
  }
  if (grew_from(path, tokenizer, added)) {
    for (const TokenizerFile& file : tokenizer.files()) beside.erase(file.name);
    options.companion_files = std::move(beside);
    return "";
  }
  const bool other =
      is_folder && !beside.empty() && !tokenizer.files().empty();  // a checkpoint has the tokenizer alone
  return other ? left_behind(options, tokenizer, path, "holds another tokenizer now") : "";
}

std::map<std::string, std::string> model_texts(const std::string& folder) {
  const FolderHandle source = FolderHandle::open(folder);
  std::map<std::string, std::string> texts = tokenizer_texts(folder);
  texts["config.json"] = source.open_to_read("config.json").read_text(max_config_bytes);
  const std::string generation = "generation_config.json";
  if (source.has(generation)) texts[generation] = source.open_to_read(generation).read_text(max_config_bytes);
  return texts;
}

std::map<std::string, std::string> other_files_of(const std::string& folder) {
  constexpr std::array<std::string_view, 10> excluded = {
      ".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf", ".h5", ".onnx", ".msgpack", adapter_config_name};
  std::map<std::string, std::string> texts = model_texts(folder);
  const FolderHandle handle = FolderHandle::open(folder);
  for (const std::string& name : handle.names()) {
    const auto ends = [&](std::string_view end) { return name.ends_with(end); };
    std::error_code ignored;
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    if (texts.contains(name) || name.starts_with('.') || std::ranges::any_of(excluded, ends)) continue;
    if (!std::filesystem::is_regular_file(path, ignored)) continue;
    texts[name] = handle.open_to_read(name).read_text(max_text);
  }
  return texts;
}

std::string dequantized_note(const std::string& folder) {
  return fmt::format(
      "{}: its quantised matrices are written dequantised: the weights that the model computes with, not "
      "those from before it was quantised",
      folder);
}

std::vector<std::string> convert_model(const std::string& source, ExportOptions options) {
  const FolderHandle folder = FolderHandle::open(source);
  options.texts = model_texts(source);
  const HfConfig config = parse_hf_config(options.texts["config.json"], folder.path_of("config.json"));
  const DecoderShape shape = decoder_shape(config.model, config.model.vocab_size);
  const WeightIndex index = read_model_index(folder, shape);
  const std::vector<UnitSpec> units = Decoder(shape).units();
  const WeightMatch match = match_weights(shape, units, index);
  std::vector<std::string> warnings = config.warnings;
  warnings.insert(warnings.end(), match.warnings.begin(), match.warnings.end());

  const StoredType type = options.type.value_or(index.tensors[match.slices.front().tensor].type);
  ModelFolderPlan plan = folder_plan(options, config.model, type);
  if (!index.metadata.empty()) plan.metadata = index.metadata;
  // Uses the model's own names, without any prefix that the files had.
  const auto slice_of = [&](const SliceSource& s) -> const ParamSlice& {
    return units[static_cast<size_t>(s.unit)].params[static_cast<size_t>(s.param)].slices[static_cast<size_t>(s.slice)];
  };
  bool quantized = false;
  for (const SliceSource& s : match.slices) {
    const WeightIndex::Tensor& t = index.tensors[s.tensor];
    std::vector<int64_t> stored = t.shape;
    if (t.has_codes() && slice_of(s).transposed) std::ranges::reverse(stored);
    quantized = quantized || t.has_codes();
    plan.tensors.push_back({slice_of(s).name, options.type.value_or(t.type), std::move(stored), 0, 0});
  }
  if (quantized) warnings.push_back(dequantized_note(source));
  ModelFolderWriter writer(std::move(plan));
  std::vector<FileHandle> files;
  for (const WeightIndex::File& file : index.files) files.push_back(folder.open_to_read(file.name));
  Progress progress("exporting", std::ssize(match.slices));
  for (const SliceSource& s : match.slices) {
    copy_tensor(writer, slice_of(s).name, index.tensors[s.tensor], files, slice_of(s).transposed);
    progress.add();
  }
  writer.publish();
  return warnings;
}

}  // namespace llmtrain
