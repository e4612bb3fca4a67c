#include "hf/adapters/fused_adapters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "hf/weights/fused_experts.hpp"
#include "hf/weights/match_weights.hpp"
#include "models/model_modules.hpp"
#include "models/models.hpp"

namespace llmtrain {
namespace {

/// The fused matrix of a layer's experts.
struct FusedParameter {
  std::string name;
  int64_t layer;
  bool first;                        ///< gate and up
  std::vector<std::string> modules;  ///< patterns of the names of its parts
};

/// Those that an adapter targets, by PEFT's rule for names.
std::vector<FusedParameter> targeted(const AdapterConfig& config, const ModelConfig& model) {
  std::vector<FusedParameter> found;
  const DecoderNames names = nominal_shape(model).names;
  for (int64_t layer = 0; layer < model.n_layers; ++layer) {
    if (!model.experts.in_layer(layer)) continue;
    for (const bool first : {true, false}) {
      const std::string name = fmt::format(fmt::runtime(first ? fused_first_name : fused_last_name), layer);
      if (!ModuleMatcher({config.target_parameters, {}}).matches(name)) continue;
      found.push_back({name, layer, first,
                       first ? std::vector{names.expert_gate, names.expert_up} : std::vector{names.expert_down}});
    }
  }
  return found;
}

double number_of(const ModuleNumbers& numbers, const std::string& name, double otherwise) {
  for (const auto& [pattern, number] : numbers) {
    if (NameEnd(pattern).matches(name)) return number;
  }
  return otherwise;
}

/// Regular expression for the modules of all experts in some layers.
std::string expert_regex(const std::vector<std::string>& modules, const std::string& layers) {
  std::string last;
  for (const std::string& module : modules) last += fmt::format("{}{}", last.empty() ? "" : "|", last_part_of(module));
  const std::string expert(parent_module(modules.front()));
  return fmt::format(fmt::runtime(expert), layers, "[0-9]+") + ".(?:" + last + ")";
}

/// In a model with fused experts no module of an expert exists.
void leave_out_experts(ModulePattern& pattern, const std::string& experts) {
  if (pattern.empty()) return;
  std::string regex = pattern.regex;
  for (const std::string& name : pattern.names) regex += (regex.empty() ? "" : "|") + name;
  pattern = {{}, fmt::format("(?!{}){}(?:{})", experts, pattern.regex.empty() ? "(?:.*\\.)?" : "", regex)};
}

class Splitter {
 public:
  Splitter(WeightIndex& index, const ModelConfig& model) : index_(index), model_(model) {
    for (size_t i = 0; i < index.tensors.size(); ++i) {
      number_of_.emplace(adapter_name_in_model(index.tensors[i].name), i);
    }
    replaced_.resize(index.tensors.size());
  }

  void split(const FusedParameter& fused, bool nested, const LoraPart& part) {
    const auto module = part.modules.find(at(fused.modules.front(), fused.layer, 0));
    if (module == part.modules.end()) return;
    const std::string parent = fused.name.substr(0, fused.name.rfind('.')) + (nested ? ".base_layer" : "");
    const int64_t rank = module->second.rank, all = rank * model_.experts.count;
    const int64_t inputs = fused.first ? model_.d_model : model_.experts.d_ff;
    const int64_t outputs = fused.first ? model_.experts.d_ff : model_.d_model;  // of a part
    const auto parts = std::ssize(fused.modules);
    const WeightIndex::Tensor* a = take(lora_a_name(parent), {all, inputs});
    const WeightIndex::Tensor* b = take(lora_b_name(parent), {parts * outputs, all});
    if (a == nullptr || b == nullptr) return;
    const bool alternate = !nominal_shape(model_).names.fused_first.empty();
    const int64_t row = (alternate ? parts : 1) * all, between = alternate ? all : outputs * all;
    for (int64_t expert = 0; expert < model_.experts.count; ++expert) {
      for (int64_t i = 0; i < parts; ++i) {
        const std::string name = at(fused.modules[static_cast<size_t>(i)], fused.layer, expert);
        add(*a, lora_a_name(name), {rank, inputs}, expert * rank * inputs, {inputs, 1});
        add(*b, lora_b_name(name), {outputs, rank}, i * between + expert, {row, model_.experts.count});
      }
    }
  }

  void finish() {
    const std::string problems = missing_.text() + wrong_shape_.text();
    if (!problems.empty()) {
      throw UserError(ExitCode::bad_content,
                      fmt::format("{}/{}: the tensors do not fit the target_parameters of {}{}", index_.folder,
                                  adapter_weights_name, adapter_config_name, problems));
    }
    for (size_t t = 0; t < replaced_.size(); ++t) {
      if (!replaced_[t]) added_.push_back(std::move(index_.tensors[t]));
    }
    std::ranges::sort(added_, {}, &WeightIndex::Tensor::name);
    index_.tensors = std::move(added_);
  }

 private:
  static std::string at(const std::string& pattern, int64_t layer, int64_t expert) {
    return fmt::format(fmt::runtime(pattern), layer, expert);
  }

