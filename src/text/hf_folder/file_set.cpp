#include "text/hf_folder/file_set.hpp"

#include <algorithm>
#include <filesystem>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "core/files/folder_handle.hpp"
#include "core/find_entry.hpp"
#include "text/hf_folder/json_in.hpp"
#include "text/sentencepiece/sentencepiece_model.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
namespace names = tokenizer_names;

constexpr int64_t max_config = int64_t{1} << 20;  ///< bytes

/// UserError(missing_input) for a link to what is not there, which another file must not take the place of.
bool has_file(const std::string& folder, std::string_view name) {
  std::error_code ignored;
  const std::string path = folder + std::string(name);
  if (fs::is_regular_file(path, ignored)) return true;
  if (fs::is_symlink(path, ignored) && !fs::exists(path, ignored)) {
    FolderHandle::open(folder.empty() ? "." : folder).open_to_read(std::string(name));
  }
  return false;
}

void add_file(std::string_view name, int64_t max_bytes, TokenizerFileSet& set) {
  const std::string path = set.folder + std::string(name);
  std::error_code ignored;
  if (fs::exists(path, ignored) && !has_file(set.folder, name)) {
    throw UserError(ExitCode::missing_input, path + ": not a file");
  }
  set.files.push_back({std::string(name), FileHandle::open_to_read(path).read_text(max_bytes)});
}

/// Returns the main files of the tokenizer; the first one identifies its format.
void find_main_files(const std::string& path, TokenizerFileSet& set) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    const fs::path file(path);
    set.is_folder = false;
    set.folder = file.has_parent_path() ? file.parent_path().string() + "/" : std::string();
    const std::string name = file.filename().string();
    add_file(name == names::merges ? std::string(names::vocab) : name, max_tokenizer_json, set);
    if (set.files.front().name == names::vocab) add_file(names::merges, max_tokenizer_json, set);
    return;
  }
  set.folder = path.ends_with('/') ? path : path + "/";
  if (has_file(set.folder, names::json)) {
    add_file(names::json, max_tokenizer_json, set);
    return;
  }
  for (const std::string_view name : names::sentencepiece) {
    if (!has_file(set.folder, name)) continue;
    add_file(name, max_sentencepiece_file, set);
    return;
  }
  if (has_file(set.folder, names::vocab)) {
    add_file(names::vocab, max_tokenizer_json, set);
    add_file(names::merges, max_tokenizer_json, set);
    return;
  }
  throw UserError(ExitCode::missing_input,
                  path + ": the folder has no tokenizer.json, tokenizer.model, or vocab.json and merges.txt");
}

}  // namespace

const TokenizerFile* TokenizerFileSet::find(std::string_view name) const {
  return find_entry(files, name, &TokenizerFile::name);
}

TokenizerFormat format_of(const TokenizerFileSet& set) {
  const TokenizerFile& first = set.files.front();
  if (first.name == names::vocab || set.find(names::merges) != nullptr) return TokenizerFormat::gpt2;
  const size_t start = first.bytes.find_first_not_of(" \t\r\n");
  if (start != std::string::npos && (first.bytes[start] == '{' || first.name.ends_with(".json"))) {
    return TokenizerFormat::json;
  }
  // A protobuf message begins with field 1, a list of pieces, or another field; a file of ranks begins with base64 and
  // a space.
  const std::string_view line = std::string_view(first.bytes).substr(0, first.bytes.find('\n'));
  const bool printable = std::ranges::all_of(line, [](char c) { return (c >= ' ' && c < 0x7F) || c == '\r'; });
  if (!line.empty() && printable && line.find(' ') != std::string_view::npos) return TokenizerFormat::tiktoken;
  return TokenizerFormat::sentencepiece;
}

bool is_companion_file(std::string_view name) {
  const auto among = [&](const auto& list) { return std::ranges::find(list, name) != list.end(); };
  return name == names::merges || name == names::added || among(names::with_texts) || among(names::with_ids);
}

TokenizerFileSet read_tokenizer_files(const std::string& path) {
  TokenizerFileSet set;
  find_main_files(path, set);
  for (const auto& list : {names::with_texts, names::with_ids}) {
    for (const std::string_view name : list) {
      if (has_file(set.folder, name)) add_file(name, max_config, set);
    }
  }
  if (has_file(set.folder, names::added)) add_file(names::added, max_config, set);
  return set;
}

}  // namespace llmtrain
