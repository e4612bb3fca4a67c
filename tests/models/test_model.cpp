#include "models/test_model.hpp"

#include <algorithm>
#include <array>
#include <filesystem>

#include "core/critic_names.hpp"
#include "core/deck/layers_codec.hpp"
#include "harness/harness.hpp"
#include "harness/whole_parameters.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/objective.hpp"
#include "kernels/reduce.hpp"
#include "models/expert_places.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain::test {

namespace {

/// Element of the whole tensor at which a row of a slice begins.
int64_t offset_of_row(const ParamSlice& slice, const ParamSpec& spec, int64_t row) {
  if (!slice.block) return row * spec.columns;
  return (slice.block->first_row + row) * slice.block->columns + slice.block->first_column;
}

/// Calls f(element of the part, element of the tensor) for the elements of a part of a tensor of all experts.
template <class F>
void each_element(const ExpertPlace& place, const F& f) {
  for (int64_t i = 0; i < place.rows * place.columns; ++i) {
    f(i, place.first + i / place.columns * place.row_stride + i % place.columns * place.column_stride);
  }
}

using Values = std::map<std::string, std::vector<float>>;

/// Makes tensors of all experts those of single ones.
Values split_experts(const ExpertPlaces& places, Values values) {
  for (const auto& [name, place] : places) {
    std::vector<float> part(static_cast<size_t>(place.rows * place.columns));
    const std::vector<float>& whole = values.at(place.tensor);
    each_element(place,
                 [&](int64_t to, int64_t from) { part[static_cast<size_t>(to)] = whole[static_cast<size_t>(from)]; });
    values[name] = std::move(part);
  }
  return values;
}

/// Makes tensors of single experts those of all.
Values join_experts(const ExpertPlaces& places, Values values) {
  for (const auto& [name, place] : places) {
    const auto found = values.extract(name);
    if (found.empty()) continue;
    std::vector<float>& whole = values[place.tensor];
    whole.resize(static_cast<size_t>(place.shape[0] * place.extent));
    each_element(place, [&](int64_t from, int64_t to) {
      whole[static_cast<size_t>(to)] = found.mapped()[static_cast<size_t>(from)];
    });
  }
  return values;
}

template <class E>
E enum_of(const std::string& name) {
  const auto& names = enum_names<E>;
  const auto found = std::find(names.begin(), names.end(), name);
  LLMTRAIN_CHECK(found != names.end(), "unknown name " + name);
  return static_cast<E>(found - names.begin());
}

}  // namespace

