#include <fmt/format.h>

#include "core/files/json_reader.hpp"
#include "hf/weights/safetensors.hpp"
#include "tool/inspect.hpp"

namespace llmtrain {

void inspect_safetensors(const std::string& path) {
  const FileHandle file = FileHandle::open_to_read(path);
  const SafetensorsHeader header = read_safetensors_header(file);
  int64_t elements = 0;
  for (const StoredTensor& tensor : header.tensors) elements += tensor.numel();
  inspect_line("safetensors", path);
  inspect_line("bytes", std::to_string(file.size()));
  inspect_line("elements", fmt::format("{} in {} tensors", elements, header.tensors.size()));
  for (const auto& [key, value] : header.metadata) {
    inspect_line("metadata", fmt::format("{}: {}", printable(key), printable(value)));
  }
  for (const StoredTensor& tensor : header.tensors) {
    inspect_line("tensor",
                 fmt::format("{} {} {}", printable(tensor.name), name_of(tensor.type), shape_text(tensor.shape)));
  }
}

}  // namespace llmtrain
