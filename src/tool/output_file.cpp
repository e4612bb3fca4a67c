#include "tool/output_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "tool/tool.hpp"

namespace llmtrain {

namespace {

[[noreturn]] void cannot_create(const std::string& path, const std::string& why) {
  throw UserError(ExitCode::cannot_create, fmt::format("{}: cannot create it: {}", path, why));
}

}  // namespace

OutputFile::OutputFile(const std::string& path, bool overwrite) : path_(path) {
  if (path == "-") {
    stream_ = stdout;
    return;
  }
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(status)) cannot_create(path, "it is a folder; name a file");
  const bool in_place = std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
  if (std::filesystem::is_regular_file(status) && !overwrite) {
    cannot_create(path, "it exists (choose another name, or overwrite it with --force)");
  }
  if (!in_place) partial_ = fmt::format("{}.partial-{}", path, getpid());
  stream_ = std::fopen(in_place ? path.c_str() : partial_.c_str(), "wb");
  if (stream_ == nullptr) fail_to_create(path, "cannot create it", errno);
}

OutputFile::~OutputFile() {
  if (stream_ == stdout) return;
  if (stream_ != nullptr) std::fclose(stream_);
  if (!partial_.empty()) std::remove(partial_.c_str());
}

void OutputFile::fail() const {
  throw UserError(ExitCode::io, fmt::format("{}: cannot write it: {}", path_ == "-" ? "standard output" : path_,
                                            std::strerror(errno)));
}

void OutputFile::write(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stream_) != bytes.size()) fail();
  if (progress_) progress_->add(std::ssize(bytes));
}

void OutputFile::expect(int64_t bytes) {
  if (!is_standard_output()) progress_.emplace("writing", bytes);
}

void OutputFile::close() {
  if (stream_ == nullptr) return;
  if (std::fflush(stream_) != 0) fail();
  if (stream_ == stdout) return;
  if (!partial_.empty() && fsync(fileno(stream_)) != 0) fail();
  if (std::fclose(std::exchange(stream_, nullptr)) != 0) fail();
}

void OutputFile::finish() {
  close();
  if (partial_.empty()) return;
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) fail_to_create(path_, "cannot create it", errno);
  partial_.clear();
}

void check_token_file_output(const std::string& path, bool overwrite) {
  if (!path.ends_with(".h5")) {
    refuse_command_line("--output: the name of a token file must end in .h5");
  }
  std::error_code ignored;
  const std::string folder = folder_of(path);
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw UserError(ExitCode::cannot_create, path + ": cannot create it: there is no folder " + folder);
  }
  if (std::filesystem::exists(path, ignored) && !overwrite) {
    throw UserError(ExitCode::cannot_create,
                    path +
                        ": cannot create it: it exists (choose another name, or overwrite it with "
                        "--force)");
  }
}

}  // namespace llmtrain
