#pragma once
// Statistics of a row from the parts of the blocks of its vocabulary, on every device.

#include <cmath>

#include "core/host_device.hpp"
#include "kernels/logprob_checks.hpp"

namespace llmtrain {

struct RowOfParts {
  const LogprobPart* parts;  ///< [S, R]
  const int32_t* targets;
  int64_t blocks, rows, vocabulary;
  float *logp, *lse, *entropy, *uniform, *mean_logit;
  int32_t* argmax;

  RowOfParts(const TokenStatistics& s, const Tensor& all_parts, const Tensor& row_targets, int64_t tokens)
      : parts(static_cast<const LogprobPart*>(all_parts.data)),
        targets(row_targets.as<int32_t>()),
        blocks(all_parts.dim(0)),
        rows(row_targets.numel()),
        vocabulary(tokens),
        logp(data_or_null<float>(s.logp)),
        lse(data_or_null<float>(s.lse)),
        entropy(data_or_null<float>(s.entropy)),
        uniform(data_or_null<float>(s.uniform)),
        mean_logit(data_or_null<float>(s.mean_logit)),
        argmax(data_or_null<int32_t>(s.argmax)) {
    check_parts(all_parts, blocks, rows);
    for (const Tensor* t : {&s.logp, &s.lse, &s.entropy, &s.uniform, &s.mean_logit}) {
      check_per_row(*t, rows, DType::f32);
    }
    check_per_row(s.argmax, rows, DType::i32);
  }

  LLMTRAIN_HOST_DEVICE void operator()(int64_t row) const {
    LogprobPart all = parts[row];
    for (int64_t block = 1; block < blocks; ++block) {
      const LogprobPart& part = parts[block * rows + row];
      if (part.maximum > all.maximum) all.argmax = part.argmax;
      if (part.maximum > all.maximum) all.maximum = part.maximum;
      if (part.reference > all.reference) all.reference = part.reference;
    }
    all.weight = all.moment = all.total = 0;
    all.target = 0;
    for (int64_t block = 0; block < blocks; ++block) {
      const LogprobPart& part = parts[block * rows + row];
      // In double the difference of any two floats is finite.
      const double difference = static_cast<double>(part.reference) - static_cast<double>(all.reference);
      const double scale = exp(difference);
      all.moment += scale * (part.moment + part.weight * difference);
      all.weight += scale * part.weight;
      all.total += part.total;
      all.target += part.target;
    }
    write(row, all);
  }

 private:
  LLMTRAIN_HOST_DEVICE void write(int64_t row, const LogprobPart& all) const {
    const double log_sum = static_cast<double>(all.reference) + log(all.weight);
    const double mean = all.total / static_cast<double>(vocabulary);
    if (lse != nullptr) lse[row] = static_cast<float>(log_sum);
    if (uniform != nullptr) uniform[row] = static_cast<float>(log_sum - mean);
    if (mean_logit != nullptr) mean_logit[row] = static_cast<float>(mean);
    // H = -sum p log p = log(sum e) - sum e (x - reference) / sum e
    if (entropy != nullptr) entropy[row] = static_cast<float>(log(all.weight) - all.moment / all.weight);
    if (argmax != nullptr) argmax[row] = all.argmax;
    if (logp == nullptr) return;
    const int32_t t = targets[row];
    const bool known = t >= 0 && t < vocabulary;  // on a GPU the host cannot check: the row's loss shows it
    logp[row] = t == ignore_target ? 0.0f : known ? static_cast<float>(static_cast<double>(all.target) - log_sum) : NAN;
  }
};

}  // namespace llmtrain
