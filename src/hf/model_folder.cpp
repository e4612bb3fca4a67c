#include "hf/model_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "core/files/json_reader.hpp"
#include "core/machine.hpp"
#include "hf/adapters/adapter_config.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_create(const std::string& path, const std::string& why) {
  throw UserError(ExitCode::cannot_create, fmt::format("{}: cannot create it: {}", path, why));
}

bool is_model_file(const std::string& name) {
  return name == chat_template_folder || name == "config.json" || name == adapter_config_name ||
         name == adapter_weights_name || name == "generation_config.json" || name == weights_index_name ||
         (name.starts_with("model") && name.ends_with(".safetensors")) ||
         std::ranges::find(tokenizer_file_names, name) != tokenizer_file_names.end();
}

/// Returns false also if it cannot be read.
bool holds_model_files_only(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (!is_model_file(entry->path().filename().string())) return false;
  }
  return !error;
}

/// Removes temporary folders of the same model that killed processes of this machine left. If a process was killed
/// while it replaced a model, such a folder can hold the user's files: they are kept.
void remove_leftovers(const std::string& path) {
  const fs::path folder = folder_of(path);
  const std::string prefix = fmt::format("{}.partial-{}-", fs::path(path).filename().string(), host_name());
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    int process = 0;
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, process);
    const bool dead = error == std::errc() && stop == end && process > 0 && kill(process, 0) != 0 && errno == ESRCH;
    if (dead && holds_model_files_only(entry.path())) fs::remove_all(entry.path(), ignored);
  }
}

void check_replaceable(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  if (name.empty() || name == "." || name == "..") cannot_create(path, "give the folder's own name");
  if (fs::is_symlink(path)) cannot_create(path, "it is a symbolic link; name the folder that it points to");
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.is_regular_file() || entry.path().filename() == chat_template_folder) continue;
    cannot_create(
        path, fmt::format("it contains {}, so it is not the folder of one model and is not replaced; choose another",
                          printable(entry.path().filename().string())));
  }
}

/// Moves files that do not belong to the replaced model.
void keep_foreign_files(const std::string& former, const std::string& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(former, ignored)) {
    const std::string name = entry.path().filename().string();
    if (is_model_file(name)) continue;
    const std::string place = fmt::format("{}/{}", folder, name);
    if (std::rename(entry.path().c_str(), place.c_str()) != 0) {
      fail_to_create(place, fmt::format("it cannot be moved and is still in {}", former), errno);
    }
  }
}

int64_t bytes_of(const StoredTensor& t) { return t.numel() * bits_of(t.type) / 8; }

/// Returns the file of each tensor: files are filled in order, and a tensor is never split.
std::vector<size_t> divide(const std::vector<StoredTensor>& tensors, int64_t file_bytes) {
  std::vector<size_t> files;
  int64_t used = 0;
  size_t file = 0;
  for (const StoredTensor& t : tensors) {
    const int64_t bytes = bytes_of(t);
    if (used > 0 && used + bytes > file_bytes) {
      ++file;
      used = 0;
    }
    used += bytes;
    files.push_back(file);
  }
  return files;
}

/// File names that Transformers and other readers expect.
std::string file_name(size_t file, size_t count, const std::string& single) {
  return count == 1 ? single : fmt::format("model-{:05}-of-{:05}.safetensors", file + 1, count);
}

}  // namespace

bool has_tokenizer(const FolderHandle& folder) {
  const auto there = [&](const char* name) { return folder.has(name); };
  return std::ranges::any_of(std::array<const char*, 6>{"tokenizer.json", "tokenizer.model", "spiece.model",
                                                        "sentencepiece.bpe.model", "vocab.json", stored_tokenizer_name},
                             there);
}

ModelFolderWriter::ModelFolderWriter(ModelFolderPlan plan) : plan_(std::move(plan)) {
  while (plan_.path.size() > 1 && plan_.path.ends_with('/')) plan_.path.pop_back();
  std::error_code error;
  const bool there = fs::exists(plan_.path, error);
  if (there && !fs::is_directory(plan_.path, error)) cannot_create(plan_.path, "a file of that name exists");
  if (there && !plan_.overwrite && !fs::is_empty(plan_.path, error)) cannot_create(plan_.path, "it already exists");
  if (there) check_replaceable(plan_.path);
  remove_leftovers(plan_.path);
  partial_ = fmt::format("{}.partial-{}-{}", plan_.path, host_name(), getpid());
  if (mkdir(partial_.c_str(), 0777) != 0) fail_to_create(partial_, "cannot create it", errno);
  join_experts();
  try {
    open_files();
  } catch (...) {
    fs::remove_all(partial_, error);
    throw;
  }
}

ModelFolderWriter::~ModelFolderWriter() {
  if (partial_.empty()) return;
  std::error_code ignored;
  files_.clear();
  fs::remove_all(partial_, ignored);
}

