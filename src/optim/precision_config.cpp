#include "optim/precision_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"

namespace llmtrain {

namespace {

/// Codec of "dynamic" or a number.
struct LossScaleCodec {
  static double parse(std::string_view text, const KeyInfo& info) {
    return text == "dynamic" ? PrecisionConfig::dynamic : parse_number(text, info.range);
  }
  static std::string print(double scale) { return scale == PrecisionConfig::dynamic ? "dynamic" : print_number(scale); }
  static std::string type() { return "dynamic / number"; }
};

}  // namespace

void PrecisionConfig::visit(DeckKeys& keys) {
  keys.section("precision",
               "Choose the number format of the passes. Master weights, moments, norms, softmax, loss and sums are "
               "fp32 or wider.",
               Change::applies, training_tasks);
  keys.key("compute", compute,
           {.doc = "Type of weights and activations in the passes. auto: bf16 if device and libraries are fast at it, "
                   "else fp32. tf32: fp32 whose matrix products round operands to 10 bits of mantissa on a GPU; fp32 "
                   "on a CPU. fp16: with loss scaling.",
            .change = Change::breaks,
            .tasks = model_tasks});
  constexpr double most = 4294967296;  // 2^32
  keys.key<LossScaleCodec>("loss_scale", loss_scale,
                           {.range = between(1, most),
                            .doc = "Factor on the mean loss for the backward pass in fp16. dynamic: a step whose "
                                   "gradients overflow is skipped, also by Adam's step count and the schedule, and "
                                   "halves the scale; loss_scale_window steps without overflow double it."});
  keys.key("initial_loss_scale", initial_loss_scale,
           {.range = between(1, most),
            .doc = "Initial value of a dynamic scale; a power of 2 causes no rounding.",
            .change = Change::breaks});
  keys.key("loss_scale_window", loss_scale_window,
           {.unit = "steps",
            .range = at_least(1),
            .doc = "Number of consecutive steps without overflow after which a dynamic scale doubles."});
  keys.key("loss_scale_hysteresis", loss_scale_hysteresis,
           {.unit = "steps",
            .range = at_least(1),
            .doc = "Number of steps with overflow after which a dynamic scale is halved; each further one halves it "
                   "again, until it doubles."});
  keys.key("min_loss_scale", min_loss_scale,
           {.range = between(1, most),
            .doc = "Minimum of a dynamic scale; a step whose gradients overflow at the minimum is a bad step "
                   "(divergence.max_bad_steps)."});
}

void PrecisionConfig::resolve(DeckLoader& deck) const {
  const bool scaled = compute == Compute::fp16;
  constexpr const char* other_type = "no effect without compute = fp16";
  if (!scaled) deck.unused("precision.loss_scale", other_type);
  if (!scaled || loss_scale != dynamic) {
    for (const char* key : {"precision.initial_loss_scale", "precision.loss_scale_window",
                            "precision.loss_scale_hysteresis", "precision.min_loss_scale"}) {
      deck.unused(key, scaled ? "no effect with a fixed loss_scale" : other_type);
    }
    return;
  }
  deck.check(initial_loss_scale >= min_loss_scale, {"precision.min_loss_scale", "precision.initial_loss_scale"},
             fmt::format("{} is above initial_loss_scale = {}", min_loss_scale, initial_loss_scale));
}

DType compute_dtype(PrecisionConfig::Compute compute) {
  using Compute = PrecisionConfig::Compute;
  LLMTRAIN_CHECK(compute != Compute::automatic, "precision.compute is not resolved");
  if (compute == Compute::fp16) return DType::f16;
  return compute == Compute::bf16 ? DType::bf16 : DType::f32;
}

}  // namespace llmtrain