DecoderShape shape_of(const Golden& golden) {
  ModelConfig c;
  c.family = enum_of<ModelConfig::Family>(golden.text("family"));
  c.vocab_size = golden.integer("vocab_size");
  c.d_model = golden.integer("d_model");
  c.n_layers = golden.integer("n_layers");
  c.n_heads = golden.integer("n_heads");
  c.n_kv_heads = golden.integer("n_kv_heads");
  c.head_dim = golden.integer("head_dim");
  c.d_ff = golden.integer("d_ff");
  c.max_seq_len = golden.integer("max_seq_len");
  c.norm = enum_of<ModelConfig::Norm>(golden.text("norm"));
  c.norm_epsilon = golden.number("norm_epsilon");
  c.activation = enum_of<ModelConfig::Activation>(golden.text("activation"));
  c.positions = enum_of<ModelConfig::Positions>(golden.text("positions"));
  c.rope_theta = golden.number("rope_theta");
  c.bias = golden.flag("norm_bias");
  c.tie_embeddings = golden.flag("tie_embeddings");
  c.pre_norm = golden.flag("pre_norm");
  c.sliding_window = golden.integer("sliding_window");
  const auto number = [&](const char* key, double otherwise) {
    return golden.has(key) ? golden.number(key) : otherwise;
  };
  const auto flag = [&](const char* key) { return golden.has(key) && golden.flag(key); };
  if (golden.has("sliding_window_layers")) {
    const std::string layers = golden.text("sliding_window_layers");
    for (std::string_view item : split_list(layers)) c.sliding_window_layers.push_back(parse_count(item, {}));
  }
  if (golden.has("rope_scaling")) c.rope_scaling = DeckValue<RopeScaling>::parse(golden.text("rope_scaling"), {});
  if (golden.has("no_rope_layers")) c.no_rope_layers = LayersCodec::parse(golden.text("no_rope_layers"), {});
  c.rope_local_theta = number("rope_local_theta", 0);
  c.input_norm = !golden.has("input_norm") || golden.flag("input_norm");
  c.parallel_residual = flag("parallel_residual");
  c.shared_norm = flag("shared_norm");
  c.residual_multiplier = number("residual_multiplier", 1);
  c.logits_scaling = number("logits_scaling", 1);
  c.partial_rotary_factor = number("partial_rotary_factor", 1);
  c.sandwich_norm = flag("sandwich_norm");
  c.zero_centered_norm = flag("zero_centered_norm");
  c.qk_norm = flag("qk_norm");
  c.embedding_scale = number("embedding_scale", 1);
  c.query_pre_attn_scalar = number("query_pre_attn_scalar", 0);
  c.attention_softcap = number("attention_softcap", 0);
  c.attention_sinks = flag("attention_sinks");
  c.final_softcap = number("final_softcap", 0);
  const auto integer = [&](const char* key, int64_t otherwise) {
    return golden.has(key) ? golden.integer(key) : otherwise;
  };
  c.qk_norm_whole = flag("qk_norm_whole");
  c.experts.count = integer("n_experts", 0);
  c.experts.per_token = integer("experts_per_token", 1);
  c.experts.d_ff = integer("d_ff_expert", 0);
  c.experts.d_ff_shared = integer("d_ff_shared", 0);
  c.experts.shared_gate = flag("shared_gate");
  c.experts.norm_topk = flag("norm_topk");
  if (golden.has("router_score")) c.experts.score = enum_of<ExpertsConfig::Score>(golden.text("router_score"));
  c.experts.scale = number("routed_scale", 1);
  c.experts.limit = number("expert_limit", 0);
  if (golden.has("dense_layers")) c.experts.dense_layers = LayersCodec::parse(golden.text("dense_layers"), {});
  c.experts.every = integer("expert_every", 1);
  c.experts.groups = integer("n_expert_groups", 1);
  c.experts.groups_per_token = integer("groups_per_token", 1);
  c.latent = {.query_rank = integer("q_lora_rank", 0),
              .rank = integer("kv_lora_rank", 0),
              .plain = integer("qk_nope_head_dim", 0),
              .rotated = integer("qk_rope_head_dim", 0),
              .value = integer("v_head_dim", 0)};
  c.qkv_bias = golden.flag("qkv_bias");
  c.attention_output_bias = golden.flag("output_bias");
  c.mlp_bias = golden.flag("mlp_bias");
  DecoderShape shape = decoder_shape(c, c.vocab_size);
  shape.final_norm = golden.flag("final_norm");
  return shape;
}

Rows rows_of(const Golden& golden) {
  return {golden.ints("ids").values, golden.ints("positions").values, golden.ints("targets").values,
          golden.ints("segments").values};
}

Rows document_of(const Rows& rows, size_t document) {
  const auto begin = rows.segments[document], end = rows.segments[document + 1];
  const auto cut = [&](const std::vector<int32_t>& v) {
    return std::vector<int32_t>(v.begin() + begin, v.begin() + end);
  };
  return {cut(rows.ids), cut(rows.positions), cut(rows.targets), {0, end - begin}};
}

