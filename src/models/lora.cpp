#include "models/lora.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "core/deck/suggestion.hpp"
#include "models/model_modules.hpp"
#include "models/models.hpp"
#include "params/unit_layout.hpp"
#include "text/split/python_regex.hpp"

namespace llmtrain {

namespace {

/// Finds the number of a module's layer as PEFT does.
class LayerFinder {
 public:
  explicit LayerFinder(const std::vector<std::string>& patterns) {
    for (const std::string& pattern : patterns) {
      patterns_.push_back(std::make_unique<PythonRegex>("(?:.*?\\.)?(?:" + pattern + ")\\.(?=\\d+\\.)", pattern));
    }
  }

  std::optional<int64_t> layer_of(const std::string& module) const {
    for (const auto& pattern : patterns_) {
      if (const auto end = pattern->match_end(module)) return number_at(module, *end);
    }
    if (!patterns_.empty()) return std::nullopt;
    for (size_t dot = module.find('.'); dot != std::string::npos; dot = module.find('.', dot + 1)) {
      const bool segments = std::count(module.begin(), module.begin() + static_cast<int64_t>(dot), '.') >= 1;
      if (segments && number_at(module, dot + 1)) return number_at(module, dot + 1);
    }
    return std::nullopt;
  }

 private:
  static std::optional<int64_t> number_at(const std::string& module, size_t begin) {
    size_t end = begin;
    while (end < module.size() && std::isdigit(static_cast<unsigned char>(module[end])) != 0) ++end;
    if (end == begin || end - begin > 9 || end >= module.size() || module[end] != '.') return std::nullopt;
    return std::stoll(module.substr(begin, end - begin));
  }

  std::vector<std::unique_ptr<PythonRegex>> patterns_;
};

class AdapterChooser {
 public:
  AdapterChooser(const LoraConfig& config, const ModelConfig& model)
      : config_(config),
        model_(model),
        units_(Decoder(nominal_shape(model)).units()),
        modules_(nominal_shape(model).names, units_) {}

  LoraPart choose() {
    check_layers();
    NameSet targets = find_targets();
    find_tying(targets);
    if (part_.errors.empty()) exclude(targets);
    if (part_.errors.empty()) shape_adapters(targets);
    if (part_.errors.empty()) part_.targets = peft_targets();
    choose_saved();
    choose_biases();
    return std::move(part_);
  }

 private:
  void fail(const char* key, const std::string& what) { part_.errors.emplace_back(key, what); }

  /// Runs work, whose UserError is one of the key.
  void guard(const char* key, const std::function<void()>& work) {
    try {
      work();
    } catch (const UserError& error) {
      fail(key, error.what());
    }
  }

  std::string names_that_exist(std::string_view wanted, const NameSet& modules) const {
    const NameSet parts = last_parts_of(modules);
    const std::vector<std::string_view> known(parts.begin(), parts.end());
    return fmt::format("{}; it has {}", did_you_mean(wanted, known), joined(known));
  }

  bool all_linear() const {
    const std::vector<std::string>& names = config_.target_modules.names;
    return names.size() == 1 && names_all_linear(names.front());
  }

  void check_layers() {
    for (const int64_t layer : config_.layers_to_transform) {
      if (layer >= model_.n_layers) {
        fail("layers_to_transform", fmt::format("{}: the model's layers are 0 to {}", layer, model_.n_layers - 1));
      }
    }
    if (config_.layers_to_transform.empty()) {
      if (!config_.layers_pattern.empty()) fail("layers_pattern", "has no effect without lora.layers_to_transform");
    } else if (!config_.target_modules.regex.empty()) {
      fail("layers_to_transform",
           "cannot be combined with a regular expression in lora.target_modules: write the layers into it, or list "
           "names");
    }
  }

