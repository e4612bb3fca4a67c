#pragma once
#include <cstdint>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [schedule]: the learning rate as a function of the step, see learning_rate() in schedule.hpp.
struct ScheduleConfig {
  enum class Name : uint8_t {
    constant,
    constant_with_warmup,
    linear,
    cosine,
    cosine_with_restarts,
    cosine_with_min_lr,
    polynomial,
    inverse_sqrt,
    warmup_stable_decay
  };
  enum class DecayType : uint8_t { linear, cosine, one_minus_sqrt };

  Name name = Name::constant;
  double learning_rate = 1e-3;   ///< the peak
  double min_learning_rate = 0;  ///< floor of cosine_with_min_lr and warmup_stable_decay
  int64_t warmup_steps = 0;
  double warmup_ratio = 0;  ///< of the total steps; used when not 0, then warmup_steps is 0
  double num_cycles = 0.5;
  double power = 1;
  double lr_end = 1e-7;      ///< of polynomial
  int64_t timescale = 0;     ///< of inverse_sqrt; 0 = the warm-up steps, or 10,000 without warm-up
  int64_t decay_steps = 0;   ///< of warmup_stable_decay
  double decay_ratio = 0.1;  ///< of the total steps; used when decay_steps is 0
  DecayType decay_type = DecayType::cosine;

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck);
};

template <>
inline constexpr auto enum_names<ScheduleConfig::Name> = name_list("constant", "constant_with_warmup", "linear",
                                                                   "cosine", "cosine_with_restarts",
                                                                   "cosine_with_min_lr", "polynomial", "inverse_sqrt",
                                                                   "warmup_stable_decay");
template <>
inline constexpr auto enum_names<ScheduleConfig::DecayType> = name_list("linear", "cosine", "1-sqrt");

}  // namespace llmtrain
