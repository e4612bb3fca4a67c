#include "core/files/whole_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>

#include "core/error.hpp"
#include "core/machine.hpp"

namespace llmtrain {

std::string temporary_path(const std::string& path) {
  static std::atomic<int> counter{0};
  const int64_t now = std::chrono::system_clock::now().time_since_epoch().count();
  return fmt::format("{}.{}-{}-{:x}-{}.tmp", path, host_name(), getpid(), now, counter++);
}

WholeFile::WholeFile(const std::string& path)
    : path_(path), temporary_(temporary_path(path)), file_(FileHandle::create(temporary_)) {
  file_.show_as(path);
}

WholeFile::~WholeFile() {
  if (!published_) ::unlink(temporary_.c_str());
}

void WholeFile::publish() {
  file_.sync();
  publish_file(temporary_, path_);
  published_ = true;
}

bool WholeFile::publish_if_absent() {
  file_.sync();
  if (::link(temporary_.c_str(), path_.c_str()) == 0) {
    sync_folder(folder_of(path_));
    return true;  // the temporary name goes with this object
  }
  if (errno == EEXIST) return false;
  publish();  // a file system without links
  return true;
}

void write_whole_file(const std::string& path, std::string_view content) {
  WholeFile whole(path);
  whole.file().write(0, static_cast<int64_t>(content.size()), content.data());
  whole.publish();
}

void publish_file(const std::string& temporary, const std::string& path) {
  if (std::rename(temporary.c_str(), path.c_str()) != 0) fail_to_create(path, "cannot create it", errno);
  sync_folder(folder_of(path));
}

}  // namespace llmtrain
