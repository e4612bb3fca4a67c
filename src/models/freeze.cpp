#include "models/freeze.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>

#include "core/deck/deck.hpp"
#include "core/deck/suggestion.hpp"
#include "models/models.hpp"
#include "params/unit_layout.hpp"

namespace llmtrain {

namespace {

constexpr std::string_view nothing = "none";

/// A tensor's name, taken apart: model.layers.3.mlp.down_proj.weight is module mlp.down_proj of layer 3, and
/// model.norm.weight is module norm.
struct TensorName {
  std::optional<int64_t> layer;
  std::string module;  ///< without layer and weight or bias
};

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// "model.norm" -> "norm"
std::string_view last_part(std::string_view module) { return module.substr(module.find_last_of('.') + 1); }

TensorName parse_name(const std::string& name) {
  TensorName parsed;
  std::string_view rest = name;
  rest = rest.substr(0, rest.find_last_of('.'));  // weight or bias
  for (size_t at = 0; at < rest.size();) {
    const size_t end = std::min(rest.find('.', at), rest.size());
    if (is_number(rest.substr(at, end - at))) {
      parsed.layer = std::atoll(std::string(rest.substr(at, end - at)).c_str());
      rest = rest.substr(std::min(end + 1, rest.size()));
      break;
    }
    at = end + 1;
  }
  parsed.module = parsed.layer ? rest : last_part(rest);
  return parsed;
}

/// True if the module is `wanted` or a part of it: mlp, down_proj and mlp.down_proj name mlp.down_proj.
bool names(std::string_view wanted, const std::string& module) {
  return ("." + module + ".").find("." + std::string(wanted) + ".") != std::string::npos;
}

/// Every dotted part of the modules, such as mlp and down_proj.
std::set<std::string, std::less<>> parts_of(const std::vector<TensorName>& tensors) {
  std::set<std::string, std::less<>> parts;
  for (const TensorName& t : tensors) {
    for (size_t at = 0; at <= t.module.size();) {
      const size_t end = std::min(t.module.find('.', at), t.module.size());
      parts.insert(t.module.substr(at, end - at));
      at = end + 1;
    }
  }
  return parts;
}

class Chooser {
 public:
  Chooser(const FreezeConfig& config, const ModelConfig& model)
      : config_(config),
        model_(model),
        names_(nominal_shape(model).names),
        units_(Decoder(nominal_shape(model)).units()) {
    for_each_slice(units_, [&](SlicePlace, const ParamSpec&, const ParamSlice& slice) {
      TensorName name = parse_name(slice.name);
      (name.layer ? inside_ : outside_).push_back(name);
    });
  }

  FrozenPart choose() {
    choose_layers();
    check_modules("trainable_modules", config_.trainable_modules, inside_, "all");
    check_modules("extra_modules", config_.extra_modules, outside_, tied_head());
    if (!part_.errors.empty()) return std::move(part_);
    size_t all = 0;
    for (const UnitSpec& unit : units_) {
      for (const ParamSpec& param : unit.params) all += choose_slices(param);
    }
    if (part_.errors.empty() && part_.trained.empty()) {
      fail("trainable_layers", "nothing would be trained: name layers, or modules in freeze.extra_modules");
    }
    if (part_.trained.size() == all) {
      fail("trainable_layers",
           "every parameter would be trained: set run.finetuning = full, or name fewer layers or modules");
    }
    return std::move(part_);
  }

 private:
  void fail(const char* key, const std::string& what) { part_.errors.emplace_back(key, what); }

  void choose_layers() {
    const int64_t n = config_.trainable_layers, layers = model_.n_layers;
    if (n > layers || n < -layers) {
      return fail("trainable_layers", fmt::format("{}: the model has {} layers", n, layers));
    }
    if (config_.llama_pro) {
      if (n <= 0 || layers % n != 0) {
        return fail("trainable_layers",
                    fmt::format("{}: with freeze.llama_pro it must divide the model's {} layers", n, layers));
      }
      for (int64_t last = layers / n - 1; last < layers; last += layers / n) layers_.insert(last);
      return;
    }
    for (int64_t i = 0; i < std::abs(n); ++i) layers_.insert(n > 0 ? layers - 1 - i : i);
  }

  /// The head's name where it is the embedding's matrix, else empty.
  std::string tied_head() const { return model_.ties_head() ? names_.head : std::string(); }

  void check_modules(const char* key, const std::vector<std::string>& wanted, const std::vector<TensorName>& tensors,
                     const std::string& further) {
    for (const std::string& module : wanted) {
      if (!module.empty() && (module == further || module == nothing)) continue;
      const bool found =
          !module.empty() && std::ranges::any_of(tensors, [&](const TensorName& t) { return names(module, t.module); });
      if (found) continue;
      const std::set<std::string, std::less<>> parts = parts_of(tensors);
      std::vector<std::string_view> known(parts.begin(), parts.end());
      if (!further.empty()) known.emplace_back(further);
      fail(key, fmt::format("the model has no {}{}; it has {}", module, did_you_mean(module, known), joined(known)));
    }
  }

  bool is_trained(const TensorName& name) const {
    const auto chosen = [&](const std::vector<std::string>& wanted, const std::string& further) {
      return std::ranges::any_of(wanted, [&](const std::string& module) {
        return names(module, name.module) || (!further.empty() && module == further);
      });
    };
    if (name.layer) return layers_.contains(*name.layer) && chosen(config_.trainable_modules, "all");
    if (model_.scores() && name.module == names_.score) return true;  // it may be new
    const bool is_table = name.module == last_part(names_.embedding);
    return chosen(config_.extra_modules, is_table ? tied_head() : std::string());
  }

  /// Returns the number of slices. A matrix is trained or frozen as a whole.
  size_t choose_slices(const ParamSpec& param) {
    std::vector<std::string> with, without;
    for (const ParamSlice& slice : param.slices) {
      (is_trained(parse_name(slice.name)) ? with : without).push_back(slice.name);
    }
    if (!with.empty() && !without.empty() && part_.errors.empty()) {
      fail("trainable_modules", fmt::format("{} would be trained without {}, but they are one matrix here: name all "
                                            "of them, or the module that contains them",
                                            joined(with), joined(without)));
    }
    part_.trained.insert(with.begin(), with.end());
    return param.slices.size();
  }

  const FreezeConfig& config_;
  const ModelConfig& model_;
  DecoderNames names_;
  std::vector<UnitSpec> units_;
  std::vector<TensorName> inside_, outside_;  ///< tensors of the layers, and the others
  std::set<int64_t> layers_;                  ///< trained
  FrozenPart part_;
};

}  // namespace

FrozenPart choose_trained(const FreezeConfig& config, const ModelConfig& model) {
  return Chooser(config, model).choose();
}

TrainedRule freeze_rule(const FreezeConfig& config, const ModelConfig& model) {
  const auto part = std::make_shared<const FrozenPart>(choose_trained(config, model));
  LLMTRAIN_CHECK(part->errors.empty(), "the keys of [freeze] have been checked");
  return [part](const std::string& name) { return part->trained.contains(name); };
}

void FreezeConfig::resolve(DeckLoader& deck, const ModelConfig& model) const {
  if (!deck.sound({"model.path", "model.family", "model.n_layers", "model.n_experts", "freeze.trainable_layers",
                   "freeze.trainable_modules", "freeze.extra_modules", "freeze.llama_pro"})) {
    return;
  }
  const FrozenPart part = choose_trained(*this, model);
  for (const auto& [key, what] : part.errors) deck.fail("freeze." + key, what);
}

}  // namespace llmtrain