TestModel::TestModel(const DecoderShape& shape, DType compute, int64_t max_rows, Recompute recompute,
                     const Ranks& ranks, const std::optional<TestCritic>& critic)
    : communicator_(ranks.tensor != nullptr         ? this_process()
                    : ranks.communicator != nullptr ? *ranks.communicator
                                                    : communicator()),
      shape_(shape),
      model_(std::make_unique<Decoder>(shape)) {
  if (critic && critic->shape) {
    critic_ = std::make_unique<Decoder>(*critic->shape, model_->units(), std::string(critic_prefix));
    both_ = std::make_unique<SeparateActorCritic>(*model_, *critic_);
  } else if (critic) {
    both_ = std::make_unique<SharedActorCritic>(*model_);
  }
  if (ranks.tensor != nullptr) model_->share_blocks(*ranks.tensor);
  ParamStoreOptions options;
  options.compute = compute;
  options.groups = 8;
  options.rank = communicator_.rank();
  options.size = communicator_.size();
  options.zero_stage = ranks.zero_stage;
  options.segment_elements = ranks.segment_elements;
  options.offload_optimizer = options.offload_parameters = ranks.offload;
  options.offload_path = std::filesystem::temp_directory_path().string();
  params_ = std::make_unique<ParamStore>(model().units(), options);
  params_->plan(arena_);
  model().plan(arena_, {compute, max_rows, true, recompute});
  const auto add = [&](Tensor& t, const char* name, DType dtype, int64_t n) {
    arena_.add(t, MemoryCategory::data, name, dtype, {n});
  };
  add(buffers_.ids, "ids", DType::i32, max_rows);
  add(buffers_.positions, "positions", DType::i32, max_rows);
  add(buffers_.targets, "targets", DType::i32, max_rows);
  add(buffers_.loss_weights, "loss_weights", DType::f32, max_rows);
  add(buffers_.segments, "segments", DType::i32, max_rows + 1);
  add(buffers_.sequence_ids, "sequence_ids", DType::i64, max_rows);
  add(buffers_.sequence_offsets, "sequence_offsets", DType::i32, max_rows);
  add(statistics_.logp, "logp", DType::f32, max_rows);
  add(statistics_.lse, "lse", DType::f32, max_rows);
  add(statistics_.entropy, "entropy", DType::f32, max_rows);
  if (critic) add(statistics_.value, "value", DType::f32, max_rows);
  add(cotangents_.logp, "dlogp", DType::f32, max_rows);
  if (const ExpertsConfig& experts = shape.config.experts; experts.exist()) {
    const auto layers = static_cast<size_t>(experts.layers(shape.config.n_layers));
    router_.emplace(RouterLossCoefficients{}, experts.count, std::vector<int64_t>(layers));
    router_->plan(arena_);
  }
  arena_.add(logits_, MemoryCategory::data, "logits", DType::f32, {1, shape.config.vocab_size});
  memory_ = DeviceBuffer(arena_.bytes());
  arena_.commit(memory_.data());
  workspace_.emplace(arena_.workspace());
  params_->start(communicator_, stream());
  params_->initialize(42);
  model().start(stream());
  ctx_ = std::make_unique<Context>(Context{*params_, arena_, stream(), 42, 0, false});
}

void TestModel::set(const std::map<std::string, std::vector<float>>& given) {
  const Values values = split_experts(expert_places(shape_), given);
  for (int unit = 0; unit < params_->units().size(); ++unit) {
    const UnitSpec& spec = params_->units()[unit].spec;
    for (size_t p = 0; p < spec.params.size(); ++p) {
      std::vector<float> whole;
      for (const ParamSlice& slice : spec.params[p].slices) {
        const auto found = values.find(slice.name);
        LLMTRAIN_CHECK(found != values.end(), "no value for " + slice.name);
        for (int64_t row = 0; row < slice.rows; ++row) {
          const auto begin = found->second.begin() + offset_of_row(slice, spec.params[p], row);
          whole.insert(whole.end(), begin, begin + spec.params[p].columns);
        }
      }
      LLMTRAIN_CHECK(static_cast<int64_t>(whole.size()) == spec.params[p].numel(), "shape of " + spec.params[p].name);
      test::set_parameter(*params_, unit, static_cast<int>(p), whole.data(), communicator_);
    }
  }
  params_->publish_weights();
}

namespace {

/// Splits a whole parameter into its slices.
void slice_into(std::map<std::string, std::vector<float>>& out, const ParamSpec& spec, const float* values) {
  for (const ParamSlice& slice : spec.slices) {
    const float* begin = values + slice.first_row * spec.columns;
    std::vector<float>& to = out[slice.name];
    to.resize(static_cast<size_t>(slice.block ? slice.block->rows * slice.block->columns : slice.rows * spec.columns));
    for (int64_t row = 0; row < slice.rows; ++row) {
      std::copy_n(begin + row * spec.columns, spec.columns, to.begin() + offset_of_row(slice, spec, row));
    }
  }
}

}  // namespace

