#pragma once
#include <string>
#include <vector>

#include "convert/system.hpp"

namespace llmtrain::convert {

/// A key of the settings whose value is not divided further.
struct Setting {
  std::string file;
  std::string name;  ///< as in the file, with the names of maps before it
  std::string key;   ///< in the system's table
  SettingValue value;
  bool has_nulls = false;  ///< the value was a list with items that are null, which it has no more
};

/// Divides the settings into keys, down to values or to maps that the system's table names as a whole. Items of a list
/// of maps are divided, too, where the table has keys below it: "datasets.0.path" has the key "datasets.path".
/// References ${a.b} to other values of the file are replaced.
std::vector<Setting> flatten(const SettingValue& root, const std::string& file, const System& system);

}  // namespace llmtrain::convert
