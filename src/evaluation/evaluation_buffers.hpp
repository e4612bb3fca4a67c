#pragma once
#include "data/stream/data_stream.hpp"
#include "kernels/logprob.hpp"
#include "roles/reference.hpp"

namespace llmtrain {

/// Buffers of evaluate(), planned by its caller for data.max_rows() rows.
struct EvaluationBuffers {
  BatchBuffers& batch;
  TokenStatistics statistics;      ///< logp, fp32 [N]; other statistics on request
  Tensor sums;                     ///< int64 [at least the objective's metrics, ExactSum::integer_count]
  Reference* reference = nullptr;  ///< null: the objective needs none
  Tensor documents = {};           ///< fp64 [segments], for objectives over documents
};

}  // namespace llmtrain
