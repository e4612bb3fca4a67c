#include "optim/schedule_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"

namespace llmtrain {

void ScheduleConfig::visit(DeckKeys& keys) {
  keys.section("schedule", "Set the learning rate as a function of the step.", Change::applies, training_tasks);
  keys.key("name", name, {.doc = "Shape after the warm-up; constant has no warm-up."});
  keys.key<Fp32Number>("learning_rate", learning_rate, {.range = at_least(0), .doc = "Peak learning rate."});
  keys.key<Fp32Number>("min_learning_rate", min_learning_rate,
                       {.range = at_least(0),
                        .doc = "Final rate of cosine_with_min_lr and warmup_stable_decay.",
                        .automatic = "learning_rate / 10; 0 for warmup_stable_decay"});
  keys.key("warmup_steps", warmup_steps,
           {.unit = "steps",
            .range = at_least(0),
            .doc = "Length of the linear warm-up from 0, which is the rate of the first step."});
  keys.key("warmup_ratio", warmup_ratio,
           {.range = between(0, 1),
            .doc = "Length of the warm-up as a fraction of all steps, rounded up; replaces warmup_steps."});
  keys.key("num_cycles", num_cycles,
           {.range = above(0),
            .doc = "Number of waves of the cosine: 0.5 decays once until the end. For cosine_with_restarts: the number "
                   "of decays.",
            .automatic = "0.5; 1 for cosine_with_restarts"});
  keys.key("power", power, {.range = above(0), .doc = "Exponent of polynomial."});
  keys.key<Fp32Number>("lr_end", lr_end,
                       {.range = at_least(0), .doc = "Final rate of polynomial; must be below learning_rate."});
  keys.key("timescale", timescale,
           {.unit = "steps",
            .range = at_least(0),
            .doc = "Time scale of inverse_sqrt; 0 = the warm-up steps, or 10,000 without warm-up."});
  keys.key("decay_steps", decay_steps,
           {.unit = "steps",
            .range = at_least(1),
            .doc = "Length of the decay at the end of warmup_stable_decay.",
            .automatic = "by decay_ratio"});
  keys.key("decay_ratio", decay_ratio,
           {.range = between(0, 1),
            .doc = "Length of the decay as a fraction of all steps, rounded up; replaces decay_steps."});
  keys.key("decay_type", decay_type, {.doc = "Shape of the decay of warmup_stable_decay."});
}

void ScheduleConfig::resolve(DeckLoader& deck) {
  const std::string why = fmt::format("no effect with name = {}", name_of(name));
  const auto only = [&](std::string_view key, bool used) {
    if (!used) deck.unused(key, why);
  };
  const bool stable = name == Name::warmup_stable_decay;
  const bool restarts = name == Name::cosine_with_restarts;
  const bool floored = name == Name::cosine_with_min_lr || stable;
  only("schedule.min_learning_rate", floored);
  only("schedule.num_cycles", name == Name::cosine || restarts || name == Name::cosine_with_min_lr ||
                                  (stable && decay_type == DecayType::cosine));
  only("schedule.power", name == Name::polynomial);
  only("schedule.lr_end", name == Name::polynomial);
  only("schedule.timescale", name == Name::inverse_sqrt);
  only("schedule.decay_type", stable);
  const bool by_ratio = !deck.given("schedule.decay_steps");
  if (!stable || by_ratio) deck.unused("schedule.decay_steps", stable ? "decay_ratio decides" : why);
  if (!stable || !by_ratio) deck.unused("schedule.decay_ratio", stable ? "decay_steps is given" : why);
  const bool warm = name != Name::constant, warm_ratio = deck.given("schedule.warmup_ratio");
  if (!warm || warm_ratio) deck.unused("schedule.warmup_steps", warm ? "warmup_ratio is given" : why);
  if (!warm || !warm_ratio) deck.unused("schedule.warmup_ratio", warm ? "warmup_steps decides" : why);

  if (floored && !deck.given("schedule.min_learning_rate")) {
    min_learning_rate = stable ? 0 : learning_rate / 10;
    deck.set("schedule.min_learning_rate", Origin::automatic, stable ? "" : "learning_rate / 10");
  }
  if (restarts && !deck.given("schedule.num_cycles")) {
    num_cycles = 1;
    deck.set("schedule.num_cycles", Origin::automatic, "for cosine_with_restarts");
  }
  if (floored) {
    deck.check(min_learning_rate <= learning_rate, {"schedule.min_learning_rate", "schedule.learning_rate"},
               fmt::format("{} is above learning_rate = {}", min_learning_rate, learning_rate));
  }
  if (name == Name::polynomial) {
    deck.check(lr_end < learning_rate, {"schedule.lr_end", "schedule.learning_rate"},
               fmt::format("{} is not below learning_rate = {}", lr_end, learning_rate));
  }
}

}  // namespace llmtrain
