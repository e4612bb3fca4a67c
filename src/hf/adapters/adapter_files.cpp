#include "hf/adapters/adapter_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "hf/adapters/fused_adapters.hpp"
#include "hf/config/config_json.hpp"
#include "hf/convert.hpp"
#include "hf/quantized/quantize_model.hpp"
#include "models/models.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/message.hpp"
#include "params/unit_layout.hpp"

namespace llmtrain {
namespace {

/// Name of a trained tensor of the model in PEFT's files.
std::string name_in_file(const std::string& name, const LoraPart& part) {
  if (is_adapter_name(name)) return name;
  const size_t dot = name.rfind('.');
  const bool adapted = part.modules.contains(name.substr(0, dot));
  return fmt::format("{}{}{}{}", adapter_prefix, name.substr(0, dot), adapted ? ".base_layer" : "", name.substr(dot));
}

class AdapterMatcher {
 public:
  AdapterMatcher(const AdapterFolder& adapter, const DecoderShape& shape) : adapter_(adapter), shape_(shape) {
    // PEFT stores the bias of a module in modules_to_save once more where all biases are trained.
    for (const bool copies : {false, true}) {
      for (size_t i = 0; i < adapter.index.tensors.size(); ++i) {
        const bool copy = adapter.index.tensors[i].name.find(".modules_to_save.") != std::string::npos;
        if (copy == copies) add(i, copy);
      }
    }
  }