  NameSet find_targets() {
    if (all_linear()) return in_layers(modules_.linear);
    NameSet found;
    if (!config_.target_modules.regex.empty()) {
      guard("target_modules", [&] { found = modules_.matched(config_.target_modules); });
      if (found.empty() && part_.errors.empty()) {
        fail("target_modules", "the regular expression does not match the full name of any module" +
                                   names_that_exist(config_.target_modules.regex, modules_.linear));
      }
    }
    for (const std::string& name : config_.target_modules.names) {
      NameSet of_name = modules_.matched({{name}, {}});
      if (name.empty() || of_name.empty()) {
        fail("target_modules", fmt::format("the model has no {}{}", name, names_that_exist(name, modules_.linear)));
      }
      NameSet kept = in_layers(of_name);
      if (of_name.contains(name)) kept.insert(name);
      found.merge(kept);
    }
    if (config_.target_modules.empty()) fail("target_modules", "does not name a module");
    if (part_.errors.empty()) check_kinds(found);
    return found;
  }

  NameSet in_layers(NameSet found) {
    if (config_.layers_to_transform.empty()) return found;
    guard("layers_pattern", [&] {
      const LayerFinder finder(config_.layers_pattern);
      std::erase_if(found, [&](const std::string& module) {
        const std::optional<int64_t> layer = finder.layer_of(module);
        return !layer || std::ranges::find(config_.layers_to_transform, *layer) == config_.layers_to_transform.end();
      });
    });
    return found;
  }

  /// Modules that modules_to_save trains whole are none of the targets, whatever they are.
  void check_kinds(const NameSet& found) {
    for (const std::string& module : found) {
      if (modules_.linear.contains(module) || is_saved(module)) continue;
      if (!modules_.tables.contains(module) || module == score_ || (model_.scores() && module == modules_.head)) {
        return fail("target_modules", fmt::format("{} is not a linear layer or an embedding{}", module,
                                                  names_that_exist(module, modules_.linear)));
      }
      if (config_.dora && module != modules_.head) {
        return fail("dora", fmt::format("the adapter of the embedding {} cannot have magnitudes here: remove it from "
                                        "lora.target_modules, or set lora.dora = false",
                                        module));
      }
    }
  }

  /// PEFT trains a head apart from the embedding that it is tied to, unless it is told to keep the two one.
  void find_tying(NameSet& targets) {
    if (!model_.ties_head()) return;
    const std::array<std::string, 2> pair = {modules_.embedding, modules_.head};
    const bool saved = std::ranges::any_of(config_.modules_to_save, [&](const std::string& end) {
      const NameSet named = modules_.saved_by(end);
      return named.contains(pair[0]) || named.contains(pair[1]);
    });
    const bool targeted =
        std::ranges::any_of(pair, [&](const std::string& module) { return targets.contains(module); });
    part_.unties_head = saved && !config_.ensure_weight_tying;
    if (part_.unties_head) {
      part_.notes.emplace_back("modules_to_save",
                               "the embedding and the head, which are one matrix in the model, become two, and the "
                               "merged model has both (lora.ensure_weight_tying = true trains them as one)");
    } else if (saved && targeted) {
      for (const std::string& module : pair) targets.erase(module);  // both are trained whole
    } else if (targeted) {
      if (config_.ensure_weight_tying) targets.insert(pair.begin(), pair.end());
      part_.notes.emplace_back("target_modules",
                               "the embedding and the head are one matrix in the model; with an adapter they differ, "
                               "and the merged model has two");
    }
  }

  /// PEFT's rule for what is not adapted: the module, a part of it, or one that contains it.
  bool is_saved(const std::string& module) const {
    return std::ranges::any_of(config_.modules_to_save, [&](const std::string& saved) {
      return ("." + module + ".").find("." + saved + ".") != std::string::npos;
    });
  }

