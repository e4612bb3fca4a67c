#pragma once
#include <cstdint>

namespace llmtrain {

/// Ranks of a job by their axes: rank p has index p % tensor among those that share matrices, p / tensor % context
/// among those that share the rows of a micro-batch, and p / (tensor * context) among those with micro-batches of their
/// own.
struct Mesh {
  int64_t ranks = 1;
  int64_t tensor = 1;
  int64_t context = 1;

  int64_t data() const { return ranks / (tensor * context); }
  /// True if ranks share micro-batches.
  bool shares() const { return tensor * context > 1; }
  bool divides_ranks() const { return ranks % (tensor * context) == 0; }
};

}  // namespace llmtrain
