#pragma once
#include <string>
#include <vector>

#include "data/files/text_source.hpp"
#include "data/progress.hpp"

namespace llmtrain {

/// Temporary folder next to an output for unpacked inputs; removed at the end. It is made only for packed inputs.
class WorkFolder {
 public:
  explicit WorkFolder(const std::string& output);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  /// Unpacks the compressed files and tables among the inputs.
  void unpack(std::vector<InputFile>& files, Communicator& alone, const ProgressReport& report) const;

 private:
  std::string path_;
};

}  // namespace llmtrain