  void exclude(NameSet& targets) {
    const size_t before = targets.size();
    const ModulePattern& pattern = config_.exclude_modules;
    guard("exclude_modules", [&] {
      if (!pattern.regex.empty()) exclude_matched(targets, pattern, pattern.regex);
      for (const std::string& name : pattern.names) exclude_matched(targets, {{name}, {}}, name);
    });
    std::erase_if(targets, [&](const std::string& module) { return is_saved(module); });
    if (!targets.empty() || !part_.errors.empty()) return;
    if (before == 0) return fail("layers_to_transform", "no target module lies in these layers");
    fail("target_modules", "every target is excluded by lora.exclude_modules or trained whole by lora.modules_to_save");
  }

  void exclude_matched(NameSet& targets, const ModulePattern& pattern, const std::string& text) {
    const NameSet excluded = modules_.matched(pattern);
    if (excluded.empty()) {
      fail("exclude_modules", fmt::format("the model has no {}{}", text, names_that_exist(text, modules_.linear)));
    }
    for (const std::string& module : excluded) targets.erase(module);
  }

  /// Numbers that the patterns give to targets; the first match counts.
  std::map<std::string, double> numbers_of(const ModuleNumbers& numbers, const char* key, const NameSet& targets) {
    std::map<std::string, double> found;
    guard(key, [&] {
      for (const auto& [pattern, number] : numbers) {
        const NameEnd end(pattern);
        bool matches = false;
        for (const std::string& module : targets) {
          if (!end.matches(module)) continue;
          matches = true;
          found.emplace(module, number);
        }
        if (matches) continue;
        fail(key, fmt::format("no module with an adapter is called {}{}", pattern, names_that_exist(pattern, targets)));
      }
    });
    return found;
  }

  void shape_adapters(const NameSet& targets) {
    const auto ranks = numbers_of(config_.rank_pattern, "rank_pattern", targets);
    const auto alphas = numbers_of(config_.alpha_pattern, "alpha_pattern", targets);
    const auto number_of = [](const auto& numbers, const std::string& module, double otherwise) {
      const auto found = numbers.find(module);
      return found == numbers.end() ? otherwise : found->second;
    };
    for (const std::string& module : targets) {
      AdapterShape& shape = part_.modules[module];
      const double rank = number_of(ranks, module, static_cast<double>(config_.rank));
      const double alpha = number_of(alphas, module, config_.alpha);
      shape.rank = static_cast<int64_t>(rank);
      shape.scale = alpha / (config_.rslora ? std::sqrt(rank) : rank);
      shape.dropout = config_.dropout;
      shape.dora = config_.dora;
      shape.init = config_.init;
      shape.learning_rate_ratio = config_.learning_rate_ratio;
    }
    if (config_.init == AdapterShape::Init::gaussian) check_ranks();
  }

  /// Modules that are one matrix have one A, which starts with one deviation.
  void check_ranks() {
    for (const UnitSpec& unit : units_) {
      for (const ParamSpec& param : unit.params) {
        int64_t rank = 0;
        for (const ParamSlice& slice : param.slices) {
          const auto found = part_.modules.find(parent_module(slice.name));
          if (found == part_.modules.end()) continue;
          if (rank > 0 && found->second.rank != rank) {
            return fail("rank_pattern", fmt::format("{} is one matrix with others of another rank, which lora.init = "
                                                    "gaussian does not allow",
                                                    found->first));
          }
          rank = found->second.rank;
        }
      }
    }
  }

  /// The names of a list are PEFT's too. What a regular expression or all-linear chooses is listed by last parts of
  /// names if they name nothing else, since PEFT counts modules that have no parameters and are not known here.
  std::vector<std::string> peft_targets() const {
    const ModulePattern& targets = config_.target_modules;
    if (targets.regex.empty() && !all_linear()) return targets.names;
    NameSet modules;
    for (const auto& [module, shape] : part_.modules) modules.insert(module);
    const NameSet parts = last_parts_of(all_linear() ? modules_.linear : modules);
    const bool alone = std::ranges::all_of(modules_.all, [&](const std::string& module) {
      return !parts.contains(last_part_of(module)) || (all_linear() ? modules_.linear : modules).contains(module);
    });
    const NameSet& chosen = alone ? parts : modules;
    return {chosen.begin(), chosen.end()};
  }

