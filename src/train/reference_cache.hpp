#pragma once
// Log-probabilities of documents under a reference model, computed once by all ranks and kept in a file.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/stream/data_stream.hpp"
#include "parallel/job/runtime.hpp"
#include "roles/model_set.hpp"

namespace llmtrain {

/// Documents to score, and the file of their values.
struct ReferencePart {
  const DataStream* data = nullptr;
  int64_t documents_of_sample = 2;
  int64_t samples_of_batch = 1;
  std::string file;  ///< <data.cache>/reference-<key>.h5
};

struct ReferenceRequest {
  RoleSpec model;  ///< the frozen model, with passes for the data
  std::vector<ReferencePart> parts;
  std::function<void(const std::string&)> print;  ///< for lines of progress, on rank 0
};

/// Returns for each part the values by document number, nats. Values that its file has are not computed again; the file
/// is written every half minute, and when the job is asked to stop (UserError(stopped)): the next job goes on from
/// there. The values do not depend on the number of ranks. Collective.
std::vector<std::vector<double>> find_or_compute_references(ReferenceRequest request, Runtime& runtime);

}  // namespace llmtrain
