#include "metrics/metrics_hdf5.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/files/hdf5_handle.hpp"
#include "core/files/opened_files.hpp"

namespace llmtrain {

namespace {

void check(herr_t status, const std::string& path) {
  if (status < 0) fail_hdf5_write(path);
}

/// Removes the file, unless it has another name by then: half of it would keep space that a full disk has not.
class RemoveAtEnd {
 public:
  explicit RemoveAtEnd(const std::string& path) : path_(path) {}
  ~RemoveAtEnd() { unlink(path_.c_str()); }
  RemoveAtEnd(const RemoveAtEnd&) = delete;
  RemoveAtEnd& operator=(const RemoveAtEnd&) = delete;

 private:
  const std::string& path_;
};

Hdf5Handle checked(hid_t id, Hdf5Handle::Close close, const std::string& path) {
  check(id < 0 ? -1 : 0, path);
  return {id, close};
}

Hdf5Handle create_group(const Hdf5Handle& file, const std::string& name, const std::string& path) {
  return checked(H5Gcreate2(file.get(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose, path);
}

void write_column(const Hdf5Handle& group, const MetricsTable::Column& column, const std::string& path) {
  const hsize_t rows = column.values.size();
  const Hdf5Handle space = checked(H5Screate_simple(1, &rows, nullptr), H5Sclose, path);
  // rewards/chosen is a dataset in a group
  const bool grouped = column.name.find('/') != std::string::npos;
  Hdf5Handle names;
  if (grouped) {
    names = checked(H5Pcreate(H5P_LINK_CREATE), H5Pclose, path);
    check(H5Pset_create_intermediate_group(names.get(), 1), path);
  }
  const Hdf5Handle data = checked(H5Dcreate2(group.get(), column.name.c_str(), H5T_IEEE_F64LE, space.get(),
                                             grouped ? names.get() : H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                                  H5Dclose, path);
  check(H5Dwrite(data.get(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, column.values.data()), path);
  const Hdf5Handle text = checked(H5Tcopy(H5T_C_S1), H5Tclose, path);
  check(H5Tset_size(text.get(), column.units.size() + 1), path);
  const Hdf5Handle scalar = checked(H5Screate(H5S_SCALAR), H5Sclose, path);
  const Hdf5Handle attribute =
      checked(H5Acreate2(data.get(), "units", text.get(), scalar.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose, path);
  check(H5Awrite(attribute.get(), text.get(), column.units.c_str()), path);
}

constexpr double missing = std::numeric_limits<double>::quiet_NaN();

/// Unit that the end of a name tells, as of "node1/gpu0/power_watts"; "1" for a plain number.
std::string units_of_metric(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, const char*>, 10> endings = {{{"bytes_per_second", "bytes/s"},
                                                                                 {"_bytes", "bytes"},
                                                                                 {"_percent", "%"},
                                                                                 {"_watts", "W"},
                                                                                 {"joules", "J"},
                                                                                 {"joules_per_token", "J"},
                                                                                 {"_celsius", "degrees Celsius"},
                                                                                 {"_mhz", "MHz"},
                                                                                 {"wall_time", "s"},
                                                                                 {"_seconds", "s"}}};
  if (name.find("_seconds/") != std::string_view::npos) return "s";  // step_seconds/median
  const auto found = std::ranges::find_if(endings, [&](const auto& ending) { return name.ends_with(ending.first); });
  return found == endings.end() ? "1" : found->second;
}

void sync(const std::string& path, int flags) {
  const int file = open(path.c_str(), flags | O_CLOEXEC);
  const bool done = file >= 0 && fsync(file) == 0;
  const int cause = errno;
  if (file >= 0) close(file);
  if (!done) throw UserError(ExitCode::io, fmt::format("{}: fsync failed: {}", path, strerror(cause)));
}

}  // namespace

void MetricsTable::add(const std::vector<double>& row) {
  LLMTRAIN_CHECK(row.size() == columns.size(), "one value per column of " + name);
  for (size_t i = 0; i < row.size(); ++i) columns[i].values.push_back(row[i]);
}

void MetricsTable::add(const std::vector<NamedValue>& row, size_t max_columns) {
  const size_t before = rows();
  size_t next = 0;  // rows have their names in the same order
  for (const NamedValue& value : row) {
    if (next >= columns.size() || columns[next].name != value.name) {
      next = static_cast<size_t>(std::ranges::find(columns, value.name, &Column::name) - columns.begin());
    }
    if (next == columns.size()) {
      if (next >= max_columns) continue;
      columns.push_back({value.name, units_of_metric(value.name), std::vector<double>(before, missing)});
    }
    columns[next++].values.push_back(value.value);
  }
  for (Column& column : columns) column.values.resize(before + 1, missing);
}

const MetricsTable::Column* MetricsTable::find(const std::string& column) const {
  const auto found = std::ranges::find(columns, column, &Column::name);
  return found == columns.end() ? nullptr : &*found;
}

void MetricsTable::cut(size_t rows) {
  for (Column& column : columns) column.values.resize(std::min(rows, column.values.size()));
}

void write_metrics_hdf5(const std::string& path, const std::vector<MetricsTable>& tables) {
  const std::lock_guard lock(hdf5_mutex());
  const FileCall call;
  const Hdf5Silence silence;
  const std::string temporary = path + ".tmp";
  const RemoveAtEnd cleanup(temporary);
  {
    const Hdf5Handle access = hdf5_write_access();
    ++opened_files();
    Hdf5Handle file =
        checked(H5Fcreate(temporary.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), H5Fclose, temporary);
    for (const MetricsTable& table : tables) {
      if (table.columns.empty()) continue;
      const Hdf5Handle group = create_group(file, table.name, temporary);
      for (const MetricsTable::Column& column : table.columns) write_column(group, column, temporary);
    }
    check(H5Fflush(file.get(), H5F_SCOPE_GLOBAL), temporary);
    check(file.reset() ? 0 : -1, temporary);
  }
  sync(temporary, O_RDONLY);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    throw UserError(ExitCode::io, fmt::format("{}: renaming failed: {}", temporary, strerror(errno)));
  }
  const size_t slash = path.rfind('/');
  sync(slash == std::string::npos ? "." : path.substr(0, slash), O_RDONLY | O_DIRECTORY);
}

namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw UserError(ExitCode::bad_content, fmt::format("{}: {} is not as a run writes it", path, what));
}

bool is_hard_link(hid_t file, const std::string& name) {
  H5L_info2_t info;
  return H5Lget_info2(file, name.c_str(), &info, H5P_DEFAULT) >= 0 && info.type == H5L_TYPE_HARD;
}

std::string read_units(hid_t data) {
  constexpr size_t max_length = 200;
  const Hdf5Handle attribute(H5Aexists(data, "units") > 0 ? H5Aopen(data, "units", H5P_DEFAULT) : -1, H5Aclose);
  const Hdf5Handle type(attribute.valid() ? H5Aget_type(attribute.get()) : -1, H5Tclose);
  if (!type.valid() || H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0) return "";
  std::string text(H5Tget_size(type.get()), '\0');
  if (text.empty() || text.size() > max_length || H5Aread(attribute.get(), type.get(), text.data()) < 0) return "";
  return text.substr(0, text.find('\0'));
}

MetricsTable::Column read_column(hid_t file, const std::string& name, const std::string& path) {
  constexpr hsize_t max_rows = hsize_t{1} << 28;
  if (!is_hard_link(file, name)) refuse(path, name);
  const Hdf5Handle data(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose);
  if (!data.valid()) refuse(path, name);
  const Hdf5Handle space(H5Dget_space(data.get()), H5Sclose);
  const Hdf5Handle creation(H5Dget_create_plist(data.get()), H5Pclose);
  const Hdf5Handle type(H5Dget_type(data.get()), H5Tclose);
  hsize_t rows = 0;
  if (!space.valid() || !creation.valid() || !type.valid() || H5Sget_simple_extent_ndims(space.get()) != 1 ||
      H5Sget_simple_extent_dims(space.get(), &rows, nullptr) != 1 || rows > max_rows ||
      H5Tequal(type.get(), H5T_IEEE_F64LE) <= 0 || H5Pget_layout(creation.get()) != H5D_CONTIGUOUS ||
      H5Pget_external_count(creation.get()) != 0 ||
      (rows > 0 && H5Dget_storage_size(data.get()) != rows * sizeof(double))) {
    refuse(path, name);
  }
  MetricsTable::Column column{name, read_units(data.get()), std::vector<double>(rows)};
  if (rows > 0 && H5Dread(data.get(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, column.values.data()) < 0) {
    refuse(path, name);
  }
  return column;
}

Hdf5Handle open_metrics(const std::string& path) {
  Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (!file.valid()) refuse(path, "the file");
  return file;
}

/// Names of the links in a group and in groups of it, but of groups. Links out of the file are not followed.
std::vector<std::string> names_in(hid_t group) {
  constexpr size_t max_names = 4096;
  std::vector<std::string> names;
  const auto see = [](hid_t from, const char* name, const H5L_info2_t*, void* to) -> herr_t {
    auto& all = *static_cast<std::vector<std::string>*>(to);
    H5O_info2_t object;
    const bool is_group =
        H5Oget_info_by_name3(from, name, &object, H5O_INFO_BASIC, H5P_DEFAULT) >= 0 && object.type == H5O_TYPE_GROUP;
    if (!is_group) all.emplace_back(name);
    return all.size() > max_names ? -1 : 0;
  };
  if (H5Lvisit2(group, H5_INDEX_NAME, H5_ITER_INC, see, &names) < 0) names.clear();
  return names;
}

}  // namespace

void read_metrics_hdf5(const std::string& path, MetricsTable& table) {
  const std::lock_guard lock(hdf5_mutex());
  const Hdf5Silence silence;
  const Hdf5Handle file = open_metrics(path);
  if (!is_hard_link(file.get(), table.name)) refuse(path, table.name);
  MetricsTable read = table;
  for (MetricsTable::Column& column : read.columns) {
    const std::string name = table.name + "/" + column.name;
    H5L_info2_t info;
    if (column.optional && H5Lget_info2(file.get(), name.c_str(), &info, H5P_DEFAULT) < 0) {
      column.values.assign(read.rows(), missing);
      continue;
    }
    column.values = read_column(file.get(), name, path).values;
    if (column.values.size() != read.rows()) refuse(path, name);
  }
  table = std::move(read);
}

MetricsTable read_metrics_table(const std::string& path, const std::string& name) {
  const std::lock_guard lock(hdf5_mutex());
  const Hdf5Silence silence;
  const Hdf5Handle file = open_metrics(path);
  MetricsTable table{name, {}};
  if (H5Lexists(file.get(), name.c_str(), H5P_DEFAULT) <= 0) return table;
  const Hdf5Handle group(is_hard_link(file.get(), name) ? H5Gopen2(file.get(), name.c_str(), H5P_DEFAULT) : -1,
                         H5Gclose);
  if (!group.valid()) refuse(path, name);
  const std::vector<std::string> names = names_in(group.get());
  if (names.empty()) refuse(path, name);
  for (const std::string& column : names) {
    const std::string place = fmt::format("{}/{}", name, column);
    table.columns.push_back(read_column(file.get(), place, path));
    table.columns.back().name = column;
    if (table.columns.back().values.size() != table.rows()) refuse(path, place);
  }
  return table;
}

}  // namespace llmtrain
