// Files that are read by ranges, and decks.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/deck/deck.hpp"
#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "core/files/folder_handle.hpp"
#include "data/files/jsonl.hpp"
#include "data/files/token_file.hpp"
#include "data/sample_rules.hpp"
#include "fuzz/targets.hpp"
#include "hf/weights/safetensors.hpp"
#include "hf/weights/weight_index.hpp"

namespace llmtrain::fuzz {
namespace {

/// The bytes as a file in memory.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (descriptor_ < 0 || ::write(descriptor_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      std::abort();
    }
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

/// A folder with one small weight file, which the index may name.
class WeightsFolder {
 public:
  WeightsFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "llmtrain-fuzz-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
    const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    std::string file(8, '\0');
    file[0] = static_cast<char>(header.size());
    write("model-00001-of-00001.safetensors", file + header + std::string(8, '\1'));
  }
  ~WeightsFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  WeightsFolder(const WeightsFolder&) = delete;
  WeightsFolder& operator=(const WeightsFolder&) = delete;
  void write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace

void run_safetensors(std::string_view bytes) try {
  const MemoryFile file(bytes);
  const SafetensorsHeader header = read_safetensors_header(FileHandle::open_to_read(file.path()));
  for (const StoredTensor& tensor : header.tensors) {
    if (tensor.begin < 0 || tensor.begin > tensor.end || tensor.end > static_cast<int64_t>(bytes.size())) std::abort();
    if (tensor.numel() < 0) std::abort();
  }
} catch (const UserError&) {
}

void run_weight_index(std::string_view bytes) try {
  static const WeightsFolder folder;
  folder.write(weights_index_name, bytes);
  const WeightIndex index = read_weight_index(FolderHandle::open(folder.path()));
  for (const WeightIndex::Tensor& tensor : index.tensors) {
    if (tensor.end > index.files[tensor.file].bytes) std::abort();
  }
} catch (const UserError&) {
}

void run_jsonl(std::string_view bytes) try {
  const MemoryFile memory(bytes);
  const FileHandle file = FileHandle::open_to_read(memory.path());
  const auto size = static_cast<int64_t>(bytes.size());
  for (const int64_t border : {int64_t{0}, size / 2}) {
    LineReader lines(file, size, border, border == 0 ? size / 2 : size);
    TokenRow row;
    std::string_view line;
    while (lines.next(line)) {
      try {
        parse_token_row(line, row);
        if (row.has_labels && row.labels.size() != row.ids.size()) std::abort();
      } catch (const UserError&) {
        continue;
      }
    }
  }
} catch (const UserError&) {
}

void run_token_file(std::string_view bytes) try {
  const MemoryFile memory(bytes);
  const auto file = open_token_file(memory.path());
  constexpr int64_t most = 1 << 16;
  std::vector<int32_t> ids(most);
  std::vector<uint8_t> mask(most);
  const int64_t count = std::min(file->tokens(), most);
  file->read(0, count, ids.data());
  for (int64_t i = 0; i < count; ++i) {
    if (ids[static_cast<size_t>(i)] < 0 || ids[static_cast<size_t>(i)] >= file->info().vocabulary_size) std::abort();
  }
  file->read_mask(0, count, mask.data());
  for (int64_t d = 0; d < std::min(file->info().documents, most); ++d) file->row_text(d);
} catch (const UserError&) {
}

/// Syntax errors of the text, keys of every kind of value, and the resolved deck, which must be a valid deck.
void run_deck(std::string_view bytes) try {
  const auto read = [](std::string_view text) {
    DataConfig config;
    DeckKeys keys;
    config.visit(keys);
    DeckLoader deck(keys, "deck.ini");
    deck.load(text, {}, {});
    config.resolve(deck, "runs", 42, TaskData(Task::pretrain));
    deck.finish();
    return write_deck(keys, deck.provenance(), "Resolved.");
  };
  const std::string resolved = read(bytes);
  try {
    read(resolved);
  } catch (const UserError& error) {
    std::fprintf(stderr, "%s\n%s\n", resolved.c_str(), error.what());
    std::abort();
  }
} catch (const UserError&) {
}

}  // namespace llmtrain::fuzz