std::map<std::string, std::vector<float>> TestModel::parameters() {
  std::map<std::string, std::vector<float>> out;
  for (int unit = 0; unit < params_->units().size(); ++unit) {
    const UnitSpec& spec = params_->units()[unit].spec;
    for (size_t p = 0; p < spec.params.size(); ++p) {
      std::vector<float> whole(static_cast<size_t>(spec.params[p].numel()));
      test::gather_parameter(*params_, unit, static_cast<int>(p), whole.data());
      slice_into(out, spec.params[p], whole.data());
    }
  }
  return join_experts(expert_places(shape_), std::move(out));
}

std::map<std::string, std::vector<float>> TestModel::gradients() {
  LLMTRAIN_CHECK(communicator_.size() == 1, "gradients are read whole from one rank's shard");
  std::map<std::string, std::vector<float>> out;
  for (int unit = 0; unit < params_->units().size(); ++unit) {
    if (!params_->units()[unit].trained()) continue;
    const UnitSpec& spec = params_->units()[unit].spec;
    const ParamStore::Shard shard = params_->shard(unit, 0);
    for (size_t p = 0; p < spec.params.size(); ++p) {
      std::vector<float> whole(static_cast<size_t>(spec.params[p].numel()));
      const Tensor part =
          shard.gradient.rows(params_->units()[unit].layout.offset(static_cast<int>(p)), spec.params[p].numel());
      copy_to_host(whole.data(), part.data, part.bytes(), stream());
      stream().synchronize();
      slice_into(out, spec.params[p], whole.data());
    }
  }
  return join_experts(expert_places(shape_), std::move(out));
}

Batch TestModel::upload(const Rows& rows) {
  const auto n = static_cast<int64_t>(rows.ids.size());
  std::vector<float> weights(rows.ids.size());
  std::vector<int64_t> sequences(rows.ids.size());
  Batch batch = buffers_;
  batch.tokens = n;
  batch.segment_count = static_cast<int64_t>(rows.segments.size()) - 1;
  for (size_t s = 0; s + 1 < rows.segments.size(); ++s) {
    batch.longest_segment = std::max<int64_t>(batch.longest_segment, rows.segments[s + 1] - rows.segments[s]);
    for (int32_t r = rows.segments[s]; r < rows.segments[s + 1]; ++r) {
      sequences[static_cast<size_t>(r)] = static_cast<int64_t>(s);
      weights[static_cast<size_t>(r)] = rows.targets[static_cast<size_t>(r)] == ignore_target ? 0.0f : 1.0f;
    }
  }
  const auto copy = [&](Tensor& to, const auto& from) {
    to = to.rows(0, static_cast<int64_t>(from.size()));
    copy_to_device(to.data, from.data(), to.bytes(), stream());
  };
  copy(batch.ids, rows.ids);
  copy(batch.positions, rows.positions);
  copy(batch.targets, rows.targets);
  copy(batch.loss_weights, weights);
  copy(batch.segments, rows.segments);
  copy(batch.sequence_ids, sequences);
  copy(batch.sequence_offsets, rows.positions);
  return batch;
}

