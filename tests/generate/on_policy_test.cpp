// The log-probability of a token is the same, bit for bit, while a text is generated with a cache and in a pass over
// the finished texts, if both compute products in the role of prefill: reinforcement learning is then exactly
// on-policy.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <tuple>

#include "core/philox.hpp"
#include "data/stream/data_stream.hpp"
#include "harness/dtype_text.hpp"
#include "harness/harness.hpp"
#include "harness/whole_parameters.hpp"
#include "models/models.hpp"
#include "train/config/load_config.hpp"

namespace llmtrain {
namespace {

using test::stream;

constexpr int64_t vocabulary = 61, words = 2;
constexpr int64_t lengths[] = {103, 3, 77};  ///< of the texts; their pieces are packed in one batch
constexpr int64_t texts = std::ssize(lengths), longest = 103, all_rows = 103 + 3 + 77;

/// Tokens [begin, end) of a text.
struct Piece {
  int64_t text, begin, end;
};
/// Bits of log-probabilities, by text and position.
using Bits = std::vector<std::vector<uint32_t>>;

int32_t token(int64_t text, int64_t position) {
  const uint32_t random = random_bits(3, static_cast<uint64_t>(text), static_cast<uint64_t>(position));
  return static_cast<int32_t>(random % static_cast<uint32_t>(vocabulary));
}

ModelConfig config_of(const std::vector<std::string>& keys) {
  std::vector<std::string> all = {"model.vocab_size=64", "model.max_seq_len=128"};
  all.insert(all.end(), keys.begin(), keys.end());
  return load_config(
             "[run]\nmax_steps = 1\n[model]\nd_model = 40\nn_layers = 2\nn_heads = 4\nd_ff = 77\n"
             "initializer_std = 0.3\n[data]\ntrain = builtin:stories\n[batch]\nsequence_length = 48\n",
             "a.ini", all)
      .model;
}

class Policy {
 public:
  /// Layers with a plan for training keep the choices of their experts.
  Policy(const std::vector<std::string>& keys, DType compute, bool training = false, uint64_t seed = 3)
      : model_(make_model(config_of(keys), vocabulary)), params_(frozen(model_->units()), options(compute)) {
    params_.plan(arena_);
    model_->plan(arena_, {compute, all_rows, training});
    for (const Arena::Request& request : arena_.requests()) {
      if (request.name.ends_with(".choices")) choices_.push_back(request.target);
    }
    model_->plan_cache(arena_, cache_, compute, texts, longest);
    buffers_.plan(arena_, all_rows, texts);
    arena_.add(logits_, MemoryCategory::data, "logits", DType::f32, {all_rows, 64});
    arena_.add(logp_, MemoryCategory::data, "logp", DType::f32, {all_rows});
    arena_.add(kept_, MemoryCategory::data, "kept", DType::u32, {all_rows, words});
    memory_ = DeviceBuffer(arena_.bytes());
    arena_.commit(memory_.data());
    params_.start(test::communicator(), stream());
    params_.initialize(seed);
    model_->start(stream());
  }

  /// Log-probabilities of the next tokens, in a pass over the finished texts.
  Bits score(float temperature) {
    Context ctx = context(ProductRole::prefill, temperature);
    ctx.training = !choices_.empty();
    const std::vector<Piece> whole = {{2, 0, lengths[2]}, {0, 0, lengths[0]}, {1, 0, lengths[1]}};
    const Batch batch = upload(whole, temperature);
    model_->forward(ctx, &batch);
    model_->score(ctx, &batch, {logp_.rows(0, batch.tokens), {}, {}, {}});
    Bits bits = none();
    chosen_.assign(choices_.size(), none());
    read(bits, whole);
    return bits;
  }

  /// The same while the texts are read into the cache in steps, the first of them as prompts.
  Bits decode(const std::vector<std::vector<Piece>>& steps, ProductRole role, float temperature) {
    Context ctx = context(role, temperature);
    ctx.cache = &cache_;
    cache_.decoding = false;
    Bits bits = none();
    chosen_.assign(choices_.size(), none());
    for (const std::vector<Piece>& pieces : steps) {
      const Batch batch = upload(pieces, temperature);
      model_->forward(ctx, &batch);
      std::vector<int64_t> rows(static_cast<size_t>(batch.tokens));
      std::iota(rows.begin(), rows.end(), 0);
      const Tensor logits = logits_.rows(0, batch.tokens);
      model_->logits(ctx, &batch, rows, logits);
      if (temperature != 1) temper_logits(logits, temperature, batch.kept, vocabulary, stream());
      logprob_forward({logp_.rows(0, batch.tokens), {}, {}, {}}, logits, batch.targets, vocabulary, stream());
      read(bits, pieces);
      cache_.decoding = true;
    }
    return bits;
  }

