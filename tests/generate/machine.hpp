#pragma once
// A small model with random weights and its Generator.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/philox.hpp"
#include "generate/generator.hpp"
#include "harness/harness.hpp"
#include "harness/whole_parameters.hpp"
#include "models/models.hpp"
#include "train/config/load_config.hpp"

namespace llmtrain::test {

inline constexpr int64_t vocabulary = 61;

inline ModelConfig config_of(const std::vector<std::string>& keys) {
  std::vector<std::string> all = {"model.vocab_size=64"};
  all.insert(all.end(), keys.begin(), keys.end());
  return load_config(
             "[run]\nmax_steps = 1\n[model]\nd_model = 24\nn_layers = 3\nn_heads = 4\ninitializer_std = 0.4\n"
             "[data]\ntrain = builtin:stories\n[batch]\nsequence_length = 48\n",
             "a.ini", all)
      .model;
}

/// Keeps the logits of each pass; can compute products like training.
class RecordedModel : public Model {
 public:
  explicit RecordedModel(std::unique_ptr<Model> model) : model_(std::move(model)) {}
  std::vector<UnitSpec> units() const override { return model_->units(); }
  void plan(Arena& arena, const PassPlan& planned) override { model_->plan(arena, planned); }
  void start(Stream& stream) override { model_->start(stream); }
  void forward(Context& ctx, const Batch* batch) override {
    ++passes;
    if (as_training) ctx.role = ProductRole::training;
    model_->forward(ctx, batch);
  }
  void score(Context& ctx, const Batch* batch, const TokenStatistics& s) override { model_->score(ctx, batch, s); }
  void score_and_differentiate(Context& ctx, const Batch* batch, const TokenStatistics& s,
                               const TokenCotangents& c) override {
    model_->score_and_differentiate(ctx, batch, s, c);
  }
  void backward(Context& ctx, const Batch* batch) override { model_->backward(ctx, batch); }
  void plan_cache(Arena& arena, KvCache& cache, DType compute, int64_t sequences, int64_t positions) const override {
    model_->plan_cache(arena, cache, compute, sequences, positions);
  }
  bool can_cache() const override { return model_->can_cache(); }
  bool can_record() const override { return model_->can_record(); }
  void logits(Context& ctx, const Batch* batch, std::span<const int64_t> rows, const Tensor& out) override {
    if (as_training) ctx.role = ProductRole::training;
    model_->logits(ctx, batch, rows, out);
    if (!records) return;
    std::vector<float> values(static_cast<size_t>(out.numel()));
    copy_to_host(values.data(), out.data, out.bytes(), ctx.stream);
    ctx.stream.synchronize();
    const auto width = static_cast<std::ptrdiff_t>(out.dim(1));
    for (auto row = values.begin(); row != values.end(); row += width) kept.emplace_back(row, row + width);
  }
  double flops_per_token(int64_t sequence_length) const override { return model_->flops_per_token(sequence_length); }

  bool as_training = false;
  bool records = true;
  int64_t passes = 0;                    ///< that the host submitted kernel by kernel
  std::vector<std::vector<float>> kept;  ///< a row per text per pass

 private:
  std::unique_ptr<Model> model_;
};

class Machine {
 public:
  Machine(const std::vector<std::string>& keys, DType compute, int64_t sequences, int64_t context, bool cache = true,
          const AdapterRule& adapters = {}, int64_t prompt_tokens = 0, const CachePolicy& policy = {},
          bool graphs = false, bool records_logp = false)
      : config_(config_of(keys)),
        model_(std::make_unique<RecordedModel>(std::make_unique<Decoder>(shape_of(config_, adapters)))),
        params_(frozen(model_->units()), options(compute)),
        generator_(*model_, {config_.vocab_size, sequences, context, cache, records_logp, prompt_tokens, policy,
                             config_.n_kv_heads, graphs}) {
    params_.plan(arena_);
    model_->plan(arena_, {compute, generator_.rows(), false, Recompute::none, context});
    generator_.plan(arena_, compute);
    memory_ = DeviceBuffer(arena_.bytes());
    arena_.commit(memory_.data());
    params_.start(communicator(), stream());
    params_.initialize(3);
    if (adapters) set_adapters();
    model_->start(stream());
  }

  std::vector<Continuation> run(const GenerationRequest& request) {
    return generator_.run(params_, arena_, stream(), request);
  }
  /// Without copies of logits, which make the host wait.
  std::vector<Continuation> run_alone(const GenerationRequest& request) {
    model_->records = false;
    std::vector<Continuation> all = run(request);
    model_->records = true;
    return all;
  }
  int64_t passes() const { return model_->passes; }
  const Arena& plan() const { return arena_; }
  /// Number of rows of logits since the last call of logits().
  size_t logit_rows() const { return model_->kept.size(); }
  /// Returns the logits of all new tokens of each prompt, in order. All prompts fit together, and end at the length.
  std::vector<std::vector<float>> logits(const GenerationRequest& request, bool as_training = false) {
    model_->as_training = as_training;
    model_->kept.clear();
    run(request);
    std::vector<std::vector<float>> of_prompts(request.prompts.size());
    for (size_t i = 0; i < model_->kept.size(); ++i) {
      std::vector<float>& to = of_prompts[i % of_prompts.size()];
      to.insert(to.end(), model_->kept[i].begin(), model_->kept[i].end());
    }
    return of_prompts;
  }

 private:
  static DecoderShape shape_of(const ModelConfig& config, const AdapterRule& adapters) {
    DecoderShape shape = decoder_shape(config, vocabulary);
    shape.adapters = adapters;
    return shape;
  }
  /// B starts at zero: the values of A stand in for it, and every magnitude is 2.
  void set_adapters() {
    for (int unit = 0; unit < params_.units().size(); ++unit) {
      const std::vector<ParamSpec>& specs = params_.units()[unit].spec.params;
      for (size_t p = 0; p < specs.size(); ++p) {
        std::vector<float> values(static_cast<size_t>(specs[p].numel()), 2.0f);
        if (specs[p].name.find("lora_") == std::string::npos) continue;
        for (size_t i = 0; specs[p].columns > 1 && i < values.size(); ++i) {
          values[i] = static_cast<float>(random_uniform(random_bits(7, p, i)) - 0.5);
        }
        set_parameter(params_, unit, static_cast<int>(p), values.data());
      }
    }
    params_.publish_weights();
  }
  static ParamStoreOptions options(DType compute) {
    ParamStoreOptions o;
    o.compute = compute;
    return o;
  }

  ModelConfig config_;
  std::unique_ptr<RecordedModel> model_;
  ParamStore params_;
  Generator generator_;
  Arena arena_;
  DeviceBuffer memory_;
};

inline GenerationRequest request_of(int64_t new_tokens) {
  GenerationRequest request;
  request.prompts = {{1, 2, 3}, {7}, {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 9, 8}, {50, 51}, {20, 30, 40, 50, 60}};
  request.max_new_tokens = new_tokens;
  request.vocabulary = vocabulary;
  request.seed = 5;
  return request;
}

}  // namespace llmtrain::test
