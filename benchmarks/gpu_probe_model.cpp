#include <fmt/format.h>

#include <numeric>

#include "gpu_probe.hpp"
#include "kernels/reduce.hpp"
#include "kernels/workspace.hpp"
#include "models/models.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain::probe {

namespace {

ModelConfig gpt2_config(bool small) {
  ModelConfig c;
  c.d_model = small ? 32 : 768;
  c.n_layers = 12;
  c.n_heads = c.n_kv_heads = small ? 2 : 12;
  c.head_dim = c.d_model / c.n_heads;
  c.vocab_size = small ? 320 : 50304;
  c.max_seq_len = small ? 64 : 1024;
  family_entry(c.family).defaults(c);
  c.query_pre_attn_scalar = static_cast<double>(c.head_dim);
  return c;
}

/// GPT-2 with the memory of one rank, and a batch that stays on the device.
class Passes {
 public:
  Passes(const ModelConfig& config, int64_t documents, Stream& stream)
      : stream_(stream),
        buffers_{stream},
        rows_(documents * config.max_seq_len),
        model_(make_model(config, config.vocab_size)),
        params_(model_->units(), options()),
        communicator_(make_local_communicator()) {
    params_.plan(arena_);
    model_->plan(arena_, {DType::bf16, rows_, true, Recompute::none, config.max_seq_len});
    memory_ = DeviceBuffer(arena_.bytes());
    arena_.commit(memory_.data());
    workspace_.emplace(arena_.workspace());
    params_.start(*communicator_, stream);
    params_.initialize(42);
    model_->start(stream);
    batch_ = buffers_.batch(documents, config.max_seq_len);
    batch_.ids = buffers_.of(DType::i32, word_ids(rows_, config.vocab_size));
    std::vector<int32_t> targets(static_cast<size_t>(rows_));
    for (size_t i = 0; i < targets.size(); ++i)
      targets[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(config.vocab_size));
    batch_.targets = buffers_.of(DType::i32, targets);
    statistics_ = {buffers_.make(DType::f32, {rows_}), buffers_.make(DType::f32, {rows_}), {}, {}};
    cotangents_ = {buffers_.filled(DType::f32, {rows_}, -1.0f / static_cast<float>(rows_)), {}, {}};
  }

  int64_t rows() const { return rows_; }
  void forward_backward() {
    Context ctx{params_, arena_, stream_, 42, 0, true};
    model_->forward(ctx, &batch_);
    model_->score_and_differentiate(ctx, &batch_, statistics_, cotangents_);
    model_->backward(ctx, &batch_);
  }
  /// Runs the passes of a step, and returns the hash of its gradients.
  uint64_t step(const std::function<void(ParamStore&)>& passes) {
    params_.reducer().begin_step(1);
    params_.reducer().begin_round(0);
    params_.reducer().begin_micro_batch(true, true);
    passes(params_);
    params_.reducer().finish();
    uint64_t hash = chunked_hash(statistics_.logp, 0, stream_);
    for (int unit = 0; unit < params_.units().size(); ++unit) {
      for (size_t segment = 0; segment < params_.units()[unit].segments.size(); ++segment) {
        hash = hash * 31 + chunked_hash(params_.shard(unit, segment).gradient, 0, stream_);
      }
    }
    return hash;
  }

 private:
  static ParamStoreOptions options() {
    ParamStoreOptions o;
    o.compute = DType::bf16;
    return o;
  }

  Stream& stream_;
  Buffers buffers_;
  int64_t rows_;
  Arena arena_;
  std::unique_ptr<Model> model_;
  ParamStore params_;
  std::unique_ptr<Communicator> communicator_;
  DeviceBuffer memory_;
  std::optional<WorkspaceScope> workspace_;
  Batch batch_;
  TokenStatistics statistics_;
  TokenCotangents cotangents_;
};

}  // namespace

void graph_of_a_model(Report& report, const Options& options, Stream& stream) {
  const ModelConfig config = gpt2_config(options.small);
  const std::string what = fmt::format("{} layers of {}", config.n_layers, config.d_model);
  if (!Graph::available()) return report.pass_over("graph", what, "this device has no graphs");
  Passes passes(config, options.small ? 2 : 8, stream);
  const auto plain = [&](ParamStore&) { passes.forward_backward(); };
  const uint64_t expected = passes.step(plain);
  std::string wrong = passes.step(plain) == expected ? "" : "a second step without a graph has other gradients";
  const int64_t before = device_memory().available;
  Graph graph;
  const auto recorded = [&](ParamStore& params) {
    if (graph.recorded()) {
      params.mark_passes_done();
    } else {
      graph.record(stream, [&] { passes.forward_backward(); });
    }
    graph.launch(stream);
  };
  for (int launch = 0; launch < 4 && wrong.empty(); ++launch) {  // the first launch follows the recording
    if (passes.step(recorded) != expected)
      wrong = fmt::format("launch {} of the graph has other gradients", launch + 1);
  }
  const double mib = static_cast<double>(before - device_memory().available) / 0x1p20;
  report.add("graph", what, wrong, fmt::format("\"mib\": {:.1f}", mib));
  if (!options.timings || !wrong.empty()) return;
  const double alone = seconds(
      stream, [&] { passes.step(plain); }, options.small);
  const double whole = seconds(
      stream, [&] { passes.step(recorded); }, options.small);
  report.add("graph", fmt::format("{}, {} rows", what, passes.rows()), "",
             fmt::format("\"seconds\": {:.6e}, \"seconds_without\": {:.6e}", whole, alone));
}

void nccl_of_one_rank(Report& report, Communicator& communicator, Stream& stream) {
  const std::string library = transfer_library();
  Buffers buffers{stream};
  constexpr int64_t count = 1 << 20;
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0f);
  const Tensor tensor = buffers.of(DType::f32, values);
  std::vector<int64_t> integers(1000);
  std::iota(integers.begin(), integers.end(), int64_t{1} << 40);
  const Tensor sums = buffers.of(DType::i64, integers);
  const std::array<int64_t, 2> borders{0, count};
  Transfer gather = communicator.all_gather(tensor, borders, stream);
  if (!gather.pending()) {
    return report.pass_over("nccl", library, "a job of one rank opens it with LLMTRAIN_NCCL=always");
  }
  gather.wait(stream);
  Transfer sum = communicator.sum_on_device(sums, stream);
  sum.wait(stream);
  std::vector<int64_t> summed(integers.size());
  copy_to_host(summed.data(), sums.data, sums.bytes(), stream);
  const bool same = values_of(tensor, stream) == values && summed == integers;
  report.add("nccl", library + " of one rank", same ? "" : "a gather or a sum of one rank changes the data");
}

}  // namespace llmtrain::probe
