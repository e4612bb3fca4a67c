// Adapters over a base of 4 bits compared with PEFT over bitsandbytes' matrices: tests/reference/make_qlora_goldens.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "harness/gradient_norm.hpp"
#include "harness/harness.hpp"
#include "kernels/step_decision.hpp"
#include "models/lora_golden.hpp"
#include "optim/optimizer.hpp"

namespace llmtrain::test {
namespace {

constexpr double tolerance = 2e-4;

class QloraGolden : public ::testing::TestWithParam<const char*>, protected AdaptedModel {
 protected:
  QloraGolden() : AdaptedModel(std::string("../qlora/") + GetParam()) {
    format.type = lora.text("type") == "fp4" ? QuantizedType::fp4 : QuantizedType::nf4;
    format.block_size = lora.integer("block_size");
    format.double_quantization = lora.flag("double");
    shape.quantization = [this](const std::string& name) -> std::optional<Quantization> {
      return shape.has_row_per_token(name) || name == shape.names.positions + ".weight" ? std::nullopt
                                                                                        : std::optional(format);
    };
  }

  /// Largest relative error of losses and norms over ten steps; of the first loss alone if `first`.
  double error_of_steps(bool first = false) {
    TestModel m = model();
    m.set(parameters());
    const auto optimizer = make_optimizer({.weight_decay = golden.number("adamw_weight_decay")});
    const auto losses = lora.doubles("losses").values, norms = lora.doubles("grad_norms").values;
    double largest = 0;
    for (int t = 1; t <= (first ? 1 : 10); ++t) {
      const auto step = static_cast<size_t>(t) - 1;
      const double loss = m.differentiate({rows}) / tokens, norm = gradient_norm(m.params()) / tokens;
      largest = std::max(largest, std::abs(loss / losses[step] - 1));
      if (!first) largest = std::max(largest, std::abs(norm / norms[step] - 1));
      optimizer->update(m.params(), {t, golden.number("adamw_learning_rate"), clip_factor(norm, 1.0) / tokens},
                        stream());
    }
    return largest;
  }

  Quantization format;
};

TEST_P(QloraGolden, LossesAndNormsOfTenSteps) { EXPECT_LT(error_of_steps(), tolerance); }

TEST_P(QloraGolden, AnotherStorageIsSeen) {
  const Quantization given = format;
  format.block_size = given.block_size == 32 ? 64 : 32;
  EXPECT_GT(error_of_steps(true), tolerance) << "the size of a block";
  format = given;
  format.type = given.type == QuantizedType::nf4 ? QuantizedType::fp4 : QuantizedType::nf4;
  EXPECT_GT(error_of_steps(true), tolerance) << "the levels";
  format = given;
  shape.quantization = nullptr;
  EXPECT_GT(error_of_steps(true), tolerance) << "the matrices themselves";
}

INSTANTIATE_TEST_SUITE_P(Cases, QloraGolden, ::testing::Values("nf4", "nf4_double", "fp4", "fp4_double"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Qlora, FrozenMatricesTakeTheBytesOfTheirCodes) {
  const AdaptedModel adapted("qv");
  DecoderShape shape = adapted.shape;
  const auto weights = [&](const QuantizationRule& rule) {
    shape.quantization = rule;
    return TestModel(shape, DType::f32, 8).arena().bytes(MemoryCategory::weights);
  };
  int64_t elements = 0, bytes = 0;
  const Quantization format{QuantizedType::nf4, 64, true, 0};
  shape.quantization = [&](const std::string& name) -> std::optional<Quantization> {
    return shape.has_row_per_token(name) ? std::nullopt : std::optional(format);
  };
  const QuantizationRule rule = shape.quantization;
  for (const UnitSpec& unit : Decoder(shape).units()) {
    if (!unit.quantization) continue;
    UnitSpec dense = unit;
    dense.quantization.reset();
    elements += UnitLayout(dense).elements();
    const UnitLayout layout(unit);
    bytes += layout.elements() / chunk_elements * (128 + 4);
    for (const ParamSpec& param : unit.params) {
      for (const ParamSlice& slice : param.slices) bytes += 4 * (1 + (slice.rows * param.columns + 16383) / 16384);
    }
  }
  EXPECT_GT(elements, 0);
  EXPECT_NEAR(static_cast<double>(weights({}) - weights(rule)), static_cast<double>(4 * elements - bytes), 1024);
}

}  // namespace
}  // namespace llmtrain::test