  WeightMatch match(const std::vector<UnitSpec>& units) {
    for_each_slice(units, [&](const SlicePlace& place, const ParamSpec& param, const ParamSlice& slice) {
      if (!is_adapter_name(slice.name) && !adapter_.part.trained.contains(slice.name)) return;
      const int64_t tensor = take(param, exported_slice(shape_, slice));
      if (tensor < 0) return;
      match_.slices.push_back({place.unit, place.param, place.slice, param.columns, static_cast<size_t>(tensor)});
    });
    match_tied_head();
    leave_out_other_ranks();
    for (const std::string& name : {embedding(), head()}) number_of_.erase(name);  // saved tables, or copies
    for (const auto& [name, number] : number_of_) extra_.add(printable(adapter_.index.tensors[number].name));
    const std::string problems = missing_.text() + extra_.text() + wrong_shape_.text() + wrong_type_.text();
    if (!problems.empty()) {
      refuse(fmt::format("the tensors do not fit the model with the adapters that {} describes{}", adapter_config_name,
                         problems));
    }
    return std::move(match_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(ExitCode::bad_content, fmt::format("{}/{}: {}", adapter_.index.folder, adapter_weights_name, what));
  }

  void add(size_t number, bool copy) {
    const std::string& stored = adapter_.index.tensors[number].name;
    const std::string name = adapter_name_in_model(stored);
    if (name.empty() && stored.starts_with(adapter_prefix)) return;
    const auto [at, fresh] = number_of_.emplace(name.empty() ? stored : name, number);
    if (!fresh && !copy) {
      refuse(fmt::format("{} and {} are the same tensor", printable(adapter_.index.tensors[at->second].name),
                         printable(stored)));
    }
  }

  std::string head() const { return shape_.names.head + ".weight"; }
  std::string embedding() const { return shape_.names.embedding + ".weight"; }

  /// Returns the tensor of a slice, or -1. The blocks of a tensor share it.
  int64_t take(const ParamSpec& param, const ParamSlice& slice) {
    const auto known = taken_.find(slice.name);
    if (known != taken_.end()) return known->second;
    return taken_[slice.name] = find_tensor(param, slice);
  }

  int64_t find_tensor(const ParamSpec& param, const ParamSlice& slice) {
    auto found = number_of_.find(slice.name);
    const bool tied = adapter_.part.trains_tied_head && slice.name == embedding();
    if (found == number_of_.end() && tied) found = number_of_.find(head());
    if (found == number_of_.end()) {
      missing_.add(name_in_file(slice.name, adapter_.part));
      return -1;
    }
    const size_t number = found->second;
    number_of_.erase(found);
    const WeightIndex::Tensor& tensor = adapter_.index.tensors[number];
    const std::vector<int64_t> expected = stored_shape(param, slice);
    if (tensor.shape != expected) {
      wrong_shape_.add(fmt::format("{} is {} instead of {}", name_in_file(slice.name, adapter_.part),
                                   shape_text(tensor.shape), shape_text(expected)));
    } else if (!is_weight_type(tensor.type)) {
      wrong_type_.add(fmt::format("{} is {}", name_in_file(slice.name, adapter_.part), name_of(tensor.type)));
    }
    if (tied) match_.embedding = static_cast<int64_t>(number);
    return static_cast<int64_t>(number);
  }

  /// Ranks that share matrices have whole experts each: the tensors of the others belong to the adapter as well.
  void leave_out_other_ranks() {
    if (shape_.has_all_blocks()) return;
    for_each_slice(Decoder(shape_.whole()).units(), [&](const SlicePlace&, const ParamSpec&, const ParamSlice& slice) {
      if (is_adapter_name(slice.name)) number_of_.erase(slice.name);
    });
  }

  /// A tied matrix is stored twice. Where PEFT trained only one of the two, they are no longer one, whatever
  /// ensure_weight_tying says.
  void match_tied_head() {
    if (!adapter_.part.trains_tied_head || match_.embedding < 0) return;
    const auto found = number_of_.find(head());
    const bool both = found != number_of_.end();
    if (!both) {
      refuse(
          fmt::format("{} was trained alone, although the model uses one matrix for {} and {}. Merge the adapter with "
                      "PEFT, which makes two matrices of them",
                      printable(adapter_.index.tensors[static_cast<size_t>(match_.embedding)].name),
                      shape_.names.embedding, shape_.names.head));
    }
    const WeightIndex::Tensor& tensor = adapter_.index.tensors[found->second];
    const WeightIndex::Tensor& other = adapter_.index.tensors[static_cast<size_t>(match_.embedding)];
    if (tensor.shape != other.shape) {
      wrong_shape_.add(fmt::format("{} is {} instead of {}", printable(tensor.name), shape_text(tensor.shape),
                                   shape_text(other.shape)));
    } else if (!is_weight_type(tensor.type)) {
      wrong_type_.add(fmt::format("{} is {}", printable(tensor.name), name_of(tensor.type)));
    }
    match_.tied_head = static_cast<int64_t>(found->second);
    number_of_.erase(found);
  }

  const AdapterFolder& adapter_;
  const DecoderShape& shape_;
  std::map<std::string, size_t> number_of_;  ///< name in the model -> number of the stored tensor; those not taken yet
  std::map<std::string, int64_t, std::less<>> taken_;  ///< by name of a slice
  WeightMatch match_;
  Problems missing_{"missing"}, extra_{"not in the adapter"}, wrong_shape_{"with another shape"},
      wrong_type_{"with a type other than F32, BF16, F16"};
};

}  // namespace

std::string read_adapter_config(const std::string& folder) {
  const FolderHandle handle = FolderHandle::open(folder);
  if (handle.has(adapter_config_name)) {
    return handle.open_to_read(adapter_config_name).read_text(max_config_bytes);
  }
  std::error_code ignored;
  const std::string inner = folder + "/adapter";
  const bool run = std::filesystem::exists(fmt::format("{}/{}", inner, adapter_config_name), ignored);
  throw UserError(ExitCode::missing_input, fmt::format("{}: no {} here{}", folder, adapter_config_name,
                                                       run ? fmt::format("; did you mean {}?", inner)
                                                           : ", so it is not the folder of an adapter"));
}

bool take_head(const AdapterConfig& adapter, ModelConfig& model) {
  if (!adapter.scores() || model.scores()) return false;
  model.head = adapter.head;
  return true;
}

bool take_head(const AdapterConfig& adapter, const std::string& folder, ModelConfig& model) {
  if (!take_head(adapter, model)) return false;
  const FolderHandle handle = FolderHandle::open(folder);
  if (!handle.has(adapter_weights_name)) return true;  // whoever reads the weights reports it
  const WeightIndex index = read_weight_file(handle, adapter_weights_name);
  const std::string head = nominal_shape(model).names.score + ".weight";
  for (const WeightIndex::Tensor& tensor : index.tensors) {
    if (adapter_name_in_model(tensor.name) != head || tensor.shape.size() != 2) continue;
    const int64_t count = std::min(tensor.shape.front(), static_cast<int64_t>(max_labels));
    for (int64_t i = 0; i < count && count > 1; ++i) model.labels.push_back(fmt::format("LABEL_{}", i));
  }
  const auto said = [&](const char* key) {
    const auto found = index.metadata.find(key);
    return found == index.metadata.end() ? std::string() : found->second;
  };
  const nlohmann::json names = nlohmann::json::parse(said(labels_key), nullptr, false);
  const bool fits = names.is_array() && names.size() == model.labels.size() &&
                    std::ranges::all_of(names, [](const nlohmann::json& name) { return name.is_string(); });
  if (fits) model.labels = names.get<std::vector<std::string>>();
  const auto problem = std::ranges::find(enum_names<LabelProblem>, said(problem_key));
  if (problem != enum_names<LabelProblem>.end()) {
    model.problem = static_cast<LabelProblem>(problem - enum_names<LabelProblem>.begin());
  }
  return true;
}

LoraPart choose_stored_adapters(AdapterConfig& config, const ModelConfig& model, const std::string& place,
                                std::vector<std::string>& warnings) {
  name_expert_modules(config, model, place);
  LoraConfig& lora = config.lora;
  const std::vector<std::string> removed = remove_unmatched(lora, model);
  if (!removed.empty()) {
    warnings.push_back(fmt::format("{}: it names parameters that the model does not have; they are ignored: {}", place,
                                   without_controls(joined(removed, "; "))));
  }
  LoraPart part = choose_adapters(lora, model);
  if (part.errors.empty()) return part;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> other_names = {
      {{"alpha", "lora_alpha"}, {"r", "r"}}};
  std::string problems;
  for (const auto& [key, what] : part.errors) {
    const auto other = std::ranges::find(other_names, key, &std::pair<std::string_view, std::string_view>::first);
    problems +=
        fmt::format("{}{}: {}", problems.empty() ? "" : "\n  ", other == other_names.end() ? key : other->second, what);
  }
  throw UserError(ExitCode::bad_content, fmt::format("{}: the adapter does not fit the model: {}", place, problems));
}

AdapterFolder AdapterFolder::open(const std::string& folder, const DecoderShape& shape) {
  AdapterFolder adapter;
  adapter.folder = folder;
  const FolderHandle handle = FolderHandle::open(folder);
  const std::string place = handle.path_of(adapter_config_name);
  adapter.config = parse_adapter_config(read_adapter_config(folder), place);
  if (adapter.config.head != shape.config.head) {
    const auto kind = [](ModelConfig::Head head) {
      return head == ModelConfig::Head::language ? "a language model"
             : head == ModelConfig::Head::score  ? "a reward model, or one for labels of texts"
                                                 : "a model for labels of tokens";
    };
    throw UserError(ExitCode::bad_content, fmt::format("{}: task_type: the adapter is for {}, but the model is {}",
                                                       place, kind(adapter.config.head), kind(shape.config.head)));
  }
  adapter.warnings = adapter.config.warnings;
  adapter.part = choose_stored_adapters(adapter.config, shape.config, place, adapter.warnings);
  if (!handle.has(adapter_weights_name) && handle.has("adapter_model.bin")) {
    throw UserError(
        ExitCode::missing_input,
        fmt::format("{}: no {} here, but adapter_model.bin, an old PyTorch file. Reading such a file runs "
                    "code in it, so it is not read. If you trust it, load the adapter with PEFT and save it "
                    "again",
                    folder, adapter_weights_name));
  }
  adapter.index = read_weight_file(handle, adapter_weights_name);
  split_fused_adapters(adapter.index, adapter.config, adapter.part, shape.config);
  return adapter;
}

WeightMatch match_adapter(const AdapterFolder& adapter, const DecoderShape& shape, const std::vector<UnitSpec>& units) {
  return AdapterMatcher(adapter, shape).match(units);
}

LoadedAdapter load_adapter(const std::string& folder, const DecoderShape& shape, ParamStore& params,
                           Communicator& communicator, Stream& stream) {
  // Rank 0 alone reads the headers.
  std::string packed_index, packed_config, base_hash;
  on_root(communicator, [&] {
    const WeightIndex index = AdapterFolder::open(folder, shape).index;
    packed_index = index.packed();
    packed_config = read_adapter_config(folder);
    const auto hash = index.metadata.find(base_hash_key);
    if (hash != index.metadata.end()) base_hash = hash->second;
  });
  for (std::string* text : {&packed_index, &packed_config, &base_hash}) communicator.broadcast(*text);
  AdapterFolder adapter;
  WeightMatch match;
  throw_on_all_ranks(communicator, [&] {
    adapter.folder = folder;
    adapter.config = parse_adapter_config(packed_config, folder);
    adapter.part = choose_stored_adapters(adapter.config, shape.config, folder, adapter.warnings);
    adapter.index = WeightIndex::unpacked(packed_index);
    match = match_adapter(adapter, shape, units_of(params));
  });
  return {load_match(adapter.index, match, params, communicator, stream, {.publish = false}), base_hash};
}

namespace {

/// Makes ordinary adapters of those whose start was taken from the model's matrices: W - s B0 A0 + s B A, the model
/// that was trained, is W + s [B, -B0] [A; A0]. PEFT has the same (path_initial_model_for_weight_conversion).
class AdapterDoubling {
 public:
  AdapterDoubling(const std::string& start, bool reads) : active_(!start.empty()) {
    if (!active_ || !reads) return;
    const std::filesystem::path path = start;
    const FolderHandle folder = FolderHandle::open(path.parent_path().string());
    index_ = read_weight_file(folder, path.filename().string());
    file_.emplace(folder.open_to_read(path.filename().string()));
  }

