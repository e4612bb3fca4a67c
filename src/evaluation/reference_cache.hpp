#pragma once
// Log-probabilities of documents, or losses of samples, under a frozen model, computed once by all ranks and kept in a
// file.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/stream/data_stream.hpp"
#include "parallel/communicator.hpp"
#include "parallel/job/runtime.hpp"
#include "roles/model_set.hpp"

namespace llmtrain {

// Numbers that a run computes before training, kept in a file of data.cache for the runs after it. NaN stands for a
// number that is not computed yet.

bool is_missing(double value);
void set_missing(std::span<double> values);

/// Returns the numbers of a file on every rank; all are missing if there is none, or if it is damaged. Collective.
std::vector<double> find_cached_values(const std::string& path, int64_t count, Communicator& communicator);
/// Writes the file, with a digest that finds damage.
void write_cached_values(const std::string& path, const std::vector<double>& values);
/// Gives every rank the numbers that any rank has; no two ranks may have the same one. Collective.
void share_values(std::span<double> values, Communicator& communicator);

/// Kind of values that are kept of the log-probabilities of trained targets, nats.
enum class ReferenceKind : uint8_t {
  document_sums,  ///< of preference data: the sum of each document
  sample_losses,  ///< minus the mean of each sample; infinite if it has no trained target
};

/// Data to score, and the file of their values.
struct ReferencePart {
  const DataStream* data = nullptr;
  int64_t values_of_sample = 2;  ///< its documents; 1 of sample_losses
  int64_t samples_of_batch = 1;
  std::string file;  ///< in data.cache, named by all that the values depend on
};

struct ReferenceRequest {
  RoleSpec model;  ///< the frozen model, with passes for the data
  std::vector<ReferencePart> parts;
  ReferenceKind kind = ReferenceKind::document_sums;
  std::function<void(const std::string&)> print;  ///< for lines of progress, on rank 0
};

/// Returns for each part the values by number. Values that its file has are not computed again; the file is written
/// every half minute, and when the job is asked to stop (UserError(stopped)): the next job goes on from there. The
/// values do not depend on the number of ranks. Collective.
std::vector<std::vector<double>> find_or_compute_references(ReferenceRequest request, Runtime& runtime,
                                                            const Mesh& mesh);

}  // namespace llmtrain
