#include "hf/gguf/gguf_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <unordered_set>
#include <utility>

#include "core/error.hpp"
#include "hf/convert.hpp"

namespace llmtrain {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t version = 3;
constexpr int64_t alignment = 32;                        ///< bytes, of the data and of each tensor
constexpr int64_t q8_bytes = 2 + q8_block;               ///< of a block
constexpr int64_t converted_at_once = int64_t{1} << 18;  ///< per conversion
enum ValueType : uint32_t {
  u32_value = 4,
  i32_value = 5,
  f32_value = 6,
  bool_value = 7,
  text_value = 8,
  array_value = 9
};

template <class T>
void append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void append_text(std::string& bytes, std::string_view text) {
  append(bytes, uint64_t{text.size()});
  bytes += text;
}
void begin_array(std::string& bytes, uint32_t type, size_t count) {
  append(bytes, type);
  append(bytes, uint64_t{count});
}

int64_t aligned(int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

/// The block's scale is its largest magnitude / 127; codes are rounded to nearest, halves away from zero.
void quantize_block(const float* x, char* out) {
  float largest = 0;
  for (int64_t i = 0; i < q8_block; ++i) {
    if (!std::isfinite(x[i])) throw UserError(ExitCode::bad_content, "a weight that is not finite cannot be q8_0");
    largest = std::max(largest, std::abs(x[i]));
  }
  const float scale = largest / 127, inverse = scale > 0 && std::isfinite(1 / scale) ? 1 / scale : 0;
  from_float(StoredType::F16, &scale, 1, out);
  for (int64_t i = 0; i < q8_block; ++i) {
    const auto code = static_cast<int8_t>(std::round(x[i] * inverse));
    std::memcpy(out + 2 + i, &code, 1);
  }
}

StoredType stored_type(GgufType type) {
  return type == GgufType::F32 ? StoredType::F32 : type == GgufType::F16 ? StoredType::F16 : StoredType::BF16;
}

int64_t bytes_of(GgufType type, int64_t elements) {
  if (type == GgufType::Q8_0) return elements / q8_block * q8_bytes;
  return elements * (type == GgufType::F32 ? 4 : 2);
}

}  // namespace

void GgufMetadata::begin(std::string_view key, uint32_t type) {
  append_text(bytes_, key);
  append(bytes_, type);
  ++count_;
}
void GgufMetadata::add(std::string_view key, uint32_t value) {
  begin(key, u32_value);
  append(bytes_, value);
}
void GgufMetadata::add(std::string_view key, float value) {
  begin(key, f32_value);
  append(bytes_, value);
}
void GgufMetadata::add(std::string_view key, bool value) {
  begin(key, bool_value);
  append(bytes_, static_cast<uint8_t>(value));
}
void GgufMetadata::add(std::string_view key, std::string_view value) {
  begin(key, text_value);
  append_text(bytes_, value);
}
void GgufMetadata::add(std::string_view key, const std::vector<std::string>& values) {
  begin(key, array_value);
  begin_array(bytes_, text_value, values.size());
  for (const std::string& value : values) append_text(bytes_, value);
}
void GgufMetadata::add(std::string_view key, const std::vector<float>& values) {
  begin(key, array_value);
  begin_array(bytes_, f32_value, values.size());
  for (const float value : values) append(bytes_, value);
}
void GgufMetadata::add(std::string_view key, const std::vector<int32_t>& values) {
  begin(key, array_value);
  begin_array(bytes_, i32_value, values.size());
  for (const int32_t value : values) append(bytes_, value);
}

int64_t GgufTensor::bytes() const { return bytes_of(type, numel()); }

GgufWriter::GgufWriter(std::string path, bool overwrite, const GgufMetadata& metadata, std::vector<GgufTensor> tensors)
    : path_(std::move(path)), partial_(path_ + ".partial"), tensors_(std::move(tensors)) {
  std::error_code ignored;
  const bool exists = std::filesystem::exists(path_, ignored);
  if (exists && (!overwrite || !std::filesystem::is_regular_file(path_, ignored))) {
    throw UserError(ExitCode::cannot_create, path_ + ": it already exists");
  }
  std::string header = "GGUF";
  append(header, version);
  append(header, uint64_t{tensors_.size()});
  append(header, metadata.count());
  header += metadata.bytes();
  std::unordered_set<std::string_view> names;
  for (const GgufTensor& tensor : tensors_) {
    LLMTRAIN_CHECK(names.insert(tensor.name).second, "tensor " + tensor.name + " twice");
    append_text(header, tensor.name);
    append(header, uint32_t{tensor.columns == 0 ? 1U : tensor.matrices == 0 ? 2U : 3U});
    if (tensor.columns != 0) append(header, static_cast<uint64_t>(tensor.columns));
    append(header, static_cast<uint64_t>(tensor.matrices == 0 ? tensor.rows : tensor.rows / tensor.matrices));
    if (tensor.matrices != 0) append(header, static_cast<uint64_t>(tensor.matrices));
    append(header, static_cast<uint32_t>(tensor.type));
    append(header, static_cast<uint64_t>(bytes_));
    offsets_.push_back(bytes_);
    bytes_ = aligned(bytes_ + tensor.bytes());
  }
  header.resize(static_cast<size_t>(aligned(std::ssize(header))), '\0');
  for (int64_t& offset : offsets_) offset += std::ssize(header);
  bytes_ += std::ssize(header);
  std::filesystem::remove(partial_, ignored);
  file_ = FileHandle::create(partial_);
  file_.show_as(path_);
  file_.write(0, std::ssize(header), header.data());
  if (!tensors_.empty()) file_.write(bytes_ - 1, 1, "");  // the end may be padding, which reads as zeros
}

GgufWriter::~GgufWriter() {
  std::error_code ignored;
  if (!published_) std::filesystem::remove(partial_, ignored);
}

void GgufWriter::write(size_t number, int64_t first, const float* values, int64_t count) const {
  const GgufTensor& tensor = tensors_[number];
  const bool blocks = tensor.type == GgufType::Q8_0;
  LLMTRAIN_CHECK(first >= 0 && count >= 0 && first + count <= tensor.numel(), "elements outside of " + tensor.name);
  LLMTRAIN_CHECK(!blocks || (first % q8_block == 0 && count % q8_block == 0), "half a block of " + tensor.name);
  std::vector<char> buffer(static_cast<size_t>(bytes_of(tensor.type, std::min(count, converted_at_once))));
  for (int64_t at = 0; at < count; at += converted_at_once) {
    const int64_t n = std::min(converted_at_once, count - at);
    try {
      if (blocks) {
        for (int64_t i = 0; i < n; i += q8_block)
          quantize_block(values + at + i, &buffer[static_cast<size_t>(i / q8_block * q8_bytes)]);
      } else {
        from_float(stored_type(tensor.type), values + at, n, buffer.data());
      }
    } catch (const UserError& error) {
      throw UserError(error.code(), fmt::format("{}: {}: {}", path_, tensor.name, error.what()));
    }
    file_.write(offsets_[number] + bytes_of(tensor.type, first + at), bytes_of(tensor.type, n), buffer.data());
  }
}

void GgufWriter::publish() {
  LLMTRAIN_CHECK(file_.size() == bytes_, path_ + " is not complete");
  file_.sync();
  std::error_code error;
  std::filesystem::rename(partial_, path_, error);
  if (error) throw UserError(ExitCode::cannot_create, fmt::format("{}: {}", path_, error.message()));
  sync_folder(folder_of(path_));
  published_ = true;
}

}  // namespace llmtrain
