#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "hf/convert.hpp"
#include "hf/weights/safetensors.hpp"

namespace llmtrain {
namespace {

constexpr int64_t header_length_bytes = 8;
constexpr int64_t piece_elements = int64_t{1} << 18;  ///< elements per conversion

std::string quoted_json(const std::string& text) { return nlohmann::json(text).dump(); }

/// Assigns the tensors their offsets in the data and returns the header.
std::string lay_out(std::vector<StoredTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  std::ranges::sort(tensors, [](const StoredTensor& a, const StoredTensor& b) {
    return a.type != b.type ? a.type > b.type : a.name < b.name;
  });
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      header += fmt::format("{}{}:{}", header.ends_with('{') ? "" : ",", quoted_json(key), quoted_json(value));
    }
    header += "}";
  }
  int64_t next = 0;
  for (StoredTensor& t : tensors) {
    t.begin = next;
    t.end = next + t.numel() * bits_of(t.type) / 8;
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", header == "{" ? "" : ",",
                          quoted_json(t.name), name_of(t.type), fmt::join(t.shape, ","), t.begin, t.end);
    next = t.end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<StoredTensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(FileHandle::create(path)) {
  const std::string header = lay_out(tensors, metadata);
  LLMTRAIN_CHECK(static_cast<int64_t>(header.size()) <= max_safetensors_header, "the header is too long");
  std::string start(header_length_bytes, '\0');
  for (size_t i = 0; i < start.size(); ++i) start[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  start += header;
  file_.write(0, static_cast<int64_t>(start.size()), start.data());
  bytes_ = static_cast<int64_t>(start.size()) + (tensors.empty() ? 0 : tensors.back().end);
  for (StoredTensor& t : tensors) {
    t.begin += static_cast<int64_t>(start.size());
    t.end += static_cast<int64_t>(start.size());
    LLMTRAIN_CHECK(tensors_.emplace(t.name, t).second, "tensor " + t.name + " twice");
  }
}

const StoredTensor& SafetensorsWriter::find(const std::string& name) const {
  const auto at = tensors_.find(name);
  LLMTRAIN_CHECK(at != tensors_.end(), "no tensor " + name + " in this file");
  return at->second;
}

void SafetensorsWriter::write(const std::string& name, int64_t first, const float* values, int64_t count) const {
  const StoredTensor& t = find(name);
  LLMTRAIN_CHECK(first >= 0 && count >= 0 && first + count <= t.numel(), "elements outside of " + name);
  LLMTRAIN_CHECK(is_weight_type(t.type), "only weights are converted");
  const int64_t width = bits_of(t.type) / 8;
  if (t.type == StoredType::F32) return file_.write(t.begin + first * width, count * width, values);
  std::vector<char> buffer(static_cast<size_t>(std::min(count, piece_elements) * width));
  for (int64_t at = 0; at < count; at += piece_elements) {
    const int64_t n = std::min(piece_elements, count - at);
    try {
      from_float(t.type, values + at, n, buffer.data());
    } catch (const UserError& error) {
      throw UserError(error.code(), fmt::format("{}: {}: {}", file_.path(), name, error.what()));
    }
    file_.write(t.begin + (first + at) * width, n * width, buffer.data());
  }
}

void SafetensorsWriter::write_bytes(const std::string& name, int64_t first, const void* bytes, int64_t count) const {
  const StoredTensor& t = find(name);
  LLMTRAIN_CHECK(first >= 0 && count >= 0 && first + count <= t.end - t.begin, "bytes outside of " + name);
  file_.write(t.begin + first, count, bytes);
}

void SafetensorsWriter::finish() const {
  LLMTRAIN_CHECK(file_.size() == bytes_, file_.path() + " is not complete");
  file_.sync();
}

}  // namespace llmtrain