  /// By layer with experts: the two experts of every token in the last pass, or passes with a cache.
  const std::vector<Bits>& chosen() const { return chosen_; }

 private:
  static ParamStoreOptions options(DType compute) {
    ParamStoreOptions o;
    o.compute = compute;
    return o;
  }
  static Bits none() { return Bits(texts, std::vector<uint32_t>(longest)); }
  Context context(ProductRole role, float temperature) {
    Context ctx{params_, arena_, stream()};
    ctx.role = role;
    ctx.temperature = temperature;
    return ctx;
  }

  Batch upload(const std::vector<Piece>& pieces, float temperature) {
    HostBatch host;
    host.segments.push_back(0);
    std::vector<uint32_t> kept;
    for (const Piece& p : pieces) {
      for (int64_t i = p.begin; i < p.end; ++i) {
        host.ids.push_back(token(p.text, i));
        host.positions.push_back(static_cast<int32_t>(i));
        host.targets.push_back(token(p.text, i + 1));
        host.loss_weights.push_back(1);
        host.sequence_ids.push_back(p.text);
        host.sequence_offsets.push_back(static_cast<int32_t>(i));
        for (int64_t w = 0; w < words; ++w) {
          const auto target = static_cast<uint32_t>(host.targets.back());
          const uint32_t own = target / 32 == w ? 1U << target % 32 : 0;
          kept.push_back(random_bits(5, static_cast<uint64_t>(p.text), static_cast<uint64_t>(2 * i + w)) | own);
        }
      }
      host.segments.push_back(static_cast<int32_t>(host.ids.size()));
    }
    Batch batch = buffers_.upload(host, stream());
    if (temperature == 1) return batch;
    batch.kept = kept_.rows(0, batch.tokens);
    copy_to_device(batch.kept.data, kept.data(), batch.kept.bytes(), stream());
    stream().synchronize();
    return batch;
  }

  void read(Bits& bits, const std::vector<Piece>& pieces) {
    spread(bits, pieces, host_values<uint32_t>(logp_));
    for (size_t layer = 0; layer < choices_.size(); ++layer) {
      const std::vector<int32_t> choices = host_values<int32_t>(*choices_[layer]);
      std::vector<uint32_t> pairs;
      for (size_t i = 0; i < choices.size(); i += 2) {
        pairs.push_back(static_cast<uint32_t>(choices[i] << 16 | choices[i + 1]));
      }
      spread(chosen_[layer], pieces, pairs);
    }
  }
  template <class T>
  static std::vector<T> host_values(const Tensor& tensor) {
    std::vector<T> values(static_cast<size_t>(tensor.numel()));
    copy_to_host(values.data(), tensor.data, tensor.bytes(), stream());
    stream().synchronize();
    return values;
  }
  static void spread(Bits& to, const std::vector<Piece>& pieces, const std::vector<uint32_t>& rows) {
    auto from = rows.begin();
    for (const Piece& p : pieces) {
      for (int64_t i = p.begin; i < p.end; ++i) to[static_cast<size_t>(p.text)][static_cast<size_t>(i)] = *from++;
    }
  }

