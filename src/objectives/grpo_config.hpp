#pragma once
#include <cstdint>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [grpo]
struct GrpoConfig {
  enum class Loss : uint8_t { grpo, dr_grpo, dapo, bnpo, rloo };
  enum class ScaleRewards : uint8_t { group, batch, none };

  int64_t group_size = 8;
  Loss loss = Loss::grpo;
  double beta = 0;
  double epsilon = 0.2;
  double epsilon_high = 0;  ///< 0: epsilon
  double delta = 0;         ///< 0: none
  ScaleRewards scale_rewards = ScaleRewards::group;
  int64_t epochs = 1;
  int64_t mini_batches = 1;

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck);

  double upper() const { return epsilon_high > 0 ? epsilon_high : epsilon; }
};

template <>
inline constexpr auto enum_names<GrpoConfig::Loss> = name_list("grpo", "dr_grpo", "dapo", "bnpo", "rloo");
template <>
inline constexpr auto enum_names<GrpoConfig::ScaleRewards> = name_list("group", "batch", "none");

}  // namespace llmtrain
