#include "checkpoint/checkpoint_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <utility>

#include "core/machine.hpp"
#include "core/parallel_for.hpp"

namespace llmtrain {

namespace {

constexpr std::string_view prefix = "step-";
constexpr std::string_view replaced = ".replaced-";  // followed by the checkpoint's name
constexpr std::string_view leftovers[] = {".attempt-", ".deleting-", ".link-", replaced};

/// Returns a suffix that is unique among processes and calls.
std::string unique_name(std::string_view kind, std::string_view name) {
  static std::atomic<int> counter{0};
  return fmt::format("{}{}-{}-{}-{}", kind, name, host_name(), getpid(), counter++);
}

void rename_path(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_to_create(to, "cannot rename to it", errno);
}

/// Threads share the files of a large checkpoint, since each removal waits for an answer of the file system.
void remove_tree(const std::string& path) {
  constexpr size_t many = 64;
  constexpr int threads = 8;
  std::vector<std::filesystem::path> files;
  std::error_code ignored;  // the next start removes a leftover
  std::filesystem::recursive_directory_iterator entry(path, ignored);
  for (const std::filesystem::recursive_directory_iterator end; !ignored && entry != end; entry.increment(ignored)) {
    std::error_code unknown;
    if (entry->symlink_status(unknown).type() == std::filesystem::file_type::regular) files.push_back(entry->path());
  }
  if (files.size() >= many) {
    parallel_for(files.size(), threads, [&](size_t i) {
      std::error_code left;
      std::filesystem::remove(files[i], left);
    });
  }
  std::filesystem::remove_all(path, ignored);
}

bool is_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

std::vector<std::string> names_of_leftovers(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const auto matches = [&](std::string_view leftover) { return name.starts_with(leftover); };
    if (std::any_of(std::begin(leftovers), std::end(leftovers), matches)) found.push_back(name);
  }
  return found;
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:08}", prefix, step); }

std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0 || checkpoint_name(step) != name) {
    return std::nullopt;
  }
  return step;
}

std::vector<int64_t> published_steps(const std::string& folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  if (error == std::errc::no_such_file_or_directory) return steps;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (const auto step = step_of(entry->path().filename().string())) steps.push_back(*step);
  }
  // A failure to see checkpoints must not restart the run from step 0.
  if (error) {
    throw UserError(ExitCode::missing_input, fmt::format("{}: cannot read it: {}", folder, error.message()));
  }
  std::ranges::sort(steps, std::greater<>());
  return steps;
}

void restore_replaced(const std::string& folder) {
  for (const std::string& name : names_of_leftovers(folder)) {
    if (!name.starts_with(replaced)) continue;
    const std::string target = fmt::format("{}/{}", folder, name.substr(replaced.size()));
    if (!is_there(target)) rename_path(fmt::format("{}/{}", folder, name), target);
  }
}

void remove_unfinished_saves(const std::string& folder) {
  for (const std::string& name : names_of_leftovers(folder)) remove_tree(fmt::format("{}/{}", folder, name));
}

std::string create_attempt(const std::string& folder, int64_t step, const SaveHook& hook) {
  call(hook, "create folder");
  std::error_code error;
  if (std::filesystem::create_directories(folder, error)) sync_folder(folder_of(folder));
  if (error) fail_to_create(folder, "cannot create it", error.value());
  call(hook, "create attempt");
  std::string path = folder + "/" + unique_name(".attempt-", checkpoint_name(step));
  if (::mkdir(path.c_str(), 0777) != 0) fail_to_create(path, "cannot create it", errno);
  return path;
}

void publish_attempt(const std::string& folder, const std::string& attempt, int64_t step, const SaveHook& hook) {
  const std::string target = folder + "/" + checkpoint_name(step);
  call(hook, "rename attempt");
  if (is_there(target)) {
    // Exchanges both in one operation if the file system can.
    if (::renameat2(AT_FDCWD, attempt.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
      sync_folder(folder);
      call(hook, "remove replaced");
      remove_tree(attempt);
      return;
    }
    const std::string aside = fmt::format("{}/{}{}", folder, replaced, checkpoint_name(step));
    rename_path(target, aside);
    call(hook, "rename attempt over replaced");
    rename_path(attempt, target);
    sync_folder(folder);
    call(hook, "remove replaced");
    remove_tree(aside);
    return;
  }
  rename_path(attempt, target);
  call(hook, "sync folder");
  sync_folder(folder);
}

void remove_checkpoint(const std::string& folder, int64_t step, const SaveHook& hook) {
  const std::string tombstone = folder + "/" + unique_name(".deleting-", checkpoint_name(step));
  call(hook, "rename to tombstone");
  rename_path(folder + "/" + checkpoint_name(step), tombstone);
  sync_folder(folder);
  call(hook, "remove tombstone");
  remove_tree(tombstone);
}

void link_checkpoint(const std::string& folder, const std::string& link, int64_t step, const SaveHook& hook) {
  call(hook, "create link");
  const std::string temporary = folder + "/" + unique_name(".link-", link);
  std::error_code ignored;
  std::filesystem::create_directory_symlink(checkpoint_name(step), temporary, ignored);
  if (ignored) return;
  call(hook, "rename link");
  if (std::rename(temporary.c_str(), (folder + "/" + link).c_str()) != 0) ::unlink(temporary.c_str());
}

void set_aside_after(const std::string& folder, int64_t step, int64_t best, const std::string& aside) {
  for (const int64_t later : published_steps(folder)) {
    if (later <= step) continue;
    std::error_code error;
    std::filesystem::create_directories(aside, error);
    if (error) fail_to_create(aside, "cannot be created", error.value());
    std::string to = aside + "/" + checkpoint_name(later);
    for (int number = 2; is_there(to); ++number) to = fmt::format("{}/{}.{}", aside, checkpoint_name(later), number);
    rename_path(folder + "/" + checkpoint_name(later), to);
    sync_folder(aside);
    sync_folder(folder);
  }
  for (const auto& [link, target] : {std::pair("latest", step), std::pair("best", best)}) {
    if (target >= 0) {
      link_checkpoint(folder, link, target, nullptr);
    } else {
      ::unlink((folder + "/" + link).c_str());
    }
  }
}

int64_t free_bytes(const std::string& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) return std::numeric_limits<int64_t>::max();  // unknown
  const auto bytes = static_cast<double>(status.f_bavail) * static_cast<double>(status.f_frsize);
  return bytes > 9e18 ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(bytes);
}

std::vector<int64_t> removable(const std::vector<int64_t>& published, const RetentionRules& rules) {
  std::vector<int64_t> steps = published;
  std::ranges::sort(steps, std::greater<>());
  const int64_t keep = std::max<int64_t>(rules.keep, 2);
  std::vector<int64_t> result;
  int64_t newer = 0, newer_verified = 0;
  for (const int64_t step : steps) {
    if (newer >= keep && newer_verified >= 2 && !rules.pinned.contains(step)) result.push_back(step);
    if (rules.refused.contains(step)) continue;
    ++newer;
    if (rules.verified.contains(step)) ++newer_verified;
  }
  std::ranges::reverse(result);
  return result;
}

std::vector<int64_t> apply_retention(const std::string& folder, const RetentionRules& rules, const SaveHook& hook) {
  std::vector<int64_t> steps = removable(published_steps(folder), rules);
  for (const int64_t step : steps) remove_checkpoint(folder, step, hook);
  return steps;
}

}  // namespace llmtrain