void ModelFolderWriter::open_files() {
  const std::vector<size_t> file_of = divide(plan_.tensors, plan_.file_bytes);
  const size_t count = file_of.empty() ? 1 : file_of.back() + 1;
  std::vector<std::vector<StoredTensor>> parts(count);
  nlohmann::json map = nlohmann::json::object();
  int64_t bytes = 0, parameters = 0;
  for (size_t i = 0; i < plan_.tensors.size(); ++i) {
    const StoredTensor& t = plan_.tensors[i];
    parts[file_of[i]].push_back(t);
    file_of_[t.name] = file_of[i];
    map[t.name] = file_name(file_of[i], count, plan_.single_file);
    bytes += bytes_of(t);
    parameters += t.numel();
  }
  for (size_t f = 0; f < count; ++f) {
    const std::string path = fmt::format("{}/{}", partial_, file_name(f, count, plan_.single_file));
    files_.push_back(std::make_unique<SafetensorsWriter>(path, std::move(parts[f]), plan_.metadata));
  }
  if (count > 1) {
    const nlohmann::json document = {{"metadata", {{"total_parameters", parameters}, {"total_size", bytes}}},
                                     {"weight_map", std::move(map)}};
    index_ = document.dump(2) + "\n";
  }
}

const SafetensorsWriter& ModelFolderWriter::file_with(const std::string& name) const {
  const auto file = file_of_.find(name);
  LLMTRAIN_CHECK(file != file_of_.end(), "no tensor " + name + " in this folder");
  return *files_[file->second];
}

void ModelFolderWriter::write(const std::string& name, int64_t first, const float* values, int64_t count) {
  const auto place = plan_.experts.find(name);
  if (place != plan_.experts.end()) return write_expert(place->second, first, values, count);
  file_with(name).write(name, first, values, count);
}

/// Replaces parts of tensors of all experts by these.
void ModelFolderWriter::join_experts() {
  std::vector<StoredTensor> tensors;
  std::set<std::string> joined;
  for (StoredTensor& tensor : plan_.tensors) {
    const auto found = plan_.experts.find(tensor.name);
    if (found == plan_.experts.end()) {
      tensors.push_back(std::move(tensor));
    } else if (joined.insert(found->second.tensor).second) {
      tensors.push_back({found->second.tensor, tensor.type, found->second.shape, 0, 0});
    }
  }
  plan_.tensors = std::move(tensors);
}

void ModelFolderWriter::write_expert(const ExpertPlace& place, int64_t first, const float* values, int64_t count) {
  Expert& expert = experts_[{place.tensor, place.begin}];
  expert.values.resize(static_cast<size_t>(place.extent));
  float* to = expert.values.data() + (place.first - place.begin);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = (first + i) / place.columns, column = (first + i) % place.columns;
    to[row * place.row_stride + column * place.column_stride] = values[i];
  }
  expert.written += count;
  if (expert.written < place.extent) return;
  file_with(place.tensor).write(place.tensor, place.begin, expert.values.data(), place.extent);
  experts_.erase({place.tensor, place.begin});
}

void ModelFolderWriter::write_bytes(const std::string& name, int64_t first, const void* bytes, int64_t count) const {
  file_with(name).write_bytes(name, first, bytes, count);
}

void ModelFolderWriter::write_text(const std::string& name, const std::string& content) const {
  if (const size_t slash = name.find('/'); slash != std::string::npos) {
    const std::string folder = partial_ + "/" + name.substr(0, slash);
    if (mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) fail_to_create(folder, "cannot create it", errno);
  }
  const FileHandle file = FileHandle::create(partial_ + "/" + name);
  file.write(0, static_cast<int64_t>(content.size()), content.data());
  file.sync();
}

void ModelFolderWriter::publish() {
  LLMTRAIN_CHECK(experts_.empty(), "every part of an expert is written");
  for (const auto& file : files_) file->finish();
  if (!index_.empty()) write_text(weights_index_name, index_);
  for (const auto& [name, content] : plan_.texts) write_text(name, content);
  if (plan_.save_tokenizer) plan_.save_tokenizer(partial_);
  files_.clear();
  sync_folder(partial_);
  const std::string& path = plan_.path;
  std::error_code ignored;
  const auto rename_or_refuse = [](const std::string& from, const std::string& to) {
    if (std::rename(from.c_str(), to.c_str()) != 0) fail_to_create(to, "cannot create it", errno);
  };
  std::string former;
  if (fs::exists(path, ignored) && !fs::is_empty(path, ignored)) {
    if (renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
      former = partial_;
    } else {  // the file system cannot exchange names
      former = partial_ + ".former";
      rename_or_refuse(path, former);
      rename_or_refuse(partial_, path);
    }
  } else {
    rename_or_refuse(partial_, path);
  }
  partial_.clear();
  if (!former.empty()) {
    keep_foreign_files(former, path);
    fs::remove_all(former, ignored);
  }
  sync_folder(folder_of(path));
}

}  // namespace llmtrain
