#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <limits>
#include <vector>

#include "core/error.hpp"
#include "core/files/hdf5_handle.hpp"
#include "tool/inspect.hpp"

namespace llmtrain {
namespace {

constexpr std::array<const char*, 2> known_groups = {"train", "validation"};
constexpr hsize_t max_rows = hsize_t{1} << 28;
constexpr hsize_t max_columns = 1000;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw UserError(ExitCode::bad_content, fmt::format("{}: {}: not metrics that a run has written", path, what));
}

bool has_plain_link(hid_t file, const char* name) {
  H5L_info2_t info;
  return H5Lexists(file, name, H5P_DEFAULT) > 0 && H5Lget_info2(file, name, &info, H5P_DEFAULT) >= 0 &&
         info.type == H5L_TYPE_HARD;
}

Hdf5Handle open_file(const std::string& path) { return {H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose}; }

std::string units_of(hid_t data) {
  if (H5Aexists(data, "units") <= 0) return "";
  const Hdf5Handle attribute(H5Aopen(data, "units", H5P_DEFAULT), H5Aclose);
  const Hdf5Handle type(attribute.valid() ? H5Aget_type(attribute.get()) : -1, H5Tclose);
  if (!type.valid() || H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0) return "";
  const size_t size = H5Tget_size(type.get());
  if (size == 0 || size > 200) return "";
  std::string text(size, '\0');
  if (H5Aread(attribute.get(), type.get(), text.data()) < 0) return "";
  return text.substr(0, text.find('\0'));
}

std::vector<double> read_column(hid_t data, const std::string& path, const std::string& name) {
  const Hdf5Handle space(H5Dget_space(data), H5Sclose);
  const Hdf5Handle type(H5Dget_type(data), H5Tclose);
  const Hdf5Handle creation(H5Dget_create_plist(data), H5Pclose);
  hsize_t rows = 0;
  if (!space.valid() || !type.valid() || !creation.valid() || H5Sget_simple_extent_ndims(space.get()) != 1 ||
      H5Sget_simple_extent_dims(space.get(), &rows, nullptr) != 1 || H5Tget_class(type.get()) != H5T_FLOAT ||
      H5Pget_layout(creation.get()) != H5D_CONTIGUOUS || H5Pget_external_count(creation.get()) != 0 ||
      rows > max_rows || (rows > 0 && H5Dget_storage_size(data) < rows * H5Tget_size(type.get()))) {
    refuse(path, name);
  }
  std::vector<double> values(rows);
  if (rows > 0 && H5Dread(data, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
    refuse(path, name);
  }
  return values;
}

/// Passes over what is no number, as the loss of a step without a target.
double least_number(const std::vector<double>& values) {
  double least = std::numeric_limits<double>::quiet_NaN();
  for (const double value : values) least = std::fmin(least, value);
  return least;
}

void print_group(hid_t file, const std::string& path, const std::string& name) {
  const Hdf5Handle group(H5Gopen2(file, name.c_str(), H5P_DEFAULT), H5Gclose);
  H5G_info_t info{};
  if (!group.valid() || H5Gget_info(group.get(), &info) < 0 || info.nlinks > max_columns) refuse(path, name);
  std::cout << fmt::format("/{}\n  {:<20} {:>8} {:>14} {:>14} {:>14}  {}\n", name, "", "rows", "first", "last", "least",
                           "units");
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    std::array<char, 256> column{};
    if (H5Lget_name_by_idx(group.get(), ".", H5_INDEX_NAME, H5_ITER_INC, i, column.data(), column.size(), H5P_DEFAULT) <
            0 ||
        !has_plain_link(group.get(), column.data())) {
      refuse(path, name);
    }
    const Hdf5Handle data(H5Dopen2(group.get(), column.data(), H5P_DEFAULT), H5Dclose);
    if (!data.valid()) refuse(path, name + "/" + column.data());
    const std::vector<double> values = read_column(data.get(), path, name + "/" + column.data());
    const auto text = [&](auto pick) { return values.empty() ? std::string("-") : fmt::format("{:.6g}", pick()); };
    std::cout << without_controls(fmt::format("  {:<20} {:>8} {:>14} {:>14} {:>14}  {}\n", column.data(), values.size(),
                                              text([&] { return values.front(); }), text([&] { return values.back(); }),
                                              text([&] { return least_number(values); }), units_of(data.get())));
  }
}

}  // namespace

bool is_metrics_file(const std::string& path) {
  const Hdf5Silence silence;
  const Hdf5Handle file = open_file(path);
  return file.valid() && !has_plain_link(file.get(), "tokens") && has_plain_link(file.get(), known_groups[0]);
}

void inspect_metrics(const std::string& path) {
  const Hdf5Silence silence;
  const Hdf5Handle file = open_file(path);
  if (!file.valid()) refuse(path, "it cannot be opened");
  std::cout << "metrics            " << without_controls(path) << "\n";
  for (const char* group : known_groups) {
    if (has_plain_link(file.get(), group)) print_group(file.get(), path, group);
  }
}

}  // namespace llmtrain
