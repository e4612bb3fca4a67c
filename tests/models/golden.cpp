#include "models/golden.hpp"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "core/error.hpp"

namespace llmtrain {

namespace {

/// An HDF5 identifier and the call that closes it.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t), const std::string& what) : id_(id), close_(close) {
    LLMTRAIN_CHECK(id_ >= 0, fmt::format("golden: cannot open {}", what));
  }
  ~Handle() { close_(id_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator hid_t() const { return id_; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

/// HDF5 prints its own error stack unless disabled; our errors name the requested object.
class Quiet {
 public:
  Quiet() {
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Quiet() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

template <class T>
hid_t memory_type();
template <>
hid_t memory_type<float>() {
  return H5T_NATIVE_FLOAT;
}
template <>
hid_t memory_type<double>() {
  return H5T_NATIVE_DOUBLE;
}
template <>
hid_t memory_type<int32_t>() {
  return H5T_NATIVE_INT32;
}
template <>
hid_t memory_type<int64_t>() {
  return H5T_NATIVE_INT64;
}

template <class T>
GoldenArray<T> read_array(hid_t file, const std::string& path) {
  const Quiet quiet;
  const Handle dataset(H5Dopen2(file, path.c_str(), H5P_DEFAULT), H5Dclose, path);
  const Handle space(H5Dget_space(dataset), H5Sclose, path);
  const int rank = H5Sget_simple_extent_ndims(space);
  LLMTRAIN_CHECK(rank >= 0 && rank <= 4, fmt::format("golden: {} has {} dimensions", path, rank));
  hsize_t dims[4] = {};
  H5Sget_simple_extent_dims(space, dims, nullptr);
  GoldenArray<T> array;
  array.shape.assign(dims, dims + rank);
  array.values.resize(static_cast<size_t>(H5Sget_simple_extent_npoints(space)));
  const herr_t status = H5Dread(dataset, memory_type<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, array.values.data());
  LLMTRAIN_CHECK(status >= 0, fmt::format("golden: cannot read {}", path));
  return array;
}

template <class T>
T read_attribute(hid_t file, const std::string& object, const std::string& name) {
  const Quiet quiet;
  const std::string what = fmt::format("attribute {} of {}", name, object);
  const Handle attribute(H5Aopen_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose, what);
  const Handle space(H5Aget_space(attribute), H5Sclose, what);
  T value{};
  LLMTRAIN_CHECK(H5Sget_simple_extent_npoints(space) == 1, fmt::format("golden: {} is not one number", what));
  LLMTRAIN_CHECK(H5Aread(attribute, memory_type<T>(), &value) >= 0, fmt::format("golden: cannot read {}", what));
  return value;
}

template <class Names>
herr_t collect_attribute(hid_t, const char* name, const H5A_info_t*, void* names) {
  static_cast<Names*>(names)->emplace_back(name);
  return 0;
}

template <class Names>
herr_t collect_link(hid_t, const char* name, const H5L_info_t*, void* names) {
  static_cast<Names*>(names)->emplace_back(name);
  return 0;
}

int64_t to_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  LLMTRAIN_CHECK(error == std::errc() && end == text.data() + text.size(), "golden: zero_gradients is malformed");
  return value;
}

}  // namespace

std::filesystem::path Golden::folder() { return "tests/reference/models"; }

std::vector<std::string> Golden::cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    if (entry.path().extension() == ".h5") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Golden::Golden(const std::string& name) : name_(name) {
  const Quiet quiet;
  const std::string path = (folder() / (name + ".h5")).string();
  file_ = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  LLMTRAIN_CHECK(file_ >= 0, fmt::format("golden: cannot open {}", path));
}

Golden::~Golden() { H5Fclose(file_); }

std::vector<std::string> Golden::attributes() const {
  std::vector<std::string> names;
  H5Aiterate2(file_, H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_attribute<std::vector<std::string>>, &names);
  return names;
}

bool Golden::has(const std::string& attribute) const { return H5Aexists(file_, attribute.c_str()) > 0; }

std::string Golden::text(const std::string& attribute) const {
  const Quiet quiet;
  const Handle handle(H5Aopen(file_, attribute.c_str(), H5P_DEFAULT), H5Aclose, "attribute " + attribute);
  const Handle type(H5Aget_type(handle), H5Tclose, attribute);
  LLMTRAIN_CHECK(H5Tis_variable_str(type) > 0, fmt::format("golden: attribute {} is not a text", attribute));
  char* value = nullptr;
  const herr_t status = H5Aread(handle, type, &value);
  LLMTRAIN_CHECK(status >= 0, fmt::format("golden: cannot read attribute {}", attribute));
  std::string copy = value == nullptr ? "" : value;
  if (value != nullptr) H5free_memory(value);
  return copy;
}

int64_t Golden::integer(const std::string& attribute) const { return read_attribute<int64_t>(file_, "/", attribute); }

double Golden::number(const std::string& attribute) const { return read_attribute<double>(file_, "/", attribute); }

double Golden::number(const std::string& object, const std::string& attribute) const {
  return read_attribute<double>(file_, object, attribute);
}

std::vector<std::string> Golden::names(const std::string& group) const {
  const Quiet quiet;
  const Handle handle(H5Gopen2(file_, group.c_str(), H5P_DEFAULT), H5Gclose, group);
  std::vector<std::string> names;
  H5Literate(handle, H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_link<std::vector<std::string>>, &names);
  return names;
}

GoldenArray<float> Golden::floats(const std::string& path) const { return read_array<float>(file_, path); }
GoldenArray<double> Golden::doubles(const std::string& path) const { return read_array<double>(file_, path); }
GoldenArray<int32_t> Golden::ints(const std::string& path) const { return read_array<int32_t>(file_, path); }

double Golden::scalar(const std::string& path) const {
  const GoldenArray<double> array = doubles(path);
  LLMTRAIN_CHECK(array.values.size() == 1, fmt::format("golden: {} is not one number", path));
  return array.values[0];
}

std::vector<Golden::ZeroRange> Golden::zero_gradients() const {
  std::vector<ZeroRange> ranges;
  const std::string list = text("zero_gradients");
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find('\n', begin), list.size());
    const std::string line = list.substr(begin, end - begin);
    const size_t last = line.rfind(':');
    LLMTRAIN_CHECK(last != std::string::npos && last > 0, "golden: zero_gradients is malformed");
    const size_t first = line.rfind(':', last - 1);
    LLMTRAIN_CHECK(first != std::string::npos, "golden: zero_gradients is malformed");
    ranges.push_back({line.substr(0, first), to_integer(std::string_view(line).substr(first + 1, last - first - 1)),
                      to_integer(std::string_view(line).substr(last + 1))});
    begin = end + 1;
  }
  return ranges;
}

double Golden::gradient_distance(const std::string& name, std::span<const float> value) const {
  const GoldenArray<float> golden = floats("grads/" + name);
  LLMTRAIN_CHECK(golden.values.size() == value.size(), fmt::format("golden: gradient {} has another size", name));
  std::vector<bool> skip(value.size(), false);
  for (const ZeroRange& range : zero_gradients()) {
    if (range.name == name) std::fill(skip.begin() + range.begin, skip.begin() + range.end, true);
  }
  double sum = 0;
  for (size_t i = 0; i < value.size(); ++i) {
    const double difference = static_cast<double>(value[i]) - static_cast<double>(golden.values[i]);
    if (!skip[i]) sum += difference * difference;
  }
  return std::sqrt(sum);
}

double Golden::gradient_error(const std::string& name, std::span<const float> value) const {
  const double norm = number("grads/" + name, "norm");
  return gradient_distance(name, value) / (norm > 0 ? norm : 1);  // 0 of experts without tokens
}

}  // namespace llmtrain