  LoraConfig of(LoraConfig lora) const {
    if (!active_) return lora;
    const double factor = lora.rslora ? std::sqrt(2.0) : 2.0;
    lora.rank *= 2;
    lora.alpha *= factor;
    for (auto& [module, rank] : lora.rank_pattern) rank *= 2;
    for (auto& [module, alpha] : lora.alpha_pattern) alpha *= factor;
    lora.init = AdapterShape::Init::kaiming;
    return lora;
  }

  /// A slice of A or B as the first half of what is written.
  ParamSlice of(const ParamSpec& param, ParamSlice slice) const {
    if (!active_ || !is_adapter_name(slice.name)) return slice;
    const bool is_a = slice.name.ends_with(a_end);
    slice.block = TensorBlock{0, 0, slice.rows * (is_a ? 2 : 1), param.columns * (is_a ? 1 : 2)};
    return slice;
  }

  /// Writes the other half.
  void write(ModelFolderWriter& writer, const ParamSlice& slice) const {
    if (!active_ || !is_adapter_name(slice.name)) return;
    const WeightIndex::Tensor* const tensor = index_.find(slice.name);
    if (tensor == nullptr) {
      throw UserError(ExitCode::bad_content, fmt::format("{}: {} is missing", file_->path(), printable(slice.name)));
    }
    const int64_t elements = tensor->numel(), columns = tensor->shape.back();
    std::vector<float> values(static_cast<size_t>(elements));
    file_->read(tensor->begin, 4 * elements, values.data());
    if (slice.name.ends_with(a_end)) return writer.write(slice.name, elements, values.data(), elements);
    for (float& value : values) value = -value;
    for (int64_t at = 0; at < elements; at += columns) {
      writer.write(slice.name, 2 * at + columns, values.data() + at, columns);
    }
  }

