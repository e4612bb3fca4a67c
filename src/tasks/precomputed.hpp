#pragma once
// Values of the data that all ranks compute before training and keep in data.cache.

#include <optional>
#include <vector>

#include "config/config.hpp"
#include "data/dataset.hpp"
#include "data/progress.hpp"
#include "parallel/job/runtime.hpp"
#include "roles/teacher_file.hpp"
#include "train/training_loop.hpp"

namespace llmtrain {

/// Difficulties of the training samples, by number, if they are losses or rarities; otherwise none. Collective.
std::vector<double> find_difficulties(const Config& config, Runtime& runtime, const Mesh& mesh, const Dataset& data,
                                      const ProgressReport& print);
/// Log-probabilities of the data under the reference, if they are kept in data.cache. Collective.
std::optional<ReferenceValues> find_references(const Config& config, Runtime& runtime, const Mesh& mesh,
                                               const Dataset& data, const ProgressReport& print);

/// Values of the training data by the teacher, if they are kept in data.cache. Collective.
std::optional<TeacherFile> find_teacher(const Config& config, Runtime& runtime, const Mesh& mesh, const Dataset& data,
                                        const ProgressReport& print);

}  // namespace llmtrain