  const WeightIndex::Tensor* take(const std::string& name, const std::vector<int64_t>& shape) {
    const auto found = number_of_.find(name);
    if (found == number_of_.end()) {
      missing_.add(name);
      return nullptr;
    }
    const WeightIndex::Tensor& tensor = index_.tensors[found->second];
    replaced_[found->second] = true;
    if (tensor.shape == shape) return &tensor;
    wrong_shape_.add(fmt::format("{} is {} instead of {}", name, shape_text(tensor.shape), shape_text(shape)));
    return nullptr;
  }

  /// Adds a matrix whose elements begin at `first`.
  void add(const WeightIndex::Tensor& whole, const std::string& name, const std::vector<int64_t>& shape, int64_t first,
           const WeightIndex::Strides& strides) {
    const int64_t bytes = bits_of(whole.type) / 8;
    WeightIndex::Tensor one = whole;
    one.name = name;
    one.shape = shape;
    one.begin = whole.begin + first * bytes;
    one.end = one.begin + ((shape[0] - 1) * strides.row + (shape[1] - 1) * strides.column + 1) * bytes;
    if (strides.row != shape[1] || strides.column != 1) one.strides = strides;
    added_.push_back(std::move(one));
  }

  WeightIndex& index_;
  const ModelConfig& model_;
  std::map<std::string, size_t> number_of_;  ///< name in the model -> number of the stored tensor
  std::vector<bool> replaced_;               ///< by tensor of the index
  std::vector<WeightIndex::Tensor> added_;
  Problems missing_{"missing"}, wrong_shape_{"with another shape"};
};

}  // namespace

void name_expert_modules(AdapterConfig& config, const ModelConfig& model, const std::string& place) {
  if (config.target_parameters.empty()) return;
  const auto refuse = [&](const std::string& what) {
    throw UserError(ExitCode::bad_content, fmt::format("{}: {}", place, what));
  };
  const std::vector<FusedParameter> parameters = targeted(config, model);
  for (const std::string& target : config.target_parameters) {
    if (std::ranges::any_of(parameters, [&](const auto& p) { return ModuleMatcher::names(target, p.name); })) continue;
    refuse(
        fmt::format("target_parameters: {}: only those of fused experts, {} and {}, can have adapters in models with "
                    "experts",
                    printable(target), fused_first_name, fused_last_name));
  }
  LoraConfig& lora = config.lora;
  if (!lora.layers_to_transform.empty() && !lora.target_modules.empty()) {
    refuse("layers_to_transform: it cannot be combined with target_parameters, which PEFT applies in all layers");
  }
  lora.layers_to_transform.clear();
  lora.layers_pattern.clear();
  const DecoderNames names = nominal_shape(model).names;
  const std::string experts = expert_regex({names.expert_gate, names.expert_up, names.expert_down}, "[0-9]+");
  for (ModulePattern* pattern : {&lora.target_modules, &lora.exclude_modules}) leave_out_experts(*pattern, experts);
  std::map<std::tuple<bool, double, double>, std::string> layers;
  for (const FusedParameter& p : parameters) {
    std::string& list = layers[{p.first, number_of(lora.rank_pattern, p.name, static_cast<double>(lora.rank)),
                                number_of(lora.alpha_pattern, p.name, lora.alpha)}];
    list += fmt::format("{}{}", list.empty() ? "" : "|", p.layer);
  }
  ModuleNumbers ranks, alphas;
  for (const auto& [group, list] : layers) {
    const auto& [first, rank, alpha] = group;
    const std::vector<std::string> modules =
        first ? std::vector{names.expert_gate, names.expert_up} : std::vector{names.expert_down};
    const std::string regex = expert_regex(modules, "(?:" + list + ")");
    lora.target_modules.regex += (lora.target_modules.regex.empty() ? "" : "|") + regex;
    if (!lora.rank_pattern.empty()) ranks.emplace_back(regex, rank);
    if (!lora.alpha_pattern.empty()) alphas.emplace_back(regex, alpha);
  }
  for (auto [all, own] : {std::pair(&lora.rank_pattern, &ranks), std::pair(&lora.alpha_pattern, &alphas)}) {
    std::erase_if(*all, [](const auto& item) {
      return item.first.ends_with("gate_up_proj") || item.first.ends_with("experts.down_proj");
    });
    all->insert(all->begin(), own->begin(), own->end());
  }
}

void split_fused_adapters(WeightIndex& index, const AdapterConfig& config, const LoraPart& part,
                          const ModelConfig& model) {
  if (config.target_parameters.empty()) return;
  const std::vector<FusedParameter> parameters = targeted(config, model);
  Splitter splitter(index, model);
  for (const FusedParameter& p : parameters) {
    const bool nested = p.first && std::ranges::any_of(parameters, [&](const FusedParameter& other) {
                          return other.layer == p.layer && !other.first;
                        });
    splitter.split(p, nested, part);
  }
  splitter.finish();
}

}  // namespace llmtrain
