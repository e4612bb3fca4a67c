#include "tasks/generation_output.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "data/files/jsonl.hpp"

namespace llmtrain {

namespace fs = std::filesystem;

void GenerationOutput::require_new(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;
  throw UserError(ExitCode::cannot_create,
                  fmt::format("{}: the file exists and is not of this run. Choose another generate.output, move it "
                              "away, or give run.overwrite=true to replace it",
                              path));
}

GenerationOutput::GenerationOutput(const std::string& path, bool resumes, bool overwrite) : path_(path) {
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_regular_file(path, error)) {
    throw UserError(ExitCode::cannot_create, path + ": it is not a regular file");
  }
  if (fs::exists(path, error) && !resumes) {
    if (!overwrite) require_new(path);
    fs::remove(path, error);
    if (error) fail_to_create(path, "cannot be replaced", error.value());
  }
  if (fs::exists(path, error)) {
    const FileHandle file = FileHandle::open_to_read(path);
    const int64_t bytes = file.size();
    LineReader lines(file, bytes, 0, bytes, max_row_limit);
    for (std::string_view line; lines.next(line);) {
      const int64_t end = lines.offset() + std::ssize(line);
      if (end >= bytes) break;  // without a line end
      ++rows_;
      last_row_ = line;
      complete_ = end + 1;
    }
  }
}

void GenerationOutput::start() {
  std::error_code ignored;
  if (fs::exists(path_, ignored)) fs::resize_file(path_, static_cast<uint64_t>(complete_));
  file_.emplace(path_);
}

bool GenerationOutput::write() {
  std::string text;
  for (auto next = waiting_.begin(); next != waiting_.end() && next->first == rows_; next = waiting_.erase(next)) {
    text += next->second;
    ++rows_;
  }
  if (!text.empty()) file_->append(text);
  return !text.empty();
}

}  // namespace llmtrain
