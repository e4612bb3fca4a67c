// Losses of labels, as Transformers' ForSequenceClassificationLoss and ForTokenClassification have them: cross-entropy
// of one label of several, binary cross-entropy of each label, squared error of a number. The host computes them from
// the head's outputs, since few rows have labels.

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "kernels/reduce.hpp"
#include "objectives/objective.hpp"

namespace llmtrain {

namespace {

class Classification : public Objective {
 public:
  Classification(LabelProblem problem, std::vector<std::string> labels)
      : problem_(problem), labels_(std::move(labels)), outputs_(std::max<size_t>(labels_.size(), 1)) {
    const bool number = problem == LabelProblem::regression;
    metrics_ = {{"loss", 1},
                number ? MetricSpec{"mean_absolute_error", 1, "error"} : MetricSpec{"accuracy", 1, "accuracy"}};
    if (!number) counts_.resize(outputs_ * (problem == LabelProblem::single ? outputs_ : cells));
  }

  ObjectiveNeeds needs() const override {
    return {.statistics_first = true, .documents = true, .outputs = static_cast<int64_t>(outputs_)};
  }
  std::span<const MetricSpec> metrics() const override { return metrics_; }
  /// Texts, or tokens with a label.
  int64_t count(const StepPlan& plan) const override { return plan.trained_tokens; }
  void plan(Arena& arena, int64_t max_rows, int64_t /*max_segments*/) override {
    arena.add(device_values_, MemoryCategory::activations, "labels.values", DType::f32, {2 * max_rows});
  }
  void cotangents(const Batch& batch, const TokenStatistics& statistics, const TokenCotangents& out,
                  const Tensor& scale, Stream& stream) override {
    evaluate(batch, statistics, stream);
    differentiate(batch, out, scale, stream);
  }
  void add_sums(const Batch& batch, const TokenStatistics& statistics, const Tensor& sums, Stream& stream) override {
    evaluate(batch, statistics, stream);
    add_values(sums, stream);
  }
  void cotangents_and_sums(const Batch& batch, const TokenStatistics& statistics, const TokenCotangents& out,
                           const Tensor& scale, const Tensor& sums, Stream& stream) override {
    evaluate(batch, statistics, stream);
    differentiate(batch, out, scale, stream);
    add_values(sums, stream);
  }
  std::span<int64_t> counts() override { return counts_; }
  LabelScores label_scores() const override;

 private:
  /// Counts of multi: rows without the label, then those with it; by what is predicted.
  static constexpr size_t cells = 4;
  enum Cell : size_t { true_negative, false_positive, false_negative, true_positive };

  void evaluate(const Batch& batch, const TokenStatistics& statistics, Stream& stream) {
    LLMTRAIN_CHECK(batch.documents != nullptr, "a batch without labels");
    const DocumentColumns& documents = *batch.documents;
    const size_t rows = documents.rows.size(), width = problem_ == LabelProblem::multi ? outputs_ : 1;
    LLMTRAIN_CHECK(documents.values.size() == rows * width, "each row with labels has its values");
    outputs_of_rows_.resize(static_cast<size_t>(batch.tokens) * outputs_);
    copy_to_host(outputs_of_rows_.data(), statistics.logp.data, statistics.logp.bytes(), stream);
    stream.synchronize();
    derivatives_.assign(outputs_of_rows_.size(), 0.0F);
    for (std::vector<float>* values : {&losses_, &hits_}) values->clear();
    seen_.clear();
    for (size_t i = 0; i < rows; ++i) {
      const size_t first = static_cast<size_t>(documents.rows[i]) * outputs_;
      const std::span<const float> outputs(outputs_of_rows_.data() + first, outputs_);
      const std::span<float> derivatives(derivatives_.data() + first, outputs_);
      const std::span<const float> values(documents.values.data() + i * width, width);
      if (problem_ == LabelProblem::single) {
        evaluate_one(outputs, static_cast<size_t>(values.front()), derivatives);
      } else if (problem_ == LabelProblem::multi) {
        evaluate_several(outputs, values, derivatives);
      } else {
        const double error = static_cast<double>(outputs.front()) - static_cast<double>(values.front());
        derivatives.front() = static_cast<float>(2 * error);
        add(error * error, std::abs(error));
      }
    }
  }

  void add(double loss, double hit) {
    losses_.push_back(static_cast<float>(loss));
    hits_.push_back(static_cast<float>(hit));
  }

