#pragma once
// Files of evaluation.tasks.

#include <string>
#include <string_view>
#include <vector>

#include "parallel/communicator.hpp"

namespace llmtrain {

struct TaskFile {
  std::string path;    ///< its name without folder and ending is the task's
  std::string text;    ///< rows of JSON, also those of a table; CSV as it is if the path ends in .csv
  std::string labels;  ///< a number on each line, for rows without answers; usually empty
};

/// Name of a path without folder and ending.
std::string file_stem(std::string_view path);

/// Reads a file, and the labels beside it (`valid-labels.lst` of `valid.jsonl`) if there are any. UserError.
TaskFile read_task_file(const std::string& path);
/// Rank 0 reads the files for all ranks. Collective.
std::vector<TaskFile> read_task_files(const std::vector<std::string>& paths, Communicator& communicator);

}  // namespace llmtrain