  void choose_saved() {
    for (const std::string& saved : config_.modules_to_save) {
      const NameSet found = modules_.saved_by(saved);
      if (found.empty()) {
        fail("modules_to_save", fmt::format("the model has no {}{}", saved, names_that_exist(saved, modules_.all)));
      }
      for (const std::string& module : found) train_module(saved, module);
    }
    // A score is trained and stored with the adapters, as by PEFT (task type SEQ_CLS).
    if (model_.scores()) train_module(score_, score_);
  }

  void train_module(const std::string& saved, const std::string& module) {
    for (const auto& [adapted, shape] : part_.modules) {
      if (adapted != module && !adapted.starts_with(module + ".")) continue;
      return fail("modules_to_save",
                  fmt::format("{} also fits {}, which is adapted: give more of the name", saved, adapted));
    }
    const bool of_pair = model_.ties_head() && (module == modules_.head || module == modules_.embedding);
    const bool tied = of_pair && !part_.unties_head;
    if (of_pair && !tied && module == modules_.head) part_.trained.insert(module + ".weight");
    if (tied && !part_.trains_tied_head) {
      part_.trains_tied_head = true;
      part_.notes.emplace_back("modules_to_save",
                               "the embedding is the head's matrix too, so that both are trained as one "
                               "(lora.ensure_weight_tying = false trains them separately)");
    }
    for_tensors([&](const std::string& name) {
      const std::string_view own = parent_module(name);
      const bool inside = own == module || own.starts_with(module + ".");
      if (inside || (tied && own == modules_.embedding)) part_.trained.insert(name);
    });
  }

  void choose_biases() {
    if (config_.bias == LoraConfig::Bias::none) return;
    bool found = false;
    for_tensors([&](const std::string& name) {
      if (!name.ends_with(".bias")) return;
      if (config_.bias == LoraConfig::Bias::lora_only && !part_.modules.contains(parent_module(name))) return;
      part_.trained.insert(name);
      found = true;
    });
    if (!found && part_.errors.empty()) part_.notes.emplace_back("bias", "the model has no such bias");
  }

  void for_tensors(const std::function<void(const std::string&)>& work) const {
    for_each_slice(units_, [&](SlicePlace, const ParamSpec&, const ParamSlice& slice) { work(slice.name); });
  }

  const LoraConfig& config_;
  const ModelConfig& model_;
  std::vector<UnitSpec> units_;
  ModelModules modules_;
  std::string score_ = nominal_shape(model_).names.score;
  LoraPart part_;
};

}  // namespace

LoraPart choose_adapters(const LoraConfig& config, const ModelConfig& model) {
  return AdapterChooser(config, model).choose();
}

void use_saved_tables(DecoderShape& shape, const LoraConfig& config) {
  if (config.saved_embeddings.empty()) return;
  shape.saved_tables = {config.path, {}};
  for (const std::string& module : config.saved_embeddings) shape.saved_tables.names.push_back(module + ".weight");
}

void adapt(DecoderShape& shape, const LoraConfig& config) {
  const auto part = std::make_shared<const LoraPart>(choose_adapters(config, shape.config));
  LLMTRAIN_CHECK(part->errors.empty(), "the keys of [lora] have been checked");
  if (part->unties_head) shape.untie_head();
  use_saved_tables(shape, config);
  shape.adapters = [part](const std::string& module) -> std::optional<AdapterShape> {
    const auto found = part->modules.find(module);
    return found == part->modules.end() ? std::nullopt : std::optional(found->second);
  };
  shape.trained = [part](const std::string& name) { return part->trained.contains(name); };
}

}  // namespace llmtrain
