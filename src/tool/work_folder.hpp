#pragma once
#include <string>
#include <vector>

#include "data/files/text_source.hpp"
#include "data/progress.hpp"

namespace llmtrain {

/// A folder beside an output, for what compressed inputs give; gone at the end. Made when there are such inputs.
class WorkFolder {
 public:
  explicit WorkFolder(const std::string& output);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  /// Unpacks the compressed ones among the files.
  void unpack(std::vector<InputFile>& files, Communicator& alone, const ProgressReport& report) const;

 private:
  std::string path_;
};

}  // namespace llmtrain
