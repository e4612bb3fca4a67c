#include <fmt/format.h>

#include <algorithm>

#include "core/deck/suggestion.hpp"
#include "models/lora.hpp"
#include "models/model_modules.hpp"
#include "models/models.hpp"

namespace llmtrain {

namespace {

class StoredLora {
 public:
  StoredLora(LoraConfig& config, const ModelConfig& model)
      : config_(config), model_(model), modules_(nominal_shape(model).names, Decoder(nominal_shape(model)).units()) {}

  std::vector<std::string> remove() {
    const auto named = [&](const std::string& name) { return is_there({{name}, {}}); };
    if (all_linear() || std::ranges::any_of(config_.target_modules.names, named)) {
      keep("target_modules", config_.target_modules.names,
           [&](const std::string& n) { return all_linear() || named(n); });
    }
    keep("exclude_modules", config_.exclude_modules.names, named);
    std::string& excluded = config_.exclude_modules.regex;
    if (!excluded.empty() && !is_there({{}, excluded})) {
      removed_.push_back("exclude_modules " + excluded);
      excluded.clear();
    }
    keep("modules_to_save", config_.modules_to_save,
         [&](const std::string& name) { return !modules_.saved_by(name).empty(); });
    remove_layers();
    remove_patterns();
    return std::move(removed_);
  }

 private:
  bool all_linear() const {
    const std::vector<std::string>& names = config_.target_modules.names;
    return names.size() == 1 && names_all_linear(names.front());
  }

  /// Returns true also for what is not a regular expression, which choose_adapters() reports.
  bool is_there(const ModulePattern& pattern) const {
    try {
      return !modules_.matched(pattern).empty();
    } catch (const UserError&) {
      return true;
    }
  }

  template <class Item>
  static std::string text_of(const Item& item) {
    if constexpr (requires { item.first; }) {
      return item.first;
    } else {
      return fmt::format("{}", item);
    }
  }

  template <class Item, class Matches>
  void keep(const char* key, std::vector<Item>& items, const Matches& matches) {
    std::vector<std::string> gone;
    std::erase_if(items, [&](const Item& item) {
      if (matches(item)) return false;
      gone.push_back(text_of(item));
      return true;
    });
    if (!gone.empty()) removed_.push_back(fmt::format("{} {}", key, joined(gone, ", ")));
  }

  /// Targets that are named in full remain even if no layer does.
  void remove_layers() {
    std::vector<int64_t>& layers = config_.layers_to_transform;
    const auto exists = [&](int64_t layer) { return layer < model_.n_layers; };
    std::vector<std::string>& names = config_.target_modules.names;
    const auto in_full = [&](const std::string& name) { return modules_.all.contains(name); };
    if (std::ranges::none_of(layers, exists)) {
      if (layers.empty() || std::ranges::none_of(names, in_full)) return;
      keep("target_modules", names, in_full);
      config_.layers_pattern.clear();
    }
    keep("layers_to_transform", layers, exists);
  }

  void remove_patterns() {
    LoraConfig without = config_;
    without.rank_pattern.clear();
    without.alpha_pattern.clear();
    const LoraPart part = choose_adapters(without, model_);
    const auto matches = [&](const std::pair<std::string, double>& pattern) {
      try {
        const NameEnd end(pattern.first);
        return std::ranges::any_of(part.modules, [&](const auto& m) { return end.matches(m.first); });
      } catch (const UserError&) {
        return true;
      }
    };
    if (part.modules.empty()) return;
    keep("rank_pattern", config_.rank_pattern, matches);
    keep("alpha_pattern", config_.alpha_pattern, matches);
  }

  LoraConfig& config_;
  const ModelConfig& model_;
  const ModelModules modules_;
  std::vector<std::string> removed_;
};

}  // namespace

std::vector<std::string> remove_unmatched(LoraConfig& config, const ModelConfig& model) {
  return StoredLora(config, model).remove();
}

}  // namespace llmtrain
