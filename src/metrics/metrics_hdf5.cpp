#include "metrics/metrics_hdf5.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/files/hdf5_handle.hpp"

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
    Hdf5Handle file =
        checked(H5Fcreate(temporary.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), H5Fclose, temporary);
    for (const MetricsTable& table : tables) {
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

std::vector<double> read_column(hid_t file, const std::string& name, const std::string& path) {
  constexpr hsize_t max_rows = hsize_t{1} << 28;
  H5L_info2_t info;
  if (H5Lget_info2(file, name.c_str(), &info, H5P_DEFAULT) < 0 || info.type != H5L_TYPE_HARD) refuse(path, name);
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
  std::vector<double> values(rows);
  if (rows > 0 && H5Dread(data.get(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
    refuse(path, name);
  }
  return values;
}

}  // namespace

void read_metrics_hdf5(const std::string& path, MetricsTable& table) {
  const Hdf5Silence silence;
  const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (!file.valid()) refuse(path, "the file");
  H5L_info2_t info;
  if (H5Lget_info2(file.get(), table.name.c_str(), &info, H5P_DEFAULT) < 0 || info.type != H5L_TYPE_HARD) {
    refuse(path, table.name);
  }
  MetricsTable read = table;
  for (MetricsTable::Column& column : read.columns) {
    const std::string name = table.name + "/" + column.name;
    if (column.optional && H5Lget_info2(file.get(), name.c_str(), &info, H5P_DEFAULT) < 0) {
      column.values.assign(read.rows(), std::numeric_limits<double>::quiet_NaN());
      continue;
    }
    column.values = read_column(file.get(), name, path);
    if (column.values.size() != read.rows()) refuse(path, table.name + "/" + column.name);
  }
  table = std::move(read);
}

}  // namespace llmtrain
