#include "data/files/cache_folder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "core/error.hpp"
#include "core/files/content_hash.hpp"
#include "core/files/whole_file.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
constexpr auto leftover_age = std::chrono::hours(24);

void remove_leftovers(const fs::path& folder) {
  std::error_code ignored;
  const auto limit = fs::file_time_type::clock::now() - leftover_age;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name.starts_with("tokens-") || name.starts_with("stories-") || name.starts_with("tokenizer-") ||
                      name.starts_with("unpacked-");
    if (!ours || entry.path().extension() != ".tmp" || !entry.is_regular_file(ignored)) continue;
    const auto written = entry.last_write_time(ignored);
    if (!ignored && written < limit) fs::remove(entry.path(), ignored);
  }
}

bool holds(const std::string& path, std::string_view content) {
  try {
    const FileHandle file = FileHandle::open_to_read(path);
    if (file.size() != static_cast<int64_t>(content.size())) return false;
    std::string found(content.size(), '\0');
    file.read(0, file.size(), found.data());
    return found == content;
  } catch (const UserError&) {
    return false;
  }
}

[[noreturn]] void refuse(const std::string& folder, const std::error_code& error) {
  throw UserError(
      ExitCode::cannot_create,
      fmt::format("{}: cannot write there ({}); choose another folder with data.cache", folder, error.message()));
}

}  // namespace

std::string default_cache_folder() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
  };
  if (const std::string base = variable("XDG_CACHE_HOME"); !base.empty()) return base + "/llmtrain";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/llmtrain";
  const std::string temporary = variable("TMPDIR");
  return (temporary.empty() ? "/tmp" : temporary) + fmt::format("/llmtrain-{}", getuid());
}

std::string open_cache_folder(const std::string& folder) {
  std::error_code error;
  const fs::path path = fs::absolute(folder, error);
  if (!error) fs::create_directories(path, error);
  if (error) refuse(folder, error);
  remove_leftovers(path);
  return path.string();
}

void require_writable_cache(const std::string& folder) {
  if (::access(folder.c_str(), W_OK | X_OK) != 0) refuse(folder, std::error_code(errno, std::generic_category()));
}

std::string store_text(const std::string& folder, const std::string& name, std::string_view content) {
  std::string path = fmt::format("{}/{}-{}.txt", folder, name, short_hash(content));
  if (holds(path, content)) return path;
  require_writable_cache(folder);
  // Two jobs may make the file at the same time: the first one's stays, since others may be reading it already.
  const std::string own = temporary_path(path);
  write_whole_file(own, content);
  std::error_code error;
  fs::create_hard_link(own, path, error);
  if (!error || holds(path, content)) {
    fs::remove(own, error);
  } else {  // a damaged file, or a file system without links
    publish_file(own, path);
  }
  return path;
}

}  // namespace llmtrain
