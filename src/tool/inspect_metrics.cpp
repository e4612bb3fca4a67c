#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <limits>
#include <vector>

#include "core/error.hpp"
#include "core/files/hdf5_handle.hpp"
#include "metrics/metrics_hdf5.hpp"
#include "tool/inspect.hpp"

namespace llmtrain {
namespace {

constexpr std::array<const char*, 4> tables = {"train", "validation", "system", "ranks"};

bool has_plain_link(hid_t file, const char* name) {
  H5L_info2_t info;
  return H5Lexists(file, name, H5P_DEFAULT) > 0 && H5Lget_info2(file, name, &info, H5P_DEFAULT) >= 0 &&
         info.type == H5L_TYPE_HARD;
}

/// Skips NaN, such as the loss of a step without a target.
double least_number(const std::vector<double>& values) {
  double least = std::numeric_limits<double>::quiet_NaN();
  for (const double value : values) least = std::fmin(least, value);
  return least;
}

void print_table(const MetricsTable& table) {
  size_t width = 20;
  for (const MetricsTable::Column& column : table.columns) width = std::max(width, column.name.size());
  std::cout << fmt::format("/{}\n  {:<{}} {:>8} {:>14} {:>14} {:>14}  {}\n", table.name, "", width, "rows", "first",
                           "last", "least", "units");
  for (const MetricsTable::Column& column : table.columns) {
    const std::vector<double>& values = column.values;
    const auto text = [&](auto pick) { return values.empty() ? std::string("-") : fmt::format("{:.6g}", pick()); };
    std::cout << without_controls(fmt::format("  {:<{}} {:>8} {:>14} {:>14} {:>14}  {}\n", column.name, width,
                                              values.size(), text([&] { return values.front(); }),
                                              text([&] { return values.back(); }),
                                              text([&] { return least_number(values); }), column.units));
  }
}

}  // namespace

bool is_metrics_file(const std::string& path) {
  const Hdf5Silence silence;
  const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  return file.valid() && !has_plain_link(file.get(), "tokens") && has_plain_link(file.get(), tables.front());
}

void inspect_metrics(const std::string& path) {
  std::cout << "metrics            " << without_controls(path) << "\n";
  for (const char* name : tables) {
    const MetricsTable table = read_metrics_table(path, name);
    if (!table.columns.empty()) print_table(table);
  }
}

}  // namespace llmtrain
