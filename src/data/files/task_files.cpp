#include "data/files/task_files.hpp"

#include <filesystem>

#include "core/files/file_handle.hpp"
#include "data/files/unpack.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/message.hpp"

namespace llmtrain {

namespace {

std::string read_text(const std::string& path) {
  constexpr int64_t max_bytes = int64_t{1} << 30;
  const bool of_mmlu = has_ending(path, ".csv");  // has no header row
  return (of_mmlu ? FileHandle::open_to_read(path) : open_lines(path)).read_text(max_bytes);
}

}  // namespace

std::string file_stem(std::string_view path) { return std::filesystem::path(path).stem().string(); }

TaskFile read_task_file(const std::string& path) {
  TaskFile file{path, read_text(path), {}};
  const std::string labels = folder_of(path) + "/" + file_stem(path) + "-labels.lst";
  std::error_code ignored;
  if (std::filesystem::exists(labels, ignored)) file.labels = read_text(labels);
  return file;
}

std::vector<TaskFile> read_task_files(const std::vector<std::string>& paths, Communicator& communicator) {
  Message message;
  on_root(communicator, [&] {
    for (const std::string& path : paths) {
      const TaskFile file = read_task_file(path);
      message.put(file.text);
      message.put(file.labels);
    }
  });
  std::string packed = message.bytes();
  communicator.broadcast(packed);
  Message received(std::move(packed));
  std::vector<TaskFile> files;
  for (const std::string& path : paths) {
    TaskFile& file = files.emplace_back();
    file.path = path;
    received.take(file.text);
    received.take(file.labels);
  }
  return files;
}

}  // namespace llmtrain
