#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/deck/named_enum.hpp"
#include "layers/adapter.hpp"
#include "models/module_pattern.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;
struct LoraPart;
struct ModelConfig;

/// A number for the modules whose name, or the end of it after a dot, a regular expression matches.
using ModuleNumbers = std::vector<std::pair<std::string, double>>;

/// [lora]: low-rank adapters, in PEFT's terms.
struct LoraConfig {
  enum class Bias : uint8_t { none, all, lora_only };

  std::string path;  ///< PEFT folder to go on from
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  ModulePattern target_modules = {{"all-linear"}, {}};
  ModulePattern exclude_modules;
  Bias bias = Bias::none;
  std::vector<std::string> modules_to_save;
  bool ensure_weight_tying = true;            ///< of an embedding and a head that are one matrix in the model
  std::vector<std::string> saved_embeddings;  ///< modules whose matrix is the one in the folder of `path`
  std::vector<int64_t> layers_to_transform;
  std::vector<std::string> layers_pattern;
  ModuleNumbers rank_pattern, alpha_pattern;  ///< the first match counts
  AdapterShape::Init init = AdapterShape::Init::kaiming;
  bool rslora = false;
  bool dora = false;
  double learning_rate_ratio = 1;

  /// True if new adapters start from the model's matrices.
  bool starts_from_weights() const { return path.empty() && (moves_base() || init == AdapterShape::Init::loftq); }
  /// True if the frozen matrices lose what the new adapters begin with, so that both together are the model.
  bool moves_base() const { return path.empty() && AdapterShape::moves_base(init); }

  void visit(DeckKeys& keys);
  /// Passes have no dropout; `why` they have none.
  void drop_dropout(DeckLoader& deck, const std::string& why);
  /// Sets what is not given, and checks the keys against the model, whose number of layers and components are known.
  /// `recorded`: the deck is a run's, which gives every key that the program had then.
  void resolve(DeckLoader& deck, const ModelConfig& model, bool recorded);
  /// Takes the properties of the adapter in `path`. A key of the deck must have the same value, or choose the same
  /// modules, except for dropout, init and learning_rate_ratio.
  void take(DeckLoader& deck, const LoraConfig& found, const ModelConfig& model);

 private:
  void check_start(DeckLoader& deck, const LoraPart& part, const ModelConfig& model) const;
  void resolve_tying(DeckLoader& deck, const ModelConfig& model, bool recorded);
};

template <>
inline constexpr auto enum_names<LoraConfig::Bias> = name_list("none", "all", "lora_only");
template <>
inline constexpr auto enum_names<AdapterShape::Init> = name_list("kaiming", "gaussian", "pissa", "olora", "loftq");

}  // namespace llmtrain
