#pragma once
#include <cstdint>
#include <string>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [ppo]
struct PpoConfig {
  enum class KlEstimator : uint8_t { k1, k3 };

  std::string reward_model;  ///< folder
  std::string value_model;   ///< folder, or "policy"; empty: the reward model
  bool same_text = false;
  double kl_coefficient = 0.05;
  KlEstimator kl_estimator = KlEstimator::k1;
  double adaptive_kl_target = 0;  ///< nats per completion; 0: the coefficient is constant
  double gamma = 1;
  double lambda = 0.95;
  double clip = 0.2;
  double value_clip = 0.2;
  double value_coefficient = 0.1;
  double entropy_coefficient = 0;
  int64_t epochs = 4;
  int64_t mini_batches = 1;
  bool whiten_rewards = false;
  double missing_eos_penalty = 0;
  double score_scale = 1;
  double score_clip = 0;  ///< 0: none

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck);

  /// True if the critic is a head on the policy's trunk.
  bool shares_trunk() const { return value_model == "policy"; }
  /// Folder of a critic with a trunk of its own.
  const std::string& critic() const { return value_model.empty() ? reward_model : value_model; }
};

template <>
inline constexpr auto enum_names<PpoConfig::KlEstimator> = name_list("k1", "k3");

}  // namespace llmtrain
