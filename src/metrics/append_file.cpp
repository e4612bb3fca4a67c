#include "metrics/append_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/files/file_handle.hpp"

namespace llmtrain {

AppendFile::AppendFile(const std::string& path) : path_(path) {
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) fail_to_create(path, "cannot be opened for writing", errno);
}

AppendFile::~AppendFile() { close(file_); }

void AppendFile::append(std::string_view bytes) {
  const FileCall call;
  while (!bytes.empty()) {
    const ssize_t written = write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      throw UserError(ExitCode::io,
                      fmt::format("{}: writing {} bytes failed: {}. Free some space and submit the job again", path_,
                                  bytes.size(), strerror(errno)));
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void AppendFile::sync() {
  const FileCall call;
  if (fsync(file_) != 0) throw UserError(ExitCode::io, fmt::format("{}: fsync failed: {}", path_, strerror(errno)));
}

}  // namespace llmtrain
