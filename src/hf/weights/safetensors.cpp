#include "hf/weights/safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"

namespace llmtrain {
namespace {

struct TypeInfo {
  std::string_view name;
  int bits;
};
constexpr TypeInfo types[] = {{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
                              {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
                              {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
                              {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
                              {"I64", 64},        {"U64", 64}};
static_assert(std::size(types) == static_cast<size_t>(StoredType::U64) + 1);

std::optional<StoredType> type_of(std::string_view name) {
  for (size_t i = 0; i < std::size(types); ++i) {
    if (types[i].name == name) return static_cast<StoredType>(i);
  }
  return std::nullopt;
}

constexpr int64_t length_bytes = 8;
constexpr size_t max_metadata = 65536;  // entries

/// Collects the tensors; offsets are taken from the header and checked later.
class HeaderHandler final : public JsonHandler {
 public:
  explicit HeaderHandler(SafetensorsHeader& header) : JsonHandler(30 * max_tensors_of_file), header_(header) {}

 private:
  enum class Place : uint8_t { none, metadata, dtype, shape, offsets };

  bool on_open(bool object) override {
    if (depth() == 1) return object || fail("the header must be an object");
    if (depth() == 2) return object || fail(fmt::format("{}: not an object", printable(name_)));
    const bool list = place_ == Place::shape || place_ == Place::offsets;
    if (object || !list || depth() > 3)
      return fail(fmt::format("{}: {} here", printable(name_), object ? "an object" : "a list"));
    return true;
  }

  bool on_key(std::string& key) override {
    if (depth() == 1) {
      name_ = key;
      in_metadata_ = name_ == "__metadata__";
      seen_ = {};
      if (in_metadata_) {
        if (std::exchange(has_metadata_, true)) return fail("__metadata__ twice");
        return true;
      }
      if (static_cast<int64_t>(header_.tensors.size()) >= max_tensors_of_file) {
        return fail(fmt::format("more than {} tensors", max_tensors_of_file));
      }
      header_.tensors.emplace_back().name = key;
      return true;
    }
    if (in_metadata_) {
      place_ = Place::metadata;
      key_ = key;
      return header_.metadata.size() < max_metadata || fail("too many entries of __metadata__");
    }
    place_ = key == "dtype"          ? Place::dtype
             : key == "shape"        ? Place::shape
             : key == "data_offsets" ? Place::offsets
                                     : Place::none;
    if (place_ == Place::none) return fail(fmt::format("{}: no such key: {}", printable(name_), printable(key)));
    bool& seen = seen_[static_cast<size_t>(place_)];
    return !std::exchange(seen, true) || fail(fmt::format("{}: {} twice", printable(name_), key));
  }

  bool on_value(nlohmann::json value) override {
    if (depth() < 2) return fail(depth() == 0 ? "the header must be an object" : printable(name_) + ": not an object");
    if (place_ == Place::metadata) {
      if (!value.is_string()) return fail(fmt::format("__metadata__: {} is not a text", printable(key_)));
      const bool added = header_.metadata.try_emplace(key_, std::move(value.get_ref<std::string&>())).second;
      return added || fail(fmt::format("__metadata__: {} twice", printable(key_)));
    }
    if (place_ == Place::dtype && depth() == 2) return take_type(value);
    if (depth() != 3) return fail(fmt::format("{}: shape and data_offsets must be lists", printable(name_)));
    return take_number(value);
  }

  bool on_close() override {
    if (depth() == 2) return true;  // values of shape or data_offsets
    if (depth() == 0 || in_metadata_) return true;
    for (const Place p : {Place::dtype, Place::shape, Place::offsets}) {
      if (!seen_[static_cast<size_t>(p)])
        return fail(fmt::format("{}: dtype, shape and data_offsets are needed", printable(name_)));
    }
    return offsets_ == 2 ? (offsets_ = 0, true)
                         : fail(fmt::format("{}: data_offsets must be two numbers", printable(name_)));
  }

  bool take_type(const nlohmann::json& value) {
    const std::string text = value.is_string() ? value.get<std::string>() : "";
    const std::optional<StoredType> type = type_of(text);
    if (!type) return fail(fmt::format("{}: unknown dtype {}", printable(name_), printable(text)));
    header_.tensors.back().type = *type;
    return true;
  }

  bool take_number(const nlohmann::json& value) {
    const uint64_t number = value.is_number_unsigned() ? value.get<uint64_t>() : UINT64_MAX;
    if (number > static_cast<uint64_t>(INT64_MAX)) return fail(fmt::format("{}: not a size", printable(name_)));
    StoredTensor& tensor = header_.tensors.back();
    if (place_ == Place::shape) {
      if (tensor.shape.size() >= max_tensor_rank)
        return fail(fmt::format("{}: more than {} dimensions", printable(name_), max_tensor_rank));
      tensor.shape.push_back(static_cast<int64_t>(number));
      return true;
    }
    if (offsets_ == 2) return fail(fmt::format("{}: data_offsets must be two numbers", printable(name_)));
    (offsets_++ == 0 ? tensor.begin : tensor.end) = static_cast<int64_t>(number);
    return true;
  }

  SafetensorsHeader& header_;
  std::string name_, key_;
  Place place_ = Place::none;
  std::array<bool, 5> seen_{};
  int offsets_ = 0;  // number of offsets of the current tensor that were read
  bool in_metadata_ = false, has_metadata_ = false;
};

/// Returns the bytes of a tensor, or nothing if they do not fit 63 bits or are not a whole number.
std::optional<int64_t> checked_bytes(const StoredTensor& tensor) {
  int64_t count = 1, bits = 0;
  if (std::ranges::find(tensor.shape, 0) != tensor.shape.end()) return 0;
  for (const int64_t dim : tensor.shape) {
    if (__builtin_mul_overflow(count, dim, &count)) return std::nullopt;
  }
  if (__builtin_mul_overflow(count, int64_t{bits_of(tensor.type)}, &bits) || bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

void check_tensors(SafetensorsHeader& header, const std::string& path, int64_t data_begin, int64_t data_bytes) {
  const auto refuse = [&](const std::string& what) { throw UserError(ExitCode::bad_content, path + ": " + what); };
  std::vector<StoredTensor>& tensors = header.tensors;
  std::ranges::sort(tensors, [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].name == tensors[i - 1].name) refuse(fmt::format("tensor {} twice", printable(tensors[i].name)));
  }
  std::ranges::sort(tensors, [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t next = 0;
  for (StoredTensor& t : tensors) {
    const std::string name = printable(t.name);
    if (t.begin != next) {
      refuse(fmt::format("{} begins at byte {} of the data instead of {}: tensors overlap or leave a hole", name,
                         t.begin, next));
    }
    if (t.end < t.begin || t.end > data_bytes) {
      refuse(fmt::format("{} ends at byte {} of {} bytes of data: {}", name, t.end, data_bytes,
                         t.end > data_bytes ? "the file is cut off or damaged" : "it ends before it begins"));
    }
    const std::optional<int64_t> bytes = checked_bytes(t);
    if (bytes != t.end - t.begin) {
      refuse(fmt::format("{}: {} {} does not need {} bytes, as data_offsets declare", name, name_of(t.type),
                         shape_text(t.shape), t.end - t.begin));
    }
    next = t.end;
    t.begin += data_begin;
    t.end += data_begin;
  }
  if (next != data_bytes) {
    refuse(fmt::format("{} bytes follow the last tensor, which ends at byte {}", data_bytes - next, data_begin + next));
  }
}

int64_t read_header_length(const FileHandle& file) {
  const auto refuse = [&](const std::string& what) {
    throw UserError(ExitCode::bad_content, file.path() + ": " + what);
  };
  std::array<char, 40> start{};
  const int64_t size = file.size();
  const int64_t got = file.read_some(0, static_cast<int64_t>(start.size()), start.data());
  if (std::string_view(start.data(), static_cast<size_t>(got)).starts_with("version https://git-lfs")) {
    refuse("a Git LFS pointer, not the weights; fetch the file itself (git lfs pull)");
  }
  if (size < length_bytes || got < length_bytes) refuse(fmt::format("not a safetensors file: it has {} bytes", size));
  uint64_t length = 0;
  for (int i = length_bytes - 1; i >= 0; --i)
    length = length << 8 | static_cast<uint8_t>(start[static_cast<size_t>(i)]);
  if (length > static_cast<uint64_t>(max_safetensors_header)) {
    refuse(fmt::format(
        "not a safetensors file, or damaged: its first 8 bytes declare a header of {} bytes; at most {} are "
        "allowed",
        length, max_safetensors_header));
  }
  if (static_cast<int64_t>(length) > size - length_bytes) {
    refuse(fmt::format("the header should have {} bytes, but the file ends after {}: it is cut off or damaged", length,
                       size - length_bytes));
  }
  if (length < 2 || start[length_bytes] != '{') refuse("not a safetensors file: the header does not begin with '{'");
  return static_cast<int64_t>(length);
}

}  // namespace

std::string_view name_of(StoredType type) { return types[static_cast<size_t>(type)].name; }
int bits_of(StoredType type) { return types[static_cast<size_t>(type)].bits; }

int64_t StoredTensor::numel() const {
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  return n;
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

SafetensorsHeader read_safetensors_header(const FileHandle& file) {
  const int64_t length = read_header_length(file);
  SafetensorsHeader header;
  {
    std::string text(static_cast<size_t>(length), '\0');
    file.read(length_bytes, length, text.data());
    HeaderHandler handler(header);
    parse_json_events(text, file.path() + " (header)", handler);
  }
  check_tensors(header, file.path(), length_bytes + length, file.size() - length_bytes - length);
  return header;
}

}  // namespace llmtrain
