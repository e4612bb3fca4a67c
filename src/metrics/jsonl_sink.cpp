// The file metrics.jsonl of a run.

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "metrics/append_file.hpp"
#include "metrics/sink.hpp"

namespace llmtrain {

namespace {

void add_metrics(nlohmann::ordered_json& j, const std::vector<NamedValue>& metrics, const std::string& prefix) {
  for (const NamedValue& metric : metrics) j[prefix + metric.name] = metric.value;
}

class JsonlSink : public Sink {
 public:
  explicit JsonlSink(const SinkOptions& options)
      : ranks_(options.ranks), restart_(options.restart), file_(options.directory + "/metrics.jsonl") {}

  void interval(const IntervalRecord& r) override;
  void evaluation(const EvaluationRecord& r, double wall_time) override;
  void notice(const NodeNotice& n, double wall_time) override {
    nlohmann::ordered_json j = nlohmann::ordered_json::object();
    j["step"] = n.step;
    j["wall_time"] = wall_time;
    if (n.replay != NodeNotice::Replay::none) {
      j[n.replay == NodeNotice::Replay::wrong ? "replay/wrong_node" : "replay/doubtful_node"] = n.host;
      j["replay/ranks"] = n.ranks;
      return append(j);
    }
    j[n.slow ? "slow_node" : "recovered_node"] = n.host;
    if (n.slow) j["slow_ranks"] = n.ranks;
    j["ratio"] = n.ratio;
    append(j);
  }
  void samples(const SampleRecord& r, double wall_time) override;
  std::string resume(int64_t step, PendingWork /*pending*/, double wall_time) override {
    nlohmann::ordered_json j = nlohmann::ordered_json::object();
    j["resumed_from_step"] = step;
    j["wall_time"] = wall_time;
    j["ranks"] = ranks_;
    if (!restart_.empty()) j["restart"] = restart_;
    append(j);
    return {};
  }
  void roll_back(const RollbackRecord& r, PendingWork /*pending*/, double wall_time) override {
    nlohmann::ordered_json j = nlohmann::ordered_json::object();
    j["rolled_back_to_step"] = r.step;
    j["from_step"] = r.from;
    j["wall_time"] = wall_time;
    j["reason"] = r.reason;
    append(j);
  }
  void sync() override { file_.sync(); }

 private:
  void append(const nlohmann::ordered_json& j) { file_.append(j.dump() + "\n"); }

  int ranks_;
  std::string restart_;
  AppendFile file_;
};

void JsonlSink::interval(const IntervalRecord& r) {
  const StepRecord& last = r.last;
  nlohmann::ordered_json j = nlohmann::ordered_json::object();
  j["step"] = last.step;
  j["wall_time"] = r.wall_time;
  j["loss"] = last.tokens > 0 ? last.loss : std::numeric_limits<double>::quiet_NaN();  // JSON writes NaN as null
  j["loss_mean"] = r.loss_mean;
  add_metrics(j, last.metrics, "");
  j["grad_norm"] = last.grad_norm;
  j["learning_rate"] = last.learning_rate;
  if (last.scaling) {
    j["loss_scale"] = last.scaling->loss_scale;
    j["skipped_steps"] = last.scaling->skipped_steps;
  }
  j["tokens"] = last.tokens;
  j["tokens_per_second"] = r.tokens_per_second;
  j["flops_per_second"] = r.flops_per_second;
  j["memory"] = r.memory;
  j["memory_libraries"] = r.memory_libraries;
  j["memory_planned"] = r.memory_planned;
  j["seconds"] = {{"step", r.seconds},
                  {"data", r.phases.data},
                  {"forward_backward", r.phases.forward_backward},
                  {"reduction", r.phases.reduction},
                  {"optimizer", r.phases.optimizer}};
  add_metrics(j, r.system, "");
  j["ranks"] = ranks_;
  append(j);
}

void JsonlSink::evaluation(const EvaluationRecord& r, double wall_time) {
  nlohmann::ordered_json j = nlohmann::ordered_json::object();
  j["step"] = r.step;
  j["wall_time"] = wall_time;
  if (r.tokens > 0) j["validation_loss"] = r.loss;
  if (r.tokens > 0 && r.metrics.empty()) j["perplexity"] = std::exp(r.loss);
  add_metrics(j, r.metrics, "validation_");
  add_metrics(j, r.scores, "validation_");
  const auto labels = std::ssize(r.labels);
  if (labels > 0) j["validation_confusion"]["labels"] = r.labels;
  for (int64_t row = 0; row < labels; ++row) {
    const auto first = r.confusion.begin() + row * labels;
    j["validation_confusion"]["counts"].push_back(std::vector<int64_t>(first, first + labels));
  }
  j["validation_tokens"] = r.tokens;
  if (r.token_accuracy) j["validation_token_accuracy"] = *r.token_accuracy;
  j["best"] = r.best;
  j["seconds"] = r.seconds;
  append(j);
}

void JsonlSink::samples(const SampleRecord& r, double wall_time) {
  for (const SampleRecord::Sample& sample : r.samples) {
    nlohmann::ordered_json j = nlohmann::ordered_json::object();
    j["step"] = r.step;
    j["wall_time"] = wall_time;
    j["prompt"] = sample.prompt;
    j["sample"] = sample.text;
    append(j);
  }
}

}  // namespace

std::unique_ptr<Sink> make_jsonl_sink(const SinkOptions& options) { return std::make_unique<JsonlSink>(options); }

}  // namespace llmtrain