 private:
  static constexpr std::string_view a_end = ".lora_A.weight";
  bool active_;
  WeightIndex index_;
  std::optional<FileHandle> file_;
};

}  // namespace

void write_adapter(const AdapterOutput& output, const DecoderShape& shape, const std::vector<UnitSpec>& units,
                   const GatherWeights& gather, Communicator& communicator) {
  const LoraPart part = choose_adapters(output.lora, shape.config);
  std::optional<AdapterDoubling> doubling;
  throw_on_all_ranks(communicator, [&] { doubling.emplace(output.start, communicator.rank() == 0); });
  const auto names_of = [&](const std::string& name) {
    std::vector<std::string> names = {name_in_file(name, part)};
    if (part.trains_tied_head && name == shape.names.embedding + ".weight") {
      names.push_back(name_in_file(shape.names.head + ".weight", part));
    }
    return names;
  };
  const auto for_slices = [&](const auto& work) {
    const std::vector<UnitLayout> layouts = layouts_of(units);
    for_each_slice(units, [&](const SlicePlace& place, const ParamSpec& param, const ParamSlice& slice) {
      const bool stored = is_adapter_name(slice.name) || part.trained.contains(slice.name);
      if (!stored && !shape.saved_tables.contains(slice.name)) return;
      work(place.unit, place.offset(layouts), param, doubling->of(param, exported_slice(shape, slice)));
    });
  };
  std::unique_ptr<ModelFolderWriter> writer;
  on_root(communicator, [&] {
    ModelFolderPlan plan;
    plan.path = output.folder;
    plan.overwrite = output.overwrite;
    plan.single_file = adapter_weights_name;
    plan.file_bytes = std::numeric_limits<int64_t>::max();
    if (!output.base_hash.empty()) plan.metadata[base_hash_key] = output.base_hash;
    const auto quantized =
        std::ranges::find_if(units, [](const UnitSpec& unit) { return unit.quantization.has_value(); });
    if (quantized != units.end()) plan.metadata[base_quantization_key] = description_of(*quantized->quantization);
    if (shape.config.classifies()) {
      plan.metadata[labels_key] = nlohmann::json(shape.config.labels).dump();
      plan.metadata[problem_key] = name_of(shape.config.problem);
    }
    AdapterConfig config;
    config.lora = doubling->of(output.lora);
    config.base = output.base;
    plan.texts[adapter_config_name] = write_adapter_config(config, part, shape.config);
    for_slices([&](int, int64_t, const ParamSpec& param, const ParamSlice& slice) {
      for (const std::string& name : names_of(slice.name)) {
        plan.tensors.push_back({name, StoredType::F32, stored_shape(param, slice), 0, 0});
      }
    });
    writer = std::make_unique<ModelFolderWriter>(std::move(plan));
  });
  SliceWriter slices(gather, writer.get(), communicator, /*cancellable=*/false);
  for_slices([&](int unit, int64_t offset, const ParamSpec& param, const ParamSlice& slice) {
    slices.write(unit, offset, param, slice, names_of(slice.name));
    if (writer) slices.keep_failure([&] { doubling->write(*writer, slice); });
  });
  throw_on_all_ranks(communicator, [&] { slices.raise(); });  // of any rank, before the folder gets its name
  throw_on_all_ranks(communicator, [&] {
    if (writer) writer->publish();
  });
}

}  // namespace llmtrain
