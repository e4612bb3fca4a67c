#pragma once
// Log-probabilities of a teacher for all trained tokens of the data, computed once by all ranks and kept in a file.

#include <cstdint>
#include <functional>
#include <string>

#include "data/stream/data_stream.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/mesh.hpp"
#include "roles/model_set.hpp"
#include "roles/teacher.hpp"

namespace llmtrain {

struct TeacherRequest {
  RoleSpec model;  ///< the teacher, with passes for the data
  TeacherOptions options;
  const DataStream& data;
  int64_t samples_of_batch = 1;
  std::string file;                               ///< in data.cache, named by all that the values depend on
  std::string key;                                ///< of the deck, begins an error
  std::function<void(const std::string&)> print;  ///< for lines of progress, on rank 0
};

/// Returns the file with the values of all samples. Those that it has are not computed again; when the job is asked to
/// stop (UserError(stopped)), the next one goes on from there. The values do not depend on the number of ranks. Throws
/// UserError(deck) if the disk has no room, or if values of all tokens are more than max_dense_cache_bytes. Collective.
TeacherFile find_or_compute_teacher(TeacherRequest request, Runtime& runtime, const Mesh& mesh);

inline constexpr int64_t max_dense_cache_bytes = int64_t{64} << 30;

}  // namespace llmtrain
