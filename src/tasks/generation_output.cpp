#include "tasks/generation_output.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <sstream>

#include "core/error.hpp"
#include "core/files/content_hash.hpp"
#include "core/files/file_handle.hpp"
#include "data/files/jsonl.hpp"

namespace llmtrain {

namespace fs = std::filesystem;

void GenerationOutput::require_new(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;
  throw UserError(ExitCode::cannot_create,
                  fmt::format("{}: the file exists and belongs to another run. Choose another generate.output, move it "
                              "away, or give run.overwrite=true to replace it",
                              path));
}

namespace {

constexpr int64_t max_hashes_bytes = int64_t{1} << 34;
constexpr int64_t hash_bytes = 17;  ///< with the line end

[[noreturn]] void refuse_to_resume(const std::string& path, const std::string& reason) {
  throw UserError(
      ExitCode::cannot_create,
      fmt::format("{}: {}. Choose another run.name, or give run.overwrite=true to begin again", path, reason));
}

}  // namespace

GenerationOutput::GenerationOutput(const std::string& path, const std::string& hashes, const GenerationSources& sources,
                                   bool resumes, bool overwrite)
    : path_(path),
      hashes_path_(hashes),
      header_(fmt::format("prompts {}\nmodel {}\n", sources.prompts, sources.model)) {
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_regular_file(path, error)) {
    throw UserError(ExitCode::cannot_create, path + ": it is not a regular file");
  }
  if (fs::exists(path, error) && !resumes) {
    if (!overwrite) require_new(path);
    fs::remove(path, error);
    if (error) fail_to_create(path, "cannot be replaced", error.value());
  }
  if (fs::exists(path, error)) read_rows();
}

std::vector<std::string> GenerationOutput::read_hashes() const {
  std::error_code ignored;
  if (!fs::exists(hashes_path_, ignored)) {
    refuse_to_resume(path_, fmt::format("{} is missing, which says whose rows they are", hashes_path_));
  }
  std::istringstream file(FileHandle::open_to_read(hashes_path_).read_text(max_hashes_bytes));
  std::istringstream expected(header_);
  for (std::string mine, there; std::getline(expected, mine);) {
    std::getline(file, there);
    if (mine == there) continue;
    const std::string what = mine.substr(0, mine.find(' '));
    refuse_to_resume(path_, what == "prompts" ? "the prompts have changed since its rows were written"
                                              : "the model, its tokenizer or its chat template have changed since its "
                                                "rows were written");
  }
  std::vector<std::string> hashes;
  for (std::string line; std::getline(file, line) && std::ssize(line) + 1 == hash_bytes;) hashes.push_back(line);
  return hashes;
}

void GenerationOutput::read_rows() {
  const std::vector<std::string> hashes = read_hashes();
  const FileHandle file = FileHandle::open_to_read(path_);
  const int64_t bytes = file.size();
  LineReader lines(file, bytes, 0, bytes, max_row_limit);
  for (std::string_view line; lines.next(line);) {
    const int64_t end = lines.offset() + std::ssize(line);
    if (end >= bytes) break;  // without a line end
    if (rows_ == std::ssize(hashes)) {
      refuse_to_resume(path_, fmt::format("line {} is not of this run, which has written {} rows", rows_ + 1, rows_));
    }
    if (short_hash(line) != hashes[static_cast<size_t>(rows_)]) {
      refuse_to_resume(path_, fmt::format("line {} has changed since it was written", rows_ + 1));
    }
    ++rows_;
    complete_ = end + 1;
  }
}

void GenerationOutput::start() {
  std::error_code ignored;
  const auto cut = [&](const std::string& path, int64_t bytes) {
    if (fs::exists(path, ignored)) fs::resize_file(path, static_cast<uint64_t>(bytes));
  };
  cut(path_, complete_);
  if (complete_ == 0) {
    cut(hashes_path_, 0);
  } else {
    cut(hashes_path_, std::ssize(header_) + rows_ * hash_bytes);
  }
  hashes_.emplace(hashes_path_);
  if (complete_ == 0) hashes_->append(header_);
  file_.emplace(path_);
}

bool GenerationOutput::write() {
  std::string text, hashes;
  for (auto next = waiting_.begin(); next != waiting_.end() && next->first == rows_; next = waiting_.erase(next)) {
    hashes += short_hash(std::string_view(next->second).substr(0, next->second.size() - 1)) + "\n";
    text += next->second;
    ++rows_;
  }
  if (text.empty()) return false;
  hashes_->append(hashes);  // first: a row without a hash is not of this run
  file_->append(text);
  return true;
}

void GenerationOutput::sync() {
  hashes_->sync();
  file_->sync();
}

}  // namespace llmtrain