double TestModel::differentiate(const std::vector<Rows>& batches) {
  ExactSum loss;
  const auto count = static_cast<int64_t>(batches.size());
  params_->reducer().begin_step(count);
  if (router_) router_->begin_step(static_cast<double>(trained(batches)) / static_cast<double>(count), 1);
  for (int64_t round = 0; round < params_->reducer().rounds(); ++round) {
    const int64_t group = params_->reducer().begin_round(round);
    params_->reducer().begin_micro_batch(true, true);
    if (group < 0) {
      model().forward(*ctx_, nullptr);
      model().score_and_differentiate(*ctx_, nullptr, {}, {});
      model().backward(*ctx_, nullptr);
      continue;
    }
    const Batch batch = upload(batches[static_cast<size_t>(group)]);
    const Tensor value = first_rows(statistics_.value, batch.tokens);
    const TokenStatistics statistics{
        first_rows(statistics_.logp, batch.tokens), first_rows(statistics_.lse, batch.tokens), {}, {}, value};
    const Tensor dlogp = first_rows(cotangents_.logp, batch.tokens);
    ctx_->router = router_ ? &*router_ : nullptr;
    if (router_) router_->begin_pass(stream());
    model().forward(*ctx_, &batch);
    if (router_) router_->end_pass(batch.tokens - batch.padding, nullptr, stream());
    cross_entropy_cotangents(dlogp, batch.loss_weights, {}, stream());
    model().score_and_differentiate(*ctx_, &batch, statistics, {dlogp, {}, {}, value.empty() ? value : dlogp});
    sum_of_products(loss, statistics.logp, batch.loss_weights, stream());
    if (!value.empty()) sum_of_products(loss, value, batch.loss_weights, stream());
    model().backward(*ctx_, &batch);
    ctx_->router = nullptr;
  }
  params_->reducer().finish();
  communicator_.sum(loss);
  ExactSum of_routers = router_ ? router_->loss() : ExactSum();
  communicator_.sum(of_routers);
  return of_routers.value() - loss.value();
}

double TestModel::evaluate(const Rows& rows, const DocumentColumns& documents, Objective& objective, const Tensor& sums,
                           bool gradients) {
  Batch batch = upload(rows);
  batch.documents = &documents;
  const auto cut = [&](const Tensor& column) { return first_rows(column, batch.tokens); };
  const TokenStatistics statistics{cut(statistics_.logp), cut(statistics_.lse), cut(statistics_.entropy), {}, {}};
  params_->reducer().begin_step(1);
  params_->reducer().begin_round(0);
  params_->reducer().begin_micro_batch(true, true);
  model().forward(*ctx_, &batch);
  model().score(*ctx_, &batch, statistics);
  fill_zero(sums.data, sums.bytes(), stream());
  objective.add_sums(batch, statistics, sums, stream());
  ExactSum loss;
  copy_to_host(loss.limbs().data(), sums.data, ExactSum::integer_count * static_cast<int64_t>(sizeof(int64_t)),
               stream());
  if (gradients) {
    const TokenCotangents cotangents{cut(cotangents_.logp), {}, {}, {}};
    objective.cotangents(batch, statistics, cotangents, {}, stream());
    model().score_and_differentiate(*ctx_, &batch, statistics, cotangents);
    model().backward(*ctx_, &batch);
    params_->reducer().finish();
  }
  stream().synchronize();
  return loss.value();
}

std::vector<float> TestModel::logits(const Rows& rows) {
  const Batch batch = upload(rows);
  const int64_t v = shape_.config.vocab_size;
  std::vector<float> out(static_cast<size_t>(batch.tokens * v));
  model_->forward(*ctx_, &batch);
  for (int64_t row = 0; row < batch.tokens; ++row) {
    model_->logits(*ctx_, &batch, std::array{row}, logits_);
    copy_to_host(out.data() + row * v, logits_.data, logits_.bytes(), stream());
    stream().synchronize();
  }
  return out;
}

double TestModel::score(const Rows& rows) {
  const Batch batch = upload(rows);
  const TokenStatistics statistics{first_rows(statistics_.logp, batch.tokens), {}, {}, {}};
  ExactSum loss;
  model_->forward(*ctx_, &batch);
  model_->score(*ctx_, &batch, statistics);
  sum_of_products(loss, statistics.logp, batch.loss_weights, stream());
  return -loss.value();
}

int64_t TestModel::trained(const std::vector<Rows>& batches) {
  int64_t n = 0;
  for (const Rows& rows : batches) {
    n +=
        static_cast<int64_t>(rows.targets.size()) - std::count(rows.targets.begin(), rows.targets.end(), ignore_target);
  }
  return n;
}

void add_router_losses(TestModel& m, const Golden& golden) {
  const auto number = [&](const char* key) { return golden.has(key) ? golden.number(key) : 0; };
  if (m.has_router()) m.set_router_losses({number("router_aux"), number("router_z_loss")});
}

}  // namespace llmtrain::test
