#include "tool/work_folder.hpp"

#include <filesystem>

#include "core/files/whole_file.hpp"
#include "data/data_config.hpp"
#include "data/files/unpack.hpp"

namespace llmtrain {

WorkFolder::WorkFolder(const std::string& output) : path_(temporary_path(output + ".unpacked")) {}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void WorkFolder::unpack(std::vector<InputFile>& files, Communicator& alone, const ProgressReport& report) const {
  std::vector<InputFile*> packed;
  for (InputFile& file : files) {
    if (file.is_packed()) packed.push_back(&file);
  }
  if (packed.empty()) return;
  std::error_code error;
  std::filesystem::create_directory(path_, error);
  if (error) fail_to_create(path_, "cannot create it", error.value());
  unpack_files(packed, path_, DataConfig().unpacked_limit, alone, report);
}

}  // namespace llmtrain
