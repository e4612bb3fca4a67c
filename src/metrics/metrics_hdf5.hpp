#pragma once
// The file metrics.h5 of a run.

#include <string>
#include <vector>

#include "metrics/records.hpp"

namespace llmtrain {

/// Columns of equal length under one name, e.g. /train.
struct MetricsTable {
  struct Column {
    std::string name;
    std::string units;  ///< "nats per token", "s", "1", ...
    std::vector<double> values;
    bool optional = false;  ///< True if a file may lack it; its values are then NaN
  };
  std::string name;
  std::vector<Column> columns;

  size_t rows() const { return columns.empty() ? 0 : columns.front().values.size(); }
  /// The column of this name, or null.
  const Column* find(const std::string& column) const;
  void add(const std::vector<double>& row);
  /// Adds a row to a table whose columns are not known beforehand: a new column is NaN in the rows before, and a column
  /// that the row does not name is NaN in it. From `max_columns` on there are no new ones.
  void add(const std::vector<NamedValue>& row, size_t max_columns);
  /// Keeps only the first rows.
  void cut(size_t rows);
};

/// Writes a complete HDF5 file: a group per table that has columns, a 1-D fp64 dataset per column with the attribute
/// "units". The file appears atomically (temporary name, fsync, rename), so that it can be opened whenever the job is
/// killed. Throws UserError(io).
void write_metrics_hdf5(const std::string& path, const std::vector<MetricsTable>& tables);

/// Fills the table's columns from such a file. Throws UserError(bad_content) if the file lacks them or their lengths
/// differ.
void read_metrics_hdf5(const std::string& path, MetricsTable& table);

/// Reads all columns of a table, in the order of their names; a table that the file lacks has none. Throws
/// UserError(bad_content) if the file is not as write_metrics_hdf5() writes it.
MetricsTable read_metrics_table(const std::string& path, const std::string& name);

}  // namespace llmtrain
