#pragma once
#include <string>
#include <vector>

#include "core/label_rules.hpp"
#include "data/files/text_source.hpp"
#include "data/progress.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Returns the labels that occur in rows, the same on every rank: all ranks read a part of the files. Errors name the
/// file and the line of a row. Collective.
std::vector<std::string> labels_of_files(const std::vector<InputFile>& files, const LabelRules& rules,
                                         Communicator& communicator, const ProgressReport& report);

}  // namespace llmtrain
