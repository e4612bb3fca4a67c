#pragma once
// Folders in bitsandbytes' layout, with what they hold (tests/reference/quantization/make_folders.py).

#include <map>
#include <nlohmann/json.hpp>

#include "hf/export.hpp"
#include "hf/files.hpp"
#include "hf/weights/stored_slice.hpp"

namespace llmtrain::test {

inline const std::string golden = "tests/reference/quantization/", models = "tests/reference/hf/";

/// A safetensors file as its parts, to be changed and written again.
struct Parts {
  struct Part {
    std::string type;
    std::vector<int64_t> shape;
    std::string bytes;
    bool operator==(const Part&) const = default;
  };
  std::map<std::string, Part> tensors;

  static Parts of(const std::string& bytes) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    Parts parts;
    const nlohmann::json header = nlohmann::json::parse(bytes.substr(8, length));
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      parts.tensors[name] = {entry["dtype"], entry["shape"], bytes.substr(8 + length + begin, end - begin)};
    }
    return parts;
  }
  std::string written() const {
    nlohmann::json header;
    std::string data;
    for (const auto& [name, part] : tensors) {
      header[name] = {{"dtype", part.type},
                      {"shape", part.shape},
                      {"data_offsets", {data.size(), data.size() + part.bytes.size()}}};
      data += part.bytes;
    }
    const std::string text = header.dump();
    return safetensors_bytes(text, 0) + data;
  }
};

inline Parts parts_of(const std::string& folder) {
  std::ostringstream text;
  text << std::ifstream(folder + "/model.safetensors", std::ios::binary).rdbuf();
  return Parts::of(text.str());
}

/// Elements [begin, end) of a tensor; end -1: all of it.
inline std::vector<float> values_in(const WeightIndex& index, const std::string& name, int64_t begin = 0,
                                    int64_t end = -1) {
  const WeightIndex::Tensor* tensor = index.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  const FolderHandle folder = FolderHandle::open(index.folder);
  std::vector<FileHandle> files;
  for (const WeightIndex::File& file : index.files) files.push_back(folder.open_to_read(file.name));
  if (end < 0) end = tensor->numel();
  std::vector<float> values(static_cast<size_t>(end - begin));
  const auto file_of = [&](size_t number) -> const FileHandle& { return files[number]; };
  read_slice(whole_tensor(*tensor, file_of), begin, end, values.data());
  return values;
}
inline std::vector<float> values_in(const std::string& folder, const std::string& name) {
  return values_in(read_weight_index(FolderHandle::open(folder)), name);
}
inline WeightIndex expected_of(const std::string& name) {
  return read_weight_file(FolderHandle::open(golden + name), "expected.safetensors");
}

inline ExportOptions to(const std::string& output, const std::string& model) {
  ExportOptions options;
  options.output = output;
  options.texts = model_texts(model);
  return options;
}

}  // namespace llmtrain::test
