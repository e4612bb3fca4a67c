// Plans and counts agree with the work: arithmetic in the spans of a profile compared with formulas, temporary memory
// compared with its plan.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "core/profile.hpp"
#include "models/test_model.hpp"

namespace llmtrain::test {
namespace {

constexpr int64_t documents[] = {9, 40, 15};
constexpr int64_t tokens = 64;

/// A decoder of two layers whose blocks need more temporary memory than its head.
DecoderShape shape(bool gated = false) {
  ModelConfig c;
  c.family = gated ? ModelConfig::Family::llama : ModelConfig::Family::gpt2;
  c.vocab_size = 50;
  c.max_seq_len = 64;
  c.n_layers = 2;
  c.d_model = 48;
  c.n_heads = 4;
  c.n_kv_heads = gated ? 2 : 4;
  c.head_dim = 12;
  c.d_ff = 80;
  c.norm = gated ? ModelConfig::Norm::rmsnorm : ModelConfig::Norm::layernorm;
  c.activation = gated ? ModelConfig::Activation::swiglu : ModelConfig::Activation::gelu_tanh;
  c.positions = gated ? ModelConfig::Positions::rope : ModelConfig::Positions::learned;
  return decoder_shape(c, c.vocab_size);
}

Rows rows() {
  Rows r{{}, {}, {}, {0}};
  for (const int64_t length : documents) {
    for (int32_t i = 0; i < length; ++i) {
      r.ids.push_back((i * 7) % 50);
      r.positions.push_back(i);
      r.targets.push_back((i * 7 + 7) % 50);
    }
    r.segments.push_back(static_cast<int32_t>(r.ids.size()));
  }
  return r;
}

/// FLOP of all spans of a step whose names begin with `name`.
double flops(const std::vector<Span>& spans, std::string_view name) {
  double sum = 0;
  for (const Span& s : spans) sum += std::string_view(s.name).starts_with(name) ? s.work.flops : 0;
  return sum;
}

std::vector<Span> recorded(const DecoderShape& decoder, Recompute recompute = Recompute::none) {
  TestModel model(decoder, DType::f32, tokens, recompute);
  Recorder recorder;
  recorder.start();
  model.differentiate({rows()});
  recorder.stop();
  return recorder.spans;
}

TEST(WorkOfAStep, OfProductsIsSixTimesTheMatrices) {
  for (const bool gated : {false, true}) {
    const DecoderShape decoder = shape(gated);
    const ModelConfig& c = decoder.config;
    const int64_t heads = (c.n_heads + 2 * c.n_kv_heads) * c.head_dim;
    const int64_t block = c.d_model * (heads + c.n_heads * c.head_dim + (gated ? 3 : 2) * c.d_ff);
    const auto matrices = static_cast<double>(c.n_layers * block + c.vocab_size * c.d_model);
    EXPECT_EQ(Decoder(decoder).flops_per_token(0), 6 * matrices);
    const std::vector<Span> spans = recorded(decoder);
    EXPECT_EQ(flops(spans, "linear_forward"), 2 * matrices * tokens);
    EXPECT_EQ(flops(spans, "linear_backward_input"), 2 * matrices * tokens);
    EXPECT_EQ(flops(spans, "linear_backward_weight"), 2 * matrices * tokens);
  }
}

TEST(WorkOfAStep, OfAttentionIsThatOfVisiblePairs) {
  for (const int64_t window : {0, 12}) {
    DecoderShape decoder = shape();
    decoder.config.sliding_window = window;
    double pairs = 0;
    for (const int64_t length : documents) {
      for (int64_t query = 0; query < length; ++query) {
        pairs += static_cast<double>(window > 0 ? std::min(query + 1, window) : query + 1);
      }
    }
    const double product = 2.0 * 2 * 48 * pairs;  // multiply and add, layers, width
    const std::vector<Span> spans = recorded(decoder);
    EXPECT_EQ(flops(spans, "attention_forward"), 2 * product);
    EXPECT_EQ(flops(spans, "attention_backward"), 5 * product);
    // Without the causal half, as PaLM counts: 12 L H D T, or the window.
    const double visible = static_cast<double>(window > 0 ? window : 64);
    EXPECT_EQ(Decoder(decoder).flops_per_token(64) - Decoder(decoder).flops_per_token(0), 12 * 2 * 48 * visible);
  }
}

TEST(WorkOfAStep, RecomputationIsCounted) {
  const double once = flops(recorded(shape()), "attention_forward");
  EXPECT_EQ(flops(recorded(shape(), Recompute::activation), "attention_forward"), once);
  EXPECT_EQ(flops(recorded(shape(), Recompute::attention), "attention_forward"), 2 * once);
}

/// A step with 64 bytes less of temporary memory than the plan has.
void differentiate_with_less(TestModel& model) {
  Arena::Frame frame(model.context().arena);
  frame.take(DType::u8, {1});
  model.differentiate({rows()});
}

enum class Norms { before, after, sandwich };

class TemporaryMemory : public ::testing::TestWithParam<Norms> {};

TEST_P(TemporaryMemory, IsUsedToTheLastByteOfItsPlan) {
  DecoderShape decoder = shape(GetParam() == Norms::sandwich);
  decoder.config.pre_norm = GetParam() != Norms::after;
  decoder.config.sandwich_norm = GetParam() == Norms::sandwich;
  for (const DType compute : {DType::f32, DType::bf16}) {
    for (const Recompute level : {Recompute::none, Recompute::activation, Recompute::attention, Recompute::block}) {
      TestModel model(decoder, compute, tokens, level);
      EXPECT_NO_THROW(model.differentiate({rows()})) << name_of(level);
      const int64_t workspace = model.arena().workspace().bytes();
      EXPECT_LE(workspace_peak(), workspace - 4096) << name_of(level);  // a page for alignment
      EXPECT_GE(workspace_peak(), workspace - 4096 - 63) << name_of(level);
      TestModel other(decoder, compute, tokens, level);
      EXPECT_THROW(differentiate_with_less(other), Error) << name_of(level);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Norms, TemporaryMemory, ::testing::Values(Norms::before, Norms::after, Norms::sandwich),
                         [](const auto& test) {
                           const bool sandwich = test.param == Norms::sandwich;
                           return sandwich ? "Sandwich" : test.param == Norms::after ? "After" : "Before";
                         });

/// The decoder with an adapter of every linear layer of its blocks, and nothing else trained.
DecoderShape adapted(DecoderShape decoder, const AdapterShape& adapter) {
  decoder.trained = [](const std::string&) { return false; };
  decoder.adapters = [adapter](const std::string& module) {
    const auto names_module = [&](std::string_view name) { return module.ends_with(name); };
    const bool outside = std::ranges::any_of(std::array{"wte", "wpe", "embed_tokens", "lm_head"}, names_module);
    return outside ? std::nullopt : std::optional(adapter);
  };
  return decoder;
}

TEST(WorkOfAStep, OfAdaptersIsSixTimesTheirMatricesAndNoneForFrozenGradients) {
  const DecoderShape decoder = adapted(shape(), {.rank = 4});
  const ModelConfig& c = decoder.config;
  double matrices = 0, adapters = 0, again = 0, lowest = 0;
  for (const auto& [in, out] :
       {std::pair(c.d_model, 3 * c.d_model), {c.d_model, c.d_model}, {c.d_model, c.d_ff}, {c.d_ff, c.d_model}}) {
    matrices += static_cast<double>(c.n_layers * in * out);
    adapters += static_cast<double>(c.n_layers * 4 * (in + out));
    again += static_cast<double>(c.n_layers * 4 * in);  // products with A, which the backward pass repeats
    if (lowest == 0) lowest = static_cast<double>(in * out + 4 * in);  // no gradient of the lowest layer's input
  }
  const auto head = static_cast<double>(c.vocab_size * c.d_model);
  EXPECT_EQ(Decoder(decoder).flops_per_token(0), 4 * (matrices + head) + 6 * adapters - 2 * lowest);
  const std::vector<Span> spans = recorded(decoder);
  EXPECT_EQ(flops(spans, "linear_forward"), 2 * (matrices + head + adapters + again) * tokens);
  EXPECT_EQ(flops(spans, "linear_backward_weight"), 2 * adapters * tokens);
  EXPECT_EQ(flops(spans, "linear_backward_input"), 2 * (matrices + head + adapters - lowest) * tokens);
}

TEST(TemporaryMemoryOfAdapters, IsPlanned) {
  for (const Norms norms : {Norms::before, Norms::sandwich}) {
    for (const bool dora : {false, true}) {
      for (const double dropout : {0.0, 0.25}) {
        DecoderShape decoder = adapted(shape(norms == Norms::sandwich), {.rank = 4, .dropout = dropout, .dora = dora});
        decoder.config.sandwich_norm = norms == Norms::sandwich;
        for (const DType compute : {DType::f32, DType::bf16}) {
          TestModel model(decoder, compute, tokens, Recompute::block);
          model.context().training = true;
          EXPECT_NO_THROW(model.differentiate({rows()}));
          EXPECT_LE(workspace_peak(), model.arena().workspace().bytes() - 4096);
          if (dora) continue;  // a wide sum of the forward pass may need more, beside fewer buffers of other layers
          TestModel other(decoder, compute, tokens, Recompute::block);
          other.context().training = true;
          EXPECT_THROW(differentiate_with_less(other), Error);
        }
      }
    }
  }
}

}  // namespace
}  // namespace llmtrain::test
