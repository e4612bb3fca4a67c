#include "optim/precision_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"

namespace llmtrain {

namespace {

/// dynamic or a number.
struct LossScaleCodec {
  static double parse(std::string_view text, const KeyInfo& info) {
    return text == "dynamic" ? PrecisionConfig::dynamic : parse_number(text, info.range);
  }
  static std::string print(double scale) { return scale == PrecisionConfig::dynamic ? "dynamic" : print_number(scale); }
  static std::string type() { return "dynamic / number"; }
};

}  // namespace

void PrecisionConfig::visit(DeckKeys& keys) {
  keys.section("precision", "Number formats. Master weights, moments, norms, softmax, loss and sums are fp32 or wider.",
               Change::applies);
  keys.key("compute", compute,
           {.doc = "Weights and activations of the passes. auto: bf16 where device and libraries are fast at it, else "
                   "fp32. tf32: "
                   "fp32 whose matrix products round what they multiply to 10 bits of mantissa, on a GPU; on a CPU it "
                   "is fp32. fp16: with a scaled loss.",
            .change = Change::breaks});
  constexpr double most = 4294967296;  // 2^32
  keys.key<LossScaleCodec>("loss_scale", loss_scale,
                           {.range = between(1, most),
                            .doc = "What the mean loss is multiplied by for the backward pass in fp16. dynamic: a step "
                                   "whose gradients overflow is skipped, also by Adam's step count and the schedule, "
                                   "and the scale is halved; after a time without overflow it doubles."});
  keys.key("initial_loss_scale", initial_loss_scale,
           {.range = between(1, most),
            .doc = "Of a dynamic scale; a power of 2 costs no rounding.",
            .change = Change::breaks});
  keys.key("loss_scale_window", loss_scale_window,
           {.unit = "steps", .range = at_least(1), .doc = "A dynamic scale doubles after so many without overflow."});
  keys.key("loss_scale_hysteresis", loss_scale_hysteresis,
           {.unit = "steps",
            .range = at_least(1),
            .doc = "A dynamic scale is halved by so many with overflow; afterwards by each, until it doubles."});
  keys.key("min_loss_scale", min_loss_scale,
           {.range = between(1, most),
            .doc = "A dynamic scale does not fall below it: gradients that overflow there are bad steps "
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

DType compute_dtype(const PrecisionConfig& precision) {
  using Compute = PrecisionConfig::Compute;
  LLMTRAIN_CHECK(precision.compute != Compute::automatic, "precision.compute is not resolved");
  if (precision.compute == Compute::fp16) return DType::f16;
  return precision.compute == Compute::bf16 ? DType::bf16 : DType::f32;
}

}  // namespace llmtrain