  std::unique_ptr<Model> model_;
  ParamStore params_;
  Arena arena_;
  DeviceBuffer memory_;
  BatchBuffers buffers_;
  KvCache cache_;
  Tensor logits_, logp_, kept_;
  std::vector<const Tensor*> choices_;
  std::vector<Bits> chosen_;
};

/// Prompts, then all texts token by token, as a rollout does.
std::vector<std::vector<Piece>> token_by_token() {
  constexpr int64_t prompts[] = {60, 1, 7};
  std::vector<std::vector<Piece>> steps = {{{0, 0, prompts[0]}, {1, 0, prompts[1]}, {2, 0, prompts[2]}}};
  for (int64_t step = 0; step < longest; ++step) {
    std::vector<Piece> pieces;
    for (int64_t t = 0; t < texts; ++t) {
      const int64_t i = prompts[t] + step;
      if (i < lengths[t]) pieces.push_back({t, i, i + 1});
    }
    if (!pieces.empty()) steps.push_back(std::move(pieces));
  }
  return steps;
}

/// Prompts in chunks, beside single tokens of other texts.
std::vector<std::vector<Piece>> in_chunks() {
  return {{{0, 0, 30}},
          {{0, 30, 80}, {1, 0, 1}, {2, 0, 64}},
          {{2, 64, 65}, {0, 80, 81}, {1, 1, 3}},
          {{0, 81, 103}, {2, 65, 77}}};
}

class OnPolicy : public testing::TestWithParam<std::tuple<std::vector<std::string>, DType>> {};

TEST_P(OnPolicy, LogProbabilitiesOfARolloutAreThoseOfTheFinishedTexts) {
  const auto& [keys, compute] = GetParam();
  Policy policy(keys, compute);
  for (const float temperature : {1.0f, 0.7f}) {
    const Bits expected = policy.score(temperature);
    EXPECT_EQ(policy.decode(token_by_token(), ProductRole::prefill, temperature), expected);
    EXPECT_EQ(policy.decode(in_chunks(), ProductRole::prefill, temperature), expected);
    EXPECT_EQ(policy.decode(token_by_token(), ProductRole::decoding, temperature) == expected, device_memory_is_host())
        << "on a GPU another order of sums is the control";
  }
  EXPECT_NE(policy.score(1.0f), policy.score(0.7f)) << "the control: another distribution";
}

INSTANTIATE_TEST_SUITE_P(
    Models, OnPolicy,
    testing::Combine(
        testing::Values(std::vector<std::string>{"model.family=gpt2"},
                        std::vector<std::string>{"model.family=llama", "model.n_kv_heads=2", "model.sliding_window=20"},
                        std::vector<std::string>{"model.family=qwen3", "model.n_kv_heads=1", "model.head_dim=10"},
                        std::vector<std::string>{"model.family=gemma2", "model.sliding_window=70",
                                                 "model.n_kv_heads=2"}),
        testing::Values(DType::f32, DType::bf16, DType::f16)));

class OnPolicyExperts : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(OnPolicyExperts, OfARolloutAreThoseOfTheTrainingPass) {
  std::vector<std::string> keys = {"model.n_layers=3", "model.n_experts=6", "model.experts_per_token=2"};
  keys.insert(keys.end(), GetParam().begin(), GetParam().end());
  std::vector<std::vector<Bits>> of_types;
  for (const DType compute : {DType::f32, DType::bf16}) {
    Policy policy(keys, compute, true), other(keys, compute, true, 4);
    policy.score(1);
    of_types.push_back(policy.chosen());
    const std::vector<Bits>& expected = of_types.back();
    ASSERT_GE(expected.size(), 2);
    for (const std::vector<std::vector<Piece>>& steps : {token_by_token(), in_chunks()}) {
      policy.decode(steps, ProductRole::prefill, 1);
      EXPECT_EQ(policy.chosen(), expected);
    }
    other.decode(in_chunks(), ProductRole::prefill, 1);
    EXPECT_NE(other.chosen(), expected) << "the control: other weights";
  }
  EXPECT_NE(of_types[0], of_types[1]) << "the control: rounding decides choices";
}

INSTANTIATE_TEST_SUITE_P(Models, OnPolicyExperts,
                         testing::Values(std::vector<std::string>{"model.family=mixtral", "model.n_kv_heads=2"},
                                         std::vector<std::string>{"model.family=qwen2_moe", "model.d_ff_shared=20",
                                                                  "model.d_ff_expert=24"},
                                         std::vector<std::string>{"model.family=gpt_oss", "model.sliding_window=20"},
                                         std::vector<std::string>{"model.family=deepseek_v3", "model.dense_layers=1",
                                                                  "model.n_expert_groups=3", "model.groups_per_token=2",
                                                                  "model.kv_lora_rank=16", "model.qk_nope_head_dim=6",
                                                                  "model.qk_rope_head_dim=4", "model.v_head_dim=8"}));

}  // namespace
}  // namespace llmtrain