  void evaluate_one(std::span<const float> outputs, size_t label, std::span<float> derivatives) {
    LLMTRAIN_CHECK(label < outputs_, "a label without an output");
    const auto highest = static_cast<size_t>(std::ranges::max_element(outputs) - outputs.begin());
    double sum = 0;
    for (const float output : outputs)
      sum += std::exp(static_cast<double>(output) - static_cast<double>(outputs[highest]));
    const double log_sum = static_cast<double>(outputs[highest]) + std::log(sum);
    for (size_t k = 0; k < outputs_; ++k) {
      derivatives[k] = static_cast<float>(std::exp(static_cast<double>(outputs[k]) - log_sum) - (k == label ? 1 : 0));
    }
    add(log_sum - static_cast<double>(outputs[label]), highest == label ? 1 : 0);
    seen_.push_back(label * outputs_ + highest);
  }

  void evaluate_several(std::span<const float> outputs, std::span<const float> values, std::span<float> derivatives) {
    double loss = 0;
    bool all = true;
    for (size_t k = 0; k < outputs_; ++k) {
      const double x = static_cast<double>(outputs[k]), y = static_cast<double>(values[k]);
      loss += std::max(x, 0.0) - x * y + std::log1p(std::exp(-std::abs(x)));
      derivatives[k] = static_cast<float>((1 / (1 + std::exp(-x)) - y) / static_cast<double>(outputs_));
      const bool predicted = x > 0, has = y > 0;
      all = all && predicted == has;
      seen_.push_back(k * cells + (has ? false_negative : true_negative) + (predicted ? 1 : 0));
    }
    add(loss / static_cast<double>(outputs_), all ? 1 : 0);
  }

  void differentiate(const Batch& batch, const TokenCotangents& out, const Tensor& scale, Stream& stream) {
    if (!scale.empty()) {
      float factor = 1;
      copy_to_host(&factor, scale.data, sizeof(factor), stream);
      stream.synchronize();
      for (float& derivative : derivatives_) derivative *= factor;
    }
    copy_to_device(out.logp.rows(0, batch.tokens).data, derivatives_.data(),
                   static_cast<int64_t>(derivatives_.size() * sizeof(float)), stream);
  }

  void add_values(const Tensor& sums, Stream& stream) {
    for (const size_t cell : seen_) ++counts_[cell];
    int64_t begin = 0, metric = 0;
    for (const std::vector<float>* values : {&losses_, &hits_}) {
      if (values->empty()) return;
      const Tensor row = device_values_.rows(begin, std::ssize(*values));
      begin += std::ssize(*values);
      copy_to_device(row.data, values->data(), row.bytes(), stream);
      sum_of_products(sums.rows(metric++, 1), row, {}, stream);
    }
  }

  LabelProblem problem_;
  std::vector<std::string> labels_;
  size_t outputs_;
  std::vector<MetricSpec> metrics_;
  std::vector<int64_t> counts_;  // [K, K], rows of true labels; of multi [K, cells]
  Tensor device_values_;         // fp32 [2 N]
  // Values of the last micro-batch; copies to the device read them.
  std::vector<float> outputs_of_rows_, derivatives_, losses_, hits_;
  std::vector<size_t> seen_;  // cells of `counts_`
};

/// A label in the name of a metric, whose parts a slash divides.
std::string in_metric(std::string_view label) {
  if (label == "." || label == "..") return "%2E" + std::string(label.substr(1));
  std::string name;
  for (const char c : label) name += c == '/' ? "%2F" : std::string(1, c);
  return name;
}

LabelScores Classification::label_scores() const {
  LabelScores scores;
  if (counts_.empty()) return scores;
  const bool single = problem_ == LabelProblem::single;
  const auto ratio = [](int64_t part, int64_t whole) {  // 0 of 0 is 0, as in scikit-learn
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
  };
  scores.values.emplace_back("macro_f1", 0);
  double f1_sum = 0;
  for (size_t k = 0; k < outputs_; ++k) {
    int64_t hits = 0, with_label = 0, predicted = 0;
    if (single) {
      hits = counts_[k * outputs_ + k];
      for (size_t other = 0; other < outputs_; ++other) {
        with_label += counts_[k * outputs_ + other];
        predicted += counts_[other * outputs_ + k];
      }
    } else {
      hits = counts_[k * cells + true_positive];
      with_label = hits + counts_[k * cells + false_negative];
      predicted = hits + counts_[k * cells + false_positive];
    }
    const double f1 = ratio(2 * hits, with_label + predicted);
    f1_sum += f1;
    const std::string label = in_metric(labels_[k]);
    scores.values.emplace_back("precision/" + label, ratio(hits, predicted));
    scores.values.emplace_back("recall/" + label, ratio(hits, with_label));
    scores.values.emplace_back("f1/" + label, f1);
  }
  scores.values.front().second = f1_sum / static_cast<double>(outputs_);
  if (single) {
    scores.labels = labels_;
    scores.confusion = counts_;
  }
  return scores;
}

}  // namespace

std::unique_ptr<Objective> make_classification(LabelProblem problem, std::vector<std::string> labels) {
  return std::make_unique<Classification>(problem, std::move(labels));
}

}  // namespace llmtrain
